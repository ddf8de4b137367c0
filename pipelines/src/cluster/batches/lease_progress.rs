//! Which batches of a reader's leases are sent and done: a state machine over leases, sent batches and done batches, without a
//! clock and without IO. It returns a lease with its row counts when the last batch is done.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_connectors::Lease;
use tokio::sync::Notify;

use super::super::leases::RowCounts;
use crate::flow::{BatchId, WindowEnd};

/// The leases of a reader that are not done.
#[derive(Debug, Default)]
pub(crate) struct LeaseProgress {
    leases: Mutex<Vec<HeldLease>>,
    /// Notified when a lease is added or removed, when a window is sent, and on close.
    changed: Notify,
    closed: AtomicBool,
}

#[derive(Debug)]
struct HeldLease {
    lease: Lease,
    windows: BTreeMap<u64, Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// By index.
    batches: Vec<BatchState>,
    sent: usize,
    unacknowledged: usize,
    end: Option<WindowEnd>,
    rows: u64,
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum BatchState {
    #[default]
    NotSent,
    /// Sent, with this many rows.
    Sent(u64),
    Done,
}

impl HeldLease {
    fn is_sent(&self) -> bool {
        self.windows.values().all(Window::is_sent)
    }
}

impl Window {
    fn is_sent(&self) -> bool {
        self.end.is_some_and(|end| end.batches as usize == self.sent)
    }

    fn is_done(&self) -> bool {
        self.unacknowledged == 0 && self.is_sent()
    }
}

impl LeaseProgress {
    fn held(&self) -> MutexGuard<'_, Vec<HeldLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a lease that was given to this reader.
    pub(crate) fn add(&self, lease: &Lease) {
        let windows = lease.windows.clone().map(|window| (window, Window::default())).collect();
        let mut held = self.held();
        // A lease that this reader lost may come back: it is read again from the start.
        held.retain(|h| {
            h.lease.epoch != lease.epoch
                || h.lease.windows.end <= lease.windows.start
                || lease.windows.end <= h.lease.windows.start
        });
        held.push(HeldLease { lease: lease.clone(), windows });
        drop(held);
        self.changed.notify_waiters();
    }

    /// Waits until fewer than `most` leases have unsent batches. Cancel safe.
    pub(crate) async fn wait_for_room(&self, most: usize) {
        self.until(|held| held.iter().filter(|held| !held.is_sent()).count() < most).await;
    }

    /// The reader takes no more leases.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits for [`close`](Self::close). Cancel safe.
    pub(crate) async fn wait_until_closed(&self) {
        self.until(|_| self.closed.load(Ordering::SeqCst)).await;
    }

    /// Waits until there is a lease before `id` with unsent batches: one that another reader has lost. Cancel safe.
    pub(crate) async fn wait_for_earlier_lease(&self, id: BatchId) {
        let lies_before = |lease: &Lease| (lease.epoch, lease.windows.end) <= (id.epoch, id.window);
        self.until(|held| held.iter().any(|held| lies_before(&held.lease) && !held.is_sent())).await;
    }

    async fn until(&self, holds: impl Fn(&[HeldLease]) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(&self.held()) {
                return;
            }
            changed.await;
        }
    }

    /// A batch of `rows` rows is sent. Called once for each batch; `end` comes with the last of its window.
    pub(crate) fn batch_sent(&self, id: BatchId, rows: u64, end: Option<WindowEnd>) {
        let mut held = self.held();
        if let Some(window) = window(&mut held, id) {
            let at = id.index as usize;
            if window.batches.len() <= at {
                window.batches.resize(at + 1, BatchState::NotSent);
            }
            window.batches[at] = BatchState::Sent(rows);
            window.sent += 1;
            window.unacknowledged += 1;
            window.end = end.or(window.end);
        }
        // Several look-ups may be in flight, so the last batch sent need not be the last of its window.
        if window(&mut held, id).is_none_or(|window| window.is_sent()) {
            self.changed.notify_waiters();
        }
    }

