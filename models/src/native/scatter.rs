//! From the gradients of pooled rows to the gradient of each unique row: each is the sum over its values, in batch order.
//!
//! Several threads may do it at once, each for its own part of the unique rows. Then the micro-batches list the values of each part
//! ([`ValueLists`]), and a thread adds up the gradients of its part, micro-batch after micro-batch: the order of the sums, and so their
//! bits, are as with one thread.
//!
//! Input: a batch that passed [`DenseBatch::check`](crate::DenseBatch::check); so every index here is within bounds.

use super::bags::{BagView, RowParts, SlotVector, by_width, larger};
use super::kernels::kernel;

/// A part has every n-th block of `1 << BLOCK_BITS` unique rows. Unique rows are numbered in the order in which the batch has them first,
/// so frequent keys have the first numbers: blocks are small, for parts with about as many values.
const BLOCK_BITS: u32 = 3;

/// A value of a bag that is pooled by sum or mean.
#[derive(Clone, Copy)]
pub(super) struct Value {
    unique: u32,
    /// The row of the batch that has it.
    row: u32,
    slot: u32,
    /// The factor of the gradient of its bag.
    weight: f32,
}

/// The values of a micro-batch, a list for each part of the unique rows, in batch order. Kept between steps.
#[derive(Default)]
pub(super) struct ValueLists(Vec<Vec<Value>>);

impl ValueLists {
    /// Lists the values of the first `rows` rows of `bags`, for `1 << part_bits` parts; for one part it makes no list.
    pub(super) fn list(&mut self, bags: &BagView<'_>, rows: usize, part_bits: u32) {
        self.0.resize_with(if part_bits == 0 { 0 } else { 1 << part_bits }, Vec::new);
        self.0.iter_mut().for_each(Vec::clear);
        if part_bits > 0 {
            list_values(bags, rows, &mut self.0);
        }
    }

    pub(super) fn of(&self, part: usize) -> &[Value] {
        &self.0[part]
    }
}

/// The gradients of the unique rows of a part.
pub(super) struct PartGrads<'a> {
    part: u32,
    part_bits: u32,
    row_dim: usize,
    /// Its blocks, each of `1 << BLOCK_BITS` rows or, at the end, fewer.
    blocks: Vec<&'a mut [f32]>,
}

impl<'a> PartGrads<'a> {
    /// The gradients of all unique rows, in `1 << part_bits` parts.
    pub(super) fn split(row_grads: &'a mut [f32], row_dim: usize, part_bits: u32) -> Vec<PartGrads<'a>> {
        let part = |part| PartGrads { part, part_bits, row_dim, blocks: Vec::new() };
        let mut parts: Vec<PartGrads<'a>> = (0..1 << part_bits).map(part).collect();
        let blocks = row_grads.chunks_mut(row_dim << BLOCK_BITS);
        blocks.enumerate().for_each(|(block, rows)| parts[block & ((1 << part_bits) - 1)].blocks.push(rows));
        parts
    }

    /// Its number.
    pub(super) fn part(&self) -> usize {
        self.part as usize
    }

    /// All of its gradients, block after block.
    pub(super) fn blocks(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.blocks.iter_mut().map(|block| &mut **block)
    }

    /// The gradient of a unique row; `None` if it is in another part.
    #[inline(always)]
    fn row(&mut self, unique: u32) -> Option<&mut [f32]> {
        let block = unique >> BLOCK_BITS;
        if block & ((1 << self.part_bits) - 1) != self.part {
            return None;
        }
        let first = (unique & ((1 << BLOCK_BITS) - 1)) as usize * self.row_dim;
        Some(&mut self.blocks[(block >> self.part_bits) as usize][first..][..self.row_dim])
    }
}

/// Calls `visit` with each value of the first `rows` rows, in batch order: the row, counted from the first of `bags`, the slot, the unique
/// row, and the weight. Leaves out slots that are pooled by max, and histories of attention.
#[inline(always)]
fn each_value<const WEIGHTED: bool>(bags: &BagView<'_>, rows: usize, mut visit: impl FnMut(usize, usize, u32, f32)) {
    for row in 0..rows {
        for slot in 0..bags.slots {
            if bags.takes_largest(slot) || bags.slot_vectors[slot] == SlotVector::Attention {
                continue;
            }
            let values = bags.values(row, slot);
            let own = if WEIGHTED { bags.weights(row, slot) } else { &[] };
            let scale = if WEIGHTED { bags.scale_of(slot, own) } else { bags.scale(slot, values.len()) };
            for (at, &unique) in values.iter().enumerate() {
                let weight = if WEIGHTED { scale * own[at] } else { scale };
                visit(row, slot, unique, weight);
            }
        }
    }
}

/// Adds the gradient of a value to the gradient of its unique row. `D` is the width of all embeddings, or 0 if only `bags` and `parts` know
/// it.
#[inline(always)]
fn add<const D: usize>(
    to: &mut [f32],
    (row, slot, weight): (usize, usize, f32),
    bags: &BagView<'_>,
    parts: RowParts,
    g: &[f32],
    dx: &[f32],
) {
    if parts.linear {
        to[0] += weight * g[row];
    }
    if parts.dim == 0 {
        return;
    }
    let from = if D > 0 {
        &dx[(row * bags.slots + slot) * D..][..D]
    } else {
        let place = bags.place(slot, parts);
        &dx[row * bags.embedded(parts) + place.at..][..place.dim]
    };
    for (sum, &from) in to[parts.row_dim - parts.dim..].iter_mut().zip(from) {
        *sum += weight * from;
    }
}

kernel! {
    /// Adds to each unique row's gradient the gradients of its values: `g[r]` for the linear weight, `dx` (`[rows x embedded]`, `rows =
    /// g.len()`) for the embedding. `bags` covers the whole batch. Leaves out the slots that `each_value` leaves out.
    fn scatter<'a>(bags: &'a BagView<'a>, parts: RowParts, g: &'a [f32], dx: &'a [f32], row_grads: &'a mut [f32]) {
        macro_rules! run {
            ($d:literal) => {
                match bags.value_weights {
                    None => scatter_all::<$d, false>(bags, parts, g, dx, row_grads),
                    Some(_) => scatter_all::<$d, true>(bags, parts, g, dx, row_grads),
                }
            };
        }
        if bags.places.is_empty() { by_width!(parts.dim, run) } else { run!(0) }
    }
}

