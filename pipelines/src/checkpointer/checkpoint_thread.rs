//! The thread of a trainer that makes checkpoints: when one is due it asks for a barrier, then writes the cut.
//!
//! A checkpoint that fails is logged, and the run goes on: the last one stays. The next try comes at the time of the next checkpoint, with
//! all changes since the last one that succeeded. `drain.rs` has the rules for the last checkpoint of a run that is drained.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_actors::{Control, Domain, Fault, FaultKind, counted, size};
use forebay_job::{DenseAt, LookupAt, Transfers};
use forebay_ps::SnapshotKind;
use futures::executor::block_on;
use serde::Serialize;

use super::cut::{Cut, Kept, Shards};
use super::cut_client::Stopped;
use super::drain::{Drain, DrainWithout};
use super::drained_to::LastOfDrained;
use super::last::LastCheckpoint;
use super::writer::{CheckpointWriter, Checkpoints};
use crate::checkpoint::{CheckpointManifest, CutPlan};
use crate::retries;

/// How often the thread looks whether a checkpoint is due. With one trainer `checkpoint.rows` wakes it, too.
const TICK: Duration = Duration::from_millis(50);

/// How long the end of a run waits for the checkpoint that is being written.
const LAST_WRITE: Duration = Duration::from_secs(30);

/// How often the last checkpoint of a run is tried if a disk or a store fails, or the trainers do not stop in time.
const LAST_TRIES: usize = 3;

/// Makes checkpoints of a run until it ends.
pub(crate) struct Checkpointer {
    newest: Arc<Newest>,
    drain: Arc<Drain>,
    /// Dropped to end the thread.
    alive: Sender<()>,
    thread: Option<JoinHandle<Worker>>,
}

/// The newest checkpoint of this process, and when it was written.
type Newest = Mutex<Option<(NewestCheckpoint, Instant)>>;

/// A checkpoint that a run has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NewestCheckpoint {
    /// Its number.
    pub number: u64,
    /// Seconds that it took, from the start of the cut to the last file.
    pub seconds: f64,
    /// Bytes of the rows that were written.
    pub bytes: u64,
    /// Seconds since it was written.
    pub age: f64,
}

impl Checkpoints {
    /// The first stage whose batches change what a checkpoint holds: a barrier from there on has few batches before it.
    fn first_stage(&self) -> &'static str {
        let (placement, train) = (&self.job.placement, &self.job.train);
        match (placement.lookup_at, placement.dense(), train.transfers()) {
            (LookupAt::Trainer, ..) => "lookup",
            (LookupAt::Reader, DenseAt::Ps, _) => "refresh",
            (LookupAt::Reader, DenseAt::Trainer, Transfers::Apart) => "upload",
            (LookupAt::Reader, DenseAt::Trainer, Transfers::Inline) => "train",
        }
    }

    /// Makes checkpoints of the run that `control` controls. Calls `without_checkpoint` if the run is drained and its last checkpoint
    /// cannot be written: the run must then end as one without checkpoints.
    pub(crate) fn start(mut self, control: Control, without_checkpoint: DrainWithout) -> Checkpointer {
        let (newest, (alive, ended)) = (Arc::<Newest>::default(), channel());
        let (folder, is_evaluating) = (self.folder.folder.to_string(), Arc::clone(&self.is_evaluating));
        let drain = Drain::new(&self.job, folder, without_checkpoint, control.clone(), is_evaluating);
        self.folder.folder = self.folder.folder.counted_by(drain.written());
        if let Shards::InPs(ps) = self.cut_point.shards() {
            ps.counted_by(drain.written());
        }
        let (drain, run) = (Arc::new(drain), control.clone());
        let worker = Worker {
            checkpoints: self,
            control,
            newest: Arc::clone(&newest),
            drain: Arc::clone(&drain),
            writer: CheckpointWriter::default(),
            drained: None,
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || worker.run(&ended));
        // Without the thread there would be no checkpoint, and a drained run would not end.
        let thread = thread.map_err(|e| run.kill(Fault::no_thread("the thread that makes checkpoints", e)));
        Checkpointer { newest, drain, alive, thread: thread.ok() }
    }
}

/// Ends a run with a checkpoint. Clones do the same.
#[derive(Clone)]
pub(crate) struct EndRun(Arc<Drain>);

