//! The metadata of the messages between a reader and a trainer, in Flight's `app_metadata`.
//!
//! A reader sends [`Header`]s, each with the columns of one batch. A trainer sends [`Reply`]s, in no fixed order.

use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{MetadataReader, MetadataWriter};

use crate::flow::{BatchId, WindowEnd};

/// Flags of a [`Header`].
const CLOSES: u8 = 1;
const URGENT: u8 = 2;

/// Kinds of [`Reply`].
const CHANNEL: u8 = 1;
const GRANT: u8 = 2;
const DONE: u8 = 3;
const STALE: u8 = 4;

/// Sent by a reader with the columns of a batch.
///
/// ```text
///   flags | epoch u32 | window u64 | index u32 | term u32 | split u32 | row u64 | done_before u32
///         | batches u32 | rows u64 | rejected u64 | labels u32 | other_rows u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Its batch.
    pub id: BatchId,
    /// How many times its window was leased before.
    pub term: u32,
    /// The split that it came from, for error messages.
    pub split: u32,
    /// The row of the split that it begins with.
    pub row: u64,
    /// Set on the last batch of a window.
    pub closes: Option<WindowEnd>,
    /// The number of batches at the start of its window that are done.
    pub done_before: u32,
    /// The batch takes no credit, because it precedes every batch that its reader has sent on the channel, and these may wait for it. So
    /// later batches do not block batches of a lost lease.
    pub urgent: bool,
    /// Labels of a row.
    pub labels: u32,
    /// As [`TrainBatch::other_rows`](crate::TrainBatch::other_rows).
    pub other_rows: u32,
}

impl Header {
    /// Its bytes.
    pub fn write(&self) -> Bytes {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let end = self.closes.unwrap_or(WindowEnd { batches: 0, rows: 0, rejected: 0 });
        write_id(flag(self.closes.is_some(), CLOSES) | flag(self.urgent, URGENT), self.id)
            .u32(self.term)
            .u32(self.split)
            .u64(self.row)
            .u32(self.done_before)
            .u32(end.batches)
            .u64(end.rows)
            .u64(end.rejected)
            .u32(self.labels)
            .u32(self.other_rows)
            .finish([])
    }

    /// Reads the value from its bytes.
    ///
    /// # Errors
    /// User: the bytes are no header.
    pub fn read(metadata: &[u8]) -> Result<Self, Fault> {
        let mut fields = MetadataReader::new(metadata, "header of a batch", 64)?;
        let flags = fields.tag();
        if flags & !(CLOSES | URGENT) != 0 {
            return Err(Fault::user(format!("the header of a batch has the flags {flags:#x}; no reader sends them")));
        }
        let (id, term, split, row) = (read_id(&mut fields), fields.u32(), fields.u32(), fields.u64());
        let done_before = fields.u32();
        let end = WindowEnd { batches: fields.u32(), rows: fields.u64(), rejected: fields.u64() };
        let (labels, other_rows) = (fields.u32(), fields.u32());
        expect_end(fields)?;
        let closes = (flags & CLOSES != 0).then_some(end);
        Ok(Self { id, term, split, row, closes, done_before, urgent: flags & URGENT != 0, labels, other_rows })
    }
}

/// Sent by a trainer: its kind, and numbers or the id of a batch, in 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply {
    /// The first reply: the number of the channel, with which more streams join it. All replies come on the first stream.
    Channel(u64),
    /// Credit for more batches on this channel and for their total bytes. A batch that is larger than all bytes granted may be
    /// sent when every other batch is taken.
    Grant {
        /// How many more batches may be sent.
        batches: u32,
        /// How many more bytes.
        bytes: u64,
    },
    /// The gradients of this batch are applied: the reader drops it.
    Done(BatchId),
    /// This batch came with this term, and its window was leased again with a later term: the reader drops the window, unless it holds a
    /// later lease of the window itself.
    Stale(BatchId, u32),
}

impl Reply {
    /// Its bytes.
    pub fn write(&self) -> Bytes {
        match *self {
            Self::Channel(number) => MetadataWriter::new(CHANNEL).u64(number).u64(0).u32(0),
            Self::Grant { batches, bytes } => MetadataWriter::new(GRANT).u32(batches).u32(0).u64(bytes).u32(0),
            Self::Done(id) => write_id(DONE, id).u32(0),
            Self::Stale(id, term) => write_id(STALE, id).u32(term),
        }
        .finish([])
    }

    /// Reads the value from its bytes.
    ///
    /// # Errors
    /// User: the bytes are no reply.
    pub fn read(metadata: &[u8]) -> Result<Self, Fault> {
        let mut fields = MetadataReader::new(metadata, "reply to a reader", 20)?;
        let reply = match fields.tag() {
            CHANNEL => {
                let number = fields.u64();
                fields.u64();
                fields.u32();
                Self::Channel(number)
            }
            GRANT => {
                let batches = fields.u32();
                fields.u32();
                let bytes = fields.u64();
                fields.u32();
                Self::Grant { batches, bytes }
            }
            DONE => {
                let id = read_id(&mut fields);
                fields.u32();
                Self::Done(id)
            }
            STALE => Self::Stale(read_id(&mut fields), fields.u32()),
            kind => return Err(Fault::user(format!("a reply has the kind {kind}; no trainer sends it"))),
        };
        expect_end(fields)?;
        Ok(reply)
    }
}

fn write_id(tag: u8, id: BatchId) -> MetadataWriter {
    MetadataWriter::new(tag).u32(id.epoch).u64(id.window).u32(id.index)
}

fn read_id(fields: &mut MetadataReader<'_>) -> BatchId {
    BatchId { epoch: fields.u32(), window: fields.u64(), index: fields.u32() }
}

fn expect_end(fields: MetadataReader<'_>) -> Result<(), Fault> {
    match fields.tail() {
        [] => Ok(()),
        tail => Err(Fault::user(format!("the metadata of a batch has {} bytes after its end", tail.len()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn metadata_survives_writing_and_reading(
            epoch: u32, window: u64, index: u32, numbers: [u32; 3], row: u64, closes: bool, urgent: bool,
        ) {
            let [term, split, done_before] = numbers;
            let id = BatchId { epoch, window, index };
            let closes = closes.then_some(WindowEnd { batches: index, rows: row, rejected: window });
            let (labels, other_rows) = (term ^ split, index ^ term);
            let header = Header { id, term, split, row, closes, done_before, urgent, labels, other_rows };
            prop_assert_eq!(Header::read(&header.write()).unwrap(), header);
            let grant = Reply::Grant { batches: index, bytes: row };
            for reply in [Reply::Channel(window), grant, Reply::Done(id), Reply::Stale(id, term)] {
                prop_assert_eq!(Reply::read(&reply.write()).unwrap(), reply);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(tag in 0_u8..6, mut metadata in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(start) = metadata.first_chunk_mut::<2>() {
                *start = [1, tag];
            }
            if let Ok(header) = Header::read(&metadata) {
                // The two bytes after the tag and the end of a window that is not closed are not looked at.
                prop_assert_eq!(Header::read(&header.write()).unwrap(), header);
            }
            if let Ok(reply) = Reply::read(&metadata) {
                prop_assert_eq!(Reply::read(&reply.write()).unwrap(), reply);
            }
        }
    }
}
