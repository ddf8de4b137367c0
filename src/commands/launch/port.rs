//! Chooses the address of the coordinator: other processes know it before the coordinator starts, and a restart keeps it.

use std::net::TcpListener;
use std::ops::RangeInclusive;

use crate::Fault;
use forebay_base::SplitMix64;

/// Lower ports belong to services.
const LOWEST: u16 = 10_000;

/// How many random ports are tried.
const TRIES: usize = 200;

/// A loopback address that nothing listens at. Its port is outside of the ephemeral range if a port there is free: a connection of another
/// process could take an ephemeral port while the coordinator is started again.
pub(super) fn free_address() -> Result<String, Fault> {
    let ports = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut random = SplitMix64::new(forebay_base::random_seed());
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).and_then(|listener| listener.local_addr());
    if let Some(ports) = outside_the_ephemeral_range(&ports) {
        let any = || ports.start() + random.below(u64::from(ports.end() - ports.start()) + 1) as u16;
        if let Some(address) = std::iter::repeat_with(any).take(TRIES).find_map(|port| free(port).ok()) {
            return Ok(address.to_string());
        }
    }
    free(0).map(|address| address.to_string()).map_err(|e| Fault::external("cannot find a free port").because(e))
}

/// The larger range of ports outside of the ephemeral range, whose first and last port are in `given`. `None` if `given` is not two
/// numbers, or leaves no port.
fn outside_the_ephemeral_range(given: &str) -> Option<RangeInclusive<u16>> {
    let numbers: Vec<u16> = given.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let [first, last] = numbers[..] else { return None };
    let (below, above) = (LOWEST..=first.saturating_sub(1), last.saturating_add(1).max(LOWEST)..=u16::MAX);
    let above = if last == u16::MAX { None } else { Some(above) };
    [Some(below), above].into_iter().flatten().max_by_key(ExactSizeIterator::len).filter(|ports| !ports.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_outside_of_the_range_that_connections_get() {
        assert_eq!(outside_the_ephemeral_range("32768\t60999\n"), Some(10_000..=32_767));
        assert_eq!(outside_the_ephemeral_range("1024 40000"), Some(40_001..=65_535));
        assert_eq!(outside_the_ephemeral_range("1024 65535"), None);
        assert_eq!(outside_the_ephemeral_range(""), None);
        assert_eq!(outside_the_ephemeral_range("32768"), None);
        let port: u16 = free_address().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        let given = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        assert!(outside_the_ephemeral_range(&given).is_none_or(|ports| ports.contains(&port)), "{port}");
    }
}
