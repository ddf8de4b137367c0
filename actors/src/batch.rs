//! What travels on a link: the [`Batch`] trait, and the [`Lineage`] that says where a batch came from.

use serde::{Deserialize, Serialize};

/// Where a batch came from. The source sets it, every stage passes it on, and every fault prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Number of the split (for Parquet: one row group of one file) within the epoch's order, from 0.
    pub split: u32,
    /// Number of the batch in its stream, from 0, without gaps.
    pub seq: u64,
    /// First row of the batch within its split.
    pub row: u64,
}

impl std::fmt::Display for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, split {}, row {} (batch {})", self.epoch, self.split, self.row, self.seq)
    }
}

/// The name of a batch in its run, the same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchName {
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Number of the window within the epoch, from 0.
    pub window: u64,
    /// Number of the batch within the window, from 0. `None`: `batch` has not cut these rows of the window into batches yet.
    pub index: Option<u32>,
}

/// Number of a barrier: 1, 2, 3 and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BarrierNumber(pub u64);

/// Rows that travel together on a link.
pub trait Batch: Send + 'static {
    /// Its number of rows (samples).
    fn rows(&self) -> usize;
    /// Bytes of memory it holds, for links that are bounded by bytes.
    fn bytes(&self) -> usize;
    /// Where it came from.
    fn lineage(&self) -> &Lineage;
    /// Its name in its run, if it is a part of a window.
    fn name(&self) -> Option<BatchName> {
        None
    }
}
