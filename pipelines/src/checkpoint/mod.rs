//! Checkpoints: everything that a run needs to go on after its processes died, in any store.
//!
//! ```text
//!  barrier: read ─→ parse ─→ batch ─→ lookup ─→ train ─→ push          the cut: position, model, snapshots of the shards
//!                                               model      │
//!                                                          ↓
//!  thread `checkpoint`: asks for barriers, writes what was cut, publishes the manifest, removes old checkpoints
//! ```
//!
//! `checkpointer/` makes them during a run. With several trainers, the coordinator stops all of them at one moment: `cluster/cuts/`.
//!
//! Read in this order: `trained_batches.rs` and `batch_log.rs` (the position), `cut_plan.rs`, `manifest.rs`, `folder.rs`, `table_rows.rs`
//! and `dense_state.rs` (the files), `kept_gradients.rs` (with exact staleness), `metrics_file.rs`, `author.rs`, `finished.rs`,
//! `restore.rs`, `origin.rs`, `made.rs`, `model_disk.rs` and `named.rs` (going on), `prune.rs`, `compact.rs`. `docs/checkpoint.md`
//! describes the format.

pub(crate) mod author;
pub(crate) mod batch_log;
mod compact;
mod cut_plan;
pub(crate) mod dense_state;
pub(crate) mod finished;
mod folder;
pub(crate) mod kept_gradients;
mod made;
mod manifest;
pub(crate) mod metrics_file;
mod model_disk;
mod named;
mod origin;
mod prune;
mod restore;
pub(crate) mod table_rows;
mod trained_batches;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::config;
#[cfg(test)]
pub(crate) use tests::faulty_store::{FaultyStore, StoreFailure};

/// The parameters of a dense model and the state of its optimizer: see [`DenseModel::state`](forebay_models::DenseModel::state).
pub(crate) type ModelState = Vec<forebay_models::NamedTensor>;

pub(crate) use batch_log::WindowLog;
pub use compact::Compaction;
pub(crate) use cut_plan::CutPlan;
pub(crate) use dense_state::{read as read_dense, write as write_dense};
pub(crate) use finished::finished;
pub use folder::CheckpointFolder;
pub(crate) use folder::file_name;
pub(crate) use kept_gradients::{KeptWriter, read as read_kept};
pub(crate) use made::MadeCheckpoints;
pub use manifest::{CheckpointManifest, TableLayer, TableLayers};
pub(crate) use manifest::{TrainPosition, check_rows, may_go_on_as};
pub(crate) use metrics_file::read as read_metrics;
pub(crate) use model_disk::model_place;
pub(crate) use origin::{DamagedCheckpoints, OriginCheckpoint};
pub use restore::check_checkpoints;
pub(crate) use restore::{
    Found, Restored, are_away, dense_blocks, dense_parameters, find, find_alone, load_rows, load_trainer, waiting,
};
pub(crate) use table_rows::write_shards;
pub(crate) use trained_batches::{BatchOrder, TrainedBatches};
