//! The resources of a training run: the stages share them, and some outlive the pipeline.

use std::sync::Arc;

use forebay_actors::{Fault, Host, ProcessWait, Report};
use forebay_base::memory_limit;
use forebay_batches::Staleness;
use forebay_connectors::Format;
use forebay_job::{DenseAt, FeatureScales, InitialBias, Job, RunEnd};
use forebay_ps::dense::FirstValue;
use forebay_ps::remote::PsReplies;
use forebay_ps::{TableClient, TableConfig, start_table};

use super::preflight;
use super::run_report::{AllTrainers, RunReport};
use crate::checkpoint::{
    BatchOrder, CheckpointFolder, CheckpointManifest, MadeCheckpoints, ModelState, Restored, TrainPosition,
    kept_gradients, model_place, read_metrics,
};
use crate::checkpointer::cut::{CutPoint, Shards};
use crate::checkpointer::cut_client::CutLeader;
use crate::checkpointer::writer::Checkpoints;
use crate::cluster::departure::Departure;
use crate::cluster::{ClusterSession, RunPhase, job_digest};
use crate::columns::run_types::{RowTypes, RunTypes};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;
use crate::dense_model::dense_memory::DenseMemory;
use crate::dense_model::dense_threads::DenseThreads;
use crate::dense_model::job_model::{JobModel, check_backend};
use crate::evaluations::{AwaitEvaluation, Evaluations, LearningRates};
use crate::extension::source_progress::SourceProgress;
use crate::metrics::evaluation_points::EvaluationPoint;
use crate::metrics::process_report::ProcessReport;
use crate::metrics::progress::{Progress, Snapshot};
use crate::metrics::slots_seen::SlotsSeen;
use crate::metrics::training_summary::TrainingSummary;
use crate::order::exact_order::ExactOrder;
use crate::order::look_ahead::LookAhead;
use crate::order::step_order::StepOrder;
use crate::predecessor::Predecessor;
use crate::sources;
use crate::stages::participation::Participation;
use crate::trainer_count::TrainerCount;

/// The table, the model and the counters of one training run.
pub(crate) struct Resources {
    /// The job, with the scales of dense features once they are decided.
    pub(crate) job: Job,
    /// The digest of the job as it was given.
    pub(crate) digest: String,
    pub(crate) context: Context,
    pub(crate) model: JobModel,
    pub(crate) host: Host,
    pub(crate) table: TableClient,
    pub(crate) progress: Progress,
    pub(crate) staleness: Staleness,
    /// Set if look-ups and pushes have an exact order.
    pub(crate) exact: Option<Arc<ExactOrder>>,
    /// Set if the trainer is in step with others, without an exact order.
    pub(crate) step_order: Option<Arc<StepOrder>>,
    /// Set if rows are asked for ahead of the gradients of earlier batches.
    pub(crate) look_ahead: Option<Arc<LookAhead>>,
    pub(crate) participation: Participation,
    pub(crate) dense_threads: DenseThreads,
    /// Set if the model is evaluated while it is trained.
    pub(crate) evaluations: Option<Arc<Evaluations>>,
    /// Set if another trainer evaluates it.
    evaluated_elsewhere: Option<AwaitEvaluation>,
    /// The state that the dense model continues from, until its stage is wired.
    pub(crate) restored: Option<ModelState>,
    /// The biases of a new model's logits.
    pub(crate) initial_bias: Option<InitialBias>,
    /// Steps of the model at `train.from`.
    pub(crate) steps_before: u64,
    /// The rows and steps of all trainers before this process began.
    trained_before: AllTrainers,
    /// The whole epochs of the checkpoint that the run continues from. A run that is asked to shut down before it reads a row has only
    /// these.
    epochs_before: u64,
    /// The types of the feature columns.
    pub(crate) types: RunTypes,
    /// The types of the rows before the checkpoint that the run continues from: no row may come after it.
    types_before: Option<RowTypes>,
    /// The format of the files that this process reads.
    pub(crate) format: Option<Format>,
    /// The checkpoints to make.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// How far the source of this process has read.
    pub(crate) source: SourceProgress,
    /// What this process knows of the checkpoints of the run.
    pub(crate) made: MadeCheckpoints,
    /// Set if this process is a member of a cluster.
    pub(crate) session: Option<ClusterSession>,
    /// Whether the places of all that the run writes were checked already.
    pub(crate) outputs_are_checked: bool,
    /// Whether the run may have trained before, so that a disk or a store that cannot be reached does not end it.
    pub(crate) goes_on: bool,
    /// Set if it may leave while the run goes on.
    pub(crate) departure: Option<Departure>,
}

