//! One process as a server: a socket, and the handlers behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{Fault, IoRuntime};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::attempt::Attempt;
use crate::connections::ConnectionLimits;
use crate::gate::Gate;
use crate::handler::Handler;
use crate::handlers::Handlers;
use crate::health::Health;
use crate::identity::Identity;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::security::Security;

/// How long connections may take to close once every stream was cut.
const CLOSING: Duration = Duration::from_secs(2);

/// A server that runs. Dropping it stops it without a grace.
pub struct Server {
    io: IoRuntime,
    listener: Listener,
    attempt: Attempt,
    /// True: streams under way are cut.
    cut: watch::Sender<bool>,
}

impl Server {
    /// Listens at `listen` (port 0: any) and answers with `handlers`. Callers of another run than `identity.run` are
    /// refused; callers without an identity (stock Flight clients) are not: handlers decide what they may do. The server
    /// starts in `identity.attempt`.
    ///
    /// # Errors
    /// User: other machines could reach `listen` and `security` does not protect it, or the address cannot be listened
    /// at (retryable, if another process listens there), or `limits` make no sense. Internal: two handlers have one name.
    pub async fn start(
        io: &IoRuntime,
        listen: SocketAddr,
        security: &Security,
        identity: Identity,
        limits: &Limits,
        handlers: Vec<Arc<dyn Handler>>,
        health: Health,
    ) -> Result<Server, Fault> {
        limits.check()?;
        let attempt = Attempt::new(identity.attempt);
        let handlers = Handlers::new(handlers, attempt.clone())?;
        let (cut, cutting) = watch::channel(false);
        let gate = Gate::new(security, &identity.run, health, handlers, limits.clone(), cutting);
        let builder = tonic::transport::Server::builder()
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(limits.frame)
            .max_concurrent_streams(limits.streams)
            .http2_keepalive_interval(Some(limits.keepalive_every))
            .http2_keepalive_timeout(Some(limits.keepalive_timeout));
        let connections = ConnectionLimits { most: limits.connections, opening: limits.opening, unread: None };
        let listener = Listener::start(io, listen, security, connections, builder, gate)?;
        Ok(Server { io: io.clone(), listener, attempt, cut })
    }

    /// Where it listens, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// The attempt of the run that it is in. It can be changed through any clone.
    pub fn attempt(&self) -> Attempt {
        self.attempt.clone()
    }

    /// Enters `attempt`, as [`Attempt::set`] does.
    pub fn set_attempt(&self, attempt: u64) {
        self.attempt.set(attempt);
    }

    /// Takes no more calls, gives the calls under way `grace` to end, then cuts them: their peers get a retryable fault.
    pub async fn stop(mut self, grace: Duration) {
        let Some(mut task) = self.listener.stop() else { return };
        let cut = self.cut.clone();
        let closed = self.io.spawn(async move {
            if timeout(grace, &mut task).await.is_ok() {
                return;
            }
            cut.send_replace(true);
            // A peer that stands still must not hold up a process that will listen at this address again.
            let closing = if grace.is_zero() { CLOSING / 10 } else { CLOSING };
            if timeout(closing, &mut task).await.is_err() {
                tracing::warn!("connections stay open after the server at its end: their peers do not answer");
                task.abort();
            }
        });
        let _ = closed.await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut.send_replace(true);
    }
}