    /// A batch is done; a second call changes nothing. Returns the lease and its row counts if all its batches are done.
    pub(crate) fn batch_done(&self, id: BatchId) -> Option<(Lease, RowCounts)> {
        let mut held = self.held();
        let window = window(&mut held, id)?;
        let batch = window.batches.get_mut(id.index as usize)?;
        let BatchState::Sent(rows) = *batch else { return None };
        *batch = BatchState::Done;
        window.rows += rows;
        window.unacknowledged -= 1;
        let at = held.iter().position(|h| h.lease.epoch == id.epoch && h.lease.windows.contains(&id.window))?;
        if !held[at].windows.values().all(Window::is_done) {
            return None;
        }
        let HeldLease { lease, windows } = held.remove(at);
        let mut counts = RowCounts::default();
        for window in windows.values() {
            let rejected = window.end.map_or(0, |end| end.rejected);
            counts.add(&RowCounts { trained: window.rows, rejected, batches: window.batches.len() as u64 });
        }
        Some((lease, counts))
    }

    /// The number of batches at the start of the window of `id` that are done.
    pub(crate) fn done_before(&self, id: BatchId) -> u32 {
        let mut held = self.held();
        window(&mut held, id)
            .map_or(0, |w| w.batches.iter().take_while(|batch| **batch == BatchState::Done).count() as u32)
    }

    /// Another reader has the window of `id`: removes this reader's lease of it.
    pub(crate) fn remove_lease_of(&self, id: BatchId) {
        self.held().retain(|h| !(h.lease.epoch == id.epoch && h.lease.windows.contains(&id.window)));
        self.changed.notify_waiters();
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }
}

