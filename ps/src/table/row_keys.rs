//! The key of every row, by row number, which the index cannot give.
//!
//! 8 bytes per row, held from the first snapshot of a table on. A new row brings its key. The keys of rows that are older than the list are
//! copied from the index in slices, so that no call waits for the whole index.

use super::index::Index;
use super::index::scan::Scan;

/// Keys per chunk: 1 MiB. Chunks never move, so a list that grows copies nothing.
const CHUNK: usize = 1 << 17;

/// Slots of the index that one slice reads: 2 MiB of slots, two or three milliseconds.
const SLICE: usize = 1 << 17;

/// Chunks of memory that one slice takes: clearing them takes about a millisecond.
const NEW_CHUNKS: usize = 4;

/// The keys by row number.
pub(super) struct RowKeys {
    /// A chunk is empty until it is needed.
    chunks: Vec<Vec<u64>>,
    /// What is left to do for the rows that are older than the list; nothing once all keys are listed.
    left: Option<Left>,
}

/// The rest of the work.
struct Left {
    /// Chunks that have their memory. All chunks get it before the first key, because neighbours in the index are far apart in this list.
    chunks: usize,
    scan: Scan,
}

impl RowKeys {
    /// A list for a table that has `rows` rows already.
    pub(super) fn new(rows: usize) -> Self {
        let chunks = vec![Vec::new(); rows.div_ceil(CHUNK)];
        Self { chunks, left: (rows > 0).then(|| Left { chunks: 0, scan: Scan::default() }) }
    }

    #[inline]
    pub(super) fn set(&mut self, row: u32, key: u64) {
        let (chunk, at) = (row as usize / CHUNK, row as usize % CHUNK);
        match self.chunks.get_mut(chunk).and_then(|keys| keys.get_mut(at)) {
            Some(place) => *place = key,
            None => self.add_chunk(chunk)[at] = key,
        }
    }

    #[cold]
    fn add_chunk(&mut self, chunk: usize) -> &mut [u64] {
        if self.chunks.len() <= chunk {
            self.chunks.resize(chunk + 1, Vec::new());
        }
        let keys = &mut self.chunks[chunk];
        // Not zeros: the system would clear their pages later, at the first key of each.
        keys.resize(CHUNK, u64::MAX);
        keys
    }

    /// The key of a row, once all are listed.
    pub(super) fn get(&self, row: u32) -> u64 {
        debug_assert!(self.left.is_none());
        self.chunks[row as usize / CHUNK][row as usize % CHUNK]
    }

    /// Lists the keys of one slice of the index; true when all are listed.
    pub(super) fn list_slice(&mut self, index: &Index) -> bool {
        let Some(Left { chunks, mut scan }) = self.left.take() else { return true };
        let end = self.chunks.len().min(chunks + NEW_CHUNKS);
        if chunks < end {
            for chunk in chunks..end {
                if self.chunks[chunk].is_empty() {
                    self.add_chunk(chunk);
                }
            }
            self.left = Some(Left { chunks: end, scan });
            return false;
        }
        let done = index.scan(&mut scan, SLICE, |key, row| self.set(row, key));
        self.left = (!done).then_some(Left { chunks, scan });
        done
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.capacity() * 8).sum()
    }
}
