//! Which batches are trained on: a state machine over started and done batches, without a clock and without IO. A checkpoint stores it as
//! its position, and after a restart it says which batches to skip.
//!
//! Windows that are done are kept as ranges, so the position does not grow with the data.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_batches::{BatchId, RowCounts, WindowEnd};
use forebay_connectors::DataPlan;
use serde::{Deserialize, Serialize};

use super::batch_log::WindowLog;

/// How batches are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOrder {
    /// In the order of the data: when a batch is done, all windows before its window are done.
    Data,
    /// In any order. The last batch of each window carries its [`WindowEnd`].
    Any,
}

/// The batches that are trained on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrainedBatches {
    /// By epoch: windows whose batches are all done, as ranges without overlap.
    windows: BTreeMap<u32, Vec<Range<u64>>>,
    /// Windows with some batches done and some not, by (epoch, window).
    #[serde(with = "open_windows")]
    open: BTreeMap<(u32, u64), OpenWindow>,
    /// Rows and batches of the windows that are done.
    counts: RowCounts,
}

/// A window with some batches done and some not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenWindow {
    epoch: u32,
    window: u64,
    /// Indexes of batches that are done, as ranges without overlap.
    done: Vec<Range<u64>>,
    /// Rows of these batches.
    rows: u64,
    /// Set when the last batch of the window has been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<WindowEnd>,
}

/// Open windows are stored as a list.
mod open_windows {
    use super::{BTreeMap, Deserialize, OpenWindow, Serialize};

    type Open = BTreeMap<(u32, u64), OpenWindow>;

    pub(super) fn serialize<S: serde::Serializer>(open: &Open, to: S) -> Result<S::Ok, S::Error> {
        open.values().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Open, D::Error> {
        let all = Vec::<OpenWindow>::deserialize(from)?;
        Ok(all.into_iter().map(|open| ((open.epoch, open.window), open)).collect())
    }
}

impl TrainedBatches {
    /// All windows of these ranges are done, and no other batches.
    pub(crate) fn of_windows(windows: BTreeMap<u32, Vec<Range<u64>>>, counts: RowCounts) -> Self {
        Self { windows, open: BTreeMap::new(), counts }
    }

