//! Decodes bytes as a server does, from the body of a request to columns: for fuzzing and its corpus.

use arrow::array::Array as _;
use bytes::{Buf, Bytes};
use forebay_actors::{Domain, Fault};

use crate::decode::Decoder;
use crate::encode::Encoder;
use crate::message::Message;
use crate::rope::Rope;
use crate::wire::{Flight, PREFIX, claimed_len};

/// The domain of the fault of bad bytes.
pub const REFUSED: Domain = Domain::User;

/// Reads messages until there are no more, or one is refused. Looks at every value that it has read.
pub fn read(bytes: &[u8]) -> Result<Vec<Message>, Fault> {
    let (mut decoder, mut messages, mut stream) = (Decoder::new(None, usize::MAX), Vec::new(), Rope::default());
    // In pieces, as from the network.
    bytes.chunks(1000).for_each(|piece| stream.push(Bytes::copy_from_slice(piece)));
    while let Some(prefix) = stream.peek::<PREFIX>() {
        let len = claimed_len(prefix, bytes.len())?;
        stream.advance(PREFIX);
        if len > stream.remaining() {
            return Err(Fault::user("ended within a message"));
        }
        if let Some(message) = decoder.decode(Flight::decode(stream.split_to(len))?)? {
            for column in message.batch.iter().flat_map(|batch| batch.columns()) {
                let whole = column.to_data().validate_full();
                whole.map_err(|e| Fault::internal("columns that are not valid were let in").because(e))?;
            }
            messages.push(message);
        }
    }
    Ok(messages)
}

/// The bytes that a peer would send for these messages.
pub fn written(messages: &[Message]) -> Result<Vec<u8>, Fault> {
    let mut encoder = Encoder::new(None, usize::MAX);
    let mut bytes = Vec::new();
    for message in messages {
        encoder.encode(message)?.iter().for_each(|piece| bytes.extend_from_slice(piece));
    }
    Ok(bytes)
}
