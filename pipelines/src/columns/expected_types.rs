//! Compares the types of the columns that are parsed with the types of the run, or of the model.

use std::sync::Arc;

use arrow::datatypes::Schema;
use forebay_actors::Fault;
use forebay_job::Job;

use super::run_types::{RowTypes, RunTypes};
use super::trained_types::TrainedTypes;

/// What the types of columns are compared with.
#[derive(Clone)]
pub(crate) enum ExpectedTypes {
    /// The types of a run, which its first rows determine.
    Run(RunTypes, Arc<Job>),
    /// The types that a model was trained on. The columns of the job are read as in training.
    Model(TrainedTypes, Arc<Job>),
}

impl ExpectedTypes {
    /// # Errors
    /// A user fault that names a column of another type.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Fault> {
        match self {
            Self::Run(types, job) => types.add(job, RowTypes::of(job, schema)),
            Self::Model(types, job) => {
                let found = TrainedTypes::in_rows(&job.columns, schema);
                types.check(&job.columns, &found)?;
                found.check_statistics(&job.columns)
            }
        }
    }
}
