//! Tests of the test hosts: which host reaches which, what delays and cuts do, and that nothing is left behind. They assert
//! order, not time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::hosts::{Host, Hosts, Line};

/// The deadline of every wait.
const LONG: Duration = Duration::from_secs(60);

fn listen(host: &Host) -> TcpListener {
    host.run(|| TcpListener::bind((host.address(), 0)).unwrap())
}

/// Connects, and returns both ends: of `from` and of the listener's host.
fn connect(from: &Host, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().unwrap();
    let near = from.run(|| TcpStream::connect_timeout(&address, LONG).unwrap());
    let (far, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), from.address());
    for end in [&near, &far] {
        end.set_read_timeout(Some(LONG)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (near, far)
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut found = vec![0; bytes.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(found, bytes);
}

fn namespaces() -> String {
    String::from_utf8(Command::new("ip").args(["netns", "list"]).output().unwrap().stdout).unwrap()
}

#[test]
fn a_host_has_its_own_address_and_loopback_and_reaches_the_others() {
    let hosts = Hosts::new(&["reader0", "ps0", "trainer0"]);
    let shown = hosts["ps0"].command("ip").args(["-o", "-4", "addr"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let own: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert_eq!(own, ["127.0.0.1/8", &format!("{}/24", hosts["ps0"].address())]);

    let (mut near, mut far) = connect(&hosts["reader0"], &listen(&hosts["trainer0"]));
    near.write_all(b"there").unwrap();
    expect(&mut far, b"there");
    far.write_all(b"back").unwrap();
    expect(&mut near, b"back");

    // A host's loopback port is reachable from that host only.
    let loopback = hosts["reader0"].run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let address = loopback.local_addr().unwrap();
    hosts["reader0"].run(|| TcpStream::connect(address).unwrap());
    let error = hosts["ps0"].run(|| TcpStream::connect(address).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

/// Bytes sent while the host is cut off arrive in order when it is mended, on the same connection.
fn check_cut(line: Line) {
    let hosts = Hosts::new(&["reader0", "ps0", "trainer0"]);
    hosts.line("ps0", line);
    let (reader, ps, trainer) = (&hosts["reader0"], &hosts["ps0"], &hosts["trainer0"]);
    let (listener, witness) = (listen(ps), listen(trainer));
    let (mut near, mut far) = connect(reader, &listener);
    let (mut asks, mut answers) = connect(reader, &witness);
    near.write_all(b"before ").unwrap();
    expect(&mut far, b"before ");

    hosts.cut("ps0");
    near.write_all(b"to it").unwrap();
    far.write_all(b"from it").unwrap();
    // Packets between other hosts, sent later, pass meanwhile.
    for _ in 0..200 {
        asks.write_all(b"?").unwrap();
        expect(&mut answers, b"?");
        answers.write_all(b"!").unwrap();
        expect(&mut asks, b"!");
    }
    for end in [&mut near, &mut far] {
        end.set_nonblocking(true).unwrap();
        assert_eq!(end.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
        end.set_nonblocking(false).unwrap();
    }
    // A line that is changed meanwhile stays cut; a new connection waits.
    hosts.line("ps0", line);
    let address = listener.local_addr().unwrap();
    let error = reader.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(50)).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::TimedOut);

    hosts.mend("ps0");
    expect(&mut far, b"to it");
    expect(&mut near, b"from it");
    connect(reader, &listener);
}

#[test]
fn a_cut_line_delivers_nothing_until_it_is_mended_and_then_everything() {
    check_cut(Line::default());
}

#[test]
fn a_cut_line_with_delay_and_limit_delivers_everything_when_mended() {
    check_cut(Line { rate_mbit: Some(100), delay_ms: Some(2) });
}

/// Sends to `slow` first and then as much to `fast`. Returns the names in the order in which they received everything.
fn arrivals(hosts: &Hosts, bytes: usize) -> Vec<&'static str> {
    let mut ends = Vec::new();
    for name in ["slow", "fast"] {
        ends.push((name, connect(&hosts["reader0"], &listen(&hosts[name]))));
    }
    let (send, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for (name, (near, far)) in &mut ends {
            let send = send.clone();
            scope.spawn(move || {
                expect(far, &vec![7; bytes]);
                send.send(*name).unwrap();
            });
            // Socket buffers hold this much.
            near.write_all(&vec![7; bytes]).unwrap();
        }
    });
    drop(send);
    done.iter().collect()
}

#[test]
fn a_line_with_delay_or_limit_delivers_later_than_one_without() {
    let hosts = Hosts::new(&["reader0", "slow", "fast"]);
    // A thread that stands still receives late on every line.
    let check = |bytes, expected: [&str; 2]| {
        assert!(
            (0..3).any(|_| arrivals(&hosts, bytes) == expected),
            "{} is not the first of two in three tries",
            expected[0]
        );
    };
    hosts.line("slow", Line { delay_ms: Some(300), ..Line::default() });
    check(5, ["fast", "slow"]);
    // 0.3 s on the line.
    hosts.line("slow", Line { rate_mbit: Some(4), ..Line::default() });
    check(150_000, ["fast", "slow"]);
    // The other way round: the first line is fast again.
    hosts.line("slow", Line::default());
    hosts.line("fast", Line { rate_mbit: Some(4), delay_ms: Some(100) });
    check(150_000, ["slow", "fast"]);
}

#[test]
fn connections_stay_while_a_line_changes() {
    let hosts = Hosts::new(&["reader0", "ps0"]);
    let (mut near, mut far) = connect(&hosts["reader0"], &listen(&hosts["ps0"]));
    let delays = [None, Some(3), Some(1), None];
    for (round, delay_ms) in delays.into_iter().enumerate() {
        for name in ["reader0", "ps0"] {
            hosts.line(name, Line { delay_ms, rate_mbit: delay_ms.map(|_| 50) });
        }
        near.write_all(&[round as u8; 30_000]).unwrap();
        expect(&mut far, &[round as u8; 30_000]);
    }
}

#[test]
fn two_sets_of_hosts_with_the_same_names_are_separate() {
    let (left, right) = (Hosts::new(&["ps0", "reader0"]), Hosts::new(&["ps0", "reader0"]));
    let listener = listen(&left["ps0"]);
    let address = listener.local_addr().unwrap();
    assert_eq!(left["ps0"].address(), right["ps0"].address());
    let error = right["reader0"].run(|| TcpStream::connect(address).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    connect(&left["reader0"], &listener);
}

#[test]
fn dropping_hosts_kills_their_processes_and_removes_them() {
    let hosts = Hosts::new(&["dropped0"]);
    hosts.line("dropped0", Line { delay_ms: Some(1), ..Line::default() });
    assert!(namespaces().contains("-dropped0"));
    let mut child = hosts["dropped0"].command("sleep").arg("600").stdout(Stdio::piped()).spawn().unwrap();
    // nsenter is listed once it has entered the namespace.
    let begun = Instant::now();
    while !hosts_of(&child).contains("-dropped0") {
        assert!(begun.elapsed() < LONG, "nsenter does not enter the namespace");
    }
    drop(hosts);
    assert!(!child.wait().unwrap().success());
    assert!(!namespaces().contains("-dropped0"));
}

/// The namespace that a process is in.
fn hosts_of(child: &std::process::Child) -> String {
    let output = Command::new("ip").args(["netns", "identify", &child.id().to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hosts_of_a_killed_run_are_removed_when_another_starts() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let (left, other) = (format!("forebay-{}-1-left", gone.id()), format!("forebay-{}-1-other", std::process::id()));
    for name in [&left, &other] {
        assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    }
    let hosts = Hosts::new(&["next0"]);
    let there = namespaces();
    assert!(!there.contains(&left) && there.contains(&other) && there.contains("-next0"), "{there}");
    drop(hosts);
    assert!(Command::new("ip").args(["netns", "del", &other]).status().unwrap().success());
}