#[inline(always)]
fn scatter_all<const D: usize, const WEIGHTED: bool>(
    bags: &BagView<'_>,
    parts: RowParts,
    g: &[f32],
    dx: &[f32],
    row_grads: &mut [f32],
) {
    each_value::<WEIGHTED>(
        bags,
        g.len(),
        #[inline(always)]
        |row, slot, unique, weight| {
            let to = &mut row_grads[unique as usize * parts.row_dim..][..parts.row_dim];
            add::<D>(to, (row, slot, weight), bags, parts, g, dx);
        },
    );
}

kernel! {
    /// As [`scatter`], for listed values of a part.
    fn scatter_listed<'a, 'b>(values: &'a [Value], bags: &'a BagView<'a>, parts: RowParts, g: &'a [f32], dx: &'a [f32],
                          grads: &'a mut PartGrads<'b>) {
        macro_rules! run {
            ($d:literal) => {
                for &Value { unique, row, slot, weight } in values {
                    if let Some(to) = grads.row(unique) {
                        add::<$d>(to, (row as usize, slot as usize, weight), bags, parts, g, dx);
                    }
                }
            };
        }
        if bags.places.is_empty() { by_width!(parts.dim, run) } else { run!(0) }
    }
}

kernel! {
    /// Adds the values of the first `rows` rows to the list of their part.
    fn list_values<'a>(bags: &'a BagView<'a>, rows: usize, lists: &'a mut [Vec<Value>]) {
        match bags.value_weights {
            None => list_all::<false>(bags, rows, lists),
            Some(_) => list_all::<true>(bags, rows, lists),
        }
    }
}

#[inline(always)]
fn list_all<const WEIGHTED: bool>(bags: &BagView<'_>, rows: usize, lists: &mut [Vec<Value>]) {
    let mask = lists.len() - 1;
    each_value::<WEIGHTED>(
        bags,
        rows,
        #[inline(always)]
        |row, slot, unique, weight| {
            let value = Value { unique, row: (bags.first + row) as u32, slot: slot as u32, weight };
            lists[(unique >> BLOCK_BITS) as usize & mask].push(value);
        },
    );
}

/// As [`scatter`], for the unique rows of a part and the slots whose largest values count: each number of a bag's gradient goes to the
/// first of the values that has the largest weight there.
pub(super) fn scatter_largest(
    bags: &BagView<'_>,
    parts: RowParts,
    unique_rows: &[f32],
    (g, dx): (&[f32], &[f32]),
    grads: &mut PartGrads<'_>,
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
                if let Some(row) = grads.row(largest) {
                    row[at] += gradient;
                }
            }
        }
    }
}

kernel! {
    /// As [`scatter`], for the unique rows of a part and the embeddings of a slot whose values have a gradient each: `by_value`, row after
    /// row.
    fn scatter_values<'a, 'b>(bags: &'a BagView<'a>, parts: RowParts, slot: usize, rows: usize, by_value: &'a [f32],
                          grads: &'a mut PartGrads<'b>) {
        let mut by_value = by_value.chunks_exact(parts.dim);
        for row in 0..rows {
            for (&value, from) in bags.values(row, slot).iter().zip(by_value.by_ref()) {
                let Some(row) = grads.row(value) else { continue };
                for (sum, &from) in row[parts.row_dim - parts.dim..].iter_mut().zip(from) {
                    *sum += from;
                }
            }
        }
    }
}
