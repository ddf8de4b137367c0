//! Evaluations while a model is trained: when they are due, when the training stops, and which model is kept.
//!
//! ```text
//!  lookup: holds the first batch after the point ──→ thread `evaluation`: a barrier from `train` on (all earlier batches are
//!          ↑                                         applied, the dense parameters are copied), scores `data.eval`, keeps the
//!          └──── go on, or train on no more batches ─┘ model if it is the best
//! ```
//! While a batch is held, nothing changes the parameters, and scoring only reads them: the training is the same to the bit.
//!
//! Read in this order: `stopping.rs` (the rules, without IO), `evaluations.rs` (what the stages share), `best_models.rs` (the folders).
//! `training/evaluator.rs` is the thread, `scoring/followed_checkpoints.rs` evaluates checkpoints in a process beside the run.

mod best_models;
#[allow(clippy::module_inception, reason = "the type that the module is about")]
pub(crate) mod evaluations;
pub(crate) mod stopping;

pub(crate) use best_models::folders as best_folders;
pub(crate) use evaluations::Evaluations;
