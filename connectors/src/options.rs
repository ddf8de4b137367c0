//! The options that all sources share.

use serde::{Deserialize, Serialize};

/// How a source reads. The defaults suit a job on two cores with local files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadOptions {
    /// Rows of a batch; the last batch of a split may be smaller. Default 8,192.
    pub batch_rows: usize,
    /// Passes over the data. Default 1.
    pub epochs: usize,
    /// Whether the order of the splits is shuffled, differently in each epoch. Default false.
    pub shuffle: bool,
    /// Seed of the shuffle. Default 0.
    pub seed: u64,
    /// Rows of a window. The rows of an epoch, in its order of splits, are cut into windows, and no batch spans two.
    /// Default 0: an epoch is one window. Text has windows only with leases, since its rows are not known before they
    /// are parsed.
    pub window_rows: usize,
    /// Bytes fetched but not yet decoded, at most. A split that is larger takes the whole budget. Default 64 MiB.
    pub read_ahead_bytes: usize,
    /// The most that `read_ahead_bytes` grows to, while the source waits for its store most of the time and more bytes under way make the
    /// store faster. Default 0: it does not grow.
    pub most_read_ahead_bytes: usize,
    /// The memory of the process, in bytes, within which `read_ahead_bytes` grows. Default: what the cgroup and the machine have free.
    pub memory_limit: Option<u64>,
    /// Bytes decoded but not yet taken, at most, beside one batch of the split that is next. Default 64 MiB.
    pub decode_ahead_bytes: usize,
    /// Threads that decode at first. Default 1; a job takes more on more than four cores (`data.decode_threads`). The order of the
    /// batches does not depend on it.
    pub decode_threads: usize,
    /// Threads that decode at most: more are started while the source waits for decoding most of the time. Default 0: no more than at
    /// first.
    pub most_decode_threads: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            batch_rows: 8192,
            epochs: 1,
            shuffle: false,
            seed: 0,
            window_rows: 0,
            read_ahead_bytes: 64 << 20,
            most_read_ahead_bytes: 0,
            memory_limit: None,
            decode_ahead_bytes: 64 << 20,
            decode_threads: 1,
            most_decode_threads: 0,
        }
    }
}

impl ReadOptions {
    /// For an inspection or a conversion: two threads decode, because no other stage needs the cores.
    pub fn reading_only() -> Self {
        Self { decode_threads: 2, ..Self::default() }
    }

    /// The same, and nothing is fetched or decoded ahead.
    pub fn without_ahead(self) -> Self {
        Self { read_ahead_bytes: 1, most_read_ahead_bytes: 1, decode_ahead_bytes: 1, ..self }
    }

    /// Rows of a batch, at most. No window needs more, and a batch that is cut in two holds its memory twice.
    pub(crate) fn most_batch_rows(&self) -> usize {
        if self.window_rows > 0 { self.batch_rows.min(self.window_rows) } else { self.batch_rows }
    }

    /// The same with no field at zero, where zero makes no sense.
    pub(crate) fn sane(mut self) -> Self {
        self.batch_rows = self.batch_rows.max(1);
        self.decode_threads = self.decode_threads.max(1);
        self.read_ahead_bytes = self.read_ahead_bytes.max(1);
        self
    }
}
