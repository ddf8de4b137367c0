//! Forward, loss and autograd over a module and its parameters, and the checks of the results.

use tch::{Kind, Reduction, TchError, Tensor};

use super::TorchBatch;
use super::module::Module;
use super::non_finite::{gradient_symptom, loss_symptom, non_finite_error, row_symptom};
use super::params::{Params, all_finite};
use crate::{BatchShape, DenseBatch, ModelError, StepOutput, losses_sum};

/// The module and the settings of a step.
pub(super) struct StepGraph {
    pub(super) module: Module,
    pub(super) params: Params,
    pub(super) shape: BatchShape,
    pub(super) clip_norm: Option<f64>,
    pub(super) losses: LabelLosses,
}

/// The factor of each label's loss.
pub(super) struct LabelLosses {
    weights: Vec<f32>,
    /// The same on the device, `[1, t]`; `None` for one label, whose weight is 1.
    on_device: Option<Tensor>,
}

impl LabelLosses {
    pub(super) fn new(weights: Vec<f32>, device: tch::Device) -> Result<LabelLosses, TchError> {
        let place = || Tensor::f_from_slice(&weights)?.f_view([1, -1])?.f_to_device(device);
        let on_device = (weights.len() > 1).then(place).transpose()?;
        Ok(LabelLosses { weights, on_device })
    }

    pub(super) fn weights(&self) -> &[f32] {
        &self.weights
    }
}

impl StepGraph {
    /// The module's logits, `[n]`, or `[n, t]` of several labels. Their shape is checked.
    pub(super) fn forward(&self, batch: &TorchBatch) -> Result<Tensor, ModelError> {
        let logits = self.module.forward(batch)?;
        let (found, n) = (logits.size(), batch.rows());
        if self.shape.labels > 1 {
            let expected = [n, self.shape.labels as i64];
            return match found == expected {
                true => Ok(logits),
                false => {
                    Err(ModelError::Module(format!("the module gave logits of shape {found:?}, expected {expected:?}")))
                }
            };
        }
        if found != [n] && found != [n, 1] {
            return Err(ModelError::Module(format!(
                "the module gave logits of shape {found:?}, expected [{n}] or [{n}, 1]"
            )));
        }
        Ok(logits.f_view([n])?)
    }

    /// Forward, autograd and every check; gives the flat gradient, on the device.
    pub(super) fn backward(
        &self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        device: tch::Device,
    ) -> Result<Tensor, ModelError> {
        let inputs = TorchBatch::new(batch, self.shape, device, true)?;
        let in_batch = match self.module.two_towers() {
            Some((spec, two)) => two.in_batch(spec, &inputs)?,
            None => None,
        };
        let logits = match &in_batch {
            Some(step) => step.logits.f_view([inputs.rows()])?,
            None => self.forward(&inputs)?,
        };
        copy(&logits, &mut out.logits)?;
        // In f64 and on the host, where the logits are needed anyway, as in the native backend.
        out.loss = match &in_batch {
            Some(step) => step.loss.f_double_value(&[])?,
            None => losses_sum(&out.logits, batch.labels, &self.losses.weights, batch.weights) / batch.rows as f64,
        };
        if let Some(symptom) = loss_symptom(out) {
            return Err(self.non_finite(batch, &symptom));
        }
        let (row_grads, grad) = match &in_batch {
            Some(step) => self.differentiate(&step.loss, step.occurrences.as_ref(), &inputs)?,
            None => self.differentiate(&self.loss(&logits, &inputs)?, None, &inputs)?,
        };
        match row_grads {
            Some(grads) => copy(&grads, &mut out.row_grads)?,
            // No bag has a value, or the module reads no values.
            None => {
                out.row_grads.clear();
                out.row_grads.resize(batch.unique_rows.len(), 0.0);
            }
        }
        if let Some(symptom) = row_symptom(out, self.shape.row_dim) {
            return Err(self.non_finite(batch, &symptom));
        }
        if !all_finite(&grad)? {
            let name = self.params.first_non_finite(&grad)?.unwrap_or_default();
            return Err(self.non_finite(batch, &gradient_symptom(name)));
        }
        Ok(grad)
    }

