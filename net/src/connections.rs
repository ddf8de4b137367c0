//! The connections of a server: how many there are, and how long a client may hold one without an accepted call.
//!
//! ```text
//!   listener ── accept ──→ a free slot? ── yes ──→ Connection: closed at its deadline unless a call was accepted
//!                                       └─ no ───→ closed at once
//! ```
//!
//! The deadline lies below TLS, so it also ends a handshake that stalls.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

/// The wait after an accept that failed because descriptors or memory are used up.
const EXHAUSTED_DELAY: Duration = Duration::from_millis(200);

/// The time between two log lines about the same condition.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The client of a connection. The gate marks it when it accepts a call.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicBool>,
}

impl Client {
    /// A call of this client was accepted: it may keep the connection.
    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }
}

/// A connection that holds one of the server's slots.
pub(crate) struct Connection {
    socket: TcpStream,
    client: Client,
    deadline: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    fn check_deadline(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.client.accepted.load(Ordering::Relaxed) || self.deadline.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        let client = self.client.address;
        tracing::debug!("the client at {client} made no call that was accepted: its connection is closed");
        Err(io::Error::new(io::ErrorKind::TimedOut, "no call was accepted within the time limit of new connections"))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_deadline(cx)?;
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

/// The limits of a server for its clients.
pub(crate) struct ConnectionLimits {
    /// Connections at a time; more are closed at once.
    pub(crate) most: usize,
    /// A connection without an accepted call is closed after this time.
    pub(crate) opening: Duration,
    /// The server closes a connection if its client reads no bytes of an answer for this time; `None`: the server keeps it.
    pub(crate) unread: Option<Duration>,
}

/// Accepts connections for ever, within the limits. While descriptors are used up, it waits and tries again.
pub(crate) fn accepted(
    listener: TcpListener,
    limits: ConnectionLimits,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let ConnectionLimits { most, opening, unread } = limits;
    let accepting = Accepting { listener, slots: Arc::new(Semaphore::new(most)), most, logged: None };
    Box::pin(futures::stream::unfold(accepting, move |mut accepting| async move {
        let (socket, address, slot) = accepting.next().await;
        let client = Client { address, accepted: Arc::default() };
        let deadline = Box::pin(sleep(opening));
        if let Some(unread) = unread {
            // A socket that is already broken returns an error when it is read.
            let _ = set_tcp_user_timeout(&socket, u32::try_from(unread.as_millis()).unwrap_or(u32::MAX));
        }
        Some((Ok(Connection { socket, client, deadline, _slot: slot }), accepting))
    }))
}

struct Accepting {
    listener: TcpListener,
    slots: Arc<Semaphore>,
    most: usize,
    logged: Option<Instant>,
}

impl Accepting {
    async fn next(&mut self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            match self.listener.accept().await {
                Ok((socket, address)) => {
                    // Small answers must not wait for more bytes. A broken socket returns an error when it is read.
                    let _ = socket.set_nodelay(true);
                    match Arc::clone(&self.slots).try_acquire_owned() {
                        Ok(slot) => return (socket, address, slot),
                        Err(_) => self.warn(&format!(
                            "{} connections are open, which is the limit: closed the one of {address}",
                            self.most
                        )),
                    }
                }
                Err(e) if is_exhausted(&e) => {
                    self.warn(&format!("cannot accept a connection: {e}; trying again every {EXHAUSTED_DELAY:?}"));
                    sleep(EXHAUSTED_DELAY).await;
                }
                // The client was gone before its connection was accepted.
                Err(e) => {
                    tracing::debug!("a connection was not accepted: {e}");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn warn(&mut self, message: &str) {
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!("{message}");
            self.logged = Some(Instant::now());
        }
    }
}

fn is_exhausted(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}
