//! Adam on the rows touched, with a global step: PyTorch's `SparseAdam` (Kingma and Ba 2014), and AdamW (Loshchilov and Hutter 2019).
//! The state is the moments `[m, v]`.

use forebay_base::LearningRate;

use crate::optim::l2::with_l2;
use crate::simd::lanes;

/// `lr sqrt(1 - beta2^t) / (1 - beta1^t)`, worked out in f64 once per push.
pub(crate) fn rate(lr: LearningRate, beta1: f32, beta2: f32, step: u64) -> f32 {
    // Beyond 2^31 steps every power that f32 constants allow is 0 or as good as.
    let t = i32::try_from(step).unwrap_or(i32::MAX);
    let correction = |beta: f32| 1.0 - decimal(beta).powi(t);
    (decimal(lr.peak as f32) * lr.share(step) * correction(beta2).sqrt() / correction(beta1)) as f32
}

/// The weight of the new gradient in a moving average: `1 - beta`.
pub(crate) fn new_share(beta: f32) -> f32 {
    (1.0 - decimal(beta)) as f32
}

/// The f64 that prints like this f32: 0.999 means 0.999, not 0.99900001287, whose distance from 1 is off by 1e-5.
fn decimal(v: f32) -> f64 {
    v.to_string().parse().expect("a float that was printed can be read")
}

/// What decoupled weight decay multiplies a weight with: `1 - lr * weight_decay`.
pub(crate) fn share_left(lr: LearningRate, weight_decay: f32, step: u64) -> f32 {
    (1.0 - lr.at(step) * decimal(weight_decay)) as f32
}

/// The constants of Adam in one push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    rate: f32,
    new_share1: f32,
    new_share2: f32,
    eps: f32,
}

impl Moments {
    /// The factors of a step, from 1.
    pub(crate) fn at(lr: LearningRate, beta1: f32, beta2: f32, eps: f32, step: u64) -> Moments {
        Moments { rate: rate(lr, beta1, beta2, step), new_share1: new_share(beta1), new_share2: new_share(beta2), eps }
    }
}

/// Decoupled weight decay: `w *= share_left`. `g` says how many weights there are.
#[inline(always)]
pub(crate) fn decay(w: &mut [f32], g: &[f32], share_left: f32) {
    lanes!(w; g => {
        let _ = g;
        *w *= share_left;
    });
}

#[inline(always)]
pub(crate) fn update<const L2: bool>(w: &mut [f32], s: &mut [f32], g: &[f32], moments: Moments, l2: f32) {
    let Moments { rate, new_share1, new_share2, eps } = moments;
    let (m, v) = s.split_at_mut(s.len() / 2);
    lanes!(w, m, v; g => {
        let g = with_l2::<L2>(g, *w, l2);
        *m += new_share1 * (g - *m);
        *v += new_share2 * (g * g - *v);
        *w -= rate * *m / (v.sqrt() + eps);
    });
}

#[cfg(test)]
mod tests {
    use super::Moments;
    use crate::optim::{Optimizer, Update, twins};
    use forebay_base::{Decay, LearningRate};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_its_twin(row in twins::rows(2), step in 1u64..1000, l2 in twins::l2()) {
            let update = Optimizer::Adam { lr: 0.01.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2 }.at_step(step);
            let Update::Adam { moments: Moments { rate, new_share1, new_share2, eps }, l2 } = update else { unreachable!() };
            twins::agree(update, row, |w, s, g| {
                let g = twins::plus(g, l2, *w);
                s[0] += new_share1 * (g - s[0]);
                s[1] += new_share2 * (g * g - s[1]);
                *w -= rate * s[0] / (s[1].sqrt() + eps);
            })?;
        }
    }

    proptest! {
        #[test]
        fn with_weight_decay_agrees_with_its_twin(row in twins::rows(2), step in 1u64..1000) {
            let lr = LearningRate { warmup_steps: 500, ..0.01.into() };
            let update = Optimizer::Adamw { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.3 }.at_step(step);
            let Update::Adamw { moments, share_left } = update else { unreachable!() };
            let Moments { rate, new_share1, new_share2, eps } = moments;
            let expected = (1.0 - 0.003 * lr.share(step)) as f32;
            prop_assert!((share_left - expected).abs() <= f32::EPSILON, "{} {}", share_left, expected);
            twins::agree(update, row, |w, s, g| {
                *w *= share_left;
                s[0] += new_share1 * (g - s[0]);
                s[1] += new_share2 * (g * g - s[1]);
                *w -= rate * s[0] / (s[1].sqrt() + eps);
            })?;
        }
    }

    #[test]
    fn a_rate_that_falls_is_a_share_of_the_constant_one() {
        let falls = LearningRate { decay: Decay::Steps { every: 10, factor: 0.25 }, ..0.5.into() };
        for (step, share) in [(9, 1.0), (10, 0.25), (25, 0.0625)] {
            assert_eq!(super::rate(falls, 0.9, 0.999, step), share * super::rate(0.5.into(), 0.9, 0.999, step));
        }
    }

    #[test]
    fn the_rate_settles_on_lr() {
        let near = |step, wanted: f64| {
            assert!((f64::from(super::rate(0.5.into(), 0.9, 0.999, step)) / wanted - 1.0).abs() < 1e-6)
        };
        near(1, 0.5 * 0.001f64.sqrt() / 0.1);
        near(2, 0.5 * (1.0 - 0.999f64.powi(2)).sqrt() / (1.0 - 0.81));
        near(1_000_000, 0.5);
        near(u64::MAX, 0.5);
    }
}
