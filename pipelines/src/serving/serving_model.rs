//! One version of a model, read by all scoring threads.

use std::sync::Arc;
use std::time::SystemTime;

use arrow::datatypes::Schema;
use forebay_actors::Fault;
use forebay_connectors::staged::{Folder, OpenFolder};
use forebay_job::Job;
use forebay_models::{DenseModel, DenseOptimizer, ModelSpec, NamedTensor};
use forebay_ps::Table;

use super::serving_columns::ServingColumns;
use super::serving_rows::ServingRows;
use crate::columns::trained_types::{TrainedTypes, job_as_trained};
use crate::context::Context;
use crate::delta::{Delta, ModelVersions};
use crate::dense_model::job_model::JobModel;
use crate::fault::model_fault;
use crate::model::model_version::{ModelVersion, RowsHash};
use crate::model_folder::{Manifest, TableColumns, checked, dense_file, replaced, table_file};

/// A model that scores rows for requests. It has no state of optimizers, and it never changes.
pub struct ServingModel {
    pub(super) job: Job,
    /// The job with columns that are read as in training, for any types in a request, as `predict` reads files.
    pub(super) as_trained: Job,
    model: JobModel,
    pub(super) dense: Arc<Vec<NamedTensor>>,
    pub(super) rows: ServingRows,
    pub(super) columns: Arc<ServingColumns>,
    types: TrainedTypes,
    hash: RowsHash,
    count: u64,
    versions: ModelVersions,
    deltas: u32,
    loaded: SystemTime,
}

impl ServingModel {
    /// Loads a model folder, a path or a URL. `settings` override fields of its job. Verifies every checksum first. Blocks until
    /// all rows are in memory.
    ///
    /// # Errors
    /// A user fault that names the file if something is missing or damaged. A user fault if the job has custom stages, which
    /// cannot run on single requests.
    pub fn load(from: impl Into<Folder>, settings: &[String], context: &Context) -> Result<Self, Fault> {
        let folder = from.into().with_stores(&context.stores).open()?;
        replaced::read_one(folder, |folder| Self::load_from(folder, settings, context))
    }

    fn load_from(folder: &OpenFolder, settings: &[String], context: &Context) -> Result<Self, Fault> {
        let manifest = Manifest::read_in(folder)?;
        manifest.check_job(folder)?;
        let mut job = manifest.job.adapted(settings)?;
        let needs = |fault: Fault| fault.context(format!("cannot serve {folder}"));
        check_stages(&job).map_err(needs)?;
        context.registry.check_to_score(&job).map_err(needs)?;
        // Each scoring thread computes alone, and nothing is trained.
        (job.train.threads, job.train.optimizer) = (1.into(), Some(DenseOptimizer::sgd(1.0)));
        let model = JobModel::of(&job, &context.registry)?;
        for entry in manifest.files() {
            checked::verify(folder, entry)?;
        }
        let dense = dense_file::read(folder, &manifest.dense)?;
        check_dense(&model, &dense).map_err(needs)?;
        let entry = manifest.table(folder)?;
        let config = entry.config.weights_only();
        model.check_parts(&config).map_err(needs)?;
        let mut table = Table::new(&config).map_err(Fault::from).map_err(needs)?;
        let mut hash = RowsHash::default();
        for file in &entry.files {
            table_file::read_pages(folder, file, TableColumns::of(&config, false), async |keys, weights, _, _| {
                table.import(keys, weights, None)?;
                keys.iter().zip(weights.chunks_exact(config.row_dim())).for_each(|(&key, row)| hash.add(key, row));
                Ok(())
            })?;
        }
        let trained = manifest.training.as_ref();
        let (types, lists) = trained.map(|trained| (trained.types.clone(), trained.lists.clone())).unwrap_or_default();
        let version = ModelVersion::of(&job, &dense, hash);
        // Settings that change the scores make another model, which does not approximate the exact one.
        let approximates = manifest.approximates.filter(|_| ModelVersion::of(&manifest.job, &dense, hash) == version);
        let this = Self {
            versions: ModelVersions { version, approximates },
            columns: Arc::new(ServingColumns::new(&job.columns, &types, &lists)),
            as_trained: job_as_trained(&job, trained),
            types: TrainedTypes(types),
            dense: Arc::new(dense),
            count: table.rows() as u64,
            rows: ServingRows::new(config, table)?,
            hash,
            deltas: 0,
            loaded: SystemTime::now(),
            job,
            model,
        };
        this.dense_model()?;
        Ok(this)
    }

