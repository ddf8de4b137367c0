//! The common part of all servers of a process: they listen, speak TLS if there is a certificate, and end when they are told to.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;

use forebay_actors::{Fault, IoRuntime};
use futures::StreamExt as _;
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::transport::server::Server as Builder;
use tower_service::Service;

use crate::connections::{self, ConnectionLimits};
use crate::maybe_tls::MaybeTls;
use crate::security::Security;

/// A socket whose requests are answered until it is told to stop.
pub(crate) struct Listener {
    /// Where it listens, with the port that was found.
    pub(crate) address: SocketAddr,
    /// True: no new connections or requests.
    stop: watch::Sender<bool>,
    /// Ends when the last request has ended.
    task: Option<JoinHandle<()>>,
}

impl Listener {
    /// Answers requests at `listen` (port 0: any) with `service`, on connections within the `limits`.
    ///
    /// # Errors
    /// User: other machines could reach `listen` and `security` does not protect it, or the address cannot be listened at.
    pub(crate) fn start<S>(
        io: &IoRuntime,
        listen: SocketAddr,
        security: &Security,
        limits: ConnectionLimits,
        builder: Builder,
        service: S,
    ) -> Result<Self, Fault>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        security.check_listen(listen)?;
        let _in_runtime = io.start()?.enter();
        let (listener, address) = bind(listen)?;
        let tls = security.server_tls();
        let incoming = connections::accepted(listener, limits)
            .map(move |accepted| accepted.map(|connection| MaybeTls::new(connection, tls.as_ref())));
        let (stop, mut stopping) = watch::channel(false);
        let task = io.spawn(async move {
            let stopped = async move {
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            if let Err(e) = builder.accept_http1(true).serve_with_incoming_shutdown(service, incoming, stopped).await {
                tracing::error!("the server at {address} ended: {e}");
            }
        });
        Ok(Self { address, stop, task: Some(task) })
    }

    /// Takes no more requests. The first call returns the task, which ends with the last request.
    pub(crate) fn stop(&mut self) -> Option<JoinHandle<()>> {
        self.stop.send_replace(true);
        self.task.take()
    }
}

/// A listener that a runtime polls, and its address with the port that was found. To be called within a runtime.
fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), Fault> {
    let bound = || {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((TcpListener::from_std(listener)?, address))
    };
    let cannot = |e: std::io::Error| {
        let taken = e.kind() == ErrorKind::AddrInUse;
        let fault = Fault::user(format!("cannot listen at {listen}: is another process there already?")).because(e);
        // The process that listens there may end.
        if taken { fault.retryable() } else { fault }
    };
    bound().map_err(cannot)
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
