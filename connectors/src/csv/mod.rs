//! CSV with a header: any delimiter, fields in double quotes, columns found by name, values typed as the reader asks, and
//! never by a guess.
//!
//! A line is a row. So files are read in byte ranges, by several processes, and a quoted field that holds a line end makes a bad
//! row. Read in this order: `options`, `split` (lines into fields), `header`, `lines` (lines into rows), `format`.

mod format;
mod header;
mod lines;
mod options;
mod split;

pub use format::{Csv, CsvSource};
pub use header::{header_to_add, number_among, other_delimiter};
pub use options::CsvOptions;
