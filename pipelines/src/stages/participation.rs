//! Whether a process trains alone or as a member of a cluster, and how the stages of a member differ.

use std::sync::Arc;

use forebay_actors::Fault;
use forebay_batches::{BatchId, TrainBatch};
use forebay_connectors::WindowMark;
use forebay_models::NamedTensor;
use futures::executor::block_on;

use super::rounds_end::RoundsEnd;
use crate::checkpointer::cut::CutPoint;
use crate::checkpointer::shared_cut::SharedCut;
use crate::dense_model::dense_store::DenseStore;
use crate::order::batch_record::BatchRecord;
use crate::order::lookup_gate::LookupGate;
use crate::trainer_count::TrainerCount;

/// How the stages of one process take part in training.
#[derive(Clone, Default)]
pub(crate) struct Participation {
    /// Set if this process is a trainer of a cluster. Each batch id is applied once. `None`: all rows, tables and dense parameters
    /// are in this process.
    membership: Option<Arc<Membership>>,
    /// Set if the run has checkpoints.
    cut_point: Option<Arc<CutPoint>>,
    /// Set if the model is evaluated while it is trained: the gate at which a look-up waits for the evaluation.
    evaluation_gate: Option<Arc<LookupGate>>,
    /// Steps of the model that a process alone continues from.
    steps_before: u64,
}

/// Whether a batch is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The batch is trained on.
    Train,
    /// The batch has no rows, and no round of several trainers waits for it.
    Empty,
    /// The batch was trained on before the run was resumed.
    TrainedBefore,
}

/// What a trainer shares with the other processes of its run.
pub(crate) struct Membership {
    /// Records which batches are done.
    pub(crate) batches: Arc<dyn BatchRecord>,
    /// The dense parameters on the ps processes. `None`: they are in the trainer's own model.
    pub(crate) dense: Option<Arc<dyn DenseStore>>,
    /// The number of trainers that take each step together. `None`: each trainer takes its steps by itself.
    pub(crate) round: Option<u32>,
    /// Says when the rest of a round may never come. `None`: there are no rounds.
    pub(crate) rounds_end: Option<RoundsEnd>,
    /// Steps taken before this trainer started, and by how much each of its own steps raises that number.
    pub(crate) steps: (u64, TrainerCount),
}

impl Participation {
    /// A trainer of a cluster.
    pub(crate) fn member(membership: Membership) -> Self {
        Self { membership: Some(Arc::new(membership)), ..Self::default() }
    }

    /// A process alone that continues from a model that was trained for `steps` steps.
    pub(crate) fn alone_after(steps_before: u64) -> Self {
        Self { steps_before, ..Self::default() }
    }

    /// With checkpoints.
    pub(crate) fn with_checkpoints(self, cut_point: Arc<CutPoint>) -> Self {
        Self { cut_point: Some(cut_point), ..self }
    }

    /// With evaluations, whose gate this is.
    pub(crate) fn with_evaluations(self, gate: Option<Arc<LookupGate>>) -> Self {
        Self { evaluation_gate: gate, ..self }
    }

    pub(crate) fn cut_point(&self) -> Option<&Arc<CutPoint>> {
        self.cut_point.as_ref()
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.membership.is_none()
    }

    /// Whether the rows of a window may become batches.
    pub(crate) fn window_begins(&self, epoch: u32, mark: &WindowMark) -> bool {
        self.membership.as_ref().is_none_or(|membership| membership.batches.window_begins(epoch, mark))
    }

    /// Records that a batch reached its look-up. Returns `Train` if the caller must train on it. Batches that are `TrainedBefore` or
    /// `Empty` count as done.
    pub(crate) fn start(&self, batch: &TrainBatch) -> Start {
        let id = BatchId::of(batch);
        if let Some(membership) = &self.membership {
            membership.batches.batch_started(batch);
        }
        if self.cut_point.as_ref().is_some_and(|cut_point| cut_point.batch_started(batch)) {
            if let Some(membership) = &self.membership {
                membership.batches.batch_done(id);
            }
            return Start::TrainedBefore;
        }
        let waited_for = self.membership.as_ref().is_none_or(|membership| membership.round.is_some());
        if batch.rows > 0 || waited_for {
            return Start::Train;
        }
        self.batch_done(id, 0, 0);
        Start::Empty
    }

