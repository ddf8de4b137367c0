//! The trainer's receive queue: batches from all readers, each taken once, in the order of the data or as they come.
//!
//! Comes in: batches with their headers, from any number of channels; word of batches that are done. Goes out: the next batch;
//! on each channel, credits for what was taken and word of what is done. Holds no more than what it granted. Waits only in
//! [`ReceiveQueue::next`]; all else is a short lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use forebay_actors::Fault;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::metadata::{Header, Reply};
use crate::flow::{BatchId, TrainBatch};
use crate::participation::BatchRecord;

/// A window has fewer batches than this: places in a window are numbers of 20 bits.
const MAX_BATCHES_PER_WINDOW: u32 = 1 << 20;

/// What one channel may hold of this process's memory, however many streams it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    pub(crate) batches: u32,
    pub(crate) bytes: u64,
}

/// In which order batches are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they come.
    Any,
    /// In the order of the data: of each window the batches `rank`, `rank + of`, `rank + 2 x of`, ...
    Data { rank: u32, of: u32 },
}

/// A batch that came.
#[derive(Debug)]
pub(crate) struct QueuedBatch {
    pub(crate) header: Header,
    pub(crate) columns: RecordBatch,
    channel: u64,
    bytes: u64,
}

/// The receive queue of one trainer.
pub(crate) struct ReceiveQueue {
    state: Mutex<State>,
    credits: Credits,
    arrived: Notify,
}

struct State {
    order: Order,
    /// With [`Order::Data`]: what comes next.
    next: BatchId,
    /// Windows of an epoch, once known.
    windows: Option<u64>,
    waiting: BTreeMap<BatchId, QueuedBatch>,
    /// With [`Order::Any`].
    arrivals: VecDeque<BatchId>,
    /// Channels that a batch came on that is not done, by batch.
    under_way: HashMap<BatchId, Vec<u64>>,
    window_states: HashMap<(u32, u64), WindowState>,
    channels: HashMap<u64, Channel>,
    opened: u64,
}

/// What is known of a window.
#[derive(Default)]
struct WindowState {
    term: u32,
    done: Vec<u64>,
}

