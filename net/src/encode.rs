//! Encodes a [`Message`] as pieces for the socket.
//!
//! The schema goes out once, before the first columns. Columns are not copied: their buffers go to the socket as they
//! are, except small ones, which are joined.

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamEncoder;
use arrow::record_batch::RecordBatch;
use arrow_flight::FlightDescriptor;
use bytes::{Buf, Bytes};
use forebay_actors::Fault;

use crate::compression::{self, Compression};
use crate::message::Message;
use crate::rope::Rope;
use crate::wire::Pieces;

/// One direction of a stream.
pub(crate) struct Encoder {
    columns: Option<(SchemaRef, StreamEncoder)>,
    pieces: Pieces,
    compression: Option<Compression>,
    most: usize,
}

impl Encoder {
    /// Messages of at most `most` bytes, their columns compressed or plain.
    pub(crate) fn new(compression: Option<Compression>, most: usize) -> Self {
        Self { columns: None, pieces: Pieces::default(), compression, most }
    }

    /// The first message of a client: what it wants.
    pub(crate) fn open(&mut self, descriptor: &FlightDescriptor) -> Result<Vec<Bytes>, Fault> {
        self.pieces.flight(Some(descriptor), &[], &[], Rope::default(), self.most)?;
        Ok(self.pieces.take())
    }

    /// A message that is refused leaves the stream as it was.
    pub(crate) fn encode(&mut self, message: &Message) -> Result<Vec<Bytes>, Fault> {
        match &message.batch {
            Some(batch) => self.columns(batch, &message.metadata)?,
            None => self.pieces.flight(None, &[], &message.metadata, Rope::default(), self.most)?,
        }
        Ok(self.pieces.take())
    }

    fn columns(&mut self, batch: &RecordBatch, metadata: &[u8]) -> Result<(), Fault> {
        let broken = |e| Fault::internal("cannot write columns").because(e);
        let schema = batch.schema_ref();
        let (known, encoder) = match &mut self.columns {
            Some(columns) => columns,
            None => {
                let options = compression::options(self.compression).map_err(broken)?;
                let encoder = StreamEncoder::try_new_with_options(schema, options).map_err(broken)?;
                self.columns.insert((schema.clone(), encoder))
            }
        };
        if !std::sync::Arc::ptr_eq(known, schema) && known != schema {
            return Err(Fault::internal(format!(
                "columns of a stream changed from {} to {}: one schema for each direction",
                names(known),
                names(schema)
            )));
        }
        let mut stream = Rope::default();
        for buffer in encoder.encode(batch).map_err(broken)? {
            stream.push(Bytes::from_owner(Owned(buffer)));
        }
        // The IPC stream is cut into Flight's messages: schema, dictionaries, the batch. The metadata goes with the batch.
        while stream.has_remaining() {
            let (header, body) = next_of_stream(&mut stream)?;
            let metadata = if stream.has_remaining() { &[] } else { metadata };
            self.pieces.flight(None, &header, metadata, body, self.most)?;
        }
        Ok(())
    }
}

/// An Arrow buffer as the owner of bytes on their way to the socket.
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// One encapsulated message of the IPC stream format: a marker, the length of the header, the header, the body.
fn next_of_stream(stream: &mut Rope) -> Result<(Bytes, Rope), Fault> {
    let broken = || Fault::internal("Arrow's writer wrote an IPC stream that cannot be read");
    stream.try_get_u32_le().ok().filter(|marker| *marker == u32::MAX).ok_or_else(broken)?;
    let len = stream.try_get_u32_le().map_err(|_| broken())? as usize;
    if len > stream.remaining() {
        return Err(broken());
    }
    let header = stream.copy_to_bytes(len);
    let body = root_as_message(&header).map_err(|e| broken().because(e.to_string()))?.bodyLength();
    let body = usize::try_from(body).ok().filter(|len| *len <= stream.remaining()).ok_or_else(broken)?;
    Ok((header, stream.split_to(body)))
}

fn names(schema: &SchemaRef) -> String {
    let columns = schema.fields().iter().map(|f| format!("{}: {}", f.name(), f.data_type()));
    format!("({})", columns.collect::<Vec<_>>().join(", "))
}
