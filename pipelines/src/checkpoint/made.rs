//! Whether the run of this process has made checkpoints. A folder without checkpoints then means that its disk is not mounted, and not that
//! the run begins at the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What one process knows of the checkpoints of its run, in all attempts. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MadeCheckpoints(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// See [`MadeCheckpoints::under`]. 0: none.
    start: AtomicU64,
    news: Notify,
}

impl MadeCheckpoints {
    /// The run has a checkpoint: the start of the coordinator of this number has found it, or the run has made it since. Not 0.
    pub(crate) fn are_there(&self, start: u64) {
        if self.0.start.swap(start, Ordering::SeqCst) == 0 {
            self.0.news.notify_one();
        }
    }

    /// The number of the start of the coordinator under which this process last heard of a checkpoint. `None`: it has heard of none.
    pub(crate) fn under(&self) -> Option<u64> {
        Some(self.0.start.load(Ordering::SeqCst)).filter(|start| *start != 0)
    }

    /// Waits for the first checkpoint, if there is none yet. Returns once, and to one caller. Cancel safe.
    pub(crate) async fn first(&self) {
        self.0.news.notified().await;
    }
}
