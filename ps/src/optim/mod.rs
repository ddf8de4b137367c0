//! How a gradient changes a row: six optimizers, each a plain loop over the weights of one part of one row.
//!
//! Only rows that are pushed change, once per step, as with PyTorch's `SparseAdam`, and its `Adagrad` on sparse gradients. A row that is
//! not pushed keeps its velocity ([`Optimizer::Momentum`]). L2 and weight decay change a row in each step that pushes it, even if its
//! gradient is 0, once per step.
//!
//! The loops are compiled for each vector width by [`crate::simd`]; each file holds its kernel and, in its tests, the
//! scalar twin that must agree with it to the bit. `tests/golden.rs` holds them against PyTorch's numbers.

use forebay_base::{LearningRate, LrReduction};
use serde::{Deserialize, Serialize};

pub(crate) mod adagrad;
pub(crate) mod adam;
pub(crate) mod ftrl;
pub(crate) mod l2;
pub(crate) mod momentum;
pub(crate) mod sgd;

use adam::Moments;

/// A gradient descent method with its constants. Formulas and defaults are PyTorch's where PyTorch has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Optimizer {
    /// `w -= lr * g`.
    Sgd {
        /// Learning rate, default 0.001.
        #[serde(default = "defaults::small_lr")]
        lr: LearningRate,
        /// L2 regularization, default 0: `g` is `gradient + l2 * w`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f32,
    },
    /// `v = momentum * v + g; w -= lr * v`.
    Momentum {
        /// Learning rate, default 0.001.
        #[serde(default = "defaults::small_lr")]
        lr: LearningRate,
        /// Share of the velocity that stays, default 0.9 (PyTorch's is 0, which is `sgd`).
        #[serde(default = "defaults::momentum")]
        momentum: f32,
        /// L2 regularization, default 0: `g` is `gradient + l2 * w`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f32,
    },
    /// `s += g²; w -= lr * g / (sqrt(s) + eps)` (Duchi, Hazan and Singer 2011).
    Adagrad {
        /// Learning rate, default 0.01.
        #[serde(default = "defaults::adagrad_lr")]
        lr: LearningRate,
        /// `s` of a new row, default 0.
        #[serde(default)]
        initial_accumulator: f32,
        /// Added to the root, default 1e-10.
        #[serde(default = "defaults::adagrad_eps")]
        eps: f32,
        /// L2 regularization, default 0: `g` is `gradient + l2 * w`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f32,
    },
    /// `m += (1 - beta1)(g - m); v += (1 - beta2)(g² - v);
    /// w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)`, `t` the global step: PyTorch's `SparseAdam`
    /// (Kingma and Ba 2014).
    Adam {
        /// Learning rate, default 0.001.
        #[serde(default = "defaults::small_lr")]
        lr: LearningRate,
        /// Decay of the first moment, default 0.9.
        #[serde(default = "defaults::momentum")]
        beta1: f32,
        /// Decay of the second moment, default 0.999.
        #[serde(default = "defaults::beta2")]
        beta2: f32,
        /// Added to the root, default 1e-8.
        #[serde(default = "defaults::adam_eps")]
        eps: f32,
        /// L2 regularization, default 0: `g` is `gradient + l2 * w`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f32,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019): `w *= 1 - lr * weight_decay` before the step of
    /// `adam`, with the `lr` of that step.
    Adamw {
        /// Learning rate, default 0.001.
        #[serde(default = "defaults::small_lr")]
        lr: LearningRate,
        /// Decay of the first moment, default 0.9.
        #[serde(default = "defaults::momentum")]
        beta1: f32,
        /// Decay of the second moment, default 0.999.
        #[serde(default = "defaults::beta2")]
        beta2: f32,
        /// Added to the root, default 1e-8.
        #[serde(default = "defaults::adam_eps")]
        eps: f32,
        /// Each step multiplies the weights of a pushed row by `1 - lr * weight_decay`; default 0.01.
        #[serde(default = "defaults::weight_decay")]
        weight_decay: f32,
    },
    /// FTRL-proximal per coordinate (McMahan et al. 2013, algorithm 1):
    /// `z += g - (sqrt(n + g²) - sqrt(n)) / alpha * w; n += g²;
    /// w = |z| <= l1 ? 0 : -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)`.
    ///
    /// `z` of a new row is chosen such that the formula gives the row's initial weights.
    Ftrl {
        /// Learning rate, default 0.1; for linear weights by the batch, as without the field.
        #[serde(default = "defaults::ftrl_alpha")]
        alpha: f32,
        /// Smooths the learning rate, default 1; for linear weights by the batch, as without the field.
        #[serde(default = "defaults::ftrl_beta")]
        beta: f32,
        /// Weight of the absolute values: makes rows sparse, default 0.
        #[serde(default)]
        l1: f32,
        /// Weight of the squares, default 0.
        #[serde(default)]
        l2: f32,
    },
}

