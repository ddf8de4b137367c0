//! What a sample of rows decides before a run, and what it warns of.
//!
//! Read in this order: `row_sample.rs`, `feature_scales.rs`, `value_sample.rs`, `initial_bias.rs`; `far_values.rs`, `label_order.rs` and
//! `mean_weight.rs` (warnings); `statistics.rs` (of columns, for `data stats`).

pub(crate) mod far_values;
pub(crate) mod feature_scales;
pub(crate) mod initial_bias;
pub(crate) mod label_order;
pub(crate) mod mean_weight;
pub(crate) mod row_sample;
pub(crate) mod statistics;
pub(crate) mod value_sample;
