//! Numbers the rows of an epoch in the order of its splits and cuts them into windows.

use std::ops::Range;
use std::sync::Arc;

use forebay_actors::{Fault, Lineage};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use crate::lease::{DataPlan, Lease, Leases, granted};
use crate::options::ReadOptions;
use crate::rows::WindowMark;
use crate::split::SplitOrder;

/// If there are fewer splits, their order is often the same in two epochs.
const FEW_SPLITS: usize = 4;

/// A data set whose splits' rows are known before they are read.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    order: SplitOrder,
    rows: Arc<[u64]>,
    epochs: u32,
    total: u64,
    /// Rows of a window, at least one; the last of an epoch may be smaller.
    window_rows: u64,
}

/// Rows of one split that are read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Number of the split in the order of the listing.
    pub(crate) split: u32,
    /// Rows of the split.
    pub(crate) rows: Range<u64>,
    epoch: u32,
    /// Place of the split in the epoch's order.
    place: u32,
    term: u32,
    /// Number within the epoch of the split's first row.
    first: u64,
    window_rows: u64,
    total: u64,
}

impl Part {
    /// How many of the `n` rows from row `row` of the split on, at least one, lie in one window, and where they come from.
    pub(crate) fn cut(&self, row: u64, n: u64) -> (u64, Lineage, WindowMark) {
        let number = self.first + row;
        let window = number / self.window_rows;
        let end = (window + 1).saturating_mul(self.window_rows).min(self.total);
        let n = n.min(end.saturating_sub(number));
        let closes = number + n == end;
        let lineage = Lineage { epoch: self.epoch, split: self.place, seq: 0, row };
        (n, lineage, WindowMark { window, term: self.term, closes })
    }
}

impl Numbered {
    /// `rows` of each split in the order of the listing.
    pub(crate) fn new(rows: Vec<u64>, options: &ReadOptions) -> Self {
        let total = rows.iter().sum();
        let epochs = options.epochs as u32;
        let order = SplitOrder::new(rows.len() as u32, epochs, options.shuffle.then_some(options.seed));
        let window_rows = if options.window_rows == 0 { total } else { options.window_rows as u64 };
        Self { order, rows: rows.into(), epochs, total, window_rows: window_rows.max(1) }
    }

    /// Whether all epochs have their windows in the same order, or nearly so: then each row comes back after one epoch, and a model that
    /// overfits does so more than with rows in any order.
    pub(crate) fn has_one_order(&self) -> bool {
        let is_cut = self.rows.iter().any(|rows| *rows > self.window_rows);
        self.order.is_shuffled() && self.epochs > 1 && self.rows.len() < FEW_SPLITS && is_cut
    }