impl Resources {
    /// The resources of a training in one process, with a new table.
    pub(crate) fn alone(job: Job, context: Context) -> Result<Self, Fault> {
        Self::new(job, context, |host, job, config| {
            start_table(host, config.clone(), job.shards())
                .map_err(|e| Fault::user("the table cannot be made").because(e))
        })
    }

    /// The resources of a training over the table that `table` starts or connects to.
    pub(crate) fn new(
        job: Job,
        context: Context,
        table: impl FnOnce(&Host, &Job, &TableConfig) -> Result<TableClient, Fault>,
    ) -> Result<Self, Fault> {
        job.check()?;
        context.registry.check(&job)?;
        check_backend(&job)?;
        let model = JobModel::of(&job, &context.registry)?;
        let host = Host::start("ps")?;
        let table = table(&host, &job, &model.table_config(&job))?;
        let progress = Progress::default();
        progress.count_slots(SlotsSeen::new(&job.columns));
        Ok(Self {
            staleness: Staleness::new(job.train.staleness.batches),
            exact: ExactOrder::of(&job, 0),
            step_order: StepOrder::of(&job),
            look_ahead: None,
            dense_threads: DenseThreads::default(),
            evaluations: Evaluations::of(&job, &context, None),
            evaluated_elsewhere: None,
            digest: job_digest(&job),
            job,
            context,
            model,
            host,
            table,
            progress,
            participation: Participation::default(),
            source: SourceProgress::default(),
            restored: None,
            initial_bias: None,
            steps_before: 0,
            trained_before: AllTrainers::default(),
            epochs_before: 0,
            types: RunTypes::default(),
            types_before: None,
            format: None,
            checkpoints: None,
            made: MadeCheckpoints::default(),
            session: None,
            outputs_are_checked: false,
            goes_on: false,
            departure: None,
        })
    }

    /// Gives dense features the scales that were decided for them. Must be called before other parts of the run copy the job.
    ///
    /// # Errors
    /// A user fault if the job does not fit together with them.
    pub(crate) fn set_scales(&mut self, scales: &FeatureScales) -> Result<(), Fault> {
        self.job.set_open_scales(scales)?;
        self.make_evaluations();
        Ok(())
    }

    /// Another trainer evaluates the model.
    pub(crate) fn evaluated_elsewhere(&mut self, elsewhere: AwaitEvaluation) {
        self.evaluated_elsewhere = Some(elsewhere);
        self.make_evaluations();
    }

    fn make_evaluations(&mut self) {
        self.evaluations = Evaluations::of(&self.job, &self.context, self.evaluated_elsewhere.clone());
    }

    /// Makes a run with a new model begin with what a sample of the rows decided.
    ///
    /// # Errors
    /// As [`set_scales`](Self::set_scales).
    pub(crate) fn begin_with(&mut self, decided: &SampledSettings) -> Result<(), Fault> {
        self.initial_bias = decided.initial_bias.clone();
        self.set_scales(&decided.scales)
    }

    /// The biases that a new model begins with: the name of each tensor, its place among the dense values, and its value.
    pub(crate) fn first_biases(&self) -> Vec<(String, FirstValue)> {
        let (Some(spec), Some(InitialBias(initial))) = (&self.model.spec, &self.initial_bias) else {
            return Vec::new();
        };
        let set = spec.output_biases().into_iter().zip(initial).filter(|(_, value)| **value != 0.0);
        set.map(|((name, place), value)| (name, FirstValue { place, value: *value as f32 })).collect()
    }

    /// Makes the run continue from a model that this process loads: its rows if the shards are here, its dense parameters if they are in
    /// the trainer. The features have their [scales](Self::set_scales) already. Blocks on the store.
    pub(crate) fn continue_from(&mut self, predecessor: &Predecessor) -> Result<(), Fault> {
        let placement = &self.job.placement;
        if placement.ps == 0 {
            predecessor.load_rows(&self.table)?;
        }
        if placement.dense() == DenseAt::Trainer {
            self.restored = Some(predecessor.dense()?);
        }
        self.steps_before = predecessor.steps();
        self.trained_before = AllTrainers { rows: 0, steps: self.steps_before };
        let types = predecessor.types();
        types.tell_lists(&mut self.job.columns);
        self.types.continues_from(types);
        self.progress.goes_on_after(0, self.steps_before);
        self.progress.has_predecessor_of(self.steps_before);
        if placement.is_one_process() {
            self.participation = Participation::alone_after(self.steps_before);
        }
        Ok(())
    }

