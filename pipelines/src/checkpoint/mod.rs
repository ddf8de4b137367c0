//! Checkpoints: everything that a run needs to go on after its processes died, in any store.
//!
//! ```text
//!  barrier: read ─→ parse ─→ batch ─→ lookup ─→ train ─→ push          the cut: position, model, snapshots of the shards
//!                                               model      │
//!                                                          ↓
//!  thread `checkpoint`: asks for barriers, writes what was cut, publishes the manifest, removes old checkpoints
//! ```
//!
//! With several trainers, the coordinator stops all of them at one moment instead: `lookup_gate.rs`, `batch_log.rs` and
//! `shared_cut.rs` are the part of each trainer, `cluster/cuts/` is the rest.
//!
//! Read in this order: `trained_batches.rs` (the position), `cut.rs` (what the stages do), `manifest.rs`, `folder.rs` and
//! `table_rows.rs` (the files), `kept_gradients.rs` (with exact staleness), `metrics_file.rs`, `checkpointer.rs` (the thread), `drain.rs`,
//! `author.rs`, `writer.rs`, `last.rs`, `finished.rs`, `restore.rs`, `origin.rs`, `made.rs`, `model_disk.rs`, `named.rs` and `leases.rs`
//! (going on), `prune.rs`, `compact.rs`. `docs/checkpoint.md` describes the format.

mod author;
mod batch_log;
mod checkpointer;
mod compact;
mod cut;
mod cut_plan;
mod dense_state;
mod drain;
mod drained_to;
mod finished;
mod folder;
pub(crate) mod kept_gradients;
mod last;
mod leases;
mod lookup_gate;
mod made;
mod manifest;
mod metrics_file;
mod model_disk;
mod named;
mod origin;
mod prune;
mod restore;
mod shared_cut;
mod table_rows;
mod trained_batches;
mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::faulty_store::{FaultyStore, StoreFailure};

/// The parameters of a dense model and the state of its optimizer: see [`DenseModel::state`](forebay_models::DenseModel::state).
pub(crate) type ModelState = Vec<forebay_models::NamedTensor>;

pub(crate) use batch_log::WindowLog;
pub use checkpointer::NewestCheckpoint;
pub(crate) use checkpointer::{Checkpointer, EndRun, EndedCheckpoints};
pub use compact::Compaction;
pub(crate) use cut::{CutPoint, Shards};
pub(crate) use cut_plan::CutPlan;
pub(crate) use dense_state::{read as read_dense, write as write_dense};
pub(crate) use drain::DrainWithout;
pub use drained_to::DrainedTo;
pub(crate) use drained_to::LastOfDrained;
pub(crate) use finished::finished;
pub use folder::CheckpointFolder;
pub(crate) use folder::file_name;
pub(crate) use kept_gradients::{KeptWriter, read as read_kept};
pub(crate) use last::LastCheckpoint;
pub(crate) use leases::RemainingWindows;
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
pub(crate) use shared_cut::SharedCut;
pub(crate) use table_rows::write_shards;
pub(crate) use trained_batches::{BatchOrder, TrainedBatches};
pub(crate) use writer::Checkpoints;
