//! The thread of a trainer that makes checkpoints: at the time of each it asks for a barrier, then writes what was cut.
//!
//! A checkpoint that fails is logged, and the run goes on: the last one stays. The next try comes at the time of the next
//! checkpoint, with all changes since the last one that succeeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_actors::{Control, Fault, FaultKind, commas};
use forebay_ps::{SnapshotKind, TableConfig};
use futures::executor::block_on;

use super::cut::{Cut, CutPoint, Kept, Shards};
use super::cut_plan::CutPlan;
use super::folder::{CheckpointFolder, file_name};
use super::manifest::{CheckpointManifest, TableLayer, TableLayers};
use super::{dense_state, kept_gradients, table_rows};
use crate::cluster::CutLeader;
use crate::job::{DenseAt, Job, LookupAt, Transfers};
use crate::model_folder::FileEntry;

/// How often the thread looks whether a checkpoint is due.
const TICK: Duration = Duration::from_millis(50);

/// How long the end of a run waits for the checkpoint that is being written.
const LAST_WRITE: Duration = Duration::from_secs(30);

/// How often the last checkpoint of a run is tried if the trainers do not stop in time.
const LAST_TRIES: usize = 3;

/// What the checkpoints of one run need. [`start`](Self::start) begins to make them.
pub(crate) struct Checkpoints {
    pub(crate) folder: CheckpointFolder,
    pub(crate) job: Job,
    pub(crate) config: TableConfig,
    pub(crate) cut_point: Arc<CutPoint>,
    pub(crate) cuts: Receiver<Result<Cut, Fault>>,
    /// Set if there are other trainers: then cuts are made through it and not at barriers.
    pub(crate) leader: Option<CutLeader>,
}

/// Makes checkpoints of a run until it ends.
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    /// Dropped to end the thread.
    alive: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The run is to end after one more checkpoint.
    last: AtomicBool,
    /// The number of the newest checkpoint of this process; 0: none.
    newest: AtomicU64,
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
        let worker = Worker {
            layers: Vec::new(),
            layers_since_full: 0,
            failed: None,
            shared: Arc::clone(&shared),
            control,
            checkpoints: self,
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || worker.run(&ended));
        if let Err(e) = &thread {
            tracing::error!("no checkpoints are made: cannot start a thread: {e}");
        }
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

    /// Ends the thread, after the checkpoint that it is writing. Waits a while for that, but not for a store that does not
    /// answer: the model is yet to be saved. Returns the number of the newest checkpoint.
    #[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
    pub(crate) fn end(mut self) -> Option<u64> {
        drop(std::mem::replace(&mut self.alive, channel().0));
        if let Some(thread) = self.thread.take() {
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < LAST_WRITE {
                std::thread::sleep(TICK);
            }
            if !thread.is_finished() {
                tracing::warn!("a checkpoint is still being written after {LAST_WRITE:?}: the run ends without it");
            } else if thread.join().is_err() {
                tracing::error!("the thread that makes checkpoints panicked");
            }
        }
        self.newest()
    }

    /// The number of the newest checkpoint of this process.
    pub(crate) fn newest(&self) -> Option<u64> {
        Some(self.shared.newest.load(Ordering::SeqCst)).filter(|number| *number > 0)
    }
}

struct Worker {
    checkpoints: Checkpoints,
    control: Control,
    shared: Arc<Shared>,
    /// The layers of the newest checkpoint, for one of changes.
    layers: Vec<TableLayer>,
    layers_since_full: usize,
    /// The last try that failed before its manifest was written.
    failed: Option<CutPlan>,
}

