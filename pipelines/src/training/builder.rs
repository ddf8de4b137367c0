//! [`Training::builder`]: a job, and the parts that a program adds to it.

use std::fmt;

use forebay_actors::{Fault, FaultKind, Plan, Source, Stage};
use forebay_base::nearest;
use forebay_batches::{ExampleBatch, TrainBatch};
use forebay_connectors::Rows;
use forebay_job::{DenseAt, Job, ModelKind, OwnStage};

use super::resources::Resources;
use super::wiring;
use crate::checkpoint::{self, BatchOrder, CheckpointFolder, DamagedCheckpoints, Found};
use crate::checkpointer::cut::Shards;
use crate::context::Context;
use crate::dense_model::dense_memory::DenseMemory;
use crate::extension::own_model::OwnModel;
use crate::extension::registry::{Read, Registry, read_own};
use crate::predecessor::Predecessor;
use crate::sampling::row_sample;
use crate::sources;
use crate::training::{RunningTraining, Training};

/// Wires a run in this process. [`Registry`] says what a custom stage may do. The trained model keeps the stages and evaluates
/// with them.
#[must_use = "a builder does nothing until it is built or run"]
pub struct TrainingBuilder {
    job: Job,
    context: Context,
    source: Option<Read>,
    on_progress: Option<crate::training::OnProgress>,
    resume: bool,
    training_only: Vec<String>,
}

impl fmt::Debug for TrainingBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainingBuilder").field("job", &self.job).field("resume", &self.resume).finish_non_exhaustive()
    }
}

impl Training {
    /// Begins with a job. Without further calls, it is the run of `forebay train`.
    pub fn builder(job: Job) -> TrainingBuilder {
        TrainingBuilder {
            job,
            context: Context::default(),
            source: None,
            on_progress: None,
            resume: false,
            training_only: Vec::new(),
        }
    }

    /// Wires the run that the job describes, reading the rows at `data.train`.
    ///
    /// # Errors
    /// A user fault if the job does not fit together, names several processes, or its data is missing.
    pub fn new(job: Job) -> Result<Self, Fault> {
        Self::builder(job).build()
    }
}

impl TrainingBuilder {
    /// Uses the IO threads, the stores and the registry of `context`. What was added to this builder before stays.
    pub fn context(mut self, context: &Context) -> Self {
        let added = std::mem::take(&mut self.context.registry);
        self.context = context.clone();
        self.registry(|mut registry| {
            registry.extend(added);
            registry
        })
    }

    /// Reads the rows of this source instead of `data.train`. It has a thread of its own, so its `next` may block; a drain waits for it
    /// then.
    pub fn source<S: Source<Out = Rows>>(mut self, make: impl FnOnce() -> S + Send + 'static) -> Self {
        self.source = Some(read_own(make));
        self
    }

    /// Trains this dense model instead of the one of `[model]`. A saved model stores `name`; loading it needs a registry that
    /// has a model of this name.
    pub fn model(mut self, name: &str, model: OwnModel) -> Self {
        (self.job.model.kind, self.job.model.name) = (ModelKind::Own, Some(name.to_owned()));
        self.registry(|registry| registry.own_model(name, move |_| model.clone()))
    }

    /// Adds a stage over record batches: see [`Registry::after_read`].
    pub fn after_read<S: Stage<In = Rows, Out = Rows>>(
        mut self,
        name: &str,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        self.job.pipeline.after_read.push(name.to_owned().into());
        self.registry(|registry| registry.after_read(name, move |_| make()))
    }

    /// Adds a stage over parsed rows: see [`Registry::after_parse`].
    pub fn after_parse<S: Stage<In = ExampleBatch, Out = ExampleBatch>>(
        mut self,
        name: &str,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        self.job.pipeline.after_parse.push(name.to_owned().into());
        self.registry(|registry| registry.after_parse(name, move |_| make()))
    }

    /// Adds a stage over batches of their final size: see [`Registry::after_batch`].
    pub fn after_batch<S: Stage<In = TrainBatch, Out = TrainBatch>>(
        mut self,
        name: &str,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        self.job.pipeline.after_batch.push(name.to_owned().into());
        self.registry(|registry| registry.after_batch(name, move |_| make()))
    }

    /// Leaves the custom stage `name` out of evaluation, for instance down-sampling. [`build`](Self::build) fails if there is no such
    /// stage.
    pub fn training_only(mut self, name: &str) -> Self {
        self.training_only.push(name.to_owned());
        self
    }

