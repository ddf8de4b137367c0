//! The same by arrow-flight's own service and client, through prost: DoGet of as many batches.

use std::pin::Pin;

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightClient, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use forebay_net::Limits;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub(crate) struct Stock(Channel);

impl Stock {
    pub(crate) async fn new(limits: &Limits) -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
        let address = incoming.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(limits.frame)
            .serve_with_incoming(FlightServiceServer::new(Source), incoming);
        tokio::spawn(server);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .unwrap()
            .tcp_nodelay(true)
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(limits.frame);
        Self(endpoint.connect().await.unwrap())
    }

    pub(crate) async fn round(self) -> u64 {
        let mut client = FlightClient::new(self.0);
        let stream = client.do_get(Ticket::new("go")).await.unwrap();
        stream.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows() as u64) }).await.unwrap()
    }
}

struct Source;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn none<T>() -> Result<T, Status> {
    Err(Status::unimplemented("only DoGet"))
}

#[tonic::async_trait]
impl FlightService for Source {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let batch = crate::batch();
        let batches = stream::iter(std::iter::repeat_n(batch, crate::batches())).map(Ok::<_, FlightError>);
        // One message for each batch, as ours.
        let data = FlightDataEncoderBuilder::new().with_max_flight_data_size(1 << 24).build(batches);
        Ok(Response::new(Box::pin(data.map_err(|e| Status::internal(e.to_string())))))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        none()
    }
    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        none()
    }
    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        none()
    }
    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        none()
    }
    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        none()
    }
    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        none()
    }
    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        none()
    }
    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        none()
    }
    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        none()
    }
}
