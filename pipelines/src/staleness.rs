//! How far the look-ups may run ahead of the pushes.
//!
//! `lookup` takes a [`Ticket`] for each batch, by its number; `push` drops it once every shard has applied the batch's
//! gradients. With a bound of `k`, batch `i` gets its ticket when batch `i - k - 1` and all before it are applied (the stale
//! synchronous bound of Ho et al., 2013). With `k = 0` that is the sequential program, the same to the bit on every run.
//!
//! Comes in: numbers of batches. Goes out: tickets. [`Staleness::ticket`] awaits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// The tickets of one run.
#[derive(Clone, Debug)]
pub struct Staleness {
    bound: usize,
    applied: Arc<watch::Sender<Applied>>,
    observed: Arc<AtomicU64>,
}

/// Which batches are applied.
#[derive(Debug, Default)]
struct Applied {
    /// All below this number.
    before: u64,
    /// Those above it.
    early: BTreeSet<u64>,
}

/// The right of one batch to be under way; freed by drop.
#[derive(Debug)]
pub struct Ticket {
    of: Option<(u64, Arc<watch::Sender<Applied>>)>,
}

impl Ticket {
    /// A ticket of no run, for tests and for evaluation.
    pub fn free() -> Self {
        Self { of: None }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some((number, applied)) = self.of.take() {
            applied.send_modify(|applied| applied.add(number));
        }
    }
}

impl Applied {
    fn add(&mut self, number: u64) {
        self.early.insert(number);
        while self.early.remove(&self.before) {
            self.before += 1;
        }
    }
}

impl Staleness {
    /// At most `k` batches may be looked up beyond the oldest one whose gradients are not applied yet.
    pub fn new(k: usize) -> Self {
        Self { bound: k, applied: Arc::new(watch::Sender::new(Applied::default())), observed: Arc::default() }
    }

    /// Waits until batch `number`, counted from 0, may be looked up. Each number takes one ticket, in any order. Cancel safe.
    pub async fn ticket(&self, number: u64) -> Ticket {
        let bound = self.bound as u64;
        let mut applied = self.applied.subscribe();
        let may = applied.wait_for(|applied| number <= applied.before.saturating_add(bound)).await;
        let ahead = number.saturating_sub(may.expect("its sender is here").before);
        self.observed.fetch_max(ahead, Ordering::Relaxed);
        Ticket { of: Some((number, Arc::clone(&self.applied))) }
    }

    /// Batch `number` needs no look-up: those after it do not wait for it.
    pub fn skip(&self, number: u64) {
        self.applied.send_modify(|applied| applied.add(number));
    }

    /// The bound `k`.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The most batches, not yet applied, that one was looked up ahead of.
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
            held.remove(0);
            assert!(now(&staleness, k as u64 + 1).is_some());
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
    fn whoever_asks_first_a_later_batch_has_no_earlier_ones_place() {
        let staleness = Staleness::new(1);
        let (mut later, mut earlier) = (Box::pin(staleness.ticket(2)), Box::pin(staleness.ticket(1)));
        assert!(later.as_mut().now_or_never().is_none());
        let first = now(&staleness, 0).unwrap();
        assert!(earlier.as_mut().now_or_never().is_some(), "it waits for nobody");
        assert!(later.as_mut().now_or_never().is_none());
        drop(first);
        assert!(later.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_batch_that_is_skipped_holds_up_nobody() {
        let staleness = Staleness::new(0);
        staleness.skip(1);
        assert!(now(&staleness, 2).is_none());
        drop(now(&staleness, 0).unwrap());
        assert!(now(&staleness, 2).is_some());
    }
}