    /// Calls `show` about ten times a second from the thread that waits in [`Training::run`].
    pub fn on_progress(mut self, show: impl FnMut(&RunningTraining) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(show));
        self
    }

    /// Continues from the newest checkpoint in `checkpoint.to`; if there is none, from the one at `checkpoint.from`, or begins at the
    /// start. Without this call, the folder must have no checkpoints. A custom source is read from its start, and its rows that were
    /// trained on are skipped.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Wires the run. If the run continues from a model or a checkpoint, first makes all checks that need no rows of it, and then blocks
    /// until its rows are in the table.
    ///
    /// # Errors
    /// The faults of [`Training::start`] that can be found before a model or a checkpoint is loaded, if the run continues from one. A user
    /// fault if the job does not fit together, its data is missing, or the registry lacks a part that it names. A user fault if the
    /// checkpoint is of another job, or no checkpoint is whole. A user fault if `[placement]` names several processes: this is a training
    /// in one.
    pub fn build(self) -> Result<Training, Fault> {
        if !self.job.placement.is_one_process() {
            return Err(Fault::user(
                "the job's [placement] names several processes: start them on this machine with `forebay launch`, or each with \
                 `forebay role`; a training in one process has no [placement]",
            )
            .kind(FaultKind::InvalidJob));
        }
        self.wire(true)
    }

    /// The graph of the run, and the memory that its dense parameters will take, as [`Training::plan`] and [`Training::dense_memory`] have
    /// them. Reads no rows.
    ///
    /// # Errors
    /// As [`build`](Self::build), but `[placement]` may name several processes: the graph is that of one.
    pub fn describe(self) -> Result<(Plan, Option<DenseMemory>), Fault> {
        let training = self.wire(false)?;
        Ok((training.plan().clone(), training.dense_memory()))
    }

    /// `decides`: a sample of the rows decides what a new model begins with, unless a source of the program makes them.
    fn wire(mut self, decides: bool) -> Result<Training, Fault> {
        self.training_only.iter().try_for_each(|name| mark_training_only(&mut self.job, name))?;
        let (mut damaged, mut outputs_are_checked) = (DamagedCheckpoints::default(), false);
        let decides = decides && self.source.is_none();
        let mut resources = loop {
            let resources = Resources::alone(self.job.clone(), self.context.clone())?;
            let found = checkpoint::find_alone(&resources.job, self.resume, &damaged, &resources.context)?;
            if let Some((_, Some(found))) = &found {
                found.manifest.wait_for_model_disk(&resources.job, &resources.context, &|| None)?;
            }
            let loads = resources.job.train.from.is_some() || matches!(&found, Some((_, Some(_))));
            if loads && !outputs_are_checked {
                resources.check_before_loading()?;
                outputs_are_checked = true;
            }
            let Some((folder, found)) = found else {
                break begin_with_model(resources, decides)?;
            };
            let at = found.as_ref().map(|found| found.at);
            // If that fails, the resources are dropped, with what was read so far.
            match (begin_with_checkpoints(resources, folder, found, decides), at) {
                (Ok(resources), _) => break resources,
                (Err(fault), Some(at)) if fault.kind == FaultKind::Damaged => damaged.add(at, fault),
                (Err(fault), _) => return Err(fault),
            }
        };
        resources.outputs_are_checked = outputs_are_checked;
        let cut_point = resources.participation.cut_point().cloned();
        let read = match self.source {
            Some(read) => read,
            None => sources::remaining(&resources.job, &resources.context, cut_point)?,
        };
        (resources.source, resources.format) = (read.progress.clone(), read.format);
        Ok(Training { pipeline: wiring::training(&mut resources, read)?, resources, on_progress: self.on_progress })
    }

    /// Wires the run, starts it, and waits: see [`Training::run`].
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`Training::run`].
    pub fn run(self) -> Result<crate::Trained, Fault> {
        self.build()?.run()
    }

    fn registry(mut self, add: impl FnOnce(Registry) -> Registry) -> Self {
        self.context.registry = add(self.context.registry);
        self
    }
}

/// Marks the custom stage `name` of the job as one for training only.
fn mark_training_only(job: &mut Job, name: &str) -> Result<(), Fault> {
    let pipeline = &mut job.pipeline;
    let all = [&mut pipeline.after_read, &mut pipeline.after_parse, &mut pipeline.after_batch];
    let mut stages: Vec<&mut OwnStage> = all.into_iter().flatten().collect();
    let names: Vec<String> = stages.iter().map(|own| own.name.clone()).collect();
    let mut is_there = false;
    for own in stages.iter_mut().filter(|own| own.name == name) {
        (own.training_only, is_there) = (true, true);
    }
    if is_there {
        return Ok(());
    }
    let hint = match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.is_empty() => "add it with after_read, after_parse or after_batch".to_owned(),
        None => format!("it has {}", names.join(", ")),
    };
    Err(Fault::user(format!("training_only names the stage `{name}`, which the training does not have: {hint}"))
        .kind(FaultKind::InvalidJob))
}

/// Continues from the model at `train.from`, if the job names one. If the model is replaced meanwhile, begins again with new resources, so
/// that nothing of the old model stays. `decides`: without a model, a sample of the rows decides what a new one begins with.
fn begin_with_model(resources: Resources, decides: bool) -> Result<Resources, Fault> {
    let (job, context) = (resources.job.clone(), resources.context.clone());
    let mut unused = Some(resources);
    let read = |predecessor: Predecessor| -> Result<Resources, Fault> {
        let mut resources = match unused.take() {
            Some(resources) => resources,
            None => Resources::alone(job.clone(), context.clone())?,
        };
        resources.set_scales(&row_sample::decide_after(predecessor.columns(), &job, &context).scales)?;
        resources.continue_from(&predecessor)?;
        Ok(resources)
    };
    if let Some(resources) = Predecessor::read_with(&job, &context, read)? {
        return Ok(resources);
    }
    let mut resources = unused.ok_or_else(|| Fault::internal("a run without a model begins once"))?;
    if decides {
        resources.begin_with(&row_sample::decide_alone(&job, &context)?)?;
    }
    Ok(resources)
}

/// Adds checkpoints in `folder` to the run, which continues from the checkpoint that was found or begins at the start.
fn begin_with_checkpoints(
    mut resources: Resources,
    folder: CheckpointFolder,
    found: Option<Found>,
    decides: bool,
) -> Result<Resources, Fault> {
    let restored = match found {
        Some(found) => {
            checkpoint::load_rows(&found.folder, &found.manifest, &resources.table)?;
            checkpoint::load_trainer(&found.folder, found.manifest, DenseAt::Trainer)?
        }
        None => {
            resources = begin_with_model(resources, decides)?;
            resources.at_start()
        }
    };
    let shards = Shards::Here(resources.table.clone());
    resources.add_checkpoints(folder, forebay_base::random_seed() | 1, restored, BatchOrder::Data, shards, None)?;
    Ok(resources)
}