    /// The mean loss of these logits, on the device.
    pub(super) fn loss(&self, logits: &Tensor, inputs: &TorchBatch) -> Result<Tensor, TchError> {
        let class_weights = None::<&Tensor>;
        match &self.losses.on_device {
            None => logits.f_binary_cross_entropy_with_logits(
                inputs.labels(),
                inputs.weights(),
                class_weights,
                Reduction::Mean,
            ),
            Some(of_labels) => {
                let weights = match inputs.weights() {
                    Some(of_rows) => of_rows.f_view([-1, 1])?.f_mul(of_labels)?,
                    None => of_labels.shallow_clone(),
                };
                // A label that a row lacks is NaN: it becomes 0, with weight 0.
                let there = inputs.labels().f_isnan()?.f_logical_not()?.f_to_kind(Kind::Float)?;
                let labels = inputs.labels().f_nan_to_num(0.0, None, None)?;
                let (weights, sum) = (weights.f_mul(&there)?, Reduction::Sum);
                let loss = logits.f_binary_cross_entropy_with_logits(&labels, Some(&weights), class_weights, sum)?;
                loss.f_div_scalar(inputs.rows())
            }
        }
    }

    /// Autograd: the gradients of the mean loss by the unique rows (`None` if the loss does not depend on them) and by the parameters,
    /// flat; both on the device. Does not wait for the device. With `occurrences`, `[u]`, the first number of each unique row is a count,
    /// and a step of size 1 with its gradient adds the occurrences.
    pub(super) fn differentiate(
        &self,
        loss: &Tensor,
        occurrences: Option<&Tensor>,
        inputs: &TorchBatch,
    ) -> Result<(Option<Tensor>, Tensor), ModelError> {
        let mut wanted: Vec<&Tensor> = self.params.leaves.iter().collect();
        wanted.push(inputs.unique_rows());
        let mut grads = Tensor::f_run_backward(&[loss], &wanted, false, false)?;
        let row_grads = grads.pop().filter(Tensor::defined);
        let mut row_grads = row_grads;
        let mut grad = self.params.flat_gradient(&grads)?;
        if let Some(most) = self.clip_norm {
            tch::no_grad(|| clip(most, row_grads.as_mut(), &mut grad))?;
        }
        if let (Some(row_grads), Some(occurrences)) = (&row_grads, occurrences) {
            tch::no_grad(|| row_grads.f_select(1, 0)?.f_copy_(&occurrences.f_neg()?))?;
        }
        Ok((row_grads, grad))
    }

    /// The error for a symptom: names the first thing that is not finite, beginning with the inputs.
    pub(super) fn non_finite(&self, batch: &DenseBatch<'_>, symptom: &str) -> ModelError {
        let parameter = self.params.first_non_finite(&self.params.flat).ok().flatten();
        non_finite_error(batch, self.shape, parameter, symptom)
    }
}

/// [`crate::clip_norm::clip`] on the device, without a wait.
fn clip(most: f64, row_grads: Option<&mut Tensor>, grad: &mut Tensor) -> Result<(), TchError> {
    let mut squares = grad.f_square()?.f_sum(Kind::Double)?;
    if let Some(rows) = &row_grads {
        squares = squares.f_add(&rows.f_square()?.f_sum(Kind::Double)?)?;
    }
    let share = squares.f_sqrt()?.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(most)?.f_clamp_max(1.0)?;
    let share = share.f_to_kind(Kind::Float)?;
    for grads in row_grads.into_iter().chain([grad]) {
        let _ = grads.f_mul_(&share)?;
    }
    Ok(())
}

/// Copies the numbers of a tensor to the host. Waits for the device.
pub(super) fn copy(from: &Tensor, to: &mut Vec<f32>) -> Result<(), ModelError> {
    let count = from.numel();
    to.resize(count, 0.0);
    Ok(from.f_copy_data(to, count)?)
}
