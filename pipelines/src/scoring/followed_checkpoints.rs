//! Evaluates the checkpoints of a run as they appear, in a process beside the run. A run of several processes cannot evaluate while it
//! trains, and it does not wait for these evaluations. Everything here blocks on the store.

use std::time::Instant;

use forebay_actors::{Fault, FaultKind};
use forebay_base::Backoff;
use forebay_connectors::staged::Folder;
use forebay_job::{EvaluationMetric, EvaluationOptions, Job, Paths};

use super::saved_model::LoadedCheckpoint;
use crate::checkpoint::{CheckpointFolder, DamagedCheckpoints};
use crate::columns::run_types::RowTypes;
use crate::context::Context;
use crate::evaluations::stopping;
use crate::metrics::evaluation_points::EvaluationPoint;
use crate::metrics::quality::Evaluation;
use crate::metrics::training_summary::TrainingSummary;
use crate::metrics::unknown_values::WarnedSlots;
use crate::model::Model;
use crate::model_folder::{FileEntry, MANIFEST, Manifest, check_place, probe_place};
use crate::{retries, sources};

/// The evaluations of the checkpoints in a folder.
pub struct CheckpointEvaluations {
    folder: CheckpointFolder,
    data: Paths,
    /// As `evaluation.patience` and `evaluation.min_delta`.
    patience: Option<(u32, f64)>,
    /// Where the best model is saved.
    best: Option<String>,
    /// The best model so far. `None` also once it was removed from its place.
    best_so_far: Option<BestSoFar>,
    /// The best model, until it is saved.
    unsaved: Option<Unsaved>,
    context: Context,
    /// The last checkpoint that was evaluated.
    last: Option<LoadedCheckpoint>,
    damaged: DamagedCheckpoints,
    /// Whether there are checkpoints and none is whole.
    waits_for_whole: bool,
    /// The types of the columns in the files that the run reads, for checkpoints that do not have them.
    types: Option<RowTypes>,
    warned: WarnedSlots,
    points: Vec<EvaluationPoint>,
}

/// The best model so far.
struct BestSoFar {
    point: EvaluationPoint,
    /// The files that are saved at its place.
    files: Vec<FileEntry>,
}

/// A model that could not be saved yet.
struct Unsaved {
    model: Model,
    waits: Backoff,
    /// When it is tried again.
    at: Instant,
}

/// The evaluation of a checkpoint.
pub struct EvaluatedCheckpoint {
    /// The number of the checkpoint.
    pub number: u64,
    /// How far the run was, and how good the model.
    pub point: EvaluationPoint,
    /// All metrics.
    pub evaluation: Evaluation,
    /// The metric that compares evaluations: `evaluation.metric` of the job.
    pub metric: EvaluationMetric,
    /// Whether no earlier evaluation was better or equal.
    pub is_best: bool,
    /// Why the model, which is the best so far, is not saved yet. The evaluations keep it in memory, and try again.
    pub not_saved: Option<Fault>,
    /// Whether as many evaluations in a row as the patience allows brought no improvement.
    pub is_enough: bool,
}

impl CheckpointEvaluations {
    /// Evaluates the checkpoints at `from`, a path or URL that need not be there yet, on the rows of `data`.
    ///
    /// # Errors
    /// A user fault if `from` is a file, or the folder of a model.
    pub fn open(from: &str, data: Paths, context: &Context) -> Result<Self, Fault> {
        let folder = CheckpointFolder::open(from, context)?;
        folder.check_place()?;
        let (damaged, context) = (DamagedCheckpoints::default(), context.clone());
        Ok(Self {
            folder,
            data,
            patience: None,
            best: None,
            best_so_far: None,
            unsaved: None,
            context,
            last: None,
            damaged,
            waits_for_whole: false,
            types: None,
            warned: WarnedSlots::default(),
            points: Vec::new(),
        })
    }

    /// Ends after `patience` evaluations in a row that did not improve the metric by at least `min_delta`. By default there is no end.
    #[must_use]
    pub fn with_patience(self, patience: u32, min_delta: f64) -> Self {
        Self { patience: Some((patience, min_delta)), ..self }
    }

