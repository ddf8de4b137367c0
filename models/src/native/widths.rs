//! The loops of `gather.rs` for slots whose embeddings differ in width: a narrower embedding takes the first numbers of the place that the
//! widest has in a unique row.

use super::bags::{BagView, RowParts, SlotVector, larger};
use super::kernels::kernel;
use crate::Pooling;

kernel! {
    /// As `gather`.
    fn gather_widths<'a>(bags: &'a BagView<'a>, parts: RowParts, unique_rows: &'a [f32], logits: &'a mut [f32], x: &'a mut [f32],
                         width: usize) {
        match bags.value_weights {
            None => gather_rows::<false>(bags, parts, unique_rows, logits, x, width),
            Some(_) => gather_rows::<true>(bags, parts, unique_rows, logits, x, width),
        }
    }
}

#[inline(always)]
fn gather_rows<const WEIGHTED: bool>(
    bags: &BagView<'_>,
    parts: RowParts,
    unique_rows: &[f32],
    logits: &mut [f32],
    x: &mut [f32],
    width: usize,
) {
    let first = parts.row_dim - parts.dim;
    for (r, logit) in logits.iter_mut().enumerate() {
        *logit = 0.0;
        for (slot, place) in bags.places.iter().enumerate() {
            let largest = bags.slot_vectors[slot] == SlotVector::Pooled(Pooling::Max);
            let pooled = &mut x[r * width + place.at..][..place.dim];
            let values = bags.values(r, slot);
            let weights = if WEIGHTED { bags.weights(r, slot) } else { &[] };
            // Of several largest values one counts, with all its weight.
            let own = |at: usize| if WEIGHTED && !largest { weights[at] } else { 1.0 };
            let row = |value: u32| &unique_rows[value as usize * parts.row_dim..][..parts.row_dim];
            let Some((&one, others)) = values.split_first() else {
                pooled.fill(0.0);
                continue;
            };
            let mut sum = if parts.linear { own(0) * row(one)[0] } else { 0.0 };
            for (pooled, &weight) in pooled.iter_mut().zip(&row(one)[first..]) {
                *pooled = own(0) * weight;
            }
            for (at, &value) in others.iter().enumerate() {
                let (row, own) = (row(value), own(at + 1));
                if parts.linear {
                    sum = if largest { larger(sum, row[0]) } else { sum + own * row[0] };
                }
                let weights = pooled.iter_mut().zip(&row[first..]);
                if largest {
                    weights.for_each(|(pooled, &weight)| *pooled = larger(*pooled, weight));
                } else {
                    weights.for_each(|(pooled, &weight)| *pooled += own * weight);
                }
            }
            if WEIGHTED || !others.is_empty() {
                let scale = if WEIGHTED { bags.scale_of(slot, weights) } else { bags.scale(slot, values.len()) };
                sum *= scale;
                pooled.iter_mut().for_each(|pooled| *pooled *= scale);
            }
            *logit += sum;
        }
    }
}
