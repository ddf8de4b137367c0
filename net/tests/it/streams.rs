//! Exchanges: all messages arrive, both sides see the ends, and a stalled stream stalls no other.

use std::time::Instant;

use arrow::array::RecordBatch;
use bytes::Bytes;
use forebay_actors::Domain;
use forebay_net::{Limits, Message, Security};
use futures::FutureExt;
use tokio::time::timeout;

use crate::common::{LONG, Seen, Toys, dial, numbers};

#[tokio::test]
async fn notes_and_columns_come_back_in_order_and_the_end_is_seen_on_both_sides() {
    let mut toys = Toys::plain().await;
    let (mut outgoing, mut incoming) = toys.peer().exchange(&["toy", "echo"], LONG).await.unwrap();
    for i in 0..20 {
        let batch = (i % 3 != 0).then(|| numbers(i, 1 << (i % 18)));
        let sent = Message { batch, metadata: Bytes::from(format!("metadata {i}")) };
        outgoing.send(sent.clone()).await.unwrap();
        assert_eq!(incoming.next().await.unwrap(), Some(sent));
    }
    drop(outgoing);
    assert_eq!(incoming.next().await.unwrap(), None);
    assert_eq!(incoming.next().await.unwrap(), None, "the end stays the end");
    assert_eq!(toys.seen.recv().await.unwrap(), Seen::Ended("reader 1".to_owned(), Ok(())));
}

#[tokio::test]
async fn columns_that_change_and_messages_too_large_are_refused_and_the_stream_goes_on() {
    let toys = Toys::plain().await;
    let limits = Limits { most_message_bytes: 10_000, ..Limits::default() };
    let peer = dial(&toys.address(), &Security::none(), &limits);
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    let said = outgoing.send(Message::columns(numbers(0, 2000))).await.unwrap_err();
    assert!(said.to_string().contains("at most 10000 are accepted: send fewer rows"), "{said}");
    outgoing.send(Message::columns(numbers(0, 2))).await.unwrap();
    let other = RecordBatch::try_from_iter([("m", numbers(0, 1).column(0).clone())]).unwrap();
    let said = outgoing.send(Message::columns(other)).await.unwrap_err();
    assert!(said.to_string().contains("changed from (n: Int64) to (m: Int64)"), "{said}");
    assert_eq!(incoming.next().await.unwrap(), Some(Message::columns(numbers(0, 2))));
}

#[tokio::test]
async fn a_message_larger_than_the_receiver_accepts_ends_the_stream_with_both_numbers() {
    let toys = Toys::start(&Security::none(), &Limits { most_message_bytes: 10_000, ..Limits::default() }).await;
    let (mut outgoing, mut incoming) = toys.peer().exchange(&["toy", "echo"], LONG).await.unwrap();
    outgoing.send(Message::columns(numbers(0, 2000))).await.unwrap();
    let fault = incoming.next().await.unwrap_err();
    let said = fault.to_string();
    assert!(said.contains("a message of 16") && said.contains("at most 10000 are accepted"), "{said}");
    assert_eq!((fault.domain, fault.retryable), (Domain::User, false));
    assert!(incoming.next().await.is_err(), "after an error there are only errors");
}

#[tokio::test]
async fn what_a_part_fails_with_arrives_behind_what_it_sent() {
    let toys = Toys::plain().await;
    let (mut outgoing, mut incoming) = toys.peer().exchange(&["toy", "fail"], LONG).await.unwrap();
    outgoing.send(Message::columns(numbers(0, 1))).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), Some(Message::columns(numbers(0, 1))));
    let fault = incoming.next().await.unwrap_err();
    assert_eq!(fault.to_string(), format!("{}: the disk is full", toys.address()));
    assert_eq!((fault.domain, fault.retryable), (Domain::External, true));
    timeout(LONG, outgoing.closed()).await.unwrap();
    let fault = outgoing.send(Message::metadata("more")).await.unwrap_err();
    assert!(fault.retryable && fault.to_string().contains("takes no more messages"), "{fault}");
}

