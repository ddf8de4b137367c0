//! Rows as they were when a snapshot began, saved because they changed before the snapshot reached them.
//!
//! Rows are kept in buckets of neighbours, in the order in which they are saved. A snapshot reads rows in row order, so it
//! sorts one bucket at a time, and frees each bucket that it has passed. No list is ever copied as a whole: a bucket
//! holds at most half a MiB.

/// Floats per bucket, about, if all its rows are saved.
const BUCKET_WORDS: usize = 1 << 17;

#[derive(Default)]
struct Bucket {
    /// Row numbers, in the order of saving.
    rows: Vec<u32>,
    /// As many rows of `words` floats.
    data: Vec<f32>,
}

/// The saved rows of one snapshot.
pub(super) struct SavedRows {
    /// Floats per row.
    words: usize,
    /// Rows per bucket are `1 << shift`.
    shift: u32,
    buckets: Vec<Bucket>,
    bytes: usize,
    /// Buckets before this one were freed.
    freed: usize,
}

impl SavedRows {
    /// For a table of `rows` rows of `words` floats.
    pub(super) fn new(rows: usize, words: usize) -> Self {
        let shift = (BUCKET_WORDS / words.max(1)).max(1).ilog2();
        let buckets = (0..rows.div_ceil(1 << shift)).map(|_| Bucket::default()).collect();
        Self { words, shift, buckets, bytes: 0, freed: 0 }
    }

    /// Saves a row: the first of its floats, and `more` at the end. Called once per row at most.
    #[inline(never)]
    pub(super) fn save(&mut self, row: u32, data: &[f32], more: &[f32]) {
        let bucket = &mut self.buckets[(row >> self.shift) as usize];
        let before = bucket.bytes();
        if bucket.rows.is_empty() {
            // Fewer moves of the data while the bucket grows. Memory without rows is never touched.
            let first = 1 << self.shift.saturating_sub(4);
            bucket.rows.reserve_exact(first);
            bucket.data.reserve_exact(first * self.words);
        }
        bucket.rows.push(row);
        bucket.data.extend_from_slice(&data[..self.words - more.len()]);
        bucket.data.extend_from_slice(more);
        self.bytes += bucket.bytes() - before;
    }

    /// A reader of rows in rising order.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { saved: self, bucket: usize::MAX, order: Vec::new(), at: 0 }
    }

    /// Frees the buckets whose rows are all below `row`.
    pub(super) fn free_before(&mut self, row: usize) {
        let end = (row >> self.shift).min(self.buckets.len());
        for bucket in self.freed..end {
            self.bytes -= std::mem::take(&mut self.buckets[bucket]).bytes();
        }
        self.freed = self.freed.max(end);
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.buckets.capacity() * size_of::<Bucket>()
    }
}

impl Bucket {
    fn bytes(&self) -> usize {
        self.rows.capacity() * 4 + self.data.capacity() * 4
    }
}

/// Reads saved rows in rising order.
pub(super) struct Reader<'a> {
    saved: &'a SavedRows,
    bucket: usize,
    /// Row and place of the saved rows of the bucket, in the order of rows.
    order: Vec<(u32, u32)>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The saved row of this number. Numbers must rise from call to call.
    pub(super) fn row(&mut self, row: u32) -> Option<&'a [f32]> {
        let bucket = (row >> self.saved.shift) as usize;
        if bucket != self.bucket {
            self.bucket = bucket;
            self.at = 0;
            self.order.clear();
            self.order.extend(self.saved.buckets.get(bucket)?.rows.iter().zip(0..).map(|(row, place)| (*row, place)));
            self.order.sort_unstable();
        }
        while self.order.get(self.at).is_some_and(|(other, _)| *other < row) {
            self.at += 1;
        }
        let (found, place) = *self.order.get(self.at)?;
        let words = self.saved.words;
        (found == row).then(|| &self.saved.buckets[bucket].data[place as usize * words..][..words])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_order_and_passed_buckets_are_freed() {
        // 64 rows per bucket.
        let mut saved = SavedRows::new(1000, 2048);
        let row = |row: u32| vec![row as f32; 2048];
        let numbers: Vec<u32> = (0..1000).filter(|row| row % 7 == 3).collect();
        numbers.iter().rev().for_each(|n| saved.save(*n, &row(*n), &[]));
        let full = saved.bytes();
        assert!(full >= numbers.len() * 2048 * 4);
        let mut reader = saved.reader();
        for n in 0..1000 {
            assert_eq!(reader.row(n).map(<[f32]>::to_vec), (n % 7 == 3).then(|| row(n)), "row {n}");
        }
        saved.free_before(500);
        assert!(saved.bytes() < full * 6 / 10, "{} of {full} bytes are held", saved.bytes());
        assert_eq!(saved.reader().row(500 - 500 % 7 + 3).map(|row| row[0]), Some(500.0));
        saved.free_before(usize::MAX >> 1);
        assert!(saved.bytes() < 2048);
    }
}
