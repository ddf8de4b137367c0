//! Who is not let in, and what is not there: each with the message that the other side reads.

use std::time::Duration;

use forebay_actors::{Domain, Fault};
use forebay_net::{Dialer, Health, Identity, Limits, Message, PROTOCOL, Peer, Security, SecurityFiles, Server};

use crate::common::{Files, LONG, Toys, dial, identity, io};

/// The user's fault that an action ends with, and an exchange as well.
async fn refusal(peer: &Peer) -> String {
    let refused = |fault: Fault| {
        assert_eq!((fault.domain, fault.retryable), (Domain::User, false), "{fault}");
        let said = fault.to_string();
        assert!(said.starts_with(peer.address()), "{said}");
        said
    };
    let said = refused(peer.raw_action("toy.who", "", LONG).await.unwrap_err());
    let exchange = refused(peer.exchange(&["toy", "echo"], LONG).await.map(|_| ()).unwrap_err());
    assert_eq!(said, exchange);
    said
}

fn at(host: &str, toys: &Toys) -> String {
    format!("{host}:{}", toys.server.address().port())
}

#[tokio::test]
async fn a_token_that_is_wrong_or_missing() {
    let files = Files::new();
    let toys = Toys::start(&files.token("open-sesame"), &Limits::default()).await;
    let peer = |security: &Security| dial(&toys.address(), security, &Limits::default());
    let said = refusal(&peer(&Security::none())).await;
    assert!(said.contains("the server asks for a token, and the caller sent none: give token_file"), "{said}");
    for wrong in ["open-barley", "open-sesam", "open-sesame2"] {
        let said = refusal(&peer(&files.token(wrong))).await;
        assert!(said.contains("the caller's token is not the one of this server"), "{said}");
        assert!(!said.contains("sesame"), "no secrets in messages: {said}");
    }
    assert!(peer(&files.token(" open-sesame\n")).raw_action("toy.who", "", LONG).await.is_ok());
}

#[tokio::test]
async fn another_run_or_protocol() {
    let toys = Toys::plain().await;
    let tuesday = Identity { run: "tuesday".to_owned(), ..identity("reader 1") };
    let peer =
        Dialer::new(&io(), &Security::none(), &tuesday, &Limits::default()).unwrap().peer(&toys.address()).unwrap();
    let said = refusal(&peer).await;
    assert!(said.contains("this is run `monday`, and the caller belongs to run `tuesday`"), "{said}");
    let dialer =
        Dialer::speaking(PROTOCOL + 1, &io(), &Security::none(), &identity("reader 1"), &Limits::default()).unwrap();
    let said = refusal(&dialer.peer(&toys.address()).unwrap()).await;
    let other = PROTOCOL + 1;
    assert!(said.contains(&format!("the server speaks protocol {PROTOCOL}, and the caller speaks {other}")), "{said}");
}

