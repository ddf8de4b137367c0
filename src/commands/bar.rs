//! The progress of rows that are written to files, on a terminal.

use std::time::Duration;

use crate::actors::{counted, size};
use crate::connectors::convert::{ConvertProgress, Written};
use indicatif::ProgressBar;

use crate::logs::Logs;

/// The progress of rows that are written.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(rows: Option<u64>, logs: &Logs) -> Self {
        let bar = match rows {
            _ if !logs.draws_progress() => ProgressBar::hidden(),
            Some(rows) => ProgressBar::new(rows),
            None => ProgressBar::new_spinner(),
        };
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    pub(super) fn show(&mut self, progress: ConvertProgress) {
        self.0.set_position(progress.rows);
        self.0.set_message(format!("{}, {}", counted(progress.rows, "row"), size(progress.bytes)));
    }

    /// Clears the bar. Returns a line about the written files.
    pub(super) fn done(self, folder: &str, written: &Written) -> String {
        self.0.finish_and_clear();
        wrote(folder, written)
    }
}

/// A line about the written files.
pub(super) fn wrote(folder: &str, written: &Written) -> String {
    let Written { files, rows, bytes, .. } = written;
    format!("wrote {folder}: {}, {}, {}", counted(*rows, "row"), counted(*files, "file"), size(*bytes))
}
