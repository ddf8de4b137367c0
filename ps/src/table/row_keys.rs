//! The key of every row, by row number: what an index cannot tell.
//!
//! 8 bytes per row, held from the first snapshot of a table on. A new row brings its key; the keys of rows that are older
//! than the list are copied from the index in slices, so that no call waits for all of them.

use super::index::Index;
use super::index::scan::Scan;

/// Keys per chunk: 1 MiB. Chunks never move, so a list that grows copies nothing.
const CHUNK: usize = 1 << 17;

/// Slots of the index that one slice reads: 2 MiB of slots, two or three milliseconds.
const SLICE: usize = 1 << 17;

/// The keys by row number.
pub(super) struct RowKeys {
    chunks: Vec<Vec<u64>>,
    /// Where the scan of the index stands; none once all keys are listed.
    scan: Option<Scan>,
}

impl RowKeys {
    /// A list for a table that has `rows` rows already.
    pub(super) fn new(rows: usize) -> Self {
        let chunks = (0..rows.div_ceil(CHUNK)).map(|_| vec![0; CHUNK]).collect();
        Self { chunks, scan: (rows > 0).then(Scan::default) }
    }

    /// Sets the key of a row.
    #[inline]
    pub(super) fn set(&mut self, row: u32, key: u64) {
        let (chunk, at) = (row as usize / CHUNK, row as usize % CHUNK);
        while self.chunks.len() <= chunk {
            self.chunks.push(vec![0; CHUNK]);
        }
        self.chunks[chunk][at] = key;
    }

    /// The key of a row, once all are listed.
    pub(super) fn get(&self, row: u32) -> u64 {
        debug_assert!(self.scan.is_none());
        self.chunks[row as usize / CHUNK][row as usize % CHUNK]
    }

    /// Lists the keys of one slice of the index; true when all are listed.
    pub(super) fn list_slice(&mut self, index: &Index) -> bool {
        let Some(mut scan) = self.scan.take() else { return true };
        let done = index.scan(&mut scan, SLICE, |key, row| self.set(row, key));
        self.scan = (!done).then_some(scan);
        done
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * 8
    }
}
