//! Which windows of a reader's leases are begun, sent and done: a state machine over leases, terms, sent batches and done
//! batches, without a clock and without IO. It collects the windows that are done for the reports to the coordinator.
//!
//! The first window of a held lease is the first one that is not done. Only batches of the lease's own term count: a reader may
//! get a lease back that it had lost, while batches of the earlier term are still on their way through its stages.

use std::collections::BTreeMap;

use forebay_batches::{BatchId, RowCounts, WindowEnd};
use forebay_connectors::Lease;

use super::super::leases::DoneWindows;
use crate::shared_state::SharedState;

/// The leases of a reader that are not done.
#[derive(Debug, Default)]
pub(crate) struct LeaseProgress {
    state: SharedState<State>,
}

#[derive(Debug, Default)]
struct State {
    leases: Vec<HeldLease>,
    /// Windows that are done and in no report yet.
    done: Vec<DoneWindows>,
    /// A lease has ended since the last report.
    lease_ended: bool,
    /// A report is on its way.
    reporting: bool,
    /// The reader begins no more windows.
    closed: bool,
    /// The reader also gives back the windows that it has begun.
    gives_all_back: bool,
    /// Trainers take the batches of all readers in the order of the data.
    in_order: bool,
}

#[derive(Debug)]
struct HeldLease {
    lease: Lease,
    windows: BTreeMap<u64, Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// The first rows of the window have reached the stage that makes batches.
    begun: bool,
    /// By index.
    batches: Vec<BatchState>,
    sent: usize,
    unacknowledged: usize,
    end: Option<WindowEnd>,
    rows: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum BatchState {
    #[default]
    NotSent,
    /// Sent, with this many rows.
    Sent(u64),
    Done,
}

/// What a reader reports to the coordinator.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Windows that are done.
    pub(crate) done: Vec<DoneWindows>,
    /// The reader gives all other windows of its leases back, because it begins no more.
    pub(crate) gives_back: bool,
}

impl HeldLease {
    fn is_sent(&self) -> bool {
        self.windows.values().all(Window::is_sent)
    }

