//! The error of a step whose loss or gradients are NaN or infinite: it names the first possible cause.

use crate::params::Param;
use crate::{BatchShape, DenseBatch, ModelError, StepOutput};

/// The facts about the model that the checks need.
pub(super) struct ModelInfo {
    pub(super) shape: BatchShape,
    pub(super) params: Vec<Param>,
    /// The factor of each label's loss.
    pub(super) label_weights: Vec<f32>,
}

/// The text for a loss that is not finite.
pub(super) fn loss_symptom(out: &StepOutput) -> Option<String> {
    (!out.loss.is_finite()).then(|| format!("the loss is {}", out.loss))
}

/// The text for the first gradient of a unique row that is not finite.
pub(super) fn row_symptom(out: &StepOutput, row_dim: usize) -> Option<String> {
    let at = out.row_grads.iter().position(|x| !x.is_finite())?;
    Some(format!("the gradient of unique row {} is {}", at / row_dim, out.row_grads[at]))
}

/// The text for a parameter whose gradient is not finite.
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
