//! The dense model of a job and the place of its parameters.
//!
//! Read in this order: `job_model.rs` (makes the model that a job describes), `dense_store.rs` (parameters in the ps processes),
//! `dense_memory.rs` (bytes), `dense_threads.rs` (how many compute).

pub(crate) mod dense_memory;
pub(crate) mod dense_store;
pub(crate) mod dense_threads;
pub(crate) mod job_model;
