//! The metrics of `forebay serve`. docs/serve.md lists them.

use std::fmt::Error;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{gauge, one, text, write};
use crate::pipelines::ServingModel;

/// Upper bounds of the buckets of request times, in seconds.
const BUCKETS: [f64; 11] = [0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0];

/// The counts of the server.
pub(crate) struct ServeMetrics {
    registry: Registry,
    /// Requests for scores by status.
    requests: Family<[(&'static str, String); 1], Counter>,
    rows: Counter,
    bad_rows: Counter,
    times: Histogram,
    changes: Counter,
    failures: Counter,
}

impl ServeMetrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            requests: Family::default(),
            rows: Counter::default(),
            bad_rows: Counter::default(),
            times: Histogram::new(BUCKETS),
            changes: Counter::default(),
            failures: Counter::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("requests", "Requests for scores, by HTTP status", self.requests.clone());
        registry.register("rows", "Rows in requests that were answered", self.rows.clone());
        registry.register("bad_rows", "Rows without a score, because they could not be parsed", self.bad_rows.clone());
        let took = "Time from the whole body of a request for scores to its answer";
        registry.register_with_unit("request", took, Unit::Seconds, self.times.clone());
        registry.register("model_changes", "Newer versions that were taken", self.changes.clone());
        registry.register("model_failures", "Newer versions that could not be loaded", self.failures.clone());
        self
    }

    /// Counts a request for scores.
    pub(crate) fn scored(&self, status: u16, rows: u64, bad_rows: u64, took: Duration) {
        self.requests.get_or_create(&[("code", status.to_string())]).inc();
        self.rows.inc_by(rows);
        self.bad_rows.inc_by(bad_rows);
        self.times.observe(took.as_secs_f64());
    }

    /// Counts a newer version that was taken.
    pub(crate) fn changed(&self) {
        self.changes.inc();
    }

    /// Counts a newer version that could not be loaded.
    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    /// All metrics as text, with the model that is served.
    pub(crate) fn text(&self, model: &ServingModel) -> String {
        let mut of_the_model = Registry::with_prefix(PREFIX);
        of_the_model.register_collector(Box::new(ModelMetrics {
            version: model.version().to_string(),
            kind: model.kind().to_string(),
            loaded: model.loaded().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            rows: model.table_rows(),
        }));
        text(&[&self.registry, &of_the_model])
    }
}

const PREFIX: &str = "forebay_serve";

/// The metrics of the model that is served.
#[derive(Debug)]
struct ModelMetrics {
    version: String,
    kind: String,
    /// Unix seconds.
    loaded: f64,
    rows: u64,
}

impl Collector for ModelMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let e = &mut encoder;
        let labels = vec![("version", self.version.as_str()), ("kind", self.kind.as_str())];
        write(e, gauge("model_info", "1 for the version that is served", None), [(labels, 1.0)])?;
        let loaded = "When the version was loaded, in seconds since 1970";
        write(e, gauge("model_loaded_timestamp", loaded, Some(Unit::Seconds)), one(self.loaded))?;
        write(e, gauge("table_rows", "Rows of the table", None), one(self.rows as f64))
    }
}
