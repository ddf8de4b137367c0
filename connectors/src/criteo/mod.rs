//! Criteo's click logs as text: label, 13 integers, 26 hex categories, tab-separated.
//!
//! Read in this order: `schema`, `cut` (byte ranges), `decompress`, `field` and `batch_builder` (lines into columns),
//! `bad_row`, `text` (a split into batches), `text_windows`, `source`.

pub(crate) mod bad_row;
pub(crate) mod batch_builder;
pub(crate) mod cut;
pub(crate) mod decompress;
mod field;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod text;
mod text_windows;

pub use bad_row::{MAX_LINE, OnBadRow};
pub use schema::{CATEGORIES, COLUMNS, Categories, INTEGERS, column_name, criteo_schema, with_hex_categories};
pub use source::CriteoSource;
