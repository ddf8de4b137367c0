//! The address at which a server listens, as an argument: an IP address or the name of a host, and a port.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

/// Parses `127.0.0.1:7600`, `[::1]:7600` or `localhost:7600`. Of the addresses of a name, takes the first one that is an address of this
/// machine. Blocks on the resolver of names.
///
/// # Errors
/// The text is no address with a port; the name is not known, or is the name of another machine.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let host_and_port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let (host, port) = host_and_port.filter(|(host, _)| !host.is_empty() && !host.contains(':')).ok_or(
        "expected an address or the name of a host, and a port, for instance 127.0.0.1:7600, [::1]:7600 or localhost:7600",
    )?;
    let found = (host, port).to_socket_addrs().map_err(|e| format!("the host `{host}` cannot be resolved: {e}"))?;
    let addresses: Vec<SocketAddr> = found.collect();
    let is_here = |address: &&SocketAddr| TcpListener::bind((address.ip(), 0)).is_ok();
    addresses.iter().find(is_here).copied().ok_or_else(|| {
        let addresses: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        format!("the host `{host}` has no address of this machine: it is {}", addresses.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `--listen localhost:7611` was an invalid socket address.
    #[test]
    fn a_name_is_an_address_of_this_machine() {
        let address = parse("localhost:7611").unwrap();
        assert!(address.ip().is_loopback() && address.port() == 7611, "{address}");
        for text in ["127.0.0.1:7611", "[::1]:0", "0.0.0.0:80"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_of_this_machine_is_refused() {
        for text in ["localhost", "localhost:", "localhost:70000", ":7611", "::1:7611", ""] {
            let said = parse(text).unwrap_err();
            assert!(said.starts_with("expected an address or the name of a host, and a port"), "{text}: {said}");
        }
        // A name that is never given to a host (RFC 6761).
        let said = parse("forebay.invalid:7611").unwrap_err();
        assert!(said.starts_with("the host `forebay.invalid` cannot be resolved: "), "{said}");
    }
}