    /// The parts that a source reads, in order: all, or the leased ones. A lease is asked for only when all parts of the lease before were
    /// taken. `fingerprint`: see [`DataPlan`].
    pub(crate) fn parts(
        self,
        leases: Option<&Arc<dyn Leases>>,
        fingerprint: u64,
    ) -> Result<BoxStream<'static, Result<Part, Fault>>, Fault> {
        let Some(leases) = leases else {
            return Ok(stream::iter(self.all().map(Ok)).boxed());
        };
        let windows = self.total.div_ceil(self.window_rows);
        let plan = DataPlan { epochs: self.epochs, rows: self.total, windows, fingerprint };
        let parts = granted(Arc::clone(leases), plan).map_ok(move |lease| stream::iter(self.leased(&lease).map(Ok)));
        Ok(parts.try_flatten().boxed())
    }

    fn all(self) -> impl Iterator<Item = Part> + Send {
        let epochs = self.epochs;
        let parts = move |epoch| self.numbers(epoch, 0..self.total, 0).filter(|part| !part.rows.is_empty());
        (0..epochs).flat_map(parts)
    }

    fn leased(&self, lease: &Lease) -> impl Iterator<Item = Part> + Send + use<> {
        let Range { start, end } = lease.windows;
        let numbers = start.saturating_mul(self.window_rows)..end.saturating_mul(self.window_rows).min(self.total);
        self.numbers(lease.epoch, numbers, lease.term).filter(|part| !part.rows.is_empty())
    }

    /// The parts of the epoch's splits whose row numbers lie in `numbers`.
    fn numbers(&self, epoch: u32, numbers: Range<u64>, term: u32) -> impl Iterator<Item = Part> + Send + use<> {
        let (rows, window_rows, total) = (Arc::clone(&self.rows), self.window_rows, self.total);
        let mut next = 0;
        self.order.epoch(epoch).into_iter().zip(0..).map(move |(split, place)| {
            let (first, n) = (next, rows[split as usize]);
            next += n;
            let within = |number: u64| number.saturating_sub(first).min(n);
            let rows = within(numbers.start)..within(numbers.end);
            Part { split, rows, epoch, place, term, first, window_rows, total }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(rows: Vec<u64>, window_rows: usize, seed: u64) -> Numbered {
        Numbered::new(rows, &ReadOptions { epochs: 2, shuffle: true, seed, window_rows, ..ReadOptions::default() })
    }

    /// (split, row, window) of every row of the parts, and the numbers of rows after which a window closed.
    fn walk(parts: impl Iterator<Item = Part>, step: u64) -> (Vec<(u32, u64, u64)>, Vec<usize>) {
        let (mut all, mut closed) = (Vec::new(), Vec::new());
        for part in parts {
            let mut row = part.rows.start;
            while row < part.rows.end {
                let (n, _, mark) = part.cut(row, step.min(part.rows.end - row));
                assert!(n > 0);
                all.extend((row..row + n).map(|row| (part.split, row, mark.window)));
                closed.extend(mark.closes.then_some(all.len()));
                row += n;
            }
        }
        (all, closed)
    }

    #[test]
    fn a_few_splits_of_several_windows_have_one_order() {
        let options = || ReadOptions { epochs: 2, shuffle: true, window_rows: 10, ..ReadOptions::default() };
        let has_one_order = |rows: &[u64], options: ReadOptions| Numbered::new(rows.to_vec(), &options).has_one_order();
        assert!(has_one_order(&[25], options()) && has_one_order(&[1, 2, 11], options()));
        assert!(!has_one_order(&[10, 10], options()), "the windows are the splits");
        assert!(!has_one_order(&[25; 4], options()), "the order of the splits differs");
        assert!(!has_one_order(&[25], ReadOptions { epochs: 1, ..options() }));
        assert!(!has_one_order(&[25], ReadOptions { shuffle: false, ..options() }));
    }

    proptest! {
        #[test]
        fn leases_hold_the_rows_of_their_windows_in_order(
            rows in prop::collection::vec(1_u64..20, 1..8), window in 1_usize..30, seed: u64, step in 1_u64..9,
            cuts in prop::collection::vec(0_u64..40, 0..4), epoch in 0_u32..2,
        ) {
            let total: u64 = rows.iter().sum();
            let data = data(rows, window, seed);
            let windows = total.div_ceil(window as u64);
            let mut cuts: Vec<u64> = cuts.into_iter().filter(|&c| c < windows).chain([0, windows]).collect();
            cuts.sort_unstable();
            let (whole, closed) = walk(data.numbers(epoch, 0..total, 0), u64::MAX);
            prop_assert_eq!(whole.len() as u64, total);
            for (i, row) in whole.iter().enumerate() {
                prop_assert_eq!(row.2, (i / window) as u64);
            }
            let ends: Vec<usize> = (1..=windows as usize).map(|w| (w * window).min(total as usize)).collect();
            prop_assert_eq!(closed, ends);
            let lease = |pair: &[u64]| Lease { epoch, windows: pair[0]..pair[1], term: 3 };
            let (leased, closed) = walk(cuts.windows(2).flat_map(|pair| data.leased(&lease(pair))), step);
            prop_assert_eq!(&leased, &whole);
            prop_assert_eq!(closed.len() as u64, windows);
        }
    }
}
