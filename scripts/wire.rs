//! Delays packets between a network card on this machine and one in a network namespace, for kernels without `tc netem`.
//! `scripts/hdfs` and `tests/cluster` compile it with plain rustc.
//!
//!     wire KIND NAMESPACE OUTER_CARD INNER_CARD DELAY_FILE
//!
//! KIND is `tun` for cards that carry IP packets, `tap` for cards that carry Ethernet frames and can join a bridge.
//! Packets to the namespace wait for the milliseconds in DELAY_FILE and stay in order; packets from it pass at once. The file is
//! read ten times a second. Prints `ready` when both cards exist, and `delay MS` when the delay changes (it is 0 at first).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const TUNSETIFF: u64 = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
/// Packets without a header of the driver.
const IFF_NO_PI: u16 = 0x1000;
const CLONE_NEWNET: i32 = 0x4000_0000;
/// Bytes of an IP packet and an Ethernet header.
const LARGEST_PACKET: usize = 65_535 + 18;

unsafe extern "C" {
    fn ioctl(fd: i32, request: u64, argument: *mut u8) -> i32;
    fn setns(fd: i32, kind: i32) -> i32;
}

/// Makes a card in the thread's namespace. It exists until the file is closed.
fn card(name: &str, kind: u16) -> File {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").expect("/dev/net/tun opens");
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&(kind | IFF_NO_PI).to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`: 40 bytes, the name in the first 16, then the flags.
    let status = unsafe { ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    assert!(status == 0, "no card {name}: {}", std::io::Error::last_os_error());
    file
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, kind, namespace, outer, inner, delay_file] = &arguments[..] else {
        panic!("usage: wire tun|tap NAMESPACE OUTER_CARD INNER_CARD DELAY_FILE");
    };
    let kind = match kind.as_str() {
        "tun" => IFF_TUN,
        "tap" => IFF_TAP,
        other => panic!("the kind of card is {other}, expected tun or tap"),
    };
    assert!(outer.len() < 16 && inner.len() < 16, "a card's name has at most 15 letters");
    let outer = card(outer, kind);
    let target = File::open(format!("/var/run/netns/{namespace}")).expect("the namespace exists");
    // SAFETY: plain call; moves this thread, which has no network state of its own yet.
    let status = unsafe { setns(target.as_raw_fd(), CLONE_NEWNET) };
    assert!(status == 0, "cannot enter {namespace}: {}", std::io::Error::last_os_error());
    let inner = card(inner, kind);
    println!("ready");

    let (mut from_inner, mut to_outer) = (inner.try_clone().expect("a copy"), outer.try_clone().expect("a copy"));
    thread::spawn(move || {
        let mut packet = vec![0; LARGEST_PACKET];
        loop {
            // A card that is not up yet refuses both ways.
            match from_inner.read(&mut packet) {
                Ok(length) => drop(to_outer.write(&packet[..length])),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    });

    let delay_us = Arc::new(AtomicU64::new(0));
    let (send, waiting) = mpsc::channel::<(Instant, Box<[u8]>)>();
    let (mut from_outer, mut to_inner, delay) = (outer, inner, Arc::clone(&delay_us));
    thread::spawn(move || {
        let mut packet = vec![0; LARGEST_PACKET];
        loop {
            match from_outer.read(&mut packet) {
                Ok(length) => {
                    let due = Instant::now() + Duration::from_micros(delay.load(Ordering::Relaxed));
                    send.send((due, packet[..length].into())).expect("the other thread lives");
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    });
    thread::spawn(move || {
        for (due, packet) in waiting {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            drop(to_inner.write(&packet));
        }
    });

    loop {
        let ms = std::fs::read_to_string(delay_file).ok().and_then(|text| text.trim().parse::<f64>().ok());
        let us = (ms.unwrap_or(0.0).clamp(0.0, 60_000.0) * 1e3) as u64;
        if delay_us.swap(us, Ordering::Relaxed) != us {
            println!("delay {}", us as f64 / 1e3);
        }
        thread::sleep(Duration::from_millis(100));
    }
}
