//! Arrow Flight between the processes of Forebay: servers, peers, streams of messages, TLS and tokens.
//!
//! One process is one [`Server`] with several [`Handler`]s; others reach it as a [`Peer`]. Small requests are *actions*
//! (JSON, one request, one answer); columns travel on *exchanges*, streams in both directions. All of it is Arrow Flight:
//! stock clients can list, call, get and exchange.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use forebay_actors::{Fault, IoRuntime};
//! use forebay_net::{
//!     Caller, Dialer, Handler, Health, Identity, Incoming, Limits, Message, Outgoing, Security, Server,
//! };
//! # use arrow::array::{Int64Array, RecordBatch};
//! # use bytes::Bytes;
//!
//! /// Sends back what it receives, and doubles numbers.
//! struct Echo;
//!
//! #[async_trait::async_trait]
//! impl Handler for Echo {
//!     fn name(&self) -> &'static str { "echo" }
//!     fn actions(&self) -> Vec<(String, String)> { vec![("double".into(), "twice a number".into())] }
//!     async fn action(&self, _: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
//!         assert_eq!(kind, "double");
//!         let number: u64 = serde_json::from_slice(&body).map_err(|e| Fault::user("no number").because(e))?;
//!         Ok((2 * number).to_string().into())
//!     }
//!     async fn exchange(
//!         &self, _: Caller, _path: Vec<String>, mut incoming: Incoming, mut outgoing: Outgoing,
//!     ) -> Result<(), Fault> {
//!         while let Some(message) = incoming.next().await? {
//!             outgoing.send(message).await?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let io = IoRuntime::new("net", 1);
//! # io.clone().block_on(async {
//! let (security, limits) = (Security::none(), Limits::default());
//! let identity = |role: &str| Identity { run: "monday".into(), role: role.into(), incarnation: 0, attempt: 1 };
//! let listen = "127.0.0.1:0".parse().expect("an address");
//! let handlers: Vec<Arc<dyn Handler>> = vec![Arc::new(Echo)];
//! let server = Server::start(&io, listen, &security, identity("ps 0"), &limits, handlers, Health::new()).await?;
//!
//! let peer = Dialer::new(&io, &security, &identity("trainer 1"), &limits)?.peer(&server.address().to_string())?;
//! let within = Duration::from_secs(5);
//! let doubled: u64 = peer.action("echo.double", &21, within).await?;
//! assert_eq!(doubled, 42);
//!
//! let (mut outgoing, mut incoming) = peer.exchange(&["echo"], within).await?;
//! let column = Arc::new(Int64Array::from(vec![1, 2, 3]));
//! let batch = RecordBatch::try_from_iter([("n", column as _)]).expect("one column");
//! outgoing.send(Message { batch: Some(batch.clone()), metadata: Bytes::from_static(b"hello") }).await?;
//! drop(outgoing); // No more: the handler sees the end, and returns.
//! let back = incoming.next().await?.expect("an echo");
//! assert_eq!((back.batch, &back.metadata[..]), (Some(batch), &b"hello"[..]));
//! assert!(incoming.next().await?.is_none());
//! server.stop(within).await;
//! # Ok::<(), Fault>(())
//! # })?;
//! # Ok::<(), Fault>(())
//! ```
//!
//! # The way of a message
//!
//! ```text
//!                     Peer ── one connection, many streams ──→ Server
//!  Outgoing ─ encode ─ SendBody ─→ HTTP/2 ─→ Frames ─ decode ─ Incoming      the same both ways; columns are copied
//!                                                                            once, when they are received
//!  connections ─→ gate (token, protocol, run) ─┬─ /healthz, /livez
//!                                              ├─ exchange: DoExchange, DoGet ──→ Handler::exchange, Handler::get
//!                                              └─ service: all small calls ─────→ Handler::action, Handler::list
//! ```
//!
//! Read the files in this order:
//!
//! 1. `message`, `metadata`, `handler`, `identity`: what travels, who answers, who calls.
//! 2. `rope`, `wire`, `encode`, `decode`: from columns to pieces for the socket, and back. `column_bytes`: the same within a column.
//!    `compression`: compressed columns, within the memory of a message. `fuzzing`: the same for hostile bytes.
//! 3. `outgoing`, `frames`, `incoming`: the two halves of a stream, bounded by `limits`.
//! 4. `listener`, `connections`, `gate`, `attempt`, `handlers`, `exchange`, `service`, `health`, `server`: a server, from the socket
//!    inwards. `maybe_tls`: a connection with or without TLS. `descriptors`: how many sockets a process may have.
//! 5. `dial`, `peer`, `retry`: its callers. `request_stream`, `answer_in_order`: requests that survive a broken
//!    connection, from both ends. `status`: faults as gRPC statuses. `security`: tokens and certificates.
//! 6. `http_server`: whole requests and answers over plain HTTP, for programs that speak no Flight; Flight at the same port.
//!
//! # What it promises
//!
//! - **Bounded.** A stream holds its window, a few queued messages, and the one message that it is reading. A message whose length is over
//!   the limit is refused before it is collected.
//! - **No stream stalls another**: the window of a connection is larger than the windows of its streams together.
//! - **A clean end means the end.** A stream ends without a fault only if its peer ended it. After a cancellation, a broken
//!   connection or silence it ends with a retryable fault.
//! - **One attempt.** A handler gets calls and messages of the attempt of the run that its server is in, and of no other.
//! - **No connection for nothing.** A client that makes no accepted call for 10 seconds is cut off, and the number of
//!   connections is bounded.
//! - **Received bytes are checked.** A damaged message is refused and never makes the server panic. Other machines can
//!   reach a server only if it has a token and TLS.

mod answer_in_order;
mod attempt;
mod column_bytes;
mod compression;
mod connections;
mod decode;
mod descriptors;
mod dial;
mod encode;
mod exchange;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod handler;
mod handlers;
mod health;
mod http_server;
mod identity;
mod incoming;
mod limits;
mod listener;
mod maybe_tls;
mod message;
mod metadata;
mod outgoing;
mod peer;
mod request_stream;
mod retry;
mod rope;
mod security;
mod server;
mod service;
mod status;
mod wire;

pub use answer_in_order::{PendingAnswer, answer_in_order};
pub use arrow_flight::FlightInfo;
pub use attempt::Attempt;
pub use column_bytes::{columns_from_bytes, columns_to_bytes};
pub use compression::Compression;
pub use descriptors::raise_descriptor_limit;
pub use dial::Dialer;
pub use handler::{Handler, flight_info};
pub use health::Health;
pub use http_server::{HttpAnswer, HttpHandler, HttpLimits, HttpRefusal, HttpRequest, HttpServer, HttpService};
pub use identity::{Caller, Identity, PROTOCOL};
pub use incoming::Incoming;
pub use limits::Limits;
pub use message::Message;
pub use metadata::{MetadataReader, MetadataWriter};
pub use outgoing::Outgoing;
pub use peer::{OPENING, Peer};
pub use request_stream::{RequestStream, Resend};
pub use retry::{GivenUp, Retry};
pub use security::{Security, SecurityFiles, is_loopback};
pub use server::Server;
