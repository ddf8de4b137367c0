//! A batch as tensors on the device: the input of a module.

use tch::{Kind, TchError, Tensor};

use crate::BatchShape;
use crate::{DenseBatch, ModelError, Pooling};

/// One batch on the device: `n` rows, `s` slots, `d` dense features, `u` unique keys.
///
/// All numbers are `f32`, all indices `i32`. A module must not keep the tensors beyond its call: their memory is reused for
/// other batches.
pub struct TorchBatch {
    pub(super) id: u64,
    pub(super) rows: i64,
    pub(super) slots: i64,
    pub(super) dense: Tensor,
    pub(super) labels: Tensor,
    pub(super) weights: Option<Tensor>,
    pub(super) unique_rows: Tensor,
    pub(super) values: Tensor,
    pub(super) offsets: Option<Tensor>,
    pub(super) value_weights: Option<Tensor>,
    pub(super) training: bool,
}

impl TorchBatch {
    /// Copies a batch that passed [`DenseBatch::check`] to the device, and blocks until it is there. While training, the
    /// unique rows are a leaf, and autograd sums its gradient per key.
    pub(super) fn new(
        batch: &DenseBatch<'_>,
        shape: BatchShape,
        device: tch::Device,
        training: bool,
    ) -> Result<TorchBatch, ModelError> {
        let unique = batch.unique(shape.row_dim);
        check_indices(unique, batch.inverse.len())?;
        let floats = |numbers: &[f32], shape: &[i64]| -> Result<Tensor, TchError> {
            Tensor::f_from_slice(numbers)?.f_view(shape)?.f_to_device(device)
        };
        let indices = |numbers: &[u32]| -> Result<Tensor, TchError> {
            let signed: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
            Tensor::f_from_slice(&signed)?.f_to_device(device)
        };
        let rows = batch.rows as i64;
        let unique_rows = floats(batch.unique_rows, &[unique as i64, shape.row_dim as i64])?;
        Ok(TorchBatch {
            id: batch.id,
            rows,
            slots: shape.slots as i64,
            dense: floats(batch.dense, &[rows, shape.dense as i64])?,
            labels: labels_view(Tensor::f_from_slice(batch.labels)?, rows, shape)?.f_to_device(device)?,
            weights: batch.weights.map(|weights| floats(weights, &[rows])).transpose()?,
            unique_rows: unique_rows.f_set_requires_grad(training)?,
            values: indices(batch.inverse)?,
            offsets: batch.offsets.map(indices).transpose()?,
            value_weights: batch.value_weights.map(|weights| floats(weights, &[weights.len() as i64])).transpose()?,
            training,
        })
    }

    /// The name of the batch as a number, see [`DenseBatch::id`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// `n`.
    pub fn rows(&self) -> i64 {
        self.rows
    }

    /// `s`.
    pub fn slots(&self) -> i64 {
        self.slots
    }

    /// Whether this is a training step (for dropout, for instance).
    pub fn training(&self) -> bool {
        self.training
    }

    /// `[n, d]`.
    pub fn dense(&self) -> &Tensor {
        &self.dense
    }

    /// `[n]`, or `[n, t]` for several labels, each from 0 to 1, or NaN where a row lacks one of several; without meaning unless training.
    pub fn labels(&self) -> &Tensor {
        &self.labels
    }

    /// `[n]`, each at least 0: the factor of each row's loss; `None` if every row weighs 1.
    pub fn weights(&self) -> Option<&Tensor> {
        self.weights.as_ref()
    }

    /// `[u, row_dim]`: the table's rows of the keys in this batch, each key once.
    pub fn unique_rows(&self) -> &Tensor {
        &self.unique_rows
    }

    /// `[values]`: for each value its unique row, in bags: row 0 slot 0, row 0 slot 1, ...
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// `[n * s + 1]`: where each bag begins in `values`; `None` if every bag has one value.
    pub fn offsets(&self) -> Option<&Tensor> {
        self.offsets.as_ref()
    }

    /// `[values]`: the factor of each value's row before the row is pooled; `None`: 1.
    pub fn value_weights(&self) -> Option<&Tensor> {
        self.value_weights.as_ref()
    }

    /// `[n, s, row_dim]`: the row vector of each slot, its values pooled, each times its weight; zeros for a slot without values. The
    /// parts of a row lie one after the other along the last dimension.
    ///
    /// # Errors
    /// [`Pooling::Max`] of a batch whose values have weights; errors of libtorch, for instance no memory on the device.
    pub fn pooled(&self, pooling: Pooling) -> Result<Tensor, TchError> {
        let shape = [self.rows, self.slots, self.unique_rows.size()[1]];
        match &self.offsets {
            None => rows_of(&self.unique_rows, &self.values)?.f_view(shape),
            Some(offsets) => {
                Self::bag_of(&self.unique_rows, &self.values, offsets, self.value_weights.as_ref(), pooling, &shape)
            }
        }
    }

