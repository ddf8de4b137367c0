//! The JSON bodies of the actions and tickets of tables, for client and server.

use forebay_base::LrReductions;
use serde::{Deserialize, Serialize};

use crate::config::TableConfig;

/// The body of `stats` and `config`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableName {
    pub(crate) table: String,
}

/// The body of `table.acknowledge`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcknowledgeTable {
    pub(crate) table: String,
    pub(crate) before: u64,
}

/// The body of `table.reduce_lr`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReduceTableLr {
    pub(crate) table: String,
    pub(crate) reductions: LrReductions,
}

/// The rows to export: without `shard`, a number from 0, from all shards of the process; without `at_most` all rows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ticket {
    pub(crate) table: String,
    #[serde(default)]
    pub(crate) shard: Option<usize>,
    #[serde(default)]
    pub(crate) from: usize,
    #[serde(default)]
    pub(crate) at_most: Option<usize>,
    /// The keys without a row that are counted, instead of rows.
    #[serde(default)]
    pub(crate) absent: bool,
}

/// The shards of a table that a process holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldShards {
    pub(crate) config: TableConfig,
    /// The number of this process.
    pub(crate) rank: usize,
    /// The processes that hold the table.
    pub(crate) processes: usize,
    /// Shards of this process.
    pub(crate) shards: usize,
}
