//! Who writes into a folder of checkpoints: a start of a run. Two starts that go on from one checkpoint are the same run, and only one of
//! them may write.

use super::manifest::CheckpointManifest;

/// One start of a run. In a cluster that is a start of its coordinator: all attempts have the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Author {
    /// The random number of the run.
    pub(super) run: u64,
    /// The random number of the start. 0: of a program that gave it none.
    pub(super) start: u64,
    /// The newest checkpoint that was there at the start, and the start that wrote it. (0, 0): none.
    pub(super) before: (u64, u64),
}

impl Author {
    /// Whether the next checkpoint may follow this one: it is of this start, it was there before, or the process that made those before
    /// had it under way when this one took its place.
    pub(super) fn may_follow(&self, newest: &CheckpointManifest) -> bool {
        let (number, start) = self.before;
        newest.number <= number || newest.start == self.start || newest.start == start
    }
}
