//! A small HTTP server for programs that speak no Flight: the connections, TLS and token of the Flight server, requests and
//! answers as whole bodies. It may answer Flight calls at the same port, too.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use bytes::{Bytes, BytesMut};
use forebay_actors::{Fault, IoRuntime};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body as _, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService as _;
use tower_service::Service;

use crate::attempt::Attempt;
use crate::connections::{Client, ConnectionLimits};
use crate::gate::Gate;
use crate::handler::Handler;
use crate::handlers::Handlers;
use crate::health::Health;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::outgoing::SendBody;
use crate::security::{Security, is_loopback};
use crate::service::Calls;

/// Tells a client of HTTP/1.1 for how many seconds it may send another request on its connection. hyper closes a connection without
/// requests after 30 s, and does not answer a request that the client sends at this moment.
const KEEP_ALIVE: &str = "timeout=25";

/// A body of up to this many times the limit, or of this many bytes, is read to its end before it is refused.
const MOST_DISCARDED: (usize, usize) = (4, 1 << 20);

/// A request whose token was checked and whose body is whole.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// `GET`, `POST`, ...
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// All of the body.
    pub body: Bytes,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// For instance 200. A number that is no status becomes 500.
    pub status: u16,
    /// For instance `application/json`.
    pub content_type: &'static str,
    /// The methods that the path has, for the status 405.
    pub allow: Option<&'static str>,
    /// All of the body.
    pub body: Bytes,
}

impl HttpAnswer {
    /// An answer with this body.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, allow: None, body: body.into() }
    }

    /// Names the methods that the path has.
    #[must_use]
    pub fn allow(self, methods: &'static str) -> Self {
        Self { allow: Some(methods), ..self }
    }
}

/// Answers requests. It runs on the IO threads, so it must not block.
pub type HttpHandler = Arc<dyn Fn(HttpRequest) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send>> + Send + Sync>;

/// Makes the body of an answer that this server gives by itself: a status, and what is wrong.
pub type HttpRefusal = fn(u16, &str) -> HttpAnswer;

/// The handlers of an HTTP server.
pub struct HttpService {
    /// Answers requests.
    pub handler: HttpHandler,
    /// Makes the answers to requests that the server refuses by itself.
    pub refusal: HttpRefusal,
    /// Answer Arrow Flight calls at the same port. Empty: a Flight call is a request like others.
    pub flight: Vec<Arc<dyn Handler>>,
}

/// The bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time; beyond them the oldest one without an accepted request is closed, or the new one.
    pub connections: usize,
    /// How long a client may hold a connection before a request of it is accepted.
    pub opening: Duration,
    /// Bytes of the largest body, or Flight message, that is accepted. With 0 the body of a request is not kept, so the handler gets
    /// requests without one.
    pub body_bytes: usize,
    /// Bytes of all bodies that are arriving, or whose requests are not answered yet. A request whose body does not fit gets 503. Flight
    /// messages do not count.
    pub all_body_bytes: u32,
    /// How long the body of a request may take to arrive.
    pub body_time: Duration,
    /// How long a client may take no bytes of an answer.
    pub unread: Duration,
    /// At a loopback address without a token: refuse requests (421) that call this machine by another name than `localhost` or a loopback
    /// address. So a web page cannot read answers through a host name that leads to this machine (DNS rebinding).
    pub local_names: bool,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            opening: Duration::from_secs(10),
            body_bytes: 16 << 20,
            all_body_bytes: 256 << 20,
            body_time: Duration::from_secs(10),
            unread: Duration::from_secs(30),
            local_names: false,
        }
    }
}

/// An HTTP server that runs. Dropping it stops it without a grace.
pub struct HttpServer {
    io: IoRuntime,
    listener: Listener,
    /// Dropped: Flight streams are cut.
    _cut: watch::Sender<bool>,
}

impl HttpServer {
    /// Listens at `listen` (port 0: any) with HTTP/1.1 and HTTP/2. `GET /healthz` tells `health` to everybody; all other requests
    /// need the token of `security`, if it has one (as a bearer token, or as the password that a browser asks for), and go to
    /// the handlers of `service`. A request whose body is compressed is refused with 415.
    ///
    /// # Errors
    /// User: other machines could reach `listen` and `security` does not protect it, or the address cannot be listened at.
    /// Internal: two Flight handlers have one name.
    pub fn start(
        io: &IoRuntime,
        listen: SocketAddr,
        security: &Security,
        limits: &HttpLimits,
        health: Health,
        service: HttpService,
    ) -> Result<Self, Fault> {
        let HttpService { handler, refusal, flight } = service;
        let (cut, cutting) = watch::channel(false);
        let flight = match flight.is_empty() {
            true => None,
            false => Some(gate(security, limits, &health, flight, cutting)?),
        };
        let local_names = limits.local_names && listen.ip().is_loopback() && !security.asks_for_token();
        let limits = HttpLimits { local_names, ..limits.clone() };
        let HttpLimits { connections, opening, unread, all_body_bytes, .. } = limits;
        let bodies = Arc::new(Semaphore::new(all_body_bytes as usize));
        let entrance = Entrance { security: security.clone(), limits, health, refusal, handler, flight, bodies };
        let builder = tonic::transport::Server::builder();
        let connections = ConnectionLimits { most: connections, opening, unread: Some(unread) };
        let listener = Listener::start(io, listen, security, connections, builder, entrance)?;
        Ok(Self { io: io.clone(), listener, _cut: cut })
    }

