//! Compressed text: decompresses a stream of bytes and hands on blocks of whole lines.
//!
//! Comes in: pieces of a `.gz` or `.zst` file over a bounded channel. Goes out: lines, to the [`TextParser`]. Runs on a
//! decode thread; blocks while the store is behind. Memory: one block and one piece, whatever the file says of itself.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use forebay_actors::Fault;
use tokio::sync::mpsc;

use super::bad::MAX_LINE;
use super::text::TextParser;
use crate::pool::Stop;

/// How a file is packed, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    pub(crate) fn of(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        match lower.rsplit('.').next() {
            Some("gz") => Self::Gzip,
            Some("zst" | "zstd") => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// Pieces of a file as they arrive.
pub(crate) struct Pieces {
    receiver: mpsc::Receiver<Result<Bytes, Fault>>,
    piece: Bytes,
    /// The store's fault, which `io::Error` cannot carry.
    fault: Option<Fault>,
}

impl Pieces {
    pub(crate) fn new(receiver: mpsc::Receiver<Result<Bytes, Fault>>) -> Self {
        Self { receiver, piece: Bytes::new(), fault: None }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(fault)) => {
                    self.fault = Some(fault);
                    return Err(io::Error::other("the store failed"));
                }
                None => return Ok(0),
            }
        }
        let n = buffer.len().min(self.piece.len());
        buffer[..n].copy_from_slice(&self.piece[..n]);
        self.piece.advance(n);
        Ok(n)
    }
}

/// Reads all lines of a packed file.
pub(crate) fn unpack(name: &str, packing: Packing, mut pieces: Pieces, mut parser: TextParser<'_>) -> Result<(), Stop> {
    let done = match packing {
        Packing::Plain => all(&mut pieces, &mut parser),
        Packing::Gzip => all(&mut flate2::read::MultiGzDecoder::new(&mut pieces), &mut parser),
        Packing::Zstd => match zstd::stream::read::Decoder::new(&mut pieces) {
            Ok(mut decoder) => all(&mut decoder, &mut parser),
            Err(e) => Err(Ended::Io(e)),
        },
    };
    match done {
        Ok(()) => parser.finish(),
        Err(Ended::Stop(stop)) => Err(stop),
        Err(Ended::Io(e)) => Err(Stop::Fault(pieces.fault.take().unwrap_or_else(|| {
            Fault::user(format!(
                "cannot decompress `{name}`: it is damaged, was cut short, or is packed otherwise than its name says"
            ))
            .because(e)
        }))),
    }
}

enum Ended {
    Stop(Stop),
    Io(io::Error),
}

impl From<Stop> for Ended {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

fn all(reader: &mut impl Read, parser: &mut TextParser<'_>) -> Result<(), Ended> {
    // The longest line and its end fit, and the whole remainder of it.
    let mut block = vec![0u8; MAX_LINE + (256 << 10)];
    let mut filled = 0;
    let mut offset = 0u64;
    // Inside a line whose beginning was rejected already.
    let mut passing = false;
    loop {
        let n = match reader.read(&mut block[filled..]) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Ended::Io(e)),
        };
        filled += n;
        let end_of_file = n == 0;
        if passing {
            let end = memchr::memchr(b'\n', &block[..filled]).map(|end| end + 1);
            let gone = end.unwrap_or(filled);
            block.copy_within(gone..filled, 0);
            (filled, offset, passing) = (filled - gone, offset + gone as u64, end.is_none());
            if end_of_file && filled == 0 {
                return Ok(());
            }
        }
        if end_of_file {
            parser.lines(&block[..filled], offset)?;
            return Ok(());
        }
        if filled < block.len() {
            continue;
        }
        let whole = memchr::memrchr(b'\n', &block[..filled]).map_or(0, |end| end + 1);
        parser.lines(&block[..whole], offset)?;
        block.copy_within(whole..filled, 0);
        (filled, offset) = (filled - whole, offset + whole as u64);
        if filled > MAX_LINE {
            parser.too_long(&block[..filled], offset)?;
            (filled, offset, passing) = (0, offset + filled as u64, true);
        }
    }
}