    /// Where a run without a checkpoint begins.
    pub(crate) fn at_start(&mut self) -> Restored {
        let steps = self.steps_before;
        let position = TrainPosition { steps, steps_before: steps, ..TrainPosition::default() };
        Restored { position, model: self.restored.take(), ..Restored::default() }
    }

    /// Adds checkpoints to the run, which continues from what was restored. With several trainers, the first one makes them. `start` is a
    /// random number that all attempts of this start of the run have. Blocks on the store.
    pub(crate) fn add_checkpoints(
        &mut self,
        folder: CheckpointFolder,
        start: u64,
        restored: Restored,
        order: BatchOrder,
        shards: Shards,
        leader: Option<CutLeader>,
    ) -> Result<(), Fault> {
        let Restored { mut position, model, kept, metrics, row_types, columns, from } = restored;
        if let Some(columns) = columns {
            self.set_scales(&columns.scales_for(&self.job.columns))?;
        }
        if position.run == 0 {
            position.run = start;
        }
        let author = folder.author(position.run, start)?;
        if let Some(evaluations) = &self.evaluations {
            evaluations.restore(position.evaluations.clone(), position.rows, &self.learning_rates())?;
        }
        if let Some(exact) = &self.exact {
            let row_dim = self.table.row_dim();
            exact.restore(kept_gradients::of_trainer(from.as_ref().unwrap_or(&folder), &kept, exact.rank(), row_dim)?);
        }
        let several = self.job.placement.trainers > 1;
        if let Some(entry) = &metrics {
            self.progress.continues_from(read_metrics(from.as_ref().unwrap_or(&folder), entry)?);
        }
        // With several trainers, each counts its own rows and steps, but the position counts the rows and steps of all.
        if !several || metrics.is_none() {
            self.progress.goes_on_after(position.rows, position.steps);
        }
        self.steps_before = position.steps_before;
        self.progress.has_predecessor_of(self.steps_before);
        self.trained_before = AllTrainers { rows: position.rows, steps: position.steps };
        self.epochs_before = position.whole_epochs();
        if let Some(types) = &row_types {
            types.tell_lists(&mut self.job.columns);
        }
        self.types_before = row_types;
        // In step, each trainer counts the steps of all as its own, but only its own rows.
        let trainers = several.then(|| match self.job.round() {
            Some(trainers) => TrainerCount::new(u64::from(trainers)),
            None => self.participation.steps().1,
        });
        let progress = self.progress.clone();
        let (cut_point, cuts) = CutPoint::new(position, order, shards, trainers, progress);
        self.restored = model;
        self.participation = std::mem::take(&mut self.participation).with_checkpoints(Arc::clone(&cut_point));
        let (job, config) = (self.job.clone(), self.table.config().clone());
        let (evaluations, types, made) = (self.evaluations.clone(), self.types.clone(), self.made.clone());
        let evaluated = evaluations.clone();
        let is_evaluating = Arc::new(move || evaluated.iter().any(|evaluations| evaluations.is_under_way()));
        let published = Box::new(move |manifest: &CheckpointManifest| {
            evaluations.iter().for_each(|evaluations| evaluations.checkpointed(&manifest.position.evaluations));
        });
        let model = model_place(&job, &self.context)?;
        self.checkpoints = Some(Checkpoints {
            folder,
            author,
            job,
            config,
            cut_point,
            cuts,
            leader,
            published,
            is_evaluating,
            types,
            model,
            made,
        });
        Ok(())
    }

    /// Fails if the dense parameters take more memory than this process may have. May block on the store.
    pub(crate) fn check_memory(&self) -> Result<(), Fault> {
        let (Some(spec), Some(limit)) = (&self.model.spec, memory_limit()) else { return Ok(()) };
        let rows = || sources::train_rows(&self.job, &self.context);
        DenseMemory::of(&self.job, spec).check(&self.job, spec, limit, rows)
    }

    /// The checks of a run in one process that need only the job. The run makes them before it loads a model or a checkpoint, which may
    /// take minutes. Blocks on the stores.
    pub(crate) fn check_before_loading(&self) -> Result<(), Fault> {
        self.check_memory()?;
        preflight::check_before_loading(&self.job, &self.context, false)
    }