    /// Checks a value that was read from a file: ranges ascend, and numbers add up.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let ascend = |ranges: &[Range<u64>]| {
            ranges.iter().all(|range| range.start < range.end)
                && ranges.windows(2).all(|pair| pair[0].end < pair[1].start)
        };
        let most = u64::MAX / 4;
        let small = |counts: &RowCounts| counts.trained.max(counts.rejected).max(counts.batches) < most;
        let mut rows = 0u64;
        for open in self.open.values() {
            rows = rows.saturating_add(open.rows).saturating_add(open.end.map_or(0, |end| end.rejected));
            if !ascend(&open.done) || open.done.last().is_some_and(|last| last.end > u64::from(u32::MAX) + 1) {
                return Err(format!(
                    "batches of window {} of epoch {} are no ascending ranges",
                    open.window, open.epoch
                ));
            }
        }
        if let Some((epoch, _)) = self.windows.iter().find(|(_, windows)| !ascend(windows)) {
            return Err(format!("the windows of epoch {epoch} are no ascending ranges"));
        }
        if rows >= most || !small(&self.counts) {
            return Err("it counts more rows than there can be".to_owned());
        }
        Ok(())
    }

    /// Adds the batches of `other` in windows that are not done here. These windows must have no batches here yet.
    pub(crate) fn add_open_windows(&mut self, other: &Self) {
        for (&at, open) in &other.open {
            if !self.has_window(at.0, at.1) {
                self.open.insert(at, open.clone());
            }
        }
    }

    /// Adds what a trainer has done.
    pub(crate) fn add_log(&mut self, log: &[WindowLog]) {
        for &WindowLog { epoch, window, ref batches, end } in log {
            let id = |index| BatchId { epoch, window, index };
            if let Some(end) = end {
                self.window_ends(id(0), end);
            }
            for &(index, rows) in batches {
                self.batch_done(id(index), rows, BatchOrder::Any);
            }
        }
    }

    /// Rows and batches that are done, including batches of open windows.
    pub(crate) fn totals(&self) -> RowCounts {
        let mut totals = self.counts;
        for open in self.open.values() {
            totals.add(&RowCounts { trained: open.rows, rejected: 0, batches: open.batches() });
        }
        totals
    }

    /// Whether a batch is done.
    pub(crate) fn contains(&self, id: BatchId) -> bool {
        self.has_window(id.epoch, id.window)
            || self.window(id).is_some_and(|open| holds(&open.done, u64::from(id.index)))
    }

    /// Whether all batches of a window are done.
    pub(crate) fn has_window(&self, epoch: u32, window: u64) -> bool {
        self.windows.get(&epoch).is_some_and(|done| holds(done, window))
    }

    /// How many epochs have a batch that is done, or come before one that has.
    pub(crate) fn epochs_begun(&self) -> u64 {
        let open = self.open.values().filter(|open| !open.done.is_empty()).map(|open| open.epoch);
        self.windows.keys().copied().chain(open).max().map_or(0, |last| u64::from(last) + 1)
    }

    /// The ranges of windows of an epoch that are done.
    pub(crate) fn windows_of(&self, epoch: u32) -> &[Range<u64>] {
        self.windows.get(&epoch).map_or(&[], Vec::as_slice)
    }

    /// Rows of the windows that are done, including rejected rows, of data that has windows. The last window of an epoch counts like the
    /// others.
    pub(crate) fn rows_of_windows(&self, data: &DataPlan) -> u64 {
        let windows =
            self.windows.values().flatten().map(|done| done.end.min(data.windows) - done.start.min(data.windows));
        (u128::from(data.rows) * u128::from(windows.sum::<u64>()) / u128::from(data.windows)) as u64
    }

    /// Rows and batches of the windows that are done.
    pub(crate) fn counts(&self) -> RowCounts {
        self.counts
    }

    /// The last batch of the window of `id` has been started.
    pub(crate) fn window_ends(&mut self, id: BatchId, end: WindowEnd) {
        if self.has_window(id.epoch, id.window) {
            return;
        }
        self.open_window(id).end = Some(end);
        self.close_if_done(id);
    }

    /// A batch of `rows` rows is done. A second call for the same batch changes nothing.
    pub(crate) fn batch_done(&mut self, id: BatchId, rows: u64, order: BatchOrder) {
        if self.contains(id) {
            return;
        }
        if order == BatchOrder::Data {
            self.close_before(id);
        }
        let open = self.open_window(id);
        insert(&mut open.done, u64::from(id.index));
        open.rows += rows;
        self.close_if_done(id);
    }

    fn window(&self, id: BatchId) -> Option<&OpenWindow> {
        self.open.get(&(id.epoch, id.window))
    }

    fn open_window(&mut self, id: BatchId) -> &mut OpenWindow {
        let BatchId { epoch, window, .. } = id;
        let new = || OpenWindow { epoch, window, done: Vec::new(), rows: 0, end: None };
        self.open.entry((epoch, window)).or_insert_with(new)
    }

    /// All windows before the window of `id` are done.
    fn close_before(&mut self, id: BatchId) {
        if self.window(id).is_some() {
            return;
        }
        let rest = self.open.split_off(&(id.epoch, id.window));
        for open in std::mem::replace(&mut self.open, rest).into_values() {
            self.counts.add(&RowCounts {
                trained: open.rows,
                rejected: open.end.map_or(0, |end| end.rejected),
                batches: open.batches(),
            });
        }
        for epoch in 0..id.epoch {
            self.windows.insert(epoch, upto(u64::MAX));
        }
        if id.window > 0 {
            self.windows.insert(id.epoch, upto(id.window));
        }
    }

    fn close_if_done(&mut self, id: BatchId) {
        let at = (id.epoch, id.window);
        if !self.open.get(&at).is_some_and(OpenWindow::is_done) {
            return;
        }
        let Some(OpenWindow { epoch, window, rows, end, .. }) = self.open.remove(&at) else { return };
        let (rejected, batches) = end.map_or((0, 0), |end| (end.rejected, u64::from(end.batches)));
        self.counts.add(&RowCounts { trained: rows, rejected, batches });
        insert(self.windows.entry(epoch).or_default(), window);
    }
}