    /// Where it listens, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Takes no more requests, and gives the requests under way `grace` to end.
    pub async fn stop(mut self, grace: Duration) {
        let Some(mut task) = self.listener.stop() else { return };
        let ended = self.io.spawn(async move {
            if timeout(grace, &mut task).await.is_err() {
                tracing::warn!("requests are under way still: they are cut");
                task.abort();
            }
        });
        let _ = ended.await;
    }
}

/// Answers Flight calls of any client, because this server is in no run.
fn gate(
    security: &Security,
    limits: &HttpLimits,
    health: &Health,
    handlers: Vec<Arc<dyn Handler>>,
    cut: watch::Receiver<bool>,
) -> Result<Gate, Fault> {
    let limits = Limits { most_message_bytes: limits.body_bytes, opening: limits.opening, ..Limits::default() };
    let handlers = Handlers::new(handlers, Attempt::new(0))?;
    Ok(Gate::new(security, "", health.clone(), handlers, limits, cut))
}

/// The first code that sees a request.
#[derive(Clone)]
struct Entrance {
    security: Security,
    limits: HttpLimits,
    health: Health,
    refusal: HttpRefusal,
    handler: HttpHandler,
    flight: Option<Gate>,
    /// Has a permit for each byte of a body that may be kept.
    bodies: Arc<Semaphore>,
}

impl Entrance {
    async fn answer(self, request: Request<Body>) -> HttpAnswer {
        let path = request.uri().path().to_owned();
        if path == "/healthz" && !["GET", "HEAD"].contains(&request.method().as_str()) {
            self.discard(request).await;
            return (self.refusal)(405, "GET this path").allow("GET, HEAD");
        }
        if path == "/healthz" {
            let (status, text) = self.health.answer();
            return HttpAnswer::new(status.as_u16(), "text/plain; charset=utf-8", text);
        }
        if let Some(refused) = self.not_admitted(&request).or_else(|| self.not_readable(&request)) {
            self.discard(request).await;
            return refused;
        }
        let method = request.method().as_str().to_owned();
        if self.limits.body_bytes == 0 {
            self.discard(request).await;
            return (self.handler)(HttpRequest { method, path, body: Bytes::new() }).await;
        }
        match self.body(request).await {
            Ok((body, _kept)) => (self.handler)(HttpRequest { method, path, body }).await,
            Err(refused) => refused,
        }
    }

    /// The refusal of a request that names another host, or whose caller has no valid token. The client of another request may keep its
    /// connection.
    fn not_admitted(&self, request: &Request<Body>) -> Option<HttpAnswer> {
        if self.limits.local_names
            && let Some(host) = foreign_host(request)
        {
            let why = format!("this server is for its own machine, and `{host}` is a name of another one");
            return Some((self.refusal)(421, &format!("{why}: call it as localhost or 127.0.0.1")));
        }
        if let Err(fault) = self.security.check_request(request.headers()) {
            return Some((self.refusal)(401, fault.message()));
        }
        if let Some(client) = request.extensions().get::<Client>() {
            client.accept();
        }
        None
    }

    /// The refusal of a request whose headers say that its body cannot be read.
    fn not_readable(&self, request: &Request<Body>) -> Option<HttpAnswer> {
        if let Some(coding) = coding(request.headers()) {
            let why = format!("the body has Content-Encoding `{coding}`, but compressed bodies are not read");
            return Some((self.refusal)(415, &format!("{why}: send it without compression and without this header")));
        }
        let most = self.limits.body_bytes;
        (most > 0 && request.body().size_hint().lower() > most as u64).then(|| self.too_long())
    }

    fn too_long(&self) -> HttpAnswer {
        (self.refusal)(413, &format!("the body is longer than {} bytes", self.limits.body_bytes))
    }

    /// All of the body, and permits to hold for as long as it is kept; or the refusal.
    async fn body(&self, request: Request<Body>) -> Result<(Bytes, Option<OwnedSemaphorePermit>), HttpAnswer> {
        let body_time = self.limits.body_time;
        let mut body = request.into_body();
        let read = async {
            let read = self.read(&mut body).await;
            if read.is_err() {
                self.read_away(&mut body).await;
            }
            read
        };
        match timeout(body_time, read).await {
            Ok(body) => body,
            Err(_) => Err((self.refusal)(408, &format!("the body did not arrive within {body_time:?}"))),
        }
    }

