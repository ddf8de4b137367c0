//! Requests and replies of a cut: `coordinator.cut` of every trainer, `coordinator.lead_cut` of the first.

use serde::{Deserialize, Serialize};

use super::super::messages::MemberId;
use crate::checkpoint::{TrainedBatches, WindowLog};
use crate::model_folder::FileEntry;

/// What a trainer must do. `cut` is the random number of a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CutOrder {
    /// Train.
    #[default]
    GoOn,
    /// Look up no more batches, and report how many were. Only for trainers that take their steps together.
    Hold { cut: u64 },
    /// Look up no more batches, or with `after` no more than `after` since the process joined. When all are applied or kept, report what is
    /// done. The cut is for the checkpoint of this number.
    Stop { cut: u64, after: Option<u64>, checkpoint: u64 },
}

/// What a trainer reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CutReport {
    /// The answer to [`CutOrder::Hold`]: batches looked up since the process joined.
    Held { cut: u64, looked_up: u64 },
    /// The answer to [`CutOrder::Stop`]: all batches that were looked up are applied; kept gradients count as applied. Has the batches that
    /// are done in windows which the coordinator does not count as done, and the file with the kept gradients, if there is one.
    Stopped {
        cut: u64,
        done: Vec<WindowLog>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<FileEntry>,
    },
    /// This trainer cannot take part in the cut.
    Failed { cut: u64 },
}

/// `cut`: a trainer asks what to do. The reply, a [`CutOrder`], comes when there is another order than the one that it follows, or
/// after a while.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CutRequest {
    pub(crate) member: MemberId,
    pub(crate) follows: CutOrder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) report: Option<CutReport>,
}

/// `lead_cut`: the first trainer makes a cut.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeadCutRequest {
    pub(crate) member: MemberId,
    /// A random number.
    pub(crate) cut: u64,
    /// The number of the checkpoint.
    pub(crate) checkpoint: u64,
    pub(crate) step: LeadStep,
}

/// The steps of a cut, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeadStep {
    /// Stop all trainers. The reply comes when they have stopped, or after a while.
    Stop,
    /// The snapshots have begun, or cannot: all trainers go on.
    GoOn,
}

/// The reply to `lead_cut`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeadReply {
    /// Trainers are under way: ask again.
    Wait,
    /// All trainers have stopped, and these batches are trained on. By rank the files with the gradients that an exact order keeps.
    Stopped { batches: Box<TrainedBatches>, kept: Vec<FileEntry> },
    /// To [`LeadStep::GoOn`]: all trainers stood still until then.
    Whole,
    /// The cut is given up, and trainers may have gone on.
    GivenUp(String),
    /// There are no more cuts: the run has ended, or ends as its status will say.
    RunEnds,
}
