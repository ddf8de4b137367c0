//! Gradient descent with momentum, PyTorch's form: `v = momentum * v + g; w -= lr * v`.
//! The state is the velocity.

use crate::optim::l2::with_l2;
use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update<const L2: bool>(w: &mut [f32], v: &mut [f32], g: &[f32], lr: f32, momentum: f32, l2: f32) {
    lanes!(w, v; g => {
        let g = with_l2::<L2>(g, *w, l2);
        *v = momentum * *v + g;
        *w -= lr * *v;
    });
}

#[cfg(test)]
mod tests {
    use crate::optim::{Update, twins};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(1), lr in 0.0f32..1.0, momentum in 0.0f32..1.0, l2 in twins::l2()) {
            twins::agree(Update::Momentum { lr, momentum, l2 }, row, |w, s, g| {
                s[0] = momentum * s[0] + twins::plus(g, l2, *w);
                *w -= lr * s[0];
            })?;
        }
    }
}
