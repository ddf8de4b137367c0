//! One process as a server: a socket, and the handlers behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_actors::{Fault, IoRuntime};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::attempt::Attempt;
use crate::connections;
use crate::exchange::Streams;
use crate::gate::Gate;
use crate::handler::Handler;
use crate::handlers::Handlers;
use crate::health::Health;
use crate::identity::Identity;
use crate::limits::Limits;
use crate::security::Security;
use crate::service::Calls;

/// How long connections may take to close once every stream was cut.
const CLOSING: Duration = Duration::from_secs(2);

/// A server that runs. Dropping it stops it without a grace.
pub struct Server {
    io: IoRuntime,
    address: SocketAddr,
    attempt: Attempt,
    /// True: no new connections or streams.
    stop: watch::Sender<bool>,
    /// True: streams under way are cut.
    cut: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `listen` (port 0: any) and answers with `handlers`. Callers of another run than `identity.run` are
    /// refused; callers without an identity (stock Flight clients) are not: handlers decide what they may do. The server
    /// starts in `identity.attempt`.
    ///
    /// # Errors
    /// User: other machines could reach `listen` and `security` does not protect it, or the address cannot be listened
    /// at, or `limits` make no sense. Internal: two handlers have one name.
    pub async fn start(
        io: &IoRuntime,
        listen: SocketAddr,
        security: &Security,
        identity: Identity,
        limits: &Limits,
        handlers: Vec<Arc<dyn Handler>>,
        health: Health,
    ) -> Result<Server, Fault> {
        security.check_listen(listen)?;
        limits.check()?;
        let attempt = Attempt::new(identity.attempt);
        let handlers = Handlers::new(handlers, attempt.clone())?;
        let (stop, stopping) = watch::channel(false);
        let (cut, cutting) = watch::channel(false);
        let gate = Gate {
            security: security.clone(),
            run: identity.run.into(),
            health,
            streams: Streams { handlers: handlers.clone(), limits: limits.clone(), cut: cutting },
            calls: FlightServiceServer::new(Calls(handlers)).max_decoding_message_size(limits.most_message_bytes),
        };
        let _in_runtime = io.handle().enter();
        let (listener, address) = bind(listen)?;
        let incoming = connections::accepted(listener, limits.connections, limits.opening);
        let mut builder = tonic::transport::Server::builder()
            .accept_http1(true)
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(limits.frame)
            .max_concurrent_streams(limits.streams)
            .http2_keepalive_interval(Some(limits.keepalive_every))
            .http2_keepalive_timeout(Some(limits.keepalive_patience));
        if let Some(tls) = security.server_tls() {
            builder = builder.tls_config(tls).map_err(|e| Fault::user("cannot serve TLS").because(e))?;
        }
        let task = io.spawn(async move {
            let mut stopping = stopping;
            let stopped = async move {
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            if let Err(e) = builder.serve_with_incoming_shutdown(gate, incoming, stopped).await {
                tracing::error!("the server at {address} ended: {e}");
            }
        });
        Ok(Server { io: io.clone(), address, attempt, stop, cut, task: Some(task) })
    }

    /// Where it listens, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The attempt of the run that it is in. It can be changed through any clone.
    pub fn attempt(&self) -> Attempt {
        self.attempt.clone()
    }

    /// Enters `attempt`, as [`Attempt::set`] does.
    pub fn set_attempt(&self, attempt: u64) {
        self.attempt.set(attempt);
    }

    /// Takes no more calls, gives those under way `grace` to end, then cuts them: their peers get a retryable fault.
    pub async fn stop(mut self, grace: Duration) {
        self.stop.send_replace(true);
        let Some(task) = self.task.take() else { return };
        let cut = self.cut.clone();
        let closed = self.io.spawn(async move {
            let mut task = task;
            if timeout(grace, &mut task).await.is_ok() {
                return;
            }
            cut.send_replace(true);
            // A peer that stands still must not hold up a process that is to listen at this address again.
            let closing = if grace.is_zero() { CLOSING / 10 } else { CLOSING };
            if timeout(closing, &mut task).await.is_err() {
                tracing::warn!("connections stay open after the server at its end: their peers do not answer");
                task.abort();
            }
        });
        let _ = closed.await;
    }
}

/// A listener that a runtime polls, and its address with the port that was found. To be called within a runtime.
pub(crate) fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), Fault> {
    let bound = || {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((TcpListener::from_std(listener)?, address))
    };
    let taken = |e: std::io::Error| {
        Fault::user(format!("cannot listen at {listen}: is another process there already?")).because(e)
    };
    bound().map_err(taken)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.cut.send_replace(true);
    }
}
