//! The receive queue of a trainer: batches of all readers, each taken once, in the order of the data or as they arrive. A state
//! machine over received batches, done batches and the run status, without a clock and without IO.
//!
//! It holds no more than the credits that it granted, and as many urgent batches as it granted credits for. Only
//! [`ReceiveQueue::wait_for_arrival`] waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use forebay_actors::Fault;
use forebay_batches::wire::metadata::{Header, Reply};
use forebay_batches::{BatchId, TrainBatch};
use forebay_job::Job;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::order::batch_record::BatchRecord;

/// Batches per window: push ids have 20 bits for the index in a window.
const MAX_BATCHES_PER_WINDOW: u32 = 1 << 20;

/// Credit goes back to a reader once it is one in this many of all credit of the channel. A message for each batch would cost both
/// processes more time, and a reader that gets credit for several batches sends them one after the other.
const CREDIT_PARTS: u32 = 4;

/// How many batches and bytes one channel may have in this process, over all its streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credits {
    pub(crate) batches: u32,
    pub(crate) bytes: u64,
}

impl Credits {
    /// The credits that `job` sets.
    pub(crate) fn of(job: &Job) -> Self {
        let placement = &job.placement;
        Self { batches: placement.in_flight.min(u32::MAX as usize) as u32, bytes: placement.in_flight_bytes.0 as u64 }
    }
}

/// The order in which batches are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they arrive.
    Any,
    /// In the order of the data: the batches `rank`, `rank + of`, `rank + 2 x of`, ... of each window.
    Data { rank: u32, of: u32 },
}

/// A batch that was received.
#[derive(Debug)]
pub(crate) struct ReceivedBatch {
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
    /// With [`Order::Data`]: the next batch.
    next: BatchId,
    /// Windows per epoch, once known.
    windows: Option<u64>,
    waiting: BTreeMap<BatchId, ReceivedBatch>,
    /// With [`Order::Any`]: the waiting batches as they arrived.
    arrivals: VecDeque<BatchId>,
    /// By batch that is not done: the channels that received it.
    received: HashMap<BatchId, Vec<u64>>,
    /// The states of windows from `first_open` on.
    window_states: HashMap<(u32, u64), WindowState>,
    /// (epoch, window): all windows before it are done.
    first_open: (u32, u64),
    channels: HashMap<u64, ReaderChannel>,
    opened: u64,
    /// The trainer takes no more batches.
    ended: bool,
    /// The trainer has left: there are no more channels.
    closed: bool,
}

/// What this trainer knows about a window.
#[derive(Default)]
struct WindowState {
    /// The highest term received.
    term: u32,
    /// One bit for each batch.
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

struct ReaderChannel {
    reader: String,
    replies: UnboundedSender<Reply>,
    /// Credit that is granted and not used.
    batches: u32,
    bytes: u64,
    /// Credit of batches that were taken, and that is not granted again yet.
    due: Credits,
    /// Batches received with credit and not taken.
    held: u32,
    /// Batches received without credit and not taken.
    urgent: u32,
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
            received: HashMap::new(),
            window_states: HashMap::new(),
            first_open: (0, 0),
            channels: HashMap::new(),
            opened: 0,
            ended: false,
            closed: false,
        };
        Self { state: Mutex::new(state), credits, arrived: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a channel and grants its credits. Returns the channel's number.
    ///
    /// # Errors
    /// A retryable fault: the trainer has left.
    pub(crate) fn open(&self, reader: &str, replies: UnboundedSender<Reply>) -> Result<u64, Fault> {
        let Credits { batches, bytes } = self.credits;
        let mut state = self.state();
        if state.closed {
            return Err(Fault::external("the trainer has left the run").retryable());
        }
        state.opened += 1;
        let number = state.opened;
        let _ = replies.send(Reply::Grant { batches, bytes });
        let (reader, due) = (reader.to_owned(), Credits::default());
        state.channels.insert(number, ReaderChannel { reader, replies, batches, bytes, due, held: 0, urgent: 0 });
        Ok(number)
    }

    /// The trainer takes no more batches. It still reports the batches that it has taken as done.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.arrived.notify_one();
    }

    /// Whether the trainer takes no more batches.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Ends all channels, and lets none be opened: readers send the batches that are not done to other trainers.
    pub(crate) fn close_all(&self) {
        let mut state = self.state();
        state.closed = true;
        state.channels.clear();
    }

    /// Whether `reader` has this channel open.
    pub(crate) fn has_channel(&self, channel: u64, reader: &str) -> bool {
        self.state().channels.get(&channel).is_some_and(|channel| channel.reader == reader)
    }

    /// The channel has ended. Batches received on it stay.
    pub(crate) fn close(&self, channel: u64) {
        self.state().channels.remove(&channel);
    }

