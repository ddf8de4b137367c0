//! Calls of another attempt of the run, and streams that were opened in an earlier one.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::{Domain, Fault};
use forebay_net::{Caller, Dialer, Handler, Health, Identity, Limits, Message, Peer, Retry, Security, Server};
use forebay_net::{RequestStream, Resend};
use tokio::time::timeout;

use crate::common::{LONG, Toys, identity, io};

fn peer(address: &str, attempt: u64) -> Peer {
    let identity = Identity { attempt, ..identity("reader 1") };
    Dialer::new(&io(), &Security::none(), &identity, &Limits::default()).unwrap().peer(address).unwrap()
}

/// The retryable fault that an action and an exchange end with.
async fn refusal(peer: &Peer) -> String {
    let refused = |fault: Fault| {
        assert_eq!((fault.domain, fault.retryable), (Domain::External, true), "{fault}");
        fault.to_string()
    };
    let action = refused(peer.raw_action("toy.who", "", LONG).await.unwrap_err());
    let exchange = refused(peer.exchange(&["toy", "echo"], LONG).await.map(|_| ()).unwrap_err());
    let get = refused(peer.get(r#"{"toy": 1, "rows": 1}"#, LONG).await.map(|_| ()).unwrap_err());
    let without_port = |said: &str| said.split_once("reader 1 at").map(|(before, _)| before.to_owned());
    assert_eq!(without_port(&action), without_port(&exchange));
    assert_eq!(without_port(&action), without_port(&get));
    action
}

#[tokio::test]
async fn calls_of_another_attempt_are_refused_with_both_values_until_the_server_enters_it() {
    let toys = Toys::plain().await;
    for (theirs, ours) in [(4, 5), (6, 5), (0, 5)] {
        let said = refusal(&peer(&toys.address(), theirs)).await;
        assert!(said.contains(&format!("belongs to attempt {theirs} of the run")), "{said}");
        assert!(said.contains(&format!("this process is in attempt {ours}")), "{said}");
    }
    let later = peer(&toys.address(), 6);
    let attempt = toys.server.attempt();
    attempt.set(6);
    assert_eq!((attempt.get(), toys.server.attempt().get()), (6, 6));
    later.raw_action("toy.who", "", LONG).await.unwrap();
    let said = refusal(&peer(&toys.address(), 5)).await;
    assert!(said.contains("belongs to attempt 5 of the run, this process is in attempt 6"), "{said}");
}

#[tokio::test]
async fn a_server_that_has_not_joined_is_not_ready() {
    let toys = Toys::plain().await;
    toys.server.set_attempt(0);
    for attempt in [0, 1] {
        let said = refusal(&peer(&toys.address(), attempt)).await;
        assert!(said.contains("not ready: this process has not joined the run yet"), "{said}");
    }
}

#[tokio::test]
async fn streams_end_when_the_server_enters_another_attempt() {
    let mut toys = Toys::plain().await;
    let peer = toys.peer();
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    let (_silent, mut waits) = peer.exchange(&["toy", "wait"], LONG).await.unwrap();
    outgoing.send(Message::metadata("one")).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), Some(Message::metadata("one")));
    waits.next().await.unwrap();
    toys.server.set_attempt(6);
    for stream in [&mut incoming, &mut waits] {
        let fault = timeout(LONG, stream.next()).await.expect("the stream ends").unwrap_err();
        assert!(fault.retryable && fault.domain == Domain::External, "{fault}");
        let said = fault.to_string();
        assert!(said.contains("this stream belongs to attempt 5 of the run, this process is in attempt 6"), "{said}");
    }
    assert!(toys.seen.try_recv().is_err(), "both handlers were dropped, none of them saw a message of the old attempt");
}

/// A request of attempt 5 that waits for its connection is not carried out in attempt 6.
#[tokio::test]
async fn requests_of_an_old_attempt_are_not_sent_again_to_a_new_one() {
    let toys = Toys::plain().await;
    let short = Retry::within(std::time::Duration::from_millis(300));
    let requests = RequestStream::new(toys.peer(), "the toy", &["toy", "echo"], short);
    let ask = || requests.ask(Message::metadata("one"), Resend::Yes);
    assert_eq!(ask().await.unwrap().1, Message::metadata("one"));
    toys.server.set_attempt(6);
    let fault = ask().await.unwrap_err();
    assert!(fault.to_string().contains("attempt 5 of the run"), "{fault}");
}

/// Takes calls of every attempt.
struct Open;

#[async_trait]
impl Handler for Open {
    fn name(&self) -> &'static str {
        "open"
    }

    fn takes_any_attempt(&self) -> bool {
        true
    }

    async fn action(&self, caller: &Caller, _: &str, _: Bytes) -> Result<Bytes, Fault> {
        Ok(caller.identity.as_ref().map_or_else(String::new, |identity| identity.attempt.to_string()).into())
    }

    async fn exchange(
        &self,
        _: Caller,
        _: Vec<String>,
        mut incoming: forebay_net::Incoming,
        mut outgoing: forebay_net::Outgoing,
    ) -> Result<(), Fault> {
        while let Some(message) = incoming.next().await? {
            outgoing.send(message).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_handler_may_take_calls_of_every_attempt() {
    let (any, none) = ("127.0.0.1:0".parse().unwrap(), Security::none());
    let unjoined = Identity { attempt: 0, ..identity("ps 0") };
    let handlers: Vec<Arc<dyn Handler>> = vec![Arc::new(Open)];
    let server = Server::start(&io(), any, &none, unjoined, &Limits::default(), handlers, Health::new()).await.unwrap();
    let address = server.address().to_string();
    for attempt in [0, 5] {
        assert_eq!(peer(&address, attempt).raw_action("open.which", "", LONG).await.unwrap(), attempt.to_string());
    }
    let (mut outgoing, mut incoming) = peer(&address, 3).exchange(&["open"], LONG).await.unwrap();
    for attempt in [1, 2] {
        server.set_attempt(attempt);
        outgoing.send(Message::metadata("one")).await.unwrap();
        assert_eq!(incoming.next().await.unwrap(), Some(Message::metadata("one")));
    }
    drop(server);
}