    /// Saves the best model so far to a model folder, a path or URL, whole or not at all. Replaces the model there, except a better model
    /// of the same run, which another process kept, before this one or meanwhile. Once the best model was removed, saves the best one of
    /// the later evaluations. If it cannot be saved, [`next`](Self::next) tries again from time to time; at the end, call
    /// [`save_best`](Self::save_best).
    ///
    /// # Errors
    /// A user fault if something other than a model is there, or nothing can be written.
    pub fn keep_best_at(self, folder: &str) -> Result<Self, Fault> {
        check_place(folder, &self.context)?;
        probe_place(folder, &self.context)?;
        Ok(Self { best: Some(folder.to_owned()), ..self })
    }

    /// Evaluates the newest checkpoint, if it is newer than the last one that was evaluated, or of another run: then everything begins
    /// anew. `adapt` may change its job, such as the groups and slices of the evaluation. `stopped` is called often.
    ///
    /// A damaged checkpoint is logged and passed over, and if none is whole, there is none yet; one that the run removes meanwhile is
    /// passed over, too.
    ///
    /// # Errors
    /// Another version of the program wrote the checkpoint; the rows cannot be scored; the store fails. A fault of the kind
    /// [`FaultKind::Stopped`] once `stopped` returns true.
    pub fn next(
        &mut self,
        adapt: impl Fn(&mut Job) -> Result<(), Fault>,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<EvaluatedCheckpoint>, Fault> {
        self.save_best_if_due();
        let mut last = self.last;
        let newest = match Model::of_newest(&self.folder, &mut last, &mut self.damaged, 1, &self.context) {
            // The files may still be on their way, for instance from another machine.
            Err(fault) if fault.kind == FaultKind::Damaged => {
                if !std::mem::replace(&mut self.waits_for_whole, true) {
                    tracing::warn!("waiting for one that is whole: {fault}");
                }
                return Ok(None);
            }
            newest => newest?,
        };
        self.waits_for_whole = false;
        let (Some(mut model), Some(LoadedCheckpoint { run, number })) = (newest, last) else {
            self.last = last;
            return Ok(None);
        };
        if self.last.is_some_and(|before| before.run != run) {
            tracing::warn!(
                "checkpoint {number} is of another run: its evaluations start again, and so does the best model"
            );
            (self.points, self.types, self.unsaved, self.best_so_far) = (Vec::new(), None, None, None);
        }
        self.add_types(&mut model)?;
        adapt(&mut model.job)?;
        match self.look_at_best(&model, &adapt, &stopped) {
            // Earlier evaluations still count.
            Err(fault) if !self.points.is_empty() && fault.kind != FaultKind::Stopped => tracing::warn!("{fault}"),
            looked => looked?,
        }
        let (point, evaluation) = self.evaluated(&model, &stopped)?;
        // Without a value there is no best model and no improvement.
        if self.points.is_empty() && (self.patience.is_some() || self.best.is_some()) {
            stopping::check_first(&model.job.evaluation, &point)?;
        }
        self.last = last;
        self.points.push(point);
        let (patience, min_delta) = self.patience.unzip();
        let options =
            EvaluationOptions { patience, min_delta: min_delta.unwrap_or(0.0), ..model.job.evaluation.clone() };
        let compared: Vec<_> = self.best_so_far.iter().map(|best| best.point).chain([point]).collect();
        let is_best = stopping::best(&options, &compared) == Some(compared.len() - 1);
        let is_enough = stopping::stops_after(&options, &self.points);
        let not_saved = if is_best { self.keep(model, point).err() } else { None };
        let metric = options.metric;
        Ok(Some(EvaluatedCheckpoint { number, point, evaluation, metric, is_best, not_saved, is_enough }))
    }

    /// Saves a model, which is the best so far, if there is a place for it.
    fn keep(&mut self, model: Model, point: EvaluationPoint) -> Result<(), Fault> {
        self.best_so_far = Some(BestSoFar { point, files: Vec::new() });
        let waits = retries::waits();
        // The model also replaces an earlier one that could not be saved.
        self.unsaved = self.best.is_some().then(|| Unsaved { model, waits, at: Instant::now() });
        self.save_best()
    }

    /// Saves the best model so far, if there is one that could not be saved yet.
    ///
    /// # Errors
    /// Something other than a model is at its place; a fault of the disk or the store.
    pub fn save_best(&mut self) -> Result<(), Fault> {
        let (Some(unsaved), Some(best)) = (&mut self.unsaved, &self.best) else { return Ok(()) };
        let saved = unsaved.model.save(best.as_str()).map_err(|fault| {
            unsaved.at = Instant::now() + unsaved.waits.next_wait();
            fault.context("the best model so far cannot be saved")
        })?;
        if let Some(best) = &mut self.best_so_far {
            best.files = saved.files().cloned().collect();
        }
        self.unsaved = None;
        Ok(())
    }

    fn save_best_if_due(&mut self) {
        if self.unsaved.as_ref().is_none_or(|unsaved| Instant::now() < unsaved.at) {
            return;
        }
        match self.save_best() {
            Ok(()) => tracing::info!("the best model so far is saved now"),
            Err(fault) => tracing::debug!("{fault}"),
        }
    }

    fn evaluated(&self, model: &Model, stopped: impl Fn() -> bool) -> Result<(EvaluationPoint, Evaluation), Fault> {
        let evaluation = model.evaluate_unless(self.data.clone(), &self.warned, stopped)?;
        let (rows, steps, epochs) =
            model.training.as_ref().map_or((0, 0, 0), |trained| (trained.rows, trained.steps, trained.epochs));
        Ok((EvaluationPoint::new(rows, steps, u32::try_from(epochs).unwrap_or(u32::MAX), &evaluation), evaluation))
    }

    /// Looks whether the best model so far is still at its place. If another process has put a model of the same run there, before this
    /// process or meanwhile, evaluates that model: only a better one may replace it. `newest`: a model of the run.
    fn look_at_best(
        &mut self,
        newest: &Model,
        adapt: impl Fn(&mut Job) -> Result<(), Fault>,
        stopped: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        // A model that is not saved yet will be.
        let Some(place) = self.best.clone().filter(|_| self.unsaved.is_none()) else { return Ok(()) };
        let run = |training: Option<&TrainingSummary>| training.and_then(|training| training.run);
        let folder = Folder::from(place.as_str()).with_stores(&self.context.stores).open()?;
        let there = if folder.has(MANIFEST)? { Some(Manifest::read_in(&folder)?) } else { None };
        let there = there.filter(|there| {
            let of_run = run(there.training.as_ref());
            of_run.is_some() && of_run == run(newest.training.as_ref())
        });
        let Some(there) = there else {
            if self.best_so_far.take().is_some() {
                tracing::warn!(
                    "the best model so far is no longer at {place}: the best one of the evaluations from now on is saved there"
                );
            }
            return Ok(());
        };
        if self.best_so_far.as_ref().is_some_and(|best| there.files().eq(&best.files)) {
            return Ok(());
        }
        let mut kept = Model::load_weights(place.as_str(), 1, &self.context)?;
        adapt(&mut kept.job)?;
        let (point, _) = self.evaluated(&kept, stopped)?;
        tracing::info!("the best model of this run so far is at {place}: {point}");
        self.best_so_far = Some(BestSoFar { point, files: there.files().cloned().collect() });
        // The patience counts from this evaluation on. It does not count models that another process put there later.
        if self.points.is_empty() {
            self.points.push(point);
        }
        Ok(())
    }

    /// Adds the types of the columns in training to the model of a checkpoint that lacks them, because an earlier program wrote it or no
    /// process knew the types. The types come from the files that the run reads, so the rows to score are read like them.
    fn add_types(&mut self, model: &mut Model) -> Result<(), Fault> {
        if model.training.as_ref().is_none_or(|training| !training.types.is_empty()) {
            return Ok(());
        }
        if self.types.is_none() {
            let files = match &model.job.data.train {
                Some(train) => sources::check(&model.job, &self.context, train)
                    .map_err(|fault| fault.context("the types of the columns in training are not known"))?,
                None => None,
            };
            self.types = Some(files.map_or_else(RowTypes::default, |files| files.rows));
        }
        if let (Some(training), Some(RowTypes { types, lists })) = (&mut model.training, self.types.clone()) {
            (training.types, training.lists) = (types.0, lists);
        }
        Ok(())
    }
}
