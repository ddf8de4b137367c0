//! Flight's messages as they lie on the wire: gRPC's prefix of five bytes, then protobuf.
//!
//! The format is as in any Flight implementation. This file and not prost encodes and decodes it, so that columns are never copied on the
//! way out, and only once, into aligned memory, on the way in.

use arrow::buffer::Buffer;
use arrow_flight::FlightDescriptor;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use forebay_actors::{Fault, FaultKind};
use prost::Message as _;
use prost::encoding::{self, DecodeContext, WireType};

use crate::rope::Rope;

/// Compressed or not, and the length.
pub(crate) const PREFIX: usize = 5;
/// Pieces smaller than this are copied together: each piece is a frame of HTTP/2 and a write to the socket, which cost both ends more than
/// the copy.
const SMALL: usize = 64 << 10;

const DESCRIPTOR: u32 = 1;
const HEADER: u32 = 2;
const METADATA: u32 = 3;
const BODY: u32 = 1000;

/// One FlightData message, its body in aligned memory.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) descriptor: Option<FlightDescriptor>,
    pub(crate) header: Bytes,
    pub(crate) metadata: Bytes,
    pub(crate) body: Buffer,
}

/// The length that a message of gRPC claims, checked.
pub(crate) fn claimed_len(prefix: [u8; PREFIX], most: usize) -> Result<usize, Fault> {
    let [compressed, length @ ..] = prefix;
    if compressed != 0 {
        return Err(
            Fault::user("a compressed message, and none are accepted here: send it plain").kind(FaultKind::Refused)
        );
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(too_large(length, most));
    }
    Ok(length)
}

pub(crate) fn too_large(length: usize, most: usize) -> Fault {
    Fault::user(format!("a message of {length} bytes, and at most {most} are accepted: send fewer rows at a time"))
        .kind(FaultKind::Refused)
}

impl Flight {
    /// Reads one message. Fields that are not known are skipped, and the last of a field counts, as protobuf has it.
    pub(crate) fn decode(mut message: Rope) -> Result<Flight, Fault> {
        let broken = |e: prost::DecodeError| Fault::user("a message that is not Flight's").because(e);
        let mut flight =
            Flight { descriptor: None, header: Bytes::new(), metadata: Bytes::new(), body: Buffer::default() };
        while message.has_remaining() {
            let (tag, wire) = encoding::decode_key(&mut message).map_err(broken)?;
            if !matches!(tag, DESCRIPTOR | HEADER | METADATA | BODY) {
                encoding::skip_field(wire, tag, &mut message, DecodeContext::default()).map_err(broken)?;
                continue;
            }
            if wire != WireType::LengthDelimited {
                return Err(Fault::user(format!("a message that is not Flight's: field {tag} is no string of bytes")));
            }
            let len = encoding::decode_varint(&mut message).map_err(broken)?;
            let len = usize::try_from(len).ok().filter(|len| *len <= message.remaining()).ok_or_else(|| {
                let left = message.remaining();
                Fault::user(format!("a message that is not Flight's: field {tag} claims {len} bytes, {left} are left"))
            })?;
            match tag {
                DESCRIPTOR => {
                    flight.descriptor = Some(FlightDescriptor::decode(message.copy_to_bytes(len)).map_err(broken)?);
                }
                HEADER => flight.header = message.copy_to_bytes(len),
                METADATA => flight.metadata = message.copy_to_bytes(len),
                _ => flight.body = message.split_to(len).into_buffer(),
            }
        }
        Ok(flight)
    }
}

/// Pieces for the socket, in order; small ones are joined.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    whole: Vec<Bytes>,
    open: BytesMut,
}

impl Pieces {
    /// Adds one message: the size of its parts and a few bytes.
    pub(crate) fn flight(
        &mut self,
        descriptor: Option<&FlightDescriptor>,
        header: &[u8],
        metadata: &[u8],
        body: Rope,
        most: usize,
    ) -> Result<(), Fault> {
        let field = |tag, len| match len {
            0 => 0,
            _ => encoding::key_len(tag) + encoding::encoded_len_varint(len as u64) + len,
        };
        let body_len = body.remaining();
        let length = descriptor.map_or(0, |d| encoding::message::encoded_len(DESCRIPTOR, d))
            + field(HEADER, header.len())
            + field(METADATA, metadata.len())
            + field(BODY, body_len);
        if length > most {
            return Err(too_large(length, most));
        }
        // Reserved at once, so that the joined bytes do not move several times.
        let joined: usize = body.pieces().map(Bytes::len).filter(|len| *len < SMALL).sum();
        self.open.reserve(PREFIX + (length - body_len) + joined);
        let out = &mut self.open;
        out.put_u8(0);
        out.put_u32(u32::try_from(length).map_err(|_| too_large(length, u32::MAX as usize))?);
        if let Some(descriptor) = descriptor {
            encoding::message::encode(DESCRIPTOR, descriptor, out);
        }
        for (tag, bytes) in [(HEADER, header), (METADATA, metadata)] {
            if !bytes.is_empty() {
                encoding::encode_key(tag, WireType::LengthDelimited, out);
                encoding::encode_varint(bytes.len() as u64, out);
                out.put_slice(bytes);
            }
        }
        if body_len > 0 {
            encoding::encode_key(BODY, WireType::LengthDelimited, out);
            encoding::encode_varint(body_len as u64, out);
            body.into_pieces().for_each(|piece| self.put(piece));
        }
        Ok(())
    }

    fn put(&mut self, piece: Bytes) {
        if piece.len() < SMALL {
            self.open.put_slice(&piece);
        } else {
            self.close();
            self.whole.push(piece);
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.whole.push(self.open.split().freeze());
        }
    }

    /// Everything that was added since the last call.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
        self.close();
        std::mem::take(&mut self.whole)
    }
}

/// One protobuf message in gRPC's frame.
pub(crate) fn framed(message: &impl prost::Message) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX + message.encoded_len());
    out.put_u8(0);
    out.put_u32(message.encoded_len() as u32);
    message.encode(&mut out).expect("a growing buffer has room");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lengths: &[usize]) -> Rope {
        let mut body = Rope::default();
        lengths.iter().for_each(|len| body.push(Bytes::from(vec![7; *len])));
        body
    }

    /// The lengths of the pieces of one message.
    fn lengths(parts: &[usize]) -> Vec<usize> {
        let mut pieces = Pieces::default();
        pieces.flight(None, &[1; 300], &[2; 60], body(parts), usize::MAX).unwrap();
        pieces.take().iter().map(Bytes::len).collect()
    }

    #[test]
    fn small_parts_of_a_message_are_one_piece_with_its_header() {
        let [all] = lengths(&[SMALL - 1, 8, SMALL - 1])[..] else { panic!("more than one piece") };
        assert!(all > 2 * SMALL + 300 && all < 2 * SMALL + 500, "{all} bytes");
        let [head, large, tail] = lengths(&[8, SMALL, 9, 10])[..] else {
            panic!("three pieces, the second not copied")
        };
        assert!(head > 368 && head < 500 && large == SMALL && tail == 19, "{head}, {large}, {tail} bytes");
    }

    #[test]
    fn a_large_part_is_sent_from_where_it_lies() {
        let part = Bytes::from(vec![7; SMALL]);
        let (mut rope, mut pieces) = (Rope::default(), Pieces::default());
        rope.push(part.clone());
        pieces.flight(None, &[], &[], rope, usize::MAX).unwrap();
        assert!(pieces.take().iter().any(|piece| piece.as_ptr() == part.as_ptr()));
    }
}
