//! Where the stages of a trainer meet its checkpoints: which batches are trained on, and the cut at a barrier.
//!
//! A barrier passes each stage after all batches before it and before all batches after it. At `train` it takes the state of the
//! dense model and the running metrics. At `push`, where the gradients of all batches before it are applied or, with exact staleness, kept,
//! and none of later ones, it takes the position and begins a snapshot of every shard. So the cut is consistent, and training goes on while
//! the snapshots are written.
//!
//! Several trainers use no barrier: see [`SharedCut`].

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use forebay_actors::{BarrierNumber, Fault};
use forebay_batches::{BatchId, GradBatch, TrainBatch};
use forebay_connectors::DataPlan;
use forebay_ps::{ShardSnapshot, TableClient};

use super::shared_cut::SharedCut;
use crate::checkpoint::{BatchOrder, CutPlan, ModelState, TrainPosition, TrainedBatches, check_rows};
use crate::cluster::PsSnapshots;
use crate::metrics::evaluation_points::EvaluationPoint;
use crate::metrics::progress::Progress;
use crate::metrics::running_metrics::RunningMetrics;
use crate::model_folder::FileEntry;
use crate::trainer_count::TrainerCount;

/// The shards of the run's table.
pub(crate) enum Shards {
    /// In this process.
    Here(TableClient),
    /// In ps processes, which write their own files.
    InPs(PsSnapshots),
}

/// The state of a trainer at one cut.
pub(crate) struct Cut {
    pub(crate) plan: CutPlan,
    pub(crate) position: TrainPosition,
    /// The dense model with the state of its optimizer. `None`: it is in the ps processes.
    pub(crate) model: Option<ModelState>,
    /// The snapshots of the shards in this process.
    pub(crate) snapshots: Vec<ShardSnapshot>,
    /// The gradients that are computed and not pushed.
    pub(crate) kept: Kept,
    /// The running metrics of the trainer that leads. `None`: nothing counts them.
    pub(crate) metrics: Option<RunningMetrics>,
}

/// Gradients that an exact order keeps at a cut.
pub(crate) enum Kept {
    /// The gradients of the only trainer, which are not written yet. Empty without an exact order.
    Here(Vec<Arc<GradBatch>>),
    /// The files that several trainers have written, by rank.
    Written(Vec<FileEntry>),
}

/// What the stages of one trainer record for its checkpoints.
pub(crate) struct CutPoint {
    order: BatchOrder,
    /// The batches that were trained on before this process began.
    before: TrainedBatches,
    steps_before: u64,
    rows_before: u64,
    rows_not_read_again: Option<u64>,
    shards: Shards,
    /// Set if there are other trainers.
    shared: Option<Arc<SharedCut>>,
    /// How many trainers there are. Each of them trains on about as many rows as this one.
    trainers: TrainerCount,
    progress: Progress,
    state: Mutex<State>,
    cuts: Sender<Result<Cut, Fault>>,
}

#[derive(Default)]
struct State {
    position: TrainPosition,
    /// With several trainers, at the last call: the rows that this trainer has trained on, and an estimate of the rows of all trainers.
    rows_here: u64,
    rows_of_all: u64,
    /// The state of the model at the barriers that are not yet at `push`. The barrier of an evaluation may be among them.
    models: BTreeMap<BarrierNumber, ModelState>,
    /// The state of the model after the last batch.
    last_model: Option<ModelState>,
    plan: Option<CutPlan>,
    /// The last barrier that was handled.
    last: Option<BarrierNumber>,
    /// The thread to unpark, and the number of rows at which to do so.
    wake: Option<(Thread, u64)>,
}

