//! A trained model in memory: its table in the shards of this process, its dense parameters, and its job.
//!
//! `model/model_version.rs`: which training a model is of. `model/sorted_rows.rs`: its rows by key.

pub(crate) mod model_version;
pub(crate) mod sorted_rows;

use std::fmt;

use forebay_actors::{Fault, Host};
use forebay_job::Job;
use forebay_models::NamedTensor;
use forebay_ps::TableClient;

use crate::columns::trained_types::{TrainedTypes, job_as_trained};
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::metrics::training_summary::TrainingSummary;
use crate::model::model_version::ModelVersion;

/// A trained model. [`Model::save`] writes it to a folder, [`Model::load`] reads it back, [`Model::evaluate`] scores rows.
pub struct Model {
    /// The job that trained it.
    pub job: Job,
    /// Dense parameters.
    pub dense: Vec<NamedTensor>,
    /// The state of the dense optimizer, if the job keeps it (`output.state`). Then [`Model::save`] also writes the state of
    /// the rows' optimizers.
    pub optimizer: Option<Vec<NamedTensor>>,
    /// The client of the shards. If the model was loaded without state, it refuses pushes: see [`Model::load`].
    pub table: TableClient,
    /// The summary of its training; `None` if that is not known.
    pub training: Option<TrainingSummary>,
    /// The version of the exact model, if rounded deltas were applied: see [`ModelVersions`](crate::ModelVersions).
    pub approximates: Option<ModelVersion>,
    pub(crate) model: JobModel,
    pub(crate) host: Host,
    pub(crate) context: Context,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, dense, training, .. } = self;
        let parameters: usize = dense.iter().map(|tensor| tensor.data.len()).sum();
        let mut shown = f.debug_struct("Model");
        shown.field("model", &model.describe).field("dense_parameters", &parameters).field("training", training);
        shown.finish_non_exhaustive()
    }
}

impl Model {
    /// Makes a model from the results of a custom pipeline: the `table`, which `host` serves, and the `dense` parameters that the
    /// train stage left. The job gives the columns and the dense model.
    ///
    /// # Errors
    /// A user fault if the job's model does not fit the table.
    pub fn from_parts(job: Job, host: Host, table: TableClient, dense: Vec<NamedTensor>) -> Result<Self, Fault> {
        Self::in_context(job, host, table, dense, Context::default())
    }

    /// Like [`from_parts`](Self::from_parts), for a job that names custom stages, sources or models of `context`.
    pub fn in_context(
        job: Job,
        host: Host,
        table: TableClient,
        dense: Vec<NamedTensor>,
        context: Context,
    ) -> Result<Self, Fault> {
        context.registry.check_to_score(&job)?;
        let model = JobModel::of(&job, &context.registry)?;
        let expected: usize = model.parts.iter().map(|part| part.dim).sum();
        if table.row_dim() != expected {
            return Err(Fault::user(format!(
                "the table's rows have {} values, expected {expected} for the job's model",
                table.row_dim()
            )));
        }
        Ok(Self { job, dense, optimizer: None, table, training: None, approximates: None, model, host, context })
    }

    /// The types of its feature columns in training, as far as they are known.
    pub(crate) fn types(&self) -> TrainedTypes {
        TrainedTypes::of(self.training.as_ref())
    }

    /// Its job, with columns that are read as in training.
    pub(crate) fn job_as_trained(&self) -> Job {
        job_as_trained(&self.job, self.training.as_ref())
    }
}
