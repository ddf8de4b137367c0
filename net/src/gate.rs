//! The first code of a server that sees a request: it answers `/healthz` and `/livez`, refuses calls with a wrong token, protocol or run,
//! and passes streams to `exchange` and other calls to `service`, both with their [`Caller`].

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::flight_service_server::FlightServiceServer;
use http::{HeaderValue, Request, Response, StatusCode, header};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use crate::connections::Client;
use crate::exchange::Streams;
use crate::handlers::Handlers;
use crate::health::Health;
use crate::identity::{Caller, Identity};
use crate::limits::Limits;
use crate::outgoing::SendBody;
use crate::security::Security;
use crate::service::Calls;
use crate::status::with_code;

#[derive(Clone)]
pub(crate) struct Gate {
    security: Security,
    run: Arc<str>,
    health: Health,
    streams: Streams,
    calls: FlightServiceServer<Calls>,
}

impl Gate {
    /// `run`: callers of another run are refused. Streams are cut when `cut` becomes true, or its sender is dropped.
    pub(crate) fn new(
        security: &Security,
        run: &str,
        health: Health,
        handlers: Handlers,
        limits: Limits,
        cut: watch::Receiver<bool>,
    ) -> Self {
        let calls =
            FlightServiceServer::new(Calls(handlers.clone())).max_decoding_message_size(limits.most_message_bytes);
        let streams = Streams { handlers, limits, cut };
        Self { security: security.clone(), run: run.into(), health, streams, calls }
    }

    fn caller(&self, request: &Request<Body>) -> Result<Caller, Status> {
        self.security.check_call(request.headers()).map_err(|fault| with_code(Code::Unauthenticated, &fault))?;
        let identity = Identity::of_caller(request.headers(), &self.run)
            .map_err(|fault| with_code(Code::FailedPrecondition, &fault))?;
        let client = request.extensions().get::<Client>();
        client.inspect(|client| client.accept());
        let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Ok(Caller { peer: client.map_or(unknown, |client| client.address), identity })
    }
}

/// The answer to a question about this process, which needs no token.
fn plain((status, text): (StatusCode, String)) -> Response<Body> {
    let mut response = Response::new(Body::new(SendBody::once(text.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

impl Service<Request<Body>> for Gate {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let known = match request.uri().path() {
            "/healthz" => Some(self.health.answer()),
            "/livez" => Some(Health::alive()),
            _ => None,
        };
        if let Some(answer) = known {
            return Box::pin(async { Ok(plain(answer)) });
        }
        let caller = match self.caller(&request) {
            Ok(caller) => caller,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let streams = self.streams.clone();
        match request.uri().path() {
            "/arrow.flight.protocol.FlightService/DoExchange" => Box::pin(async move {
                let answer = streams.exchange(caller, request.into_body()).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            }),
            "/arrow.flight.protocol.FlightService/DoGet" => Box::pin(async move {
                let answer = streams.get(caller, request.into_body()).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            }),
            _ => {
                request.extensions_mut().insert(caller);
                self.calls.call(request)
            }
        }
    }
}
