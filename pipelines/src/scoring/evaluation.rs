//! Scoring a trained model.

use std::time::Duration;

use forebay_actors::{Fault, FaultKind, Outcome, Report, Source, counted};
use forebay_batches::{ColumnType, warn_of_equal_labels};
use forebay_connectors::{Format, Rows};
use forebay_job::{Paths, SlotKind};

use crate::columns::trained_types::TrainedTypes;
use crate::extension::registry::{Read, read_own};
use crate::metrics::quality::Evaluation;
use crate::metrics::scored_rows::ScoredRows;
use crate::metrics::unknown_values::WarnedSlots;
use crate::model::Model;
use crate::sources;
use crate::training::wiring;
use crate::tuning::TuningThread;

/// Time between two looks of an evaluation: at its progress, or whether its run has ended.
const POLL: Duration = Duration::from_millis(5);

impl Model {
    /// Scores all rows at `paths`, and measures what `job.evaluation` says: one or several files, folders, globs or URLs. The file names
    /// give the format. The rows pass the custom stages of the job, except those that are for training only. Blocks until it is done.
    ///
    /// # Errors
    /// The first fault of the run. A user fault if nothing is at one of `paths`, a column is missing or has another type than in training,
    /// or there are no rows to evaluate; an external fault of the store.
    pub fn evaluate(&self, paths: impl Into<Paths>) -> Result<(Evaluation, Report), Fault> {
        self.evaluate_paths(&paths.into(), WarnedSlots::default(), None)
    }

    /// As [`evaluate`](Self::evaluate), but calls `show` with the rows that are scored, many times a second, on the caller's thread.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    pub fn evaluate_showing(
        &self,
        paths: impl Into<Paths>,
        mut show: impl FnMut(ScoredRows),
    ) -> Result<(Evaluation, Report), Fault> {
        self.evaluate_paths(&paths.into(), WarnedSlots::default(), Some(&mut show))
    }

    /// As [`evaluate_showing`](Self::evaluate_showing), but warns of no slot in `warned`.
    pub(crate) fn evaluate_paths(
        &self,
        paths: &Paths,
        warned: WarnedSlots,
        show: Option<&mut dyn FnMut(ScoredRows)>,
    ) -> Result<(Evaluation, Report), Fault> {
        let job = self.job_as_trained().for_evaluation();
        let read = sources::to_evaluate(&job, &self.context, paths)?;
        self.warn_of_other_types(read.format);
        let scored = self.score(read, warned, show)?;
        let columns = &self.job.columns;
        let all = if scored.0.labels.is_empty() { std::slice::from_ref(&scored.0) } else { &scored.0.labels };
        let measured = all.iter().map(|label| (label.rows, label.positive_rate));
        warn_of_equal_labels(&columns.label, columns.weight.is_some(), measured);
        Ok(scored)
    }

    /// CSV and JSON lines have no types: a column without a kind, which is text there, may be integers in other formats, with other keys
    /// and transforms. A model that does not know the types of its training cannot detect this.
    pub(crate) fn warn_of_other_types(&self, format: Option<Format>) {
        let trained = self.training.as_ref().and_then(|training| training.format);
        let (Some(trained), Some(format)) = (trained, format) else { return };
        if !trained.is_untyped() && format.is_untyped() {
            self.warn_of_digits(format);
        }
        let untyped = self.job.columns.without_kind();
        if self.types() == TrainedTypes::default()
            && trained.is_untyped() != format.is_untyped()
            && let Some(first) = untyped.first()
        {
            let without = if trained.is_untyped() { trained } else { format };
            tracing::warn!(
                "the model was trained on {trained}, and these rows are {format}: {without} has no types here, so integers in the {} columns \
                 without a kind or transform (`{first}`) are not read as in training; train with kinds that the job names",
                untyped.len()
            );
        }
    }

    /// A slot of the kind `hex` also takes integers, but text files may have these integers as decimal numbers.
    fn warn_of_digits(&self, format: Format) {
        let types = self.types().0;
        let hex = self.job.columns.slots.iter().filter(|slot| slot.kind == SlotKind::Hex);
        let trained_on = hex.filter(|slot| types.get(&slot.column) == Some(&ColumnType::Integer));
        let names: Vec<&str> = trained_on.map(|slot| slot.column.as_str()).collect();
        if let Some(first) = names.first() {
            let how = if format == Format::Csv { "`12`" } else { "`\"12\"`" };
            tracing::warn!(
                "{} of the kind hex (such as `{first}`) had integers in the training rows; these rows are {format}, where {how} is read \
                 as hexadecimal digits, so as the integer 18: if their numbers are decimal, write the rows as Parquet",
                counted(names.len(), "slot")
            );
        }
    }

    /// Scores all rows of any source. Blocks until it is done.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate), and the faults of the source.
    pub fn evaluate_source<S: Source<Out = Rows>>(
        &self,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Result<(Evaluation, Report), Fault> {
        self.score(read_own(make), WarnedSlots::default(), None)
    }

    #[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
    fn score(
        &self,
        read: Read,
        warned: WarnedSlots,
        show: Option<&mut dyn FnMut(ScoredRows)>,
    ) -> Result<(Evaluation, Report), Fault> {
        let source = read.progress.clone();
        let running = wiring::evaluation(self, read, warned)?.start()?;
        let tuning = TuningThread::of(&self.job, running.control());
        if let Some(show) = show {
            while !running.ended() {
                show(ScoredRows::of(&running.ledger(), source.total_rows()));
                std::thread::sleep(POLL);
            }
        }
        let outcome = running.wait();
        drop(tuning);
        Self::scored(outcome)
    }

    /// As [`evaluate`](Self::evaluate), but stops with a fault once `stopped` returns true, and warns of no slot in `warned`.
    #[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
    pub(crate) fn evaluate_unless(
        &self,
        paths: Paths,
        warned: &WarnedSlots,
        stopped: impl Fn() -> bool,
    ) -> Result<Evaluation, Fault> {
        let job = self.job_as_trained().for_evaluation();
        let read = sources::to_evaluate(&job, &self.context, &paths)?;
        let running = wiring::evaluation(self, read, warned.clone())?.start()?;
        while !running.ended() {
            if stopped() {
                running.kill(Fault::external("the run ended before its evaluation").kind(FaultKind::Stopped));
            }
            std::thread::sleep(POLL);
        }
        Self::scored(running.wait()).map(|(evaluation, _)| evaluation)
    }

    fn scored(outcome: Outcome) -> Result<(Evaluation, Report), Fault> {
        outcome.result?;
        let evaluation: Option<Evaluation> = outcome.results.take("evaluate");
        let evaluation = evaluation.ok_or_else(|| Fault::internal("the evaluation ended without a result"))?;
        if let Some(line) = outcome.report.ledger.unwritten_line() {
            tracing::warn!("of the rows of the evaluation, {line}");
        }
        let rejected = outcome.report.ledger.rejected.clone();
        Ok((Evaluation { rejected, ..evaluation }, outcome.report))
    }
}