    fn contains(&self, epoch: u32, window: u64) -> bool {
        self.lease.epoch == epoch && self.lease.windows.contains(&window)
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

impl State {
    fn window(&mut self, epoch: u32, window: u64) -> Option<(u32, &mut Window)> {
        let held = self.leases.iter_mut().find(|held| held.contains(epoch, window))?;
        Some((held.lease.term, held.windows.get_mut(&window)?))
    }

    fn gives_back(&self) -> bool {
        let windows = || self.leases.iter().flat_map(|held| held.windows.iter().map(|at| (held.lease.epoch, at)));
        if !self.closed || self.leases.is_empty() {
            return false;
        }
        if self.gives_all_back {
            return true;
        }
        match self.in_order {
            // Trainers wait for the first window. They take no later one, begun or not, before another reader has read the first.
            true => windows().min_by_key(|(epoch, (number, _))| (*epoch, **number)).is_some_and(|(_, (_, w))| !w.begun),
            false => !windows().any(|(_, (_, window))| window.begun),
        }
    }

    /// Moves the windows at the front of the lease of `id` that are done to the next report.
    fn collect_done(&mut self, id: BatchId) {
        let Some(at) = self.leases.iter().position(|held| held.contains(id.epoch, id.window)) else { return };
        let HeldLease { lease, windows } = &mut self.leases[at];
        while let Some(first) = windows.first_entry()
            && first.get().is_done()
        {
            let (number, window) = first.remove_entry();
            lease.windows.start = number + 1;
            let rejected = window.end.map_or(0, |end| end.rejected);
            let counts = RowCounts { trained: window.rows, rejected, batches: window.batches.len() as u64 };
            match self.done.last_mut() {
                Some(last) if last.epoch == lease.epoch && last.next_window() == number => last.counts.push(counts),
                _ => self.done.push(DoneWindows { epoch: lease.epoch, first: number, counts: vec![counts] }),
            }
        }
        if windows.is_empty() {
            self.leases.remove(at);
            self.lease_ended = true;
        }
    }
}

impl LeaseProgress {
    /// `in_order`: trainers take the batches of all readers in the order of the data.
    pub(crate) fn new(in_order: bool) -> Self {
        Self { state: SharedState::new(State { in_order, ..State::default() }) }
    }

    /// Adds a lease that was given to this reader.
    pub(crate) fn add(&self, lease: &Lease) {
        let windows = lease.windows.clone().map(|window| (window, Window::default())).collect();
        let mut state = self.state.lock();
        // A lease that this reader lost may come back. Then the reader reads it again from the start.
        state.leases.retain(|h| {
            h.lease.epoch != lease.epoch
                || h.lease.windows.end <= lease.windows.start
                || lease.windows.end <= h.lease.windows.start
        });
        state.leases.push(HeldLease { lease: lease.clone(), windows });
        drop(state);
        self.state.notify();
    }

    /// Waits until fewer than `most` leases have unsent batches. Cancel safe.
    pub(crate) async fn wait_for_room(&self, most: usize) {
        self.state.until(|state| state.leases.iter().filter(|held| !held.is_sent()).count() < most).await;
    }

    /// The reader takes no more leases and begins no more windows. It gives its other windows back when the begun ones are done, or when
    /// trainers need the others first.
    pub(crate) fn close(&self) {
        let closed = std::mem::replace(&mut self.state.lock().closed, true);
        if !closed {
            self.state.notify();
        }
    }

    /// After [`close`](Self::close): the reader also gives back the windows that it has begun, if trainers cannot take them. There are two
    /// cases. A trainer may be `unreached`. Or trainers that take batches in the order of the data wait for windows that another reader
    /// gave back and no reader takes, perhaps because all readers were asked to shut down. Returns whether the reader gives all back: then
    /// it need not send the batches that wait.
    pub(crate) fn give_all_back(&self, unreached: bool) -> bool {
        let mut state = self.state.lock();
        if !state.closed || !(state.in_order || unreached) {
            return false;
        }
        state.gives_all_back = true;
        drop(state);
        self.state.notify();
        true
    }

    /// Whether the reader begins no more windows.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits for [`close`](Self::close). Cancel safe.
    pub(crate) async fn wait_until_closed(&self) {
        self.state.until(|state| state.closed).await;
    }

    /// Waits until there is a lease before `id` with unsent batches: one that another reader has lost. Cancel safe.
    pub(crate) async fn wait_for_earlier_lease(&self, id: BatchId) {
        let lies_before = |lease: &Lease| (lease.epoch, lease.windows.end) <= (id.epoch, id.window);
        self.state.until(|state| state.leases.iter().any(|held| lies_before(&held.lease) && !held.is_sent())).await;
    }

    /// Whether a source should go on with rows of this window.
    pub(crate) fn wants(&self, epoch: u32, window: u64) -> bool {
        let mut state = self.state.lock();
        !state.closed || state.window(epoch, window).is_some_and(|(_, window)| window.begun)
    }

    /// The first rows of a window are about to become batches. Returns false if the rows must not become batches: the lease is lost or came
    /// back with another term, or the reader begins no more windows.
    pub(crate) fn begin(&self, epoch: u32, window: u64, term: u32) -> bool {
        let mut state = self.state.lock();
        let closed = state.closed;
        match state.window(epoch, window) {
            Some((held, window)) if held == term => {
                window.begun |= !closed;
                window.begun
            }
            _ => false,
        }
    }

    /// A batch of `rows` rows is about to be sent. Called once for each batch; `end` comes with the last of its window. Returns false if
    /// the batch must not be sent, as [`begin`](Self::begin).
    pub(crate) fn batch_sent(&self, id: BatchId, term: u32, rows: u64, end: Option<WindowEnd>) -> bool {
        if !self.begin(id.epoch, id.window, term) {
            return false;
        }
        let mut state = self.state.lock();
        // The lease may be lost in between: then the trainer refuses the batch.
        let Some((_, window)) = state.window(id.epoch, id.window) else { return false };
        let at = id.index as usize;
        if window.batches.len() <= at {
            window.batches.resize(at + 1, BatchState::NotSent);
        }
        window.batches[at] = BatchState::Sent(rows);
        window.sent += 1;
        window.unacknowledged += 1;
        window.end = end.or(window.end);
        // Several look-ups may be in flight, so the last batch sent need not be the last of its window.
        let sent = window.is_sent();
        drop(state);
        if sent {
            self.state.notify();
        }
        true
    }

    /// A batch is done. Its term does not matter, because its content is the same in every term. A second call changes nothing.
    pub(crate) fn batch_done(&self, id: BatchId) {
        let mut state = self.state.lock();
        let Some((_, window)) = state.window(id.epoch, id.window) else { return };
        let Some(batch) = window.batches.get_mut(id.index as usize) else { return };
        let BatchState::Sent(rows) = *batch else { return };
        *batch = BatchState::Done;
        window.rows += rows;
        window.unacknowledged -= 1;
        state.collect_done(id);
        drop(state);
        self.state.notify();
    }

    /// The number of batches at the start of the window of `id` that are done, without `id` and later ones. If a lease came back, a trainer
    /// may have trained on the batch of its earlier term before this reader sends it again.
    pub(crate) fn done_before(&self, id: BatchId) -> u32 {
        let done = |window: &Window| {
            window.batches.iter().take(id.index as usize).take_while(|batch| **batch == BatchState::Done).count()
        };
        self.state.lock().window(id.epoch, id.window).map_or(0, |(_, window)| done(window) as u32)
    }

    /// Another reader has the window of `id`, with a term above `term`: removes this reader's lease of the window, unless this lease is
    /// newer.
    pub(crate) fn remove_lease_of(&self, id: BatchId, term: u32) {
        let stays = |held: &HeldLease| !held.contains(id.epoch, id.window) || held.lease.term > term;
        self.state.change(|state| state.leases.retain(stays));
    }

    /// Waits until there is something to report. Cancel safe.
    pub(crate) async fn wait_for_report(&self) {
        self.state.until(|state| !state.done.is_empty() || state.gives_back()).await;
    }

    /// Waits until there is something to report at once: a lease has ended, or the reader gives windows back. Cancel safe.
    pub(crate) async fn wait_for_urgent_report(&self) {
        self.state
            .until(|state| state.lease_ended || (state.closed && !state.done.is_empty()) || state.gives_back())
            .await;
    }

    /// Takes the next report. The caller must call [`reported`](Self::reported) when the coordinator has the report.
    pub(crate) fn take_report(&self) -> Report {
        let mut state = self.state.lock();
        let gives_back = state.gives_back();
        if gives_back {
            state.leases.clear();
        }
        (state.lease_ended, state.reporting) = (false, true);
        Report { done: std::mem::take(&mut state.done), gives_back }
    }

    /// The last report has arrived, or never will.
    pub(crate) fn reported(&self) {
        self.state.change(|state| state.reporting = false);
    }

    /// Waits until every window that is done is reported. Cancel safe.
    pub(crate) async fn wait_until_reported(&self) {
        self.state.until(|state| state.done.is_empty() && !state.reporting).await;
    }

    /// Waits until every window that is done is reported, and no lease is held. Cancel safe.
    pub(crate) async fn wait_until_given_back(&self) {
        self.state.until(|state| state.leases.is_empty() && state.done.is_empty() && !state.reporting).await;
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().leases.is_empty()
    }
}

#[cfg(test)]
mod tests;
