//! Memory for ranges, used again: a range has megabytes, and fresh pages cost a fifth of the time of the read.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Most bytes that are kept while unused.
const KEPT: usize = 128 << 20;

/// Lengths are rounded up to this, so that buffers fit the next range as well.
const STEP: usize = 256 << 10;

/// Buffers that are free. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` bytes of any value. They come back when the buffer, or the last slice of its bytes, is dropped.
    pub(super) fn take(&self, len: usize) -> Buffer {
        let mut free = self.free();
        let fits = (0..free.len()).filter(|&i| free[i].len() >= len).min_by_key(|&i| free[i].len());
        let found = fits.filter(|&i| free[i].len() / 2 <= len).map(|i| free.swap_remove(i));
        drop(free);
        let bytes = found.unwrap_or_else(|| vec![0; len.next_multiple_of(STEP)]);
        Buffer { bytes, len, home: self.clone() }
    }
}

/// See [`Buffers::take`].
pub(super) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Buffers,
}

impl Buffer {
    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        let mut free = self.home.free();
        let mut kept: usize = free.iter().map(Vec::len).sum();
        free.push(bytes);
        // The oldest buffers are freed first: recently used ones fit best.
        kept += free.last().map_or(0, Vec::len);
        while kept > KEPT {
            kept -= free.remove(0).len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_its_bytes_are_gone() {
        let buffers = Buffers::default();
        let len = 3 * STEP + 17;
        let mut buffer = buffers.take(len);
        assert_eq!(buffer.as_mut().len(), len);
        buffer.as_mut().fill(7);
        let at = buffer.as_ref().as_ptr();
        let bytes = buffer.freeze();
        let slice = bytes.slice(len - 2..);
        drop(bytes);
        assert_ne!(buffers.take(len).as_ref().as_ptr(), at, "a slice is alive");
        assert_eq!(slice, [7, 7][..]);
        drop(slice);
        let again: Vec<_> = (0..3).map(|_| buffers.take(len)).collect();
        assert!(again.iter().any(|b| b.as_ref().as_ptr() == at));
        drop(again);
        let all: Vec<_> = (0..10).map(|_| buffers.take(16 << 20)).collect();
        drop(all);
        assert!(buffers.free().iter().map(Vec::len).sum::<usize>() <= KEPT);
    }
}
