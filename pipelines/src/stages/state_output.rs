//! Where the state of a dense model goes: into checkpoints while it trains, and into the run's results at the end. It also reduces the
//! learning rate. The `train` stages with and without transfers apart share it.

use std::sync::Arc;

use forebay_actors::{BarrierNumber, Fault, StageCx};
use forebay_models::{DenseModel, ModelError, NamedTensor};

use crate::checkpointer::cut::CutPoint;
use crate::evaluations::Evaluations;
use crate::fault::model_fault;

/// What a `train` stage leaves in the run's results beside the parameters: the state of the dense optimizer, as
/// [`DenseModel::optimizer`] gives it.
pub(crate) struct OptimizerState(pub(crate) Vec<NamedTensor>);

/// Where a `train` stage puts the state of its model. The default makes no checkpoints and leaves the parameters alone.
#[derive(Clone, Default)]
pub(crate) struct StateOutput {
    /// Takes the state at each barrier.
    pub(crate) cut_point: Option<Arc<CutPoint>>,
    /// Takes the parameters at the barriers of evaluations, and reduces the learning rate.
    pub(crate) evaluations: Option<Arc<Evaluations>>,
    /// Whether the stage also leaves the [`OptimizerState`].
    pub(crate) leaves_optimizer: bool,
}

impl StateOutput {
    /// Fails before the first batch if the run makes checkpoints and the model has no state to save.
    pub(super) fn check(&self, model: Option<&dyn DenseModel>) -> Result<(), Fault> {
        if let (Some(model), Some(_)) = (model, &self.cut_point) {
            model.state().map_err(model_fault)?;
        }
        Ok(())
    }

    /// Before a step, and before the first batch: tells the model how far its learning rate is reduced, if the job reduces it.
    ///
    /// # Errors
    /// The model cannot reduce it.
    pub(super) fn reduce_lr(&self, model: &mut dyn DenseModel) -> Result<(), ModelError> {
        let reduction = self.evaluations.as_ref().and_then(|evaluations| evaluations.lr_reduction());
        reduction.map_or(Ok(()), |reduction| model.reduce_lr(reduction))
    }

    /// Keeps the state for the cut at this barrier.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn at_barrier(&self, model: Option<&dyn DenseModel>, barrier: BarrierNumber) -> Result<(), Fault> {
        if let (Some(model), Some(cut_point)) = (model, &self.cut_point) {
            cut_point.model(barrier, model.state().map_err(model_fault)?);
        }
        if let (Some(model), Some(evaluations)) = (model, &self.evaluations) {
            evaluations.at_barrier(model);
        }
        Ok(())
    }

    /// Leaves the parameters in the run's results, and the state of their optimizer if it is asked for. A checkpoint of the whole run
    /// gets the state as at a barrier.
    pub(super) fn leave(&self, model: &dyn DenseModel, cx: &StageCx) {
        cx.leave(model.parameters());
        if self.leaves_optimizer {
            cx.leave(OptimizerState(model.optimizer()));
        }
        // The state is made only if a checkpoint gets it: it is as large as the model and its optimizer.
        if let Some(cut_point) = &self.cut_point
            && let Ok(state) = model.state()
        {
            cut_point.last_model(state);
        }
    }
}
