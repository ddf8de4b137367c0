//! Turns slices into spans: each window of rows has a trace, and so has each batch that is made of its rows.
//!
//! The first span of the trace of a window is `window`, the time in which it was read. The first span of the trace of a batch is `batch`,
//! the time in which it was made; it links to the span that made it, in the trace of its window. Its children are a span for each stage,
//! and the children of these are a span for each wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::names::TraceNames;
use crate::actors::{BatchName, Doing, Observed, TrackSlice};

/// Makes spans.
pub(crate) struct Converter {
    names: TraceNames,
    scope: InstrumentationScope,
    /// Windows that are being read, by epoch and number, with their begin and their end so far. A source reads one after the other, except
    /// for a few that were leased anew.
    windows: BTreeMap<(u32, u64), (Duration, Duration)>,
}

/// Windows that are held open. If there are more, the first one is over.
const OPEN_WINDOWS: usize = 4;

impl Converter {
    pub(crate) fn new(names: TraceNames) -> Self {
        let scope = InstrumentationScope::builder("forebay").with_version(env!("CARGO_PKG_VERSION")).build();
        Self { names, scope, windows: BTreeMap::new() }
    }

    /// Adds the spans of the work on one batch to `out`.
    pub(crate) fn spans(&mut self, observed: Observed, out: &mut Vec<SpanData>) {
        let Observed { stage, replica, is_source, name, work, waits, made } = observed;
        let (began, ended) = (work.began, work.began + work.took);
        let (trace, first) = self.names.trace(name);
        let mut attributes = name_attributes(name);
        attributes.push(KeyValue::new("forebay.replica", replica as i64));
        if let Doing::Batch { lineage, rows, .. } = &work.what {
            attributes.push(KeyValue::new("forebay.rows", *rows as i64));
            attributes.push(KeyValue::new("forebay.split", i64::from(lineage.split)));
            attributes.push(KeyValue::new("forebay.split.row", lineage.row as i64));
        }
        let id = self.names.span();
        let span = self.span((trace, id, first), String::from(&*stage), (began, ended), attributes);
        let context = span.span_context.clone();
        // A source of batches gets its batches from another process.
        out.push(SpanData { parent_span_is_remote: is_source && name.index.is_some(), ..span });
        for TrackSlice { began, took, what } in waits {
            let Doing::Wait(what) = what else { continue };
            let wait = KeyValue::new("forebay.wait", what.clone());
            let ids = (trace, self.names.span(), id);
            out.push(self.span(ids, format!("wait: {what}"), (began, began + took), vec![wait]));
        }
        for (batch, sent) in made {
            let (trace, first) = self.names.trace(batch);
            let link = Link::new(context.clone(), vec![], 0);
            let mut span = self.span((trace, first, SpanId::INVALID), "batch", (began, sent), name_attributes(batch));
            span.links.links.push(link);
            out.push(span);
        }
        if is_source && name.index.is_none() {
            let window = self.windows.entry((name.epoch, name.window)).or_insert((began, ended));
            *window = (window.0.min(began), window.1.max(ended));
            while self.windows.len() > OPEN_WINDOWS {
                self.first_window(out);
            }
        }
    }

    /// Adds the spans of the windows that are still open.
    pub(crate) fn rest(&mut self, out: &mut Vec<SpanData>) {
        while !self.windows.is_empty() {
            self.first_window(out);
        }
    }

    fn first_window(&mut self, out: &mut Vec<SpanData>) {
        if let Some(((epoch, window), times)) = self.windows.pop_first() {
            let name = BatchName { epoch, window, index: None };
            let (trace, first) = self.names.trace(name);
            out.push(self.span((trace, first, SpanId::INVALID), "window", times, name_attributes(name)));
        }
    }

    fn span(
        &self,
        (trace, id, parent): (TraceId, SpanId, SpanId),
        name: impl Into<Cow<'static, str>>,
        (began, ended): (Duration, Duration),
        attributes: Vec<KeyValue>,
    ) -> SpanData {
        SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: UNIX_EPOCH + began,
            end_time: UNIX_EPOCH + ended,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// The id of a batch or a window, as attributes.
fn name_attributes(BatchName { epoch, window, index }: BatchName) -> Vec<KeyValue> {
    let mut attributes =
        vec![KeyValue::new("forebay.epoch", i64::from(epoch)), KeyValue::new("forebay.window", window as i64)];
    attributes.extend(index.map(|index| KeyValue::new("forebay.batch", i64::from(index))));
    attributes
}
