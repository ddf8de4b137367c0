//! Two towers on libtorch: the vectors of both, their similarity, and the softmax over the items of a batch.

use tch::{Kind, TchError, Tensor};

use super::TorchBatch;
use super::module::{SpecModule, TwoTowersModule};
use crate::two_towers::{LENGTH_EPSILON, Similarity, TowerSide, TwoTowersLoss};

/// A batch with in-batch softmax in its backward pass.
pub(super) struct InBatchStep {
    /// `[n, 1]`.
    pub(super) logits: Tensor,
    /// The mean over the rows.
    pub(super) loss: Tensor,
    /// `[u]`, if unique rows count them: for each unique row, the number of rows whose item it is.
    pub(super) occurrences: Option<Tensor>,
}

/// The items of the rows of a batch, on its device.
struct TorchItems {
    /// `[n]`: the unique row of each row's item; -1 if it has none.
    items: Tensor,
    /// `[u]`: for each unique row, the number of rows whose item it is.
    occurrences: Tensor,
}

impl TwoTowersModule {
    /// `[n, 1]`.
    pub(super) fn logits(&self, [users, items]: &[Tensor; 2]) -> Result<Tensor, TchError> {
        let similarity = users.f_mul(items)?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
        let logits = similarity.f_div_scalar(f64::from(self.spec.temperature))?;
        match &self.bias {
            Some(bias) => logits.f_add(bias),
            None => Ok(logits),
        }
    }

    /// The forward pass and the loss of a batch; `None` without in-batch softmax.
    pub(super) fn in_batch(&self, spec: &SpecModule, batch: &TorchBatch) -> Result<Option<InBatchStep>, TchError> {
        let TwoTowersLoss::InBatchSoftmax { item, log_q } = self.spec.loss else { return Ok(None) };
        let vectors = spec.vectors(batch, self)?;
        let [users, items] = &vectors;
        let of = TorchItems::read(batch, item as i64)?;
        let there = of.items.f_ge(0)?;
        let mut logits = users.f_mm(&items.f_transpose(0, 1)?)?.f_div_scalar(f64::from(self.spec.temperature))?;
        if log_q {
            let before = batch.unique_rows().f_detach()?.f_select(1, 0)?.f_clamp_min(0.0)?;
            // Rows without an item are left out below; the 1 keeps their logarithm finite.
            let q = before.f_add(&of.occurrences)?.f_index_select(0, &of.items.f_clamp_min(0)?)?;
            let q = q.f_where_self(&there, &Tensor::f_ones([1], (Kind::Float, q.device()))?)?;
            logits = logits.f_sub(&q.f_log()?.f_unsqueeze(0)?)?;
        }
        let (by_row, by_candidate) = (of.items.f_unsqueeze(1)?, of.items.f_unsqueeze(0)?);
        let same = by_row.f_eq_tensor(&by_candidate)?.f_logical_or(&by_candidate.f_lt(0)?)?;
        let own = Tensor::f_eye(batch.rows(), (Kind::Bool, logits.device()))?;
        let logits = logits.f_masked_fill(&same.f_logical_and(&own.f_logical_not()?)?, f64::NEG_INFINITY)?;
        let losses = logits.f_logsumexp([1i64].as_slice(), false)?.f_sub(&logits.f_diagonal(0, 0, 1)?)?;
        let mut weights = batch.labels().f_mul(&there.f_to_kind(Kind::Float)?)?;
        if let Some(of_rows) = batch.weights() {
            weights = weights.f_mul(of_rows)?;
        }
        let loss = losses.f_mul(&weights)?.f_sum(Kind::Float)?.f_div_scalar(batch.rows())?;
        let logits = self.logits(&vectors)?;
        Ok(Some(InBatchStep { logits, loss, occurrences: log_q.then_some(of.occurrences) }))
    }
}

impl TorchItems {
    fn read(batch: &TorchBatch, item: i64) -> Result<TorchItems, TchError> {
        let (slots, rows) = (batch.slots(), batch.rows());
        let items = match batch.offsets() {
            None => batch.values().f_view([rows, slots])?.f_select(1, item)?.f_to_kind(Kind::Int64)?,
            Some(offsets) => {
                let begins = offsets.f_slice(0, item, Some(rows * slots), slots)?.f_to_kind(Kind::Int64)?;
                let ends = offsets.f_slice(0, item + 1, Some(rows * slots + 1), slots)?;
                let last = batch.values().size()[0] - 1;
                let none = Tensor::f_full([rows], -1, (Kind::Int64, begins.device()))?;
                if last < 0 {
                    none
                } else {
                    let first = batch.values().f_index_select(0, &begins.f_clamp_max(last)?)?.f_to_kind(Kind::Int64)?;
                    first.f_where_self(&ends.f_gt_tensor(&begins)?, &none)?
                }
            }
        };
        let there = items.f_ge(0)?.f_to_kind(Kind::Float)?;
        let unique = batch.unique_rows().size()[0];
        let zeros = Tensor::f_zeros([unique], (Kind::Float, items.device()))?;
        let occurrences = if unique > 0 { zeros.f_index_add(0, &items.f_clamp_min(0)?, &there)? } else { zeros };
        Ok(TorchItems { items, occurrences })
    }
}

impl SpecModule {
    /// The vectors of users and of items, `[n, vector_dim]` each.
    pub(super) fn vectors(&self, batch: &TorchBatch, module: &TwoTowersModule) -> Result<[Tensor; 2], TchError> {
        let embedding = &self.embedding_of(&self.pooled(batch)?)?;
        let side = |side: TowerSide| -> Result<Tensor, TchError> {
            let numbers = |of: &[usize]| -> Vec<i64> { of.iter().map(|&at| at as i64).collect() };
            let inputs = module.spec.inputs(side);
            let index = |of: &[usize]| Tensor::f_from_slice(&numbers(of))?.f_to_device(embedding.device());
            let slots = embedding.f_index_select(1, &index(&inputs.slots)?)?;
            let mut x = self.flat(&slots, numbers(&inputs.slots).into_iter())?;
            if !inputs.dense.is_empty() {
                let dense = batch.dense().f_index_select(1, &index(&inputs.dense)?)?;
                x = Tensor::f_cat(&[&x, &dense], 1)?;
            }
            let (out, hidden) = module.sides[side as usize].split_last().expect("a tower has a layer for its vector");
            let y = out.apply(&self.hidden(batch, hidden, module.spec.first_hidden(side), &x)?)?;
            match module.spec.similarity {
                Similarity::Dot => Ok(y),
                Similarity::Cosine => {
                    let squares = y.f_square()?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
                    y.f_mul(&squares.f_add_scalar(f64::from(LENGTH_EPSILON))?.f_rsqrt()?)
                }
            }
        };
        Ok([side(TowerSide::User)?, side(TowerSide::Item)?])
    }
}
