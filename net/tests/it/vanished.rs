//! A machine that vanishes: no word of it, not even that the connection ended.

use std::time::Duration;

use forebay_net::{Limits, Message, Security};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::{LONG, Seen, Toys, dial};

/// Passes bytes on, both ways, until it is told to fall silent; the sockets stay open.
async fn line_to(address: String) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap().to_string();
    let (silence, silent) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&address).await.unwrap();
            let mut silent = silent.clone();
            tokio::spawn(async move {
                let silenced = async { silent.wait_for(|silent| *silent).await.is_ok() };
                let silenced = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
                    silenced = silenced => silenced,
                };
                if silenced {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (here, silence)
}

#[tokio::test]
async fn both_ends_see_that_the_other_vanished() {
    for _ in 0..20 {
        if vanishes_and_is_missed().await {
            return;
        }
    }
    panic!("no message came back before the ends missed each other");
}

/// False: this machine was so busy that an end missed the other one before it vanished.
async fn vanishes_and_is_missed() -> bool {
    let quick = Limits {
        keepalive_every: Duration::from_millis(100),
        keepalive_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let mut toys = Toys::start(&Security::none(), &quick).await;
    let (address, silence) = line_to(toys.address()).await;
    let peer = dial(&address, &Security::none(), &quick);
    let Ok((mut outgoing, mut incoming)) = peer.exchange(&["toy", "echo"], LONG).await else { return false };
    let sent = outgoing.send(Message::metadata("one")).await;
    if sent.is_err() || incoming.next().await.is_err() {
        return false;
    }
    silence.send_replace(true);
    let fault = incoming.next().await.unwrap_err();
    assert!(fault.retryable && fault.to_string().starts_with(&address), "{fault}");
    let Seen::Ended(_, Err(said)) = toys.seen.recv().await.unwrap() else { panic!("the handler saw no fault") };
    assert!(said.starts_with("reader 1 at 127.0.0.1"), "{said}");
    true
}
