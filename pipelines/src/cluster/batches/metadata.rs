//! The metadata that go with batches from a reader to a trainer, and come back: JSON in Flight's `app_metadata`.
//!
//! A reader sends [`Header`]s, each with the columns of one batch. A trainer answers with [`Reply`]s, in no fixed order. A
//! stock Flight client can do the same.

use bytes::Bytes;
use forebay_actors::Fault;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::flow::{BatchId, WindowEnd};

/// What a reader says of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) id: BatchId,
    /// How often its window had been given out before.
    pub(crate) term: u32,
    /// Split and row that it came from, for messages.
    pub(crate) split: u32,
    pub(crate) row: u64,
    /// It is the last of its window.
    #[serde(default)]
    pub(crate) closes: Option<WindowEnd>,
    /// Batches of its window before this one that are done, or go to another trainer.
    #[serde(default)]
    pub(crate) done_before: u32,
    /// It goes without credit: it comes before all that its reader has under way on the channel, which may wait for it. So
    /// windows that another reader has lost are not held up by later ones.
    #[serde(default)]
    pub(crate) urgent: bool,
}

/// What a trainer answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// The first word: the number of the channel, by which more streams join it. All other replies come on this stream.
    Channel(u64),
    /// So many more batches may be sent on this channel, of so many bytes in all; one batch that is larger may go when all
    /// else was taken.
    Grant { batches: u32, bytes: u64 },
    /// The gradients of this batch are applied: the reader may forget it.
    Done(BatchId),
    /// Another reader has this window under a later term: the reader may forget it.
    Stale(BatchId),
}

/// Metadata as bytes.
pub(crate) fn write(metadata: &impl Serialize) -> Result<Bytes, Fault> {
    serde_json::to_vec(metadata)
        .map(Bytes::from)
        .map_err(|e| Fault::internal("a metadata cannot be written as JSON").because(e))
}

/// Metadata that came.
pub(crate) fn read<T: DeserializeOwned>(metadata: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(metadata)
        .map_err(|e| Fault::user("the metadata of a batch is not what it should be").because(e))
}
