//! The end of a run that evaluates while it trains: the evaluation after the last row, and the model that is saved.

use forebay_actors::Fault;

use super::points::{EvaluationHistory, EvaluationPoint};
use crate::model_folder::Manifest;
use crate::quality::Evaluation;
use crate::training::Trained;
use crate::training_summary::TrainingSummary;

impl Trained {
    /// The evaluations while it trained; `None` if the job has no `evaluation.every`.
    pub fn evaluations(&self) -> Option<EvaluationHistory> {
        self.evaluations.as_ref().map(|evaluations| evaluations.history())
    }

    /// Whether [`save`](Self::save) saves the best model, and not the last one.
    pub fn keeps_best(&self) -> bool {
        self.model.job.keeps_best()
    }

    /// Whether [`save`](Self::save) has saved the model after the last row because the best one was gone.
    pub fn lost_best(&self) -> bool {
        self.evaluations.as_ref().is_some_and(|evaluations| evaluations.shared.lock().lost_best)
    }

    /// Evaluates the model after the last row on `data.eval`, unless that was done. Blocks. `None`: the job has no `data.eval`.
    ///
    /// # Errors
    /// As [`Model::evaluate`](crate::Model::evaluate).
    pub fn evaluate_last(&self) -> Result<Option<Evaluation>, Fault> {
        let Some(paths) = &self.model.job.data.eval else { return Ok(None) };
        let evaluate = || self.model.evaluate(paths.clone()).map(|(evaluation, _)| evaluation);
        let Some(evaluations) = &self.evaluations else { return evaluate().map(Some) };
        let staleness = self.model.job.train.staleness;
        // In an exact order, the end of the run also pushes the gradients that were kept at the last evaluation.
        let complete = !(staleness.exactly && staleness.batches > 0);
        let (done, at_last) = {
            let state = evaluations.shared.lock();
            let same = state.points.last().is_some_and(|point| point.rows == self.training.rows);
            (state.ended || same && complete, state.at_last.clone())
        };
        if let (true, Some((_, evaluation))) = (done, at_last) {
            return Ok(Some(evaluation));
        }
        let evaluation = evaluate()?;
        if done {
            // An earlier process made the evaluation, and its checkpoint has no more than the point.
            let mut state = evaluations.shared.lock();
            state.at_last = state.points.len().checked_sub(1).map(|at| (at, evaluation.clone()));
        } else {
            let TrainingSummary { rows, steps, epochs, .. } = self.training;
            let point = EvaluationPoint::new(rows, steps, epochs as u32, &evaluation);
            evaluations.shared.add(point, evaluation.clone());
            evaluations.shared.lock().ended = true;
        }
        Ok(Some(evaluation))
    }

    /// The index of the evaluation whose model [`save`](Self::save) saves. `None`: the model after the last row.
    fn best_before_last(&self) -> Option<usize> {
        let evaluations = self.evaluations.as_ref().filter(|_| self.keeps_best())?;
        let state = evaluations.shared.lock();
        let best = state.best(&self.model.job)?;
        let of_last = state.points.last().is_some_and(|point| point.rows == self.training.rows);
        (!of_last || best + 1 < state.points.len()).then_some(best)
    }

    /// Saves the model to a folder, whole or not at all: the best one if the job keeps it (see [`keeps_best`](Self::keeps_best)), else
    /// the last one. Call [`evaluate_last`](Self::evaluate_last) before, so that the last one counts. Then removes the best models
    /// that were kept beside `output.model`. If another program has removed the best model, saves the last one, warns, and
    /// [`lost_best`](Self::lost_best) is true. Blocks. Returns the manifest, and the evaluation of the model if this process made it.
    ///
    /// # Errors
    /// As [`Model::save`](crate::Model::save). The best model is still kept then.
    pub fn save(&self, folder: &str) -> Result<(Manifest, Option<Evaluation>), Fault> {
        let Some(at) = self.best_before_last() else {
            let manifest = self.model.save(folder)?;
            // What is beside output.model after that is of another program.
            if !self.lost_best() {
                self.forget_best();
            }
            let last = self.evaluations.as_ref().and_then(|evaluations| evaluations.shared.lock().at_last.clone());
            return Ok((manifest, last.map(|(_, evaluation)| evaluation)));
        };
        let Some(evaluations) = &self.evaluations else {
            return Err(Fault::internal("a best model without evaluations"));
        };
        let (manifest, evaluation) = {
            let mut state = evaluations.shared.lock();
            let kept = evaluations.shared.best();
            let Some(kept) = kept.as_ref() else {
                return Err(Fault::internal("the folder of the best model is not known"));
            };
            if let Some(lost) = kept.lost(at)? {
                tracing::warn!(
                    "the best model, of evaluation {}, is not at {lost} any more: another program has replaced or removed it. The model \
                     after the last row is saved. Give each run an output.model of its own",
                    at + 1
                );
                (state.kept_from, state.lost_best) = (state.points.len(), true);
                let last = state.at_last.as_ref().map(|(_, evaluation)| evaluation.clone());
                return self.model.save(folder).map(|manifest| (manifest, last));
            }
            let evaluation = state.at_best.as_ref().filter(|(best, _)| *best == at);
            (kept.copy(at, folder)?, evaluation.map(|(_, evaluation)| evaluation.clone()))
        };
        self.forget_best();
        Ok((manifest, evaluation))
    }

    /// Removes the best models that were kept beside `output.model`.
    pub fn forget_best(&self) {
        let Some(evaluations) = &self.evaluations else { return };
        let removed = evaluations.shared.best().as_mut().map_or(Ok(()), |best| best.remove());
        if let Err(fault) = removed {
            tracing::warn!("the best model that was kept beside output.model stays: {fault}");
        }
    }
}
