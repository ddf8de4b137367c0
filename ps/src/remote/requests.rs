//! The JSON bodies of the actions and tickets of tables, for client and server.

use forebay_base::LrReductions;
use serde::{Deserialize, Serialize};

use crate::config::TableConfig;

/// The body of `stats` and `config`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableName {
    pub(super) table: String,
}

/// The body of `table.acknowledge`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeTable {
    pub(super) table: String,
    pub(super) before: u64,
}

/// The body of `table.reduce_lr`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReduceTableLr {
    pub(super) table: String,
    pub(super) reductions: LrReductions,
}

/// The rows to export: without `shard`, a number from 0, from all shards of the process; without `at_most` all rows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ticket {
    pub(super) table: String,
    #[serde(default)]
    pub(super) shard: Option<usize>,
    #[serde(default)]
    pub(super) from: usize,
    #[serde(default)]
    pub(super) at_most: Option<usize>,
    /// The keys without a row that are counted, instead of rows.
    #[serde(default)]
    pub(super) absent: bool,
}

/// The shards of a table that a process holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeldShards {
    pub(super) config: TableConfig,
    /// The number of this process.
    pub(super) rank: usize,
    /// The processes that hold the table.
    pub(super) processes: usize,
    /// Shards of this process.
    pub(super) shards: usize,
}
