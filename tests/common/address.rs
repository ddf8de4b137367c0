//! Addresses for processes that listen at them later.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// An address for a process that may listen at it much later. Each call gives another port. The kernel chooses ports from 32,768 on, so that
/// no other process gets this one meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 15_000 + (std::process::id() * 7 + NEXT.fetch_add(1, Ordering::SeqCst)) % 15_000;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
