//! Compressed columns: only if both ends are configured so, and within the memory that a message may have.
//!
//! Columns that would unpack to more than they claim, or claim more than is accepted, are refused before Arrow
//! unpacks them. Checking LZ4 costs one more pass over it.

use std::io::Read;

use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc;
use arrow::ipc::writer::IpcWriteOptions;
use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

use crate::message::refused;

/// How columns are compressed on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// LZ4 frames: fast, about half the size of keys and floats.
    Lz4,
    /// Zstandard: slower, smaller.
    Zstd,
}

impl Compression {
    fn codec(self) -> ipc::CompressionType {
        match self {
            Self::Lz4 => ipc::CompressionType::LZ4_FRAME,
            Self::Zstd => ipc::CompressionType::ZSTD,
        }
    }
}

/// The writer's options.
pub(crate) fn options(compression: Option<Compression>) -> Result<IpcWriteOptions, ArrowError> {
    IpcWriteOptions::default().try_with_compression(compression.map(Compression::codec))
}

/// Bytes before each compressed buffer: the length that it unpacks to.
const PREFIX: usize = 8;
/// In place of the length: not compressed after all.
const PLAIN: i64 = -1;

/// Looks at the compressed buffers of a batch whose places lie in `body`, before Arrow unpacks them.
pub(crate) fn check(
    batch: ipc::RecordBatch<'_>,
    body: &Buffer,
    accepted: Option<Compression>,
    most: usize,
) -> Result<(), Fault> {
    let Some(found) = batch.compression() else { return Ok(()) };
    let codec = found.codec();
    if accepted.is_none_or(|accepted| accepted.codec() != codec) {
        let accepted = accepted.map_or_else(|| "plain ones only".to_owned(), |accepted| format!("{accepted:?} only"));
        let found = codec.variant_name().unwrap_or("unknown");
        return Err(refused(format!("columns compressed by {found}, and {accepted} are accepted here")));
    }
    let mut whole = 0_usize;
    for place in batch.buffers().iter().flatten() {
        // The caller has checked that the buffer lies within the body.
        let buffer = &body[place.offset() as usize..][..place.length() as usize];
        if buffer.is_empty() {
            continue;
        }
        let Some((prefix, packed)) = buffer.split_first_chunk::<PREFIX>() else {
            return Err(refused("a compressed buffer that is shorter than its length"));
        };
        let claimed = match i64::from_le_bytes(*prefix) {
            PLAIN => packed.len(),
            claimed => {
                usize::try_from(claimed).map_err(|_| refused(format!("a buffer that unpacks to {claimed} bytes")))?
            }
        };
        whole = whole.saturating_add(claimed);
        if whole > most {
            return Err(refused(format!("columns that unpack to {whole} bytes or more, of at most {most}")));
        }
        // Arrow unpacks Zstandard into the claimed length, but LZ4 to any length.
        if accepted == Some(Compression::Lz4) && i64::from_le_bytes(*prefix) != PLAIN {
            unpacks_to(packed, claimed)?;
        }
    }
    Ok(())
}

fn unpacks_to(packed: &[u8], claimed: usize) -> Result<(), Fault> {
    let mut unpacked = lz4_flex::frame::FrameDecoder::new(packed).take(claimed as u64 + 1);
    let found = std::io::copy(&mut unpacked, &mut std::io::sink()).map_err(|e| refused("damaged LZ4").because(e))?;
    if found == claimed as u64 {
        return Ok(());
    }
    Err(refused(format!("a buffer that unpacks to other than the {claimed} bytes it claims")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lz4_that_unpacks_to_other_than_it_claims_is_refused() {
        let packed = packed(&[7; 5000]);
        unpacks_to(&packed, 5000).unwrap();
        for claimed in [0, 4999, 5001] {
            assert!(unpacks_to(&packed, claimed).unwrap_err().to_string().contains("other than"), "{claimed}");
        }
        assert!(unpacks_to(&packed[..packed.len() / 2], 5000).is_err());
        assert!(unpacks_to(b"no frame", 5000).unwrap_err().to_string().contains("damaged LZ4"));
    }
}
