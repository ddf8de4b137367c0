//! Tables, shards, servers and clients from the outside.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bloom;
mod cluster;
mod dense;
mod fences;
mod golden;
mod groups;
mod lifetime;
mod mixed_table;
mod pending_calls;
mod refusals;
mod remote;
mod row_cache;
mod shard_snapshots;
mod shards;
mod snapshot;
mod table;
