//! Staleness: bounds how far the look-ups of batches run ahead of their pushes.
//!
//! `lookup` takes a [`Ticket`] for each batch; `push` drops it when every shard has applied the batch's gradients. With a bound
//! of `k`, batch `i` gets its ticket when batch `i - k - 1` and all earlier ones are applied (stale synchronous parallel, Ho et
//! al., 2013). `k = 0` is sequential training, which gives the same bits on every run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// The most replicas of `lookup` and of `push`. More do not hide more latency, and each holds the rows of a batch.
pub const MOST_UNDER_WAY: usize = 8;

/// The staleness bound of one run, which gives out the tickets.
#[derive(Clone, Debug)]
pub struct Staleness {
    bound: usize,
    applied: Arc<watch::Sender<InOrder>>,
    observed: Arc<AtomicU64>,
    newest: Arc<AtomicU64>,
}

/// Numbers that come in any order, and how far they are complete: for instance the numbers of applied batches.
#[derive(Debug, Default)]
pub struct InOrder {
    /// All numbers below this one have come.
    before: u64,
    /// The numbers above `before` that have come.
    early: BTreeSet<u64>,
}

/// The permission to look up one batch. A drop marks the batch as applied.
#[derive(Debug)]
pub struct Ticket {
    batch: Option<(u64, Arc<watch::Sender<InOrder>>)>,
}

impl Ticket {
    /// A ticket without a bound, for tests and evaluation.
    pub fn free() -> Self {
        Self { batch: None }
    }

    /// The number of its batch, unless it is free.
    pub fn number(&self) -> Option<u64> {
        self.batch.as_ref().map(|(number, _)| *number)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some((number, applied)) = self.batch.take() {
            applied.send_modify(|applied| applied.add(number));
        }
    }
}

impl InOrder {
    /// All numbers below this one have come.
    pub fn before(&self) -> u64 {
        self.before
    }

    /// `number` has come.
    pub fn add(&mut self, number: u64) {
        self.early.insert(number);
        while self.early.remove(&self.before) {
            self.before += 1;
        }
    }
}

impl Staleness {
    /// When a batch is looked up, at most `k` earlier batches may be unapplied.
    pub fn new(k: usize) -> Self {
        Self {
            bound: k,
            applied: Arc::new(watch::Sender::new(InOrder::default())),
            observed: Arc::default(),
            newest: Arc::default(),
        }
    }

    /// Waits until batch `number`, counted from 0, may be looked up. Each number takes one ticket, in any order. Cancel safe.
    pub async fn ticket(&self, number: u64) -> Ticket {
        let bound = self.bound as u64;
        let mut applied = self.applied.subscribe();
        let may = applied.wait_for(|applied| number <= applied.before.saturating_add(bound)).await;
        let ahead = number.saturating_sub(may.expect("its sender is here").before);
        self.observe(ahead);
        Ticket { batch: Some((number, Arc::clone(&self.applied))) }
    }

    /// Marks batch `number` as applied without a look-up, so that later batches do not wait for it.
    pub fn skip(&self, number: u64) {
        self.applied.send_modify(|applied| applied.add(number));
    }

    /// A batch was looked up while `ahead` earlier ones were unapplied.
    pub fn observe(&self, ahead: u64) {
        self.observed.fetch_max(ahead, Ordering::Relaxed);
        self.newest.store(ahead, Ordering::Relaxed);
    }

    /// The bound `k`.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The staleness of the newest look-up: how many earlier batches were unapplied.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// The largest staleness so far: how many earlier batches were unapplied at a look-up.
    pub fn observed(&self) -> u64 {
        self.observed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn now(staleness: &Staleness, number: u64) -> Option<Ticket> {
        staleness.ticket(number).now_or_never()
    }

    #[test]
    fn the_bound_holds_and_is_reached() {
        for k in [0, 1, 3] {
            let staleness = Staleness::new(k);
            let mut held: Vec<Ticket> = (0..=k).map(|n| now(&staleness, n as u64).expect("free")).collect();
            assert!(now(&staleness, k as u64 + 1).is_none(), "ticket {} of {}", k + 2, k + 1);
            assert_eq!(staleness.observed(), k as u64);
            held.clear();
            assert!(now(&staleness, k as u64 + 1).is_some());
            assert_eq!((staleness.newest(), staleness.observed()), (0, k as u64), "all before it are applied");
        }
    }

    #[test]
    fn the_oldest_batch_counts_however_many_after_it_are_applied() {
        let staleness = Staleness::new(2);
        let oldest = now(&staleness, 0).unwrap();
        drop((now(&staleness, 1).unwrap(), now(&staleness, 2).unwrap()));
        assert!(now(&staleness, 3).is_none());
        drop(oldest);
        assert!(now(&staleness, 5).is_some() && now(&staleness, 6).is_none());
    }

    #[test]
    fn a_later_batch_never_takes_the_ticket_of_an_earlier_one() {
        let staleness = Staleness::new(1);
        let (mut later, mut earlier) = (Box::pin(staleness.ticket(2)), Box::pin(staleness.ticket(1)));
        assert!(later.as_mut().now_or_never().is_none());
        let first = now(&staleness, 0).unwrap();
        assert!(earlier.as_mut().now_or_never().is_some(), "batch 0 is within its bound");
        assert!(later.as_mut().now_or_never().is_none());
        drop(first);
        assert!(later.as_mut().now_or_never().is_some());
    }

    #[test]
    fn later_batches_do_not_wait_for_a_skipped_one() {
        let staleness = Staleness::new(0);
        staleness.skip(1);
        assert!(now(&staleness, 2).is_none());
        drop(now(&staleness, 0).unwrap());
        assert!(now(&staleness, 2).is_some());
    }
}
