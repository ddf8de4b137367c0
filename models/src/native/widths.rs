//! The loops of `gather.rs` for slots whose embeddings differ in width: a narrower embedding takes the first numbers of the place that the
//! widest has in a unique row.

use super::bags::{BagView, RowParts, SlotVector, larger};
use super::kernels::kernel;
use crate::Pooling;

kernel! {
    /// As `gather`.
    fn gather_widths<'a>(bags: &'a BagView<'a>, parts: RowParts, unique_rows: &'a [f32], logits: &'a mut [f32], x: &'a mut [f32],
                         width: usize) {
        let first = parts.row_dim - parts.dim;
        for (r, logit) in logits.iter_mut().enumerate() {
            *logit = 0.0;
            for (slot, place) in bags.places.iter().enumerate() {
                let largest = bags.slot_vectors[slot] == SlotVector::Pooled(Pooling::Max);
                let pooled = &mut x[r * width + place.at..][..place.dim];
                let values = bags.values(r, slot);
                let row = |value: u32| &unique_rows[value as usize * parts.row_dim..][..parts.row_dim];
                let Some((&one, others)) = values.split_first() else {
                    pooled.fill(0.0);
                    continue;
                };
                let mut sum = if parts.linear { row(one)[0] } else { 0.0 };
                pooled.copy_from_slice(&row(one)[first..][..place.dim]);
                for &value in others {
                    let row = row(value);
                    if parts.linear {
                        sum = if largest { larger(sum, row[0]) } else { sum + row[0] };
                    }
                    let weights = pooled.iter_mut().zip(&row[first..]);
                    if largest {
                        weights.for_each(|(pooled, &weight)| *pooled = larger(*pooled, weight));
                    } else {
                        weights.for_each(|(pooled, &weight)| *pooled += weight);
                    }
                }
                if !others.is_empty() {
                    let weight = bags.weight(slot, values.len());
                    sum *= weight;
                    pooled.iter_mut().for_each(|pooled| *pooled *= weight);
                }
                *logit += sum;
            }
        }
    }
}

kernel! {
    /// As `scatter`.
    fn scatter_widths<'a>(bags: &'a BagView<'a>, parts: RowParts, g: &'a [f32], dx: &'a [f32], first: usize,
                          row_grads: &'a mut [f32]) {
        let (embedded, begin) = (bags.embedded(parts), parts.row_dim - parts.dim);
        for (r, &g) in g.iter().enumerate() {
            for (slot, place) in bags.places.iter().enumerate() {
                if bags.takes_largest(slot) {
                    continue;
                }
                let values = bags.values(r, slot);
                let weight = bags.weight(slot, values.len());
                let from = &dx[r * embedded + place.at..][..place.dim];
                for &value in values {
                    let at = (value as usize).wrapping_sub(first).wrapping_mul(parts.row_dim);
                    let Some(row) = row_grads.get_mut(at..).and_then(|rows| rows.get_mut(..parts.row_dim)) else {
                        continue;
                    };
                    if parts.linear {
                        row[0] += weight * g;
                    }
                    for (sum, &from) in row[begin..].iter_mut().zip(from) {
                        *sum += weight * from;
                    }
                }
            }
        }
    }
}
