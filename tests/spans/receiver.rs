//! A receiver of OTLP over gRPC that keeps what it gets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use forebay::actors::IoRuntime;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// A span and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) span: Span,
    pub(crate) resource: Resource,
}

pub(crate) struct Receiver {
    address: SocketAddr,
    kept: Kept,
    _io: IoRuntime,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Received>>>);

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of in request.into_inner().resource_spans {
            let resource = of.resource.unwrap_or_default();
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| Received { span, resource: resource.clone() }));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    /// Listens on this machine. `tls`: its certificate and key, PEM.
    pub(crate) fn start(tls: Option<(String, String)>) -> Self {
        let (kept, io) = (Kept::default(), IoRuntime::new("receiver", 1));
        let incoming = io.block_on(async { TcpIncoming::bind(([127, 0, 0, 1], 0).into()) }).unwrap();
        let address = incoming.local_addr().unwrap();
        let mut server = Server::builder();
        if let Some((certificate, key)) = tls {
            server = server.tls_config(ServerTlsConfig::new().identity(Identity::from_pem(certificate, key))).unwrap();
        }
        let serving = server.add_service(TraceServiceServer::new(kept.clone())).serve_with_incoming(incoming);
        io.spawn(async move { serving.await.unwrap() });
        Self { address, kept, _io: io }
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn https(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// What has come so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.kept.0.lock().unwrap().clone()
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()
}

/// A number among the attributes of a span.
pub(crate) fn number(span: &Span, key: &str) -> Option<i64> {
    if let Some(Value::IntValue(number)) = value(&span.attributes, key) { Some(*number) } else { None }
}

/// A text among the attributes of a process.
pub(crate) fn text(resource: &Resource, key: &str) -> Option<String> {
    if let Some(Value::StringValue(text)) = value(&resource.attributes, key) { Some(text.clone()) } else { None }
}
