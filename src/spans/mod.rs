//! `--spans N`: the work of the stages on the batches of one window of N, as OpenTelemetry spans, sent by OTLP over gRPC.
//!
//! The slices of [`trace.json`](crate::report) are the source: an [`Observer`] gets the same ones while the run goes on. It puts the slices
//! into a queue and never waits: slices that do not fit are counted and left out. A thread makes spans of the slices (`convert.rs`, with
//! the ids of `names.rs`) and sends them (`receiver.rs`).

mod convert;
mod names;
mod receiver;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use opentelemetry_sdk::trace::SpanData;

use crate::Fault;
use crate::actors::{BatchName, Observed, Observer};

use convert::Converter;
pub(crate) use names::{TRACEPARENT, TraceNames, new_traceparent};
use receiver::Receiver;
pub(crate) use receiver::SpanService;

/// Slices that wait for the thread.
const QUEUE: usize = 8192;

/// Most spans of a request, and the longest time that a span waits for others: the defaults of OTEL_BSP_MAX_EXPORT_BATCH_SIZE, and a
/// fifth of OTEL_BSP_SCHEDULE_DELAY.
const REQUEST: usize = 512;
const DELAY: Duration = Duration::from_secs(1);

/// How long the end of a run waits for the spans that are not sent.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Sends spans until it is dropped. A drop sends the rest, for at most three seconds, and says how much was lost.
pub(crate) struct Spans {
    shared: Arc<Shared>,
    /// Closed when the thread has sent everything.
    done: Queue<()>,
}

/// Takes slices.
struct Shared {
    /// `None`: the run is over.
    queue: RwLock<Option<SyncSender<Observed>>>,
    /// One in this many windows is observed.
    windows: NonZeroU64,
    /// The run is over: requests end soon.
    ending: AtomicBool,
    /// Spans that were sent, and slices and spans that were not.
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Shared {
    fn takes(&self, name: BatchName) -> bool {
        name.window % self.windows == 0
    }
}

impl Observer for Shared {
    fn worked(&self, work: Observed) {
        if !self.takes(work.name) {
            return;
        }
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        if queue.as_ref().is_some_and(|queue| queue.try_send(work).is_err()) {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}

impl Spans {
    /// Starts the thread. It sends the spans of one in `windows` windows.
    ///
    /// # Errors
    /// User: a variable `OTEL_*` or `TRACEPARENT` is wrong, or spans would travel to another machine in the clear. External: the thread
    /// cannot be started. A missing receiver is no error.
    pub(crate) fn start(windows: NonZeroU64, names: TraceNames, service: &SpanService) -> Result<Self, Fault> {
        let receiver = Receiver::new(service)?;
        let (sender, queue) = sync_channel(QUEUE);
        let shared = Arc::new(Shared {
            queue: RwLock::new(Some(sender)),
            windows,
            ending: false.into(),
            sent: 0.into(),
            lost: 0.into(),
        });
        let (of_thread, (alive, done)) = (Arc::clone(&shared), sync_channel(1));
        let thread = std::thread::Builder::new().name("spans".into());
        thread
            .spawn(move || {
                send(&of_thread, &queue, Converter::new(names), &receiver);
                drop(alive);
            })
            .map_err(|e| Fault::no_thread("the thread `spans`", e))?;
        Ok(Self { shared, done })
    }

    /// The observer that a training reports to.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.shared) as Arc<dyn Observer>
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.shared.ending.store(true, Relaxed);
        *self.shared.queue.write().unwrap_or_else(PoisonError::into_inner) = None;
        let is_done = self.done.recv_timeout(LAST_SPANS) == Err(RecvTimeoutError::Disconnected);
        let (sent, lost) = (self.shared.sent.load(Relaxed), self.shared.lost.load(Relaxed));
        if !is_done {
            tracing::warn!(sent, lost, "{sent} spans were sent; {lost} and those of the end of the run were not");
        } else if lost > 0 {
            tracing::warn!(sent, lost, "{sent} spans were sent, {lost} were not: the run did not wait for them");
        } else {
            tracing::info!(sent, "{sent} spans were sent");
        }
    }
}

/// Makes spans of the slices in `queue`, and sends them until the run is over and all are sent.
fn send(shared: &Shared, queue: &Queue<Observed>, mut converter: Converter, receiver: &Receiver) {
    let mut spans = Vec::new();
    let mut said = false;
    let mut due = Instant::now() + DELAY;
    loop {
        let next = queue.recv_timeout(due.saturating_duration_since(Instant::now()));
        let over = match next {
            Ok(work) => {
                converter.spans(work, &mut spans);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                converter.rest(&mut spans);
                true
            }
        };
        let is_due = over || Instant::now() >= due;
        while spans.len() >= REQUEST || (is_due && !spans.is_empty()) {
            let request: Vec<SpanData> = spans.drain(..spans.len().min(REQUEST)).collect();
            let count = request.len() as u64;
            let longest = shared.ending.load(Relaxed).then_some(LAST_SPANS / 2);
            match receiver.send(request, longest) {
                Ok(()) => _ = shared.sent.fetch_add(count, Relaxed),
                Err(why) => {
                    shared.lost.fetch_add(count, Relaxed);
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("spans are lost, the run goes on: {why}");
                    }
                }
            }
        }
        if is_due {
            due = Instant::now() + DELAY;
        }
        if over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::{Doing, Lineage, TrackSlice};

    fn work(window: u64) -> Observed {
        let what = Doing::Batch { lineage: Lineage::default(), rows: 1, name: None };
        let work = TrackSlice { began: Duration::from_secs(1), took: Duration::from_secs(1), what };
        let name = BatchName { epoch: 0, window, index: Some(0) };
        Observed { stage: "train".into(), replica: 0, is_source: false, name, work, waits: vec![], made: vec![] }
    }

    #[test]
    fn one_window_of_n_is_taken_and_what_does_not_fit_is_counted() {
        let (sender, queue) = sync_channel(2);
        let shared = Shared {
            queue: RwLock::new(Some(sender)),
            windows: NonZeroU64::new(4).unwrap(),
            ending: false.into(),
            sent: 0.into(),
            lost: 0.into(),
        };
        (0..16).for_each(|window| shared.worked(work(window)));
        assert_eq!(queue.try_iter().map(|work| work.name.window).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(shared.lost.load(Relaxed), 2, "windows 8 and 12");
    }
}
