//! Counters and times of the server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use crate::pipelines::ServingModel;

/// Upper bounds of the buckets of request times, in microseconds.
const BUCKETS: [u64; 11] = [250, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000, 2_000_000];

/// What the server has done.
#[derive(Default)]
pub(super) struct Metrics {
    /// Requests for scores by status.
    requests: Mutex<BTreeMap<u16, u64>>,
    rows: AtomicU64,
    bad_rows: AtomicU64,
    /// Requests by time: those of each bucket, and the slower ones.
    times: [AtomicU64; BUCKETS.len() + 1],
    time: AtomicU64,
    changes: AtomicU64,
    failures: AtomicU64,
}

impl Metrics {
    /// Counts a request for scores.
    pub(super) fn scored(&self, status: u16, rows: u64, bad_rows: u64, took: Duration) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bad_rows.fetch_add(bad_rows, Ordering::Relaxed);
        let micros = took.as_micros() as u64;
        let bucket = BUCKETS.partition_point(|&bound| bound < micros);
        self.times[bucket].fetch_add(1, Ordering::Relaxed);
        self.time.fetch_add(micros, Ordering::Relaxed);
    }

    /// Counts a newer version that was taken.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a newer version that could not be loaded.
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it, with the model that is served.
    pub(super) fn text(&self, model: &ServingModel) -> String {
        let mut text = Text::default();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        text.about("requests_total", "counter", "Requests for scores, by HTTP status");
        for (status, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.line("requests_total", &format!("code=\"{status}\""), count);
        }
        text.one("rows_total", "counter", "Rows in requests that were answered", read(&self.rows));
        text.one(
            "bad_rows_total",
            "counter",
            "Rows without a score, because they could not be parsed",
            read(&self.bad_rows),
        );
        text.about("request_seconds", "histogram", "Time from the whole body of a request for scores to its answer");
        let mut below = 0;
        for (bound, count) in BUCKETS.iter().zip(&self.times) {
            below += read(count);
            text.line("request_seconds_bucket", &format!("le=\"{}\"", *bound as f64 / 1e6), below);
        }
        below += read(&self.times[BUCKETS.len()]);
        text.line("request_seconds_bucket", "le=\"+Inf\"", below);
        text.line("request_seconds_sum", "", read(&self.time) as f64 / 1e6);
        text.line("request_seconds_count", "", below);
        text.about("model_info", "gauge", "1 for the version that is served");
        text.line("model_info", &format!("version=\"{}\",kind=\"{}\"", model.version(), model.kind()), 1);
        let loaded = model.loaded().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        text.one(
            "model_loaded_timestamp_seconds",
            "gauge",
            "When the version was loaded, in seconds since 1970",
            loaded,
        );
        text.one("table_rows", "gauge", "Rows of the table", model.table_rows());
        text.one("model_changes_total", "counter", "Newer versions that were taken", read(&self.changes));
        text.one("model_failures_total", "counter", "Newer versions that could not be loaded", read(&self.failures));
        text.0
    }
}

/// Metrics as text; every name begins with `forebay_serve_`.
#[derive(Default)]
struct Text(String);

impl Text {
    fn about(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP forebay_serve_{name} {help}\n# TYPE forebay_serve_{name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.0, "forebay_serve_{name} {value}"),
            labels => writeln!(self.0, "forebay_serve_{name}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.about(name, kind, help);
        self.line(name, "", value);
    }
}
