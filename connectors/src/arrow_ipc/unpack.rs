//! Turns the wanted buffers of a message into arrays: fetches them, unpacks them, and has Arrow's decoder read a message that has no other
//! buffers. Allocations follow the bytes that are there, not the lengths that they claim.

use std::collections::HashMap;
use std::io::Read;

use arrow::array::ArrayRef;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::read_record_batch;
use arrow::ipc::{self, CompressionType, FieldNode};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;
use forebay_actors::Fault;
use futures::future::try_join_all;

use super::blocks::Block;
use crate::file::DataFile;

/// Bytes before each compressed buffer: the length that it unpacks to.
const PREFIX: usize = 8;
/// In place of the length: not compressed after all.
const PLAIN: i64 = -1;
/// Bytes that the columns of one message may unpack to.
const MOST_UNPACKED: u64 = 4 << 30;
/// Arrow wants buffers to begin at such places.
const ALIGNMENT: usize = 64;

/// The buffers of a message as they lie in the file: (place, bytes), sorted.
#[derive(Debug)]
pub(super) struct FetchedBuffers(Vec<(u64, Bytes)>);

/// Reads the wanted buffers of a message.
pub(super) async fn fetch(file: &DataFile, block: &Block) -> Result<FetchedBuffers, Fault> {
    let parts = block.requests().into_iter().map(|request| async move {
        let start = request.start;
        Ok::<_, Fault>((start, file.read(request).await?))
    });
    Ok(FetchedBuffers(try_join_all(parts).await?))
}

impl FetchedBuffers {
    /// The part that holds the buffer at `start`, and the buffer's place in it.
    fn part(&self, start: u64) -> (usize, usize) {
        let part = self.0.partition_point(|(offset, _)| *offset <= start) - 1;
        (part, (start - self.0[part].0) as usize)
    }
}

/// The arrays of a message, as a batch of `schema`. Dictionaries are found by their number.
pub(super) fn arrays(
    block: &Block,
    fetched: FetchedBuffers,
    schema: SchemaRef,
    dictionaries: &HashMap<i64, ArrayRef>,
) -> Result<RecordBatch, ArrowError> {
    let (body, places) = match block.packed {
        None => plain(block, fetched),
        Some(codec) => unpacked(block, &fetched, codec)?,
    };
    let header = header(block, &places);
    let batch = flatbuffers::root::<ipc::RecordBatch<'_>>(&header).map_err(|e| ArrowError::IpcError(e.to_string()))?;
    read_record_batch(&body, batch, schema, dictionaries, None, &block.version)
}

/// One body for all buffers, and their places in it: (offset, length). A body that came in one piece is not copied.
fn plain(block: &Block, fetched: FetchedBuffers) -> (Buffer, Vec<(usize, usize)>) {
    let mut starts = Vec::with_capacity(fetched.0.len());
    let mut end = 0_usize;
    for (_, bytes) in &fetched.0 {
        starts.push(end);
        end = (end + bytes.len()).next_multiple_of(ALIGNMENT);
    }
    let place = |range: &std::ops::Range<u64>| match range.end - range.start {
        0 => (0, 0),
        length => {
            let (part, at) = fetched.part(range.start);
            (starts[part] + at, length as usize)
        }
    };
    let places = block.buffers.iter().map(place).collect();
    let mut parts = fetched.0;
    if parts.len() == 1 {
        return (Buffer::from(parts.swap_remove(0).1), places);
    }
    let mut body = MutableBuffer::new(end);
    for (_, bytes) in parts {
        body.extend_from_slice(&bytes);
        body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
    }
    (body.into(), places)
}

fn unpacked(
    block: &Block,
    fetched: &FetchedBuffers,
    codec: CompressionType,
) -> Result<(Buffer, Vec<(usize, usize)>), ArrowError> {
    let (mut body, mut places) = (Vec::new(), Vec::with_capacity(block.buffers.len()));
    for range in &block.buffers {
        body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
        let at = body.len();
        if !range.is_empty() {
            let (part, from) = fetched.part(range.start);
            let packed = &fetched.0[part].1[from..from + (range.end - range.start) as usize];
            unpack(packed, codec, &mut body).map_err(ArrowError::IpcError)?;
        }
        places.push((at, body.len() - at));
    }
    Ok((Buffer::from_vec(body), places))
}

