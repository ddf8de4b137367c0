//! The send queue of a reader: batches that wait to be sent, and sent batches that are not done. A state machine over new
//! batches, credits, broken channels and done batches, without a clock and without IO.
//!
//! If a channel breaks, its batches wait again, before later ones. The async methods are cancel safe.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use forebay_actors::Fault;
use forebay_batches::wire::metadata::Header;
use forebay_batches::{BatchId, Ticket};
use tokio::sync::Notify;

use crate::shared_state::SharedState;

/// An encoded batch, which may have to be sent several times.
#[derive(Debug)]
pub(crate) struct QueuedBatch {
    pub(crate) header: Header,
    pub(crate) columns: RecordBatch,
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    /// The ticket of the look-up, if readers look up rows. Freed when the batch is done.
    pub(crate) _ticket: Option<Ticket>,
}

/// The send queue of one reader.
pub(crate) struct SendQueue {
    /// Notified when a batch was sent or is done.
    state: SharedState<State>,
    /// Unsent batches per queue.
    capacity: usize,
    /// By queue: notified when a batch may have become sendable.
    sendable: Vec<Notify>,
}

struct State {
    queues: Vec<TrainerQueue>,
    failed: Option<Fault>,
}

/// The batches for one trainer, or for any trainer.
#[derive(Default)]
struct TrainerQueue {
    waiting: BTreeMap<BatchId, QueuedBatch>,
    /// Batches that are not done, with the channel that each was sent on.
    sent: BTreeMap<BatchId, (QueuedBatch, usize)>,
}

impl SendQueue {
    /// A send queue of `queues` queues of `capacity` batches: one queue for all trainers, or one for each.
    pub(crate) fn new(queues: usize, capacity: usize) -> Self {
        Self {
            state: SharedState::new(State {
                queues: (0..queues).map(|_| TrainerQueue::default()).collect(),
                failed: None,
            }),
            capacity,
            sendable: (0..queues).map(|_| Notify::new()).collect(),
        }
    }

    /// Waits until the queue has room for this batch. The earliest batch needs no room, because the batches in the queue may wait for it.
    pub(crate) async fn wait_for_room(&self, queue: usize, id: BatchId) -> Result<(), Fault> {
        self.wait_until(|state| {
            let waiting = &state.queues[queue].waiting;
            waiting.len() < self.capacity || waiting.first_key_value().is_some_and(|(first, _)| id < *first)
        })
        .await
    }

    /// Waits until every batch is done.
    pub(crate) async fn wait_until_empty(&self) -> Result<(), Fault> {
        self.wait_until(|state| state.queues.iter().all(|queue| queue.waiting.is_empty() && queue.sent.is_empty()))
            .await
    }

    async fn wait_until(&self, holds: impl Fn(&State) -> bool) -> Result<(), Fault> {
        self.state
            .when(|state| match &state.failed {
                Some(why) => Some(Err(why.clone())),
                None => holds(state).then_some(Ok(())),
            })
            .await
    }

    /// Adds a batch.
    pub(crate) fn put(&self, queue: usize, queued: QueuedBatch) {
        self.state.lock().queues[queue].waiting.insert(queued.header.id, queued);
        self.sendable[queue].notify_waiters();
    }

