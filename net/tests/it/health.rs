//! `GET /healthz` and `GET /livez`, and the end of a server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_net::{Limits, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Files, LONG, Toys};

async fn ask(address: &str) -> String {
    get(address, "/healthz").await
}

async fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).await.unwrap();
    said
}

#[tokio::test]
async fn health_says_what_is_waited_for_and_then_ok() {
    let toys = Toys::plain().await;
    let said = ask(&toys.address()).await;
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("waiting: starting\n"), "{said}");
    toys.health.waiting("2 of 3 readers");
    let said = ask(&toys.address()).await;
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("waiting: 2 of 3 readers\n"), "{said}");
    toys.health.ready();
    let said = ask(&toys.address()).await;
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("\r\nok\n"), "{said}");
}

/// Kubernetes must not kill a process that waits for others.
#[tokio::test]
async fn a_process_that_waits_is_alive_and_needs_no_token_to_say_so() {
    let files = Files::new();
    let toys = Toys::start(&files.token("open-sesame"), &Limits::default()).await;
    toys.health.waiting("2 of 3 readers");
    let said = get(&toys.address(), "/livez").await;
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("\r\nok\n"), "{said}");
}

#[tokio::test]
async fn a_server_that_stops_lets_calls_end_and_takes_no_more() {
    let toys = Toys::plain().await;
    let peer = toys.peer();
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    outgoing.send(Message::metadata("one")).await.unwrap();
    incoming.next().await.unwrap();
    let address = toys.address();
    let stopped = tokio::spawn(toys.server.stop(LONG));
    // The server refuses new connections; the stream goes on.
    let begun = Instant::now();
    while TcpStream::connect(&address).await.is_ok() {
        assert!(begun.elapsed() < LONG, "the server still takes connections, {LONG:?} after it was stopped");
        tokio::task::yield_now().await;
    }
    outgoing.send(Message::metadata("two")).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), Some(Message::metadata("two")));
    drop(outgoing);
    assert_eq!(incoming.next().await.unwrap(), None);
    stopped.await.unwrap();
    let fault = peer.raw_action("toy.who", "", LONG).await.unwrap_err();
    assert!(fault.retryable && fault.to_string().starts_with(&address), "{fault}");
}

#[tokio::test]
async fn what_outlasts_the_grace_is_cut_and_may_be_tried_again() {
    let mut said = String::new();
    // The server does not wait long until its last words are sent: on a busy machine they may be lost with the connection.
    for _ in 0..20 {
        let toys = Toys::plain().await;
        let (_outgoing, mut incoming) = toys.peer().exchange(&["toy", "wait"], LONG).await.unwrap();
        incoming.next().await.unwrap();
        toys.server.stop(Duration::ZERO).await;
        let fault = incoming.next().await.unwrap_err();
        assert!(fault.retryable, "{fault}");
        said = fault.to_string();
        if said.ends_with("this server stops") {
            return;
        }
    }
    panic!("it does not say that it stops: {said}");
}

#[tokio::test]
async fn a_dropped_server_cuts_its_streams() {
    let toys = Toys::plain().await;
    let (_outgoing, mut incoming) = toys.peer().exchange(&["toy", "wait"], LONG).await.unwrap();
    incoming.next().await.unwrap();
    drop(toys);
    assert!(incoming.next().await.unwrap_err().retryable);
}

#[tokio::test]
async fn a_peer_connects_again_to_a_server_that_came_back() {
    let listen =
        async |at| Toys::listen(at, &forebay_net::Security::none(), &forebay_net::Limits::default()).await.unwrap();
    // No other process uses this address, so none is given its port while no server has it.
    let [.., high, low] = std::process::id().to_be_bytes();
    let toys = listen(SocketAddr::from(([127, 77, high, low], 0))).await;
    let (peer, address) = (toys.peer(), toys.server.address());
    peer.raw_action("toy.who", "", LONG).await.unwrap();
    toys.server.stop(LONG).await;
    assert!(peer.raw_action("toy.who", "", LONG).await.unwrap_err().retryable);
    let _again = listen(address).await;
    let retry = forebay_net::Retry::within(LONG);
    retry.run("the toy", async || peer.raw_action("toy.who", "", LONG).await).await.unwrap();
}