#[tokio::test]
async fn tls_with_a_token_works_and_wrong_certificates_do_not() {
    let files = Files::new();
    let here = files.security("localhost", Some("open-sesame"));
    let security = Security::load(&here).unwrap();
    // Open to other machines, as it is protected.
    let any = "0.0.0.0:0".parse().unwrap();
    let toys = Toys::listen(any, &security, &Limits::default()).await.unwrap();
    let peer = dial(&at("localhost", &toys), &security, &Limits::default());
    let who = peer.raw_action("toy.who", "", LONG).await.unwrap();
    assert_eq!(&who[..], br#"Some(("monday", "reader 1", 3))"#);
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    outgoing.send(Message::metadata("secret")).await.unwrap();
    assert_eq!(incoming.next().await.unwrap(), Some(Message::metadata("secret")));

    // The certificate is not signed by whom the client trusts.
    let other = files.security("elsewhere", None);
    let stranger = SecurityFiles { tls_ca: other.tls_ca, ..SecurityFiles::default() };
    let peer = dial(&at("localhost", &toys), &Security::load(&stranger).unwrap(), &Limits::default());
    let said = refusal(&peer).await;
    assert!(said.contains("its certificate is not trusted: tls_ca must name the authority"), "{said}");

    // The certificate is of another host.
    let said = refusal(&dial(&at("127.0.0.1", &toys), &security, &Limits::default())).await;
    assert!(said.contains("the certificate must name the host as it is dialed"), "{said}");

    // Plain words at a TLS port.
    let peer = dial(&at("localhost", &toys), &Security::none(), &Limits::default());
    // Its answer may be read, or be lost with the connection: then it could be any server that went away.
    let said = peer.raw_action("toy.who", "", LONG).await.unwrap_err().to_string();
    assert!(said.contains("if it speaks TLS, name the authority of its certificate by tls_ca"), "{said}");
}

#[tokio::test]
async fn tls_at_a_plain_port() {
    let toys = Toys::plain().await;
    let security = Security::load(&Files::new().security("localhost", None)).unwrap();
    let said = refusal(&dial(&at("localhost", &toys), &security, &Limits::default())).await;
    assert!(said.contains("it does not speak TLS, and is called with it"), "{said}");
}

#[tokio::test]
async fn a_server_open_to_other_machines_needs_both_token_and_tls() {
    let files = Files::new();
    let tls = SecurityFiles { token_file: None, ..files.security("localhost", Some("open-sesame")) };
    for (security, lacks) in [
        (Security::none(), "a token and TLS are missing"),
        (files.token("open-sesame"), "TLS is missing"),
        (Security::load(&tls).unwrap(), "a token is missing"),
    ] {
        assert!(security.is_open());
        let any = "0.0.0.0:0".parse().unwrap();
        let fault = Toys::listen(any, &security, &Limits::default()).await.map(|_| ()).unwrap_err();
        let said = fault.to_string();
        assert!(said.starts_with("0.0.0.0:0 can be reached from other machines") && said.contains(lacks), "{said}");
        // Not every server calls others, so not every one has an authority.
        assert!(!said.contains("tls_ca"), "{said}");
        assert!(said.contains("or listen on 127.0.0.1") && fault.domain == Domain::User, "{said}");
    }
}

#[tokio::test]
async fn an_address_in_use_and_a_malformed_address_are_refused() {
    let toys = Toys::plain().await;
    let again = Toys::listen(toys.server.address(), &Security::none(), &Limits::default()).await;
    let fault = again.map(|_| ()).unwrap_err();
    let said = fault.to_string();
    assert!(said.contains("is another process there already?: Address already in use"), "{said}");
    assert!(fault.domain == Domain::User && fault.retryable, "{fault:?}");

    let files = Files::new();
    let dialer = Dialer::new(&io(), &files.token("open-sesame"), &identity("reader 1"), &Limits::default()).unwrap();
    for wrong in ["localhost", ":7600", "localhost:0", "localhost:many", "a b:7600", ""] {
        let said = dialer.peer(wrong).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("is not an address: expected host:port"), "{said}");
    }
    let said = dialer.peer("ps-0.cluster:7600").map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("the token would be sent unencrypted: give tls_ca"), "{said}");
    for fine in ["localhost:7600", "127.0.0.1:7600", "[::1]:7600"] {
        assert_eq!(dialer.peer(fine).unwrap().address(), fine);
    }
}

#[tokio::test]
async fn secrets_that_are_missing_or_garbage() {
    let files = Files::new();
    let good = files.security("localhost", Some("open-sesame"));
    let other = files.security("elsewhere", None);
    let garbage = Some(files.file("garbage", "-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n"));
    let broken = Some(files.file("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"));
    let words = Some(files.file("words", "two words"));
    let empty = Some(files.file("empty", " \n"));
    let gone = Some(files.0.path().join("gone"));
    let of = |change: &dyn Fn(&mut SecurityFiles)| {
        let mut files = good.clone();
        change(&mut files);
        let fault = Security::load(&files).unwrap_err();
        assert_eq!(fault.domain, Domain::User);
        fault.to_string()
    };
    for (said, expected) in [
        (of(&|f| f.token_file = gone.clone()), "cannot read token_file"),
        (of(&|f| f.token_file = words.clone()), "words must hold one word of printable ASCII"),
        (of(&|f| f.token_file = empty.clone()), "empty must hold one word"),
        (of(&|f| f.tls_key = gone.clone()), "gone: No such file"),
        (of(&|f| f.tls_key = None), "tls_cert is given without tls_key"),
        (of(&|f| f.tls_cert = None), "tls_key is given without tls_cert"),
        (of(&|f| f.tls_ca = None), "tls_cert is given without tls_ca"),
        (of(&|f| f.tls_key = words.clone()), "words holds no PRIVATE KEY in PEM"),
        (of(&|f| f.tls_key = garbage.clone()), "are not a certificate and its key"),
        (of(&|f| f.tls_key = other.tls_key.clone()), "are not a certificate and its key"),
        (of(&|f| f.tls_ca = words.clone()), "words holds no CERTIFICATE in PEM"),
        (of(&|f| f.tls_ca = broken.clone()), "broken holds a broken certificate"),
    ] {
        assert!(said.contains(expected), "{said}, expected {expected}");
    }
    assert!(!format!("{:?}", Security::load(&good).unwrap()).contains("sesame"));
}