impl OpenWindow {
    fn batches(&self) -> u64 {
        self.done.iter().map(|range| range.end - range.start).sum()
    }

    fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.done == upto(u64::from(end.batches)))
    }
}

/// The numbers below `end`.
fn upto(end: u64) -> Vec<Range<u64>> {
    std::iter::once(0..end).collect()
}

fn holds(ranges: &[Range<u64>], number: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= number);
    after > 0 && ranges[after - 1].contains(&number)
}

/// Adds a number to sorted ranges, and joins ranges that touch.
fn insert(ranges: &mut Vec<Range<u64>>, number: u64) {
    let after = ranges.partition_point(|range| range.start <= number);
    if after > 0 && ranges[after - 1].end > number {
        return;
    }
    let (left, right) = (
        after > 0 && ranges[after - 1].end == number,
        ranges.get(after).is_some_and(|range| range.start == number + 1),
    );
    match (left, right) {
        (true, true) => {
            ranges[after - 1].end = ranges[after].end;
            ranges.remove(after);
        }
        (true, false) => ranges[after - 1].end += 1,
        (false, true) => ranges[after].start = number,
        (false, false) => ranges.insert(after, number..number + 1),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::batch_log::BatchLog;
    use super::*;

    fn id(epoch: u32, window: u64, index: u32) -> BatchId {
        BatchId { epoch, window, index }
    }

    const BATCHES: u32 = 3;

    fn end() -> WindowEnd {
        WindowEnd { batches: BATCHES, rows: u64::from(BATCHES) * 10, rejected: 2 }
    }

    proptest! {
        /// Batches are done in any order, some twice, with restarts from the stored position in between.
        #[test]
        fn it_knows_what_a_set_knows(steps in prop::collection::vec((0u32..2, 0u64..6, 0u32..BATCHES, any::<bool>()), 0..80)) {
            let (mut trained, mut set) = (TrainedBatches::default(), BTreeSet::new());
            for (epoch, window, index, restart) in steps {
                let id = id(epoch, window, index);
                if index == BATCHES - 1 {
                    trained.window_ends(id, end());
                }
                trained.batch_done(id, 10, BatchOrder::Any);
                set.insert(id);
                if restart {
                    trained = serde_json::from_str(&serde_json::to_string(&trained).unwrap()).unwrap();
                }
            }
            for epoch in 0..2 {
                for window in 0..6 {
                    for index in 0..BATCHES {
                        let id = id(epoch, window, index);
                        prop_assert_eq!(trained.contains(id), set.contains(&id));
                    }
                    let whole = (0..BATCHES).all(|index| set.contains(&id(epoch, window, index)));
                    prop_assert_eq!(trained.has_window(epoch, window), whole);
                }
            }
            let windows = trained.windows.values().flatten().map(|range| range.end - range.start).sum::<u64>();
            let counts = RowCounts { trained: windows * 30, rejected: windows * 2, batches: windows * 3 };
            prop_assert_eq!(trained.counts(), counts);
        }

        /// Several trainers do batches, some of them twice; the coordinator counts some windows that are whole.
        #[test]
        fn the_logs_of_several_trainers_add_up(
            before in prop::collection::vec((0u64..5, 0u32..BATCHES), 0..8),
            done in prop::collection::vec((0u64..5, 0u32..BATCHES, 0usize..3), 0..60),
            counted: bool,
        ) {
            let closes = |index| index == BATCHES - 1;
            let mut origin = TrainedBatches::default();
            for &(window, index) in &before {
                if closes(index) {
                    origin.window_ends(id(0, window, index), end());
                }
                origin.batch_done(id(0, window, index), 10, BatchOrder::Any);
            }
            let mut set: BTreeSet<_> = before.iter().copied().collect();
            let mut logs: [BatchLog; 3] = Default::default();
            for &(window, index, trainer) in done.iter().filter(|(window, index, _)| !before.contains(&(*window, *index))) {
                if closes(index) {
                    logs[trainer].window_ends(id(0, window, index), end());
                }
                logs[trainer].batch_done(id(0, window, index), 10);
                set.insert((window, index));
            }
            let whole = |window| (0..BATCHES).all(|index| set.contains(&(window, index)));
            let known: Vec<_> = (0..5).filter(|&w| whole(w) && (counted || origin.has_window(0, w))).collect();
            let n = known.len() as u64;
            let counts = RowCounts { trained: n * 30, rejected: n * 2, batches: n * 3 };
            let mut ranges = Vec::new();
            known.iter().for_each(|&window| insert(&mut ranges, window));
            let mut merged = TrainedBatches::of_windows([(0, ranges)].into(), counts);
            merged.add_open_windows(&origin);
            for log in &logs {
                merged.add_log(&log.windows());
            }
            for window in 0..5 {
                for index in 0..BATCHES {
                    prop_assert_eq!(merged.contains(id(0, window, index)), set.contains(&(window, index)));
                }
                prop_assert_eq!(merged.has_window(0, window), whole(window));
            }
            let totals = merged.totals();
            prop_assert_eq!((totals.trained, totals.batches), (set.len() as u64 * 10, set.len() as u64));
        }

        #[test]
        fn in_the_order_of_the_data_a_batch_closes_all_windows_before_it(upto in 1usize..60) {
            let all: Vec<BatchId> = (0..2).flat_map(|e| (0..10).flat_map(move |w| (0..3).map(move |i| id(e, w, i)))).collect();
            let mut trained = TrainedBatches::default();
            for &id in &all[..upto] {
                trained.batch_done(id, 10, BatchOrder::Data);
            }
            for (at, &id) in all.iter().enumerate() {
                prop_assert_eq!(trained.contains(id), at < upto, "{}", id);
            }
            prop_assert!(trained.open.len() == 1 && trained.windows.len() <= 2, "it does not grow: {:?}", trained);
        }
    }

    #[test]
    fn an_epoch_has_begun_when_a_batch_of_it_is_done() {
        let mut trained = TrainedBatches::default();
        assert_eq!(trained.epochs_begun(), 0);
        for (batch, epochs) in [(id(0, 0, 0), 1), (id(0, 0, 1), 1), (id(0, 0, 2), 1), (id(2, 1, 0), 3)] {
            trained.batch_done(batch, 10, BatchOrder::Any);
            trained.window_ends(batch, end());
            assert_eq!(trained.epochs_begun(), epochs, "{batch}");
        }
        // A batch was started there, and none is done.
        trained.window_ends(id(5, 0, 2), end());
        assert_eq!(trained.epochs_begun(), 3);
    }

    #[test]
    fn the_rows_of_windows_are_those_of_whole_epochs_and_of_a_part() {
        let mut trained = TrainedBatches::default();
        let data = DataPlan { epochs: 5, rows: 1000, windows: 10, fingerprint: 1 };
        assert_eq!(trained.rows_of_windows(&data), 0);
        // The first batch of the fourth window of the third epoch.
        trained.batch_done(id(2, 3, 0), 10, BatchOrder::Data);
        assert_eq!(trained.rows_of_windows(&data), 2 * 1000 + 3 * 100);
    }

    #[test]
    fn an_empty_window_is_done_with_its_only_batch() {
        let mut trained = TrainedBatches::default();
        trained.window_ends(id(0, 4, 0), WindowEnd { batches: 1, rows: 0, rejected: 7 });
        assert!(!trained.has_window(0, 4));
        trained.batch_done(id(0, 4, 0), 0, BatchOrder::Any);
        assert!(trained.has_window(0, 4) && trained.windows.values().flatten().eq([&(4..5)]));
        assert_eq!(trained.counts(), RowCounts { trained: 0, rejected: 7, batches: 1 });
    }
}
