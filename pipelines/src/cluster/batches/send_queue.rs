//! The reader's send queue: batches that wait to be sent, and those that were sent and are not done.
//!
//! Comes in: batches, with their destination; what happens on the channels. Goes out: the next batch for a channel. A batch
//! whose channel breaks waits again, before later ones. [`SendQueue::room`], [`SendQueue::next`] and [`SendQueue::emptied`] wait and are cancel
//! safe; all else is a short lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use forebay_actors::Fault;
use tokio::sync::Notify;

use super::metadata::Header;
use crate::flow::BatchId;
use crate::staleness::Ticket;

/// A batch, ready to be sent as often as it takes.
#[derive(Debug)]
pub(crate) struct QueuedBatch {
    pub(crate) header: Header,
    pub(crate) columns: RecordBatch,
    pub(crate) bytes: u64,
    /// Of the look-up, if it stands with the reader: freed when the batch is done.
    pub(crate) _ticket: Option<Ticket>,
}

/// The send queue of one reader.
pub(crate) struct SendQueue {
    state: Mutex<State>,
    /// Batches that may wait unsent per queue.
    capacity: usize,
    /// Something can be sent, or never will be again.
    sendable: Vec<Notify>,
    /// Something was sent, or is done.
    progress: Notify,
}

struct State {
    queues: Vec<TrainerQueue>,
    failed: Option<String>,
}

/// What is for one trainer, or for any.
#[derive(Default)]
struct TrainerQueue {
    waiting: BTreeMap<BatchId, QueuedBatch>,
    /// With the channel that each went by.
    sent: BTreeMap<BatchId, (QueuedBatch, usize)>,
}

