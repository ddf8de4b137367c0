//! Whose fault a model's error is.

use forebay_actors::Fault;
use forebay_models::ModelError;

/// Whose fault a model's error is.
pub(crate) fn model_fault(error: ModelError) -> Fault {
    match error {
        ModelError::Batch(_) => Fault::internal("a batch does not fit the model").because(error),
        ModelError::Spec(_) | ModelError::Optimizer(_) | ModelError::Load(_) => Fault::user(error.to_string()),
        ModelError::NonFinite(_) => {
            Fault::user(format!("{error} (a smaller learning rate, or cleaner data, may help)"))
        }
        ModelError::Backend(_) => Fault::user(error.to_string()),
    }
}
