//! The columns that a run reads, the types of their values, and the scales of dense features.
//!
//! Read in this order: `run_types.rs` (the types in the files of a run), `trained_types.rs` (in the rows that a model was trained on),
//! `expected_types.rs`, `sampled_settings.rs` (what a sample of rows decided), `score_columns.rs` and `kept_columns.rs` (of a prediction).

pub(crate) mod expected_types;
pub(crate) mod kept_columns;
pub(crate) mod run_types;
pub(crate) mod sampled_settings;
pub(crate) mod score_columns;
pub(crate) mod trained_types;
