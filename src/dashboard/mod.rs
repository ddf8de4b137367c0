//! `--dashboard`: a server that shows a training while it goes on, as a page, as JSON and as metrics for Prometheus.
//!
//! The thread that follows the run makes a view of the run when a request waits for one. A run without requests makes no views.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Fault;
use crate::actors::{IoRuntime, Report};
use crate::logs::Format;
use crate::metrics::{CarriedCounters, OPEN_METRICS, RunMetrics};
use crate::net::{Health, HttpAnswer, HttpLimits, HttpRequest, HttpServer, HttpService, Security};
use crate::pipelines::{FailedTraining, RunningTraining};
use crate::report::{History, live_page, running_contents};
use crate::usage::Usage;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A view up to this old is shown again: several viewers cost as much as one.
const FRESH: Duration = Duration::from_millis(500);

/// A request waits this long for a new view, then gets the last one.
const MAKING: Duration = Duration::from_secs(2);

/// A page that has asked within this time counts as open, and the end of the run waits until it has the last view.
const WATCHED: Duration = Duration::from_secs(3);

/// The longest that the end of the run waits for an open page.
const LAST_VIEW: Duration = Duration::from_millis(1500);

/// The server. A drop closes it.
pub(crate) struct Dashboard {
    shared: Arc<Shared>,
    /// The server serves until this is dropped.
    _server: HttpServer,
    /// Unix seconds. A page that finds another number reloads itself, because another run serves it.
    started: f64,
    counters: Mutex<CarriedCounters>,
}

struct Shared {
    views: watch::Sender<Arc<View>>,
    /// A request waits for a new view.
    asked: AtomicBool,
    /// When a page asked last, and whether it has the last view of the run.
    page: Mutex<Option<(Instant, bool)>>,
}

/// Metrics without a metric: with an empty answer Prometheus would take the server to be down.
const NO_METRICS: &[u8] = b"# EOF\n";

/// The run at one time.
struct View {
    json: Bytes,
    metrics: Bytes,
    /// `None`: there is nothing to see yet.
    made: Option<Instant>,
    /// The run is over: no other view follows.
    is_last: bool,
}

impl Default for View {
    fn default() -> Self {
        Self { json: Bytes::new(), metrics: Bytes::from_static(NO_METRICS), made: None, is_last: false }
    }
}

impl Dashboard {
    /// Listens at `listen` and says so.
    ///
    /// # Errors
    /// User: the address cannot be listened at, or other machines could reach it and `security` does not protect it.
    pub(crate) fn start(listen: SocketAddr, security: &Security, format: Format) -> Result<Self, Fault> {
        // On a loopback address the page needs neither a token nor TLS.
        let open = Security::none();
        let security = if listen.ip().is_loopback() { &open } else { security };
        let shared =
            Arc::new(Shared { views: watch::channel(Arc::default()).0, asked: false.into(), page: Mutex::default() });
        let handler = Arc::clone(&shared);
        let answer = Arc::new(move |request| handler.clone().answer(request));
        let io = IoRuntime::new("dashboard", 1);
        // The page has settings and paths, and on a loopback address no token.
        let limits = HttpLimits { body_bytes: 0, local_names: true, ..HttpLimits::default() };
        let health = Health::new();
        health.ready();
        let service = HttpService { handler: answer, refusal, flight: Vec::new() };
        let server = HttpServer::start(&io, listen, security, &limits, health, service)?;
        let scheme = if listen.ip().is_loopback() { "http" } else { "https" };
        format.note(format_args!("dashboard at {scheme}://{}", server.address()));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Ok(Self { shared, _server: server, started, counters: Mutex::default() })
    }

    /// The run, or another attempt, begins: its counters continue from the counters of earlier attempts.
    pub(crate) fn begins(&self) {
        self.counters().next_attempt();
    }

    /// The attempt is over, and another one follows. Its last counts may be newer than the last view.
    pub(crate) fn rolled_back(&self, failed: &FailedTraining) {
        self.counters().add_to(&RunMetrics::of_failed(failed).text());
    }

