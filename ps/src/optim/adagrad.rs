//! Adagrad: `s += g²; w -= lr * g / (sqrt(s) + eps)` (Duchi, Hazan and Singer 2011; PyTorch's `Adagrad`).
//!
//! In and out: one part of one row, its state the sums of squares; nothing blocks.

use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update(w: &mut [f32], s: &mut [f32], g: &[f32], lr: f32, eps: f32) {
    lanes!(w, s; g => {
        *s += g * g;
        *w -= lr * g / (s.sqrt() + eps);
    });
}

#[cfg(test)]
mod tests {
    use crate::optim::{Update, twins};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(1), lr in 0.0f32..1.0) {
            twins::agree(Update::Adagrad { lr, eps: 1e-10 }, row, |w, s, g| {
                s[0] += g * g;
                *w -= lr * g / (s[0].sqrt() + 1e-10);
            })?;
        }
    }

    #[test]
    fn a_zero_gradient_on_a_new_row_changes_nothing() {
        let (mut w, mut s) = ([0.5], [0.0]);
        super::update(&mut w, &mut s, &[0.0], 0.1, 1e-10);
        assert_eq!((w, s), ([0.5], [0.0]));
    }
}
