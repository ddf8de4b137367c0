//! Plain gradient descent: `w -= lr * g`. No state. In and out: one part of one row; nothing blocks.

use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update(w: &mut [f32], g: &[f32], lr: f32) {
    lanes!(w; g => {
        *w -= lr * g;
    });
}

#[cfg(test)]
mod tests {
    use crate::optim::{Update, twins};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(0), lr in 0.0f32..1.0) {
            twins::agree(Update::Sgd { lr }, row, |w, _, g| *w -= lr * g)?;
        }
    }
}
