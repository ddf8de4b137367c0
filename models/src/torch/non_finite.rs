//! The error of a step whose loss or gradients are NaN or infinite: it names the first possible cause.

use crate::params::Param;
use crate::{BatchShape, DenseBatch, ModelError, StepOutput};

/// What the checks need to know of the model.
pub(super) struct ModelInfo {
    pub(super) shape: BatchShape,
    pub(super) params: Vec<Param>,
    /// What the loss of each label is multiplied by.
    pub(super) label_weights: Vec<f32>,
}

/// What to say of a loss that is not finite.
pub(super) fn loss_symptom(out: &StepOutput) -> Option<String> {
    (!out.loss.is_finite()).then(|| format!("the loss is {}", out.loss))
}

/// What to say of the first gradient of a unique row that is not finite.
pub(super) fn row_symptom(out: &StepOutput, row_dim: usize) -> Option<String> {
    let at = out.row_grads.iter().position(|x| !x.is_finite())?;
    Some(format!("the gradient of unique row {} is {}", at / row_dim, out.row_grads[at]))
}

/// What to say of a parameter whose gradient is not finite.
pub(super) fn gradient_symptom(name: &str) -> String {
    format!("the gradient of {name} is not finite")
}

/// The error for a symptom. It names an input or a parameter that is not finite, if there is one.
pub(super) fn non_finite_error(
    batch: &DenseBatch<'_>,
    shape: BatchShape,
    parameter: Option<&str>,
    symptom: &str,
) -> ModelError {
    let parameter = || parameter.map(|name| format!("parameter {name} is not finite"));
    let cause = batch.first_non_finite(shape).or_else(parameter);
    ModelError::NonFinite(cause.unwrap_or_else(|| format!("{symptom}, though every input is finite")))
}
