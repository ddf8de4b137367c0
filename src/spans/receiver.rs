//! The receiver of spans: where it is, by the variables `OTEL_*`, and a request to it.

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::Fault;
use crate::actors::IoRuntime;
use crate::net::is_loopback;

/// The receiver, unless a variable names another: a collector on this machine.
const DEFAULT: &str = "http://127.0.0.1:4317";

/// Longer than the default of OTEL_EXPORTER_OTLP_TIMEOUT, which ends a request first.
const LONGEST_REQUEST: Duration = Duration::from_secs(60);

/// Who sends.
pub(crate) struct SpanService {
    /// `service.name`, unless OTEL_SERVICE_NAME is set.
    pub(crate) name: String,
    /// `service.instance.id`.
    pub(crate) instance: String,
    /// The authorities that signed the certificate of the receiver, unless OTEL_EXPORTER_OTLP_CERTIFICATE names others.
    pub(crate) tls_ca: Option<PathBuf>,
}

/// Sends spans.
pub(crate) struct Receiver {
    exporter: SpanExporter,
    io: IoRuntime,
    address: String,
}

impl Receiver {
    /// Does not connect yet.
    ///
    /// # Errors
    /// User: the address cannot be parsed, or it is on another machine and TLS is not used, a certificate is missing, or another protocol
    /// is asked for.
    pub(crate) fn new(service: &SpanService) -> Result<Self, Fault> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let either = |name: &str| {
            let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
            names.into_iter().find_map(|name| variable(&name).map(|value| (name, value)))
        };
        if let Some((name, protocol)) = either("PROTOCOL").filter(|(_, protocol)| protocol != "grpc") {
            return Err(Fault::user(format!(
                "{name} is {protocol:?}, and spans are sent by \"grpc\": unset it, and give the port for gRPC, usually 4317"
            )));
        }
        let (name, address) = either("ENDPOINT").unwrap_or_else(|| ("--spans".into(), DEFAULT.into()));
        let is_tls = check_address(&name, &address)?;
        let mut builder = SpanExporter::builder().with_tonic().with_endpoint(&address);
        if is_tls {
            let (name, file) = match (either("CERTIFICATE"), &service.tls_ca) {
                (Some((name, file)), _) => (name, PathBuf::from(file)),
                (None, Some(file)) => ("tls_ca".to_owned(), file.clone()),
                (None, None) => {
                    return Err(Fault::user(format!(
                        "{name} is {address}: name the authority that signed its certificate by OTEL_EXPORTER_OTLP_CERTIFICATE"
                    )));
                }
            };
            let broken = |e| Fault::user(format!("cannot read {name} {}", file.display())).because(e);
            let pem = std::fs::read(&file).map_err(broken)?;
            builder = builder.with_tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)));
        }
        let io = IoRuntime::new("spans-io", 1);
        let broken = |e| Fault::user(format!("spans cannot be sent to {address}")).because(e);
        let mut exporter = io.block_on(async { builder.build() }).map_err(broken)?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.instance.id", service.instance.clone()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if variable("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(service.name.clone());
        }
        exporter.set_resource(&resource.build());
        Ok(Self { exporter, io, address })
    }

    /// Sends spans in one request, which takes at most `longest`. Blocks.
    pub(crate) fn send(&self, spans: Vec<SpanData>, longest: Option<Duration>) -> Result<(), String> {
        let request = self.exporter.export(spans);
        let longest = longest.unwrap_or(LONGEST_REQUEST);
        let sent = self.io.block_on(async { tokio::time::timeout(longest, request).await });
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(format!("{} does not take them: {e}", self.address)),
            Err(_) => Err(format!("{} has not answered in {longest:?}", self.address)),
        }
    }
}

/// Refuses plain text to other machines, because spans say what a run does and headers may have a password. Returns whether TLS is asked
/// for.
fn check_address(name: &str, address: &str) -> Result<bool, Fault> {
    let wrong = || Fault::user(format!("{name} is {address:?}, expected http://127.0.0.1:4317 or https://HOST:PORT"));
    let uri: http::Uri = address.parse().map_err(|e| wrong().because(e))?;
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else { return Err(wrong()) };
    match scheme {
        "https" => Ok(true),
        "http" if is_loopback(host) => Ok(false),
        "http" => Err(Fault::user(format!(
            "{name} is {address}: {host} is another machine, and spans would travel there in the clear: give https://, or a \
             collector on this machine"
        ))),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_travel_to_other_machines_by_tls_only() {
        let check =
            |address: &str| check_address("OTEL_EXPORTER_OTLP_ENDPOINT", address).map_err(|fault| fault.to_string());
        for here in ["http://127.0.0.1:4317", "http://localhost:4317", "http://[::1]:4317"] {
            assert_eq!(check(here), Ok(false));
        }
        assert_eq!(check("https://collector:4317"), Ok(true));
        let said = check("http://collector:4317").unwrap_err();
        assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && said.contains("in the clear"), "{said}");
        for wrong in ["collector", "127.0.0.1:4317", "ftp://x", ""] {
            assert!(check(wrong).unwrap_err().contains("expected http://127.0.0.1:4317"), "{wrong}");
        }
    }
}
