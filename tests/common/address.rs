//! Addresses for processes that listen at them later.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// An address for a process that may listen at it much later. Each call gives another port. The kernel chooses ports from 32,768 on, and
/// `scripts/common/ports.py` below 20,000. A socket with the name of the port keeps it from other tests until this process ends.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 20_000 + (std::process::id() * 7 + NEXT.fetch_add(1, Ordering::SeqCst)) % 12_000;
        let name = net::SocketAddr::from_abstract_name(format!("forebay-test-port-{port}")).expect("the name is short");
        let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        if TcpListener::bind(address).is_ok() {
            std::mem::forget(claim);
            return address;
        }
    }
}
