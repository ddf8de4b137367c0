//! Parquet files: footers, fetching ahead, decoding.

pub(crate) mod fetch;
pub(crate) mod footer;
mod selection;
pub(crate) mod source;
mod types;

pub use source::ParquetSource;
