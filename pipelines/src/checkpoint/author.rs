//! The author of checkpoints in a folder: one start of a run. Two starts may continue from the same checkpoint, as the same run; only one
//! of them may write.

use super::manifest::CheckpointManifest;

/// One start of a run. In a cluster this is a start of the coordinator, which all its attempts share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Author {
    /// The random number of the run.
    pub(crate) run: u64,
    /// The random number of the start. 0: an earlier program, which gave starts no number.
    pub(crate) start: u64,
    /// The newest checkpoint that was there at the start, and the start that wrote it. (0, 0): none.
    pub(super) before: (u64, u64),
}

impl Author {
    /// Whether the next checkpoint may follow `newest`: this start wrote `newest`, `newest` was there before this start, or the earlier
    /// start was still writing it when this start took its place.
    pub(super) fn may_follow(&self, newest: &CheckpointManifest) -> bool {
        let (number, start) = self.before;
        newest.number <= number || newest.start == self.start || newest.start == start
    }
}
