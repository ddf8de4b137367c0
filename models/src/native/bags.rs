//! The bags of a batch, and where the embeddings of their values lie: in a unique row, and in `x0`.

use crate::{ModelSpec, Pooling};

/// How the embeddings of a slot become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotVector {
    Pooled(Pooling),
    /// Attention makes it, and gives the gradients of the values.
    Attention,
}

impl SlotVector {
    /// How each slot of `spec` becomes a vector.
    pub(super) fn of_slots(spec: &ModelSpec) -> Vec<SlotVector> {
        let histories = || spec.attention.iter().flat_map(|attention| &attention.pairs).map(|pair| pair.history);
        let of_slot = |slot| {
            if histories().any(|history| history == slot) {
                SlotVector::Attention
            } else {
                SlotVector::Pooled(spec.pooling_of(slot))
            }
        };
        (0..spec.slots).map(of_slot).collect()
    }
}

/// Where the embedding of a slot lies in `x0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotPlace {
    pub(super) at: usize,
    pub(super) dim: usize,
}

impl SlotPlace {
    /// The place of each slot of `spec`; empty if all embeddings have one width.
    pub(super) fn of_slots(spec: &ModelSpec) -> Vec<SlotPlace> {
        let mut end = 0;
        let of_dim = |&dim: &usize| {
            end += dim;
            SlotPlace { at: end - dim, dim }
        };
        spec.slot_dims.iter().map(of_dim).collect()
    }
}

/// The bags of a range of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct BagView<'a> {
    pub(super) slots: usize,
    /// Values of the whole batch.
    pub(super) inverse: &'a [u32],
    /// Offsets of the whole batch; `None` if every bag has one value.
    pub(super) offsets: Option<&'a [u32]>,
    /// The weight of each value of the whole batch; `None`: 1.
    pub(super) value_weights: Option<&'a [f32]>,
    /// First row of the range.
    pub(super) first: usize,
    /// How each slot becomes a vector.
    pub(super) slot_vectors: &'a [SlotVector],
    /// Where the embedding of each slot lies in `x`; empty if all have the width of `parts`, one after the other.
    pub(super) places: &'a [SlotPlace],
}

/// Where the parts lie in a unique row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowParts {
    pub(super) row_dim: usize,
    /// Whether number 0 is the linear weight. If not, the numbers before the embedding are not read here, and get no gradient here.
    pub(super) linear: bool,
    /// Width of the embedding, 0 for none; it is the last part.
    pub(super) dim: usize,
}

/// Calls `one!(D)` with a common embedding width as a constant, else with 0: copies of a width known when compiling are a few moves instead
/// of a call.
macro_rules! by_width {
    ($dim:expr, $one:ident) => {
        match $dim {
            4 => $one!(4),
            8 => $one!(8),
            10 => $one!(10),
            16 => $one!(16),
            32 => $one!(32),
            64 => $one!(64),
            _ => $one!(0),
        }
    };
}
pub(super) use by_width;

impl<'a> BagView<'a> {
    /// Values of the bag `slot` of the range's row `row`.
    #[inline(always)]
    pub(super) fn values(&self, row: usize, slot: usize) -> &'a [u32] {
        let bag = (self.first + row) * self.slots + slot;
        match self.offsets {
            None => &self.inverse[bag..=bag],
            Some(offsets) => &self.inverse[offsets[bag] as usize..offsets[bag + 1] as usize],
        }
    }

    /// The weights of these values, in a batch that has some.
    #[inline(always)]
    pub(super) fn weights(&self, row: usize, slot: usize) -> &'a [f32] {
        let bag = (self.first + row) * self.slots + slot;
        match (self.offsets, self.value_weights) {
            (Some(offsets), Some(weights)) => &weights[offsets[bag] as usize..offsets[bag + 1] as usize],
            _ => &[],
        }
    }

    /// Width of the embeddings of a row, all slots together.
    #[inline(always)]
    pub(super) fn embedded(&self, parts: RowParts) -> usize {
        self.places.last().map_or(self.slots * parts.dim, |last| last.at + last.dim)
    }

    /// Where the embedding of a slot lies in a row of embeddings.
    #[inline(always)]
    pub(super) fn place(&self, slot: usize, parts: RowParts) -> SlotPlace {
        self.places.get(slot).copied().unwrap_or(SlotPlace { at: slot * parts.dim, dim: parts.dim })
    }

    /// The number of values of a slot in the first `rows` rows of the range.
    pub(super) fn count(&self, slot: usize, rows: usize) -> usize {
        (0..rows).map(|row| self.values(row, slot).len()).sum()
    }

    /// Whether a slot is pooled by max, so that the values decide which of them count.
    #[inline(always)]
    pub(super) fn takes_largest(&self, slot: usize) -> bool {
        self.slot_vectors[slot] == SlotVector::Pooled(Pooling::Max) && self.offsets.is_some()
    }

    /// The factor of the weighted sum of a bag's values.
    #[inline(always)]
    pub(super) fn scale_of(&self, slot: usize, weights: &[f32]) -> f32 {
        if self.slot_vectors[slot] != SlotVector::Pooled(Pooling::Mean) {
            return 1.0;
        }
        let sum: f32 = weights.iter().sum();
        // The inverse of a number below it may be infinite.
        if sum >= f32::MIN_POSITIVE { 1.0 / sum } else { 0.0 }
    }

    /// The factor of the sum of a bag's `count` values.
    #[inline(always)]
    pub(super) fn scale(&self, slot: usize, count: usize) -> f32 {
        match self.slot_vectors[slot] {
            SlotVector::Pooled(Pooling::Mean) => 1.0 / count as f32,
            // Of several largest values one counts, with all its weight.
            SlotVector::Pooled(Pooling::Sum | Pooling::Max) | SlotVector::Attention => 1.0,
        }
    }
}

/// The larger number, `a` if they are equal; NaN if there is one.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}