    /// The bags of these rows that `values` names, in this shape; with `weights`, each times its weight.
    pub(super) fn bag_of(
        rows: &Tensor,
        values: &Tensor,
        offsets: &Tensor,
        weights: Option<&Tensor>,
        pooling: Pooling,
        shape: &[i64],
    ) -> Result<Tensor, TchError> {
        if values.numel() == 0 {
            return Tensor::f_zeros(shape, (Kind::Float, values.device()));
        }
        let mode = match pooling {
            Pooling::Sum => 0,
            // libtorch takes weights for sums alone.
            Pooling::Mean if weights.is_some() => 0,
            Pooling::Mean => 1,
            Pooling::Max if weights.is_some() => {
                return Err(TchError::Torch("values with weights are pooled by sum or mean, not by max".into()));
            }
            Pooling::Max if values.device().is_cuda() => return largest(rows, values, offsets)?.f_view(shape),
            Pooling::Max => 2,
        };
        let (bags, ..) = Tensor::f_embedding_bag(rows, values, offsets, false, mode, false, weights, true)?;
        match weights {
            Some(weights) if pooling == Pooling::Mean => bags.f_div(&sums(weights, offsets)?)?.f_view(shape),
            _ => bags.f_view(shape),
        }
    }
}

/// The rows of a matrix that `places` names, `[places, width]`. The backward pass adds in a fixed order, also on CUDA.
pub(super) fn rows_of(matrix: &Tensor, places: &Tensor) -> Result<Tensor, TchError> {
    // On one core, 4,096 rows of 26 slots of width 10, there and back: `index` 5 ms, `index_select` 25, a bag 16. On CUDA the backward
    // passes of `index_select`, and of `embedding` if a row is named hundreds of times, add atomically: every run would give other
    // bits. The backward pass of a bag sorts and adds in order; `index` does, too, and takes twice the time.
    if !places.device().is_cuda() {
        return matrix.f_index(&[Some(places)]);
    }
    let (count, width) = (places.size()[0], matrix.size()[1]);
    let offsets = Tensor::f_arange(count + 1, (Kind::Int, places.device()))?;
    TorchBatch::bag_of(matrix, places, &offsets, None, Pooling::Sum, &[count, width])
}

/// The largest number of each component of each bag, `[bags, width]`, 0 in empty bags. The backward pass of libtorch's own maximum adds
/// atomically on CUDA, so every run would give other last bits; the backward pass of `index` adds in a fixed order.
fn largest(rows: &Tensor, values: &Tensor, offsets: &Tensor) -> Result<Tensor, TchError> {
    let (width, bags) = (rows.size()[1], offsets.size()[0] - 1);
    // For each component of each bag, the row that has the largest number.
    let (.., holders) =
        tch::no_grad(|| Tensor::f_embedding_bag(rows, values, offsets, false, 2, false, None::<&Tensor>, true))?;
    let components = Tensor::f_arange(width, (Kind::Int64, rows.device()))?;
    let places = holders.f_to_kind(Kind::Int64)?.f_clamp_min(0)?.f_mul_scalar(width)?.f_add(&components)?;
    let empty = offsets.f_narrow(0, 0, bags)?.f_eq_tensor(&offsets.f_narrow(0, 1, bags)?)?;
    rows.f_reshape([-1])?.f_index(&[Some(&places)])?.f_masked_fill(&empty.f_unsqueeze(1)?, 0.0)
}

/// The sum of the weights of each bag, `[bags, 1]`, 1 in place of 0. The operator adds in a fixed order, also on CUDA.
fn sums(weights: &Tensor, offsets: &Tensor) -> Result<Tensor, TchError> {
    let count = weights.numel() as i64;
    let (rows, places) = (weights.f_view([count, 1])?, Tensor::f_arange(count, (Kind::Int, weights.device()))?);
    let (sums, ..) = Tensor::f_embedding_bag(&rows, &places, offsets, false, 0, false, None::<&Tensor>, true)?;
    sums.f_masked_fill(&sums.f_lt(f64::from(f32::MIN_POSITIVE))?, 1.0)
}

/// Labels, as they lie, as `[n]`, or `[n, t]` of several labels.
pub(super) fn labels_view(labels: Tensor, rows: i64, shape: BatchShape) -> Result<Tensor, TchError> {
    match shape.labels as i64 {
        1 => labels.f_view([rows]),
        labels_of_row => labels.f_view([rows, labels_of_row]),
    }
}

/// libtorch's kernels take signed 32-bit indices.
pub(super) fn check_indices(unique: usize, values: usize) -> Result<(), ModelError> {
    if unique > i32::MAX as usize || values > i32::MAX as usize {
        return Err(ModelError::Batch(format!(
            "{unique} unique rows and {values} values, libtorch's 32-bit indices reach {}: use smaller batches",
            i32::MAX
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_numbers_and_their_gradients_are_those_of_libtorch() {
        let rows = || Tensor::from_slice(&[1f32, -8., 3., 4., -5., 6., -1., -2.]).view([4, 2]).set_requires_grad(true);
        let values = Tensor::from_slice(&[0i32, 1, 2, 1, 3, 0]);
        // The second bag is empty, and so is the last; the third has negative numbers alone.
        let offsets = Tensor::from_slice(&[0i32, 3, 3, 4, 5, 6, 6]);
        let weights = Tensor::arange(12, (Kind::Float, tch::Device::Cpu)).view([6, 2]);
        let (own, theirs) = (rows(), rows());
        let largest = largest(&own, &values, &offsets).unwrap();
        let (expected, ..) =
            Tensor::f_embedding_bag(&theirs, &values, &offsets, false, 2, false, None::<&Tensor>, true).unwrap();
        assert_eq!(largest, expected);
        (&largest * &weights).sum(Kind::Float).backward();
        (&expected * &weights).sum(Kind::Float).backward();
        assert_eq!(own.grad(), theirs.grad());
    }
}
