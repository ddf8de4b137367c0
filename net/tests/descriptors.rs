//! A server whose process has used up its file descriptors. This test changes the limit of its process: it is alone in it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_actors::IoRuntime;
use forebay_net::{Health, Identity, Limits, Security, Server, raise_descriptor_limit};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_server_without_free_descriptors_accepts_again_when_some_are_free() {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: before.maximum }).unwrap();
    let io = IoRuntime::new("net", 1);
    let identity = Identity { run: "monday".into(), role: "ps 0".into(), incarnation: 1, attempt: 1 };
    let (any, security, limits) = ("127.0.0.1:0".parse().unwrap(), Security::none(), Limits::default());
    let health = Health::new();
    health.ready();
    let start = Server::start(&io, any, &security, identity, &limits, Vec::new(), health);
    let server = io.block_on(start).unwrap();

    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    // One descriptor for the client: the server gets none.
    hoard.pop();
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: ps\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = [0; 15];
    assert!(client.read_exact(&mut answer).is_err(), "it was accepted without a descriptor");
    drop(hoard);
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");

    assert_eq!(raise_descriptor_limit(10), before.maximum);
    assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    io.block_on(server.stop(Duration::from_secs(5)));
}
