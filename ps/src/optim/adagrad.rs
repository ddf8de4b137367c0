//! Adagrad: `s += g²; w -= lr * g / (sqrt(s) + eps)` (Duchi, Hazan and Singer 2011; PyTorch's `Adagrad`).

use crate::optim::l2::with_l2;
use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update<const L2: bool>(w: &mut [f32], s: &mut [f32], g: &[f32], lr: f32, eps: f32, l2: f32) {
    lanes!(w, s; g => {
        let g = with_l2::<L2>(g, *w, l2);
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
        fn agrees_with_its_twin(row in twins::rows(1), lr in 0.0f32..1.0, l2 in twins::l2()) {
            twins::agree(Update::Adagrad { lr, eps: 1e-10, l2 }, row, |w, s, g| {
                let g = twins::plus(g, l2, *w);
                s[0] += g * g;
                *w -= lr * g / (s[0].sqrt() + 1e-10);
            })?;
        }
    }

    #[test]
    fn a_zero_gradient_on_a_new_row_changes_nothing() {
        let (mut w, mut s) = ([0.5], [0.0]);
        super::update::<false>(&mut w, &mut s, &[0.0], 0.1, 1e-10, 0.0);
        assert_eq!((w, s), ([0.5], [0.0]));
    }
}
