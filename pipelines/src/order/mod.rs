//! The order of look-ups and pushes.
//!
//! Read in this order: `exact_order.rs` (exact staleness), `step_order.rs` (`train.sync`), `look_ahead.rs` (rows that the next batches
//! need again), `lookup_gate.rs` (holds look-ups back), `batch_record.rs` (what a trainer of a cluster records of its batches).

pub(crate) mod batch_record;
pub(crate) mod exact_order;
pub(crate) mod look_ahead;
pub(crate) mod lookup_gate;
pub(crate) mod step_order;
