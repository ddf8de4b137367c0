//! How far the look-ups may run ahead of the pushes.
//!
//! `lookup` takes a [`Ticket`] for each batch; `push` drops it once every shard has applied the batch's gradients.
//! There are `k + 1` tickets, so when batch `i` is looked up, at least the gradients of batch `i - k - 1` and of all
//! before it are in the rows: with `k = 0` that is the sequential program, the same to the bit on every run.
//!
//! Comes in: nothing. Goes out: tickets. [`Staleness::ticket`] awaits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The tickets of one run.
#[derive(Clone, Debug)]
pub struct Staleness {
    bound: usize,
    tickets: Arc<Semaphore>,
    observed: Arc<AtomicU64>,
}

/// The right of one batch to be under way; freed by drop.
#[derive(Debug)]
pub struct Ticket {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// A ticket of no run, for tests and for evaluation.
    pub fn free() -> Self {
        Self { _permit: None }
    }
}

impl Staleness {
    /// At most `k` batches may be looked up beyond the oldest one whose gradients are not applied yet.
    pub fn new(k: usize) -> Self {
        Self { bound: k, tickets: Arc::new(Semaphore::new(k + 1)), observed: Arc::default() }
    }

    /// Waits until the next batch may be looked up. Cancel safe.
    pub async fn ticket(&self) -> Ticket {
        let permit = Arc::clone(&self.tickets).acquire_owned().await.expect("the semaphore of a run is never closed");
        let ahead = (self.bound - self.tickets.available_permits().min(self.bound)) as u64;
        self.observed.fetch_max(ahead, Ordering::Relaxed);
        Ticket { _permit: Some(permit) }
    }

    /// The bound `k`.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The most batches that were under way, not yet applied, when another was looked up.
    pub fn observed(&self) -> u64 {
        self.observed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn the_bound_holds_and_is_reached() {
        for k in [0, 1, 3] {
            let staleness = Staleness::new(k);
            let mut held: Vec<Ticket> = (0..=k).map(|_| staleness.ticket().now_or_never().expect("free")).collect();
            assert!(staleness.ticket().now_or_never().is_none(), "ticket {} of {}", k + 2, k + 1);
            assert_eq!(staleness.observed(), k as u64);
            held.pop();
            assert!(staleness.ticket().now_or_never().is_some());
        }
    }
}
