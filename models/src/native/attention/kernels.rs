//! Loops over the elements of histories.

use super::super::bags::by_width;
use super::super::kernels::{dot, kernel};

/// A value of a history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    /// Its row in the chunk.
    pub(super) row: u32,
    /// Its unique row.
    pub(super) value: u32,
}

/// Vectors of one slot in rows that are `width` numbers apart.
#[derive(Clone, Copy)]
pub(super) struct SlotVectors<'a> {
    /// The numbers from the first vector on.
    pub(super) from: &'a [f32],
    pub(super) width: usize,
}

impl<'a> SlotVectors<'a> {
    #[inline(always)]
    fn of(&self, element: Element, dim: usize) -> &'a [f32] {
        &self.from[element.row as usize * self.width..][..dim]
    }
}

kernel! {
    /// `[element | target * element]` of each element: `input` is `[elements x 2 dim]`. An embedding lies at the end of its unique row.
    fn fill_input<'a>(elements: &'a [Element], unique_rows: &'a [f32], row_dim: usize, targets: SlotVectors<'a>, dim: usize,
                      input: &'a mut [f32]) {
        macro_rules! run {
            ($d:literal) => {{
                let dim = if $d > 0 { $d } else { dim };
                for (&element, input) in elements.iter().zip(input.chunks_exact_mut(2 * dim)) {
                    let history = &unique_rows[(element.value as usize + 1) * row_dim - dim..][..dim];
                    let (copy, product) = input.split_at_mut(dim);
                    copy.copy_from_slice(history);
                    for ((product, &history), &target) in product.iter_mut().zip(history).zip(targets.of(element, dim)) {
                        *product = history * target;
                    }
                }
            }};
        }
        by_width!(dim, run);
    }
}

kernel! {
    /// `y[element] += rows[its row]`, both `width` wide.
    fn add_row_of_each<'a>(elements: &'a [Element], rows: &'a [f32], width: usize, y: &'a mut [f32]) {
        for (element, y) in elements.iter().zip(y.chunks_exact_mut(width)) {
            for (y, &own) in y.iter_mut().zip(&rows[element.row as usize * width..][..width]) {
                *y += own;
            }
        }
    }
}

kernel! {
    /// `rows[row] += sum over its elements of y[element]`, both `width` wide.
    fn sum_of_each_row<'a>(elements: &'a [Element], y: &'a [f32], width: usize, rows: &'a mut [f32]) {
        for (element, y) in elements.iter().zip(y.chunks_exact(width)) {
            for (sum, &y) in rows[element.row as usize * width..][..width].iter_mut().zip(y) {
                *sum += y;
            }
        }
    }
}

kernel! {
    /// `pooled[row] += sum over its elements of score * element`; rows of `pooled` are `width` apart.
    fn weighted_sums<'a>(elements: &'a [Element], scores: &'a [f32], input: &'a [f32], dim: usize, pooled: &'a mut [f32],
                         width: usize) {
        macro_rules! run {
            ($d:literal) => {{
                let dim = if $d > 0 { $d } else { dim };
                for ((element, &score), input) in elements.iter().zip(scores).zip(input.chunks_exact(2 * dim)) {
                    let sum = &mut pooled[element.row as usize * width..][..dim];
                    for (sum, &history) in sum.iter_mut().zip(&input[..dim]) {
                        *sum += score * history;
                    }
                }
            }};
        }
        by_width!(dim, run);
    }
}

kernel! {
    /// Backward of `weighted_sums`, from the gradient of the sums, `by_sum`: `by_score`, and sets `by_element`, `[elements x dim]`.
    fn weighted_sums_backward<'a>(elements: &'a [Element], scores: &'a [f32], input: &'a [f32], dim: usize,
                                  by_sum: SlotVectors<'a>, by_score: &'a mut [f32], by_element: &'a mut [f32]) {
        macro_rules! run {
            ($d:literal) => {{
                let dim = if $d > 0 { $d } else { dim };
                let gradients = by_score.iter_mut().zip(by_element.chunks_exact_mut(dim));
                let forward = elements.iter().zip(scores).zip(input.chunks_exact(2 * dim));
                for (((&element, &score), input), (by_score, by_element)) in forward.zip(gradients) {
                    let by_sum = by_sum.of(element, dim);
                    *by_score = dot(by_sum, &input[..dim]);
                    for (to, &by_sum) in by_element.iter_mut().zip(by_sum) {
                        *to = score * by_sum;
                    }
                }
            }};
        }
        by_width!(dim, run);
    }
}

kernel! {
    /// Backward of `fill_input`, from the gradient of the input: adds to `by_element`, and to `by_target`, whose rows are `width` apart.
    fn fill_input_backward<'a>(elements: &'a [Element], by_input: &'a [f32], input: &'a [f32], targets: SlotVectors<'a>,
                               dim: usize, by_element: &'a mut [f32], by_target: &'a mut [f32], width: usize) {
        macro_rules! run {
            ($d:literal) => {{
                let dim = if $d > 0 { $d } else { dim };
                let inputs = by_input.chunks_exact(2 * dim).zip(input.chunks_exact(2 * dim));
                for ((&element, (by_input, input)), by_element) in
                    elements.iter().zip(inputs).zip(by_element.chunks_exact_mut(dim))
                {
                    let (by_copy, by_product) = by_input.split_at(dim);
                    let by_target = &mut by_target[element.row as usize * width..][..dim];
                    let (target, history) = (targets.of(element, dim), &input[..dim]);
                    for i in 0..dim {
                        by_element[i] += by_copy[i] + by_product[i] * target[i];
                        by_target[i] += by_product[i] * history[i];
                    }
                }
            }};
        }
        by_width!(dim, run);
    }
}
