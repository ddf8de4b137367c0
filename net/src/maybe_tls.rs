//! A connection of a server, with TLS if the server has a certificate.
//!
//! The first reads and writes do the handshake: so it runs in the task of its connection, and holds up no other one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{Accept, TlsAcceptor};
use tonic::transport::server::Connected;

use crate::connections::{Client, Connection};

/// A connection that speaks TLS or does not.
pub(crate) struct MaybeTls {
    client: Client,
    state: State,
}

enum State {
    Handshake(Box<Accept<Connection>>),
    Open(Box<dyn Duplex>),
    /// The handshake failed.
    Failed,
}

/// A connection that carries bytes both ways.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl MaybeTls {
    /// With `tls`, the connection begins with a handshake.
    pub(crate) fn new(connection: Connection, tls: Option<&Arc<ServerConfig>>) -> Self {
        let client = connection.connect_info();
        let state = match tls {
            Some(tls) => State::Handshake(Box::new(TlsAcceptor::from(Arc::clone(tls)).accept(connection))),
            None => State::Open(Box::new(connection)),
        };
        Self { client, state }
    }

    /// The connection, once the handshake is done.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut (dyn Duplex + 'static)>>> {
        if let State::Handshake(accept) = &mut self.state {
            let accepted = ready!(Pin::new(accept).poll(cx));
            self.state = match accepted {
                Ok(tls) => State::Open(Box::new(tls)),
                Err(e) => {
                    tracing::debug!("the TLS handshake of the client at {} failed: {e}", self.client.address);
                    State::Failed
                }
            };
        }
        Poll::Ready(match &mut self.state {
            State::Open(duplex) => Ok(Pin::new(&mut **duplex)),
            State::Handshake(_) | State::Failed => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }
}

impl AsyncRead for MaybeTls {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for MaybeTls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        // Without an open connection nothing is written.
        matches!(&self.state, State::Open(duplex) if duplex.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_shutdown(cx)
    }
}

impl Connected for MaybeTls {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}
