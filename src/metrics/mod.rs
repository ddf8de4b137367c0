//! Metrics in the text format of OpenMetrics, which Prometheus reads.

mod carried;
mod run;
mod serve;

use std::fmt::Error;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use self::carried::CarriedCounters;
pub(crate) use self::run::RunMetrics;
pub(crate) use self::serve::ServeMetrics;

/// The content type of the format.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Names and values of labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The labels of a value, and the value.
type Labelled<'a> = (Labels<'a>, f64);

/// All metrics of `registries`.
fn text(registries: &[&Registry]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = registries
        .iter()
        .try_for_each(|registry| encode_registry(&mut text, registry))
        .and_then(|()| encode_eof(&mut text));
    text
}

/// Writes one metric: a value for each set of labels, or one value without labels.
fn write<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit, kind): (&str, &str, Option<Unit>, MetricType),
    values: impl IntoIterator<Item = Labelled<'a>>,
) -> Result<(), Error> {
    let mut values = values.into_iter().peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (labels, value) in values {
        if labels.is_empty() {
            return sample(kind, value, metric);
        }
        sample(kind, value, metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn sample(kind: MetricType, value: f64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(value).encode(encoder),
    }
}

const fn counter<'a>(name: &'a str, help: &'a str, unit: Option<Unit>) -> (&'a str, &'a str, Option<Unit>, MetricType) {
    (name, help, unit, MetricType::Counter)
}

const fn gauge<'a>(name: &'a str, help: &'a str, unit: Option<Unit>) -> (&'a str, &'a str, Option<Unit>, MetricType) {
    (name, help, unit, MetricType::Gauge)
}

fn one<'a>(value: impl Into<Option<f64>>) -> impl Iterator<Item = Labelled<'a>> {
    value.into().into_iter().map(|value| (Vec::new(), value))
}
