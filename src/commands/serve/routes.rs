//! The answers of the server, by path.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use serde_json::json;

use crate::Fault;
use crate::actors::Domain;
use crate::metrics::{OPEN_METRICS, ServeMetrics};
use crate::net::{HttpAnswer, HttpRequest};
use crate::pipelines::{RequestRows, Scores, ScoringThreads};

const JSON: &str = "application/json";

/// The paths of the server, and what it answers.
pub(super) struct Routes {
    folder: String,
    /// Empty until the model is loaded.
    scoring: Arc<OnceLock<ScoringThreads>>,
    metrics: Arc<ServeMetrics>,
}

/// An answer that says what is wrong.
pub(super) fn refusal(status: u16, error: &str) -> HttpAnswer {
    answer(status, &json!({ "error": error }))
}

fn answer(status: u16, value: &impl Serialize) -> HttpAnswer {
    match serde_json::to_vec(value) {
        Ok(body) => HttpAnswer::new(status, JSON, body),
        Err(_) => HttpAnswer::new(500, JSON, &b"{\"error\": \"no JSON\"}"[..]),
    }
}

impl Routes {
    pub(super) fn new(folder: &str, scoring: Arc<OnceLock<ScoringThreads>>, metrics: Arc<ServeMetrics>) -> Self {
        Self { folder: folder.to_owned(), scoring, metrics }
    }

    pub(super) fn answer(self: &Arc<Self>, request: HttpRequest) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send>> {
        let this = Arc::clone(self);
        Box::pin(async move {
            let Some(scoring) = this.scoring.get() else { return refusal(503, "the model is being loaded") };
            match (request.method.as_str(), request.path.as_str()) {
                ("POST", "/v1/score") => this.score(scoring, request).await,
                ("GET" | "HEAD", "/v1/model") => this.model(scoring),
                ("GET" | "HEAD", "/metrics") => this.metrics(scoring),
                (_, "/v1/score") => refusal(405, "POST rows to this path").allow("POST"),
                (_, "/v1/model" | "/metrics") => refusal(405, "GET this path").allow("GET, HEAD"),
                _ => {
                    refusal(404, "unknown path: there are POST /v1/score, GET /v1/model, GET /metrics and GET /healthz")
                }
            }
        })
    }

    async fn score(&self, scoring: &ScoringThreads, request: HttpRequest) -> HttpAnswer {
        let start = Instant::now();
        let scored = scoring.score(RequestRows::Json(request.body)).await;
        let answer = match &scored {
            Ok(scores) => answer(200, scores),
            Err(fault) => refusal(status(fault), &fault.to_string()),
        };
        count(&self.metrics, &scored, start.elapsed());
        answer
    }

    fn model(&self, scoring: &ScoringThreads) -> HttpAnswer {
        let model = scoring.model();
        let loaded = model.loaded().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        answer(
            200,
            &json!({
                "version": model.version(),
                "approximates": model.versions().approximates,
                "kind": model.kind(),
                "rows": model.table_rows(),
                "deltas": model.deltas(),
                "loaded": loaded,
                "folder": self.folder,
                "columns": model.columns().collect::<Vec<_>>(),
                "forebay": env!("CARGO_PKG_VERSION"),
            }),
        )
    }

    fn metrics(&self, scoring: &ScoringThreads) -> HttpAnswer {
        HttpAnswer::new(200, OPEN_METRICS, self.metrics.text(&scoring.model()))
    }
}

/// Counts a request for scores, over HTTP or Flight.
pub(super) fn count(metrics: &ServeMetrics, scored: &Result<Scores, Fault>, took: Duration) {
    let (rows, bad) = scored.as_ref().map_or((0, 0), |scores| (scores.rows(), scores.bad_rows.len()));
    let status = scored.as_ref().map_or_else(status, |_| 200);
    if let (500, Err(fault)) = (status, scored) {
        tracing::error!("a request could not be scored: {fault}");
    }
    metrics.scored(status, rows as u64, bad as u64, took);
}

fn status(fault: &Fault) -> u16 {
    match fault.domain {
        Domain::User => 400,
        Domain::External => 503,
        Domain::Internal => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_method_is_answered_with_the_right_one() {
        let answer = refusal(405, "POST rows to this path").allow("POST");
        assert_eq!((answer.status, answer.allow, answer.content_type), (405, Some("POST"), JSON));
        assert_eq!(&answer.body[..], br#"{"error":"POST rows to this path"}"#);
    }
}
