//! A turnstile: lets the replicas of a stage send in the order in which their inputs arrived.
//!
//! A replica may send for input `i` when every input before `i` has passed. [`Turn::comes`] waits for that.
//! [`Turn::pass`] never waits: an early pass is remembered, so that a replica without output goes on with its next
//! input.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::lock::lock;

#[derive(Default)]
pub(crate) struct Turnstile {
    next: AtomicU64,
    passed_early: Mutex<BTreeSet<u64>>,
    moved: Notify,
}

/// One replica at the turnstile.
pub(crate) struct Turn {
    stile: Arc<Turnstile>,
    mine: Arc<AtomicU64>,
}

impl Turnstile {
    fn pass(&self, seq: u64) {
        let mut early = lock(&self.passed_early);
        let next = self.next.load(SeqCst);
        debug_assert!(seq >= next && !early.contains(&seq), "turn {seq} passes twice");
        if seq != next {
            early.insert(seq);
            return;
        }
        let mut next = next + 1;
        while early.remove(&next) {
            next += 1;
        }
        self.next.store(next, SeqCst);
        drop(early);
        self.moved.notify_waiters();
    }
}

impl Turn {
    pub(crate) fn new(stile: &Arc<Turnstile>) -> Self {
        Self { stile: Arc::clone(stile), mine: Arc::default() }
    }

    /// A second handle on the same turn: one is for the outbox, one for the replica's loop.
    pub(crate) fn twin(&self) -> Self {
        Self { stile: Arc::clone(&self.stile), mine: Arc::clone(&self.mine) }
    }

    /// Sets the input that the replica works on.
    pub(crate) fn take(&self, seq: u64) {
        self.mine.store(seq, SeqCst);
    }

    pub(crate) fn is_now(&self) -> bool {
        self.stile.next.load(SeqCst) == self.mine.load(SeqCst)
    }

    /// Resolves when all inputs before this one have passed. Cancel safe.
    pub(crate) async fn comes(&self) {
        loop {
            let moved = self.stile.moved.notified();
            if self.is_now() {
                return;
            }
            moved.await;
        }
    }

    /// Says that the replica has sent all output of its input.
    pub(crate) fn pass(&self) {
        self.stile.pass(self.mine.load(SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_order_of_arrival() {
        let stile = Arc::new(Turnstile::default());
        let turns: Vec<_> = (0..4).map(|seq| (seq, Turn::new(&stile))).collect();
        for (seq, turn) in &turns {
            turn.take(*seq);
        }
        let mut last = std::pin::pin!(turns[3].1.comes());
        assert!(futures::poll!(last.as_mut()).is_pending());
        turns[2].1.pass();
        turns[0].1.pass();
        assert!(turns[1].1.is_now() && futures::poll!(last.as_mut()).is_pending());
        turns[1].1.pass();
        last.await;
    }
}
