//! What can go wrong in a model: a spec that describes none, a batch that does not fit, numbers that are not finite.
//!
//! Every message says what was found, what was expected and what to do.

/// Why a model was refused, or a step was not taken. After an error the parameters are what they were before the call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The spec describes no model that can run.
    #[error("model spec: {0}")]
    Spec(String),
    /// An optimizer setting is out of its range.
    #[error("dense optimizer: {0}")]
    Optimizer(String),
    /// The batch does not fit the model, or contradicts itself.
    #[error("batch: {0}")]
    Batch(String),
    /// A number is NaN or infinite; the text names the first one found, nearest to its cause.
    #[error("not finite: {0}")]
    NonFinite(String),
    /// Stored tensors do not fit the model.
    #[error("stored parameters: {0}")]
    Load(String),
    /// The backend itself failed (threads, libtorch, the device).
    #[error("backend: {0}")]
    Backend(String),
}
