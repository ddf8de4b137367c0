//! FTRL-proximal per coordinate: McMahan et al., "Ad click prediction: a view from the trenches", 2013, algorithm 1.
//! The state is `[z, n]`.

use crate::simd::lanes;

#[inline(always)]
pub(crate) fn update(w: &mut [f32], s: &mut [f32], g: &[f32], alpha: f32, beta: f32, l1: f32, l2: f32) {
    let (z, n) = s.split_at_mut(s.len() / 2);
    lanes!(w, z, n; g => {
        let (before, sum) = (n.sqrt(), *n + g * g);
        let after = sum.sqrt();
        *z += g - (after - before) / alpha * *w;
        *n = sum;
        *w = weight(*z, after, alpha, beta, l1, l2);
    });
}

/// The weight that `z` and the root of `n` stand for.
#[inline(always)]
fn weight(z: f32, root: f32, alpha: f32, beta: f32, l1: f32, l2: f32) -> f32 {
    // `-(z - sign(z) l1)` without a branch, and 0 where |z| <= l1.
    let beyond = (z.abs() - l1).max(0.0);
    -beyond.copysign(z) / ((beta + root) / alpha + l2)
}

/// The `z` that stands for `w` at `n = 0`.
pub(crate) fn init_state(w: &[f32], state: &mut [f32], alpha: f32, beta: f32, l1: f32, l2: f32) {
    let (z, n) = state.split_at_mut(w.len());
    n.fill(0.0);
    for (w, z) in w.iter().zip(z) {
        *z = if *w == 0.0 { 0.0 } else { -(*w * (beta / alpha + l2) + l1.copysign(*w)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Update, twins};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(2), alpha in 0.01f32..1.0, l1 in 0.0f32..1.0, l2 in 0.0f32..1.0) {
            let beta = 1.0;
            twins::agree(Update::Ftrl { alpha, beta, l1, l2 }, row, |w, s, g| {
                let [z, n] = s else { unreachable!() };
                let sigma = ((*n + g * g).sqrt() - n.sqrt()) / alpha;
                *z += g - sigma * *w;
                *n += g * g;
                // Zeros carry the sign the kernel gives them.
                *w = if z.abs() <= l1 { -0.0f32.copysign(*z) }
                     else { -(*z - l1.copysign(*z)) / ((beta + n.sqrt()) / alpha + l2) };
            })?;
        }

        #[test]
        fn new_rows_keep_their_weights(w in prop_oneof![Just(0.0f32), -1.0f32..1.0], l1 in 0.0f32..1.0, l2 in 0.0f32..1.0) {
            let mut state = [0.0; 2];
            init_state(&[w], &mut state, 0.1, 1.0, l1, l2);
            prop_assert!((weight(state[0], 0.0, 0.1, 1.0, l1, l2) - w).abs() <= 1e-6);
        }
    }

    #[test]
    fn l1_makes_small_sums_zero() {
        let (mut w, mut s) = ([0.0], [0.0, 0.0]);
        update(&mut w, &mut s, &[0.5], 0.1, 1.0, 1.0, 0.0);
        assert_eq!(w[0], 0.0);
        update(&mut w, &mut s, &[1.0], 0.1, 1.0, 1.0, 0.0);
        assert!(w[0] < 0.0);
    }
}
