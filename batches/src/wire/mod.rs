//! How batches travel between processes: their [`columns`], and the [`metadata`] beside them.

pub mod columns;
pub mod metadata;
