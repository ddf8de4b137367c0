//! The errors of models. Each message says what was found, what was expected and what to do.

/// Why a model was refused, or a step was not taken. After an error the parameters are unchanged.
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
    /// The model cannot be saved for a checkpoint.
    #[error("state of the model: {0}")]
    State(String),
    /// A setting of the backend is wrong: a device that is unknown or not there, a number of threads, a backend that this
    /// program was built without.
    #[error("backend: {0}")]
    Setting(String),
    /// A module of the user's own failed, or gave something of a wrong shape or type.
    #[error("module: {0}")]
    Module(String),
    /// The device or the operating system failed: no memory, a lost device, an error of the driver. Not the user's fault.
    #[error("device: {0}")]
    Device(String),
    /// The operating system starts no more threads. Not the user's fault.
    #[error("cannot start {threads} threads: {error}")]
    Threads {
        /// How many were to start.
        threads: usize,
        /// What the operating system says.
        error: String,
    },
}