    /// Waits for the first batch, and takes it for `channel`: its header, columns and bytes. `fits` says whether the channel has credit for
    /// a number of bytes. A batch needs no credit, and is marked urgent, if it comes before all batches that this channel has sent and that
    /// are not done: these hold the credits, and may wait for it.
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
                let mut state = self.state.lock();
                let TrainerQueue { waiting, sent } = &mut state.queues[queue];
                if let Some(first) = waiting.first_entry()
                    && let fits = fits(first.get().bytes)
                    && (fits || comes_first(sent, channel, first.key()))
                {
                    let (id, queued) = first.remove_entry();
                    let message = (Header { urgent: !fits, ..queued.header }, queued.columns.clone(), queued.bytes);
                    sent.insert(id, (queued, channel));
                    self.state.notify();
                    return message;
                }
            }
            sendable.await;
        }
    }

    /// A channel has got credits: it may be able to send its next batch.
    pub(crate) fn credit_came(&self, queue: usize) {
        self.sendable[queue].notify_waiters();
    }

    /// The channel broke: its batches that are not done wait again.
    pub(crate) fn channel_broke(&self, queue: usize, channel: usize) {
        let mut state = self.state.lock();
        let TrainerQueue { waiting, sent } = &mut state.queues[queue];
        let lost: Vec<BatchId> = sent.iter().filter(|(_, (_, by))| *by == channel).map(|(id, _)| *id).collect();
        for id in lost {
            if let Some((queued, _)) = sent.remove(&id) {
                // The same batch may wait already, with the later term of a lease that came back.
                waiting.entry(id).or_insert(queued);
            }
        }
        self.sendable[queue].notify_waiters();
    }

    /// A batch is done: drops it. Returns whether it was here.
    pub(crate) fn batch_done(&self, id: BatchId) -> bool {
        let mut state = self.state.lock();
        let known = state
            .queues
            .iter_mut()
            .fold(false, |known, queue| queue.sent.remove(&id).is_some() | queue.waiting.remove(&id).is_some() | known);
        drop(state);
        self.notify_all();
        known
    }

    /// The window of `id` was leased again with a term above `term`: drops its batches of `term` and of lower terms.
    pub(crate) fn remove_window_of(&self, id: BatchId, term: u32) {
        let stays = |queued: &QueuedBatch| {
            let Header { id: other, term: newer, .. } = queued.header;
            (other.epoch, other.window) != (id.epoch, id.window) || newer > term
        };
        for queue in &mut self.state.lock().queues {
            queue.waiting.retain(|_, queued| stays(queued));
            queue.sent.retain(|_, (queued, _)| stays(queued));
        }
        self.notify_all();
    }

    /// Wakes the tasks that wait for room or for credit: another batch may be the first, which needs no credit.
    fn notify_all(&self) {
        self.state.notify();
        self.sendable.iter().for_each(Notify::notify_waiters);
    }

    /// Drops all batches: they were trained on from another reader, or will not be trained on. Returns their rows.
    pub(crate) fn clear(&self) -> u64 {
        let mut rows = 0;
        for TrainerQueue { waiting, sent } in &mut self.state.lock().queues {
            let sent = std::mem::take(sent).into_values().map(|(queued, _)| queued);
            rows += std::mem::take(waiting).into_values().chain(sent).map(|queued| queued.rows).sum::<u64>();
        }
        self.state.notify();
        rows
    }

    /// No more batches can be sent: calls that wait fail with `why`.
    pub(crate) fn fail(&self, why: Fault) {
        self.state.lock().failed.get_or_insert(why);
        self.state.notify();
    }
}

/// Whether batches in `sent` went by `channel` and `id` comes before all of them.
fn comes_first(sent: &BTreeMap<BatchId, (QueuedBatch, usize)>, channel: usize, id: &BatchId) -> bool {
    sent.iter().find(|(_, (_, by))| *by == channel).is_some_and(|(first, _)| id < first)
}

#[cfg(test)]
mod tests {
    use forebay_batches::wire::columns::schema;
    use futures::FutureExt;

    use super::*;

    fn queued(window: u64, index: u32, bytes: u64) -> QueuedBatch {
        let id = BatchId { epoch: 0, window, index };
        let header = Header {
            id,
            term: 0,
            split: 0,
            row: 0,
            closes: None,
            done_before: 0,
            urgent: false,
            labels: 1,
            other_rows: 0,
        };
        QueuedBatch {
            header,
            columns: RecordBatch::new_empty(schema(Default::default())),
            bytes,
            rows: 10,
            _ticket: None,
        }
    }

    fn next(send_queue: &SendQueue, channel: usize) -> Option<u32> {
        send_queue.next(0, channel, |bytes| bytes <= 10).now_or_never().map(|(header, ..)| header.id.index)
    }

