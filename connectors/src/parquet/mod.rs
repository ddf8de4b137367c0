//! Parquet files. Read in this order: `footer` (the contents of a file), `footers` (reads them), `row_group`, `schemas` (shared by files),
//! `types`, `selection` (the columns wanted), `pages` (the pages of some rows), `fetch` (column chunks into memory), `encryption`, `cuts`
//! (how many jobs decode a row group), `source`.

mod cuts;
mod encryption;
pub(crate) mod fetch;
pub(crate) mod footer;
mod footers;
mod pages;
mod row_group;
mod schemas;
mod selection;
pub(crate) mod source;
mod types;

pub use source::ParquetSource;
