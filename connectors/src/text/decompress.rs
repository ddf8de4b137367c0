//! Decompresses a stream of bytes on a decode thread and passes on blocks of whole lines. It blocks while the store is behind. It holds one
//! block and one piece in memory, also for a damaged or hostile file.

use std::io::{self, BufRead, BufReader, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::GzDecoder;
use forebay_actors::{Fault, FaultKind};
use forebay_base::is_out_of_memory;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::bad_row::MAX_LINE;
use super::format::LineParser;
use super::lines::{Parsed, SplitParser};
use crate::decode_pool::{JobOutput, Stop};

/// How a file is packed, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextCompression {
    Plain,
    Gzip,
    Zstd,
}

impl TextCompression {
    pub(crate) fn of(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        match lower.rsplit('.').next() {
            Some("gz") => Self::Gzip,
            Some("zst" | "zstd") => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// Reads the pieces of a file as they arrive.
pub(crate) struct ChannelReader<'a> {
    receiver: mpsc::Receiver<Result<Bytes, Fault>>,
    piece: Bytes,
    /// The store's fault, which `io::Error` cannot carry.
    fault: Option<Fault>,
    /// Is told when the next piece is awaited.
    output: &'a JobOutput<Parsed>,
}

impl<'a> ChannelReader<'a> {
    pub(crate) fn new(receiver: mpsc::Receiver<Result<Bytes, Fault>>, output: &'a JobOutput<Parsed>) -> Self {
        Self { receiver, piece: Bytes::new(), fault: None, output }
    }

    /// The next piece; `None` at the end.
    fn next_piece(&mut self) -> Option<Result<Bytes, Fault>> {
        match self.receiver.try_recv() {
            Err(TryRecvError::Empty) => self.output.at_store(|| self.receiver.blocking_recv()),
            tried => tried.ok(),
        }
    }
}

impl Read for ChannelReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.next_piece() {
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

/// Unpacks a gzip file: any number of members, one behind the other. Zeros behind a member, with which some programs fill up blocks, are no
/// part of the file, as for gzip and Python.
pub(super) struct GzipReader<R> {
    /// `None` at the end of the file.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipReader<R> {
    pub(super) fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for GzipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let n = member.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            let at_end = skip_zeros(member.get_mut())?;
            self.member = self.member.take().filter(|_| !at_end).map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

/// Returns whether nothing is left behind the zeros.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let next = packed.fill_buf()?;
        let zeros = next.iter().take_while(|&&byte| byte == 0).count();
        if zeros == 0 {
            return Ok(next.is_empty());
        }
        packed.consume(zeros);
    }
}

/// Reads all lines of a packed file.
pub(crate) fn decompress<P: LineParser>(
    name: &str,
    compression: TextCompression,
    mut pieces: ChannelReader<'_>,
    mut parser: SplitParser<'_, P>,
) -> Result<(), Stop> {
    let done = match compression {
        TextCompression::Plain => all(&mut pieces, &mut parser),
        TextCompression::Gzip => all(&mut GzipReader::new(BufReader::new(&mut pieces)), &mut parser),
        TextCompression::Zstd => match zstd::stream::read::Decoder::new(&mut pieces) {
            Ok(mut decoder) => all(&mut decoder, &mut parser),
            Err(e) => Err(DecompressError::Io(e)),
        },
    };
    match done {
        Ok(()) => parser.finish(),
        Err(DecompressError::Stop(stop)) => Err(stop),
        Err(DecompressError::Io(e)) => Err(Stop::Fault(pieces.fault.take().unwrap_or_else(|| not_unpacked(name, e)))),
    }
}

/// What zstd says of a window of more than 128 MiB.
const WINDOW_TOO_LARGE: &str = "requires too much memory";

/// The fault of an error of a decoder.
pub(super) fn not_unpacked(name: &str, e: io::Error) -> Fault {
    let said = e.to_string();
    let fault = if is_out_of_memory(&said) {
        Fault::external(format!("cannot decompress `{name}`: the process needs more memory"))
    } else if said.contains(WINDOW_TOO_LARGE) {
        Fault::user(format!(
            "cannot decompress `{name}`: it needs a window of more than 128 MiB: pack it again with `zstd --long=27` or less"
        ))
    } else {
        Fault::user(format!(
            "cannot decompress `{name}`: it is damaged, was cut short, or has another compression than its name says"
        ))
        .kind(FaultKind::BadData)
    };
    fault.because(e)
}

enum DecompressError {
    Stop(Stop),
    Io(io::Error),
}

impl From<Stop> for DecompressError {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

fn all<P: LineParser>(reader: &mut impl Read, parser: &mut SplitParser<'_, P>) -> Result<(), DecompressError> {
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
            Err(e) => return Err(DecompressError::Io(e)),
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

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;

    use super::*;

    /// A bug: zeros behind the end were called damage.
    #[test]
    fn zeros_behind_a_member_of_gzip_are_skipped() {
        let packed = |text: &[u8]| {
            let mut packer = flate2::read::GzEncoder::new(text, flate2::Compression::default());
            let mut packed = Vec::new();
            packer.read_to_end(&mut packed).unwrap();
            packed
        };
        let zeros = vec![0; 3000];
        let unpacked = |packed: &[u8]| {
            let mut text = String::new();
            GzipReader::new(BufReader::with_capacity(512, packed)).read_to_string(&mut text).map(|_| text)
        };
        for between in [&zeros[..0], &zeros[..]] {
            let whole = [&packed(b"a\n")[..], between, &packed(b"")[..], &packed(b"b\n")[..], &zeros[..]].concat();
            assert_eq!(unpacked(&whole).unwrap(), "a\nb\n");
        }
        let whole = packed(b"a\n");
        assert!(unpacked(&whole[..whole.len() - 1]).is_err(), "cut short");
        assert!(unpacked(&[&whole[..], &zeros[..], &b"x"[..]].concat()).is_err(), "no member");
        assert!(unpacked(&zeros).is_err());
    }

    /// A bug: if the decoder got no memory, the fault said that the file is damaged.
    #[test]
    fn want_of_memory_is_no_damage() {
        let of = |code: usize| not_unpacked("a", io::Error::other(zstd::zstd_safe::get_error_name(code)));
        // ZSTD_error_memory_allocation, and ZSTD_error_corruption_detected.
        let (memory, damage) = (of(0_usize.wrapping_sub(64)), of(0_usize.wrapping_sub(20)));
        assert!(memory.domain == Domain::External && memory.to_string().contains("more memory"), "{memory}");
        assert!(damage.domain == Domain::User && damage.to_string().contains("damaged"), "{damage}");
        // ZSTD_error_frameParameter_windowTooLarge.
        let window = of(0_usize.wrapping_sub(16));
        assert!(window.domain == Domain::User && window.to_string().contains("zstd --long=27"), "{window}");
        assert!(!window.to_string().contains("damaged"), "{window}");
    }
}