#[tokio::test]
async fn what_is_not_there_is_refused_with_what_there_is() {
    let toys = Toys::plain().await;
    let peer = toys.peer();
    let action = async |kind: &str| peer.raw_action(kind, "", LONG).await.unwrap_err().to_string();
    let said = action("table.stats").await;
    assert!(said.contains("no action `table.stats` here") && said.contains("there is `toy`"), "{said}");
    let said = action("nonsense").await;
    assert!(said.contains("no action `nonsense` here"), "{said}");
    for (path, expected) in [
        (&["table", "ads"][..], "nothing is found at the path `table/ads`: there is `toy`"),
        (&[], "nothing is found at the path ``: there is `toy`"),
    ] {
        let said = peer.exchange(path, LONG).await.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    for (ticket, expected) in [
        (r#"{"table": 1}"#, "the ticket names no handler among its keys: there is `toy`"),
        ("garbage", "a ticket is a JSON object here"),
    ] {
        let said = peer.get(ticket, LONG).await.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    // What only the handler knows comes with the first message.
    let (_outgoing, mut incoming) = peer.exchange(&["toy", "nothing"], LONG).await.unwrap();
    let said = incoming.next().await.unwrap_err().to_string();
    assert!(said.contains(r#"there is no exchange ["toy", "nothing"]"#), "{said}");

    struct Bare;
    impl forebay_net::Handler for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }
        fn actions(&self) -> Vec<(String, String)> {
            vec![("a".to_owned(), String::new()), ("b".to_owned(), String::new())]
        }
    }
    let at = "127.0.0.1:0".parse().unwrap();
    let (io, security, limits) = (io(), Security::none(), Limits::default());
    let start = |handlers| Server::start(&io, at, &security, identity("ps 0"), &limits, handlers, Health::new());
    let server = start(vec![std::sync::Arc::new(Bare)]).await.unwrap();
    let peer = dial(&server.address().to_string(), &security, &limits);
    let said = peer.raw_action("bare.c", "", LONG).await.unwrap_err().to_string();
    assert!(said.contains("there is no action `bare.c`: there is `bare.a`, `bare.b`"), "{said}");
    let twice = start(vec![std::sync::Arc::new(Bare), std::sync::Arc::new(Bare)]).await.map(|_| ()).unwrap_err();
    assert!(twice.to_string().contains("two handlers of the name `bare`"), "{twice}");
}

#[tokio::test]
async fn faults_keep_domain_and_retryable_on_their_way_and_answers_are_bounded() {
    let toys = Toys::plain().await;
    let peer = toys.peer();
    let fault = peer.raw_action("toy.fail", "é".repeat(10_000), LONG).await.unwrap_err();
    assert_eq!((fault.domain, fault.retryable), (Domain::Internal, true));
    assert!(fault.to_string().ends_with(&"é".repeat(500)), "long messages are cut, between characters");
    let fault = peer.action::<_, String>("toy.who", &(), LONG).await.unwrap_err();
    assert!(fault.to_string().contains("the answer to `toy.who` is not what was expected"), "{fault}");

    let small = dial(&toys.address(), &Security::none(), &Limits { most_message_bytes: 1000, ..Limits::default() });
    assert_eq!(small.raw_action("toy.big", "900", LONG).await.unwrap().len(), 900);
    let said = small.raw_action("toy.big", "2000", LONG).await.unwrap_err().to_string();
    assert!(said.contains("at most 1000 are accepted"), "{said}");
}

#[tokio::test]
async fn deadlines_end_what_does_not_answer() {
    let toys = Toys::plain().await;
    let fault = toys.peer().raw_action("toy.wait", "", Duration::from_millis(50)).await.unwrap_err();
    assert!(fault.retryable && fault.to_string().contains("no answer to `toy.wait` within 50ms"), "{fault}");
    // A port whose listener accepts no connection.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = dial(&deaf.local_addr().unwrap().to_string(), &Security::none(), &Limits::default());
    let fault = peer.exchange(&["toy"], Duration::from_millis(50)).await.map(|_| ()).unwrap_err();
    assert!(fault.retryable && fault.to_string().contains("the stream was not accepted within 50ms"), "{fault}");
    // No server listens at port 1, and no test chooses it.
    let address = "127.0.0.1:1";
    let fault = dial(address, &Security::none(), &Limits::default()).raw_action("toy.who", "", LONG).await.unwrap_err();
    assert!(fault.retryable && fault.domain == Domain::External, "{fault}");
    assert!(fault.to_string().starts_with(address) && fault.to_string().contains("refused"), "{fault}");
}
