//! Parquet files: footers, fetching ahead, decoding.

mod columns;
pub(crate) mod fetch;
pub(crate) mod footer;
pub(crate) mod source;
mod types;

pub use source::ParquetSource;