mod defaults {
    use forebay_base::LearningRate;

    pub(super) fn small_lr() -> LearningRate {
        1e-3.into()
    }
    pub(super) fn momentum() -> f32 {
        0.9
    }
    pub(super) fn adagrad_lr() -> LearningRate {
        1e-2.into()
    }
    pub(super) fn adagrad_eps() -> f32 {
        1e-10
    }
    pub(super) fn beta2() -> f32 {
        0.999
    }
    pub(super) fn adam_eps() -> f32 {
        1e-8
    }
    pub(super) fn weight_decay() -> f32 {
        0.01
    }
    pub(super) fn ftrl_alpha() -> f32 {
        0.1
    }
    pub(super) fn ftrl_beta() -> f32 {
        1.0
    }
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

impl Optimizer {
    /// Floats of state per weight: 0, 1 or 2.
    ///
    /// The state of a part of `dim` weights is `dim` floats of each kind, one kind after the other: momentum `[v]`,
    /// Adagrad `[s]`, Adam and AdamW `[m, v]`, FTRL `[z, n]`.
    pub fn state_per_weight(&self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } | Self::Adamw { .. } | Self::Ftrl { .. } => 2,
        }
    }

    /// Checks the constants; the error names the constant, what was found and what was expected.
    pub fn check(&self) -> Result<(), String> {
        let positive = |name: &str, v: f32| match v.is_finite() && v > 0.0 {
            true => Ok(()),
            false => Err(format!("{name} is {v}; expected a finite number above 0")),
        };
        let not_negative = |name: &str, v: f32| match v.is_finite() && v >= 0.0 {
            true => Ok(()),
            false => Err(format!("{name} is {v}; expected a finite number, at least 0")),
        };
        let below_one = |name: &str, v: f32| match (0.0..1.0).contains(&v) {
            true => Ok(()),
            false => Err(format!("{name} is {v}; expected at least 0 and less than 1")),
        };
        match *self {
            Self::Sgd { lr, l2 } => lr.check().and(not_negative("l2", l2)),
            Self::Momentum { lr, momentum, l2 } => {
                lr.check().and(below_one("momentum", momentum)).and(not_negative("l2", l2))
            }
            Self::Adagrad { lr, initial_accumulator, eps, l2 } => lr
                .check()
                .and(not_negative("initial_accumulator", initial_accumulator))
                .and(positive("eps", eps))
                .and(not_negative("l2", l2)),
            Self::Adam { lr, beta1, beta2, eps, l2 } => lr
                .check()
                .and(below_one("beta1", beta1))
                .and(below_one("beta2", beta2))
                .and(positive("eps", eps))
                .and(not_negative("l2", l2)),
            Self::Adamw { lr, beta1, beta2, eps, weight_decay } => lr
                .check()
                .and(below_one("beta1", beta1))
                .and(below_one("beta2", beta2))
                .and(positive("eps", eps))
                .and(not_negative("weight_decay", weight_decay)),
            Self::Ftrl { alpha, beta, l1, l2 } => positive("alpha", alpha)
                .and(positive("beta", beta))
                .and(not_negative("l1", l1))
                .and(not_negative("l2", l2)),
        }
    }

    /// The same optimizer with a reduced learning rate. FTRL has no learning rate, and stays as it is.
    pub(crate) fn reduced(mut self, reduction: LrReduction) -> Self {
        match &mut self {
            Self::Sgd { lr, .. }
            | Self::Momentum { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::Adamw { lr, .. } => lr.reduction = reduction,
            Self::Ftrl { .. } => {}
        }
        self
    }

    /// The optimizer with all that is constant over one push worked out; `step` counts from 1.
    pub(crate) fn at_step(&self, step: u64) -> Update {
        match *self {
            Self::Sgd { lr, l2 } => Update::Sgd { lr: lr.at(step) as f32, l2 },
            Self::Momentum { lr, momentum, l2 } => Update::Momentum { lr: lr.at(step) as f32, momentum, l2 },
            Self::Adagrad { lr, eps, l2, .. } => Update::Adagrad { lr: lr.at(step) as f32, eps, l2 },
            Self::Adam { lr, beta1, beta2, eps, l2 } => {
                Update::Adam { moments: Moments::at(lr, beta1, beta2, eps, step), l2 }
            }
            Self::Adamw { lr, beta1, beta2, eps, weight_decay } => Update::Adamw {
                moments: Moments::at(lr, beta1, beta2, eps, step),
                share_left: adam::share_left(lr, weight_decay, step),
            },
            Self::Ftrl { alpha, beta, l1, l2 } => Update::Ftrl { alpha, beta, l1, l2 },
        }
    }

    /// Writes the state of a new row whose weights are `w`.
    pub(crate) fn init_state(&self, w: &[f32], state: &mut [f32]) {
        match *self {
            Self::Sgd { .. } | Self::Momentum { .. } | Self::Adam { .. } | Self::Adamw { .. } => state.fill(0.0),
            Self::Adagrad { initial_accumulator, .. } => state.fill(initial_accumulator),
            Self::Ftrl { alpha, beta, l1, l2 } => ftrl::init_state(w, state, alpha, beta, l1, l2),
        }
    }

    /// The part of the state that holds sums of squares, which are never below zero.
    pub(crate) fn squares<'a>(&self, dim: usize, state: &'a [f32]) -> &'a [f32] {
        match self {
            Self::Sgd { .. } | Self::Momentum { .. } => &[],
            Self::Adagrad { .. } => state,
            Self::Adam { .. } | Self::Adamw { .. } | Self::Ftrl { .. } => &state[dim..],
        }
    }
}

