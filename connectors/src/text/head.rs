//! Reads the beginning of a text file, unpacked.

use std::io::Read;

use bytes::Bytes;
use forebay_actors::Fault;

use super::bad_row::MAX_LINE;
use super::decompress::{GzipReader, TextCompression, not_unpacked};
use crate::file::DataFile;

/// Some programs, such as Excel, begin a file of UTF-8 with it.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The encoding other than UTF-8 that the byte order mark of a text says, as `iconv` calls it.
pub(crate) fn marked_encoding(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        _ => None,
    }
}

/// Bytes that are read at first: they hold the header of nearly every file.
const FIRST: u64 = 64 << 10;

/// The first bytes of a file, unpacked: at least its first line, unless that is longer than [`MAX_LINE`].
///
/// # Errors
/// A user fault if the file is damaged or packed otherwise than its name says; an external fault of the store.
pub(crate) async fn read_head(file: &DataFile) -> Result<Vec<u8>, Fault> {
    let mut end = FIRST.min(file.size);
    loop {
        let packed = file.read(0..end).await?;
        let head = unpack(file, &packed)?;
        if end == file.size || head.len() > MAX_LINE || memchr::memchr(b'\n', &head).is_some() {
            return Ok(head);
        }
        end = (end * 4).min(file.size);
    }
}

/// The unpacked first bytes of a file, at most a little more than the longest line.
fn unpack(file: &DataFile, packed: &Bytes) -> Result<Vec<u8>, Fault> {
    let mut reader: Box<dyn Read + '_> = match TextCompression::of(&file.name) {
        TextCompression::Plain => Box::new(&packed[..]),
        TextCompression::Gzip => Box::new(GzipReader::new(&packed[..])),
        TextCompression::Zstd => {
            Box::new(zstd::stream::read::Decoder::new(&packed[..]).map_err(|e| not_unpacked(&file.name, e))?)
        }
    };
    let (mut head, mut piece) = (Vec::new(), [0; 16 << 10]);
    while head.len() <= MAX_LINE {
        match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => head.extend_from_slice(&piece[..n]),
            // The bytes end within a block. If these are all bytes of the file, the file is damaged, and the source reports it when it
            // reads the file.
            Err(_) if !head.is_empty() || (packed.len() as u64) < file.size => break,
            Err(e) => return Err(not_unpacked(&file.name, e)),
        }
    }
    Ok(head)
}
