//! Decodes columns from a message on the wire, and checks every number in it.
//!
//! The columns of a [`Message`] lie in the body as it was received. Every claimed place and length is checked against the body before Arrow
//! reads it, and a panic of Arrow's reader becomes a fault. The bytes received bound the memory that is allocated.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::{self, MessageHeader, MetadataVersion, root_as_message_with_opts};
use flatbuffers::VerifierOptions;
use forebay_actors::Fault;
use forebay_base::catch_expected;

use crate::compression::{self, Compression};
use crate::message::{Message, refused};
use crate::wire::Flight;

/// Levels of nesting, and tables, in a header: far more than any schema in use.
const MOST_DEPTH: usize = 32;
const MOST_TABLES: usize = 100_000;
/// Bytes that a header may stand for: parts of it may be named many times over.
const MOST_APPARENT: usize = 16 << 20;
/// Rows of a batch, and elements of a column. Columns without bytes (null, say) could claim any number.
const MOST_ROWS: i64 = i32::MAX as i64;

/// One direction of a stream.
pub(crate) struct Decoder {
    /// The schema of the columns, once it has arrived.
    schema: Option<SchemaRef>,
    dictionaries: HashMap<i64, ArrayRef>,
    compression: Option<Compression>,
    most: usize,
}

impl Decoder {
    /// Accepts columns with this compression, which unpack to at most `most` bytes in a message.
    pub(crate) fn new(compression: Option<Compression>, most: usize) -> Self {
        Self { schema: None, dictionaries: HashMap::new(), compression, most }
    }

    /// `None`: a message that only prepares (a schema, a dictionary).
    pub(crate) fn decode(&mut self, flight: Flight) -> Result<Option<Message>, Fault> {
        if flight.header.is_empty() {
            if !flight.body.is_empty() {
                return Err(refused(format!("{} bytes of columns without a header", flight.body.len())));
            }
            return Ok(Some(Message::metadata(flight.metadata)).filter(|message| !message.metadata.is_empty()));
        }
        // Arrow's reader panics on some damaged messages.
        match catch_expected(|| self.columns(flight)) {
            Ok(message) => message,
            Err(_) => Err(refused("Arrow's reader panicked on it")),
        }
    }

    fn columns(&mut self, flight: Flight) -> Result<Option<Message>, Fault> {
        let options = VerifierOptions {
            max_depth: MOST_DEPTH,
            max_tables: MOST_TABLES,
            max_apparent_size: MOST_APPARENT,
            ..VerifierOptions::default()
        };
        let header = root_as_message_with_opts(&options, &flight.header)
            .map_err(|e| refused("its header is damaged").because(e.to_string()))?;
        let metadata_alone =
            || Some(Message::metadata(flight.metadata.clone())).filter(|message| !message.metadata.is_empty());
        if header.version() < MetadataVersion::V4 {
            return Err(refused("it is of an Arrow before 0.8"));
        }
        if header.header_type() == MessageHeader::Schema {
            let schema = header.header_as_schema().filter(|schema| schema.fields().is_some());
            let schema = fb_to_schema(schema.ok_or_else(|| refused("its schema has no fields"))?);
            if self.schema.as_ref().is_some_and(|known| **known != schema) {
                return Err(refused("a second schema on one stream"));
            }
            self.schema = Some(Arc::new(schema));
            return Ok(metadata_alone());
        }
        let schema = self.schema.as_ref().ok_or_else(|| refused("columns before their schema"))?;
        match header.header_type() {
            MessageHeader::DictionaryBatch => {
                let dictionary = header.header_as_dictionary_batch().ok_or_else(|| refused("no dictionary in it"))?;
                if dictionary.isDelta() {
                    return Err(refused("a delta dictionary: send dictionaries whole"));
                }
                let values = dictionary.data().ok_or_else(|| refused("no dictionary in it"))?;
                check(values, &flight.body)?;
                compression::check(values, &flight.body, self.compression, self.most)?;
                read_dictionary(&flight.body, dictionary, schema, &mut self.dictionaries, &header.version())
                    .map_err(damaged)?;
                Ok(metadata_alone())
            }
            MessageHeader::RecordBatch => {
                let batch = header.header_as_record_batch().ok_or_else(|| refused("no columns in it"))?;
                check(batch, &flight.body)?;
                compression::check(batch, &flight.body, self.compression, self.most)?;
                let (schema, version) = (Arc::clone(schema), header.version());
                let batch = read_record_batch(&flight.body, batch, schema, &self.dictionaries, None, &version);
                Ok(Some(Message { batch: Some(batch.map_err(damaged)?), metadata: flight.metadata }))
            }
            other => Err(refused(format!("a message of the kind {}", other.variant_name().unwrap_or("unknown")))),
        }
    }
}

/// Checks every number of a header against the body.
fn check(batch: ipc::RecordBatch<'_>, body: &Buffer) -> Result<(), Fault> {
    if !(0..=MOST_ROWS).contains(&batch.length()) {
        return Err(refused(format!("{} rows, from 0 to {MOST_ROWS} can be", batch.length())));
    }
    for node in batch.nodes().iter().flatten() {
        let (len, nulls) = (node.length(), node.null_count());
        if !(0..=MOST_ROWS).contains(&len) || !(0..=len).contains(&nulls) {
            return Err(refused(format!("a column of {len} elements, {nulls} of them null")));
        }
    }
    for buffer in batch.buffers().iter().flatten() {
        let (offset, len) = (buffer.offset(), buffer.length());
        let end = offset.checked_add(len).filter(|_| offset >= 0 && len >= 0);
        if end.and_then(|end| usize::try_from(end).ok()).is_none_or(|end| end > body.len()) {
            return Err(refused(format!("{len} bytes at {offset} of a body of {}", body.len())));
        }
    }
    Ok(())
}

fn damaged(e: ArrowError) -> Fault {
    refused("they do not fit their schema").because(e)
}
