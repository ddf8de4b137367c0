//! What travels on a link: anything that knows its size in rows and bytes and where it came from.
//!
//! Comes in: nothing. Goes out: the [`Batch`] trait and [`Lineage`]. Nothing blocks.

use serde::{Deserialize, Serialize};

/// Where a batch came from: stamped by the source, carried along by every stage, printed in every fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Number of the split (for Parquet: one row group of one file) within the epoch's order, from 0.
    pub split: u32,
    /// Position of the batch in the stream it travels in, from 0 without gaps.
    pub seq: u64,
    /// First row of the batch within its split.
    pub row: u64,
}

impl std::fmt::Display for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, split {}, row {} (batch {})", self.epoch, self.split, self.row, self.seq)
    }
}

/// Number of a barrier, rising by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A unit of work on a link.
pub trait Batch: Send + 'static {
    /// Rows (samples) in it.
    fn rows(&self) -> usize;
    /// Bytes of memory it holds, for links that are bounded by bytes.
    fn bytes(&self) -> usize;
    /// Where it came from.
    fn lineage(&self) -> &Lineage;
}