    /// The checks of the process that saves the model. Blocks on the stores.
    pub(crate) fn check_before_start(&self) -> Result<(), Fault> {
        let (job, context) = (&self.job, &self.context);
        if !self.outputs_are_checked {
            preflight::check_outputs(job, context, self.goes_on)?;
        }
        if let Some(eval) = preflight::check_eval(job, context, self.goes_on)? {
            self.types.evaluated_on(eval);
        }
        if let Some(before) = &self.types_before {
            self.types.add(job, before.clone())?;
        }
        if job.placement.is_one_process() {
            return Ok(());
        }
        // Other processes parse the rows.
        let Some(paths) = &job.data.train else { return Ok(()) };
        match sources::check(job, context, paths) {
            Ok(Some(types)) => self.types.add(job, types.rows),
            Ok(None) => Ok(()),
            Err(fault) => {
                tracing::warn!(
                    "this trainer cannot open data.train, so the model is saved without the types of its columns, and later rows of \
                     other types will not be noticed: {fault}"
                );
                Ok(())
            }
        }
    }

    /// The role and rank of this process; `train` if it runs alone.
    pub(crate) fn process_name(&self) -> String {
        self.session.as_ref().map_or_else(|| "train".to_owned(), ClusterSession::name)
    }

    /// The report of the run: of this process, and of the `others` in a cluster.
    pub(crate) fn run_report(&self, mut report: Report, others: Vec<ProcessReport>) -> RunReport {
        if let Some(lookup) = report.stages.iter_mut().find(|stage| stage.name == "lookup") {
            for PsReplies { ps, count, total, round_trip } in self.table.replies() {
                lookup.by_process.insert(ps, ProcessWait { count, total, round_trip });
            }
        }
        let process = self.process_name();
        let progress = self.progress.snapshot();
        let run = RunReport::new(ProcessReport { process, report }, others, &self.job, progress.device_time());
        RunReport { all_trainers: self.all_trainers(&progress, &run), trained_before: self.trained_before, ..run }
    }

    /// The rows and steps of all trainers. A single trainer counts its own steps. While a run goes on, only the meters tell the steps of
    /// the other trainers, and they count a batch twice that is computed again after the loss of a reader. At the end the coordinator has
    /// the exact counts.
    fn all_trainers(&self, progress: &Snapshot, run: &RunReport) -> AllTrainers {
        if self.job.placement.trainers <= 1 {
            return AllTrainers { rows: progress.rows, steps: progress.steps };
        }
        if let Some(status) = self.session.as_ref().map(ClusterSession::status)
            && matches!(status.phase, RunPhase::Finished | RunPhase::Over)
        {
            let TrainingSummary { rows, steps, .. } = status.summary(&self.job, self.steps_before);
            return AllTrainers { rows, steps };
        }
        let (AllTrainers { rows, steps }, (rows_since, batches)) = (self.trained_before, run.trained());
        AllTrainers { rows: rows + rows_since, steps: steps + batches / self.job.in_step() as u64 }
    }

    /// What the run has trained, once it has ended.
    pub(crate) fn summary(&self) -> TrainingSummary {
        let summary = match &self.session {
            Some(session) => session.status().summary(&self.job, self.steps_before),
            None => TrainingSummary::alone(&self.job, &self.progress.snapshot(), &self.source, self.format.is_none()),
        };
        let epochs = summary.epochs.max(self.epochs_before);
        let mut summary = TrainingSummary { format: self.format, epochs, ..summary };
        if let Some(RowTypes { types, lists }) = self.types.get() {
            (summary.types, summary.lists) = (types.0, lists);
        }
        let history = self.evaluations.as_ref().map(|evaluations| evaluations.history());
        if let Some(history) = history.filter(|history| history.stopped_early) {
            summary.ended = RunEnd::StoppedEarly;
            // In a cluster, the coordinator counts the rows of whole windows.
            if let Some(EvaluationPoint { rows, steps, epochs, .. }) = history.points.last() {
                (summary.rows, summary.steps, summary.epochs) = (*rows, *steps, u64::from(*epochs));
            }
        }
        summary
    }

    /// Warns if the program's own source made fewer passes over its rows than the job asks for.
    pub(crate) fn warn_of_passes(&self, training: &TrainingSummary) {
        let (epochs, asked) = (training.epochs, self.job.data.epochs as u64);
        if self.session.is_none() && self.format.is_none() && training.ended == RunEnd::Complete && epochs < asked {
            tracing::warn!(
                "data.epochs is {asked}, but the source made {} over its rows: a StreamSource makes one; another source repeats its rows \
                 as request.options.epochs says, and counts the passes in Lineage::epoch",
                if epochs == 1 { "1 pass".to_owned() } else { format!("{epochs} passes") },
            );
        }
    }

    /// The learning rates that this process can reduce.
    pub(crate) fn learning_rates(&self) -> LearningRates {
        let dense = self.participation.dense().cloned();
        LearningRates { table: self.table.clone(), dense, look_ahead: self.look_ahead.clone() }
    }
}
