//! Parquet files: footers, fetching ahead, decoding.

pub(crate) mod fetch;
pub(crate) mod footer;
pub(crate) mod source;

pub use source::ParquetSource;