#[tokio::test]
async fn a_part_that_panics_ends_its_stream_alone() {
    let toys = Toys::plain().await;
    let peer = toys.peer();
    let (_outgoing, mut incoming) = peer.exchange(&["toy", "panic"], LONG).await.unwrap();
    let fault = incoming.next().await.unwrap_err();
    assert!(fault.to_string().contains("panicked"), "{fault}");
    let fault = peer.raw_action("toy.panic", "", LONG).await.unwrap_err();
    assert!(fault.to_string().contains("panicked"), "{fault}");
    assert!(peer.raw_action("toy.who", "", LONG).await.is_ok());
}

#[tokio::test]
async fn a_client_that_leaves_is_seen_by_the_part() {
    let mut toys = Toys::plain().await;
    let (outgoing, mut incoming) = toys.peer().exchange(&["toy", "flood"], LONG).await.unwrap();
    incoming.next().await.unwrap();
    drop((outgoing, incoming));
    let Seen::Ended(_, Err(said)) = toys.seen.recv().await.unwrap() else { panic!("it ended well") };
    assert!(said.contains("reader 1 at 127.0.0.1") && said.contains("takes no more messages"), "{said}");

    // One that only listens and leaves without a word: the handler's `next` fails.
    let (outgoing, incoming) = toys.peer().exchange(&["toy", "echo"], LONG).await.unwrap();
    drop(incoming);
    let Seen::Ended(_, Err(_)) = toys.seen.recv().await.unwrap() else { panic!("it ended well") };
    drop(outgoing);
}

#[tokio::test]
async fn a_cancelled_next_loses_nothing() {
    let toys = Toys::plain().await;
    let (mut outgoing, mut incoming) = toys.peer().exchange(&["toy", "echo"], LONG).await.unwrap();
    let sender = tokio::spawn(async move {
        for i in 0..50 {
            outgoing.send(Message::columns(numbers(i, 100_000))).await.unwrap();
        }
    });
    let begun = Instant::now();
    for i in 0..50 {
        let message = loop {
            assert!(begun.elapsed() < LONG, "message {i} has not come after {LONG:?}");
            // Polled once and dropped, over and over: most are cut within a message.
            match incoming.next().now_or_never() {
                Some(message) => break message,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(message.unwrap(), Some(Message::columns(numbers(i, 100_000))), "message {i}");
    }
    sender.await.unwrap();
}

#[tokio::test]
async fn stalled_streams_hold_up_neither_each_other_nor_actions() {
    let mut toys = Toys::plain().await;
    let peer = toys.peer();
    let mut stalled = Vec::new();
    // More bytes than the windows of HTTP/2 by default, or one stream's window, by far: 10 windows of 16 MiB.
    for _ in 0..10 {
        stalled.push(peer.exchange(&["toy", "flood"], LONG).await.unwrap());
    }
    // Each floods its window (64 messages of 256 KiB) before it stalls.
    toys.flooded.wait_for(|sent| *sent >= 10 * 64).await.unwrap();
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    for i in 0..20 {
        outgoing.send(Message::columns(numbers(i, 1 << 17))).await.unwrap();
        assert_eq!(timeout(LONG, incoming.next()).await.unwrap().unwrap().unwrap().rows(), 1 << 17);
    }
    assert!(peer.raw_action("toy.who", "", LONG).await.is_ok());
    // Bounded: the window, the queue, and what lies between them.
    let sent = *toys.flooded.borrow_and_update();
    assert!(sent <= 10 * (64 + 8), "{sent} messages are under way");
    // And what was stalled goes on.
    for (_, incoming) in &mut stalled {
        assert_eq!(timeout(LONG, incoming.next()).await.unwrap().unwrap().unwrap().rows(), 1 << 15);
    }
}

#[tokio::test]
async fn many_streams_of_one_connection_at_once() {
    let toys = Toys::plain().await;
    let peer = toys.peer();
    let streams = (0..50).map(|s: i64| {
        let peer = peer.clone();
        async move {
            let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
            for i in 0..10 {
                outgoing.send(Message::columns(numbers(s * i, 1000))).await.unwrap();
                assert_eq!(incoming.next().await.unwrap(), Some(Message::columns(numbers(s * i, 1000))));
            }
        }
    });
    futures::future::join_all(streams).await;
}
