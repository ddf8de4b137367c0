//! Criteo's click logs as text: label, 13 integers, 26 hex categories, tab-separated.
//!
//! Read in this order: `schema`, `field` and `batch_builder` (lines into columns), `diagnosis` (what is wrong with a line),
//! `format`.

pub(crate) mod batch_builder;
mod diagnosis;
mod field;
mod format;
pub(crate) mod schema;

pub use format::{Criteo, CriteoSource};
pub use schema::{CATEGORIES, COLUMNS, Categories, INTEGERS, column_name, criteo_schema, with_hex_categories};