impl EndRun {
    /// Makes a checkpoint and ends the run with it. Returns at once; the run ends with a fault of the kind
    /// [`FaultKind::Drained`](forebay_actors::FaultKind::Drained). If the checkpoint fails, the run is drained without it and saves its
    /// model; a run that saves no model when it is drained ends with that fault.
    pub(crate) fn end_run_with_checkpoint(&self) {
        self.0.ask();
    }
}

impl Checkpointer {
    pub(crate) fn end_run(&self) -> EndRun {
        EndRun(Arc::clone(&self.drain))
    }

    /// Ends the thread, after the checkpoint that it is writing. The wait is limited, because the store may not answer and the model must
    /// still be saved. It is short if the run has waited for its last checkpoint before.
    #[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
    pub(crate) fn end(mut self) -> EndedCheckpoints {
        let mut ended = EndedCheckpoints::default();
        drop(std::mem::replace(&mut self.alive, channel().0));
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let (begun, most) = (Instant::now(), if self.drain.has_given_up() { 10 * TICK } else { LAST_WRITE });
            while !thread.is_finished() && begun.elapsed() < most {
                std::thread::sleep(TICK);
            }
            if !thread.is_finished() {
                tracing::warn!("a checkpoint is still being written: the run ends without it");
            } else if let Ok(Worker { checkpoints, writer, drained, .. }) = thread.join() {
                ended.drained = drained;
                ended.last = Some(LastCheckpoint { checkpoints, writer });
            } else {
                tracing::error!("the thread that makes checkpoints panicked");
            }
        }
        (ended.newest, ended.unwritten) = (self.newest(), self.drain.why_without());
        ended
    }

    /// The newest checkpoint of this process.
    pub(crate) fn newest(&self) -> Option<NewestCheckpoint> {
        let newest = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.map(|(newest, written)| NewestCheckpoint { age: written.elapsed().as_secs_f64(), ..newest })
    }
}

/// What is left of the checkpoints when the run has ended.
#[derive(Default)]
pub(crate) struct EndedCheckpoints {
    /// The newest checkpoint of this process.
    pub(crate) newest: Option<NewestCheckpoint>,
    /// Makes one more checkpoint.
    pub(crate) last: Option<LastCheckpoint>,
    /// The checkpoint that ended the run.
    pub(crate) drained: Option<LastOfDrained>,
    /// Why a run that was drained has no such checkpoint.
    pub(crate) unwritten: Option<Fault>,
}

struct Worker {
    checkpoints: Checkpoints,
    control: Control,
    newest: Arc<Newest>,
    drain: Arc<Drain>,
    writer: CheckpointWriter,
    drained: Option<LastOfDrained>,
}

