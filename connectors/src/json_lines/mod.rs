//! JSON lines: one JSON object on each line, columns found by name, values typed as the reader asks, never by a guess.
//!
//! A key that a line does not have is a missing value, as `null` is. Read in this order: `object` (a line into values), `column`
//! (values into columns), `late_keys` (keys that the first lines lack), `head` (which columns are lists), `lines` (lines into rows),
//! `format`.

mod column;
mod format;
mod head;
mod late_keys;
mod lines;
mod object;

pub use format::{JsonLines, JsonLinesSource};
pub(crate) use late_keys::LateKeys;
