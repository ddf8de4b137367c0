//! Which reader reads which windows: a state machine over lease requests, completed leases and lost readers, without a clock
//! and without IO.
//!
//! It gives out leases in the order of the data, returned ones first, and counts the rows of the completed ones.

use std::collections::{BTreeMap, VecDeque};

use forebay_actors::Fault;
use forebay_connectors::{DataPlan, Lease};
use serde::{Deserialize, Serialize};

use crate::checkpoint::TrainedBatches;

/// Row and batch counts of windows that are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// Rows trained on: the gradients of their batches are applied.
    pub trained: u64,
    /// Rows rejected.
    pub rejected: u64,
    /// Batches.
    pub batches: u64,
}

impl RowCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.trained += other.trained;
        self.rejected += other.rejected;
        self.batches += other.batches;
    }
}

/// The reply to a reader that asks for a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeaseReply {
    /// Read these windows.
    Lease(Lease),
    /// No lease is available, but not all are done: ask again later.
    Wait,
    /// All windows are done, or no more are given out.
    Finished,
}

/// A range of windows of one epoch: (epoch, first window, the window after the last).
type Range = (u32, u64, u64);

/// The leases of one run.
#[derive(Debug)]
pub(crate) struct LeaseBook {
    data: DataPlan,
    window_rows: u64,
    /// Windows per lease.
    lease_windows: u64,
    /// The first window that was never given out.
    next: (u32, u64),
    /// Leases of lost readers, lowest first, with their next term.
    returned: BTreeMap<Range, u32>,
    /// Leases given out: (reader, term).
    held: BTreeMap<Range, (u32, u32)>,
    /// Leases that are done.
    done: VecDeque<Range>,
    counts: RowCounts,
    windows_done: u64,
    reassigned: u64,
}

impl LeaseBook {
    /// Leases of `lease_windows` windows (at least 1) over `data`, whose windows are of `window_rows` rows.
    pub(crate) fn new(data: DataPlan, window_rows: u64, lease_windows: u64) -> Self {
        Self {
            data,
            window_rows,
            lease_windows: lease_windows.max(1),
            next: (0, 0),
            returned: BTreeMap::new(),
            held: BTreeMap::new(),
            done: VecDeque::new(),
            counts: RowCounts::default(),
            windows_done: 0,
            reassigned: 0,
        }
    }

    /// Takes the windows that are trained on before the run begins as done. Called before the first lease.
    pub(crate) fn skip(&mut self, trained: &TrainedBatches) {
        let Some(last) = (0..self.data.epochs).rev().find(|&epoch| !trained.windows_of(epoch).is_empty()) else {
            return;
        };
        for epoch in 0..=last {
            let mut from = 0;
            for done in trained.windows_of(epoch) {
                let (start, end) = (done.start.min(self.data.windows), done.end.min(self.data.windows));
                self.give_out_later(epoch, from, start);
                self.windows_done += end.saturating_sub(start);
                from = end;
            }
            self.next = if from == self.data.windows { (epoch + 1, 0) } else { (epoch, from) };
            if epoch < last {
                self.give_out_later(epoch, from, self.data.windows);
                self.next = (epoch + 1, 0);
            }
        }
        self.counts = trained.counts();
    }

    /// Windows `from..to` go to the readers that ask first.
    fn give_out_later(&mut self, epoch: u32, mut from: u64, to: u64) {
        while from < to {
            let end = (from + self.lease_windows).min(to);
            self.returned.insert((epoch, from, end), 0);
            from = end;
        }
    }

    /// What there is to read.
    pub(crate) fn data(&self) -> &DataPlan {
        &self.data
    }

    /// Gives `reader` the lowest range that a lost reader held, if there is one.
    pub(crate) fn lease_lost_range(&mut self, reader: u32) -> LeaseReply {
        if self.returned.is_empty() { LeaseReply::Wait } else { self.lease_next_range(reader) }
    }