impl Worker {
    /// Makes checkpoints until the sender is dropped, or one of them ends the run.
    fn run(mut self, ended: &Receiver<()>) -> Self {
        let options = self.checkpoints.job.checkpoint.clone();
        let (mut since, mut rows) = (Instant::now(), self.checkpoints.cut_point.rows());
        let (mut last_tries, mut waits, mut overtaken) = (0, retries::waits(), false);
        loop {
            if let Some(most) = options.rows {
                self.checkpoints.cut_point.wake_at(rows.saturating_add(most));
            }
            std::thread::park_timeout(TICK);
            if ended.try_recv() == Err(TryRecvError::Disconnected) || self.drain.has_given_up() {
                return self;
            }
            let last = self.drain.is_asked();
            let now = self.checkpoints.cut_point.rows();
            let due = since.elapsed() >= options.every.0 || options.rows.is_some_and(|most| now - rows >= most);
            let due = due && !overtaken;
            if !last && !due || !self.checkpoints.cut_point.is_ready() {
                continue;
            }
            (since, rows) = (Instant::now(), now);
            last_tries += usize::from(last);
            match self.checkpoint() {
                Ok(None) => return self,
                Ok(Some(manifest)) => {
                    if last {
                        let folder = self.checkpoints.folder.folder.to_string();
                        let rows_before = self.checkpoints.cut_point.rows_before();
                        let drained = LastOfDrained { manifest, folder, rows_before };
                        self.control.kill(drained.fault());
                        self.drained = Some(drained);
                        return self;
                    }
                }
                Err(fault) if last => {
                    let may_pass = fault.retryable || fault.domain == Domain::External;
                    let is_over = self.drain.has_given_up() || self.control.killed();
                    if !may_pass || is_over || last_tries >= LAST_TRIES {
                        self.drain.give_up(fault);
                        return self;
                    }
                    tracing::warn!("the last checkpoint failed, and is tried again: {fault}");
                    // The end of the run ends the wait.
                    let _ = ended.recv_timeout(waits.next_wait());
                }
                Err(fault) => {
                    // The fault of a run ends a checkpoint, too, and may come here a moment before it stops the run.
                    let over = ended.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected);
                    overtaken = fault.kind == FaultKind::Overtaken;
                    match self.control.killed() {
                        true => tracing::debug!("the run has ended before its checkpoint: {fault}"),
                        // This checkpoint was being written when the drain was asked for, and the store hangs.
                        false if self.drain.has_given_up() => tracing::debug!("a checkpoint was given up: {fault}"),
                        false if over => tracing::warn!("a checkpoint failed, and the run has ended: {fault}"),
                        false if overtaken => {
                            tracing::warn!("a checkpoint failed, and the run goes on and makes no more: {fault}")
                        }
                        false => tracing::warn!("a checkpoint failed, and the run goes on: {fault}"),
                    }
                }
            }
        }
    }

    /// Makes one checkpoint. `None`: the run has ended. A panic is a fault: the thread is needed to end a run that is drained.
    fn checkpoint(&mut self) -> Result<Option<CheckpointManifest>, Fault> {
        catch_unwind(AssertUnwindSafe(|| self.try_checkpoint()))
            .unwrap_or_else(|panic| Err(Fault::of_panic("the thread that makes checkpoints panicked", &*panic)))
    }

    fn try_checkpoint(&mut self) -> Result<Option<CheckpointManifest>, Fault> {
        let begun = Instant::now();
        let plan = self.drain.at_store(|| self.writer.plan(&self.checkpoints))?;
        let Some(cut) = self.cut(plan) else { return Ok(None) };
        let (cut, stood) = (cut?, begun.elapsed());
        let manifest = self.drain.at_store(|| self.writer.write(&self.checkpoints, cut))?;
        let (rows, bytes) = self.writer.newest();
        let what = if plan.kind == SnapshotKind::Full { "table row" } else { "changed table row" };
        let (number, seconds) = (plan.number, begun.elapsed().as_secs_f64());
        let newest = NewestCheckpoint { number, seconds, bytes, age: 0.0 };
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((newest, Instant::now()));
        self.checkpoints.made.are_there(self.checkpoints.author.start);
        tracing::info!(
            "checkpoint {number} after {}: {}, {} in {seconds:.1} s, cut in {} ms",
            counted(manifest.rows_trained(), "row"),
            counted(rows, what),
            size(bytes),
            stood.as_millis()
        );
        let Checkpoints { folder, job, .. } = &self.checkpoints;
        if let Err(fault) = self.drain.at_store(|| folder.prune(job.checkpoint.keep)) {
            tracing::warn!("old checkpoints stay: {fault}");
        }
        Ok(Some(manifest))
    }

    /// Takes the cut of a plan. `None`: the run has ended.
    fn cut(&self, plan: CutPlan) -> Option<Result<Cut, Fault>> {
        let Checkpoints { cut_point, leader, job, cuts, .. } = &self.checkpoints;
        if let Some(leader) = leader {
            let cut = |Stopped { batches, kept, metrics }| {
                let position = cut_point.position_after(batches, job.in_step());
                let (snapshots, kept) = (Vec::new(), Kept::Written(kept));
                Cut { plan, position, model: None, snapshots, kept, metrics: Some(metrics) }
            };
            // With an exact order the trainers write the gradients that they keep before they report that they have stopped.
            let stopped = match job.train.staleness.exactly {
                true => self.drain.at_store(|| leader.cut(plan, cut_point)),
                false => leader.cut(plan, cut_point),
            };
            return Some(stopped?.map(cut));
        }
        cut_point.plan(plan);
        block_on(self.control.barrier_at(self.checkpoints.first_stage())).ok()?;
        cuts.recv().ok()
    }
}
