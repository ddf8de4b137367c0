//! Another process, as its callers see it.
//!
//! A call ends at its deadline at the latest. The [`IoRuntime`] waits for the sockets, and any thread may await the call.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::{Action, FlightDescriptor, Ticket};
use bytes::Bytes;
use forebay_actors::{Fault, FaultKind, IoRuntime};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use prost::Message as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service as _;

use crate::frames::Frames;
use crate::incoming::Incoming;
use crate::limits::Limits;
use crate::outgoing::{End, Outgoing, SendBody};
use crate::status::{self, Origin};
use crate::wire::framed;

/// Within this a process that is alive accepts a stream and answers a call.
pub const OPENING: Duration = Duration::from_secs(10);

/// One process that is called. Clones share one connection, which is made when first needed, and made again after it
/// broke.
#[derive(Clone)]
pub struct Peer {
    io: IoRuntime,
    channel: Channel,
    headers: HeaderMap,
    limits: Limits,
    origin: Arc<Origin>,
}

impl Peer {
    pub(crate) fn new(
        io: IoRuntime,
        channel: Channel,
        headers: HeaderMap,
        limits: Limits,
        origin: Arc<Origin>,
    ) -> Self {
        Self { io, channel, headers, limits, origin }
    }

    /// The runtime that waits for its sockets.
    pub fn io(&self) -> &IoRuntime {
        &self.io
    }

    /// Its `host:port`, as it was dialed.
    pub fn address(&self) -> &str {
        self.origin.who()
    }

    /// Whether its host refuses the connection, because the process has ended. A host that does not answer does not refuse.
    /// Tries to connect for at most `within`.
    pub async fn refuses(&self, within: Duration) -> bool {
        let address = self.address().to_owned();
        let connected = self.io.run(async move { timeout(within, TcpStream::connect(address)).await }).await;
        matches!(connected, Ok(Ok(Err(e))) if e.kind() == ErrorKind::ConnectionRefused)
    }

    /// Asks for the action `kind` (`handler.kind`) with a body in JSON, once, and reads its answer as JSON.
    ///
    /// # Errors
    /// The fault that the peer answers; external, retryable: the peer cannot be reached, or did not answer within `deadline`; user: the
    /// peer refuses this process.
    ///
    /// # Cancel safety
    /// The peer may still carry out the action, as after a broken connection.
    pub async fn action<B: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        kind: &str,
        body: &B,
        deadline: Duration,
    ) -> Result<R, Fault> {
        let body = serde_json::to_vec(body).map_err(|e| Fault::internal(format!("a body of `{kind}`")).because(e))?;
        let answer = self.answer(kind, body.into(), deadline).await?;
        serde_json::from_slice(&answer)
            .map_err(|e| self.origin.fault(&format!("the answer to `{kind}` is not what was expected")).because(e))
    }

    /// As [`Peer::action`], with bodies of any bytes.
    pub async fn raw_action(&self, kind: &str, body: impl Into<Bytes>, deadline: Duration) -> Result<Bytes, Fault> {
        self.answer(kind, body.into(), deadline).await
    }

    /// In a box, so that the code below is compiled in this crate, and not in each one that calls it (docs/adr/0006); as
    /// [`stream`](Self::stream).
    fn answer<'a>(&'a self, kind: &'a str, body: Bytes, deadline: Duration) -> BoxFuture<'a, Result<Bytes, Fault>> {
        let (peer, action) = (self.clone(), Action { r#type: kind.to_owned(), body });
        let call = async move {
            let body = peer.call("DoAction", Body::new(SendBody::once(framed(&action)))).await?;
            let mut frames = Frames::new(body, peer.limits.most_message_bytes, peer.origin.clone());
            let answer = frames.next().await?.ok_or_else(|| peer.origin.fault("an answer without a body"))?;
            let answer = arrow_flight::Result::decode(answer);
            Ok(answer.map_err(|e| peer.origin.fault("an answer that is not Flight's").because(e))?.body)
        };
        async move { self.within(&format!("no answer to `{kind}`"), deadline, call).await }.boxed()
    }

    /// Opens a stream to the handler `path[0]`; returns when the peer has accepted it. A refusal by the handler itself comes with the first
    /// [`Incoming::next`].
    ///
    /// # Errors
    /// As [`Peer::action`]; user: there is no such handler.
    pub async fn exchange(&self, path: &[&str], deadline: Duration) -> Result<(Outgoing, Incoming), Fault> {
        let descriptor = FlightDescriptor::new_path(path.iter().map(|&element| element.to_owned()).collect());
        let (listening, listened) = oneshot::channel();
        let (mut outgoing, body) = Outgoing::new(&self.limits, self.origin.clone(), End::Request(listened));
        outgoing.open(&descriptor)?;
        let incoming = self.stream("DoExchange", Body::new(body), deadline).await?;
        Ok((outgoing, incoming.listening(listening)))
    }

    /// Gets the data of a ticket, by Flight's DoGet.
    ///
    /// # Errors
    /// As [`Peer::exchange`].
    pub async fn get(&self, ticket: impl Into<Bytes>, deadline: Duration) -> Result<Incoming, Fault> {
        let ticket = Ticket { ticket: ticket.into() };
        self.stream("DoGet", Body::new(SendBody::once(framed(&ticket))), deadline).await
    }

    fn stream(&self, method: &'static str, body: Body, deadline: Duration) -> BoxFuture<'_, Result<Incoming, Fault>> {
        let peer = self.clone();
        let call = async move { peer.call(method, body).await };
        async move {
            let body = self.within("the stream was not accepted", deadline, call).await?;
            Ok(Incoming::new(body, &self.limits, self.origin.clone()))
        }
        .boxed()
    }

    /// Runs a call on the IO runtime, until its deadline at the latest.
    async fn within<T: Send + 'static>(
        &self,
        what: &str,
        deadline: Duration,
        call: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let answer = self.io.run(async move { timeout(deadline, call).await }).await;
        match answer.map_err(|e| Fault::internal("a task of the network was lost").because(e))? {
            Ok(answer) => answer,
            Err(_) => {
                Err(self.origin.fault(&format!("{what} within {deadline:?}")).kind(FaultKind::Timeout).retryable())
            }
        }
    }

    /// One call, up to the headers of its response.
    async fn call(&self, method: &str, body: Body) -> Result<Body, Fault> {
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = format!("/arrow.flight.protocol.FlightService/{method}")
            .parse()
            .map_err(|e| Fault::internal("a method of Flight is no path").because(e))?;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let mut channel = self.channel.clone();
        let broken = |e: tonic::transport::Error| status::broken(&self.origin, &e);
        poll_fn(|cx| channel.poll_ready(cx)).await.map_err(broken)?;
        let response = channel.call(request).await.map_err(broken)?;
        self.accepted(response)
    }

    fn accepted(&self, response: Response<Body>) -> Result<Body, Fault> {
        self.origin.has_answered();
        let headers = response.headers();
        let grpc =
            headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if response.status() != StatusCode::OK || !grpc {
            let what = format!("it answers HTTP {}, not as a Flight server does", response.status().as_u16());
            return Err(self.origin.name(Fault::user(what)));
        }
        if headers.contains_key("grpc-status") {
            self.origin.check_trailers(headers.clone())?;
        }
        Ok(response.into_body())
    }
}
