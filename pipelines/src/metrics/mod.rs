//! What is counted while a model is trained or evaluated.
//!
//! Read in this order: `progress.rs` (rows and steps), `running_metrics.rs` (of training rows), `quality.rs` (of scored rows),
//! `retrieval.rs` (of ranked items), `sample_by_hash.rs` (which rows and items are ranked), `scored_rows.rs`, `evaluation_points.rs` (what
//! checkpoints store of evaluations), `slots_seen.rs`, `empty_features.rs`, `unknown_values.rs` (values that the training rows did not
//! have), `training_summary.rs` (how a run ended), `process_report.rs`.

pub(crate) mod empty_features;
pub(crate) mod evaluation_points;
pub(crate) mod process_report;
pub(crate) mod progress;
pub(crate) mod quality;
pub(crate) mod retrieval;
pub(crate) mod running_metrics;
pub(crate) mod sample_by_hash;
pub(crate) mod scored_rows;
pub(crate) mod slots_seen;
pub(crate) mod training_summary;
pub(crate) mod unknown_values;
