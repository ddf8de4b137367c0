//! The HTTP server: the protocols of its clients, and what those see that it refuses.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;

use forebay_net::{Health, HttpAnswer, HttpLimits, HttpRequest, HttpServer, HttpService, Security};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{Files, LONG, io};

fn answer(status: u16, text: &str) -> HttpAnswer {
    HttpAnswer::new(status, "text/plain", text.to_owned())
}

fn handler(request: HttpRequest) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send>> {
    Box::pin(async move { answer(200, &request.path) })
}

fn start(security: &Security, limits: &HttpLimits) -> HttpServer {
    let service = HttpService { handler: Arc::new(handler), refusal: answer, flight: Vec::new() };
    let listen = "127.0.0.1:0".parse().unwrap();
    HttpServer::start(&io(), listen, security, limits, Health::new(), service).unwrap()
}

/// The protocol that the server took of those that a client offers by ALPN, and the first bytes of its answer.
fn ask(address: SocketAddr, roots: RootCertStore, offered: &[&str]) -> io::Result<(Option<String>, [u8; 9])> {
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
    let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(LONG))?;
    let mut tls = StreamOwned::new(session, socket);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    let taken = tls.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
    let request: &[u8] = match taken.as_deref() {
        Some("h2") => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        _ => b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    tls.write_all(request)?;
    let mut begins = [0; 9];
    tls.read_exact(&mut begins)?;
    Ok((taken, begins))
}

#[test]
fn a_client_with_a_long_body_sees_why_it_is_refused() {
    let files = Files::new();
    let limits = HttpLimits { body_bytes: 4 << 20, local_names: true, ..HttpLimits::default() };
    let (open, closed) = (start(&Security::none(), &limits), start(&files.token("open-sesame"), &limits));
    // The second length is beyond the limit.
    for length in [3 << 20, 12 << 20] {
        for (server, host, token, status) in [
            (&closed, "localhost", "none", "401"),
            (&closed, "localhost", "Bearer other", "401"),
            (&open, "evil.example", "none", "421"),
        ] {
            let mut socket = TcpStream::connect(server.address()).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\nConnection: close\r\n");
            write!(socket, "{head}Content-Length: {length}\r\n\r\n").unwrap();
            socket.write_all(&vec![b'x'; length]).unwrap();
            let mut said = String::new();
            socket.read_to_string(&mut said).unwrap();
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{length} bytes, {token}: {said}");
        }
    }
}

/// A client that waits for a sign before it sends its body, as `curl` does with a long one, sent all of it to be refused.
#[test]
fn a_body_whose_length_is_too_large_is_refused_before_it_is_sent() {
    let server = start(&Security::none(), &HttpLimits { body_bytes: 1000, ..HttpLimits::default() });
    for (headers, status) in [
        ("Content-Length: 1001\r\nExpect: 100-continue", 413),
        ("Content-Length: 100000000", 413),
        ("Content-Length: 10\r\nContent-Encoding: gzip\r\nExpect: 100-continue", 415),
    ] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        write!(socket, "POST / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n").unwrap();
        let mut said = [0; 12];
        socket.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), format!("HTTP/1.1 {status}"), "{headers}");
    }
}

#[test]
fn bodies_that_arrive_together_have_a_limit_in_all() {
    let limits = HttpLimits { body_bytes: 1000, all_body_bytes: 1500, ..HttpLimits::default() };
    let server = start(&Security::none(), &limits);
    let begin = |sent: usize| {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let head = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n";
        socket.write_all(head.as_bytes()).unwrap();
        socket.read_exact(&mut [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()]).unwrap();
        socket.write_all(&vec![b'x'; sent]).unwrap();
        socket
    };
    let end = |mut socket: TcpStream| {
        socket.write_all(b"x").unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        said
    };
    let held = begin(999);
    // The server may not have read all of the first body yet.
    let refused = (0..1000).map(|_| end(begin(999))).find(|said| !said.starts_with("HTTP/1.1 200 "));
    let said = refused.expect("both bodies together are too long");
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("retry-after: 1\r\n"), "{said}");
    assert!(end(held).starts_with("HTTP/1.1 200 "));
    assert!(end(begin(999)).starts_with("HTTP/1.1 200 "));
}

/// The dashboard answered that the body is too long.
#[test]
fn a_server_without_bodies_answers_a_request_with_one_as_without() {
    let server = start(&Security::none(), &HttpLimits { body_bytes: 0, ..HttpLimits::default() });
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
        .write_all(b"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
        .unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("/x"), "{said}");
}

/// A bug: a client that kept its connection for more than 30 s between two requests had no answer to the second, and no header had told it.
#[test]
fn a_client_learns_for_how_long_it_may_keep_its_connection() {
    let server = start(&Security::none(), &HttpLimits::default());
    for (version, is_told) in [("1.1", true), ("1.0", false)] {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        write!(socket, "GET / HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        assert!(said.starts_with(&format!("HTTP/{version} 200 ")), "{said}");
        assert_eq!(said.contains("keep-alive: timeout=25\r\n"), is_told, "{said}");
    }
}

#[test]
fn clients_of_tls_speak_the_protocol_that_they_offer() {
    let files = Files::new();
    let made = files.security("localhost", Some("open-sesame"));
    let server = start(&Security::load(&made).unwrap(), &HttpLimits::default());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(made.tls_ca.unwrap()).unwrap()).unwrap();
    for (offered, taken) in [
        (&["http/1.1"][..], Some("http/1.1")),
        (&[], None),
        (&["h2"], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["other", "http/1.1"], Some("http/1.1")),
    ] {
        let (protocol, begins) = ask(server.address(), roots.clone(), offered).unwrap();
        assert_eq!(protocol.as_deref(), taken, "{offered:?}");
        match taken {
            // The kind of a frame with settings.
            Some("h2") => assert_eq!(begins[3], 4, "{begins:?}"),
            _ => assert_eq!(&begins, b"HTTP/1.1 ", "{offered:?}"),
        }
    }
    ask(server.address(), roots.clone(), &["other"]).unwrap_err();
    // A client that breaks off its handshake, and one that speaks no TLS, harm no others.
    TcpStream::connect(server.address()).unwrap().write_all(b"\x16\x03\x01\x02\0\x01").unwrap();
    TcpStream::connect(server.address()).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ask(server.address(), roots, &["http/1.1"]).unwrap();
}
