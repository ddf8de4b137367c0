//! The calls of Flight that have one request and one answer, for stock clients and our own.
//!
//! The gate has checked their callers. DoGet and DoExchange are in `exchange`.

use std::pin::Pin;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use async_trait::async_trait;
use forebay_actors::{Fault, FaultKind};
use futures::Stream;
use futures::stream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::handler::schema_result;
use crate::handlers::Handlers;
use crate::identity::Caller;
use crate::status::{to_status, with_code};

pub(crate) struct Calls(pub(crate) Handlers);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn answers<T: Send + 'static>(items: Vec<T>) -> Response<Answers<T>> {
    Response::new(Box::pin(stream::iter(items.into_iter().map(Ok))))
}

fn not_here<T>(what: &str) -> Result<T, Status> {
    Err(with_code(Code::Unimplemented, &Fault::user(what).kind(FaultKind::Refused)))
}

#[async_trait]
impl FlightService for Calls {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        not_here("there is no handshake: send the token with each call, in the header `authorization: Bearer TOKEN`")
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let mut infos = Vec::new();
        for handler in self.0.iter() {
            infos.extend(handler.list().await.map_err(|fault| to_status(&fault))?);
        }
        Ok(answers(infos))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        self.0.info(request.into_inner()).await.map(Response::new)
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        not_here("there is nothing to poll: use GetFlightInfo")
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let info = self.0.info(request.into_inner()).await?;
        schema_result(info).map(Response::new).map_err(|fault| to_status(&fault))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::internal("DoGet is answered elsewhere"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        not_here("there is no DoPut: use DoExchange")
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::internal("DoExchange is answered elsewhere"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("a call that did not pass the gate"))?;
        let action = request.into_inner();
        let (handler, kind) = self.0.of_action(&action.r#type)?;
        self.0.admit(handler.as_ref(), &caller)?;
        let (handler, kind) = (handler.clone(), kind.to_owned());
        // On a task of its own: an action runs to its end even if the caller leaves.
        let answer = tokio::spawn(async move { handler.action(&caller, &kind, action.body).await }).await;
        let answer = answer.map_err(|e| Status::internal(format!("the handler that answers panicked: {e}")))?;
        let body = answer.map_err(|fault| to_status(&fault))?;
        Ok(answers(vec![arrow_flight::Result { body }]))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let of = |handler: &dyn crate::Handler| -> Vec<ActionType> {
            let name = handler.name();
            let kinds = handler.actions().into_iter();
            kinds.map(|(kind, description)| ActionType { r#type: format!("{name}.{kind}"), description }).collect()
        };
        Ok(answers(self.0.iter().flat_map(|handler| of(handler.as_ref())).collect()))
    }
}
