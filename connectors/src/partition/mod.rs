//! Partition columns: folders named `column=value`, and which of them a predicate selects.
//!
//! Read in this order: `partitions` (columns and values of a path), `expr` (what a predicate means), `parse` (its text),
//! `predicate`.

mod expr;
mod parse;
mod partitions;
mod predicate;

pub use partitions::Partitions;
pub use predicate::Predicate;
