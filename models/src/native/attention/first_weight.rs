//! The weight of an activation unit's first layer, rearranged for fewer products.
//!
//! The layer reads `[t | h | t - h | t * h]` with the weight `[W1 | W2 | W3 | W4]`. The product equals `t (W1 + W3) + h (W2 - W3) + (t * h)
//! W4`: the first term is computed once for each row, and each element needs half of the products.

use std::ops::Range;

/// `W1 + W3` and `[W2 - W3 | W4]`, row-major, or the gradients by these.
#[derive(Default)]
pub(super) struct FirstWeight {
    /// `[outputs x dim]`.
    pub(super) target: Vec<f32>,
    /// `[outputs x 2 dim]`.
    pub(super) element: Vec<f32>,
}

impl FirstWeight {
    /// From the weight, `[outputs x 4 dim]`.
    pub(super) fn take_from(&mut self, weight: &[f32], dim: usize) {
        self.resize(weight.len() / (4 * dim), dim);
        let own = self.target.chunks_exact_mut(dim).zip(self.element.chunks_exact_mut(2 * dim));
        for ((target, element), weight) in own.zip(weight.chunks_exact(4 * dim)) {
            for i in 0..dim {
                let [target_only, history, difference, product] = [0, 1, 2, 3].map(|part| weight[part * dim + i]);
                target[i] = target_only + difference;
                element[i] = history - difference;
                element[dim + i] = product;
            }
        }
    }

    /// Sets all numbers to 0.
    pub(super) fn clear(&mut self, outputs: usize, dim: usize) {
        self.target.clear();
        self.element.clear();
        self.resize(outputs, dim);
    }

    /// If these are gradients: adds them to the gradients of the weight, `grads[weight]`.
    pub(super) fn add_to(&self, grads: &mut [f32], weight: Range<usize>, dim: usize) {
        let own = self.target.chunks_exact(dim).zip(self.element.chunks_exact(2 * dim));
        for ((target, element), grads) in own.zip(grads[weight].chunks_exact_mut(4 * dim)) {
            for i in 0..dim {
                grads[i] += target[i];
                grads[dim + i] += element[i];
                grads[2 * dim + i] += target[i] - element[i];
                grads[3 * dim + i] += element[dim + i];
            }
        }
    }

    fn resize(&mut self, outputs: usize, dim: usize) {
        self.target.resize(outputs * dim, 0.0);
        self.element.resize(outputs * 2 * dim, 0.0);
    }
}
