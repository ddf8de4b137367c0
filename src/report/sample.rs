//! A sample of a run: its progress, and meters that only grow.

use crate::pipelines::{RunReport, Snapshot};

/// The state of a run at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since the run began.
    pub(crate) seconds: f64,
    /// Rows that this process trained on.
    pub(crate) rows: u64,
    /// Rows that all trainers trained on.
    pub(crate) all_rows: u64,
    /// Bytes that the source passed on.
    pub(crate) bytes: u64,
    /// Bytes that the source fetched from its store.
    pub(crate) store_bytes: u64,
    pub(crate) logloss: f64,
    pub(crate) auc: Option<f64>,
    pub(crate) stages: Vec<StageTimes>,
    /// Rows of the table, in all shards.
    pub(crate) table_rows: u64,
    /// Where a link leads to, and the batches in it.
    pub(crate) links: Vec<(String, u64)>,
}

/// Seconds since the run began, summed over the replicas.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StageTimes {
    pub(crate) name: String,
    pub(crate) replicas: usize,
    pub(crate) busy: f64,
    pub(crate) waiting: f64,
    pub(crate) starved: f64,
    pub(crate) blocked: f64,
    /// The sum of these and of idle time.
    pub(crate) wall: f64,
}

impl Sample {
    pub(crate) fn of(progress: &Snapshot, report: &RunReport) -> Self {
        let stages = report.stages.iter().map(|stage| StageTimes {
            name: stage.name.clone(),
            replicas: stage.replicas,
            busy: stage.busy.as_secs_f64(),
            waiting: stage.waiting.as_secs_f64(),
            starved: stage.starved.as_secs_f64(),
            blocked: stage.blocked.as_secs_f64(),
            wall: stage.wall.as_secs_f64(),
        });
        Self {
            seconds: report.wall.as_secs_f64(),
            rows: progress.rows,
            all_rows: report.all_trainers.rows,
            bytes: report.stages.first().map_or(0, |source| source.bytes_out),
            store_bytes: report.stages.first().map_or(0, |source| source.bytes_fetched),
            logloss: progress.logloss,
            auc: progress.auc,
            stages: stages.collect(),
            table_rows: report.services.iter().filter_map(|shard| shard.rows_held).sum(),
            links: report.links.iter().map(|link| (link.to.clone(), link.depth)).collect(),
        }
    }
}
