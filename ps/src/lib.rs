//! The sparse parameter server of Forebay.

mod check;
mod client;
mod config;
mod error;
mod key;
mod memory;
mod optim;
mod route;
mod shard;
mod simd;
mod stats;
mod table;

pub use client::{MAX_SHARDS, TableClient, start_table};
pub use config::{Init, MAX_ROW_DIM, PartConfig, Storage, TableConfig};
pub use error::TableError;
pub use key::SlotHasher;
pub use optim::Optimizer;
pub use route::Route;
pub use stats::{ShardStats, TableStats};
pub use table::{ExportBlock, Table};
