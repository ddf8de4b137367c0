//! Generated batches of Criteo's shape with the rows of their keys, held in memory.

use forebay_base::{mix64, signed_unit_f32, unit_f64};

use crate::actors::Lineage;
use crate::models::ModelSpec;
use crate::pipelines::Ticket;
use crate::pipelines::flow::{ReadyBatch, TrainBatch};

/// A batch that is sent repeatedly.
pub(super) struct Ready {
    train: TrainBatch,
    rows: Vec<f32>,
}

/// How many different batches are sent in turn.
const BATCHES: u64 = 4;

impl Ready {
    /// Makes batches for a spec: each has `rows` rows, and each slot of a row has one of `rows * unique_per_row` keys.
    pub(super) fn made(spec: &ModelSpec, rows: usize, unique_per_row: f64) -> Vec<Ready> {
        let unique = ((rows as f64 * unique_per_row) as usize).max(1);
        let make = |seed: u64| Ready {
            train: TrainBatch {
                rows,
                labels: (0..(rows * spec.labels()) as u64)
                    .map(|i| f32::from(mix64(seed ^ i).is_multiple_of(4)))
                    .collect(),
                dense: unit(seed ^ 1 << 40, rows * spec.dense, 1.0),
                unique: (0..unique as u64).collect(),
                inverse: places(seed ^ 2 << 40, rows * spec.slots, unique),
                ..TrainBatch::default()
            },
            rows: unit(seed ^ 3 << 40, unique * spec.row_dim(), 0.05),
        };
        (1..=BATCHES).map(|seed| make(seed << 50)).collect()
    }

    /// A copy of the batch, as `lookup` would send it.
    pub(super) fn batch(&self, lineage: Lineage, ticket: Ticket) -> ReadyBatch {
        let train = TrainBatch { lineage, ..self.train.clone() };
        ReadyBatch { train, rows: self.rows.clone(), dense: None, ticket }
    }
}

/// The index of each value's key: `r * r * unique` with `r` uniform, so that some keys are frequent. The first values use
/// every key once.
fn places(seed: u64, values: usize, unique: usize) -> Vec<u32> {
    let place = |i: usize| {
        if i < unique {
            return i as u32;
        }
        let r = unit_f64(mix64(seed ^ i as u64));
        ((r * r * unique as f64) as usize).min(unique - 1) as u32
    };
    (0..values).map(place).collect()
}

/// Random numbers from `-scale` to `scale`.
fn unit(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| signed_unit_f32(mix64(seed ^ i as u64)) * scale).collect()
}
