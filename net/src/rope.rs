//! Received bytes in pieces, which are not moved until their place is known.
//!
//! A [`Buf`] over all pieces; what lies in one piece is returned without a copy.

use std::collections::VecDeque;

use arrow::buffer::{Buffer, MutableBuffer};
use bytes::{Buf, Bytes, BytesMut};

/// What Arrow's widest numbers ask for; 8 is enough for nearly all, and what the IPC format promises.
const ALIGNMENT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Rope {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Rope {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// The first `N` bytes, which stay. `None`: fewer have been received.
    pub(crate) fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = self.pieces.iter().flat_map(|piece| piece.iter().copied());
        if self.len < N {
            return None;
        }
        Some(std::array::from_fn(|_| bytes.next().expect("counted before")))
    }

    /// Takes the first `len` bytes off, without a copy.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn split_to(&mut self, len: usize) -> Rope {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        let mut front = Rope::default();
        while front.len < len {
            let piece = self.pieces.front_mut().expect("counted before");
            let taken = piece.split_to(piece.len().min(len - front.len));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            self.len -= taken.len();
            front.push(taken);
        }
        front
    }

    /// All of it as one aligned buffer: as it is when it lies in one aligned piece, else by the one copy that receiving
    /// costs.
    pub(crate) fn into_buffer(mut self) -> Buffer {
        if let [piece] = self.pieces.make_contiguous()
            && piece.as_ptr().align_offset(ALIGNMENT) == 0
        {
            return Buffer::from(std::mem::take(piece));
        }
        let mut buffer = MutableBuffer::with_capacity(self.len);
        for piece in self.pieces {
            buffer.extend_from_slice(&piece);
        }
        buffer.into()
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        self.pieces.into_iter()
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, count: usize) {
        self.split_to(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        match self.pieces.front_mut() {
            Some(piece) if piece.len() > len => {
                self.len -= len;
                piece.split_to(len)
            }
            _ => {
                let mut front = self.split_to(len);
                if front.pieces.len() <= 1 {
                    return front.pieces.pop_front().unwrap_or_default();
                }
                let mut whole = BytesMut::with_capacity(len);
                front.pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
                whole.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rope(pieces: &[Vec<u8>]) -> Rope {
        let mut rope = Rope::default();
        pieces.iter().for_each(|piece| rope.push(Bytes::from(piece.clone())));
        rope
    }

    proptest! {
        #[test]
        fn a_rope_reads_like_its_pieces_joined(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            cut in 0_usize..160,
        ) {
            let flat = pieces.concat();
            let cut = cut.min(flat.len());
            prop_assert_eq!(rope(&pieces).peek::<5>().map(Vec::from), flat.get(..5).map(Vec::from));
            prop_assert_eq!(&rope(&pieces).copy_to_bytes(cut)[..], &flat[..cut]);
            let mut rest = rope(&pieces);
            let front = rest.split_to(cut);
            let front = front.into_buffer();
            prop_assert_eq!(front.as_slice(), &flat[..cut]);
            prop_assert_eq!(rest.remaining(), flat.len() - cut);
            let buffer = rest.into_buffer();
            prop_assert_eq!(buffer.as_slice(), &flat[cut..]);
            prop_assert!(buffer.is_empty() || buffer.as_ptr().align_offset(ALIGNMENT) == 0);
        }
    }
}