    /// Gives `reader` the lowest range that no reader holds.
    pub(crate) fn lease_next_range(&mut self, reader: u32) -> LeaseReply {
        let given = self.returned.pop_first().or_else(|| self.take_fresh_range().map(|range| (range, 0)));
        let Some((range @ (epoch, from, to), term)) = given else {
            return if self.held.is_empty() { LeaseReply::Finished } else { LeaseReply::Wait };
        };
        self.held.insert(range, (reader, term));
        LeaseReply::Lease(Lease { epoch, windows: from..to, term })
    }

    fn take_fresh_range(&mut self) -> Option<Range> {
        let (epoch, from) = self.next;
        if epoch >= self.data.epochs || self.data.windows == 0 {
            return None;
        }
        let to = (from + self.lease_windows).min(self.data.windows);
        self.next = if to == self.data.windows { (epoch + 1, 0) } else { (epoch, to) };
        Some((epoch, from, to))
    }

    /// `reader` is lost, was restarted or has left: its leases can be given out again. Returns their number.
    pub(crate) fn return_leases_of(&mut self, reader: u32) -> usize {
        let lost: Vec<Range> =
            self.held.iter().filter(|(_, (leases, _))| *leases == reader).map(|(range, _)| *range).collect();
        for range in &lost {
            if let Some((_, term)) = self.held.remove(range) {
                self.returned.insert(*range, term + 1);
            }
        }
        self.reassigned += lost.len() as u64;
        lost.len()
    }

    /// Every batch of `lease` is done. The first reader that reports it counts, even if the lease was given to another reader
    /// in the meantime: its batches are applied, and shards apply each batch once.
    ///
    /// # Errors
    /// An internal fault if the row counts do not add up to the rows of the windows, or no such lease was given out.
    pub(crate) fn complete(&mut self, lease: &Lease, counts: &RowCounts) -> Result<(), Fault> {
        let range = (lease.epoch, lease.windows.start, lease.windows.end);
        let known = self.held.remove(&range).is_some() || self.returned.remove(&range).is_some();
        if !known {
            return if self.done.contains(&range) {
                Ok(())
            } else {
                Err(Fault::internal(format!("a reader completed {}, which it was not given", describe(lease))))
            };
        }
        self.check(lease, counts)?;
        self.done.push_back(range);
        self.windows_done += range.2 - range.1;
        self.counts.add(counts);
        Ok(())
    }

    fn check(&self, lease: &Lease, counts: &RowCounts) -> Result<(), Fault> {
        if self.data.rows == 0 {
            // The number of rows of a text file is unknown.
            return Ok(());
        }
        let row = |window: u64| window.saturating_mul(self.window_rows).min(self.data.rows);
        let expected = row(lease.windows.end) - row(lease.windows.start);
        if counts.trained + counts.rejected == expected {
            return Ok(());
        }
        Err(Fault::internal(format!(
            "the ledger does not add up: {} have {expected} rows, but {} were trained on and {} rejected",
            describe(lease),
            counts.trained,
            counts.rejected
        )))
    }

    /// Whether every window is done.
    pub(crate) fn is_finished(&self) -> bool {
        self.returned.is_empty() && self.held.is_empty() && self.all_given_out()
    }

    fn all_given_out(&self) -> bool {
        self.next.0 >= self.data.epochs || self.data.windows == 0
    }

    /// Whether a run that gives out no more leases can end: no reader holds one. If trainers take batches in order, leases after
    /// a lost one do not count: no trainer will get to them.
    pub(crate) fn is_drained(&self, ordered: bool) -> bool {
        match self.returned.keys().next() {
            Some(lost) if ordered => self.held.keys().next().is_none_or(|held| lost < held),
            _ => self.held.is_empty(),
        }
    }

    /// Leases of lost readers that no reader has taken yet.
    pub(crate) fn lost_leases(&self) -> u64 {
        self.returned.len() as u64
    }

    /// The first window that is not done, in the order of the data: (epoch, window).
    pub(crate) fn first_open(&self) -> (u32, u64) {
        let held = self.held.keys().chain(self.returned.keys()).map(|&(epoch, from, _)| (epoch, from)).min();
        held.unwrap_or(self.next).min(self.next)
    }

    /// Row counts of all leases that are done.
    pub(crate) fn counts(&self) -> RowCounts {
        self.counts
    }

