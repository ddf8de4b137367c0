//! Plain gradient descent: `w -= lr * g`, with `g` the gradient and its L2 term. No state.

use crate::optim::l2::with_l2;
use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update<const L2: bool>(w: &mut [f32], g: &[f32], lr: f32, l2: f32) {
    lanes!(w; g => {
        let g = with_l2::<L2>(g, *w, l2);
        *w -= lr * g;
    });
}

#[cfg(test)]
mod tests {
    use crate::optim::{Update, twins};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(0), lr in 0.0f32..1.0, l2 in twins::l2()) {
            twins::agree(Update::Sgd { lr, l2 }, row, |w, _, g| *w -= lr * twins::plus(g, l2, *w))?;
        }
    }
}
