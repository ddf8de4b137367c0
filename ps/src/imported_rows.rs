//! Rows from outside in buffers that all shards of a process read.

use arrow::buffer::ScalarBuffer;

use crate::lifetime::RowUsage;

/// Rows for [`TableClient::begin_import`](crate::TableClient::begin_import).
#[derive(Clone, Debug)]
pub struct ImportedRows {
    /// If a key repeats, its last row counts.
    pub keys: ScalarBuffer<u64>,
    /// `[keys x row_dim]`
    pub weights: ScalarBuffer<f32>,
    /// `[keys x state_dim]`; `None`: the state of a new row.
    pub state: Option<ScalarBuffer<f32>>,
    /// The usages of the rows: none, or one for each key.
    pub usages: Vec<RowUsage>,
}
