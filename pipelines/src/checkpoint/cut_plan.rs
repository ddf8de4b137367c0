//! Which checkpoint the next cut is for.

use forebay_ps::SnapshotKind;

/// The next cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutPlan {
    /// The number of the checkpoint.
    pub(crate) number: u64,
    /// Random, new for each try to write a checkpoint; not the attempt of the run.
    pub(crate) try_id: u64,
    /// All rows of the tables, or those that changed.
    pub(crate) kind: SnapshotKind,
}