/// Appends the unpacked bytes of a buffer.
fn unpack(packed: &[u8], codec: CompressionType, body: &mut Vec<u8>) -> Result<(), String> {
    let (length, packed) = packed.split_first_chunk::<PREFIX>().ok_or("a compressed buffer of less than 8 bytes")?;
    let length = i64::from_le_bytes(*length);
    if length == PLAIN {
        body.extend_from_slice(packed);
        return Ok(());
    }
    let claimed = u64::try_from(length).ok().filter(|length| body.len() as u64 + length <= MOST_UNPACKED);
    let claimed = claimed.ok_or_else(|| format!("a buffer that unpacks to {length} bytes"))?;
    let from = body.len();
    // Most data shrinks to no less than an eighth; more is allocated as it comes.
    body.reserve(claimed.min(8 * packed.len() as u64) as usize);
    let read = match codec {
        CompressionType::LZ4_FRAME => {
            lz4_flex::frame::FrameDecoder::new(packed).take(claimed + 1).read_to_end(body).map_err(|e| e.to_string())
        }
        CompressionType::ZSTD => zstd::stream::read::Decoder::with_buffer(packed)
            .and_then(|decoder| decoder.take(claimed + 1).read_to_end(body))
            .map_err(|e| e.to_string()),
        other => Err(format!("columns compressed by {}", other.variant_name().unwrap_or("an unknown codec"))),
    };
    read?;
    if (body.len() - from) as u64 != claimed {
        return Err(format!("a buffer that unpacks to other than the {claimed} bytes that it claims"));
    }
    Ok(())
}

/// The header of a message with these buffers alone.
fn header(block: &Block, places: &[(usize, usize)]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<FieldNode> = block.nodes.iter().map(|&(length, nulls)| FieldNode::new(length, nulls)).collect();
    let buffers: Vec<ipc::Buffer> =
        places.iter().map(|&(offset, length)| ipc::Buffer::new(offset as i64, length as i64)).collect();
    let nodes = builder.create_vector(&nodes);
    let buffers = builder.create_vector(&buffers);
    let views = builder.create_vector(&block.views);
    let mut batch = ipc::RecordBatchBuilder::new(&mut builder);
    batch.add_length(block.rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    batch.add_variadicBufferCounts(views);
    let batch = batch.finish();
    builder.finish(batch, None);
    builder.finished_data().to_vec()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(claimed: i64, codec: CompressionType, bytes: &[u8]) -> Vec<u8> {
        let mut packed = claimed.to_le_bytes().to_vec();
        if codec == CompressionType::ZSTD {
            packed.extend(zstd::bulk::compress(bytes, 1).unwrap());
        } else {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(&mut packed);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap();
        }
        packed
    }

    #[test]
    fn a_buffer_unpacks_to_what_it_claims_or_not_at_all_and_claims_allocate_nothing() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let unpack = |claimed| {
                let mut body = vec![9];
                unpack(&packed(claimed, codec, &[7; 5000]), codec, &mut body).map(|()| body)
            };
            assert_eq!(unpack(5000).unwrap()[1..], [7; 5000]);
            for claimed in [0, 4999, 5001, i64::MAX, i64::MIN, 3 << 30] {
                let said = unpack(claimed).unwrap_err();
                assert!(said.contains("a buffer that unpacks to"), "{claimed}: {said}");
            }
            let mut body = Vec::new();
            let _ = super::unpack(&packed(3 << 30, codec, &[7; 50]), codec, &mut body);
            assert!(body.capacity() < 1 << 20, "{}", body.capacity());
        }
        assert!(unpack(&[1, 0, 0], CompressionType::ZSTD, &mut Vec::new()).is_err());
        let mut body = Vec::new();
        unpack(&[&PLAIN.to_le_bytes()[..], b"as it is"].concat(), CompressionType::ZSTD, &mut body).unwrap();
        assert_eq!(body, b"as it is");
    }
}
