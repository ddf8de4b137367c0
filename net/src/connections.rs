//! The connections of a server: how many there are, and how long a client may hold one without an accepted call.
//!
//! ```text
//!   listener ── accept ──→ a free slot? ── yes ──→ Connection: closed at its deadline unless a call was accepted
//!                                       └─ no ───→ the oldest connection without an accepted call gives its slot,
//!                                                  or the new one is closed at once
//! ```
//!
//! So clients that connect and stay silent do not keep out others, such as health probes.
//!
//! The deadline lies below TLS, so it also ends a handshake that stalls.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::task::AtomicWaker;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::transport::server::Connected;

/// The wait after an accept that failed because descriptors or memory are used up.
const EXHAUSTED_DELAY: Duration = Duration::from_millis(200);

/// How long a connection may take to give its slot to a newer one.
const EVICTION: Duration = Duration::from_secs(1);

/// The time between two log lines about the same condition.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The client of a connection. The gate marks it when it accepts a call.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

/// What decides whether a client keeps its connection.
#[derive(Debug, Default)]
struct State {
    accepted: AtomicBool,
    evicted: AtomicBool,
    /// Of the task that reads from the connection.
    waker: AtomicWaker,
}

impl State {
    fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed)
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Client {
    /// A call of this client was accepted: it may keep the connection.
    pub(crate) fn accept(&self) {
        self.state.accepted.store(true, Ordering::Relaxed);
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
        let state = &self.client.state;
        if state.is_accepted() {
            return Ok(());
        }
        state.waker.register(cx.waker());
        if !state.evicted.load(Ordering::Acquire) && self.deadline.as_mut().poll(cx).is_pending() {
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
    /// Connections at a time; beyond them the oldest one without an accepted call is closed, or the new one if there is none.
    pub(crate) most: usize,
    /// A connection without an accepted call is closed after this time.
    pub(crate) opening: Duration,
    /// The server closes a connection if its client reads no bytes of an answer for this time; `None`: the server keeps it.
    pub(crate) unread: Option<Duration>,
}

/// Accepts connections forever, within the limits. While descriptors are used up, it waits and tries again.
pub(crate) fn accepted(
    listener: TcpListener,
    limits: ConnectionLimits,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let ConnectionLimits { most, opening, unread } = limits;
    let slots = Arc::new(Semaphore::new(most));
    let accepting = Accepting { listener, slots, most, silent: VecDeque::new(), logged: None };
    Box::pin(futures::stream::unfold(accepting, move |mut accepting| async move {
        let (socket, address, slot) = accepting.next().await;
        let client = Client { address, state: Arc::default() };
        accepting.note(&client);
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
    /// Connections without an accepted call, the oldest first, and some that have ended or have a call by now.
    silent: VecDeque<Weak<State>>,
    logged: Option<Instant>,
}

impl Accepting {
    async fn next(&mut self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            match self.listener.accept().await {
                Ok((socket, address)) => {
                    // Small answers must not wait for more bytes. A broken socket returns an error when it is read.
                    let _ = socket.set_nodelay(true);
                    if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
                        return (socket, address, slot);
                    }
                    let limit = format!("{} connections are open, which is the limit", self.most);
                    if let Some(slot) = self.slot_of_silent().await {
                        self.warn(&format!("{limit}: closed one without an accepted call for the one of {address}"));
                        return (socket, address, slot);
                    }
                    self.warn(&format!("{limit}: closed the one of {address}"));
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

    /// Closes the oldest connection without an accepted call, and returns its slot; `None` if all connections have one.
    async fn slot_of_silent(&mut self) -> Option<OwnedSemaphorePermit> {
        let oldest = loop {
            let state = self.silent.pop_front()?.upgrade();
            if let Some(state) = state.filter(|state| !state.is_accepted()) {
                break state;
            }
        };
        oldest.evict();
        drop(oldest);
        timeout(EVICTION, Arc::clone(&self.slots).acquire_owned()).await.ok()?.ok()
    }

    /// Notes a connection without an accepted call.
    fn note(&mut self, client: &Client) {
        if self.silent.len() > 2 * self.most {
            self.silent.retain(|state| state.upgrade().is_some_and(|state| !state.is_accepted()));
        }
        self.silent.push_back(Arc::downgrade(&client.state));
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
