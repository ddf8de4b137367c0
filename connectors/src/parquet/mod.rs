//! Parquet files. Read in this order: `footer` (what a file holds), `selection` (the columns wanted), `types`, `pages`
//! (those of some rows of a row group), `fetch` (column chunks into memory), `encryption`, `cuts` (how many jobs decode a row
//! group), `source`.

mod cuts;
mod encryption;
pub(crate) mod fetch;
pub(crate) mod footer;
mod pages;
mod selection;
pub(crate) mod source;
mod types;

pub use source::ParquetSource;
