//! Gradient descent with momentum, PyTorch's form: `v = momentum * v + g; w -= lr * v`.
//!
//! In and out: one part of one row, its state the velocity; nothing blocks.

use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update(w: &mut [f32], v: &mut [f32], g: &[f32], lr: f32, momentum: f32) {
    lanes!(w, v; g => {
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
        fn agrees_with_its_twin(row in twins::rows(1), lr in 0.0f32..1.0, momentum in 0.0f32..1.0) {
            twins::agree(Update::Momentum { lr, momentum }, row, |w, s, g| {
                s[0] = momentum * s[0] + g;
                *w -= lr * s[0];
            })?;
        }
    }
}
