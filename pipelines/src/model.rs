//! A trained model: its table in the shards of this process, its dense parameters, and the job that made it.
//!
//! Comes in: a finished [`Training`](crate::Training) or a model folder. Goes out: evaluations, and a model folder.
//! Blocks: every method works until it is done; none belongs on an arbiter.

use std::sync::{Arc, Mutex};

use forebay_actors::{Fault, Host, Report, Source};
use forebay_connectors::Rows;
use forebay_connectors::staged::Folder;
use forebay_models::{DenseModel, ModelError, ModelSpec, NamedTensor, RowPart};
use forebay_ps::{TableClient, TableConfig};

use crate::job::Job;
use crate::model_fault;
use crate::model_folder::{self, Manifest};
use crate::sources::{self, Visit};
use crate::stages::{Evaluation, ModelMaker};
use crate::wiring;

/// Makes a dense model: once for training and once for each evaluation, on the thread that it stays on.
pub type ModelFactory = Arc<dyn Fn() -> Result<Box<dyn DenseModel>, ModelError> + Send + Sync>;

/// A trained model.
pub struct Model {
    /// The job that trained it.
    pub job: Job,
    /// Its spec.
    pub spec: ModelSpec,
    /// Its table's parts, optimizers and seed.
    pub config: TableConfig,
    /// Dense parameters.
    pub dense: Vec<NamedTensor>,
    /// The shards.
    pub table: TableClient,
    pub(crate) host: Host,
    pub(crate) factory: Option<ModelFactory>,
}

impl Model {
    /// Reads a model folder from any store: a path or a URL, or a [`Folder`] in a store that the caller holds.
    ///
    /// # Errors
    /// A user fault that names the file that is missing or damaged.
    pub fn load(folder: impl Into<Folder>, shards: usize) -> Result<Self, Fault> {
        model_folder::load(folder, shards)
    }

    /// Writes a model folder aside, in any store, and puts it in place of what is there. A user's own dense model is saved with its
    /// parameters; reading it back takes the same [`ModelFactory`].
    pub fn save(&self, folder: impl Into<Folder>) -> Result<Manifest, Fault> {
        model_folder::save(self, folder)
    }

    /// Scores all rows at `path`: a file, a folder, a glob or a URL; what the files are is told by their names. Columns
    /// are read as the job says.
    pub fn evaluate(&self, path: &str) -> Result<(Evaluation, Report), Fault> {
        struct Run<'a>(&'a Model);
        impl Visit for Run<'_> {
            type Out = Result<(Evaluation, Report), Fault>;
            fn visit<S: Source<Out = Rows>>(self, make: impl FnOnce() -> S + Send + 'static) -> Self::Out {
                self.0.evaluate_source(make)
            }
        }
        sources::open(&self.job.for_evaluation(), path, Run(self))?
    }

    /// Scores all rows of any source.
    pub fn evaluate_source<S: Source<Out = Rows>>(
        &self,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Result<(Evaluation, Report), Fault> {
        let result = Arc::new(Mutex::new(None));
        let report = wiring::evaluation(self, make, self.maker(), Arc::clone(&result)).run()?;
        let evaluation = result.lock().expect("no holder of this lock panics").take();
        Ok((evaluation.ok_or_else(|| Fault::internal("the evaluation ended without a result"))?, report))
    }

    /// Gives back the factory of a user's own dense model, which a model folder cannot hold.
    #[must_use]
    pub fn with_factory(mut self, factory: ModelFactory) -> Self {
        self.factory = Some(factory);
        self
    }

    /// Makes a dense model with these parameters.
    fn maker(&self) -> ModelMaker {
        let (factory, dense) = (factory(&self.job, &self.spec, self.factory.as_ref()), self.dense.clone());
        Box::new(move || {
            let mut model = factory()?;
            model.load(&dense)?;
            Ok(model)
        })
    }
}

/// The user's own factory, or the backend that the job names.
pub(crate) fn factory(job: &Job, spec: &ModelSpec, own: Option<&ModelFactory>) -> ModelFactory {
    own.cloned().unwrap_or_else(|| {
        let (options, seed, spec) = (job.train.clone(), job.seed, spec.clone());
        Arc::new(move || crate::backend::make(&options, &spec, seed))
    })
}

/// The table of a job: rows of the parts that the job's model needs, or a model of the user's `own`.
pub(crate) fn table_config(job: &Job, own: Option<Vec<RowPart>>) -> Result<TableConfig, Fault> {
    let parts = own.map_or_else(|| checked_spec(job).map(|spec| spec.parts()), Ok)?;
    Ok(job.table.config(parts, job.seed))
}

/// Refuses a spec that describes no model, before anything starts.
pub(crate) fn checked_spec(job: &Job) -> Result<ModelSpec, Fault> {
    let spec = job.model.spec(job.columns.slots.len(), job.columns.dense.len());
    spec.validate().map_err(model_fault)?;
    Ok(spec)
}
