//! From unique rows to pooled rows, and back from their gradients to the gradient of each unique row.
//!
//! Input: a batch that passed [`DenseBatch::check`](crate::DenseBatch::check); so every index here is within bounds.

use super::bags::{BagView, RowParts, SlotVector, by_width, larger};
use super::kernels::kernel;
use super::widths::{gather_widths, scatter_widths};
use crate::Pooling;

kernel! {
    /// Sets `logits` to the pooled linear weights summed over slots (zero without a linear part), and the first
    /// `slots * dim` numbers of each row of `x` (rows `width` apart) to the pooled embeddings; an empty bag gives zeros. What it writes
    /// for a slot of attention is to be replaced.
    fn gather<'a>(bags: &'a BagView<'a>, parts: RowParts, unique_rows: &'a [f32], logits: &'a mut [f32], x: &'a mut [f32],
                  width: usize) {
        if !bags.places.is_empty() {
            return gather_widths(bags, parts, unique_rows, logits, x, width);
        }
        macro_rules! run {
            ($d:literal) => {
                match (bags.offsets, bags.value_weights) {
                    (None, _) => gather_single::<$d>(bags, parts, unique_rows, logits, x, width),
                    (Some(_), None) => gather_bags::<false>(bags, parts, unique_rows, logits, x, width),
                    (Some(_), Some(_)) => gather_bags::<true>(bags, parts, unique_rows, logits, x, width),
                }
            };
        }
        by_width!(parts.dim, run);
    }
}

/// One value per bag; `D` is the embedding width, or 0 if only `parts` knows it.
#[inline(always)]
fn gather_single<const D: usize>(
    bags: &BagView<'_>,
    parts: RowParts,
    unique_rows: &[f32],
    logits: &mut [f32],
    x: &mut [f32],
    width: usize,
) {
    let dim = if D > 0 { D } else { parts.dim };
    let values = bags.inverse[bags.first * bags.slots..].chunks_exact(bags.slots);
    for (r, (logit, values)) in logits.iter_mut().zip(values).enumerate() {
        let mut sum = 0.0f32;
        if dim == 0 {
            for &value in values {
                sum += unique_rows[value as usize * parts.row_dim];
            }
        } else {
            let x = x[r * width..][..bags.slots * dim].chunks_exact_mut(dim);
            for (&value, x) in values.iter().zip(x) {
                let row = &unique_rows[value as usize * parts.row_dim..][..parts.row_dim];
                if parts.linear {
                    sum += row[0];
                }
                x.copy_from_slice(&row[parts.row_dim - dim..]);
            }
        }
        *logit = sum;
    }
}

/// Any number of values per bag; `WEIGHTED`: each with a weight.
#[inline(always)]
fn gather_bags<const WEIGHTED: bool>(
    bags: &BagView<'_>,
    parts: RowParts,
    unique_rows: &[f32],
    logits: &mut [f32],
    x: &mut [f32],
    width: usize,
) {
    let dim = parts.dim;
    for (r, logit) in logits.iter_mut().enumerate() {
        *logit = 0.0;
        for slot in 0..bags.slots {
            let values = bags.values(r, slot);
            let pooled: &mut [f32] = if dim > 0 { &mut x[r * width + slot * dim..][..dim] } else { &mut [] };
            pooled.fill(0.0);
            if bags.slot_vectors[slot] == SlotVector::Attention {
                continue;
            }
            let mut sum = 0.0f32;
            if let (SlotVector::Pooled(Pooling::Max), Some((&first, others))) =
                (bags.slot_vectors[slot], values.split_first())
            {
                let row = |value: u32| &unique_rows[value as usize * parts.row_dim..][..parts.row_dim];
                sum = if parts.linear { row(first)[0] } else { 0.0 };
                pooled.copy_from_slice(&row(first)[parts.row_dim - dim..]);
                for &value in others {
                    let row = row(value);
                    if parts.linear {
                        sum = larger(sum, row[0]);
                    }
                    for (pooled, &weight) in pooled.iter_mut().zip(&row[parts.row_dim - dim..]) {
                        *pooled = larger(*pooled, weight);
                    }
                }
                *logit += sum;
                continue;
            }
            let own = if WEIGHTED { bags.weights(r, slot) } else { &[] };
            for (at, &value) in values.iter().enumerate() {
                let row = &unique_rows[value as usize * parts.row_dim..][..parts.row_dim];
                // Without weights the compiler leaves the product out.
                let own = if WEIGHTED { own[at] } else { 1.0 };
                if parts.linear {
                    sum += own * row[0];
                }
                for (pooled, &weight) in pooled.iter_mut().zip(&row[parts.row_dim - dim..]) {
                    *pooled += own * weight;
                }
            }
            if WEIGHTED || values.len() > 1 {
                let scale = if WEIGHTED { bags.scale_of(slot, own) } else { bags.scale(slot, values.len()) };
                sum *= scale;
                for pooled in pooled {
                    *pooled *= scale;
                }
            }
            *logit += sum;
        }
    }
}

