//! From unique rows to pooled rows. `scatter.rs` is the way back.
//!
//! Input: a batch that passed [`DenseBatch::check`](crate::DenseBatch::check); so every index here is within bounds.

use super::bags::{BagView, RowParts, SlotVector, by_width, larger};
use super::kernels::kernel;
use super::widths::gather_widths;
use crate::Pooling;

kernel! {
    /// Sets `logits` to the pooled linear weights summed over slots (zero without a linear part), and the first `slots * dim` numbers of
    /// each row of `x` (rows `width` apart) to the pooled embeddings; an empty bag gives zeros. Attention replaces the vectors of its
    /// histories later.
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
                // Without weights the compiler omits the product.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bags::SlotPlace;
    use super::super::scatter::{PartGrads, ValueLists, scatter, scatter_largest, scatter_listed};
    use super::*;

    const UNIQUE: usize = 40;

    fn case() -> impl Strategy<Value = (usize, usize, usize, bool, bool, Vec<Vec<u32>>)> {
        let dim = prop_oneof![Just(0usize), Just(3), Just(4), Just(10), Just(16)];
        (1usize..4, 1usize..5, dim, any::<bool>(), any::<bool>()).prop_flat_map(|(slots, rows, dim, linear, single)| {
            let counts = if single { 1..=1 } else { 0..=3 };
            let bag = prop::collection::vec(0u32..UNIQUE as u32, counts);
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
                                                    pad in 0usize..3, skip in 0usize..2, part_bits in 0u32..4, weighted: bool, widths: bool) {
            let parts = RowParts { row_dim: dim + usize::from(linear), linear, dim };
            let unique: Vec<f32> = (0..UNIQUE * parts.row_dim).map(|i| (i * 7 % 23 / 2) as f32 - 6.0).collect();
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

            let g: Vec<f32> = (0..rows).map(|r| r as f32 - 1.5).collect();
            let dx: Vec<f32> = (0..rows * slots * dim).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let whole = BagView { first: 0, ..view };
            let mut grads = vec![0.0f32; unique.len()];
            scatter(&whole, parts, &g, &dx, &mut grads);
            // Listed by two micro-batches, for all parts.
            let lists = [(whole, first), (view, count)].map(|(bags, rows)| {
                let mut lists = ValueLists::default();
                lists.list(&bags, rows, part_bits);
                lists
            });
            let mut listed = vec![0.0f32; unique.len()];
            for mut part in PartGrads::split(&mut listed, parts.row_dim, part_bits) {
                for lists in lists.iter().filter(|_| part_bits > 0) {
                    scatter_listed(lists.of(part.part()), &whole, parts, &g, &dx, &mut part);
                }
            }
            if part_bits > 0 {
                prop_assert_eq!(&listed, &grads, "the same bits");
            }
            for mut part in PartGrads::split(&mut grads, parts.row_dim, part_bits) {
                scatter_largest(&whole, parts, &unique, (&g, &dx), &mut part);
            }
            let mut expected = vec![0.0f32; unique.len()];
            for r in 0..rows {
                for slot in 0..slots {
                    let of = r * slots + slot;
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
