//! The rows of a request for scores, as they came.

use arrow::array::RecordBatch;
use bytes::Bytes;

/// The rows of a request.
#[derive(Clone, Debug)]
pub enum RequestRows {
    /// A body of JSON: docs/serve.md says its form.
    Json(Bytes),
    /// Columns by name. Those that the model does not have are left out.
    Arrow(RecordBatch),
}
