//! Rows that a table exports.

use crate::lifetime::RowUsage;

/// Rows of a table: `keys[i]` has `row_dim` weights and `state_dim` floats of state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportBlock {
    /// One key per row.
    pub keys: Vec<u64>,
    /// `[keys x row_dim]`.
    pub weights: Vec<f32>,
    /// `[keys x state_dim]`, part after part (see [`Optimizer::state_per_weight`](crate::Optimizer::state_per_weight)).
    pub state: Vec<f32>,
    /// One per row of a table with a lifetime; otherwise empty.
    pub usages: Vec<RowUsage>,
}
