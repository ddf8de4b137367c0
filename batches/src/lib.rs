//! From rows to training batches: the types that travel between the stages, and the two stages that touch every value.
//!
//! ```text
//!  Rows ─→ parse ─→ ExampleBatch ─→ batch ─→ TrainBatch ─→ (lookup) ─→ ReadyBatch ─→ (train) ─→ GradBatch
//! ```
//!
//! Read these files in this order: `flow/` (the batches), `parse/` ([`Parse`]: from columns to labels, dense features and keys), `batch/`
//! ([`Batcher`]: shuffles, cuts, lists every key once), `dedup.rs` (finds equal keys), [`wire`] (batches between processes), `staleness.rs`
//! (the [`Ticket`] of a batch). `forebay-pipelines` has the other stages and wires all of them.
//!
//! Beside them: `column_type.rs` (the types of feature columns, as a manifest stores them), `nullable.rs` (columns with missing values),
//! `key_sample.rs` (an estimate of the number of keys), and warnings: `labels_seen.rs` (labels that teach nothing), `scale_warning.rs`
//! (large dense features), `limit_warning.rs` (values beyond the limit of a scale).
//!
//! The crate is optimised for speed, unlike `forebay-pipelines`: a loop over rows, keys or values belongs here, or in a crate below.

mod batch;
mod column_type;
mod dedup;
mod flow;
mod key_sample;
mod labels_seen;
mod limit_warning;
mod nullable;
mod parse;
mod scale_warning;
mod staleness;
pub mod wire;

pub use batch::{Assemble, BatchPlan, Batcher, Cut, Part};
pub use column_type::{ColumnType, feature_types, list_columns};
pub use flow::{
    BatchId, DeviceBatch, ExampleBatch, ExampleRow, GradBatch, KeptRows, ReadyBatch, RowCounts, SlotCounts,
    SlotIntegers, SlotKeys, TrainBatch, WindowEnd,
};
pub use key_sample::KeySample;
pub use labels_seen::{LabelsSeen, warn_of_equal_labels};
pub use limit_warning::LimitWarning;
pub use parse::{Parse, check_columns, missing_keys, moments_of_text};
pub use scale_warning::ScaleWarning;
pub use staleness::{InOrder, MOST_UNDER_WAY, Staleness, Ticket};
