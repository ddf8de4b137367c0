//! Rows as they are, from files to scores: their formats, types and columns, labels and features, and what is wrong in them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod bad_input;
#[path = "../common/mod.rs"]
mod common;
mod convert;
mod features;
mod labels;
mod row_sample;
mod slots;
mod times;
mod types;
