//! Evaluations while a model is trained: when they are due, when the training stops, and which model is kept.
//!
//! ```text
//!  lookup: holds the first batch after the point     ──→ thread `evaluation`: a barrier from `train` on (the dense parameters are
//!          until all earlier ones are applied            copied), scores `data.eval`, keeps the model if it is the best
//!          ↑                                                           │
//!          └──── go on, or train on no more batches ───────────────────┘
//! ```
//! In a run of several processes, the only trainer evaluates: it takes batches in the order of the data
//! ([`ordered`](crate::cluster::ordered)), so that whole epochs lie before the point, and looks up the rows of `data.eval` at the ps.
//! Of several trainers that take their steps together, the first evaluates. The others hold the batches of the same step, and wait for what
//! the coordinator says: go on, or train on no more batches (ADR 33). Trainers that take their own steps do not evaluate.
//!
//! While a batch is held, nothing changes the parameters, and scoring only reads them: the training is the same to the bit.
//!
//! Read in this order: `stopping.rs` (the rules, without IO), `evaluations.rs` (what the stages share), `learning_rates.rs`,
//! `best_models.rs` (the folders), `evaluator.rs` (the thread). `training/evaluated_run.rs` says what the thread gets of the run,
//! `scoring/followed_checkpoints.rs` evaluates checkpoints in a process beside the run.

mod best_models;
#[allow(clippy::module_inception, reason = "the type that the module is about")]
mod evaluations;
mod evaluator;
mod learning_rates;
pub(crate) mod stopping;

pub(crate) use best_models::folders as best_folders;
pub(crate) use evaluations::{AwaitEvaluation, DenseCopy, Evaluations};
pub(crate) use evaluator::{EvaluatedRun, Evaluator};
pub(crate) use learning_rates::LearningRates;
