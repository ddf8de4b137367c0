//! Compares the types of the columns that are parsed with those that they must be like. Costs nothing for a batch of the schema of the
//! batch before.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_actors::Fault;
use forebay_job::Job;

use crate::run_types::{RowTypes, RunTypes};
use crate::trained_types::TrainedTypes;

/// What the types of columns are compared with.
#[derive(Clone, Default)]
pub(crate) enum ExpectedTypes {
    #[default]
    Any,
    /// The types of a run, which its first rows determine.
    Run(RunTypes, Arc<Job>),
    /// The types that a model was trained on. The columns of the job are read as in training.
    Model(TrainedTypes, Arc<Job>),
}

/// Compares them once for each schema.
#[derive(Default)]
pub(super) struct TypeCheck {
    expected: ExpectedTypes,
    seen: Option<SchemaRef>,
}

impl TypeCheck {
    pub(super) fn new(expected: ExpectedTypes) -> Self {
        Self { expected, seen: None }
    }

    /// # Errors
    /// A user fault that names a column of another type.
    pub(super) fn check(&mut self, schema: SchemaRef) -> Result<(), Fault> {
        if self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &schema)) {
            return Ok(());
        }
        match &self.expected {
            ExpectedTypes::Any => {}
            ExpectedTypes::Run(types, job) => types.add(job, RowTypes::of(job, &schema))?,
            ExpectedTypes::Model(types, job) => {
                let found = TrainedTypes::in_rows(&job.columns, &schema);
                types.check(&job.columns, &found)?;
                found.check_statistics(&job.columns)?;
            }
        }
        self.seen = Some(schema);
        Ok(())
    }
}