    fn counters(&self) -> MutexGuard<'_, CarriedCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the current state of the run, if a request waits for a new view.
    pub(crate) fn follow(&self, running: &RunningTraining, before: Option<Usage>, history: &History) {
        if self.shared.asked.swap(false, Ordering::SeqCst) {
            let contents = running_contents(running, before, history);
            self.show(contents, &RunMetrics::of(running), false);
        }
    }

    /// Shows that the run has failed, if it was shown before.
    pub(crate) fn failed(&self, report: &Report) {
        let view = Arc::clone(&self.shared.views.borrow());
        let Ok(mut contents) = serde_json::from_slice::<Value>(&view.json) else { return };
        contents["verdict"] = json!(report.verdict);
        self.send(contents, view.metrics.clone(), true);
    }

    /// Shows the run as `contents` and, for Prometheus, `metrics` say. `is_last`: no other view follows.
    pub(crate) fn show(&self, contents: Value, metrics: &RunMetrics, is_last: bool) {
        let metrics = self.counters().add_to(&metrics.text());
        self.send(contents, metrics.into(), is_last);
    }

    fn send(&self, mut contents: Value, metrics: Bytes, is_last: bool) {
        contents["live"] = json!({ "started": self.started, "over": is_last });
        let json = serde_json::to_vec(&contents).unwrap_or_default().into();
        let view = View { json, metrics, made: Some(Instant::now()), is_last };
        self.shared.views.send_replace(Arc::new(view));
    }
}

impl Drop for Dashboard {
    /// Waits a moment for the open pages, so that they show how the run ended.
    fn drop(&mut self) {
        if !self.shared.views.borrow().is_last {
            return;
        }
        let end = Instant::now() + LAST_VIEW;
        let waits = || matches!(self.shared.page(), Some((asked, false)) if asked.elapsed() < WATCHED);
        while waits() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Shared {
    fn page(&self) -> Option<(Instant, bool)> {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(self: Arc<Self>, request: HttpRequest) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send>> {
        Box::pin(async move {
            let ok = |content_type, body: Bytes| HttpAnswer::new(200, content_type, body);
            match (request.method.as_str(), request.path.as_str()) {
                ("GET" | "HEAD", "/") => ok("text/html; charset=utf-8", live_page().into()),
                ("GET" | "HEAD", "/run.json") => {
                    let view = self.view().await;
                    let page = Some((Instant::now(), view.is_last));
                    *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
                    match view.made {
                        Some(_) => ok(JSON, view.json.clone()),
                        None => refusal(503, "the run has not begun"),
                    }
                }
                ("GET" | "HEAD", "/metrics") => {
                    let view = self.view().await;
                    ok(OPEN_METRICS, view.metrics.clone())
                }
                (_, "/" | "/run.json" | "/metrics") => refusal(405, "GET this path").allow("GET, HEAD"),
                _ => refusal(404, "unknown path: there are /, /run.json, /metrics and /healthz"),
            }
        })
    }

    /// A fresh view, or the last one if none is made in time.
    async fn view(&self) -> Arc<View> {
        let mut views = self.views.subscribe();
        let view = Arc::clone(&views.borrow_and_update());
        if view.is_last || view.made.is_some_and(|made| made.elapsed() < FRESH) {
            return view;
        }
        self.asked.store(true, Ordering::SeqCst);
        let _ = tokio::time::timeout(MAKING, views.changed()).await;
        Arc::clone(&views.borrow())
    }
}

fn refusal(status: u16, error: &str) -> HttpAnswer {
    HttpAnswer::new(status, TEXT, format!("{error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: the answer was empty, which is no exposition at all.
    #[test]
    fn metrics_of_a_run_that_has_not_begun_are_there_and_have_none() {
        assert_eq!(&View::default().metrics[..], b"# EOF\n");
    }
}
