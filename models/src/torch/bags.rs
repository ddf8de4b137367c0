//! Some of the bags of a batch: of one slot, or of the slots that are pooled in one way.

use tch::{Kind, TchError, Tensor};

use super::TorchBatch;
use crate::Pooling;

/// The bags of `k` slots: row 0 slot 0, row 0 slot 1, ...
pub(super) struct Bags {
    /// `[m]`: the unique row of each value.
    pub(super) values: Tensor,
    /// `[n * k + 1]`: where each bag begins in `values`.
    pub(super) offsets: Tensor,
    /// `[m]`: the bag of each value.
    pub(super) of_value: Tensor,
    /// `[m]`: the weight of each value; `None`: 1.
    pub(super) weights: Option<Tensor>,
}

impl TorchBatch {
    /// The bags of these slots. Waits for the device.
    pub(super) fn bags_of(&self, slots: &[i64]) -> Result<Bags, TchError> {
        let device = self.values.device();
        let (bags, k) = (self.rows * self.slots, slots.len() as i64);
        let integers = (Kind::Int64, device);
        let pick = Tensor::f_from_slice(slots)?.f_to_device(device)?;
        let of_slots = |numbers: &Tensor| -> Result<Tensor, TchError> {
            numbers.f_view([self.rows, self.slots])?.f_index_select(1, &pick)?.f_reshape([-1])?.f_to_kind(Kind::Int64)
        };
        let Some(offsets) = &self.offsets else {
            let values = of_slots(&self.values)?.f_to_kind(Kind::Int)?;
            let offsets = Tensor::f_arange(self.rows * k + 1, integers)?;
            let of_value = offsets.f_narrow(0, 0, self.rows * k)?;
            return Ok(Bags { values, offsets: offsets.f_to_kind(Kind::Int)?, of_value, weights: None });
        };
        let starts = of_slots(&offsets.f_narrow(0, 0, bags)?)?;
        let lengths = of_slots(&offsets.f_narrow(0, 1, bags)?)?.f_sub(&starts)?;
        let offsets = Tensor::f_cat(&[Tensor::f_zeros([1], integers)?, lengths.f_cumsum(0, Kind::Int64)?], 0)?;
        let of_value = Tensor::f_repeat_interleave(&lengths, None::<i64>)?;
        let shifts = starts.f_sub(&offsets.f_narrow(0, 0, self.rows * k)?)?.f_index_select(0, &of_value)?;
        let places = Tensor::f_arange(of_value.size()[0], integers)?.f_add(&shifts)?;
        let values = self.values.f_index_select(0, &places)?;
        let weights = self.value_weights.as_ref().map(|weights| weights.f_index_select(0, &places)).transpose()?;
        Ok(Bags { values, offsets: offsets.f_to_kind(Kind::Int)?, of_value, weights })
    }

    /// As [`TorchBatch::pooled`], with a pooling for each slot.
    pub(super) fn pooled_by(&self, pooling: &[Pooling]) -> Result<Tensor, TchError> {
        let first = pooling.first().copied().unwrap_or_default();
        if self.offsets.is_none() || pooling.iter().all(|other| *other == first) {
            return self.pooled(first);
        }
        let mut slots: Vec<Tensor> = Vec::new();
        slots.resize_with(pooling.len(), Tensor::new);
        for way in [Pooling::Sum, Pooling::Mean, Pooling::Max] {
            let own: Vec<i64> = (0..self.slots).filter(|&slot| pooling[slot as usize] == way).collect();
            if own.is_empty() {
                continue;
            }
            let bags = self.bags_of(&own)?;
            let shape = [self.rows, own.len() as i64, self.unique_rows.size()[1]];
            // Slots that are pooled by max have no weights.
            let weights = bags.weights.as_ref().filter(|_| way != Pooling::Max);
            let pooled = Self::bag_of(&self.unique_rows, &bags.values, &bags.offsets, weights, way, &shape)?;
            let pooled = pooled.f_unbind(1)?;
            own.iter().zip(pooled).for_each(|(&slot, pooled)| slots[slot as usize] = pooled);
        }
        Tensor::f_stack(&slots, 1)
    }
}
