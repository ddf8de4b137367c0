//! The results of a training that was drained to a checkpoint: the report needs them, and there is no model.

use std::time::Duration;

use forebay_actors::{Report, Track, Verdict};
use forebay_job::{Job, RunEnd};
use forebay_ps::GroupStats;
use futures::executor::block_on;

use super::resources::Resources;
use super::run_report::RunReport;
use crate::checkpoint::CheckpointManifest;
use crate::checkpointer::drained_to::{DrainedTo, LastOfDrained};
use crate::cluster::meters::LastMeters;
use crate::cluster::{ClusterSession, ProcessTimeline, RunStatus};
use crate::metrics::evaluation_points::EvaluationHistory;
use crate::metrics::progress::Snapshot;
use crate::metrics::slots_seen::SlotReport;
use crate::metrics::training_summary::TrainingSummary;
use crate::order::look_ahead::LookAheadReport;

/// The ps may take this long to report the counts of their tables.
const MOST_FOR_TABLES: Duration = Duration::from_secs(2);

/// A training that was drained to a checkpoint.
#[derive(Clone, Debug)]
pub struct DrainedTraining {
    /// The job.
    pub job: Job,
    /// Meters of every stage and link, and what limited the run. In a cluster, the meters of other processes are the last that they sent.
    pub report: RunReport,
    /// The timeline of this process.
    pub timeline: ProcessTimeline,
    /// Rows, steps and epochs that the checkpoint has, in the trainer that made it.
    pub training: TrainingSummary,
    /// Rows, steps, running logloss and AUC at the end: rows that came after the cut of the checkpoint included.
    pub progress: Snapshot,
    /// The largest staleness.
    pub staleness_observed: u64,
    /// What look-ahead has done; `None` in a job without.
    pub look_ahead: Option<LookAheadReport>,
    /// The evaluations during the training; `None` in a job without.
    pub evaluations: Option<EvaluationHistory>,
    /// In a cluster, the status of the run before it ended.
    pub status: Option<RunStatus>,
    /// The counts of each table; empty if a shard did not answer.
    pub tables: Vec<GroupStats>,
    /// The counts of the slots in the rows of this process; `None` with several trainers.
    pub slots: Option<Vec<SlotReport>>,
    /// The checkpoint; `None` in a trainer that did not make it.
    pub drained_to: Option<DrainedTo>,
}

impl Resources {
    /// The results of this drained run. `last`: its last checkpoint, in the trainer that made it. Waits up to [`MOST_FOR_TABLES`] for the
    /// ps.
    pub(crate) fn drained(
        &self,
        report: Report,
        tracks: Vec<Track>,
        meters: LastMeters,
        last: Option<&LastOfDrained>,
    ) -> DrainedTraining {
        let LastMeters { others, offset, .. } = meters;
        let tables = self.tables_now();
        // A shard that has just answered answers again.
        let asks = self.job.placement.trainers <= 1 && !tables.is_empty();
        let slots = self.progress.slots().filter(|_| asks);
        DrainedTraining {
            job: self.job.clone(),
            report: self.run_report(Report { verdict: Verdict::Drained, ..report }, others),
            timeline: self.timeline(offset.corrected_tracks(tracks)),
            training: self.summary_up_to(last.map(|last| &last.manifest)),
            progress: self.progress.snapshot(),
            staleness_observed: self.staleness.observed(),
            look_ahead: self.look_ahead.as_ref().map(|look_ahead| look_ahead.report()),
            evaluations: self.evaluations.as_ref().map(|evaluations| evaluations.history()),
            status: self.session.as_ref().map(ClusterSession::status),
            slots: slots.and_then(|slots| slots.report(&self.job.columns, &self.table).ok()),
            tables,
            drained_to: last.map(LastOfDrained::drained_to),
        }
    }

    pub(crate) fn timeline(&self, tracks: Vec<Track>) -> ProcessTimeline {
        ProcessTimeline { process: self.process_name(), tracks }
    }

    /// The summary, as in the manifest of the model of a drained run.
    fn summary_up_to(&self, checkpoint: Option<&CheckpointManifest>) -> TrainingSummary {
        let summary = TrainingSummary { ended: RunEnd::Drained, ..self.summary() };
        let Some(manifest) = checkpoint else { return summary };
        let TrainingSummary { rows, steps, epochs, .. } = manifest.summary();
        TrainingSummary { rows, steps, epochs, ..summary }
    }

    fn tables_now(&self) -> Vec<GroupStats> {
        let stats = self.table.stats();
        let stats = match &self.session {
            None => block_on(stats).ok(),
            Some(session) => session.io.block_on(async {
                let answered = tokio::time::timeout(MOST_FOR_TABLES, stats).await;
                answered.ok().and_then(Result::ok)
            }),
        };
        stats.map(|stats| stats.all_groups(self.table.config().row_dim())).unwrap_or_default()
    }
}
