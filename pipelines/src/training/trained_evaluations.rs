//! The end of a run that evaluates while it trains: the evaluation after the last row, and the model that is saved.

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::Folder;
use forebay_job::RunEnd;

use crate::evaluations::stopping;
use crate::metrics::evaluation_points::{EvaluationHistory, EvaluationPoint};
use crate::metrics::quality::Evaluation;
use crate::metrics::scored_rows::ScoredRows;
use crate::metrics::training_summary::TrainingSummary;
use crate::model_folder::Manifest;
use crate::training::Trained;

impl Trained {
    /// The evaluations while it trained; `None` if the job has no `evaluation.every`.
    pub fn evaluations(&self) -> Option<EvaluationHistory> {
        self.evaluations.as_ref().map(|evaluations| evaluations.history())
    }

    /// Whether [`save`](Self::save) saves the best model, and not the last one.
    pub fn keeps_best(&self) -> bool {
        self.model.job.keeps_best()
    }

    /// Whether the job keeps the best model, but [`save`](Self::save) has saved another one, because the best was gone or could not be
    /// kept.
    pub fn lost_best(&self) -> bool {
        let Some(evaluations) = self.evaluations.as_ref().filter(|_| self.keeps_best()) else { return false };
        let saved = self.best_before_last();
        let state = evaluations.shared.lock();
        let best = stopping::best(&self.model.job.evaluation, &state.points);
        let saved = saved.or(state.last().filter(|_| state.last_is_after(self.training.rows)));
        best.is_some() && best != saved
    }

    /// Evaluates the model after the last row on `data.eval`, unless that was done. Calls `show` as
    /// [`Model::evaluate_showing`](crate::Model::evaluate_showing) does. Blocks. `None`: the job has no `data.eval`.
    ///
    /// # Errors
    /// As [`Model::evaluate`](crate::Model::evaluate).
    pub fn evaluate_last(&self, mut show: impl FnMut(ScoredRows)) -> Result<Option<Evaluation>, Fault> {
        let Some(paths) = &self.model.job.data.eval else { return Ok(None) };
        let warned = self.evaluations.as_ref().map(|evaluations| evaluations.shared.warned.clone());
        let evaluate = || {
            let evaluated = self.model.evaluate_paths(paths, warned.unwrap_or_default(), Some(&mut show));
            evaluated.map(|(evaluation, _)| evaluation)
        };
        let Some(evaluations) = &self.evaluations else { return evaluate().map(Some) };
        let staleness = self.model.job.train.staleness;
        // In an exact order, the end of the run also pushes the gradients that were kept at the last evaluation.
        let complete = !(staleness.exactly && staleness.batches > 0);
        let (done, at_last) = {
            let mut state = evaluations.shared.lock();
            let done = state.ended || state.last_is_after(self.training.rows) && complete;
            // The model of the last evaluation is this one.
            let last = state.last().filter(|_| done && !state.taken);
            state.there.extend(last);
            (done, state.at_last.clone())
        };
        if let (true, Some((_, evaluation))) = (done, at_last) {
            return Ok(Some(evaluation));
        }
        let evaluation = evaluate()?;
        if done {
            // An earlier process made the evaluation, and its checkpoint has only the point.
            let mut state = evaluations.shared.lock();
            state.at_last = state.last().map(|at| (at, evaluation.clone()));
        } else {
            let TrainingSummary { rows, steps, epochs, .. } = self.training;
            let point = EvaluationPoint::new(rows, steps, epochs as u32, &evaluation);
            let (at, _) = evaluations.shared.add(point, evaluation.clone());
            let mut state = evaluations.shared.lock();
            state.ended = true;
            state.there.insert(at);
        }
        Ok(Some(evaluation))
    }

    /// The index of the evaluation whose model [`save`](Self::save) saves. `None`: the model after the last row.
    fn best_before_last(&self) -> Option<usize> {
        let evaluations = self.evaluations.as_ref().filter(|_| self.keeps_best())?;
        let state = evaluations.shared.lock();
        let best = state.best(&self.model.job)?;
        (!state.last_is_after(self.training.rows) || Some(best) < state.last()).then_some(best)
    }

