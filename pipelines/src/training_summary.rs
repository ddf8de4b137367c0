//! What a run trained, and how it ended: the manifest of a model has it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_connectors::Format;
use forebay_job::{Job, RunEnd};
use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointManifest;
use crate::cluster::RunStatus;
use crate::column_type::ColumnType;
use crate::progress::Snapshot;
use crate::source_progress::SourceProgress;

/// What a run trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingSummary {
    /// Rows trained on, counted anew in each epoch.
    pub rows: u64,
    /// Steps of the dense optimizer, those of the model at `train.from` included if it has the state of its optimizers. A step
    /// that several trainers take together counts once.
    pub steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// Whether it trained on all rows.
    pub ended: RunEnd,
    /// The format of the files that it read; `None` if it read none, or readers of their own did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The types of the feature columns in its rows, by name; empty if it read none, or readers of their own did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, ColumnType>,
    /// Those of them whose values were lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lists: BTreeSet<String>,
}

impl TrainingSummary {
    /// Of a run in one process.
    pub(crate) fn alone(job: &Job, progress: &Snapshot, source: &SourceProgress) -> Self {
        let complete = source.reached_end();
        let (epochs, ended) = match complete {
            true => (job.data.epochs as u64, RunEnd::Complete),
            false => (u64::from(source.epoch()), RunEnd::Drained),
        };
        Self::new(progress.rows, progress.steps, epochs, ended)
    }

    /// Of a run of several processes that is finished.
    pub(crate) fn of_run(job: &Job, status: &RunStatus, steps_before: u64) -> Self {
        let complete = status.data.is_some() && status.windows_done == status.windows_total;
        let (epochs, ended) = match complete {
            true => (job.data.epochs as u64, RunEnd::Complete),
            false => (u64::from(status.first_open.0), RunEnd::Drained),
        };
        let steps = steps_before + status.counts.batches / job.in_step().max(1) as u64;
        Self::new(status.counts.trained, steps, epochs, ended)
    }

    /// Of a run up to a checkpoint. The epochs are those whose windows are all done, if the source knows its windows.
    pub(crate) fn at_checkpoint(manifest: &CheckpointManifest) -> Self {
        let position = &manifest.position;
        let windows = position.data.as_ref().map_or(0, |data| data.windows);
        let is_done =
            |epoch: &u32| matches!(position.batches.windows_of(*epoch), [done] if windows > 0 && *done == (0..windows));
        let epochs = (0..u32::MAX).take_while(is_done).count() as u64;
        Self::new(manifest.rows_trained(), position.steps, epochs, RunEnd::StoppedEarly)
    }

    /// Without what the source says.
    fn new(rows: u64, steps: u64, epochs: u64, ended: RunEnd) -> Self {
        Self { rows, steps, epochs, ended, format: None, types: BTreeMap::new(), lists: BTreeSet::new() }
    }
}
