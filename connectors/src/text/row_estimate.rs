//! An estimate of the rows of text, from the splits that were read.

/// The bytes and rows of the splits that were read whole.
#[derive(Debug, Default)]
pub(super) struct RowEstimate {
    bytes: u64,
    rows: u64,
    /// The epoch and the place of the split that is being read, and its bytes.
    current: Option<((u32, u32), u64)>,
}

impl RowEstimate {
    /// Notes a part of this split of `bytes`, after `rows` rows of earlier splits and of this one.
    pub(super) fn reads(&mut self, split: (u32, u32), bytes: u64, rows: u64) {
        if let Some((_, whole)) = self.current.filter(|(current, _)| *current != split) {
            self.bytes += whole;
            self.rows = rows;
        }
        if self.current.is_none_or(|(current, _)| current != split) {
            self.current = Some((split, bytes));
        }
    }

    /// The rows of this many bytes; `None` before the first split was read whole.
    pub(super) fn rows_of(&self, bytes: u64) -> Option<u64> {
        (self.bytes > 0 && self.rows > 0).then(|| (self.rows as f64 * (bytes as f64 / self.bytes as f64)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_that_were_read_whole_say_how_many_rows_the_others_have() {
        let mut estimate = RowEstimate::default();
        estimate.reads((0, 0), 1000, 0);
        estimate.reads((0, 0), 1000, 10);
        assert_eq!(estimate.rows_of(5000), None, "the first split goes on");
        estimate.reads((0, 1), 500, 20);
        assert_eq!(estimate.rows_of(5000), Some(100));
        estimate.reads((1, 1), 500, 26);
        assert_eq!(estimate.rows_of(15_000), Some(260), "the same place in the next epoch");
        let mut empty = RowEstimate::default();
        empty.reads((0, 0), 1000, 0);
        empty.reads((0, 1), 1000, 0);
        assert_eq!(empty.rows_of(5000), None, "no row yet");
    }
}
