//! Placeholder
pub mod batch;
pub mod fault;