impl WindowState {
    fn is_done(&self, index: u32) -> bool {
        self.done.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn set_done(&mut self, index: u32) {
        let word = index as usize / 64;
        if self.done.len() <= word {
            self.done.resize(word + 1, 0);
        }
        self.done[word] |= 1 << (index % 64);
    }
}

struct Channel {
    reader: String,
    replies: UnboundedSender<Reply>,
    /// Granted and not used.
    batches: u32,
    bytes: u64,
    /// Sent and not taken.
    held: u32,
}

impl ReceiveQueue {
    /// Grants each channel at most `credits`.
    pub(crate) fn new(order: Order, credits: Credits) -> Self {
        let index = if let Order::Data { rank, .. } = order { rank } else { 0 };
        let state = State {
            order,
            next: BatchId { epoch: 0, window: 0, index },
            windows: None,
            waiting: BTreeMap::new(),
            arrivals: VecDeque::new(),
            under_way: HashMap::new(),
            window_states: HashMap::new(),
            channels: HashMap::new(),
            opened: 0,
        };
        Self { state: Mutex::new(state), credits, arrived: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader opens a channel, of one stream or several: its credits are granted at once. Returns the channel's number.
    pub(crate) fn open(&self, reader: &str, replies: UnboundedSender<Reply>) -> u64 {
        let Credits { batches, bytes } = self.credits;
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        let _ = replies.send(Reply::Grant { batches, bytes });
        state.channels.insert(number, Channel { reader: reader.to_owned(), replies, batches, bytes, held: 0 });
        number
    }

    /// Whether a reader has this channel open.
    pub(crate) fn has_channel(&self, channel: u64, reader: &str) -> bool {
        self.state().channels.get(&channel).is_some_and(|channel| channel.reader == reader)
    }

    /// The channel has ended. What came on it stays.
    pub(crate) fn close(&self, channel: u64) {
        self.state().channels.remove(&channel);
    }

    /// A batch came.
    ///
    /// # Errors
    /// A user fault that ends the channel: more than was granted, or a batch that cannot be.
    pub(crate) fn put(&self, channel: u64, header: Header, columns: RecordBatch, bytes: u64) -> Result<(), Fault> {
        let mut state = self.state();
        let state = &mut *state;
        let id = header.id;
        let Some(from) = state.channels.get_mut(&channel) else { return Ok(()) };
        let refused = |why: &str| Err(Fault::user(format!("{} sent {id}{why}", from.reader)));
        if id.index >= MAX_BATCHES_PER_WINDOW || header.done_before > id.index {
            return refused(", which cannot be");
        }
        if header.urgent {
            if state.waiting.range(..id).any(|(_, queued)| queued.channel == channel) {
                return refused(" as urgent, though an earlier one waits");
            }
        } else {
            if from.batches == 0 || (bytes > from.bytes && from.held > 0) {
                let Channel { batches, bytes: left, .. } = from;
                return refused(&format!(" of {bytes} bytes beyond its credits ({batches} batches, {left} bytes)"));
            }
            from.batches -= 1;
            from.bytes = from.bytes.saturating_sub(bytes);
            from.held += 1;
        }
        // What lies before the next in order, and is not under way, was seen to by another trainer.
        let passed = matches!(state.order, Order::Data { .. }) && id < state.next && !state.under_way.contains_key(&id);
        let window = state.window_states.entry((id.epoch, id.window)).or_default();
        let answer = if passed || window.is_done(id.index) {
            Some(Reply::Done(id))
        } else if header.term < window.term {
            Some(Reply::Stale(id))
        } else {
            window.term = header.term;
            let channels = state.under_way.entry(id).or_default();
            let again = !channels.is_empty();
            if !channels.contains(&channel) {
                channels.push(channel);
            }
            if !again {
                state.waiting.insert(id, QueuedBatch { header, columns, channel, bytes });
                state.arrivals.push_back(id);
                self.arrived.notify_one();
                return Ok(());
            }
            // It came before, and is under way or waits: the reader hears of it when it is done.
            None
        };
        if let Some(answer) = answer {
            let _ = from.replies.send(answer);
        }
        state.grant(channel, &header, bytes, self.credits);
        Ok(())
    }

    /// The next batch that can be taken now, if there is one; its credit goes back.
    pub(crate) fn take(&self) -> Option<QueuedBatch> {
        let mut state = self.state();
        let queued = match state.order {
            Order::Any => loop {
                let id = state.arrivals.pop_front()?;
                if let Some(queued) = state.waiting.remove(&id) {
                    break queued;
                }
            },
            Order::Data { rank, of } => state.take_in_order(rank, of)?,
        };
        state.grant(queued.channel, &queued.header, queued.bytes, self.credits);
        Some(queued)
    }

    /// Waits until something came, or [`learn`](Self::update_status was told something new. Cancel safe. May return for nothing.
    pub(crate) async fn wait_for_arrival(&self) {
        self.arrived.notified().await;
    }

    /// The gradients of a batch are applied (or it had none): whoever sent it is told.
    pub(crate) fn batch_done(&self, id: BatchId) {
        let mut state = self.state();
        state.window_states.entry((id.epoch, id.window)).or_default().set_done(id.index);
        for channel in state.under_way.remove(&id).unwrap_or_default() {
            // Where the channel is gone, or breaks before it has carried the word, its reader sends the batch again and hears
            // of it then. (Another channel may be another process of the same rank, or dead and not known to be.)
            if let Some(channel) = state.channels.get(&channel) {
                let _ = channel.replies.send(Reply::Done(id));
            }
        }
    }

    /// What the coordinator says: windows of an epoch, and that everything before `first_open` is done.
    pub(crate) fn update_status(&self, windows: Option<u64>, first_open: (u32, u64)) {
        let mut state = self.state();
        state.windows = windows.or(state.windows);
        if let Order::Data { rank, .. } = state.order {
            state.wrap_epoch(rank);
            if first_open > (state.next.epoch, state.next.window) {
                state.next = BatchId { epoch: first_open.0, window: first_open.1, index: rank };
                state.drop_passed(self.credits);
                self.arrived.notify_one();
            }
        }
    }
}

impl BatchRecord for ReceiveQueue {
    fn batch_started(&self, _: &TrainBatch) {}

    fn batch_done(&self, id: BatchId) {
        self.batch_done(id);
    }
}

impl State {
    fn wrap_epoch(&mut self, rank: u32) {
        if self.windows.is_some_and(|windows| windows > 0 && self.next.window >= windows) {
            self.next = BatchId { epoch: self.next.epoch + 1, window: 0, index: rank };
        }
    }

    fn take_in_order(&mut self, rank: u32, of: u32) -> Option<QueuedBatch> {
        self.arrivals.clear();
        loop {
            self.wrap_epoch(rank);
            if let Some(queued) = self.waiting.remove(&self.next) {
                self.next = if queued.header.closes.is_some() {
                    BatchId { epoch: self.next.epoch, window: self.next.window + 1, index: rank }
                } else {
                    BatchId { index: self.next.index + of, ..self.next }
                };
                return Some(queued);
            }
            // Batches that another trainer saw to before it died do not come again.
            let window_end = BatchId { index: u32::MAX, ..self.next };
            let (_, later) = self.waiting.range(self.next..=window_end).next()?;
            let done = later.header.done_before;
            if done <= self.next.index {
                return None;
            }
            let steps = (done - self.next.index).div_ceil(of);
            self.next.index += steps * of;
        }
    }

    /// What waits and lies before the next in order was seen to by another trainer: its readers may forget it.
    fn drop_passed(&mut self, most: Credits) {
        let rest = self.waiting.split_off(&self.next);
        for (id, queued) in std::mem::replace(&mut self.waiting, rest) {
            self.under_way.remove(&id);
            if let Some(channel) = self.channels.get(&queued.channel) {
                let _ = channel.replies.send(Reply::Done(id));
            }
            self.grant(queued.channel, &queued.header, queued.bytes, most);
        }
    }

    /// Gives the credit of one batch back to its channel, if it lives and it took one.
    fn grant(&mut self, channel: u64, header: &Header, bytes: u64, most: Credits) {
        if header.urgent {
            return;
        }
        let Some(channel) = self.channels.get_mut(&channel) else { return };
        channel.held = channel.held.saturating_sub(1);
        channel.batches += 1;
        let bytes = bytes.min(most.bytes - channel.bytes);
        channel.bytes += bytes;
        let _ = channel.replies.send(Reply::Grant { batches: 1, bytes });
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::RecordBatch;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::flow::WindowEnd;

    const CREDITS: Credits = Credits { batches: 4, bytes: 100 };

    fn id(window: u64, index: u32) -> BatchId {
        BatchId { epoch: 0, window, index }
    }

    fn header(id: BatchId) -> Header {
        Header { id, term: 0, split: 0, row: 0, closes: None, done_before: 0, urgent: false }
    }

    fn last(id: BatchId) -> Header {
        Header { closes: Some(WindowEnd { batches: id.index + 1, rows: 0, rejected: 0 }), ..header(id) }
    }

    fn columns() -> RecordBatch {
        RecordBatch::new_empty(super::super::columns::schema())
    }

    struct Reader {
        channel: u64,
        replies: UnboundedReceiver<Reply>,
    }

    impl Reader {
        fn new(receive_queue: &ReceiveQueue, name: &str) -> Self {
            let (sender, replies) = unbounded_channel();
            Self { channel: receive_queue.open(name, sender), replies }
        }

        fn put(&self, receive_queue: &ReceiveQueue, header: Header) -> Result<(), Fault> {
            receive_queue.put(self.channel, header, columns(), 10)
        }

        fn heard(&mut self) -> Vec<Reply> {
            std::iter::from_fn(|| self.replies.try_recv().ok()).collect()
        }
    }

    fn taken(receive_queue: &ReceiveQueue) -> Vec<BatchId> {
        std::iter::from_fn(|| receive_queue.take()).map(|queued| queued.header.id).collect()
    }

    const ONE_CREDIT: Reply = Reply::Grant { batches: 1, bytes: 10 };

    #[test]
    fn in_order_of_the_data_whoever_sends_first() {
        let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
        let (a, b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
        b.put(&receive_queue, header(id(1, 0))).unwrap();
        a.put(&receive_queue, header(id(0, 1))).unwrap();
        assert_eq!(taken(&receive_queue), []);
        a.put(&receive_queue, header(id(0, 0))).unwrap();
        assert_eq!(taken(&receive_queue), [id(0, 0), id(0, 1)]);
        a.put(&receive_queue, last(id(0, 2))).unwrap();
        assert_eq!(taken(&receive_queue), [id(0, 2), id(1, 0)]);
        b.put(&receive_queue, last(id(1, 1))).unwrap();
        b.put(&receive_queue, header(BatchId { epoch: 1, ..id(0, 0) })).unwrap();
        assert_eq!(taken(&receive_queue), [id(1, 1)]);
        receive_queue.update_status(Some(2), (0, 0));
        assert_eq!(taken(&receive_queue), [BatchId { epoch: 1, ..id(0, 0) }]);
    }

    #[test]
    fn each_of_several_trainers_takes_its_share_of_a_window() {
        let receive_queue = ReceiveQueue::new(Order::Data { rank: 1, of: 3 }, CREDITS);
        let a = Reader::new(&receive_queue, "reader 0");
        for header in [header(id(0, 4)), last(id(0, 7)), header(id(0, 1)), header(id(1, 1))] {
            a.put(&receive_queue, header).unwrap();
        }
        assert_eq!(taken(&receive_queue), [id(0, 1), id(0, 4), id(0, 7), id(1, 1)]);
    }

    #[test]
    fn a_batch_that_comes_twice_is_taken_once_and_everyone_hears_that_it_is_done() {
        let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
        let (mut a, mut b) = (Reader::new(&receive_queue, "reader 0"), Reader::new(&receive_queue, "reader 1"));
        a.put(&receive_queue, header(id(3, 0))).unwrap();
        b.put(&receive_queue, Header { term: 1, ..header(id(3, 0)) }).unwrap();
        assert_eq!(taken(&receive_queue), [id(3, 0)]);
        receive_queue.batch_done(id(3, 0));
        let first = Reply::Grant { batches: 4, bytes: 100 };
        assert_eq!(a.heard(), [first, ONE_CREDIT, Reply::Done(id(3, 0))]);
        assert_eq!(b.heard(), [first, ONE_CREDIT, Reply::Done(id(3, 0))]);
        a.put(&receive_queue, header(id(3, 0))).unwrap();
        assert_eq!(a.heard(), [Reply::Done(id(3, 0)), ONE_CREDIT]);
        assert_eq!(taken(&receive_queue), []);
        // The window is with the other reader now.
        a.put(&receive_queue, header(id(3, 1))).unwrap();
        assert_eq!(a.heard(), [Reply::Stale(id(3, 1)), ONE_CREDIT]);
        assert_eq!(taken(&receive_queue), []);
    }

    #[test]
    fn word_of_a_done_batch_goes_to_the_streams_it_came_on() {
        let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
        let a = Reader::new(&receive_queue, "reader 0");
        a.put(&receive_queue, header(id(0, 0))).unwrap();
        assert_eq!(taken(&receive_queue).len(), 1);
        receive_queue.close(a.channel);
        // One that sends it again before it is done, one that does so after, and one that is of the same rank only.
        let open = || Reader::new(&receive_queue, "reader 0");
        let (mut before, mut after, mut other) = (open(), open(), open());
        before.put(&receive_queue, header(id(0, 0))).unwrap();
        receive_queue.batch_done(id(0, 0));
        assert_eq!(before.heard()[1..], [ONE_CREDIT, Reply::Done(id(0, 0))]);
        assert_eq!(after.heard().len() + other.heard().len(), 2, "their first credits");
        after.put(&receive_queue, header(id(0, 0))).unwrap();
        assert_eq!(after.heard(), [Reply::Done(id(0, 0)), ONE_CREDIT]);
        assert_eq!(taken(&receive_queue), []);
    }

    #[test]
    fn more_than_was_granted_ends_the_stream() {
        let receive_queue = ReceiveQueue::new(Order::Any, CREDITS);
        let a = Reader::new(&receive_queue, "reader 0");
        for index in 0..4 {
            a.put(&receive_queue, header(id(0, index))).unwrap();
        }
        assert!(a.put(&receive_queue, header(id(0, 4))).unwrap_err().to_string().contains("beyond its credits"));
        // One that is larger than all bytes may go alone, and its credit comes back as it was.
        let mut b = Reader::new(&receive_queue, "reader 1");
        receive_queue.put(b.channel, header(id(1, 0)), columns(), 1000).unwrap();
        assert!(receive_queue.put(b.channel, header(id(1, 1)), columns(), 1).is_err());
        assert_eq!(taken(&receive_queue).len(), 5);
        assert_eq!(b.heard().last(), Some(&Reply::Grant { batches: 1, bytes: 100 }));
        let cannot_be = Header { done_before: 3, ..header(id(1, 2)) };
        assert!(b.put(&receive_queue, cannot_be).unwrap_err().to_string().contains("cannot be"));
        assert!(b.put(&receive_queue, header(id(1, u32::MAX))).unwrap_err().to_string().contains("cannot be"));
    }

    #[test]
    fn what_comes_before_all_that_waits_needs_no_credit() {
        let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
        let mut a = Reader::new(&receive_queue, "reader 0");
        for index in 0..4 {
            a.put(&receive_queue, header(id(1, index))).unwrap();
        }
        assert_eq!(taken(&receive_queue), [], "window 0 was another reader's");
        a.heard();
        let urgent = |header| Header { urgent: true, ..header };
        a.put(&receive_queue, urgent(header(id(0, 0)))).unwrap();
        assert_eq!((taken(&receive_queue), a.heard()), (vec![id(0, 0)], vec![]), "no credit comes back for it");
        a.put(&receive_queue, urgent(last(id(0, 1)))).unwrap();
        assert_eq!(taken(&receive_queue).len(), 5);
        assert_eq!(a.heard(), [ONE_CREDIT; 4]);
        a.put(&receive_queue, header(id(1, 5))).unwrap();
        let said = a.put(&receive_queue, urgent(header(id(1, 6)))).unwrap_err().to_string();
        assert!(said.contains("as urgent, though an earlier one waits"), "{said}");
    }

    #[test]
    fn a_new_trainer_begins_where_the_old_one_died() {
        let receive_queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, CREDITS);
        let mut a = Reader::new(&receive_queue, "reader 0");
        a.put(&receive_queue, Header { done_before: 5, ..header(id(2, 6)) }).unwrap();
        a.put(&receive_queue, header(id(1, 9))).unwrap();
        assert_eq!(taken(&receive_queue), []);
        receive_queue.update_status(Some(10), (0, 2));
        assert_eq!(a.heard()[1..], [Reply::Done(id(1, 9)), ONE_CREDIT], "it was in a window that is done");
        assert_eq!(taken(&receive_queue), [], "batch 5 is not done yet");
        a.put(&receive_queue, Header { done_before: 5, ..header(id(2, 5)) }).unwrap();
        assert_eq!(taken(&receive_queue), [id(2, 5), id(2, 6)]);
        a.put(&receive_queue, header(id(2, 3))).unwrap();
        assert!(a.heard().contains(&Reply::Done(id(2, 3))));
    }
}
