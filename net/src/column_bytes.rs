//! Columns as bytes within the columns of a message: Arrow IPC streams, for columns whose schema differs from message to message.
//!
//! Received bytes are checked as messages are.

use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use forebay_actors::Fault;

use crate::decode::Decoder;
use crate::message::refused;
use crate::wire::Flight;

/// Before the length of each message of a stream.
const MARKER: [u8; 4] = [0xff; 4];

/// Batches as bytes: a stream for each, because their schemas may differ.
///
/// # Errors
/// An internal fault: Arrow cannot write these columns.
pub fn columns_to_bytes<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> Result<Vec<u8>, Fault> {
    let broken = |e: ArrowError| Fault::internal("cannot write columns").because(e);
    let mut bytes = Vec::new();
    for batch in batches {
        let mut stream = StreamWriter::try_new(&mut bytes, batch.schema_ref()).map_err(broken)?;
        stream.write(batch).map_err(broken)?;
        stream.finish().map_err(broken)?;
    }
    Ok(bytes)
}

/// The batches of [`columns_to_bytes`].
///
/// # Errors
/// A user fault: the bytes are damaged, or compressed.
pub fn columns_from_bytes(bytes: &Buffer) -> Result<Vec<RecordBatch>, Fault> {
    let cut_off = || refused("its bytes end within a message");
    let decoder = || Decoder::new(None, bytes.len());
    let (mut stream, mut batches, mut at) = (decoder(), Vec::new(), 0);
    while at < bytes.len() {
        let (marker, rest) = bytes[at..].split_first_chunk::<4>().ok_or_else(cut_off)?;
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
        if *marker != MARKER {
            return Err(refused("no message of Arrow begins where one should"));
        }
        let len = u32::from_le_bytes(*len) as usize;
        at += MARKER.len() + size_of::<u32>();
        if len == 0 {
            // The end of a stream.
            stream = decoder();
            continue;
        }
        let header = Bytes::copy_from_slice(rest.get(..len).ok_or_else(cut_off)?);
        at += len;
        let body = root_as_message(&header).map_err(|e| refused("its header is damaged").because(e.to_string()))?;
        let body = usize::try_from(body.bodyLength()).ok().filter(|body| *body <= bytes.len() - at);
        let body = body.ok_or_else(cut_off)?;
        let message =
            Flight { descriptor: None, header, metadata: Bytes::new(), body: bytes.slice_with_length(at, body) };
        at += body;
        batches.extend(stream.decode(message)?.and_then(|message| message.batch));
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array as _, ArrayRef, DictionaryArray, Int64Array, StringArray};
    use arrow::datatypes::Int32Type;
    use forebay_actors::Domain;
    use proptest::prelude::*;

    use super::*;

    fn batches() -> Vec<RecordBatch> {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(-1)]));
        let words: ArrayRef = Arc::new(StringArray::from(vec![None, Some(""), Some("a")]));
        let keys: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
        let first = RecordBatch::try_from_iter_with_nullable([("id", ids.clone(), true), ("word", words, true)]);
        let second = RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef)]);
        let first = first.unwrap();
        vec![first.clone(), second.unwrap(), first.slice(1, 1), first.slice(0, 0)]
    }

    #[test]
    fn batches_of_several_schemas_survive_writing_and_reading() {
        let bytes = columns_to_bytes(&batches()).unwrap();
        assert_eq!(columns_from_bytes(&Buffer::from_vec(bytes)).unwrap(), batches());
        assert_eq!(columns_from_bytes(&Buffer::from_vec(Vec::<u8>::new())).unwrap(), []);
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_or_valid(at in 0_usize..2000, byte: u8, keep in 0_usize..3000) {
            let mut bytes = columns_to_bytes(&batches()).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(keep);
            match columns_from_bytes(&Buffer::from_vec(bytes)) {
                Ok(batches) => for column in batches.iter().flat_map(|batch| batch.columns()) {
                    prop_assert!(column.to_data().validate_full().is_ok());
                },
                Err(fault) => prop_assert_eq!(fault.domain, Domain::User),
            }
        }
    }
}
