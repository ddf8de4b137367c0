//! Text with one row per line, plain, `.gz` or `.zst`: the code that all formats of text share. A format says how a line becomes a row.
//!
//! Read in this order: `bad_rows_file`, `number`, `bad_row`, `sparse`, `column` (values into columns), `cut` (byte ranges), `format` (the
//! traits of a format), `lines` (a split into batches), `decompress`, `head` (the first lines of a file), `windows`, `source`.

pub(crate) mod bad_row;
mod bad_rows_file;
pub(crate) mod column;
pub(crate) mod cut;
pub(crate) mod decompress;
pub(crate) mod format;
pub(crate) mod head;
mod lines;
pub(crate) mod number;
mod row_estimate;
mod source;
pub(crate) mod sparse;
mod windows;

pub use bad_row::{MAX_LINE, OnBadRow};
pub use bad_rows_file::BadRowsFile;
pub use column::{is_hex_of_text, is_integer_of_text, is_number_of_text};
pub(crate) use format::LineFormat;
pub use source::TextSource;
