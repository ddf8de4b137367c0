//! Clients that hold connections: those that never ask for anything, and those that are too many.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use forebay_net::{Limits, Peer, Retry, Security};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{Files, LONG, Toys, dial};

fn quick(connections: usize) -> Limits {
    Limits { opening: Duration::from_millis(300), connections, ..Limits::default() }
}

/// Makes a first call of a peer, and makes it again if the server has closed its connection, because this machine took so long for it.
async fn accepted(peer: &Peer) {
    let retry = Retry::within(LONG);
    retry.run("the server", || peer.raw_action("toy.who", "", LONG)).await.unwrap();
}

/// Waits until the server closes the connection.
async fn closed(socket: &mut TcpStream) {
    let mut bytes = Vec::new();
    // A reset closes it, too.
    let _ = timeout(LONG, socket.read_to_end(&mut bytes)).await.expect("the server closes the connection");
}

#[tokio::test]
async fn a_client_without_an_accepted_call_does_not_keep_its_connection() {
    let files = Files::new();
    let security = Security::load(&files.security("localhost", Some("open-sesame"))).unwrap();
    let tls = Toys::start(&security, &quick(8)).await;
    let plain = Toys::start(&files.token("open-sesame"), &quick(8)).await;
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Nothing, half a request, HTTP/2 without a request, and half a handshake.
    for (address, begins) in [
        (plain.address(), &b""[..]),
        (plain.address(), b"GET /healthz HT"),
        (plain.address(), preface),
        (tls.address(), b""),
        (tls.address(), b"\x16\x03\x01\x02\0\x01"),
    ] {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(begins).await.unwrap();
        closed(&mut socket).await;
    }
    // A client whose calls are refused.
    let mut socket = TcpStream::connect(plain.address()).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: ps\r\n\r\n").await.unwrap();
    closed(&mut socket).await;
    let stranger = dial(&plain.address(), &Security::none(), &Limits::default());
    assert!(stranger.raw_action("toy.who", "", LONG).await.is_err());
}

#[tokio::test]
async fn a_client_with_an_accepted_call_keeps_its_connection() {
    let files = Files::new();
    let here = files.security("localhost", Some("open-sesame"));
    let security = Security::load(&here).unwrap();
    let toys = Toys::start(&security, &quick(1)).await;
    let address = format!("localhost:{}", toys.server.address().port());
    let peer = dial(&address, &security, &Limits::default());
    accepted(&peer).await;
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    // Longer than a connection without a call lives; the only slot stays taken.
    tokio::time::sleep(quick(1).opening * 3).await;
    outgoing.send(forebay_net::Message::metadata("one")).await.unwrap();
    assert!(incoming.next().await.unwrap().is_some());
}

/// Health probes were refused while idle connections held all slots.
#[tokio::test]
async fn beyond_the_limit_a_connection_without_a_call_makes_room_and_otherwise_the_new_one_is_closed() {
    let limits = Limits { opening: LONG * 100, ..quick(2) };
    let toys = Toys::start(&Security::none(), &limits).await;
    let first = toys.peer();
    accepted(&first).await;
    let mut silent = TcpStream::connect(toys.address()).await.unwrap();
    let second = toys.peer();
    accepted(&second).await;
    closed(&mut silent).await;
    let fault = toys.peer().raw_action("toy.who", "", LONG).await.expect_err("three connections at a limit of two");
    assert!(fault.retryable, "{fault}");
    first.raw_action("toy.who", "", LONG).await.unwrap();
    second.raw_action("toy.who", "", LONG).await.unwrap();
    // Its slot is free at once, or soon.
    drop(second);
    accepted(&toys.peer()).await;
}

#[tokio::test]
async fn a_client_that_ends_its_handshake_and_asks_for_nothing_does_not_keep_its_connection() {
    let files = Files::new();
    let made = files.security("localhost", Some("open-sesame"));
    let toys = Toys::start(&Security::load(&made).unwrap(), &quick(8)).await;
    let address = toys.address();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(made.tls_ca.unwrap()).unwrap()).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let config = Arc::new(config);
        let begin = || {
            let mut tls = ClientConnection::new(Arc::clone(&config), "localhost".try_into().unwrap()).unwrap();
            let mut socket = std::net::TcpStream::connect(&address).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut socket).ok()?;
            }
            tls.writer().write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
            tls.complete_io(&mut socket).ok()?;
            Some(socket)
        };
        // On a busy machine the server also closes a connection whose handshake takes too long: then the test tries again.
        let mut socket = (0..20).find_map(|_| begin()).expect("no handshake ends in time");
        // Until the end of the connection.
        std::io::copy(&mut socket, &mut std::io::sink())
    });
    let timed_out = |e: &std::io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    assert!(!ended.await.unwrap().as_ref().is_err_and(timed_out), "the connection stays open");
}