/// An [`Optimizer`] at one step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Update {
    Sgd { lr: f32, l2: f32 },
    Momentum { lr: f32, momentum: f32, l2: f32 },
    Adagrad { lr: f32, eps: f32, l2: f32 },
    Adam { moments: Moments, l2: f32 },
    Adamw { moments: Moments, share_left: f32 },
    Ftrl { alpha: f32, beta: f32, l1: f32, l2: f32 },
}

impl Update {
    /// Changes the weights `w` and the state `s` of one part of one row by its gradient `g`.
    #[inline(always)]
    pub(crate) fn apply(&self, w: &mut [f32], s: &mut [f32], g: &[f32]) {
        match *self {
            // Without L2 the gradient stays as it is, to the bit.
            Self::Sgd { lr, l2: 0.0 } => sgd::update::<false>(w, g, lr, 0.0),
            Self::Sgd { lr, l2 } => sgd::update::<true>(w, g, lr, l2),
            Self::Momentum { lr, momentum, l2: 0.0 } => momentum::update::<false>(w, s, g, lr, momentum, 0.0),
            Self::Momentum { lr, momentum, l2 } => momentum::update::<true>(w, s, g, lr, momentum, l2),
            Self::Adagrad { lr, eps, l2: 0.0 } => adagrad::update::<false>(w, s, g, lr, eps, 0.0),
            Self::Adagrad { lr, eps, l2 } => adagrad::update::<true>(w, s, g, lr, eps, l2),
            Self::Adam { moments, l2: 0.0 } => adam::update::<false>(w, s, g, moments, 0.0),
            Self::Adam { moments, l2 } => adam::update::<true>(w, s, g, moments, l2),
            Self::Adamw { moments, share_left } => {
                adam::decay(w, g, share_left);
                adam::update::<false>(w, s, g, moments, 0.0);
            }
            Self::Ftrl { alpha, beta, l1, l2 } => ftrl::update(w, s, g, alpha, beta, l1, l2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LearningRate, Optimizer, Update};

    #[test]
    fn a_learning_rate_warms_up_in_every_optimizer_that_has_one() {
        let lr = LearningRate { warmup_steps: 4, ..0.5.into() };
        for (step, expected) in [(1, 0.125), (3, 0.375), (4, 0.5), (9, 0.5)] {
            let adagrad = Optimizer::Adagrad { lr, initial_accumulator: 0.0, eps: 1e-10, l2: 0.0 };
            let momentum = Optimizer::Momentum { lr, momentum: 0.9, l2: 0.0 };
            for optimizer in [Optimizer::Sgd { lr, l2: 0.0 }, momentum, adagrad] {
                let (Update::Sgd { lr, .. } | Update::Momentum { lr, .. } | Update::Adagrad { lr, .. }) =
                    optimizer.at_step(step)
                else {
                    unreachable!()
                };
                assert_eq!(lr, expected, "{optimizer:?} at {step}");
            }
        }
        assert!(Optimizer::Sgd { lr: (-1.0).into(), l2: 0.0 }.check().unwrap_err().contains("lr is -1"));
    }
}

#[cfg(test)]
mod batch_sizes {
    //! What `docs/optimizers.md` says of the batch size: a mean over `b` rows divides gradients by `b`.

    use super::Optimizer;

    /// The weight after steps with these gradients, each divided by `b`.
    fn weight(optimizer: Optimizer, gradients: &[f32], b: f32) -> f32 {
        let (mut w, mut state) = ([0.3], vec![0.0; optimizer.state_per_weight()]);
        optimizer.init_state(&w, &mut state);
        for (step, g) in gradients.iter().enumerate() {
            optimizer.at_step(step as u64 + 1).apply(&mut w, &mut state, &[g / b]);
        }
        w[0]
    }

    #[test]
    fn settings_that_follow_the_batch_size_give_a_rare_key_the_same_weights() {
        let gradients = [0.7, -0.2, 0.05, 0.4, -0.9, 0.01];
        let of = |b: f32| {
            let (lr, eps) = (0.05.into(), 1e-3 / b);
            [
                Optimizer::Sgd { lr: (0.05 * f64::from(b)).into(), l2: 0.1 / b },
                Optimizer::Momentum { lr: (0.05 * f64::from(b)).into(), momentum: 0.9, l2: 0.1 / b },
                Optimizer::Adagrad { lr, initial_accumulator: 0.5 / (b * b), eps, l2: 0.1 / b },
                Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, eps, l2: 0.1 / b },
                Optimizer::Adamw { lr, beta1: 0.9, beta2: 0.999, eps, weight_decay: 0.1 },
                Optimizer::Ftrl { alpha: 0.1, beta: 1.0 / b, l1: 0.2 / b, l2: 0.3 / b },
            ]
        };
        for (one, many) in of(1.0).into_iter().zip(of(4096.0)) {
            let (expected, found) = (weight(one, &gradients, 1.0), weight(many, &gradients, 4096.0));
            assert!((found - expected).abs() < 1e-5, "{many:?}: {found} and {expected}");
            assert!((weight(one, &gradients, 4096.0) - expected).abs() > 1e-3, "the same settings: {one:?}");
        }
    }

    #[test]
    fn first_steps_are_those_of_the_document() {
        let adagrad = |a, g| {
            0.3 - weight(
                Optimizer::Adagrad { lr: 0.05.into(), initial_accumulator: a, eps: 1e-10, l2: 0.0 },
                &[g],
                4096.0,
            )
        };
        assert!((adagrad(0.0, 0.9) - 0.05).abs() < 1e-4 && (adagrad(0.0, 0.001) - 0.05).abs() < 1e-4);
        assert!(adagrad(1.0 / (4096.0 * 4096.0), 0.001) < 1e-4);
        let optimizer = Optimizer::Adam { lr: 0.01.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        let first = |g: f32| {
            let (mut w, mut state) = ([0.0], [0.0; 2]);
            optimizer.at_step(1_000_000).apply(&mut w, &mut state, &[g / 4096.0]);
            -w[0] / 0.01
        };
        assert!(
            (first(0.5) - 3.16).abs() < 0.05 && (first(0.0013) - 1.58).abs() < 0.05,
            "{} {}",
            first(0.5),
            first(0.0013)
        );
        // Rows that all have the error 1.
        let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 1.0, l2: 0.0 };
        let (mut w, mut state) = ([0.0], [0.0; 2]);
        let rows = (1..=5000).find(|&row| {
            ftrl.at_step(row).apply(&mut w, &mut state, &[1.0 / 4096.0]);
            w[0] != 0.0
        });
        assert_eq!(rows, Some(4097));
    }
}

#[cfg(test)]
pub(crate) mod twins {
    //! Runs a kernel under every width against its scalar twin.

