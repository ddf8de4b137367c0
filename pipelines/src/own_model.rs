//! A dense model of a user's own.

use std::sync::Arc;

use forebay_models::{DenseModel, ModelError, RowPart};

/// Makes a dense model: once for training and once for each evaluation, on the thread that it stays on.
pub type ModelFactory = Arc<dyn Fn() -> Result<Box<dyn DenseModel>, ModelError> + Send + Sync>;

/// A user's own dense model: what each key's row consists of, and what makes the model.
#[derive(Clone)]
pub struct OwnModel {
    /// Parts of a row; the job's `[table]` says how they are initialised and updated.
    pub parts: Vec<RowPart>,
    /// Makes the model.
    pub factory: ModelFactory,
}

impl OwnModel {
    /// A model of rows with these parts.
    pub fn new<M: DenseModel + 'static>(
        parts: Vec<RowPart>,
        make: impl Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self { parts, factory: Arc::new(move || Ok(Box::new(make()?))) }
    }
}
