//! Counts of rows and batches.

use serde::{Deserialize, Serialize};

/// Row and batch counts of windows that are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// Rows trained on: the gradients of their batches are applied.
    pub trained: u64,
    /// Rows rejected.
    pub rejected: u64,
    /// Batches.
    pub batches: u64,
}

impl RowCounts {
    /// Adds the rows of `other`.
    pub fn add(&mut self, other: &Self) {
        self.trained += other.trained;
        self.rejected += other.rejected;
        self.batches += other.batches;
    }
}
