//! The order in which splits of text are read, and the splits of each window.
//!
//! The number of rows of a text split is not known before it is parsed. Without leases, splits are read one by one in the order
//! of the epoch. With leases, they are read window by window. A window is a fixed run of splits with about the bytes of its rows.

use std::ops::Range;
use std::sync::Arc;

use forebay_actors::{Fault, Lineage};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::decompress::TextCompression;
use crate::file::DataFile;
use crate::lease::{DataPlan, Lease, Leases, granted};
use crate::options::ReadOptions;
use crate::rows::WindowMark;
use crate::split::SplitOrder;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SplitToRead {
    /// Number of the split in the order of the listing.
    pub(crate) split: u32,
    /// Epoch and place.
    pub(crate) lineage: Lineage,
    /// `closes` if it is the last split of its window.
    pub(crate) window: WindowMark,
}

/// The splits of all windows.
pub(crate) struct TextWindows {
    splits: u32,
    /// In the order of the listing.
    windows: Vec<Range<u32>>,
    epochs: u32,
    seed: Option<u64>,
}

impl TextWindows {
    /// `splits` are (file, bytes of it); a row takes about `row_bytes`.
    pub(crate) fn new(splits: &[(u32, Range<u64>)], files: &[DataFile], row_bytes: u64, options: &ReadOptions) -> Self {
        let enough =
            if options.window_rows == 0 { u64::MAX } else { (options.window_rows as u64).saturating_mul(row_bytes) };
        let mut windows: Vec<Range<u32>> = Vec::new();
        // The bytes that the last window may still take.
        let mut room = 0;
        for (number, (file, bytes)) in (0..).zip(splits) {
            let packed = TextCompression::of(&files[*file as usize].name) != TextCompression::Plain;
            match windows.last_mut() {
                Some(last) if room > 0 && !packed => last.end = number + 1,
                _ => {
                    windows.push(number..number + 1);
                    room = enough;
                }
            }
            room = if packed { 0 } else { room.saturating_sub(bytes.end - bytes.start) };
        }
        let seed = options.shuffle.then_some(options.seed);
        Self { splits: splits.len() as u32, windows, epochs: options.epochs as u32, seed }
    }

    /// All splits, or the splits of leased windows. `fingerprint`: see [`DataPlan`].
    pub(crate) fn splits_to_read(
        self,
        leases: Option<&Arc<dyn Leases>>,
        fingerprint: u64,
    ) -> Result<BoxStream<'static, Result<SplitToRead, Fault>>, Fault> {
        let Some(leases) = leases else {
            let order = SplitOrder::new(self.splits, self.epochs, self.seed);
            let splits_to_read = order.all().map(move |(epoch, place, split)| {
                let lineage = Lineage { epoch, split: place, ..Lineage::default() };
                Ok(SplitToRead { split, lineage, window: WindowMark::default() })
            });
            return Ok(stream::iter(splits_to_read).boxed());
        };
        let plan = DataPlan { epochs: self.epochs, rows: 0, windows: self.windows.len() as u64, fingerprint };
        let splits_to_read =
            granted(Arc::clone(leases), plan).map_ok(move |lease| stream::iter(self.leased(&lease)).map(Ok));
        Ok(splits_to_read.try_flatten().boxed())
    }

    fn leased(&self, lease: &Lease) -> Vec<SplitToRead> {
        let Lease { epoch, ref windows, term } = *lease;
        let order = SplitOrder::new(self.windows.len() as u32, self.epochs, self.seed).epoch(epoch);
        let mut splits_to_read = Vec::new();
        let mut place = 0;
        for (window, &group) in (0..).zip(&order) {
            let splits = self.windows[group as usize].clone();
            for split in splits.clone() {
                if windows.contains(&window) {
                    let closes = split + 1 == splits.end;
                    let lineage = Lineage { epoch, split: place, ..Lineage::default() };
                    splits_to_read.push(SplitToRead { split, lineage, window: WindowMark { window, term, closes } });
                }
                place += 1;
            }
        }
        splits_to_read
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;

    #[test]
    fn a_window_is_a_run_of_splits_of_about_its_bytes_and_a_packed_file_is_one() {
        let file = |name: &str| DataFile {
            store: Arc::new(InMemory::new()),
            path: Path::from(name),
            size: 1000,
            e_tag: None,
            name: name.into(),
            partitions: Default::default(),
        };
        let files = [file("a.txt"), file("b.gz"), file("c.txt")];
        let splits: Vec<_> =
            [0, 0, 0, 0, 0, 1, 2, 2].into_iter().map(|file| (file, 0..if file == 1 { 9000 } else { 200 })).collect();
        let windows = |window_rows| {
            let options = ReadOptions { window_rows, ..ReadOptions::default() };
            TextWindows::new(&splits, &files, 250, &options).windows
        };
        // 250 and 500 bytes: two and three splits of 200.
        assert_eq!(windows(1), [0..2, 2..4, 4..5, 5..6, 6..8]);
        assert_eq!(windows(2), [0..3, 3..5, 5..6, 6..8]);
        assert_eq!(windows(0), [0..5, 5..6, 6..8]);
        assert_eq!(windows(usize::MAX), [0..5, 5..6, 6..8]);
    }
}
