//! One stage in several replicas: a front takes each batch from the link and hands it to a free replica.
//!
//! All replicas send into the same link; ordered replicas send in the order in which their inputs arrived (a
//! [`Turnstile`]). A replica reports that it is free when it has finished a batch, and the front takes a batch only
//! when a replica is free. So no batch queues behind a busy replica, and the front holds none.
//!
//! At a barrier, the front waits until all replicas are free, lets one after the other handle it, then passes it on. At
//! the end, all replicas finish in parallel, and then the front sends one end of the stream.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::batch::{BarrierNumber, Batch};
use crate::context::StageCx;
use crate::fault::{Fault, FaultKind, Phase};
use crate::link::Link;
use crate::outbox::{Item, Outbox};
use crate::shell::{ErrorContext, Inbox};
use crate::stage::Stage;
use crate::turn::{Turn, Turnstile};

/// How many replicas a stage starts with, and whether their output keeps the order of their input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    pub(crate) count: usize,
    pub(crate) ordered: bool,
}

impl Replicas {
    /// `count` replicas (at least one) whose outputs come in the order of their inputs.
    pub fn ordered(count: usize) -> Self {
        Self { count: count.max(1), ordered: true }
    }

    /// `count` replicas (at least one) whose outputs come as they are ready.
    pub fn unordered(count: usize) -> Self {
        Self { count: count.max(1), ordered: false }
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, if self.ordered { "ordered" } else { "unordered" })
    }
}

/// What a replica receives. The first number is its place in the order of arrival. The second number of a batch is its
/// place among the batches.
pub(crate) enum ReplicaInput<T> {
    Batch(u64, u64, T),
    Barrier(u64, BarrierNumber),
    Finish(u64),
}

/// A replica sends this when it is free, and when it has ended (`gone`).
pub(crate) struct ReplicaEvent {
    replica: usize,
    gone: bool,
}

/// Starts replica number `.0`, which reports to `.1`; `.2` is the turn of an ordered replica.
pub(crate) type SpawnReplica<T> = Box<
    dyn Fn(usize, mpsc::UnboundedSender<ReplicaEvent>, Option<Turn>) -> Result<Link<ReplicaInput<T>>, Fault> + Send,
>;

struct Replica<T: Send + 'static> {
    number: usize,
    link: Link<ReplicaInput<T>>,
    free: bool,
    leaving: bool,
}

/// The front's state.
pub(crate) struct Front<T: Send + 'static> {
    spawn: SpawnReplica<T>,
    replicas: Vec<Replica<T>>,
    events: mpsc::UnboundedReceiver<ReplicaEvent>,
    event_sender: mpsc::UnboundedSender<ReplicaEvent>,
    stile: Option<Arc<Turnstile>>,
    next: u64,
    batches: u64,
    target: watch::Receiver<usize>,
    count: Arc<AtomicUsize>,
}

impl<T: Batch> Front<T> {
    /// `target` is the wanted number of replicas and may change; the front keeps the actual number in `count`.
    pub(crate) fn new(
        spawn: SpawnReplica<T>,
        ordered: bool,
        target: watch::Receiver<usize>,
        count: Arc<AtomicUsize>,
    ) -> Self {
        let (event_sender, events) = mpsc::unbounded_channel();
        let stile = ordered.then(Arc::<Turnstile>::default);
        Self { spawn, replicas: Vec::new(), events, event_sender, stile, next: 0, batches: 0, target, count }
    }

