//! The rows of a table, numbered from 0, in chunks that never move.
//!
//! Adding a row may ask the system for a chunk (about 16 MiB, untouched until used).

use crate::memory::Pages;
use crate::simd::prefetch;

/// Floats per chunk, about: 16 MiB.
const CHUNK_WORDS: usize = 4 << 20;

/// Rows of `stride` floats.
pub(crate) struct Arena {
    chunks: Vec<Pages<f32>>,
    stride: usize,
    /// Rows per chunk are `1 << shift`.
    shift: u32,
    rows: usize,
}

impl Arena {
    pub(crate) fn new(stride: usize) -> Self {
        Self { chunks: Vec::new(), stride, shift: (CHUNK_WORDS / stride).max(1).ilog2(), rows: 0 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(Pages::bytes).sum()
    }

    /// Makes sure that [`add`](Self::add) has room for one more row; false when the system has no memory.
    #[inline(always)]
    pub(crate) fn make_room(&mut self) -> bool {
        self.rows < self.chunks.len() << self.shift || self.add_chunk()
    }

    #[cold]
    fn add_chunk(&mut self) -> bool {
        match Pages::zeroed(self.stride << self.shift) {
            Some(chunk) => {
                self.chunks.push(chunk);
                true
            }
            None => false,
        }
    }

    /// Adds a row of zeros and returns its number. Panics without [`make_room`](Self::make_room).
    #[inline(always)]
    pub(crate) fn add(&mut self) -> u32 {
        let row = self.rows as u32;
        self.rows += 1;
        row
    }

    #[inline(always)]
    fn place(&self, row: u32) -> (usize, usize) {
        let row = row as usize;
        (row >> self.shift, (row & ((1 << self.shift) - 1)) * self.stride)
    }

    /// The row, `stride` floats.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32) -> &[f32] {
        let (chunk, at) = self.place(row);
        &self.chunks[chunk][at..at + self.stride]
    }

    /// The row, `stride` floats.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [f32] {
        let (chunk, at) = self.place(row);
        &mut self.chunks[chunk][at..at + self.stride]
    }

    /// Fetches the first `words` floats of the row ahead of their use.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32, words: usize) {
        let (chunk, at) = self.place(row);
        let start = self.chunks[chunk].as_ptr().wrapping_add(at);
        let mut line = 0;
        while line < words {
            prefetch(start.wrapping_add(line));
            line += 16;
        }
        // Rows longer than a line need not begin on one.
        if words > 16 {
            prefetch(start.wrapping_add(words - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_apart_and_never_move() {
        for stride in [1, 20, 1 << 21, (1 << 23) + 4] {
            let mut arena = Arena::new(stride);
            let rows = if stride == 1 { (4 << 20) + 10 } else { 5 };
            let mut first = std::ptr::null();
            for i in 0..rows {
                assert!(arena.make_room());
                assert_eq!(arena.add(), i);
                arena.row_mut(i)[0] = i as f32 + 0.5;
                arena.row_mut(i)[stride - 1] = i as f32;
                arena.prefetch(i, stride);
                if i == 0 {
                    first = arena.row(0).as_ptr();
                }
            }
            assert_eq!(arena.row(0).as_ptr(), first);
            assert!((0..rows).all(|i| arena.row(i).len() == stride && arena.row(i)[stride - 1] == i as f32));
            assert_eq!(arena.rows(), rows as usize);
        }
    }
}
