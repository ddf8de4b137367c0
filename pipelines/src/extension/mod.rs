//! What a program adds by name: sources, stages and models.
//!
//! Read in this order: `registry.rs` (the names), `own_model.rs`, `own_rows.rs` (a source of a program),
//! `noted_leases.rs` (checks that it keeps to its leases), `drop_rows.rs` (filters), `source_progress.rs` (how far a source is).

pub(crate) mod drop_rows;
pub(crate) mod noted_leases;
pub(crate) mod own_model;
pub(crate) mod own_rows;
pub(crate) mod registry;
pub(crate) mod source_progress;