impl CutPoint {
    /// The cut point of a trainer that continues from `position` and counts its steps in `progress`. `trainers`: set if there may be
    /// others. The returned receiver gets the cuts of a single trainer.
    pub(crate) fn new(
        position: TrainPosition,
        order: BatchOrder,
        shards: Shards,
        trainers: Option<TrainerCount>,
        progress: Progress,
    ) -> (Arc<Self>, Receiver<Result<Cut, Fault>>) {
        progress.keep_at_barriers();
        let (cuts, taken) = channel();
        let (before, steps_before, rows_before) = (position.batches.clone(), position.steps, position.rows);
        let data = position.data.as_ref().filter(|data| data.has_windows());
        let rows_not_read_again = data.map(|data| before.rows_of_windows(data));
        let state = Mutex::new(State { position, ..State::default() });
        let shared = trainers.is_some().then(Arc::default);
        let trainers = trainers.unwrap_or_default();
        let cut_point = Self {
            order,
            before,
            steps_before,
            rows_before,
            rows_not_read_again,
            shards,
            shared,
            trainers,
            progress,
            state,
            cuts,
        };
        (Arc::new(cut_point), taken)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Set if there are other trainers.
    pub(crate) fn shared(&self) -> Option<&Arc<SharedCut>> {
        self.shared.as_ref()
    }

    /// Rows of the windows that were done before this process began; `None` if it knows no windows, and reads all rows again.
    pub(crate) fn rows_not_read_again(&self) -> Option<u64> {
        self.rows_not_read_again
    }

    /// Steps taken before this process began.
    pub(crate) fn steps_before(&self) -> u64 {
        self.steps_before
    }

    /// Rows trained on before this process began.
    pub(crate) fn rows_before(&self) -> u64 {
        self.rows_before
    }

    /// Rows trained on, by this process and earlier ones. With several trainers an estimate: as if each had trained on as many rows as this
    /// one since the last call.
    pub(crate) fn rows(&self) -> u64 {
        let here = self.shared.as_ref().map_or(0, |shared| shared.log().rows());
        let mut state = self.state();
        state.rows_of_all += here.saturating_sub(state.rows_here) * self.trainers.get();
        state.rows_here = here;
        state.position.rows + state.rows_of_all
    }

    /// All windows before this one, (epoch, window), are done, and the coordinator has their counts.
    pub(crate) fn windows_counted(&self, first_open: (u32, u64)) {
        if let Some(shared) = &self.shared {
            shared.log().forget_before(first_open);
        }
    }

    /// The position of a run of several trainers after it has trained on `batches`. `in_step` trainers take each step together.
    pub(crate) fn position_after(&self, batches: TrainedBatches, in_step: usize) -> TrainPosition {
        let (totals, before) = (batches.totals(), self.state().position.clone());
        let steps = before.steps_before + totals.batches / in_step.max(1) as u64;
        TrainPosition { batches, steps, rows: totals.trained, ..before }
    }

    /// Stores which data the run reads.
    ///
    /// # Errors
    /// A user fault if earlier processes of the run read other data.
    pub(crate) fn reads(&self, data: &DataPlan) -> Result<(), Fault> {
        let mut state = self.state();
        check_rows(state.position.data.get_or_insert_with(|| data.clone()), data)
    }

    /// Whether the source of the run knew its windows before it read them.
    pub(crate) fn is_numbered(&self) -> bool {
        self.state().position.is_numbered()
    }

    /// Whether the position is known: in a cluster, only after a reader has reported the data.
    pub(crate) fn is_ready(&self) -> bool {
        self.order == BatchOrder::Data || self.state().position.data.is_some()
    }

    /// The batches that were trained on before this process began.
    pub(crate) fn before(&self) -> &TrainedBatches {
        &self.before
    }

    /// A batch comes to its look-up. Returns whether it was trained on before this process began.
    pub(crate) fn batch_started(&self, batch: &TrainBatch) -> bool {
        let id = BatchId::of(batch);
        match (batch.closes, self.order, &self.shared) {
            (Some(end), _, Some(shared)) => shared.log().window_ends(id, end),
            (Some(end), BatchOrder::Any, None) => self.state().position.batches.window_ends(id, end),
            _ => {}
        }
        self.before.contains(id)
    }

    /// The gradients of a batch of `rows` rows are applied or, with exact staleness, kept; or the batch had no rows. `step` is 0 without a
    /// step.
    pub(crate) fn batch_done(&self, id: BatchId, rows: u64, step: u64) {
        if let Some(shared) = &self.shared {
            return shared.log().batch_done(id, rows);
        }
        let mut state = self.state();
        let position = &mut state.position;
        position.batches.batch_done(id, rows, self.order);
        position.steps = position.steps.max(step);
        position.rows += rows;
        let rows = position.rows;
        if let Some((thread, _)) = state.wake.take_if(|(_, at)| rows >= *at) {
            thread.unpark();
        }
    }

    /// Unparks the calling thread once, at the batch after which this many rows are trained on. Does nothing with several trainers.
    pub(crate) fn wake_at(&self, rows: u64) {
        self.state().wake = Some((std::thread::current(), rows));
    }

    /// The model was evaluated.
    pub(crate) fn evaluated(&self, point: EvaluationPoint) {
        self.state().position.evaluations.push(point);
    }

    /// The next barrier makes this cut.
    pub(crate) fn plan(&self, plan: CutPlan) {
        self.state().plan = Some(plan);
    }

    /// A barrier is at `train`: keeps the state of the model for its cut.
    pub(crate) fn model(&self, barrier: BarrierNumber, model: ModelState) {
        self.state().models.insert(barrier, model);
    }

    /// `train` has ended: keeps the state of the model for a cut after the last batch.
    pub(crate) fn last_model(&self, model: ModelState) {
        self.state().last_model = Some(model);
    }

    /// The barrier is at `push`: takes the cut, with the gradients that an exact order keeps. Replicas may call it several times.
    pub(crate) async fn cut(&self, barrier: BarrierNumber, kept: Vec<Arc<GradBatch>>) {
        let (plan, model, metrics) = {
            let mut state = self.state();
            if state.last == Some(barrier) {
                return;
            }
            state.last = Some(barrier);
            let model = state.models.remove(&barrier);
            state.models.retain(|later, _| *later > barrier);
            let metrics = self.progress.take_at(barrier);
            let Some(plan) = state.plan.take() else { return };
            (plan, model, metrics)
        };
        self.take_cut(plan, model, kept, metrics).await;
    }

    /// The running metrics of this trainer. At a cut the trainer must stand still.
    pub(crate) fn metrics(&self) -> RunningMetrics {
        self.progress.metrics()
    }

    /// Takes a cut after the last batch of the run, when all stages have ended.
    pub(super) async fn cut_now(&self, plan: CutPlan) {
        let model = self.state().last_model.clone();
        self.take_cut(plan, model, Vec::new(), Some(self.metrics())).await;
    }

    async fn take_cut(
        &self,
        plan: CutPlan,
        model: Option<ModelState>,
        kept: Vec<Arc<GradBatch>>,
        metrics: Option<RunningMetrics>,
    ) {
        let position = self.state().position.clone();
        let snapshots = match &self.shards {
            Shards::Here(table) => table.begin_snapshot(plan.kind).await,
            Shards::InPs(ps) => ps.begin(plan).await.map(|()| Vec::new()),
        };
        let kept = Kept::Here(kept);
        // The receiver is gone when the run ends.
        let _ = self.cuts.send(snapshots.map(|snapshots| Cut { plan, position, model, snapshots, kept, metrics }));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use forebay_actors::Host;
    use forebay_models::NamedTensor;
    use forebay_ps::{SnapshotKind, start_table};
    use futures::executor::block_on;

    use super::*;
    use crate::checkpoint::config;

    /// The barrier of an evaluation may be at `train` before the barrier of a checkpoint is at `push`, with batches between them.
    #[test]
    fn a_cut_has_the_model_and_the_metrics_of_its_own_barrier() {
        let host = Host::start("test").unwrap();
        let table = start_table(&host, config(false), 1).unwrap();
        let progress = Progress::default();
        let (position, shards) = (TrainPosition::default(), Shards::Here(table.clone()));
        let (cut_point, cuts) = CutPoint::new(position, BatchOrder::Data, shards, None, progress.clone());
        let state = |value| vec![NamedTensor { name: "w".into(), shape: vec![1], data: vec![value] }];
        let at_train = |barrier, rows| {
            progress.goes_on_after(rows, barrier);
            progress.barrier(BarrierNumber(barrier));
            cut_point.model(BarrierNumber(barrier), state(barrier as f32));
        };
        let plan = |number| CutPlan { number, try_id: 7, kind: SnapshotKind::Full };
        let taken = || {
            let cut = cuts.try_recv().unwrap().unwrap();
            (cut.plan.number, cut.model.unwrap()[0].data[0], cut.metrics.unwrap().rows)
        };
        cut_point.plan(plan(1));
        at_train(1, 100);
        at_train(2, 200);
        block_on(cut_point.cut(BarrierNumber(1), Vec::new()));
        assert_eq!(taken(), (1, 1.0, 100));
        // No checkpoint is planned for the second.
        block_on(cut_point.cut(BarrierNumber(2), Vec::new()));
        assert!(cuts.try_recv().is_err());
        cut_point.plan(plan(2));
        at_train(3, 300);
        block_on(cut_point.cut(BarrierNumber(3), Vec::new()));
        block_on(cut_point.cut(BarrierNumber(3), Vec::new()));
        assert_eq!(taken(), (2, 3.0, 300));
        assert!(cuts.try_recv().is_err(), "replicas say the same barrier again");
        drop((cut_point, table));
        host.stop().unwrap();
    }

    /// Rows were polled every 50 ms, in which a fast run trains on many times `checkpoint.rows`.
    #[test]
    fn a_thread_is_woken_by_the_batch_that_completes_its_rows() {
        let host = Host::start("test").unwrap();
        let table = start_table(&host, config(false), 1).unwrap();
        let (position, shards) = (TrainPosition::default(), Shards::Here(table.clone()));
        let (cut_point, _cuts) = CutPoint::new(position, BatchOrder::Data, shards, None, Progress::default());
        let done = |index| cut_point.batch_done(BatchId { epoch: 0, window: 0, index }, 100, 1);
        cut_point.wake_at(250);
        (0..2).for_each(done);
        assert!(cut_point.state().wake.is_some());
        done(2);
        assert!(cut_point.state().wake.is_none());
        let begun = Instant::now();
        std::thread::park_timeout(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30), "it was not unparked");
        drop((cut_point, table));
        host.stop().unwrap();
    }
}
