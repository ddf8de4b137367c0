//! The messages that travel on a stream.

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use forebay_actors::Fault;

/// Columns, metadata, or both; one Flight message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The columns. All batches of one direction of a stream have one schema.
    pub batch: Option<RecordBatch>,
    /// The header of the caller's own protocol, as Flight's `app_metadata`; empty: none.
    pub metadata: Bytes,
}

impl Message {
    /// Columns alone.
    pub fn columns(batch: RecordBatch) -> Self {
        Self { batch: Some(batch), metadata: Bytes::new() }
    }

    /// Metadata alone.
    pub fn metadata(metadata: impl Into<Bytes>) -> Self {
        Self { batch: None, metadata: metadata.into() }
    }

    /// Rows of the columns; 0 without any.
    pub fn rows(&self) -> usize {
        self.batch.as_ref().map_or(0, RecordBatch::num_rows)
    }
}

/// The error of a received message that is not Arrow columns.
pub(crate) fn refused(why: impl std::fmt::Display) -> Fault {
    Fault::user(format!("a message that cannot be read as Arrow columns: {why}"))
}
