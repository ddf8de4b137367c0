//! The metadata of the messages between a reader and a trainer: JSON in Flight's `app_metadata`.
//!
//! A reader sends [`Header`]s, each with the columns of one batch. A trainer sends [`Reply`]s, in no fixed order.

use bytes::Bytes;
use forebay_actors::Fault;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::flow::{BatchId, WindowEnd};

/// Sent by a reader with the columns of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) id: BatchId,
    /// How many times its window was leased before.
    pub(crate) term: u32,
    /// The split and row that it came from, for error messages.
    pub(crate) split: u32,
    pub(crate) row: u64,
    /// Set on the last batch of a window.
    #[serde(default)]
    pub(crate) closes: Option<WindowEnd>,
    /// The number of batches at the start of its window that are done.
    #[serde(default)]
    pub(crate) done_before: u32,
    /// It takes no credit, because it precedes every batch that its reader has sent on the channel, and these may wait for it.
    /// So batches of a lost lease are not blocked by later ones.
    #[serde(default)]
    pub(crate) urgent: bool,
}

/// Sent by a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// The first reply: the number of the channel, with which more streams join it. All replies come on the first stream.
    Channel(u64),
    /// Credit for more batches on this channel and for their total bytes. A batch that is larger than all bytes granted may be
    /// sent when every other batch is taken.
    Grant { batches: u32, bytes: u64 },
    /// The gradients of this batch are applied: the reader drops it.
    Done(BatchId),
    /// Another reader has this window with a later term: the reader drops the window.
    Stale(BatchId),
}

/// Encodes metadata.
pub(crate) fn write(metadata: &impl Serialize) -> Result<Bytes, Fault> {
    serde_json::to_vec(metadata)
        .map(Bytes::from)
        .map_err(|e| Fault::internal("the metadata of a batch cannot be written as JSON").because(e))
}

/// Decodes metadata that was received.
pub(crate) fn read<T: DeserializeOwned>(metadata: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(metadata)
        .map_err(|e| Fault::user("the metadata of a batch is not what it should be").because(e))
}
