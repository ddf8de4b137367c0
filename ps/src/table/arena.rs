//! The rows of a table, numbered from 0, in chunks that never move.
//!
//! Adding a row may ask the system for a chunk (8 to 64 MiB, untouched until used). A chunk has a power of two of rows, so that a row is
//! found without a division, and begins on a huge page: what is left of its last page is lost.

use crate::memory::{Pages, page_of};
use crate::simd::prefetch;

/// Floats of the smallest chunks, at most: 16 MiB.
const CHUNK_WORDS: usize = 4 << 20;

/// A chunk may have up to four times the rows of the smallest one, if it loses less then.
const LARGER: u32 = 2;

/// A chunk that loses less than this share of its rows' bytes is large enough.
const MOST_LOST: f64 = 1.0 / 32.0;

/// The binary logarithm of the rows of a chunk.
fn shift_of(stride: usize) -> u32 {
    let least = (CHUNK_WORDS / stride).max(1).ilog2();
    let lost = |shift: u32| {
        let bytes = (size_of::<f32>() * stride) << shift;
        (bytes.next_multiple_of(page_of(bytes)) - bytes) as f64 / bytes as f64
    };
    let shifts = || least..=least + LARGER;
    let enough = shifts().find(|&shift| lost(shift) <= MOST_LOST);
    enough.or_else(|| shifts().min_by(|&a, &b| lost(a).total_cmp(&lost(b)))).unwrap_or(least)
}

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
        Self { chunks: Vec::new(), stride, shift: shift_of(stride), rows: 0 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the pages in which there are rows.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().enumerate();
        chunks.map(|(at, chunk)| chunk.bytes_of_first(self.rows.saturating_sub(at << self.shift) * self.stride)).sum()
    }

    /// Makes room for one [`add`](Self::add); false when the system has no memory.
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
    fn chunks_lose_little_of_their_last_page() {
        for stride in 1..2000 {
            let shift = shift_of(stride);
            let bytes = (4 * stride) << shift;
            assert!((4 << 20..=64 << 20).contains(&bytes), "{stride}: {bytes}");
            let lost = bytes.next_multiple_of(2 << 20) - bytes;
            assert!(16 * lost <= bytes, "{stride}: {lost} of {bytes}");
        }
        assert_eq!(shift_of(1 << 25), 0, "a row that is larger than a chunk");
    }

    #[test]
    fn only_pages_with_rows_count() {
        let mut arena = Arena::new(132);
        assert_eq!(arena.bytes(), 0);
        let rows_of_page = (2 << 20) / (4 * 132);
        for (rows, pages) in [(1, 1), (rows_of_page - 1, 1), (2, 2)] {
            for _ in 0..rows {
                assert!(arena.make_room());
                arena.add();
            }
            assert_eq!(arena.bytes(), pages * (2 << 20), "{} rows", arena.rows());
        }
    }

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
