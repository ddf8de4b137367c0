//! Makes [`Peer`]s from addresses: with this process's identity, token, certificates and limits.

use std::sync::Arc;

use forebay_actors::{Fault, FaultKind, IoRuntime};
use http::{HeaderMap, header};
use tonic::transport::Endpoint;

use crate::identity::{Identity, PROTOCOL};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::security::Security;
use crate::status::Origin;

/// Makes [`Peer`]s that share an identity, a token, and limits.
#[derive(Clone)]
pub struct Dialer {
    io: IoRuntime,
    security: Security,
    headers: HeaderMap,
    limits: Limits,
}

impl Dialer {
    /// The threads of `io` wait for the sockets of its peers.
    ///
    /// # Errors
    /// User: names in `identity` cannot be sent, or `limits` make no sense.
    pub fn new(io: &IoRuntime, security: &Security, identity: &Identity, limits: &Limits) -> Result<Dialer, Fault> {
        Self::speaking(PROTOCOL, io, security, identity, limits)
    }

    /// As a process of another version of Forebay; for tests.
    #[doc(hidden)]
    pub fn speaking(
        protocol: u32,
        io: &IoRuntime,
        security: &Security,
        identity: &Identity,
        limits: &Limits,
    ) -> Result<Dialer, Fault> {
        limits.check()?;
        let mut headers = identity.headers(protocol)?;
        if let Some(token) = security.bearer() {
            headers.insert(header::AUTHORIZATION, token);
        }
        Ok(Self { io: io.clone(), security: security.clone(), headers, limits: limits.clone() })
    }

    /// The runtime that waits for the sockets of its peers.
    pub fn io(&self) -> &IoRuntime {
        &self.io
    }

    /// The process at `address`, `host:port`. The first call connects, and a later one connects again if the connection broke. All streams
    /// share one connection.
    ///
    /// # Errors
    /// User: `address` is no host and port, or the token would travel to another machine in the clear. External: the threads of `io` cannot
    /// be started.
    pub fn peer(&self, address: &str) -> Result<Peer, Fault> {
        let wrong = || {
            Fault::user(format!("`{}` is not an address: expected host:port", address.escape_debug()))
                .kind(FaultKind::InvalidJob)
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(wrong());
        }
        let tls = self.security.client_tls();
        let origin = Arc::new(Origin::server(address, tls.is_some(), &self.io));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let limits = &self.limits;
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|e| wrong().because(e))?
            .connect_timeout(limits.opening)
            .tcp_nodelay(true)
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(limits.frame)
            .http2_keep_alive_interval(limits.keepalive_every)
            .keep_alive_timeout(limits.keepalive_timeout)
            .keep_alive_while_idle(true);
        if let Some(tls) = tls {
            endpoint = endpoint
                .tls_config(tls)
                .map_err(|e| Fault::user("cannot call by TLS").kind(FaultKind::InvalidJob).because(e))?;
        }
        self.security.check_dial(host)?;
        let _in_runtime = self.io.start()?.enter();
        Ok(Peer::new(self.io.clone(), endpoint.connect_lazy(), self.headers.clone(), limits.clone(), origin))
    }
}
