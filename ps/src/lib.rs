//! The sparse parameter server of Forebay: tables of rows by key, spread over shards, each an actor that owns its rows
//! without locks.
//!
//! ```text
//!   keys u64[u] ─┐                          ┌─8→ shard 0: Table { index, arena, optimizers }
//!                ├→ TableClient ── route ───┼─8→ shard 1
//!   rows f32[u × row_dim] ←─ in order ──────┴─8→ ...
//! ```
//!
//! - A feature value becomes a key by [`SlotHasher`]: 64 bits, the full space, no vocabulary.
//! - A [`TableConfig`] says what a row is: parts, each with a dim, an [`Optimizer`] and an [`Init`]. A wide weight under FTRL
//!   and a deep embedding under Adagrad share one row and so one look-up.
//! - [`start_table`] starts the shards on a [`Host`](forebay_actors::Host) and gives a [`TableClient`]: `pull`, `push`,
//!   `peek`, `export`, `import`, and `begin_snapshot` for checkpoints.
//! - Across processes each starts its share by [`start_shards`] and serves it by a [`remote::TableService`]; [`remote::connect`] gives the
//!   same [`TableClient`]. `push_once` is applied once however often it is sent, `push_round` merges the pushes of several trainers into
//!   one, and [`dense`] keeps dense parameters in blocks beside the rows.
//!
//! **Determinism.** A row is initialised from (seed, table, part, key) alone, and each key is updated by its own gradients
//! in their order. So after the same calls a table is the same to the bit for any number of shards and any vector width. A
//! push with a NaN is refused before any shard has changed.
//!
//! # Reading order
//!
//! 1. `config.rs` (the configuration of a table), `key.rs` (from a value to a key), `client.rs`, `buffers.rs`, `route.rs` (from a key to
//!    its shard), `endpoint.rs` (a shard here, or all shards of another process), `check.rs` (lengths and numbers, before anything
//!    changes), `error.rs`. `start.rs` starts the shards; `stats.rs` says what they hold.
//! 2. `shard.rs` (the actor), `table/mod.rs` and `table/pass.rs` (pull and push), `table/index.rs` (from a key to a row
//!    number), `table/arena.rs` and `table/layout.rs` (the rows), `optim/` (how a gradient changes a row), `lifetime.rs` (which keys
//!    get a row, and which rows are removed), `groups.rs` (keys of several tables in one). `simd.rs` and
//!    `memory.rs` hold the unsafe code. `snapshot.rs` and `table/snapshot.rs` read the rows of one moment while training
//!    goes on; `imported_rows.rs` and `pending_import.rs` take rows from outside.
//! 3. Pushes that are applied once, and in rounds: `push.rs`, `applied.rs`, `rounds.rs`, `merge.rs`, `exactly_once.rs`,
//!    and pulls that wait for the end of a round: `held_pulls.rs`.
//!    `row_cache.rs` over `cached_rows.rs`: the rows that pushes under way change, for a trainer that looks up ahead.
//! 4. Several processes: `wire/messages.rs` (values and pushes as messages), `wire/metadata.rs`, `half_block.rs` (f16),
//!    `wire/remote_ps.rs` and `wire/process.rs` (the client), `remote/service.rs` and `remote/request_handler.rs` (the
//!    server).
//! 5. `rounded.rs`: values in f16 and int8 for files.
//! 6. `dense/`: dense parameters in blocks, over the same parts.
//!
//! ```
//! use forebay_actors::Host;
//! use forebay_ps::{Init, Optimizer, PartConfig, SlotHasher, TableConfig, start_table};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let optimizer = Optimizer::Adagrad { lr: 0.05.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 };
//! let part = PartConfig::new("embedding", 8, optimizer, Init::Uniform { scale: 0.01 });
//! let config = TableConfig::new("ads", 1, vec![part]);
//! let host = Host::start("ps")?;
//! let table = start_table(&host, config, 2)?;
//!
//! let city = SlotHasher::new("city", 1);
//! let keys = [city.bytes(b"Basel"), city.bytes(b"Bern")];
//! let mut rows = Vec::new();
//! table.pull(&keys, &mut rows).await?;
//! assert_eq!(rows.len(), 2 * table.row_dim());
//! table.push(&keys, &vec![0.1; rows.len()], 1).await?;
//! println!("{}", table.stats().await?);
//! host.stop()
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod applied;
mod buffers;
mod cached_rows;
mod check;
mod client;
mod config;
pub mod dense;
mod endpoint;
mod error;
mod exactly_once;
mod groups;
mod half_block;
mod held_pulls;
mod imported_rows;
mod key;
mod lifetime;
mod memory;
mod merge;
mod optim;
mod pending_import;
mod push;
pub mod remote;
mod rounded;
mod rounds;
mod route;
mod row_cache;
mod shard;
mod simd;
mod snapshot;
mod start;
mod stats;
mod table;
mod wire;

pub use applied::Applied;
pub use cached_rows::{BegunBatch, CachedBatch, CachedRows, RowCacheStats};
pub use client::TableClient;
pub use config::{GroupConfig, Init, MAX_ROW_DIM, PartConfig, Storage, TableConfig};
pub use error::TableError;
pub use exactly_once::{ExactlyOnce, PushAnswer};
pub use forebay_base::{Decay, LearningRate, LrReduction, LrReductions};
pub use groups::{MOST_GROUPS, group_of, in_group};
pub use imported_rows::ImportedRows;
pub use key::SlotHasher;
pub use lifetime::{
    Absent, Admission, BloomCount, CELLS, Eviction, LEAST_CAP, Lifetime, MOST_BLOOM_COUNT, MOST_BLOOM_KEYS, RowUsage,
    cell_of,
};
pub use optim::Optimizer;
pub use pending_import::PendingImport;
pub use push::{AfterRound, PushId, PushOutcome, Round, Stamp, Trainer};
pub use rounded::{Int8Rows, RoundingError, from_f16, from_int8, to_f16, to_int8};
pub use rounds::Share;
pub use route::Route;
pub use row_cache::{PendingBatch, PendingPush, RowCache};
pub use snapshot::ShardSnapshot;
pub use start::{MAX_SHARDS, start_read_only, start_shards, start_table};
pub use stats::{GroupStats, ShardStats, TableStats};
pub use table::{ExportBlock, SnapshotKind, Table};
