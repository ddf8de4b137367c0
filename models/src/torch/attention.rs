//! Attention over histories; see [`Attention`].

use tch::{Kind, TchError, Tensor};

use super::TorchBatch;
use super::bags::Bags;
use super::batch::rows_of;
use super::module::SpecModule;
use crate::{Attention, Pooling};

impl SpecModule {
    /// The vectors of all slots, `[n, s, dim]`, with the vectors of histories replaced. Waits for the device.
    pub(super) fn attend(
        &self,
        batch: &TorchBatch,
        attention: &Attention,
        pooled: &Tensor,
    ) -> Result<Tensor, TchError> {
        let mut slots = pooled.f_unbind(1)?;
        let dim = pooled.size()[2];
        for (pair, unit) in attention.pairs.iter().zip(&self.units) {
            let bags = batch.bags_of(&[pair.history as i64])?;
            let rows = rows_of(batch.unique_rows(), &bags.values)?;
            // The embedding is the last part of a row.
            let history = rows.f_narrow(1, rows.size()[1] - dim, dim)?;
            let target = rows_of(&slots[pair.target], &bags.of_value.f_to_kind(Kind::Int)?)?;
            let (difference, product) = (target.f_sub(&history)?, target.f_mul(&history)?);
            let mut x = Tensor::f_cat(&[&target, &history, &difference, &product], 1)?;
            let (out, layers) = unit.split_last().expect("a unit has a head");
            for layer in layers {
                x = layer.apply_hidden(&x, attention.unit.activation)?;
            }
            let weighted = out.apply(&x)?.f_mul(&history)?;
            slots[pair.history] = sum_of_each_row(&weighted, &bags, batch.rows())?;
        }
        Tensor::f_stack(&slots, 1)
    }
}

/// The sum of the elements of each row, zeros for a row without any: an operator whose sums run in a fixed order.
fn sum_of_each_row(elements: &Tensor, bags: &Bags, rows: i64) -> Result<Tensor, TchError> {
    let (count, dim) = elements.size2()?;
    let places = Tensor::f_arange(count, (Kind::Int, elements.device()))?;
    TorchBatch::bag_of(elements, &places, &bags.offsets, None, Pooling::Sum, &[rows, dim])
}
