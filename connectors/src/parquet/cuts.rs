//! How many jobs decode one row group. A large row group alone fills the budget of fetched bytes: with one job, one thread would decode
//! while the others wait. So its rows are cut into pieces, enough for every thread.
//!
//! Each piece decodes the dictionaries anew, so a small row group stays whole.

use crate::options::ReadOptions;

/// A piece has at least these rows, so that the dictionaries are a small part of its work.
const LEAST_ROWS: u64 = 1 << 17;

/// The budget and the threads, which decide the number of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    threads: u64,
    budget: u64,
    splits: u64,
}

impl Cuts {
    /// For a source of this many row groups.
    pub(super) fn new(options: &ReadOptions, splits: usize) -> Self {
        let threads = options.decode_threads.max(options.most_decode_threads) as u64;
        Self { threads, budget: options.read_ahead_bytes as u64, splits: splits as u64 }
    }

    /// Pieces of a row group of `bytes` fetched bytes, for `rows` rows that are read.
    pub(super) fn of(&self, bytes: u64, rows: u64) -> u64 {
        let at_once = (self.budget / bytes.max(1)).min(self.splits).max(1);
        self.threads.div_ceil(at_once).min(rows / LEAST_ROWS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(threads: usize, splits: usize) -> Cuts {
        let read_ahead_bytes = 64 << 20;
        Cuts::new(&ReadOptions { decode_threads: threads, read_ahead_bytes, ..ReadOptions::default() }, splits)
    }

    #[test]
    fn a_row_group_is_cut_as_far_as_threads_would_wait_without() {
        // (threads, row groups, bytes, rows) to pieces
        for (threads, splits, bytes, rows, pieces) in [
            (16, 100, 100 << 20, 3 << 20, 16),
            (16, 100, 100 << 20, 1 << 20, 8),
            (16, 100, 8 << 20, 1 << 20, 2),
            (16, 1, 8 << 20, 1 << 20, 8),
            (2, 100, 40 << 20, 1 << 20, 2),
            (2, 100, 32 << 20, 1 << 20, 1),
            (2, 1, 1 << 20, 1000, 1),
            (1, 1, 100 << 20, 3 << 20, 1),
            (16, 100, 0, 3 << 20, 1),
        ] {
            assert_eq!(
                cuts(threads, splits).of(bytes, rows),
                pieces,
                "{threads} threads, {splits} of {bytes} bytes, {rows} rows"
            );
        }
    }

    #[test]
    fn threads_that_may_start_later_count() {
        let options = ReadOptions { decode_threads: 1, most_decode_threads: 4, ..ReadOptions::default() };
        assert_eq!(Cuts::new(&options, 1).of(100 << 20, 1 << 20), 4);
    }
}
