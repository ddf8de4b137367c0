//! Down-sampling of negative rows.

use forebay_actors::{Lineage, StageCx};
use forebay_base::mix64;

use crate::flow::ExampleBatch;

const LEFT_OUT: &str = "negative left out by data.negatives";

/// Keeps a share of the rows with label 0. Whether a row is kept depends on the seed and on the row's place (epoch, split, row), so
/// all processes and replicas keep the same rows.
pub(super) struct NegativeSample {
    share: f64,
    seed: u64,
}

impl NegativeSample {
    pub(super) fn new(share: f64, seed: u64) -> Self {
        Self { share, seed: mix64(seed ^ 0x6e65_6761_7469_7665) }
    }

    /// Leaves rows out and counts them. `good` marks the rows of the source that are in `examples`.
    pub(super) fn sample(&self, examples: ExampleBatch, good: &[bool], cx: &StageCx) -> ExampleBatch {
        let lineage = examples.lineage.clone();
        let mut read = (0..).zip(good).filter(|(_, good)| **good).map(|(row, _)| row);
        examples.retain_rows(cx, LEFT_OUT, |row| {
            let place = read.next().unwrap_or_default();
            row.label() != 0.0 || self.keeps(&lineage, place)
        })
    }

    fn keeps(&self, lineage: &Lineage, row: u64) -> bool {
        let split = mix64(self.seed ^ (u64::from(lineage.epoch) << 32 | u64::from(lineage.split)));
        let random = mix64(split ^ (lineage.row + row));
        // The upper 53 bits: a number from 0 to 1.
        ((random >> 11) as f64) < self.share * (1_u64 << 53) as f64
    }
}
