//! Scores over Arrow Flight: record batches of rows come in on an exchange, and their scores go out in the same order.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Caller, FlightInfo, Handler, Incoming, Message, Outgoing, flight_info};
use serde::Serialize;
use tokio::sync::watch;

use super::request_rows::RequestRows;
use super::row_scorer::Scores;
use super::scoring_threads::ScoringThreads;
use crate::model::model_version::ModelVersion;

/// The path of the exchange.
const SCORE: &str = "score";

/// Called after each batch of rows with its scores, or with the fault that prevented them, and with the time that it took.
type Scored = dyn Fn(&Result<Scores, Fault>, Duration) + Send + Sync;

/// The exchange `score`. Each batch is one request: one version of the model scores it, and the metadata of the answer names this version.
/// An exchange has one request under way at a time; a client that wants more opens several exchanges.
pub struct ScoreExchange {
    /// Empty until the model is loaded.
    scoring: Arc<OnceLock<ScoringThreads>>,
    scored: Box<Scored>,
    /// True: no further request is taken.
    closing: watch::Receiver<bool>,
}

/// The metadata of an answer.
#[derive(Serialize)]
struct Answer {
    version: ModelVersion,
}

impl ScoreExchange {
    /// Answers with `scoring` once it is set, calls `scored` after each batch of rows, and ends all exchanges after the request that is
    /// under way when `closing` becomes true.
    pub fn new(
        scoring: Arc<OnceLock<ScoringThreads>>,
        closing: watch::Receiver<bool>,
        scored: impl Fn(&Result<Scores, Fault>, Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { scoring, scored: Box::new(scored), closing }
    }

    fn scoring(&self) -> Result<&ScoringThreads, Fault> {
        self.scoring.get().ok_or_else(|| Fault::external("the model is being loaded").retryable())
    }
}

#[async_trait]
impl Handler for ScoreExchange {
    fn name(&self) -> &'static str {
        SCORE
    }

    /// The server is in no run.
    fn takes_any_attempt(&self) -> bool {
        true
    }

    /// The columns that a batch of rows should have, with their types in training; the type is null if it is not known.
    async fn list(&self) -> Result<Vec<FlightInfo>, Fault> {
        let schema: Schema = self.scoring()?.model().schema();
        Ok(vec![flight_info(&[SCORE], &schema, Bytes::new(), None)?])
    }

    async fn exchange(
        &self,
        _: Caller,
        path: Vec<String>,
        mut incoming: Incoming,
        mut outgoing: Outgoing,
    ) -> Result<(), Fault> {
        if path.len() > 1 {
            return Err(Fault::user(format!("nothing is found at the path `{}`: there is `{SCORE}`", path.join("/"))));
        }
        let mut closing = self.closing.clone();
        loop {
            let message = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => {
                    return Err(Fault::external("this server stops").retryable());
                }
                message = incoming.next() => message?,
            };
            let Some(message) = message else { return Ok(()) };
            // A schema alone, or metadata, asks for nothing.
            let Some(batch) = message.batch else { continue };
            let start = Instant::now();
            let scored = self.scoring()?.score(RequestRows::Arrow(batch)).await;
            (self.scored)(&scored, start.elapsed());
            let scores = scored?;
            let metadata = serde_json::to_vec(&Answer { version: scores.version });
            let metadata = metadata.map_err(|e| Fault::internal("cannot write a version").because(e))?.into();
            outgoing.send(Message { batch: Some(scores.columns()?), metadata }).await?;
        }
    }
}
