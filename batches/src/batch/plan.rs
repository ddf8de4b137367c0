//! How the batch stage makes batches of rows.

/// How rows become batches.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Rows of a batch.
    pub rows: usize,
    /// Rows that are shuffled together, rounded up to whole batches. A larger window of the source is shuffled in parts of
    /// this size. 0 keeps the order of the source.
    pub window: usize,
    /// Seed of the shuffle, used together with epoch, window and part.
    pub seed: u64,
    /// Drops the last batch of a window if it is short, and counts its rows as rejected.
    pub drop_last: bool,
    /// Set in a cluster, where the coordinator counts the rows of each window. The last batch of a window carries its
    /// [`WindowEnd`](crate::flow::WindowEnd); if no rows are left for it, it is empty. The held rows of an incomplete window are
    /// not sent.
    pub mark_window_ends: bool,
    /// The number of each slot's key space. Slots with the same number share keys and are de-duplicated together.
    pub key_spaces: Vec<usize>,
    /// The key of a missing value in each slot; `None` for slots without one, such as crosses. If the list is empty, batches carry no
    /// counts of their slots ([`SlotCounts`](crate::flow::SlotCounts)).
    pub missing: Vec<Option<u64>>,
}

impl BatchPlan {
    /// The line of the stage in plans and reports.
    pub(super) fn describe(&self) -> String {
        match self.window {
            0 => format!("{} rows", self.rows),
            window => format!("{} rows, shuffled within {window}", self.rows),
        }
    }
}