    async fn read(&self, body: &mut Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), HttpAnswer> {
        let (mut all, mut permits) = (BytesMut::new(), None::<OwnedSemaphorePermit>);
        while let Some(data) = next_data(body).await {
            let data = data.map_err(|_| (self.refusal)(400, "the connection broke within the body"))?;
            if all.len() + data.len() > self.limits.body_bytes {
                return Err(self.too_long());
            }
            let more = u32::try_from(data.len()).map_err(|_| self.too_long())?;
            let more = Arc::clone(&self.bodies).try_acquire_many_owned(more).map_err(|_| {
                let why = "the bodies of other requests take all the memory that this server has for them";
                (self.refusal)(503, &format!("{why}: send the request again"))
            })?;
            match &mut permits {
                Some(permits) => permits.merge(more),
                None => permits = Some(more),
            }
            all.extend_from_slice(&data);
        }
        Ok((all.freeze(), permits))
    }

    /// Reads the body of a request that is refused: a client that is still sending would not see an answer. Does not read it if the client
    /// waits for a sign before it sends, or would send very much.
    async fn discard(&self, request: Request<Body>) {
        let waits = request.headers().contains_key(header::EXPECT);
        let mut body = request.into_body();
        if !waits && body.size_hint().lower() <= self.most_discarded() as u64 {
            let _ = timeout(self.limits.body_time, self.read_away(&mut body)).await;
        }
    }

    fn most_discarded(&self) -> usize {
        self.limits.body_bytes.saturating_mul(MOST_DISCARDED.0).max(MOST_DISCARDED.1)
    }

    async fn read_away(&self, body: &mut Body) {
        let mut left = self.most_discarded();
        while let Some(Ok(data)) = next_data(body).await {
            let Some(less) = left.checked_sub(data.len()) else { return };
            left = less;
        }
    }
}

/// The next bytes of a body; `None`: its end.
async fn next_data(body: &mut Body) -> Option<Result<Bytes, Status>> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?.map(Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            // Trailers.
            Ok(Err(_)) => {}
            Err(e) => return Some(Err(e)),
        }
    }
}

impl Service<Request<Body>> for Entrance {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let of_flight = request.uri().path().trim_start_matches('/').starts_with(FlightServiceServer::<Calls>::NAME);
        if let Some(flight) = self.flight.as_mut().filter(|_| of_flight) {
            return flight.call(request);
        }
        let (entrance, version) = (self.clone(), request.version());
        Box::pin(async move {
            let mut response = response(entrance.answer(request).await);
            if version == Version::HTTP_11 {
                response.headers_mut().insert("keep-alive", HeaderValue::from_static(KEEP_ALIVE));
            }
            Ok(response)
        })
    }
}

/// The name by which a request calls this machine, if it is one of another machine.
fn foreign_host(request: &Request<Body>) -> Option<String> {
    let text = |host: &HeaderValue| String::from_utf8_lossy(host.as_bytes()).into_owned();
    let headers = request.headers().get_all(header::HOST).iter().map(text);
    // In HTTP/2 the name is in the address.
    let address = request.uri().authority().map(|authority| authority.as_str().to_owned());
    address.into_iter().chain(headers).find(|host| !is_local(host))
}

/// Whether a host, perhaps with a port, is this machine.
fn is_local(host: &str) -> bool {
    host.parse::<Authority>().is_ok_and(|authority| is_loopback(&authority.host().to_ascii_lowercase()))
}

/// The coding of a body that is not sent as it is.
fn coding(headers: &HeaderMap) -> Option<String> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter().map(|value| value.as_bytes().trim_ascii());
    let coding = codings.find(|coding| !coding.eq_ignore_ascii_case(b"identity"))?;
    Some(String::from_utf8_lossy(coding).into_owned())
}

fn response(answer: HttpAnswer) -> Response<Body> {
    let HttpAnswer { status, content_type, allow, body } = answer;
    let length = body.len();
    let mut response = Response::new(Body::new(SendBody::once(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(allow) = allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if status == 415 {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if status == 503 {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if status == 401 {
        headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        headers
            .append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"Forebay\", charset=\"UTF-8\""));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_localhost_and_loopback_addresses_with_any_port() {
        for host in ["localhost", "LocalHost:9600", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:1", "[::1]", "[::1]:9600"] {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9600", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:80", ""]
        {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_request_that_names_another_machine_anywhere_is_foreign() {
        let request = |uri: &str, host: Option<&str>| {
            let builder =
                host.into_iter().fold(Request::builder().uri(uri), |request, host| request.header("host", host));
            foreign_host(&builder.body(Body::empty()).unwrap())
        };
        assert_eq!(request("/run.json", Some("localhost:1")), None);
        assert_eq!(request("http://127.0.0.1:1/run.json", None), None);
        assert_eq!(request("/run.json", Some("evil.example:1")).as_deref(), Some("evil.example:1"));
        assert_eq!(request("http://evil.example/", Some("localhost")).as_deref(), Some("evil.example"));
        assert_eq!(request("/run.json", None), None, "programs of HTTP/1.0");
    }
}
