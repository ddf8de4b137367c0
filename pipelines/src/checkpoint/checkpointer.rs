//! The thread of a trainer that makes checkpoints: at the time of each it asks for a barrier, then writes what was cut.
//!
//! A checkpoint that fails is logged, and the run goes on: the last one stays. The next try comes at the time of the next
//! checkpoint, with all changes since the last one that succeeded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_actors::{Control, Fault, FaultKind, counted, size};
use forebay_job::{DenseAt, LookupAt, Transfers};
use forebay_ps::SnapshotKind;
use futures::executor::block_on;
use serde::Serialize;

use super::cut::{Cut, Kept};
use super::cut_plan::CutPlan;
use super::drained_to::LastOfDrained;
use super::last::LastCheckpoint;
use super::manifest::CheckpointManifest;
use super::writer::{CheckpointWriter, Checkpoints};
use crate::cluster::Stopped;

/// How often the thread looks whether a checkpoint is due. With one trainer `checkpoint.rows` wakes it, too.
const TICK: Duration = Duration::from_millis(50);

/// How long the end of a run waits for the checkpoint that is being written.
const LAST_WRITE: Duration = Duration::from_secs(30);

/// How often the last checkpoint of a run is tried if the trainers do not stop in time.
const LAST_TRIES: usize = 3;

/// Makes checkpoints of a run until it ends.
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    /// Dropped to end the thread.
    alive: Sender<()>,
    thread: Option<JoinHandle<Worker>>,
}

#[derive(Default)]
struct Shared {
    /// The run is to end after one more checkpoint.
    last: AtomicBool,
    /// The newest checkpoint of this process, and when it was written.
    newest: Mutex<Option<(NewestCheckpoint, Instant)>>,
}

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

    /// Makes checkpoints of the run that `control` controls.
    pub(crate) fn start(self, control: Control) -> Checkpointer {
        let (shared, (alive, ended)) = (Arc::new(Shared::default()), channel());
        let (writer, shared_with) = (CheckpointWriter::default(), Arc::clone(&shared));
        let worker = Worker { writer, shared: shared_with, control, checkpoints: self, drained: None };
        let run = worker.control.clone();
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || worker.run(&ended));
        // Without the thread there would be no checkpoint, and a drained run would not end.
        let thread = thread.map_err(|e| run.kill(Fault::no_thread("the thread that makes checkpoints", e)));
        Checkpointer { shared, alive, thread: thread.ok() }
    }
}

/// Ends a run with a checkpoint. Clones do the same.
#[derive(Clone)]
pub(crate) struct EndRun(Arc<Shared>);

impl EndRun {
    /// Makes a checkpoint now and ends the run with it. Returns at once; the run ends with a fault of the kind
    /// [`FaultKind::Drained`]. If the checkpoint fails, the run ends with that fault.
    pub(crate) fn end_run_with_checkpoint(&self) {
        self.0.last.store(true, Ordering::SeqCst);
    }
}

impl Checkpointer {
    pub(crate) fn end_run(&self) -> EndRun {
        EndRun(Arc::clone(&self.shared))
    }

    /// Ends the thread, after the checkpoint that it is writing. The wait is limited, because the store may not answer and the model is
    /// still to be saved.
    #[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
    pub(crate) fn end(mut self) -> EndedCheckpoints {
        let mut ended = EndedCheckpoints::default();
        drop(std::mem::replace(&mut self.alive, channel().0));
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < LAST_WRITE {
                std::thread::sleep(TICK);
            }
            if !thread.is_finished() {
                tracing::warn!("a checkpoint is still being written after {LAST_WRITE:?}: the run ends without it");
            } else if let Ok(Worker { checkpoints, writer, drained, .. }) = thread.join() {
                ended.drained = drained;
                ended.last = Some(LastCheckpoint { checkpoints, writer });
            } else {
                tracing::error!("the thread that makes checkpoints panicked");
            }
        }
        ended.newest = self.newest();
        ended
    }

    /// The newest checkpoint of this process.
    pub(crate) fn newest(&self) -> Option<NewestCheckpoint> {
        let newest = *self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner);
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
}

struct Worker {
    checkpoints: Checkpoints,
    control: Control,
    shared: Arc<Shared>,
    writer: CheckpointWriter,
    drained: Option<LastOfDrained>,
}

impl Worker {
    /// Makes checkpoints until the sender is dropped, or one of them ends the run.
    fn run(mut self, ended: &Receiver<()>) -> Self {
        let options = self.checkpoints.job.checkpoint.clone();
        let (mut since, mut rows) = (Instant::now(), self.checkpoints.cut_point.rows());
        let mut last_tries = 0;
        loop {
            if let Some(most) = options.rows {
                self.checkpoints.cut_point.wake_at(rows.saturating_add(most));
            }
            std::thread::park_timeout(TICK);
            if ended.try_recv() == Err(TryRecvError::Disconnected) {
                return self;
            }
            let last = self.shared.last.load(Ordering::SeqCst);
            let now = self.checkpoints.cut_point.rows();
            let due = since.elapsed() >= options.every.0 || options.rows.is_some_and(|most| now - rows >= most);
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
                        let (number, rows) = (manifest.number, counted(manifest.rows_trained(), "row"));
                        let said =
                            format!("stopped after {rows}; checkpoint {number} in {folder} has them: --resume goes on");
                        let rows_before = self.checkpoints.cut_point.rows_before();
                        self.drained = Some(LastOfDrained { manifest, folder, rows_before });
                        self.control.kill(Fault::external(said).kind(FaultKind::Drained));
                        return self;
                    }
                }
                Err(fault) if last && !(fault.retryable && last_tries < LAST_TRIES) => {
                    self.control.kill(Fault::external("the last checkpoint failed").because(fault));
                    return self;
                }
                Err(fault) => {
                    // The fault of a run ends a checkpoint, too, and may come here a moment before it stops the run.
                    let over = ended.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected);
                    match self.control.killed() {
                        true => tracing::debug!("the run has ended before its checkpoint: {fault}"),
                        false if over => tracing::warn!("a checkpoint failed, and the run has ended: {fault}"),
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
        let plan = self.writer.plan(&self.checkpoints)?;
        let Some(cut) = self.cut(plan) else { return Ok(None) };
        let (cut, stood) = (cut?, begun.elapsed());
        let manifest = self.writer.write(&self.checkpoints, cut)?;
        let (rows, bytes) = self.writer.newest();
        let what = if plan.kind == SnapshotKind::Full { "table row" } else { "changed table row" };
        let (number, seconds) = (plan.number, begun.elapsed().as_secs_f64());
        let newest = NewestCheckpoint { number, seconds, bytes, age: 0.0 };
        *self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((newest, Instant::now()));
        tracing::info!(
            "checkpoint {number} after {}: {}, {} in {seconds:.1} s, cut in {} ms",
            counted(manifest.rows_trained(), "row"),
            counted(rows, what),
            size(bytes),
            stood.as_millis()
        );
        if let Err(fault) = self.checkpoints.folder.prune(self.checkpoints.job.checkpoint.keep) {
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
            return Some(leader.cut(plan, cut_point)?.map(cut));
        }
        cut_point.plan(plan);
        block_on(self.control.barrier_at(self.checkpoints.first_stage())).ok()?;
        cuts.recv().ok()
    }
}
