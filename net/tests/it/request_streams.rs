//! Requests on a stream that stays open: what happens to one that cannot be sent.

use forebay_actors::Domain;
use forebay_net::{Limits, Message, RequestStream, Resend, Retry, Security};
use tokio::time::timeout;

use crate::common::{LONG, Toys, dial};

#[tokio::test]
async fn a_request_over_the_limit_fails_by_itself_and_the_others_are_answered() {
    let toys = Toys::plain().await;
    let small = Limits { most_message_bytes: 1000, ..Limits::default() };
    let peer = dial(&toys.address(), &Security::none(), &small);
    let requests = RequestStream::new(peer, "the toy", &["toy", "echo"], Retry::within(LONG));
    let ask = |bytes: usize| {
        let answered = requests.ask(Message::metadata(vec![b'x'; bytes]), Resend::Yes);
        async move { timeout(LONG, answered).await.expect("the request is answered or fails") }
    };
    let (first, large, last) = tokio::join!(ask(1), ask(2000), ask(3));
    assert_eq!(first.unwrap().1.metadata.len(), 1);
    assert_eq!(last.unwrap().1.metadata.len(), 3);
    let fault = large.unwrap_err();
    assert_eq!((fault.domain, fault.retryable), (Domain::User, false), "{fault}");
    assert!(fault.to_string().contains("at most 1000 are accepted"), "{fault}");
    assert_eq!(ask(4).await.unwrap().1.metadata.len(), 4, "the stream goes on");
}
