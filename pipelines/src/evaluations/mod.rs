//! Evaluations while a model is trained: when they are due, when the training stops, and which model is kept.
//!
//! ```text
//!  lookup: holds the first batch after the point ──→ thread `evaluation`: a barrier from `train` on (all earlier batches are
//!          ↑                                         applied, the dense parameters are copied), scores `data.eval`, keeps the
//!          └──── go on, or train on no more batches ─┘ model if it is the best
//! ```
//! While a batch is held, nothing changes the parameters, and scoring only reads them: the training is the same to the bit.
//!
//! Read in this order: `stopping.rs` (the rules, without IO), `points.rs` (what checkpoints store), `evaluations.rs` (what the
//! stages share), `evaluator.rs` (the thread), `best_models.rs` (the folders), `trained.rs` (the end of the run).
//! `checkpoints.rs` evaluates checkpoints in a process beside the run.

mod best_models;
mod checkpoints;
#[allow(clippy::module_inception, reason = "the type that the module is about")]
mod evaluations;
mod evaluator;
pub(crate) mod points;
mod stopping;
mod trained;

pub(crate) use best_models::folders as best_folders;
pub use checkpoints::{CheckpointEvaluations, EvaluatedCheckpoint};
pub(crate) use evaluations::Evaluations;
pub(crate) use evaluator::Evaluator;
pub use points::{EvaluationHistory, EvaluationPoint};