fn window(held: &mut [HeldLease], id: BatchId) -> Option<&mut Window> {
    let held = held.iter_mut().find(|h| h.lease.epoch == id.epoch && h.lease.windows.contains(&id.window))?;
    held.windows.get_mut(&id.window)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn id(window: u64, index: u32) -> BatchId {
        BatchId { epoch: 0, window, index }
    }

    fn end(batches: u32, rows: u64, rejected: u64) -> Option<WindowEnd> {
        Some(WindowEnd { batches, rows, rejected })
    }

    #[test]
    fn a_lease_is_done_with_the_last_batch_of_its_last_window() {
        let (progress, lease) = (LeaseProgress::default(), Lease { epoch: 0, windows: 4..6, term: 1 });
        progress.add(&lease);
        progress.batch_sent(id(4, 0), 10, None);
        progress.batch_sent(id(4, 1), 7, end(2, 17, 3));
        progress.batch_sent(id(5, 0), 0, end(1, 0, 20));
        assert_eq!(progress.batch_done(id(4, 1)), None);
        assert_eq!(progress.done_before(id(4, 1)), 0);
        assert_eq!(progress.batch_done(id(4, 0)), None);
        assert_eq!(progress.batch_done(id(4, 0)), None, "done twice, counted once");
        assert_eq!(progress.done_before(id(4, 1)), 2);
        let counts = RowCounts { trained: 17, rejected: 23, batches: 3 };
        assert_eq!(progress.batch_done(id(5, 0)), Some((lease, counts)));
        assert!(progress.is_empty());
        assert_eq!(progress.batch_done(id(5, 0)), None);
    }

    #[test]
    fn batches_may_be_sent_in_any_order() {
        let progress = LeaseProgress::default();
        progress.add(&Lease { epoch: 0, windows: 0..1, term: 0 });
        progress.batch_sent(id(0, 2), 1, end(3, 21, 0));
        progress.batch_sent(id(0, 0), 10, None);
        let mut room = std::pin::pin!(progress.wait_for_room(1));
        assert!(room.as_mut().now_or_never().is_none(), "batch 1 is not sent");
        assert_eq!(
            (progress.batch_done(id(0, 2)), progress.batch_done(id(0, 0)), progress.batch_done(id(0, 1))),
            (None, None, None)
        );
        assert_eq!(progress.done_before(id(0, 1)), 1);
        progress.batch_sent(id(0, 1), 10, None);
        assert!(room.as_mut().now_or_never().is_some());
        assert_eq!(progress.batch_done(id(0, 1)).map(|(_, counts)| counts.trained), Some(21));
    }

    #[test]
    fn a_window_is_not_done_before_its_last_batch_is_sent() {
        let progress = LeaseProgress::default();
        progress.add(&Lease { epoch: 0, windows: 0..1, term: 0 });
        progress.batch_sent(id(0, 0), 10, None);
        assert_eq!(progress.batch_done(id(0, 0)), None);
        progress.batch_sent(id(0, 1), 1, end(2, 11, 0));
        assert!(progress.batch_done(id(0, 1)).is_some());
    }

    #[test]
    fn there_is_room_for_a_lease_when_all_batches_of_another_are_sent() {
        let progress = LeaseProgress::default();
        let room = || progress.wait_for_room(2).now_or_never().is_some();
        for start in [0, 2] {
            assert!(room());
            progress.add(&Lease { epoch: 0, windows: start..start + 2, term: 0 });
        }
        assert!(!room());
        let mut waiting = std::pin::pin!(progress.wait_for_room(2));
        progress.batch_sent(id(0, 0), 10, end(1, 10, 0));
        progress.batch_sent(id(1, 0), 10, None);
        assert!(waiting.as_mut().now_or_never().is_none());
        progress.batch_sent(id(1, 1), 10, end(2, 20, 0));
        assert!(waiting.as_mut().now_or_never().is_some(), "though none of it is done");
        progress.add(&Lease { epoch: 0, windows: 4..6, term: 0 });
        let mut waiting = std::pin::pin!(progress.wait_for_room(2));
        assert!(waiting.as_mut().now_or_never().is_none());
        progress.remove_lease_of(id(5, 0));
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_lease_that_comes_back_is_read_again() {
        let progress = LeaseProgress::default();
        for term in 0..2 {
            progress.add(&Lease { epoch: 0, windows: 3..4, term });
            progress.batch_sent(id(3, 0), 10, None);
            assert_eq!(progress.batch_done(id(3, 0)), None);
            assert_eq!(progress.done_before(id(3, 0)), 1);
        }
        progress.batch_sent(id(3, 1), 1, end(2, 11, 0));
        let (lease, counts) = progress.batch_done(id(3, 1)).unwrap();
        assert_eq!((lease.term, counts.trained, counts.batches), (1, 11, 2));
        assert!(progress.is_empty());
    }

    #[test]
    fn an_earlier_lease_with_unsent_batches_ends_the_wait() {
        let progress = LeaseProgress::default();
        progress.add(&Lease { epoch: 0, windows: 4..6, term: 0 });
        let mut waiting = std::pin::pin!(progress.wait_for_earlier_lease(id(4, 7)));
        assert!(waiting.as_mut().now_or_never().is_none(), "its own lease is not before it");
        progress.add(&Lease { epoch: 0, windows: 1..2, term: 1 });
        assert!(waiting.as_mut().now_or_never().is_some());
        progress.batch_sent(id(1, 0), 10, end(1, 10, 0));
        assert!(progress.wait_for_earlier_lease(id(4, 7)).now_or_never().is_none(), "all of it is sent");
    }

    #[test]
    fn a_lease_of_another_reader_is_removed() {
        let progress = LeaseProgress::default();
        progress.add(&Lease { epoch: 0, windows: 0..2, term: 0 });
        progress.batch_sent(id(1, 0), 10, end(1, 10, 0));
        progress.remove_lease_of(id(1, 0));
        assert!(progress.is_empty());
        assert_eq!(progress.batch_done(id(1, 0)), None);
    }
}
