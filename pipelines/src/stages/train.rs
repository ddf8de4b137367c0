//! `train`: runs the forward pass, the backward pass and the dense optimizer. It needs its own thread, because it blocks
//! during a step.

use forebay_actors::{BarrierNumber, Fault, Outbox, Stage, StageCx};
use forebay_batches::{BatchId, GradBatch, ReadyBatch};
use forebay_models::{DenseModel, ModelError, StepOutput};

use super::state_output::StateOutput;
use crate::dense_model::dense_threads::DenseThreads;
use crate::fault::model_fault;
use crate::metrics::progress::Progress;
use crate::trainer_count::TrainerCount;

/// Makes the model, on the thread that will use it.
pub type ModelMaker = Box<dyn FnOnce() -> Result<Box<dyn DenseModel>, ModelError> + Send>;

/// The step counter. Each step of this trainer raises it by the number of trainers that count steps together.
#[derive(Default)]
pub(super) struct Steps {
    taken: u64,
    trainers: TrainerCount,
}

impl Steps {
    pub(super) fn after(before: u64, trainers: TrainerCount) -> Self {
        Self { taken: before, trainers }
    }

    /// Counts a step and makes its [`GradBatch`]. The gradients are moved out of `output`, which gets the buffer of the rows
    /// (the same size) for the next step.
    pub(super) fn grads(
        &mut self,
        batch: ReadyBatch,
        output: &mut StepOutput,
        dense_grads: Option<Vec<f32>>,
    ) -> GradBatch {
        self.taken += self.trainers.get();
        GradBatch {
            id: BatchId::of(&batch.train),
            lineage: batch.train.lineage,
            step: self.taken,
            samples: batch.train.rows,
            unique: batch.train.unique,
            row_grads: std::mem::replace(&mut output.row_grads, batch.rows),
            dense_grads,
            ticket: batch.ticket,
        }
    }
}

/// The `train` stage.
pub struct Train {
    maker: Option<ModelMaker>,
    model: Option<Box<dyn DenseModel>>,
    output: StepOutput,
    steps: Steps,
    progress: Progress,
    describe: String,
    state_output: StateOutput,
    threads: DenseThreads,
}

impl Train {
    /// Trains the model that `maker` makes, and reports every step to `progress`. At the end it leaves the parameters,
    /// `Vec<NamedTensor>`, in the run's results.
    pub fn new(describe: impl Into<String>, maker: ModelMaker, progress: Progress) -> Self {
        Self {
            maker: Some(maker),
            model: None,
            output: StepOutput::default(),
            steps: Steps::default(),
            progress,
            describe: describe.into(),
            state_output: StateOutput::default(),
            threads: DenseThreads::default(),
        }
    }

    /// Puts the state of the model into `state_output`.
    pub(crate) fn with_state_output(mut self, state_output: StateOutput) -> Self {
        self.state_output = state_output;
        self
    }

    /// Changes the threads of the model as `threads` says.
    pub(crate) fn on_threads(mut self, threads: DenseThreads) -> Self {
        self.threads = threads;
        self
    }

    /// Counts steps from `before`, and raises the count by `trainers` with each step.
    pub(crate) fn after(mut self, (before, trainers): (u64, TrainerCount)) -> Self {
        self.steps = Steps::after(before, trainers);
        self
    }

    /// Computes one batch. Returns the dense gradients if the dense parameters are not in this model.
    fn compute(&mut self, batch: &ReadyBatch) -> Result<Option<Vec<f32>>, ModelError> {
        let model = self.model.as_mut().expect("opened before the first batch");
        self.state_output.reduce_lr(model.as_mut())?;
        self.threads.apply(model.as_mut());
        let Some(dense) = &batch.dense else {
            model.train(&batch.dense_batch(), &mut self.output)?;
            self.output.check(&batch.dense_batch(), &self.describe)?;
            return Ok(None);
        };
        let mut grads = Vec::new();
        if batch.train.rows == 0 {
            // An empty batch of a round: only other trainers have rows.
            self.output = StepOutput::default();
        } else {
            model.set_flat(dense)?;
            model.gradients(&batch.dense_batch(), &mut self.output, &mut grads)?;
            self.output.check(&batch.dense_batch(), &self.describe)?;
            if grads.len() != model.flat_len() {
                let (found, expected) = (grads.len(), model.flat_len());
                let what = format!("{} gave {found} gradients of parameters, expected {expected}", self.describe);
                return Err(ModelError::Module(what));
            }
        }
        Ok(Some(grads))
    }
}

impl Stage for Train {
    type In = ReadyBatch;
    type Out = GradBatch;

    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let maker = self.maker.take().expect("a stage is opened once");
        let model = self.model.insert(maker().map_err(model_fault)?);
        self.state_output.reduce_lr(model.as_mut()).map_err(model_fault)?;
        self.threads.begin(model.as_ref());
        self.state_output.check(self.model.as_deref())
    }

    async fn on_batch(&mut self, batch: ReadyBatch, _cx: &StageCx, out: &mut Outbox<GradBatch>) -> Result<(), Fault> {
        let dense_grads = self.compute(&batch).map_err(model_fault)?;
        self.progress.step(&self.output, &batch.train);
        out.send(self.steps.grads(batch, &mut self.output, dense_grads)).await
    }

    async fn on_barrier(
        &mut self,
        barrier: BarrierNumber,
        _cx: &StageCx,
        _out: &mut Outbox<GradBatch>,
    ) -> Result<(), Fault> {
        self.progress.barrier(barrier);
        self.state_output.at_barrier(self.model.as_deref(), barrier)
    }

    async fn finish(&mut self, cx: &StageCx, _out: &mut Outbox<GradBatch>) -> Result<(), Fault> {
        let model = self.model.as_ref().expect("opened before it finishes");
        self.state_output.leave(model.as_ref(), cx);
        Ok(())
    }
}