    /// Windows that are done.
    pub(crate) fn windows_done(&self) -> u64 {
        self.windows_done
    }

    /// Windows of all epochs.
    pub(crate) fn windows_total(&self) -> u64 {
        self.data.windows * u64::from(self.data.epochs)
    }

    /// Leases that readers lost, counted each time.
    pub(crate) fn reassigned_leases(&self) -> u64 {
        self.reassigned
    }
}

/// The windows of a lease: `asked`, or fewer if each of `readers` would otherwise get less than four leases in all epochs.
/// Larger leases are better: two leases that share a row group both fetch it and decode its dictionaries.
pub(crate) fn windows_per_lease(asked: u64, data: &DataPlan, readers: u32) -> u64 {
    let all = data.windows.saturating_mul(u64::from(data.epochs));
    asked.min(all / (u64::from(readers) * 4)).max(1)
}

fn describe(lease: &Lease) -> String {
    format!("windows {} to {} of epoch {}", lease.windows.start, lease.windows.end.saturating_sub(1), lease.epoch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(windows: u64, epochs: u32) -> DataPlan {
        DataPlan { epochs, rows: windows * 10 - 3, windows, fingerprint: 0 }
    }

    fn whole(data: &DataPlan, lease: &Lease) -> RowCounts {
        let rows = (lease.windows.end * 10).min(data.rows) - lease.windows.start * 10;
        RowCounts { trained: rows - 1, rejected: 1, batches: 1 }
    }

    fn lease(answer: LeaseReply) -> Lease {
        match answer {
            LeaseReply::Lease(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// Readers join, leave, die and complete leases in any order: every window is done once, and the row counts add up.
        #[test]
        fn every_window_is_done_once(
            windows in 1u64..40, epochs in 1u32..3, lease_windows in 1u64..9,
            steps in prop::collection::vec((0u32..4, 0u8..10), 0..200),
        ) {
            let data = data(windows, epochs);
            let mut book = LeaseBook::new(data.clone(), 10, lease_windows);
            let mut holds: BTreeMap<u32, Vec<Lease>> = BTreeMap::new();
            let mut last_terms = BTreeMap::new();
            let mut act = |book: &mut LeaseBook, reader: u32, what: u8| {
                match what {
                    0 => { book.return_leases_of(reader); holds.remove(&reader); }
                    1..=5 => if let LeaseReply::Lease(lease) = book.lease_next_range(reader) {
                        let term = last_terms.insert((lease.epoch, lease.windows.start), lease.term);
                        assert!(term.is_none_or(|term: u32| lease.term == term + 1), "terms rise one by one");
                        holds.entry(reader).or_default().push(lease);
                    },
                    _ => if let Some(lease) = holds.get_mut(&reader).and_then(Vec::pop) {
                        book.complete(&lease, &whole(&data, &lease)).unwrap();
                    },
                }
            };
            for (reader, what) in steps {
                act(&mut book, reader, what);
            }
            for reader in 0..4 {
                act(&mut book, reader, 0);
            }
            while !book.is_finished() {
                act(&mut book, 7, 1);
                act(&mut book, 7, 9);
            }
            prop_assert_eq!(book.lease_next_range(1), LeaseReply::Finished);
            let counts = book.counts();
            prop_assert_eq!(counts.trained + counts.rejected, data.rows * u64::from(epochs));
            prop_assert_eq!(book.windows_done(), windows * u64::from(epochs));
            prop_assert_eq!(book.first_open(), (epochs, 0));
        }
    }

    #[test]
    fn what_was_trained_on_before_is_not_given_out() {
        use crate::checkpoint::BatchOrder;
        use crate::flow::{BatchId, WindowEnd};
        let (data, mut trained) = (data(7, 3), TrainedBatches::default());
        // All of epoch 0 but window 3, windows 0, 1 and 4 of epoch 1, and one of two batches of window 5.
        let windows = (0..7).filter(|w| *w != 3).map(|w| (0, w)).chain([(1, 0), (1, 1), (1, 4)]);
        for (epoch, window) in windows {
            let id = BatchId { epoch, window, index: 0 };
            trained.window_ends(id, WindowEnd { batches: 1, rows: 9, rejected: 1 });
            trained.batch_done(id, 9, BatchOrder::Any);
        }
        trained.batch_done(BatchId { epoch: 1, window: 5, index: 0 }, 4, BatchOrder::Any);
        let mut book = LeaseBook::new(data.clone(), 10, 2);
        book.skip(&trained);
        assert_eq!((book.first_open(), book.windows_done()), ((0, 3), 9));
        assert_eq!(book.counts(), RowCounts { trained: 81, rejected: 9, batches: 9 });
        let given = std::iter::from_fn(|| match book.lease_next_range(0) {
            LeaseReply::Lease(lease) => Some((lease.epoch, lease.windows, lease.term)),
            _ => None,
        });
        let given: Vec<_> = given.collect();
        assert_eq!(
            given,
            [(0, 3..4, 0), (1, 2..4, 0), (1, 5..7, 0), (2, 0..2, 0), (2, 2..4, 0), (2, 4..6, 0), (2, 6..7, 0)]
        );
    }

    #[test]
    fn leases_are_as_large_as_asked_if_every_reader_gets_several() {
        assert_eq!(windows_per_lease(4, &data(7, 10), 1), 4);
        assert_eq!(windows_per_lease(4, &data(7, 10), 5), 3);
        assert_eq!(windows_per_lease(4, &data(7, 1), 1), 1);
        assert_eq!(windows_per_lease(4, &data(7, 1), 2), 1, "at least one window");
        assert_eq!(windows_per_lease(4, &data(1_000, 1), 8), 4);
    }

    #[test]
    fn a_lost_lease_is_given_out_first_with_the_next_term_and_counts_once() {
        let data = data(6, 1);
        let mut book = LeaseBook::new(data.clone(), 10, 2);
        let first = lease(book.lease_next_range(0));
        let second = lease(book.lease_next_range(1));
        assert_eq!((first.windows.clone(), second.windows.clone()), (0..2, 2..4));
        assert_eq!(book.return_leases_of(0), 1);
        let again = lease(book.lease_next_range(1));
        assert_eq!((again.windows.clone(), again.term), (0..2, 1));
        assert_eq!(book.first_open(), (0, 0));
        // The reader that seemed lost had done all of it.
        book.complete(&first, &whole(&data, &first)).unwrap();
        book.complete(&again, &whole(&data, &again)).unwrap();
        assert_eq!(book.counts().trained, 19);
        assert_eq!(book.first_open(), (0, 2));
    }

    #[test]
    fn a_lost_lease_goes_to_readers_that_have_enough_and_can_end_a_drain() {
        let mut book = LeaseBook::new(data(6, 1), 10, 2);
        let first = lease(book.lease_next_range(0));
        assert_eq!(book.lease_lost_range(1), LeaseReply::Wait);
        lease(book.lease_next_range(1));
        assert!(!book.is_drained(true) && !book.is_drained(false));
        book.return_leases_of(0);
        assert_eq!(book.lost_leases(), 1);
        assert!(book.is_drained(true), "windows 2 and 3 wait for 0 and 1");
        assert!(!book.is_drained(false));
        assert_eq!(lease(book.lease_lost_range(1)).windows, first.windows);
        assert!(!book.is_drained(true));
        book.return_leases_of(1);
        assert!(book.is_drained(true) && book.is_drained(false));
    }

    #[test]
    fn missing_rows_and_unknown_leases_are_faults() {
        let data = data(2, 1);
        let mut book = LeaseBook::new(data.clone(), 10, 2);
        let lease = lease(book.lease_next_range(0));
        let short = RowCounts { trained: 16, rejected: 0, batches: 1 };
        let said = book.complete(&lease, &short).unwrap_err().to_string();
        assert!(said.contains("have 17 rows, but 16 were trained on and 0 rejected"), "{said}");
        let other = Lease { epoch: 1, windows: 0..2, term: 0 };
        assert!(book.complete(&other, &short).unwrap_err().to_string().contains("was not given"));
    }
}