    /// Adds a received batch, or answers at once that it is done or stale.
    ///
    /// # Errors
    /// A user fault, which ends the channel: the batch exceeds its credits, or its header contradicts itself. A retryable fault, after
    /// which the reader opens the channel again and sends all in order: too many urgent batches wait.
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
            // An earlier batch may wait here for another reason: its reader may have given it up after the loss of its lease.
            if from.urgent >= self.credits.batches.max(1) {
                let message =
                    format!("{} sent {id} without credit, and {} such batches wait", from.reader, from.urgent);
                return Err(Fault::external(message).retryable());
            }
            from.urgent += 1;
        } else {
            if from.batches == 0 || (bytes > from.bytes && from.held > 0) {
                let ReaderChannel { batches, bytes: left, .. } = from;
                return refused(&format!(" of {bytes} bytes beyond its credits ({batches} batches, {left} bytes)"));
            }
            from.batches -= 1;
            from.bytes = from.bytes.saturating_sub(bytes);
            from.held += 1;
        }
        // A batch before the next one in order that this trainer did not receive was trained on by its predecessor.
        let passed = matches!(state.order, Order::Data { .. }) && id < state.next && !state.received.contains_key(&id);
        let known = state.window_states.get(&(id.epoch, id.window));
        let is_done = (id.epoch, id.window) < state.first_open || known.is_some_and(|window| window.is_done(id.index));
        let reply = if passed || is_done {
            Some(Reply::Done(id))
        } else if known.is_some_and(|window| header.term < window.term) {
            Some(Reply::Stale(id, header.term))
        } else {
            state.window_states.entry((id.epoch, id.window)).or_default().term = header.term;
            let channels = state.received.entry(id).or_default();
            let again = !channels.is_empty();
            if !channels.contains(&channel) {
                channels.push(channel);
            }
            if !again {
                state.waiting.insert(id, ReceivedBatch { header, columns, channel, bytes });
                state.arrivals.push_back(id);
                self.arrived.notify_one();
                return Ok(());
            }
            // A duplicate: this channel receives a reply when the batch is done.
            None
        };
        if let Some(reply) = reply {
            let _ = from.replies.send(reply);
        }
        state.grant(channel, &header, bytes, self.credits);
        Ok(())
    }

    /// Takes the next batch, if it is here and the trainer takes more. The credit goes back to the channel of the batch.
    pub(crate) fn take(&self) -> Option<ReceivedBatch> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
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

    /// The reader that sent a batch, unless its channel has ended.
    pub(crate) fn reader_of(&self, batch: &ReceivedBatch) -> Option<String> {
        self.state().channels.get(&batch.channel).map(|channel| channel.reader.clone())
    }

    /// The reader whose batch the trainer needs next. Known only if the queue has batches of all readers but this one.
    pub(crate) fn awaited_reader(&self) -> Option<String> {
        let state = self.state();
        let mut without = state.channels.values().filter(|channel| channel.held + channel.urgent == 0);
        let only = without.next().filter(|_| state.channels.len() > 1)?;
        without.next().is_none().then(|| only.reader.clone())
    }

    /// Waits until a batch may have become available. May return without one. Cancel safe.
    pub(crate) async fn wait_for_arrival(&self) {
        self.arrived.notified().await;
    }

    /// The gradients of a batch are applied or, in an exact order, kept; or the batch had no rows. Tells every channel that received the
    /// batch.
    pub(crate) fn batch_done(&self, id: BatchId) {
        let mut state = self.state();
        if (id.epoch, id.window) >= state.first_open {
            state.window_states.entry((id.epoch, id.window)).or_default().set_done(id.index);
        }
        state.reply_done(id);
    }

    /// The coordinator's status: windows per epoch, and that all windows before `first_open` are done.
    pub(crate) fn update_status(&self, windows: Option<u64>, first_open: (u32, u64)) {
        let mut state = self.state();
        state.windows = windows.or(state.windows);
        if first_open > state.first_open {
            state.first_open = first_open;
            state.window_states.retain(|window, _| *window >= first_open);
            // Another trainer has finished these batches.
            state.drop_before(BatchId { epoch: first_open.0, window: first_open.1, index: 0 }, self.credits);
        }
        if let Order::Data { rank, .. } = state.order {
            state.wrap_epoch(rank);
            if first_open > (state.next.epoch, state.next.window) {
                state.next = BatchId { epoch: first_open.0, window: first_open.1, index: rank };
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
    /// Tells every channel that received this batch that it is done.
    fn reply_done(&mut self, id: BatchId) {
        for channel in self.received.remove(&id).unwrap_or_default() {
            // If the channel closes before the reply arrives, the reader sends the batch again and gets the reply then.
            if let Some(channel) = self.channels.get(&channel) {
                let _ = channel.replies.send(Reply::Done(id));
            }
        }
    }

    fn wrap_epoch(&mut self, rank: u32) {
        if self.windows.is_some_and(|windows| windows > 0 && self.next.window >= windows) {
            self.next = BatchId { epoch: self.next.epoch + 1, window: 0, index: rank };
        }
    }

    fn take_in_order(&mut self, rank: u32, of: u32) -> Option<ReceivedBatch> {
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
            // Batches that a lost trainer has finished do not come again.
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

    /// Drops waiting batches before `first`: another trainer has finished them. Tells their readers.
    fn drop_before(&mut self, first: BatchId, most: Credits) {
        let rest = self.waiting.split_off(&first);
        for (id, queued) in std::mem::replace(&mut self.waiting, rest) {
            self.reply_done(id);
            self.grant(queued.channel, &queued.header, queued.bytes, most);
        }
    }

    /// Gives the credit of one batch back to its channel, if the channel is open and the batch took credit. Less credit than one
    /// [`CREDIT_PARTS`]th of all waits for more, but only while the channel has batches here. So a reader whose batches were all taken has
    /// all its credit.
    fn grant(&mut self, channel: u64, header: &Header, bytes: u64, most: Credits) {
        let Some(channel) = self.channels.get_mut(&channel) else { return };
        if header.urgent {
            channel.urgent = channel.urgent.saturating_sub(1);
            return;
        }
        channel.held = channel.held.saturating_sub(1);
        channel.due.batches += 1;
        channel.due.bytes += bytes.min(most.bytes - channel.bytes - channel.due.bytes);
        let Credits { batches, bytes } = channel.due;
        if channel.held > 0 && batches < most.batches / CREDIT_PARTS && bytes < most.bytes / u64::from(CREDIT_PARTS) {
            return;
        }
        channel.due = Credits::default();
        channel.batches += batches;
        channel.bytes += bytes;
        let _ = channel.replies.send(Reply::Grant { batches, bytes });
    }
}

#[cfg(test)]
mod tests;