    #[test]
    fn batches_of_a_broken_channel_are_sent_again_first() {
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
    fn the_rows_of_all_batches_that_are_not_done_are_counted_when_they_are_dropped() {
        let send_queue = SendQueue::new(1, 8);
        (0..3).for_each(|index| send_queue.put(0, queued(0, index, 1)));
        assert_eq!((next(&send_queue, 7), next(&send_queue, 7)), (Some(0), Some(1)));
        assert!(send_queue.batch_done(BatchId { epoch: 0, window: 0, index: 0 }));
        assert_eq!((send_queue.clear(), send_queue.clear()), (20, 0), "one that was sent, and one that was not");
        send_queue.wait_until_empty().now_or_never().unwrap().unwrap();
    }

    #[test]
    fn a_batch_waits_for_credit_and_a_full_queue_for_room() {
        let send_queue = SendQueue::new(1, 1);
        let room = |index| send_queue.wait_for_room(0, BatchId { epoch: 0, window: 0, index }).now_or_never();
        room(1).unwrap().unwrap();
        send_queue.put(0, queued(0, 1, 11));
        assert!(room(2).is_none());
        assert!(room(0).is_some(), "all that wait may wait for this batch of a lost lease");
        assert_eq!(next(&send_queue, 0), None, "no credit for 11 bytes");
        assert!(send_queue.next(0, 0, |_| true).now_or_never().is_some());
        room(2).unwrap().unwrap();
    }

    #[test]
    fn a_batch_before_all_sent_ones_needs_no_credit() {
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
        assert_eq!(next(8, false), None, "nothing was sent on this channel");
        assert_eq!(next(7, false), Some((2, 0, true)));
        let mut waiting = std::pin::pin!(send_queue.next(0, 7, |_| false));
        assert!(waiting.as_mut().now_or_never().is_none(), "one at a time");
        send_queue.batch_done(BatchId { epoch: 0, window: 2, index: 0 });
        assert!(waiting.now_or_never().is_some_and(|(header, ..)| header.id.index == 1 && header.urgent));
    }

    /// A reader lost its lease and got it back: batches of both terms are here.
    #[test]
    fn batches_of_a_lease_that_came_back_survive_a_refusal_of_the_earlier_term_and_a_broken_channel() {
        let with_term = |index, term| {
            let mut queued = queued(0, index, 1);
            queued.header.term = term;
            queued
        };
        let next = |send_queue: &SendQueue| {
            send_queue.next(0, 7, |_| true).now_or_never().map(|(header, ..)| (header.id.index, header.term))
        };
        for broke in [true, false] {
            let send_queue = SendQueue::new(1, 8);
            send_queue.put(0, with_term(0, 0));
            send_queue.put(0, with_term(1, 0));
            assert_eq!(next(&send_queue), Some((0, 0)));
            send_queue.put(0, with_term(0, 1));
            if broke {
                send_queue.channel_broke(0, 7);
            } else {
                send_queue.remove_window_of(BatchId { epoch: 0, window: 0, index: 0 }, 0);
            }
            assert_eq!(next(&send_queue), Some((0, 1)));
            assert_eq!(next(&send_queue), broke.then_some((1, 0)));
        }
    }

    #[test]
    fn a_window_of_another_reader_is_dropped_and_waiting_calls_fail() {
        let send_queue = SendQueue::new(1, 8);
        for (window, index) in [(0, 0), (0, 1), (1, 0)] {
            send_queue.put(0, queued(window, index, 1));
        }
        assert_eq!(next(&send_queue, 0), Some(0));
        send_queue.remove_window_of(BatchId { epoch: 0, window: 0, index: 1 }, 0);
        let (header, ..) = send_queue.next(0, 0, |_| true).now_or_never().unwrap();
        assert_eq!(header.id.window, 1);
        send_queue.fail(Fault::user("no trainer answers"));
        let fault = send_queue.wait_until_empty().now_or_never().unwrap().unwrap_err();
        assert!(fault.domain == forebay_actors::Domain::User && fault.to_string().contains("no trainer answers"));
    }
}
