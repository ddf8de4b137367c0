//! Generated batches of Criteo's shape with the rows of their keys, held in memory.

use crate::actors::Lineage;
use crate::models::ModelSpec;
use crate::pipelines::Ticket;
use crate::pipelines::flow::{ReadyBatch, TrainBatch};

/// A batch to send again and again.
pub(super) struct Ready {
    train: TrainBatch,
    rows: Vec<f32>,
}

/// Different ones, sent in turns.
const BATCHES: u64 = 4;

impl Ready {
    /// For a spec: `rows` rows, each slot with one of `rows * unique_per_row` keys.
    pub(super) fn made(spec: &ModelSpec, rows: usize, unique_per_row: f64) -> Vec<Ready> {
        let unique = ((rows as f64 * unique_per_row) as usize).max(1);
        let make = |seed: u64| Ready {
            train: TrainBatch {
                labels: (0..rows as u64).map(|i| f32::from(mix(seed ^ i).is_multiple_of(4))).collect(),
                dense: unit(seed ^ 1 << 40, rows * spec.dense, 1.0),
                unique: (0..unique as u64).collect(),
                inverse: places(seed ^ 2 << 40, rows * spec.slots, unique),
                ..TrainBatch::default()
            },
            rows: unit(seed ^ 3 << 40, unique * spec.row_dim(), 0.05),
        };
        (1..=BATCHES).map(|seed| make(seed << 50)).collect()
    }

    /// A copy of it, as `lookup` would send it.
    pub(super) fn batch(&self, lineage: Lineage, ticket: Ticket) -> ReadyBatch {
        let train = TrainBatch { lineage, ..self.train.clone() };
        ReadyBatch { train, rows: self.rows.clone(), dense: None, ticket }
    }
}

/// Of a value: key `r * r * unique` with `r` uniform, so that some keys are in many rows; the first values name every key once.
fn places(seed: u64, values: usize, unique: usize) -> Vec<u32> {
    let place = |i: usize| {
        if i < unique {
            return i as u32;
        }
        let r = (mix(seed ^ i as u64) >> 11) as f64 / (1u64 << 53) as f64;
        ((r * r * unique as f64) as usize).min(unique - 1) as u32
    };
    (0..values).map(place).collect()
}

/// From `-scale` to `scale`.
fn unit(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let number = |i: usize| ((mix(seed ^ i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale;
    (0..count).map(number).collect()
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