    /// Saves the model to a folder, whole or not at all: the best one if the job keeps it (see [`keeps_best`](Self::keeps_best)), else
    /// the last one. Call [`evaluate_last`](Self::evaluate_last) before, so that the last one counts. Then removes the best models
    /// that were kept beside `output.model`, unless the run was drained and continues from a checkpoint that may need them. If the best
    /// model is damaged, or another program has removed it, warns, and saves an earlier best one, or the last one;
    /// [`lost_best`](Self::lost_best) is true then. Blocks. Returns the manifest, and the evaluation of the model if this process made it.
    ///
    /// # Errors
    /// As [`Model::save`](crate::Model::save). The best model is still kept then.
    pub fn save(&self, folder: impl Into<Folder>) -> Result<(Manifest, Option<Evaluation>), Fault> {
        let folder = folder.into();
        while let Some(at) = self.best_before_last() {
            let Some(evaluations) = &self.evaluations else {
                return Err(Fault::internal("a best model without evaluations"));
            };
            let manifest = {
                let mut kept = evaluations.shared.best();
                let Some(kept) = kept.as_mut() else {
                    return Err(Fault::internal("the folder of the best model is not known"));
                };
                if let Some(lost) = kept.lost(at)? {
                    let instead = self.without(at);
                    tracing::warn!(
                        "the best model, of evaluation {}, is not at {lost} any more: another program has replaced or removed it. \
                         {instead}. Give each run an output.model of its own",
                        at + 1
                    );
                    continue;
                }
                match kept.verify(at) {
                    Err(fault) if fault.domain == Domain::User => {
                        let instead = match kept.has_copy(at) {
                            true => "Its copy at output.model is used".to_owned(),
                            false => self.without(at),
                        };
                        tracing::warn!("the best model, of evaluation {}, cannot be used: {fault}. {instead}", at + 1);
                        continue;
                    }
                    verified => verified?,
                }
                kept.copy(at, &folder)?
            };
            let evaluation = {
                let state = evaluations.shared.lock();
                let of_best = state.at_best.as_ref().filter(|(best, _)| *best == at);
                of_best.map(|(_, evaluation)| evaluation.clone())
            };
            self.forget_unneeded();
            return Ok((manifest, evaluation));
        }
        let manifest = self.model.save(folder)?;
        self.forget_unneeded();
        let last = self.evaluations.as_ref().and_then(|evaluations| evaluations.shared.lock().at_last.clone());
        Ok((manifest, last.map(|(_, evaluation)| evaluation)))
    }

    /// From here on [`save`](Self::save) saves the model after the last row: the best one cannot be read. Returns the folder of the best
    /// one, which stays: it may be readable later. Returns `None`, and changes nothing, if [`save`](Self::save) would save the last one
    /// anyway.
    pub fn give_best_up(&self) -> Option<String> {
        let (at, evaluations) = (self.best_before_last()?, self.evaluations.as_ref()?);
        let folder = evaluations.shared.best().as_ref().and_then(|kept| kept.folder_of(at))?;
        let mut state = evaluations.shared.lock();
        state.taken = true;
        state.there.clear();
        Some(folder)
    }

    /// The model of evaluation `at` is gone. Returns, as a sentence, which one is saved in its place.
    fn without(&self, at: usize) -> String {
        if let Some(evaluations) = &self.evaluations {
            let mut state = evaluations.shared.lock();
            state.taken = true;
            state.there.remove(&at);
        }
        if let Some(next) = self.best_before_last() {
            return format!("The best model that is left, of evaluation {}, is saved", next + 1);
        }
        if let Some(evaluations) = &self.evaluations {
            evaluations.shared.lock().there.clear();
        }
        "The model after the last row is saved".to_owned()
    }

    /// Removes the best models that were kept beside `output.model`, unless another program put them there, or a checkpoint needs them.
    fn forget_unneeded(&self) {
        let taken = self.evaluations.as_ref().is_some_and(|evaluations| evaluations.shared.lock().taken);
        let goes_on = self.training.ended == RunEnd::Drained && self.model.job.checkpoint.to.is_some();
        if !taken && !goes_on {
            self.forget_best();
        }
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
