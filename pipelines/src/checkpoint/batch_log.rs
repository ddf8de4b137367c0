//! The batches that one of several trainers has done: its part of the position of a checkpoint. A state machine without a clock
//! and without IO.
//!
//! It holds the windows that the coordinator does not yet count as done, so it does not grow with the data.

use std::collections::BTreeMap;

use forebay_batches::{BatchId, WindowEnd};
use serde::{Deserialize, Serialize};

/// The batches of one window that a trainer has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowLog {
    pub(crate) epoch: u32,
    pub(crate) window: u64,
    /// (index, rows) of each batch.
    pub(crate) batches: Vec<(u32, u64)>,
    /// Set if this trainer has started the last batch of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<WindowEnd>,
}

/// The batches that a trainer has done since it joined.
#[derive(Debug, Default)]
pub(crate) struct BatchLog {
    windows: BTreeMap<(u32, u64), WindowLog>,
    /// (epoch, window): all windows before it are done.
    first_open: (u32, u64),
    /// Rows of all batches.
    rows: u64,
}

impl BatchLog {
    fn window(&mut self, id: BatchId) -> Option<&mut WindowLog> {
        let BatchId { epoch, window, .. } = id;
        let open = (epoch, window) >= self.first_open;
        let new = || WindowLog { epoch, window, batches: Vec::new(), end: None };
        open.then(|| self.windows.entry((epoch, window)).or_insert_with(new))
    }

    /// The last batch of the window of `id` has been started.
    pub(crate) fn window_ends(&mut self, id: BatchId, end: WindowEnd) {
        if let Some(window) = self.window(id) {
            window.end = Some(end);
        }
    }

    /// A batch of `rows` rows is done.
    pub(crate) fn batch_done(&mut self, id: BatchId, rows: u64) {
        self.rows += rows;
        if let Some(window) = self.window(id) {
            window.batches.push((id.index, rows));
        }
    }

    /// All windows before `first_open` are done, and the coordinator has their counts.
    pub(crate) fn forget_before(&mut self, first_open: (u32, u64)) {
        if first_open > self.first_open {
            self.first_open = first_open;
            self.windows = self.windows.split_off(&first_open);
        }
    }

    /// The batches that are done in windows that the coordinator may not count as done.
    pub(crate) fn windows(&self) -> Vec<WindowLog> {
        self.windows.values().cloned().collect()
    }

    /// Rows of all batches; a batch that was done twice counts twice.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_the_coordinator_counts_are_forgotten() {
        let id = |window, index| BatchId { epoch: 0, window, index };
        let mut log = BatchLog::default();
        for window in 0..4 {
            log.batch_done(id(window, 0), 10);
        }
        log.window_ends(id(3, 1), WindowEnd { batches: 2, rows: 20, rejected: 0 });
        log.forget_before((0, 2));
        log.batch_done(id(1, 1), 10);
        log.forget_before((0, 1));
        let windows = log.windows();
        assert_eq!(windows.iter().map(|window| window.window).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((windows[1].batches.clone(), windows[1].end.map(|end| end.batches)), (vec![(0, 10)], Some(2)));
        assert_eq!(log.rows(), 50);
    }
}
