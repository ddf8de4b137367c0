//! The metadata of a message as bytes: numbers of fixed width, little-endian, and perhaps a tail of raw bytes.
//!
//! ```text
//!   version u8 | tag u8 | 0 u16 | numbers: u32, u64 | tail
//! ```
//!
//! Each exchange defines the meaning of the tag and the numbers. The format is binary and not JSON, because the tail has a byte for every
//! 128 values of a batch of f16.

use bytes::Bytes;
use forebay_actors::Fault;

const VERSION: u8 = 1;

/// Version, tag, and two bytes of 0.
const PREFIX: usize = 4;

/// Writes metadata, field by field.
#[derive(Debug)]
pub struct MetadataWriter(Vec<u8>);

impl MetadataWriter {
    /// `tag` holds flags, or the kind of the message.
    pub fn new(tag: u8) -> Self {
        Self(vec![VERSION, tag, 0, 0])
    }

    /// Adds four bytes.
    #[must_use]
    pub fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds eight bytes.
    #[must_use]
    pub fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds the tail and returns all of it.
    pub fn finish(mut self, tail: impl IntoIterator<Item = u8>) -> Bytes {
        self.0.extend(tail);
        self.0.into()
    }
}

/// Reads metadata that was received, field by field.
#[derive(Debug)]
pub struct MetadataReader<'a> {
    tag: u8,
    rest: &'a [u8],
}

impl<'a> MetadataReader<'a> {
    /// Checks the version, and that there are at least `len` bytes after the first four. `what` is for the message.
    ///
    /// # Errors
    /// User: it is shorter, or has another version.
    pub fn new(metadata: &'a [u8], what: &str, len: usize) -> Result<Self, Fault> {
        let (found, expected) = (metadata.len(), PREFIX + len);
        let short = || Fault::user(format!("the metadata has {found} bytes; expected a {what} of {expected}"));
        let ([version, tag, ..], rest) = metadata.split_first_chunk::<PREFIX>().ok_or_else(short)?;
        if rest.len() < len {
            return Err(short());
        }
        match *version {
            VERSION => Ok(Self { tag: *tag, rest }),
            found => Err(Fault::user(format!(
                "the metadata has version {found}; expected {VERSION}: run one version of Forebay everywhere"
            ))),
        }
    }

    /// The tag.
    pub fn tag(&self) -> u8 {
        self.tag
    }

    /// The next four bytes.
    ///
    /// # Panics
    /// Beyond the length that was checked.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.next())
    }

    /// The next eight bytes.
    ///
    /// # Panics
    /// Beyond the length that was checked.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.next())
    }

    fn next<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.rest.split_first_chunk().expect("the length was checked at the start");
        self.rest = rest;
        *bytes
    }

    /// The bytes that have not been read.
    pub fn tail(self) -> &'a [u8] {
        self.rest
    }
}
