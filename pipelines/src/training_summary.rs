//! The rows, steps and epochs that a run trained on, and how it ended. The manifest of a model has it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_batches::ColumnType;
use forebay_connectors::Format;
use forebay_job::{Job, RunEnd};
use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointManifest;
use crate::cluster::RunStatus;
use crate::progress::Snapshot;
use crate::source_progress::SourceProgress;

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

    /// The summary of a finished run of several processes.
    pub(crate) fn of_run(job: &Job, status: &RunStatus, steps_before: u64) -> Self {
        let complete = status.data.is_some() && status.windows_done == status.windows_total;
        let (epochs, ended) = match complete {
            true => (job.data.epochs as u64, RunEnd::Complete),
            false => (u64::from(status.first_open.0), RunEnd::Drained),
        };
        let steps = steps_before + status.counts.batches / job.in_step().max(1) as u64;
        Self::new(status.counts.trained, steps, epochs, ended)
    }

    /// The summary of a run up to a checkpoint.
    pub(crate) fn at_checkpoint(manifest: &CheckpointManifest) -> Self {
        let position = &manifest.position;
        let (rows, epochs) = (manifest.rows_trained(), position.whole_epochs());
        let summary = Self::new(rows, position.steps, epochs, RunEnd::StoppedEarly);
        let (types, lists) = (manifest.types.clone(), manifest.lists.clone());
        Self { run: Some(position.run).filter(|run| *run != 0), types, lists, ..summary }
    }

    /// A summary without the fields that only the source knows.
    fn new(rows: u64, steps: u64, epochs: u64, ended: RunEnd) -> Self {
        Self { rows, steps, epochs, ended, run: None, format: None, types: BTreeMap::new(), lists: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use forebay_connectors::DataPlan;

    use super::*;
    use crate::checkpoint::{TrainPosition, TrainedBatches};

    #[test]
    fn the_types_of_a_checkpoint_are_those_of_its_manifest() {
        let mut manifest = CheckpointManifest::new(1, Job::default(), TrainPosition::default(), Vec::new(), Vec::new());
        manifest.types = BTreeMap::from([("items".to_owned(), ColumnType::Integer)]);
        manifest.lists = BTreeSet::from(["items".to_owned()]);
        let summary = TrainingSummary::at_checkpoint(&manifest);
        assert_eq!((summary.types, summary.lists), (manifest.types, manifest.lists));
    }

    #[test]
    fn the_epochs_of_a_checkpoint_are_those_that_are_done() {
        let epochs = |windows: u64, done: &[(u32, u64)]| {
            let done = done.iter().map(|&(epoch, end)| (epoch, std::iter::once(0..end).collect())).collect();
            let batches = TrainedBatches::of_windows(done, Default::default());
            let data = Some(DataPlan { epochs: 9, rows: 0, windows, fingerprint: 0 });
            let position = TrainPosition { batches, data, run: 9, ..TrainPosition::default() };
            let manifest = CheckpointManifest::new(1, Job::default(), position, Vec::new(), Vec::new());
            let summary = TrainingSummary::at_checkpoint(&manifest);
            assert_eq!(summary.run, Some(9));
            summary.epochs
        };
        // Several processes: windows end one by one.
        assert_eq!(epochs(4, &[(0, 4), (1, 4), (2, 3)]), 2);
        // One process: all of an epoch is done when the next begins.
        assert_eq!(epochs(4, &[(0, u64::MAX), (1, u64::MAX), (2, 1)]), 2);
        assert_eq!(epochs(0, &[(0, u64::MAX), (1, 7)]), 1);
        assert_eq!(epochs(0, &[]), 0);
        assert_eq!(epochs(4, &[(1, 4)]), 0);
    }
}
