//! Whether a reader waits for a trainer that it does not reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of trainers that a reader does not reach. Clones share the count.
#[derive(Clone)]
pub(crate) struct Unreached {
    count: Arc<AtomicUsize>,
    /// The least number with which some batches reach no trainer.
    blocking: usize,
}

/// Counts one trainer until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Unreached {
    /// For batches that go to one of `trainers` trainers by one of `queues` queues: all trainers share one, or each has its own.
    pub(crate) fn new(trainers: usize, queues: usize) -> Self {
        Self { count: Arc::default(), blocking: if queues > 1 { 1 } else { trainers } }
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

    /// Whether some batches reach no trainer.
    pub(crate) fn block(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.blocking
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
        let unreached = Unreached::new(2, 1);
        assert!(!unreached.any());
        let mut opening = Box::pin(unreached.during(std::future::pending::<()>()));
        assert!(opening.as_mut().now_or_never().is_none() && unreached.any());
        assert_eq!(unreached.clone().during(async { 1 }).now_or_never(), Some(1));
        assert!(unreached.any(), "the first one");
        drop(opening);
        assert!(!unreached.any());
    }
}
