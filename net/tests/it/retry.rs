//! Waiting for what may come.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::Retry;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn retryable_faults_are_tried_again_with_growing_waits_and_others_are_not() {
    let retry = Retry::within(Duration::from_secs(3600));
    let mut tries = Vec::new();
    let begun = Instant::now();
    let op = || {
        tries.push(begun.elapsed());
        let result = if tries.len() == 20 { Ok(7) } else { Err(Fault::external("not yet").retryable()) };
        async { result }
    };
    assert_eq!(retry.run("seven", op).await.unwrap(), 7);
    for (i, wait) in tries.windows(2).map(|pair| pair[1] - pair[0]).enumerate() {
        let bound = Duration::from_millis(50 << i.min(10)).min(Duration::from_secs(5));
        assert!(wait <= bound + Duration::from_millis(1), "wait {i} was {wait:?}, more than {bound:?}");
    }
    assert!(tries[19] > Duration::from_secs(1), "it did not wait at all");

    let mut tries = 0;
    let op = || {
        tries += 1;
        async { Err::<(), _>(Fault::user("never")) }
    };
    assert_eq!(retry.run("nothing", op).await.unwrap_err().to_string(), "never");
    assert_eq!(tries, 1);
}

#[tokio::test(start_paused = true)]
async fn time_is_up_with_the_last_fault_and_how_long_it_was() {
    let begun = Instant::now();
    let retry = Retry::within(Duration::from_secs(30));
    let op = || async { Err::<(), _>(Fault::external("nobody is there").retryable()) };
    let fault = retry.run("the coordinator at 10.0.0.7:7600", op).await.unwrap_err();
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(30) && waited < Duration::from_secs(31),
        "the last try is at the end: {waited:?}"
    );
    let said = fault.to_string();
    assert!(said.starts_with("gave up waiting for the coordinator at 10.0.0.7:7600 after 30."), "{said}");
    assert!(said.ends_with("s: nobody is there"), "{said}");
    assert!(fault.retryable);
}

/// Handlers are spawned: what they await must be `Send`.
#[tokio::test]
async fn a_retry_may_be_spawned() {
    let text = String::from("kept");
    let work = async move {
        let retry = Retry::within(Duration::from_secs(1));
        retry.run("text", || async { Ok::<_, Fault>(text.len()) }).await
    };
    assert_eq!(tokio::spawn(work).await.unwrap().unwrap(), 4);
}