/// As [`scatter`], for the slots whose largest values count: each number of a bag's gradient goes to the first of the values that has the
/// largest weight there.
pub(super) fn scatter_largest(
    bags: &BagView<'_>,
    parts: RowParts,
    unique_rows: &[f32],
    (g, dx): (&[f32], &[f32]),
    first: usize,
    row_grads: &mut [f32],
) {
    let (linear, embedded) = (parts.row_dim - parts.dim, bags.embedded(parts));
    for (r, &g) in g.iter().enumerate() {
        for slot in (0..bags.slots).filter(|&slot| bags.takes_largest(slot)) {
            let (values, place) = (bags.values(r, slot), bags.place(slot, parts));
            for at in if parts.linear { 0 } else { linear }..linear + place.dim {
                let weight = |value: u32| unique_rows[value as usize * parts.row_dim + at];
                let Some(&largest) =
                    values.iter().reduce(|a, b| if larger(weight(*a), weight(*b)) == weight(*a) { a } else { b })
                else {
                    break;
                };
                let gradient = if at < linear { g } else { dx[r * embedded + place.at + at - linear] };
                let place = (largest as usize).wrapping_sub(first).wrapping_mul(parts.row_dim).wrapping_add(at);
                if let Some(sum) = row_grads.get_mut(place) {
                    *sum += gradient;
                }
            }
        }
    }
}

kernel! {
    /// Adds to each unique row's gradient the gradients of its values: `g[r]` for the linear weight, `dx` (`[rows x slots * dim]`,
    /// `rows = g.len()`) for the embedding. Rows are added in batch order. `row_grads` has the unique rows from `first` on;
    /// values of other rows are left out, and so are slots whose largest values count and those of attention.
    fn scatter<'a>(bags: &'a BagView<'a>, parts: RowParts, g: &'a [f32], dx: &'a [f32], first: usize,
                   row_grads: &'a mut [f32]) {
        if !bags.places.is_empty() {
            return scatter_widths(bags, parts, g, dx, first, row_grads);
        }
        macro_rules! run {
            ($d:literal) => {
                match bags.value_weights {
                    None => scatter_rows::<$d, false>(bags, parts, g, dx, first, row_grads),
                    Some(_) => scatter_rows::<$d, true>(bags, parts, g, dx, first, row_grads),
                }
            };
        }
        by_width!(parts.dim, run);
    }
}

kernel! {
    /// As [`scatter`], for the embeddings of a slot whose values have a gradient each: `by_value`, row after row.
    fn scatter_values<'a>(bags: &'a BagView<'a>, parts: RowParts, slot: usize, rows: usize, by_value: &'a [f32], first: usize,
                          row_grads: &'a mut [f32]) {
        let mut by_value = by_value.chunks_exact(parts.dim);
        for row in 0..rows {
            for (&value, from) in bags.values(row, slot).iter().zip(by_value.by_ref()) {
                let at = (value as usize).wrapping_sub(first).wrapping_mul(parts.row_dim);
                let Some(row) = row_grads.get_mut(at..).and_then(|rows| rows.get_mut(..parts.row_dim)) else {
                    continue;
                };
                for (sum, &from) in row[parts.row_dim - parts.dim..].iter_mut().zip(from) {
                    *sum += from;
                }
            }
        }
    }
}

