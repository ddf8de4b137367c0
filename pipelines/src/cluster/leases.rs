//! Which reader reads which windows: a state machine over lease requests, windows that are done and lost readers, without a
//! clock and without IO.
//!
//! It gives out leases in the order of the data, returned ones first, and counts the rows of the windows that are done. The
//! windows of a lease are done in their order: the book holds the rest of each lease, and nothing about the windows before.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_batches::RowCounts;
use forebay_connectors::{DataPlan, Lease};
use serde::{Deserialize, Serialize};

use crate::checkpoint::TrainedBatches;

/// Consecutive windows of one epoch that are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoneWindows {
    pub(crate) epoch: u32,
    /// The first of them.
    pub(crate) first: u64,
    /// The counts of each.
    pub(crate) counts: Vec<RowCounts>,
}

impl DoneWindows {
    /// The number of the window after the last.
    pub(crate) fn next_window(&self) -> u64 {
        self.first.saturating_add(self.counts.len() as u64)
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
    /// The rest of leases that lost readers held or that readers gave back, lowest first, with their next term.
    returned: BTreeMap<Range, u32>,
    /// The rest of leases given out: (reader, term).
    held: BTreeMap<Range, (u32, u32)>,
    counts: RowCounts,
    windows_done: u64,
    /// Leases that lost readers held.
    lost: u64,
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
            counts: RowCounts::default(),
            windows_done: 0,
            lost: 0,
        }
    }

    /// Marks the windows that were trained on before the run began as done. Called before the first lease.
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

    /// Gives `reader` the lowest range of `returned`, if there is one.
    pub(crate) fn lease_returned_range(&mut self, reader: u32) -> LeaseReply {
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

    /// `reader` is lost, was restarted or has left: its leases can be given out again. Returns the number of leases.
    pub(crate) fn return_leases_of(&mut self, reader: u32) -> usize {
        let returned = self.give_back(reader);
        self.lost += returned as u64;
        returned
    }

    /// `reader` begins no more windows: the rest of its leases can be given out again. Returns the number of leases.
    pub(crate) fn give_back(&mut self, reader: u32) -> usize {
        let rest: Vec<Range> =
            self.held.iter().filter(|(_, (holder, _))| *holder == reader).map(|(range, _)| *range).collect();
        for range in &rest {
            if let Some((_, term)) = self.held.remove(range) {
                self.returned.insert(*range, term + 1);
            }
        }
        rest.len()
    }

    /// Every batch of these windows is done. The first reader that reports a window counts, even if its lease was given to
    /// another reader in the meantime: its batches are applied, and shards apply each batch once.
    ///
    /// # Errors
    /// An internal fault if the row counts of a window do not add up to its rows, or it was never given out, or a window before
    /// it in its lease is not done. The windows before it in the report count.
    pub(crate) fn complete(&mut self, done: &DoneWindows) -> Result<(), Fault> {
        for (i, counts) in done.counts.iter().enumerate() {
            let at = (done.epoch, done.first.saturating_add(i as u64));
            if at >= self.next {
                return Err(Fault::internal(format!("a reader completed {}, which no reader was given", describe(at))));
            }
            if starts_at(&self.held, at).is_some() || starts_at(&self.returned, at).is_some() {
                self.check(at, counts)?;
                advance(&mut self.held, at);
                advance(&mut self.returned, at);
                self.windows_done += 1;
                self.counts.add(counts);
            } else if lies_within(&self.held, at) || lies_within(&self.returned, at) {
                return Err(Fault::internal(format!(
                    "a reader completed {} before a window ahead of it",
                    describe(at)
                )));
            }
            // Otherwise it was reported before: by another reader, or in a request that was sent again.
        }
        Ok(())
    }

    fn check(&self, at: (u32, u64), counts: &RowCounts) -> Result<(), Fault> {
        if self.data.rows == 0 {
            // The number of rows of a text file is unknown.
            return Ok(());
        }
        let row = |window: u64| window.saturating_mul(self.window_rows).min(self.data.rows);
        let expected = row(at.1 + 1) - row(at.1);
        if counts.trained.checked_add(counts.rejected) == Some(expected) {
            return Ok(());
        }
        Err(Fault::internal(format!(
            "the ledger does not add up: {} has {expected} rows, but {} were trained on and {} rejected",
            describe(at),
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

    /// Whether a run that gives out no more leases can end: no reader holds a lease. If trainers take batches in order, leases after a lost
    /// one do not count: no trainer will take their batches.
    pub(crate) fn is_drained(&self, ordered: bool) -> bool {
        match self.returned.keys().next() {
            Some(lost) if ordered => self.held.keys().next().is_none_or(|held| lost < held),
            _ => self.held.is_empty(),
        }
    }

    /// Leases that a reader lost or gave back and that no reader has taken since.
    pub(crate) fn returned_leases(&self) -> u64 {
        self.returned.len() as u64
    }

    /// The first window that is not done, in the order of the data: (epoch, window).
    pub(crate) fn first_open(&self) -> (u32, u64) {
        let held = self.held.keys().chain(self.returned.keys()).map(|&(epoch, from, _)| (epoch, from)).min();
        held.unwrap_or(self.next).min(self.next)
    }

    /// By epoch: the windows that are done, as ranges.
    pub(crate) fn done_windows(&self) -> BTreeMap<u32, Vec<std::ops::Range<u64>>> {
        let mut rest: Vec<Range> = self.held.keys().chain(self.returned.keys()).copied().collect();
        rest.sort_unstable();
        let mut done: BTreeMap<u32, Vec<std::ops::Range<u64>>> = BTreeMap::new();
        let mut rest = rest.into_iter().peekable();
        for epoch in 0..=self.next.0.min(self.data.epochs.saturating_sub(1)) {
            let end = if epoch < self.next.0 { self.data.windows } else { self.next.1 };
            let mut start = 0;
            let ranges = done.entry(epoch).or_default();
            while let Some((_, from, to)) = rest.next_if(|(of, ..)| *of == epoch) {
                if start < from {
                    ranges.push(start..from);
                }
                start = to;
            }
            if start < end {
                ranges.push(start..end);
            }
        }
        done.retain(|_, ranges| !ranges.is_empty());
        done
    }

    /// Row counts of all windows that are done.
    pub(crate) fn counts(&self) -> RowCounts {
        self.counts
    }

    pub(crate) fn windows_done(&self) -> u64 {
        self.windows_done
    }

    /// Windows of all epochs.
    pub(crate) fn windows_total(&self) -> u64 {
        self.data.windows * u64::from(self.data.epochs)
    }

    /// Leases that lost readers held; a lease that is lost twice counts twice.
    pub(crate) fn lost_leases(&self) -> u64 {
        self.lost
    }
}

/// The windows of a lease: `asked`, or fewer, so that each of `readers` gets at least four leases in all epochs. Larger leases are better:
/// if two leases share a row group, both fetch it and decode its dictionaries.
pub(crate) fn windows_per_lease(asked: u64, data: &DataPlan, readers: u32) -> u64 {
    let all = data.windows.saturating_mul(u64::from(data.epochs));
    asked.min(all / (u64::from(readers) * 4)).max(1)
}

/// The range that begins at this window.
fn starts_at<T>(ranges: &BTreeMap<Range, T>, (epoch, window): (u32, u64)) -> Option<Range> {
    ranges.range((epoch, window, 0)..=(epoch, window, u64::MAX)).next().map(|(range, _)| *range)
}

/// Whether a range contains this window and does not begin at it.
fn lies_within<T>(ranges: &BTreeMap<Range, T>, (epoch, window): (u32, u64)) -> bool {
    ranges.range(..(epoch, window, 0)).next_back().is_some_and(|(&(e, _, to), _)| e == epoch && window < to)
}

/// Takes the window `at` from the range that begins at it.
fn advance<T>(ranges: &mut BTreeMap<Range, T>, at: (u32, u64)) {
    if let Some(range @ (epoch, from, to)) = starts_at(ranges, at)
        && let Some(holder) = ranges.remove(&range)
        && from + 1 < to
    {
        ranges.insert((epoch, from + 1, to), holder);
    }
}

fn describe((epoch, window): (u32, u64)) -> String {
    format!("window {window} of epoch {epoch}")
}

#[cfg(test)]
mod tests;