    /// This model with a delta: another model, which shares the rows that did not change.
    ///
    /// # Errors
    /// A user fault if the delta is not one from this model's version, or does not lead to the version that it names.
    pub fn with_delta(&self, delta: &Delta) -> Result<Self, Fault> {
        delta.check_from(self.versions)?;
        delta.check_table(self.rows.config())?;
        let (mut hash, mut count) = (self.hash, self.count);
        let mut old = Vec::new();
        let dim = self.rows.config().row_dim();
        for (keys, weights) in [(&delta.keys, Some(&delta.weights)), (&delta.removed, None)] {
            self.rows.read(keys, &mut old);
            for (at, &key) in keys.iter().enumerate() {
                if self.rows.contains(key) {
                    hash.remove(key, &old[at * dim..][..dim]);
                    count -= 1;
                }
                if let Some(weights) = weights {
                    hash.add(key, &weights[at * dim..][..dim]);
                    count += 1;
                }
            }
        }
        check_dense(&self.model, &delta.dense)?;
        let scales = &delta.manifest.scales;
        let (mut job, mut as_trained) = (self.job.clone(), self.as_trained.clone());
        [&mut job, &mut as_trained].into_iter().for_each(|job| job.columns.set_scales(scales));
        job.check_saved()?;
        // Threads parse rows anew if these are others.
        let columns = if scales.is_empty() { Arc::clone(&self.columns) } else { Arc::new((*self.columns).clone()) };
        let version = ModelVersion::of(&job, &delta.dense, hash);
        let versions = delta.check_result(self.versions, version, count)?;
        let this = Self {
            as_trained: self.types.pinned(&as_trained),
            job,
            model: self.model.clone(),
            dense: Arc::new(delta.dense.clone()),
            rows: self.rows.with_changes(&delta.keys, &delta.weights, &delta.removed)?,
            columns,
            types: self.types.clone(),
            hash,
            count,
            versions,
            deltas: self.deltas + 1,
            loaded: SystemTime::now(),
        };
        this.dense_model()?;
        Ok(this)
    }

    /// The name of its dense model in faults.
    pub(super) fn model_name(&self) -> &str {
        &self.model.describe
    }

    /// The version: the same for models that give the same scores.
    pub fn version(&self) -> ModelVersion {
        self.versions.version
    }

    /// The version, and the version of the model that it approximates if rounded deltas were applied.
    pub fn versions(&self) -> ModelVersions {
        self.versions
    }

    /// The kind: `job.model.kind`.
    pub fn kind(&self) -> String {
        self.job.model.kind.to_string()
    }

    /// Rows of the table.
    pub fn table_rows(&self) -> u64 {
        self.count
    }

    /// Deltas that were applied since the model folder was read.
    pub fn deltas(&self) -> u32 {
        self.deltas
    }

    /// When it was loaded, or its last delta was.
    pub fn loaded(&self) -> SystemTime {
        self.loaded
    }

    /// The columns that a row may have, in the order of dense features and slots.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.names()
    }

    /// The same columns with types that they may have: the types in training, strings for a slot of the kind `hex`, and nulls where no type
    /// is known.
    pub fn schema(&self) -> Schema {
        self.columns.schema()
    }

    /// Checks that columns of these types can be read as in training, by the rules of `predict`.
    ///
    /// # Errors
    /// A user fault that names a column of another type.
    pub(super) fn check_types(&self, schema: &Schema) -> Result<(), Fault> {
        let columns = &self.as_trained.columns;
        self.types.check(columns, &TrainedTypes::in_rows(columns, schema))
    }

    /// A dense model with its parameters, for one thread.
    pub(super) fn dense_model(&self) -> Result<Box<dyn DenseModel>, Fault> {
        self.model.with_parameters(self.dense.to_vec())().map_err(model_fault)
    }
}

/// Checks the parameters before a model is made of the structure: a manifest may ask for more memory than there is.
fn check_dense(model: &JobModel, dense: &[NamedTensor]) -> Result<(), Fault> {
    let found: usize = dense.iter().map(|tensor| tensor.data.len()).sum();
    if let Some(expected) = model.spec.as_ref().map(ModelSpec::dense_len).filter(|&expected| expected != found) {
        return Err(Fault::user(format!("it has {found} dense parameters, its structure needs {expected}")));
    }
    match dense.iter().find(|tensor| tensor.data.iter().any(|value| !value.is_finite())) {
        Some(tensor) => Err(Fault::user(format!("the dense parameter {} has a value that is not finite", tensor.name))),
        None => Ok(()),
    }
}

/// Stages of a program's own see batches of a pipeline; a request has none.
fn check_stages(job: &Job) -> Result<(), Fault> {
    let pipeline = &job.pipeline;
    for (field, stages) in [
        ("after_read", &pipeline.after_read),
        ("after_parse", &pipeline.after_parse),
        ("after_batch", &pipeline.after_batch),
    ] {
        if let Some(stage) = stages.iter().find(|stage| !stage.training_only) {
            return Err(Fault::user(format!(
                "pipeline.{field} has the custom stage `{}`, which does not run on requests: mark it training_only, or score \
                 with `forebay predict`",
                stage.name
            )));
        }
    }
    Ok(())
}