#[inline(always)]
fn scatter_rows<const D: usize, const WEIGHTED: bool>(
    bags: &BagView<'_>,
    parts: RowParts,
    g: &[f32],
    dx: &[f32],
    first: usize,
    row_grads: &mut [f32],
) {
    let dim = if D > 0 { D } else { parts.dim };
    for (r, &g) in g.iter().enumerate() {
        for slot in 0..bags.slots {
            if bags.takes_largest(slot) || bags.slot_vectors[slot] == SlotVector::Attention {
                continue;
            }
            let values = bags.values(r, slot);
            let own = if WEIGHTED { bags.weights(r, slot) } else { &[] };
            let scale = if WEIGHTED { bags.scale_of(slot, own) } else { bags.scale(slot, values.len()) };
            for (place, &value) in values.iter().enumerate() {
                let at = (value as usize).wrapping_sub(first).wrapping_mul(parts.row_dim);
                let Some(row) = row_grads.get_mut(at..).and_then(|rows| rows.get_mut(..parts.row_dim)) else {
                    continue;
                };
                let weight = if WEIGHTED { scale * own[place] } else { scale };
                if parts.linear {
                    row[0] += weight * g;
                }
                if dim > 0 {
                    let from = &dx[(r * bags.slots + slot) * dim..][..dim];
                    for (sum, &from) in row[parts.row_dim - dim..].iter_mut().zip(from) {
                        *sum += weight * from;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bags::SlotPlace;
    use super::*;

    fn case() -> impl Strategy<Value = (usize, usize, usize, bool, bool, Vec<Vec<u32>>)> {
        let dim = prop_oneof![Just(0usize), Just(3), Just(4), Just(10), Just(16)];
        (1usize..4, 1usize..5, dim, any::<bool>(), any::<bool>()).prop_flat_map(|(slots, rows, dim, linear, single)| {
            let counts = if single { 1..=1 } else { 0..=3 };
            let bag = prop::collection::vec(0u32..7, counts);
            (
                Just(slots),
                Just(rows),
                Just(dim),
                Just(linear || dim == 0),
                Just(single),
                prop::collection::vec(bag, slots * rows),
            )
        })
    }

    proptest! {
        #[test]
        fn gather_and_scatter_agree_with_slow_loops((slots, rows, dim, linear, single, bags) in case(), which in prop::array::uniform4(0usize..3),
                                                    pad in 0usize..3, skip in 0usize..2, cut in 0usize..8, weighted: bool, widths: bool) {
            let parts = RowParts { row_dim: dim + usize::from(linear), linear, dim };
            let unique: Vec<f32> = (0..7 * parts.row_dim).map(|i| (i * 7 % 23 / 2) as f32 - 6.0).collect();
            let inverse: Vec<u32> = bags.concat();
            let mut offsets = vec![0u32];
            for bag in &bags {
                offsets.push(offsets[offsets.len() - 1] + bag.len() as u32);
            }
            let first = skip.min(rows - 1);
            let pooling = which.map(|which| [Pooling::Sum, Pooling::Mean, Pooling::Max][which]);
            // With equal widths the loops over slots of several widths must agree, too.
            let places: Vec<SlotPlace> = (0..slots).filter(|_| widths && dim > 0).map(|slot| SlotPlace { at: slot * dim, dim }).collect();
            let weighted = weighted && !single;
            let value_weights: Vec<f32> = (0..inverse.len()).map(|i| (i * 3 % 5) as f32 * 0.5).collect();
            let view = BagView { slots, inverse: &inverse, offsets: (!single).then_some(&offsets), first, slot_vectors: &pooling.map(SlotVector::Pooled),
                                 value_weights: weighted.then_some(&value_weights), places: &places };
            let width = slots * dim + pad;
            let count = rows - first;
            let (mut logits, mut x) = (vec![9.0; count], vec![5.0; count * width]);
            gather(&view, parts, &unique, &mut logits, &mut x, width);

            // The weight of value `i` of a bag.
            let own = |bag: usize, i: usize| if weighted { value_weights[offsets[bag] as usize + i] } else { 1.0 };
            let weight = |bag: usize| match pooling[bag % slots] {
                Pooling::Mean => match (0..bags[bag].len()).map(|i| own(bag, i)).sum::<f32>() {
                    0.0 => 0.0,
                    sum => 1.0 / sum,
                },
                _ => 1.0,
            };
            // The place in `unique` of what the largest weight of a bag is, the first if there are several.
            let largest = |bag: &[u32], at: usize| {
                let place = |v: u32| v as usize * parts.row_dim + at;
                bag.iter().map(|&v| place(v)).fold(None, |best: Option<usize>, p| match best {
                    Some(best) if unique[best] >= unique[p] => Some(best),
                    _ => Some(p),
                })
            };
            let pooled = |of: usize, at: usize| {
                let (slot, bag) = (of % slots, &bags[of]);
                if pooling[slot] == Pooling::Max {
                    return largest(bag, at).map_or(0.0, |place| unique[place]);
                }
                let values = bag.iter().enumerate();
                weight(of) * values.map(|(i, &v)| own(of, i) * unique[v as usize * parts.row_dim + at]).sum::<f32>()
            };
            for r in 0..count {
                let own_bags = (first + r) * slots..(first + r + 1) * slots;
                let linear_sum: f32 = if linear { own_bags.clone().map(|bag| pooled(bag, 0)).sum() } else { 0.0 };
                prop_assert!((logits[r] - linear_sum).abs() < 1e-4);
                for (slot, bag) in own_bags.enumerate() {
                    for f in 0..dim {
                        let at = parts.row_dim - dim + f;
                        prop_assert!((x[r * width + slot * dim + f] - pooled(bag, at)).abs() < 1e-4);
                    }
                }
                prop_assert!(x[r * width + slots * dim..][..pad].iter().all(|&x| x == 5.0), "padding is left alone");
            }

            let g: Vec<f32> = (0..count).map(|r| r as f32 - 1.5).collect();
            let dx: Vec<f32> = (0..count * slots * dim).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut grads = vec![0.0f32; unique.len()];
            let cut = cut.min(7) * parts.row_dim;
            let (below, above) = grads.split_at_mut(cut);
            for (from, grads) in [(0, below), (cut / parts.row_dim, above)] {
                scatter(&view, parts, &g, &dx, from, grads);
                scatter_largest(&view, parts, &unique, (&g, &dx), from, grads);
            }
            let mut expected = vec![0.0f32; unique.len()];
            for r in 0..count {
                for slot in 0..slots {
                    let of = (first + r) * slots + slot;
                    let (bag, max) = (&bags[of], pooling[slot] == Pooling::Max);
                    for at in (0..parts.row_dim).filter(|_| max) {
                        let linear = parts.row_dim - dim;
                        let by = if at < linear { g[r] } else { dx[(r * slots + slot) * dim + at - linear] };
                        largest(bag, at).into_iter().for_each(|place| expected[place] += by);
                    }
                    for (i, &v) in bag.iter().enumerate().filter(|_| !max) {
                        let row = &mut expected[v as usize * parts.row_dim..][..parts.row_dim];
                        let weight = weight(of) * own(of, i);
                        if linear {
                            row[0] += weight * g[r];
                        }
                        for f in 0..dim {
                            row[parts.row_dim - dim + f] += weight * dx[(r * slots + slot) * dim + f];
                        }
                    }
                }
            }
            for (a, b) in grads.iter().zip(&expected) {
                prop_assert!((a - b).abs() < 1e-4, "{a} {b}");
            }
        }
    }
}
