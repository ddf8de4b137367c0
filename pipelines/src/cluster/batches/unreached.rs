//! Whether a reader waits for a trainer that it does not reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of trainers that a reader does not reach. Clones share the count.
#[derive(Clone)]
pub(crate) struct Unreached {
    count: Arc<AtomicUsize>,
    /// Each trainer has a queue of its own, so each must be reached.
    needs_all: bool,
}

/// Counts one trainer until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Unreached {
    /// For batches in this number of queues: all trainers share one, or each has its own.
    pub(crate) fn new(queues: usize) -> Self {
        Self { count: Arc::default(), needs_all: queues > 1 }
    }

    /// Waits for `opened`, the channel to a trainer, and counts the trainer meanwhile. As cancel safe as `opened`.
    pub(crate) async fn during<T>(&self, opened: impl Future<Output = T>) -> T {
        self.count.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&self.count);
        opened.await
    }

    /// Whether there are such trainers.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether some batches reach no trainer, in a run that has `trainers` trainers now: those that have left do not count.
    pub(crate) fn block(&self, trainers: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        count > 0 && (self.needs_all || count >= trainers)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_trainer_counts_until_its_channel_is_open_or_given_up() {
        let unreached = Unreached::new(1);
        assert!(!unreached.any() && !unreached.block(0));
        let mut opening = Box::pin(unreached.during(std::future::pending::<()>()));
        assert!(opening.as_mut().now_or_never().is_none() && unreached.any());
        assert_eq!(unreached.clone().during(async { 1 }).now_or_never(), Some(1));
        assert!(unreached.any(), "the first one");
        assert!(!unreached.block(2) && unreached.block(1), "the second one is reached, or has left");
        drop(opening);
        assert!(!unreached.any());
    }
}