impl Worker {
    fn run(mut self, ended: &Receiver<()>) {
        let options = self.checkpoints.job.checkpoint.clone();
        let (mut since, mut rows) = (Instant::now(), self.checkpoints.cut_point.rows());
        let mut last_tries = 0;
        loop {
            if ended.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected) {
                return;
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
                Ok(None) => return,
                Ok(Some(manifest)) => {
                    self.shared.newest.store(manifest.number, Ordering::SeqCst);
                    if last {
                        let folder = &self.checkpoints.folder.folder;
                        let (number, rows) = (manifest.number, commas(manifest.rows_trained()));
                        let said = format!(
                            "stopped after {rows} rows; checkpoint {number} in {folder} has them: --resume goes on"
                        );
                        return self.control.kill(Fault::external(said).kind(FaultKind::Drained));
                    }
                }
                Err(fault) if last && !(fault.retryable && last_tries < LAST_TRIES) => {
                    return self.control.kill(Fault::external("the last checkpoint failed").because(fault));
                }
                Err(fault) => {
                    tracing::warn!("a checkpoint failed, and the run goes on: {fault}");
                }
            }
        }
    }

    /// Makes one checkpoint. `None`: the run has ended.
    fn checkpoint(&mut self) -> Result<Option<CheckpointManifest>, Fault> {
        let begun = Instant::now();
        let options = &self.checkpoints.job.checkpoint;
        let number = self.checkpoints.folder.next_number(self.checkpoints.cut_point.run())?;
        let full = self.layers.is_empty() || self.layers_since_full + 1 >= options.full_every;
        let kind = if full { SnapshotKind::Full } else { SnapshotKind::Changes };
        let plan = CutPlan { number, attempt: forebay_base::random_seed(), kind };
        // A ps may have gone on writing after the try had failed.
        self.discard_failed();
        let Some(cut) = self.cut(plan) else { return Ok(None) };
        let (cut, stood) = (cut?, begun.elapsed());
        let manifest = self.write(cut, full)?;
        let newest = self.layers.last().into_iter().flat_map(|layer| &layer.files);
        let (rows, bytes) =
            newest.fold((0, 0), |(rows, bytes), file| (rows + file.rows.unwrap_or(0), bytes + file.bytes));
        let what = if full { "table rows" } else { "changed table rows" };
        tracing::info!(
            "checkpoint {number} after {} rows: {} {what}, {:.1} MB in {:.1} s, cut in {} ms",
            commas(manifest.rows_trained()),
            commas(rows),
            bytes as f64 / 1e6,
            begun.elapsed().as_secs_f64(),
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
            let cut = |(batches, files)| {
                let position = cut_point.position_after(batches, job.in_step());
                Cut { plan, position, model: None, snapshots: Vec::new(), kept: Kept::Written(files) }
            };
            return Some(leader.cut(plan, cut_point.shards())?.map(cut));
        }
        cut_point.plan(plan);
        block_on(self.control.barrier_at(self.checkpoints.first_stage())).ok()?;
        cuts.recv().ok()
    }

    /// Removes what the last failed try has written, so that tries that fail do not fill the disk.
    fn discard_failed(&self) {
        let Some(plan) = self.failed else { return };
        if let Err(fault) = self.checkpoints.folder.discard(plan.number, plan.attempt) {
            tracing::warn!("files of the checkpoint that failed stay until the next one: {fault}");
        }
    }

    /// Writes the tables, the dense parameters and the gradients that an exact order keeps. Returns their files.
    fn write_files(&self, cut: &mut Cut) -> Result<[Vec<FileEntry>; 3], Fault> {
        let (folder, plan) = (&self.checkpoints.folder.folder, cut.plan);
        let (files, mut dense) = match self.checkpoints.cut_point.shards() {
            Shards::Here(table) => (table_rows::write_shards(&mut cut.snapshots, table, folder, plan)?, Vec::new()),
            Shards::InPs(ps) => block_on(ps.written(plan))?,
        };
        if let Some(model) = &cut.model {
            let name = file_name(plan.number, plan.attempt, "dense.safetensors");
            dense = vec![dense_state::write(model, folder, &name)?];
        }
        let kept = match &cut.kept {
            Kept::Here(kept) if self.checkpoints.job.train.staleness.exactly => {
                vec![kept_gradients::write(kept, folder, plan.number, plan.attempt, 0)?]
            }
            Kept::Here(_) => Vec::new(),
            Kept::Written(files) => files.clone(),
        };
        Ok([files, dense, kept])
    }

    fn write(&mut self, mut cut: Cut, full: bool) -> Result<CheckpointManifest, Fault> {
        self.failed = Some(cut.plan);
        let written = self.write_files(&mut cut).inspect_err(|_| self.discard_failed())?;
        // From here on a fault does not say that the manifest is not there.
        self.failed = None;
        let Checkpoints { folder, job, config, cut_point, .. } = &self.checkpoints;
        let (Cut { plan, position, snapshots, .. }, [files, dense, kept]) = (cut, written);
        let mut layers = if full { Vec::new() } else { self.layers.clone() };
        layers.push(TableLayer { checkpoint: plan.number, files });
        let tables = vec![TableLayers { config: config.clone(), layers: layers.clone() }];
        let manifest = CheckpointManifest::new(plan.number, job.clone(), position, tables, dense);
        let manifest = CheckpointManifest { kept, ..manifest };
        folder.publish(&manifest)?;
        // The next checkpoint of changes has these layers below it whatever becomes of `keep`: a shard that keeps its snapshot gives
        // only later changes, and one that does not gives these rows again.
        self.layers = layers;
        self.layers_since_full = if full { 0 } else { self.layers_since_full + 1 };
        let kept = match cut_point.shards() {
            Shards::Here(_) => snapshots.into_iter().try_for_each(|snapshot| block_on(snapshot.keep())),
            Shards::InPs(ps) => block_on(ps.keep(plan)),
        };
        if let Err(fault) = kept {
            tracing::warn!("the next checkpoint writes rows of checkpoint {} again: {fault}", plan.number);
        }
        Ok(manifest)
    }
}