impl SendQueue {
    /// A send queue of so many queues: one that all trainers share, or one for each trainer.
    pub(crate) fn new(queues: usize, capacity: usize) -> Self {
        Self {
            state: Mutex::new(State { queues: (0..queues).map(|_| TrainerQueue::default()).collect(), failed: None }),
            capacity,
            sendable: (0..queues).map(|_| Notify::new()).collect(),
            progress: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more batch may wait in this queue.
    pub(crate) async fn wait_for_room(&self, queue: usize) -> Result<(), Fault> {
        self.wait_until(|state| state.queues[queue].waiting.len() < self.capacity).await
    }

    /// Waits until every batch is done.
    pub(crate) async fn wait_until_empty(&self) -> Result<(), Fault> {
        self.wait_until(|state| state.queues.iter().all(|b| b.waiting.is_empty() && b.sent.is_empty())).await
    }

    async fn wait_until(&self, holds: impl Fn(&State) -> bool) -> Result<(), Fault> {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            {
                let state = self.state();
                if let Some(why) = &state.failed {
                    return Err(Fault::external(why.clone()));
                }
                if holds(&state) {
                    return Ok(());
                }
            }
            progress.await;
        }
    }

    /// A batch waits to be sent.
    pub(crate) fn put(&self, queue: usize, queued: QueuedBatch) {
        self.state().queues[queue].waiting.insert(queued.header.id, queued);
        self.sendable[queue].notify_waiters();
    }

    /// Takes the first batch that waits and that `fits` (says of its bytes whether there is credit for them) for `channel`: its
    /// header, columns and bytes. Waits until there is one. One that comes before all that went by this channel and is not
    /// done needs no credit, and its header says so: what has taken the credits may wait for it.
    pub(crate) async fn next(
        &self,
        queue: usize,
        channel: usize,
        mut fits: impl FnMut(u64) -> bool,
    ) -> (Header, RecordBatch, u64) {
        loop {
            let sendable = self.sendable[queue].notified();
            tokio::pin!(sendable);
            sendable.as_mut().enable();
            {
                let mut state = self.state();
                let TrainerQueue { waiting, sent } = &mut state.queues[queue];
                if let Some(first) = waiting.first_entry()
                    && let fits = fits(first.get().bytes)
                    && (fits || comes_first(sent, channel, first.key()))
                {
                    let (id, queued) = first.remove_entry();
                    let message = (Header { urgent: !fits, ..queued.header }, queued.columns.clone(), queued.bytes);
                    sent.insert(id, (queued, channel));
                    self.progress.notify_waiters();
                    return message;
                }
            }
            sendable.await;
        }
    }

    /// Looks again whether what waits can be sent: credits have come.
    pub(crate) fn credit_came(&self, queue: usize) {
        self.sendable[queue].notify_waiters();
    }

    /// The channel broke: what went by it and is not done waits again.
    pub(crate) fn channel_broke(&self, queue: usize, channel: usize) {
        let mut state = self.state();
        let TrainerQueue { waiting, sent } = &mut state.queues[queue];
        let lost: Vec<BatchId> = sent.iter().filter(|(_, (_, by))| *by == channel).map(|(id, _)| *id).collect();
        for id in lost {
            if let Some((queued, _)) = sent.remove(&id) {
                waiting.insert(id, queued);
            }
        }
        self.sendable[queue].notify_waiters();
    }

    /// A batch is done, wherever it is. Says whether it was here.
    pub(crate) fn batch_done(&self, id: BatchId) -> bool {
        let mut state = self.state();
        let known = state
            .queues
            .iter_mut()
            .fold(false, |known, b| b.sent.remove(&id).is_some() | b.waiting.remove(&id).is_some() | known);
        drop(state);
        self.notify_all();
        known
    }

    /// Another reader has this window: all of its batches are forgotten.
    pub(crate) fn remove_window_of(&self, id: BatchId) {
        let other = |i: &BatchId| (i.epoch, i.window) != (id.epoch, id.window);
        for b in &mut self.state().queues {
            b.waiting.retain(|i, _| other(i));
            b.sent.retain(|i, _| other(i));
        }
        self.notify_all();
    }

    /// Whoever waits for room looks again, and whoever waits for credit: what needs none may be another batch now.
    fn notify_all(&self) {
        self.progress.notify_waiters();
        self.sendable.iter().for_each(Notify::notify_waiters);
    }

    /// Whatever is here is done, wherever that was seen to.
    pub(crate) fn clear(&self) {
        for b in &mut self.state().queues {
            b.waiting.clear();
            b.sent.clear();
        }
        self.progress.notify_waiters();
    }

    /// Nothing can be sent any more: whoever waits hears why.
    pub(crate) fn fail(&self, why: &str) {
        self.state().failed.get_or_insert_with(|| why.to_owned());
        self.progress.notify_waiters();
    }
}

/// Whether `id` comes before what of `sent` went by `channel`, if anything did.
fn comes_first(sent: &BTreeMap<BatchId, (QueuedBatch, usize)>, channel: usize, id: &BatchId) -> bool {
    sent.iter().find(|(_, (_, by))| *by == channel).is_some_and(|(first, _)| id < first)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn queued(window: u64, index: u32, bytes: u64) -> QueuedBatch {
        let id = BatchId { epoch: 0, window, index };
        let header = Header { id, term: 0, split: 0, row: 0, closes: None, done_before: 0, urgent: false };
        QueuedBatch { header, columns: RecordBatch::new_empty(super::super::columns::schema()), bytes, _ticket: None }
    }

    fn next(send_queue: &SendQueue, channel: usize) -> Option<u32> {
        send_queue.next(0, channel, |bytes| bytes <= 10).now_or_never().map(|(header, ..)| header.id.index)
    }

    #[test]
    fn what_a_broken_stream_took_goes_again_and_first() {
        let send_queue = SendQueue::new(1, 8);
        for index in 0..4 {
            send_queue.put(0, queued(0, index, 1));
        }
        assert_eq!((next(&send_queue, 7), next(&send_queue, 8), next(&send_queue, 7)), (Some(0), Some(1), Some(2)));
        assert!(send_queue.batch_done(BatchId { epoch: 0, window: 0, index: 2 }));
        send_queue.channel_broke(0, 7);
        assert_eq!((next(&send_queue, 9), next(&send_queue, 9), next(&send_queue, 9)), (Some(0), Some(3), None));
        assert!(send_queue.wait_until_empty().now_or_never().is_none());
        for index in [0, 1, 3] {
            assert!(send_queue.batch_done(BatchId { epoch: 0, window: 0, index }));
        }
        assert!(!send_queue.batch_done(BatchId { epoch: 0, window: 0, index: 3 }), "once");
        send_queue.wait_until_empty().now_or_never().unwrap().unwrap();
    }

    #[test]
    fn a_batch_waits_for_credit_and_a_full_box_for_room() {
        let send_queue = SendQueue::new(1, 1);
        send_queue.wait_for_room(0).now_or_never().unwrap().unwrap();
        send_queue.put(0, queued(0, 0, 11));
        assert!(send_queue.wait_for_room(0).now_or_never().is_none());
        assert_eq!(next(&send_queue, 0), None, "no credit for 11 bytes");
        assert!(send_queue.next(0, 0, |_| true).now_or_never().is_some());
        send_queue.wait_for_room(0).now_or_never().unwrap().unwrap();
    }

    #[test]
    fn what_comes_before_all_that_is_under_way_needs_no_credit() {
        let send_queue = SendQueue::new(1, 8);
        let next = |channel, credit| {
            send_queue.next(0, channel, |_| credit).now_or_never().map(|(h, ..)| (h.id.window, h.id.index, h.urgent))
        };
        send_queue.put(0, queued(5, 0, 1));
        send_queue.put(0, queued(5, 1, 1));
        assert_eq!(next(7, false), None, "no credit came yet");
        assert_eq!(next(7, true), Some((5, 0, false)));
        assert_eq!(next(7, false), None);
        for index in 0..2 {
            send_queue.put(0, queued(2, index, 1));
        }
        assert_eq!(next(8, false), None, "a channel by which nothing went");
        assert_eq!(next(7, false), Some((2, 0, true)));
        let mut waiting = std::pin::pin!(send_queue.next(0, 7, |_| false));
        assert!(waiting.as_mut().now_or_never().is_none(), "one at a time");
        send_queue.batch_done(BatchId { epoch: 0, window: 2, index: 0 });
        assert!(waiting.now_or_never().is_some_and(|(header, ..)| header.id.index == 1 && header.urgent));
    }

    #[test]
    fn a_window_that_went_to_another_reader_is_forgotten_and_a_failure_is_heard() {
        let send_queue = SendQueue::new(1, 8);
        for (window, index) in [(0, 0), (0, 1), (1, 0)] {
            send_queue.put(0, queued(window, index, 1));
        }
        assert_eq!(next(&send_queue, 0), Some(0));
        send_queue.remove_window_of(BatchId { epoch: 0, window: 0, index: 1 });
        let (header, ..) = send_queue.next(0, 0, |_| true).now_or_never().unwrap();
        assert_eq!(header.id.window, 1);
        send_queue.fail("no trainer answers");
        assert!(
            send_queue
                .wait_until_empty()
                .now_or_never()
                .unwrap()
                .unwrap_err()
                .to_string()
                .contains("no trainer answers")
        );
    }
}
