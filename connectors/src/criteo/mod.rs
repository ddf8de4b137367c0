//! Criteo's click logs as text: label, 13 integers, 26 hex categories, tab-separated.

pub(crate) mod bad;
pub(crate) mod columns;
pub(crate) mod cut;
mod field;
mod groups;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod text;
pub(crate) mod unpack;

pub use bad::{MAX_LINE, OnBadRow};
pub use schema::{CATEGORIES, COLUMNS, Categories, INTEGERS, column_name, criteo_schema, with_hex_categories};
pub use source::CriteoSource;
