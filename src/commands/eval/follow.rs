//! `forebay eval --follow`: evaluates the checkpoints of a run beside it.

use std::time::Duration;

use super::{Eval, Evaluated, Point};
use crate::Fault;
use crate::actors::{Domain, FaultKind};
use crate::logs::Logs;
use crate::pipelines::{CheckpointEvaluations, Context, EvaluatedCheckpoint};
use crate::stop::Stop;
use crate::{exit, out};

/// Time between two looks for a newer checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time between two looks at whether the user asked to stop.
const LOOK_AT_STOP: Duration = Duration::from_millis(50);

impl Eval {
    pub(super) fn follow(&self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        let stop = Stop::listen_and_say(logs.log_format, "evaluates no more", exit::DONE)?;
        let [data] = self.data.as_slice() else {
            return Err(Fault::user("--follow evaluates on one set of rows: name one --data"));
        };
        let mut evaluations = CheckpointEvaluations::open(&self.model, data.into(), context)?;
        if let Some(patience) = self.patience {
            evaluations = evaluations.with_patience(patience, self.min_delta);
        }
        if let Some(best) = &self.best {
            evaluations = evaluations.keep_best_at(best)?;
        }
        stop.has_begun();
        let ended = self.evaluate_until(&mut evaluations, data, &stop, logs);
        // After every end, the best model is saved if possible.
        let saved = evaluations.save_best();
        ended.and(saved)
    }

    /// Evaluates until the user asks to stop, or there are enough evaluations.
    fn evaluate_until(
        &self,
        evaluations: &mut CheckpointEvaluations,
        data: &str,
        stop: &Stop,
        logs: &Logs,
    ) -> Result<(), Fault> {
        let (mut last, mut said_that_it_waits) = (None, false);
        // `--best` needs the evaluations even if the reader of the pipe has ended.
        while !stop.asked() && (self.best.is_some() || out::is_read()) {
            let evaluated = match evaluations.next(|job| self.adapt(job), || stop.asked()) {
                Err(fault) if fault.kind == FaultKind::Stopped => break,
                evaluated => evaluated?,
            };
            match evaluated {
                Some(evaluated) => {
                    self.tell(data, &evaluated, logs)?;
                    (last, said_that_it_waits) = (Some(evaluated.number), false);
                    match evaluated.not_saved {
                        // A disk may have room again.
                        Some(fault) if fault.domain == Domain::External => tracing::warn!("{fault}; it is tried again"),
                        Some(fault) => return Err(fault),
                        None => {}
                    }
                    if evaluated.is_enough {
                        return Ok(());
                    }
                }
                None => {
                    if !std::mem::replace(&mut said_that_it_waits, true) {
                        self.tell_that_it_waits(last);
                    }
                    wait(stop);
                }
            }
        }
        Ok(())
    }

    /// Says that the command waits for a checkpoint after `last`. Checkpoints do not tell whether their run has ended.
    fn tell_that_it_waits(&self, last: Option<u64>) {
        match last {
            None => tracing::info!("waiting for checkpoints in {}", self.model),
            Some(last) => {
                tracing::info!(
                    "waiting for a checkpoint after {last}; if the run has ended, end this by Ctrl-C or SIGTERM"
                );
            }
        }
    }

    /// Prints an evaluation.
    fn tell(&self, path: &str, evaluated: &EvaluatedCheckpoint, logs: &Logs) -> Result<(), Fault> {
        let EvaluatedCheckpoint { number, point, evaluation, metric, is_best, is_enough, .. } = evaluated;
        if self.json || logs.is_json() {
            let (trained_rows, trained_epochs) = (point.rows, point.epochs);
            let at = Point { checkpoint: *number, trained_rows, trained_epochs, is_best: *is_best };
            out::print(serde_json::json!(Evaluated { path, checkpoint: Some(at), evaluation }))?;
        } else {
            let best = if *is_best { ", the best so far" } else { "" };
            out::print(format_args!("checkpoint {number}, {point}{best}"))?;
            evaluation.left_out_lines().try_for_each(|line| out::print(format_args!("checkpoint {number}: {line}")))?;
        }
        if let (true, Some(patience)) = (is_enough, self.patience) {
            let last = if patience == 1 { "evaluation".to_owned() } else { format!("{patience} evaluations") };
            tracing::info!("the {metric} did not improve in the last {last}: evaluates no more");
        }
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "the main thread may sleep: no stage runs on it")]
fn wait(stop: &Stop) {
    for _ in 0..LOOK_EVERY.as_millis() / LOOK_AT_STOP.as_millis() {
        if stop.asked() {
            return;
        }
        std::thread::sleep(LOOK_AT_STOP);
    }
}
