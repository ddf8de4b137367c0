//! Streams at a server: DoExchange and DoGet.
//!
//! The client's first message says what it wants, and must come within `Limits::opening`. The handler then runs on a task
//! of its own and fills the body of the response.

use std::future::Future;
use std::sync::Arc;

use arrow_flight::Ticket;
use forebay_actors::{Fault, FaultKind};
use http::{HeaderValue, Response, header};
use prost::Message as _;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

use crate::attempt::OpenedIn;
use crate::frames::Frames;
use crate::handlers::Handlers;
use crate::identity::Caller;
use crate::incoming::Incoming;
use crate::limits::Limits;
use crate::outgoing::{End, Outgoing};
use crate::status::{Origin, to_status};

/// The state that all streams of a server share.
#[derive(Clone)]
pub(crate) struct Streams {
    pub(crate) handlers: Handlers,
    pub(crate) limits: Limits,
    /// True: the server's grace is over.
    pub(crate) cut: watch::Receiver<bool>,
}

impl Streams {
    pub(crate) async fn exchange(self, caller: Caller, body: Body) -> Result<Response<Body>, Status> {
        let origin = Arc::new(Origin::Client(caller.describe()));
        let mut incoming = Incoming::new(body, &self.limits, origin.clone());
        let mut first = self.opening(incoming.next_flight()).await?;
        let descriptor = first.as_mut().and_then(|first| first.descriptor.take());
        let (handler, path) = self.handlers.of_descriptor(descriptor)?;
        let opened_in = self.handlers.admit(handler.as_ref(), &caller)?;
        let handler = handler.clone();
        if let Some(first) = first {
            incoming.begin(first).map_err(|fault| to_status(&fault))?;
        }
        let incoming = incoming.bound_to(opened_in.clone());
        Ok(self.answer(origin, opened_in, |outgoing| async move {
            handler.exchange(caller, path, incoming, outgoing).await
        }))
    }

    pub(crate) async fn get(self, caller: Caller, body: Body) -> Result<Response<Body>, Status> {
        let origin = Arc::new(Origin::Client(caller.describe()));
        let mut frames = Frames::new(body, self.limits.most_message_bytes, origin.clone());
        let message = self.opening(frames.next()).await?;
        let ticket = Ticket::decode(message.unwrap_or_default());
        let ticket = ticket
            .map_err(|e| to_status(&Fault::user("a request without a ticket").kind(FaultKind::Refused).because(e)))?
            .ticket;
        let handler = self.handlers.of_ticket(&ticket)?.clone();
        let opened_in = self.handlers.admit(handler.as_ref(), &caller)?;
        Ok(self.answer(origin, opened_in, |outgoing| async move { handler.get(caller, ticket, outgoing).await }))
    }

    async fn opening<T>(&self, first: impl Future<Output = Result<T, Fault>>) -> Result<T, Status> {
        match timeout(self.limits.opening, first).await {
            Ok(first) => first.map_err(|fault| to_status(&fault)),
            Err(_) => Err(to_status(
                &Fault::user(format!("nothing was asked for within {:?} of opening a stream", self.limits.opening))
                    .kind(FaultKind::Refused),
            )),
        }
    }

    /// Runs the handler on a task of its own, until it returns, the server enters another attempt, or its grace is over.
    fn answer<F>(
        &self,
        origin: Arc<Origin>,
        opened_in: Option<OpenedIn>,
        handler: impl FnOnce(Outgoing) -> F,
    ) -> Response<Body>
    where
        F: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let (end, result) = oneshot::channel();
        let (outgoing, body) = Outgoing::new(&self.limits, origin, End::Awaited(result));
        let handler = handler(outgoing);
        let mut cut = self.cut.clone();
        tokio::spawn(async move {
            let attempt_ended = async {
                match opened_in {
                    Some(opened_in) => opened_in.ended().await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                biased;
                fault = attempt_ended => Err(fault),
                result = handler => result,
                _ = cut.wait_for(|cut| *cut) => Err(Fault::external("this server stops").retryable()),
            };
            // The client may be gone.
            let _ = end.send(result.map_err(|fault| to_status(&fault)));
        });
        let mut response = Response::new(Body::new(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}
