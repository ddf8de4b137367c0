//! Uses of a model: evaluation, prediction, vectors.
//!
//! Read in this order: `saved_model.rs` (loads a model), `evaluation.rs`, `followed_checkpoints.rs` (evaluates the checkpoints of another
//! run), `prediction.rs`, `embedding.rs` (vectors of two towers).

pub(crate) mod embedding;
pub(crate) mod evaluation;
pub(crate) mod followed_checkpoints;
pub(crate) mod prediction;
pub(crate) mod saved_model;