    use proptest::prelude::*;

    use super::Update;
    use crate::simd::{Kernel, dispatch};

    struct Apply<'a>(Update, &'a mut [f32], &'a mut [f32], &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run(self) {
            self.0.apply(self.1, self.2, self.3);
        }
    }

    /// `w`, `s` (of `per` floats per weight, not negative) and `g` of one row.
    pub(crate) fn rows(per: usize) -> impl Strategy<Value = (Vec<f32>, Vec<f32>, Vec<f32>)> {
        (1usize..40).prop_flat_map(move |dim| {
            (
                prop::collection::vec(-2.0f32..2.0, dim),
                prop::collection::vec(0.0f32..3.0, dim * per),
                prop::collection::vec(prop_oneof![Just(0.0f32), -3.0f32..3.0], dim),
            )
        })
    }

    /// An `l2` of 0 in half of the cases, else up to 0.5.
    pub(crate) fn l2() -> impl Strategy<Value = f32> {
        prop_oneof![Just(0.0f32), 0.0f32..0.5]
    }

    /// `g + l2 * w`; `g` to the bit if `l2` is 0.
    pub(crate) fn plus(g: f32, l2: f32, w: f32) -> f32 {
        if l2 == 0.0 { g } else { g + l2 * w }
    }

    /// Whether kernel and `twin` (weight, state of this weight, gradient) agree to the bit.
    pub(crate) fn agree(
        update: Update,
        (w, s, g): (Vec<f32>, Vec<f32>, Vec<f32>),
        twin: impl Fn(&mut f32, &mut [f32], f32),
    ) -> Result<(), TestCaseError> {
        let (mut wide_w, mut wide_s) = (w.clone(), s.clone());
        dispatch(Apply(update, &mut wide_w, &mut wide_s, &g));
        let (dim, per) = (w.len(), s.len() / w.len());
        for i in 0..dim {
            let (mut wi, mut si) = (w[i], (0..per).map(|k| s[k * dim + i]).collect::<Vec<_>>());
            twin(&mut wi, &mut si, g[i]);
            prop_assert_eq!(wide_w[i].to_bits(), wi.to_bits(), "weight {} of {}", i, dim);
            for k in 0..per {
                prop_assert_eq!(wide_s[k * dim + i].to_bits(), si[k].to_bits(), "state {} of weight {}", k, i);
            }
        }
        Ok(())
    }
}
