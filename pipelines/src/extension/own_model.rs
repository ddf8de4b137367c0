//! A custom dense model.

use std::sync::Arc;

use forebay_models::{DenseModel, ModelError, RowPart};

/// Makes a dense model, on the thread that will use it: once for training and once for each evaluation.
pub type ModelFactory = Arc<dyn Fn() -> Result<Box<dyn DenseModel>, ModelError> + Send + Sync>;

/// A custom dense model: its row parts and its factory.
#[derive(Clone)]
pub struct OwnModel {
    /// The row parts. The job's `[table]` says how they are initialised and updated.
    pub parts: Vec<RowPart>,
    /// Makes the model.
    pub factory: ModelFactory,
}

impl OwnModel {
    /// A model whose table rows have these parts.
    pub fn new<M: DenseModel + 'static>(
        parts: Vec<RowPart>,
        make: impl Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self { parts, factory: Arc::new(move || Ok(Box::new(make()?))) }
    }
}
