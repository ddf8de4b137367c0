//! The rows, steps and epochs that a run trained on, and how it ended. The manifest of a model has it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_batches::ColumnType;
use forebay_connectors::Format;
use forebay_job::{Job, RunEnd};
use serde::{Deserialize, Serialize};

use super::progress::Snapshot;
use crate::extension::source_progress::SourceProgress;

/// The summary of a training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingSummary {
    /// Rows trained on in all epochs together: a row counts once in each epoch.
    pub rows: u64,
    /// Steps of the dense optimizer, including the steps of the model at `train.from` if it has the state of its optimizers. A step that
    /// several trainers take together counts once.
    pub steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// Whether it trained on all rows.
    pub ended: RunEnd,
    /// The random number of the run, if this is of one of its checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// The format of the files that it read; `None` if it read none, or reader processes read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The types of the feature columns in its rows, by name; empty if it read none, or reader processes read them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, ColumnType>,
    /// The feature columns whose values were lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lists: BTreeSet<String>,
}

impl TrainingSummary {
    /// The summary of a run in one process. `own`: a program's own source made the rows, in as many passes as it likes.
    pub(crate) fn alone(job: &Job, progress: &Snapshot, source: &SourceProgress, own: bool) -> Self {
        let complete = source.reached_end();
        let (epochs, ended) = match complete {
            true if own => (u64::from(source.epoch()) + 1, RunEnd::Complete),
            true => (job.data.epochs as u64, RunEnd::Complete),
            false => (u64::from(source.epoch()), RunEnd::Drained),
        };
        Self::new(progress.rows, progress.steps, epochs, ended)
    }

    /// A summary without the fields that only the source knows.
    pub(crate) fn new(rows: u64, steps: u64, epochs: u64, ended: RunEnd) -> Self {
        Self { rows, steps, epochs, ended, run: None, format: None, types: BTreeMap::new(), lists: BTreeSet::new() }
    }
}