    /// Records that the gradients of a batch of `rows` rows are applied in step `step` or, with exact staleness, kept for it.
    pub(crate) fn batch_done(&self, id: BatchId, rows: u64, step: u64) {
        if let Some(cut_point) = &self.cut_point {
            cut_point.batch_done(id, rows, step);
        }
        if let Some(membership) = &self.membership {
            membership.batches.batch_done(id);
        }
    }

    /// Waits until the batch that arrived as number `arrival` may be looked up: not while the parameters stand still for a
    /// checkpoint. Cancel safe.
    pub(crate) async fn enter_gate(&self, arrival: u64) {
        if let Some(shared) = self.shared_cut() {
            shared.gate.enter(arrival).await;
        }
    }

    /// The batch that arrived as number `arrival` is not looked up.
    pub(crate) fn skip_gate(&self, arrival: u64) {
        self.gates().for_each(|gate| gate.skip(arrival));
    }

    /// The gradients of a batch that has entered the gates are applied or kept, and the batch is recorded as done.
    pub(crate) fn leave_gate(&self) {
        self.gates().for_each(LookupGate::leave);
    }

    /// The gates that a batch enters before its look-up: of checkpoints of several trainers, and of evaluations.
    fn gates(&self) -> impl Iterator<Item = &LookupGate> {
        let of_cuts = self.shared_cut().map(|shared| &shared.gate);
        of_cuts.into_iter().chain(self.evaluation_gate.as_deref())
    }

    fn shared_cut(&self) -> Option<&Arc<SharedCut>> {
        self.cut_point.as_ref()?.shared()
    }

    /// The current dense parameters, `[P]`; with `after`, the parameters as the round of this step leaves them. `None`: they are in the
    /// trainer's own model. Cancel safe.
    pub(crate) async fn pull_dense(&self, after: Option<u64>) -> Result<Option<Arc<Vec<f32>>>, Fault> {
        match self.dense() {
            Some(dense) => dense.pull(after).await.map(Some),
            None => Ok(None),
        }
    }

    /// The dense parameters after the last push, and the state of their optimizer if the model is saved with it (`with_state`). They come
    /// from the shared store if there is one, else from `tensors` and `optimizer` of the trainer's own model. Blocks.
    pub(crate) fn latest(
        &self,
        mut tensors: Vec<NamedTensor>,
        optimizer: Option<Vec<NamedTensor>>,
        with_state: bool,
    ) -> Result<(Vec<NamedTensor>, Option<Vec<NamedTensor>>), Fault> {
        let Some(flat) = block_on(self.pull_dense(None))? else { return Ok((tensors, optimizer)) };
        let mut rest = flat.as_slice();
        for tensor in &mut tensors {
            let Some((values, after)) = rest.split_at_checked(tensor.data.len()) else { break };
            tensor.data.copy_from_slice(values);
            rest = after;
        }
        let optimizer = match self.dense().filter(|_| with_state) {
            Some(dense) => Some(block_on(dense.optimizer(&tensors))?),
            None => None,
        };
        Ok((tensors, optimizer))
    }

    pub(crate) fn dense(&self) -> Option<&Arc<dyn DenseStore>> {
        self.membership.as_ref()?.dense.as_ref()
    }

    pub(crate) fn round(&self) -> Option<u32> {
        self.membership.as_ref()?.round
    }

    /// Set if the process takes part in rounds.
    pub(crate) fn rounds_end(&self) -> Option<&RoundsEnd> {
        self.membership.as_ref()?.rounds_end.as_ref()
    }

    /// Steps taken before this trainer started, and by how much each of its own steps raises that number.
    pub(crate) fn steps(&self) -> (u64, TrainerCount) {
        match (&self.membership, &self.cut_point) {
            (Some(membership), _) => membership.steps.clone(),
            (None, Some(cut_point)) => (cut_point.steps_before(), TrainerCount::default()),
            (None, None) => (self.steps_before, TrainerCount::default()),
        }
    }
}
