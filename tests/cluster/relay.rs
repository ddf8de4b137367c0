//! A loopback port of this machine that forwards to a process on a host, so that the test can send requests to it.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::hosts::Hosts;

/// The forwarded port. Its threads end with it and with its connections.
pub(crate) struct Relay {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

impl Relay {
    /// Forwards to `to`, dialed from the host `via`.
    pub(crate) fn new(hosts: &Arc<Hosts>, via: &str, to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, closed) = (listener.local_addr().unwrap(), Arc::<AtomicBool>::default());
        let (hosts, via, ended) = (Arc::downgrade(hosts), via.to_owned(), Arc::clone(&closed));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                // If the host refuses, the connection is closed here: the caller tries again.
                if let Ok(far) = dial(&hosts, &via, to) {
                    join(near, far);
                }
            }
        });
        Self { address, closed }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn dial(hosts: &Weak<Hosts>, via: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let gone = || io::Error::other("the hosts are gone");
    hosts.upgrade().ok_or_else(gone)?[via].run(|| TcpStream::connect(to))
}

/// Copies both ways; the end of either ends both.
fn join(near: TcpStream, far: TcpStream) {
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    };
    if let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) {
        copy(near_too, far_too);
        copy(far, near);
    }
}