    /// Runs the front until the end of its input.
    pub(crate) async fn live<O: Batch>(
        mut self,
        mut inbox: Inbox<Item<T>>,
        mut out: Outbox<O>,
        error_context: Rc<ErrorContext>,
    ) -> Result<(), Fault> {
        self.fit()?;
        error_context.set(Phase::Batch, None);
        loop {
            self.wait_for_free().await?;
            match inbox.next().await {
                Item::Batch(batch) => {
                    if self.target.has_changed().unwrap_or(false) {
                        self.fit()?;
                        self.wait_for_free().await?;
                    }
                    let seq = self.number();
                    let replica = self.replicas.iter_mut().find(|r| r.free).expect("someone is free");
                    replica.free = false;
                    send_to(&replica.link, ReplicaInput::Batch(seq, self.batches, batch))?;
                    self.batches += 1;
                }
                Item::Barrier(barrier) => {
                    error_context.set(Phase::Barrier, None);
                    self.all_free().await;
                    for i in 0..self.replicas.len() {
                        let seq = self.number();
                        self.replicas[i].free = false;
                        send_to(&self.replicas[i].link, ReplicaInput::Barrier(seq, barrier))?;
                        self.all_free().await;
                    }
                    out.mark(Item::Barrier(barrier)).await?;
                    error_context.set(Phase::Batch, None);
                }
                Item::Eof => break,
            }
        }
        error_context.set(Phase::Finish, None);
        self.all_free().await;
        while let Some(i) = self.replicas.iter().position(|r| !r.leaving) {
            self.retire(i)?;
        }
        // A leaving replica counts as busy until it has ended, so this waits until none is left.
        self.all_free().await;
        out.mark(Item::Eof).await
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Spawns or retires replicas until there are `target`. A busy replica completes its batch first.
    fn fit(&mut self) -> Result<(), Fault> {
        let target = (*self.target.borrow_and_update()).max(1);
        while self.active() < target {
            let number = (0..).find(|n| self.replicas.iter().all(|r| r.number != *n)).expect("numbers do not run out");
            let link = (self.spawn)(number, self.event_sender.clone(), self.stile.as_ref().map(Turn::new))?;
            self.replicas.push(Replica { number, link, free: false, leaving: false });
        }
        while self.active() > target {
            // Free replicas first: they can end at once.
            let last = |free: bool| self.replicas.iter().rposition(|r| !r.leaving && r.free == free);
            let i = last(true).or_else(|| last(false)).expect("more stay than are asked for");
            self.retire(i)?;
        }
        self.count.store(self.active(), Relaxed);
        Ok(())
    }

    fn active(&self) -> usize {
        self.replicas.iter().filter(|r| !r.leaving).count()
    }

    /// Tells a replica to finish. Its place in the order is behind all that was handed out before.
    fn retire(&mut self, i: usize) -> Result<(), Fault> {
        let seq = self.number();
        let replica = &mut self.replicas[i];
        replica.leaving = true;
        replica.free = false;
        send_to(&replica.link, ReplicaInput::Finish(seq))
    }

    /// Waits for a free replica; their number may change meanwhile.
    async fn wait_for_free(&mut self) -> Result<(), Fault> {
        while !self.replicas.iter().any(|r| r.free) {
            tokio::select! {
                word = self.events.recv() => self.on_event(word),
                Ok(()) = self.target.changed() => self.fit()?,
            }
        }
        Ok(())
    }

    /// Waits until no replica is at work and every leaving replica has ended.
    async fn all_free(&mut self) {
        while !self.replicas.iter().all(|r| r.free) {
            let word = self.events.recv().await;
            self.on_event(word);
        }
    }

    fn on_event(&mut self, word: Option<ReplicaEvent>) {
        let word = word.expect("the front holds a sender of its own");
        if word.gone {
            self.replicas.retain(|r| r.number != word.replica);
        } else if let Some(replica) = self.replicas.iter_mut().find(|r| r.number == word.replica && !r.leaving) {
            replica.free = true;
        }
    }
}

fn send_to<T: Send + 'static>(link: &Link<ReplicaInput<T>>, input: ReplicaInput<T>) -> Result<(), Fault> {
    link.send_now(input).map_err(|_| Fault::internal("a replica has gone").kind(FaultKind::Stopped))
}

/// Runs one replica until its `ReplicaInput::Finish`.
pub(crate) async fn replica<S: Stage>(
    make: impl FnOnce() -> S,
    cx: StageCx,
    mut inbox: Inbox<ReplicaInput<S::In>>,
    mut out: Outbox<S::Out>,
    error_context: Rc<ErrorContext>,
    turn: Option<Turn>,
    front: mpsc::UnboundedSender<ReplicaEvent>,
) -> Result<(), Fault> {
    let replica = cx.replica();
    let mut stage = make();
    stage.open(&cx).await?;
    cx.meter().describe(stage.describe());
    loop {
        // If the front has gone, the run was killed, and this replica will be dropped too.
        let _ = front.send(ReplicaEvent { replica, gone: false });
        let input = inbox.next().await;
        let (ReplicaInput::Batch(seq, ..) | ReplicaInput::Barrier(seq, _) | ReplicaInput::Finish(seq)) = &input;
        if let Some(turn) = &turn {
            turn.take(*seq);
        }
        let last = matches!(input, ReplicaInput::Finish(_));
        match input {
            ReplicaInput::Batch(_, number, batch) => {
                cx.arrives(number);
                error_context.set(Phase::Batch, Some(batch.lineage()));
                let work = cx.meter().takes(&batch);
                stage.on_batch(batch, &cx, &mut out).await?;
                work.done();
            }
            ReplicaInput::Barrier(_, barrier) => {
                error_context.set(Phase::Barrier, None);
                stage.on_barrier(barrier, &cx, &mut out).await?;
            }
            ReplicaInput::Finish(_) => {
                error_context.set(Phase::Finish, None);
                stage.finish(&cx, &mut out).await?;
                cx.meter().describe(stage.describe());
            }
        }
        if let Some(turn) = &turn {
            turn.pass();
        }
        if last {
            let _ = front.send(ReplicaEvent { replica, gone: true });
            return Ok(());
        }
    }
}
