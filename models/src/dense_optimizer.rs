//! The optimizers of the dense parameters: settings, state, and the update of a range of parameters.
//!
//! The native model and the dense blocks of the ps processes run [`DenseOptimizer::update`]; `torch/dense_optimizer.rs` has the same
//! formulas over tensors. Formulas and defaults are as in `torch.optim` (SGD, Adagrad, Adam, whose `weight_decay` is `l2` here, AdamW; no
//! AMSGrad). The optimizers of the sparse tables are in the ps crate.
//!
//! To add one: "A dense optimizer" in `docs/changing.md`.

use forebay_base::{LearningRate, LrReduction};
use serde::{Deserialize, Serialize};

use crate::ModelError;

/// The optimizer of the dense parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DenseOptimizer {
    /// `p -= lr * g`.
    Sgd {
        /// Learning rate.
        #[serde(default = "lr_1e_3")]
        lr: LearningRate,
        /// L2 regularization of all dense parameters, biases too, default 0: `g` is `gradient + l2 * p`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f64,
    },
    /// `v = momentum * v + g; p -= lr * v`.
    Momentum {
        /// Learning rate.
        #[serde(default = "lr_1e_3")]
        lr: LearningRate,
        /// Share of the velocity that is kept.
        #[serde(default = "nine_tenths")]
        momentum: f64,
        /// L2 regularization of all dense parameters, biases too, default 0: `g` is `gradient + l2 * p`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f64,
    },
    /// `s += g^2; p -= lr * g / (sqrt(s) + eps)` (Duchi, Hazan, Singer, JMLR 2011).
    Adagrad {
        /// Learning rate.
        #[serde(default = "lr_1e_2")]
        lr: LearningRate,
        /// Where `s` starts.
        #[serde(default)]
        initial_accumulator: f64,
        /// Keeps the division finite.
        #[serde(default = "adagrad_eps")]
        eps: f64,
        /// L2 regularization of all dense parameters, biases too, default 0: `g` is `gradient + l2 * p`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f64,
    },
    /// Adam with bias correction (Kingma, Ba, ICLR 2015).
    Adam {
        /// Learning rate.
        #[serde(default = "lr_1e_3")]
        lr: LearningRate,
        /// Decay of the first moment.
        #[serde(default = "nine_tenths")]
        beta1: f64,
        /// Decay of the second moment.
        #[serde(default = "adam_beta2")]
        beta2: f64,
        /// Keeps the division finite.
        #[serde(default = "adam_eps")]
        eps: f64,
        /// L2 regularization of all dense parameters, biases too, default 0: `g` is `gradient + l2 * p`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l2: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov, Hutter, ICLR 2019): `p *= 1 - lr * weight_decay;
    /// m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
    /// p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)`, `t` the step from 1. All dense parameters
    /// decay, biases too.
    Adamw {
        /// Learning rate.
        #[serde(default = "lr_1e_3")]
        lr: LearningRate,
        /// Decay of the first moment.
        #[serde(default = "nine_tenths")]
        beta1: f64,
        /// Decay of the second moment.
        #[serde(default = "adam_beta2")]
        beta2: f64,
        /// Keeps the division finite.
        #[serde(default = "adam_eps")]
        eps: f64,
        /// Share of a parameter that a step takes away, per unit of `lr`.
        #[serde(default = "weight_decay_1e_2")]
        weight_decay: f64,
    },
}

fn lr_1e_3() -> LearningRate {
    LearningRate::constant(1e-3)
}
fn lr_1e_2() -> LearningRate {
    LearningRate::constant(1e-2)
}
fn weight_decay_1e_2() -> f64 {
    1e-2
}
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
fn nine_tenths() -> f64 {
    0.9
}
fn adam_beta2() -> f64 {
    0.999
}
fn adam_eps() -> f64 {
    1e-8
}
fn adagrad_eps() -> f64 {
    1e-10
}

impl Default for DenseOptimizer {
    /// Adam as PyTorch has it.
    fn default() -> DenseOptimizer {
        DenseOptimizer::adam(lr_1e_3())
    }
}

impl DenseOptimizer {
    /// SGD.
    pub fn sgd(lr: impl Into<LearningRate>) -> DenseOptimizer {
        let lr = lr.into();
        DenseOptimizer::Sgd { lr, l2: 0.0 }
    }

    /// SGD with momentum 0.9.
    pub fn momentum(lr: impl Into<LearningRate>) -> DenseOptimizer {
        let lr = lr.into();
        DenseOptimizer::Momentum { lr, momentum: nine_tenths(), l2: 0.0 }
    }

    /// Adagrad with PyTorch's defaults.
    pub fn adagrad(lr: impl Into<LearningRate>) -> DenseOptimizer {
        let lr = lr.into();
        DenseOptimizer::Adagrad { lr, initial_accumulator: 0.0, eps: adagrad_eps(), l2: 0.0 }
    }

    /// Adam with PyTorch's defaults.
    pub fn adam(lr: impl Into<LearningRate>) -> DenseOptimizer {
        let lr = lr.into();
        DenseOptimizer::Adam { lr, beta1: nine_tenths(), beta2: adam_beta2(), eps: adam_eps(), l2: 0.0 }
    }

    /// AdamW with PyTorch's defaults.
    pub fn adamw(lr: impl Into<LearningRate>) -> DenseOptimizer {
        let (lr, beta1, beta2) = (lr.into(), nine_tenths(), adam_beta2());
        DenseOptimizer::Adamw { lr, beta1, beta2, eps: adam_eps(), weight_decay: weight_decay_1e_2() }
    }

    /// One of each kind with that learning rate, and its defaults otherwise, for tests of all kinds.
    pub fn one_of_each(lr: impl Into<LearningRate>) -> Vec<DenseOptimizer> {
        let kinds: [fn(LearningRate) -> DenseOptimizer; 5] =
            [Self::sgd, Self::momentum, Self::adagrad, Self::adam, Self::adamw];
        let lr = lr.into();
        kinds.map(|kind| kind(lr)).to_vec()
    }

    /// Refuses settings outside their range.
    ///
    /// # Errors
    /// [`ModelError::Optimizer`] with the setting, its value and its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let check = |name: &str, value: f64, fits: bool, expected: &str| match fits {
            true => Ok(()),
            false => Err(ModelError::Optimizer(format!("{name} is {value}, expected {expected}"))),
        };
        let rate = |lr: LearningRate| lr.check().map_err(ModelError::Optimizer);
        let at_least_0 =
            |name, value: f64| check(name, value, value >= 0.0 && value.is_finite(), "a finite number from 0");
        let above_0 =
            |name, value: f64| check(name, value, value > 0.0 && value.is_finite(), "a finite number above 0");
        let share = |name, value: f64| check(name, value, (0.0..1.0).contains(&value), "from 0 to less than 1");
        let own = match *self {
            DenseOptimizer::Sgd { lr, .. } => rate(lr),
            DenseOptimizer::Momentum { lr, momentum, .. } => rate(lr).and(share("momentum", momentum)),
            DenseOptimizer::Adagrad { lr, initial_accumulator, eps, .. } => {
                let eps = if initial_accumulator > 0.0 { at_least_0("eps", eps) } else { above_0("eps", eps) };
                rate(lr).and(at_least_0("initial_accumulator", initial_accumulator)).and(eps)
            }
            DenseOptimizer::Adam { lr, beta1, beta2, eps, .. } => {
                rate(lr).and(share("beta1", beta1)).and(share("beta2", beta2)).and(above_0("eps", eps))
            }
            DenseOptimizer::Adamw { lr, beta1, beta2, eps, weight_decay } => rate(lr)
                .and(share("beta1", beta1))
                .and(share("beta2", beta2))
                .and(above_0("eps", eps))
                .and(at_least_0("weight_decay", weight_decay)),
        };
        own.and(at_least_0("l2", self.l2()))
    }

    /// How many numbers of state each parameter has, at most two.
    pub fn state_buffers(&self) -> usize {
        self.state_names().len()
    }

    /// Names of the state buffers, at most two. Each is as long as the parameters. Saved state has these names.
    pub(crate) fn state_names(&self) -> &'static [&'static str] {
        match self {
            DenseOptimizer::Sgd { .. } => &[],
            DenseOptimizer::Momentum { .. } => &["velocity"],
            DenseOptimizer::Adagrad { .. } => &["sum"],
            DenseOptimizer::Adam { .. } | DenseOptimizer::Adamw { .. } => &["moment1", "moment2"],
        }
    }

    /// The first value of every number of state.
    pub(crate) fn first_state(&self) -> f32 {
        match *self {
            DenseOptimizer::Adagrad { initial_accumulator, .. } => initial_accumulator as f32,
            DenseOptimizer::Sgd { .. }
            | DenseOptimizer::Momentum { .. }
            | DenseOptimizer::Adam { .. }
            | DenseOptimizer::Adamw { .. } => 0.0,
        }
    }

    /// (step size, correction) at `step` (from 1), in f64 as PyTorch computes them. Adam and AdamW divide the root of the second moment by
    /// the correction. For the other optimizers the step size is the learning rate, and the correction, which they do not use, is 1.
    pub(crate) fn step_size(&self, step: u64) -> (f64, f64) {
        match *self {
            DenseOptimizer::Sgd { lr, .. }
            | DenseOptimizer::Momentum { lr, .. }
            | DenseOptimizer::Adagrad { lr, .. } => (lr.at(step), 1.0),
            DenseOptimizer::Adam { lr, beta1, beta2, .. } | DenseOptimizer::Adamw { lr, beta1, beta2, .. } => {
                let correction = |beta: f64| 1.0 - beta.powf(step as f64);
                (lr.at(step) / correction(beta1), correction(beta2).sqrt())
            }
        }
    }

    /// The factor of weight decay for a parameter at `step` (from 1), before the update; `None` without weight decay.
    pub(crate) fn share_left(&self, step: u64) -> Option<f64> {
        match *self {
            DenseOptimizer::Adamw { lr, weight_decay, .. } => Some(1.0 - lr.at(step) * weight_decay),
            DenseOptimizer::Sgd { .. }
            | DenseOptimizer::Momentum { .. }
            | DenseOptimizer::Adagrad { .. }
            | DenseOptimizer::Adam { .. } => None,
        }
    }

    /// The same optimizer with a reduced learning rate.
    #[must_use]
    pub(crate) fn reduced(mut self, reduction: LrReduction) -> DenseOptimizer {
        match &mut self {
            DenseOptimizer::Sgd { lr, .. }
            | DenseOptimizer::Momentum { lr, .. }
            | DenseOptimizer::Adagrad { lr, .. }
            | DenseOptimizer::Adam { lr, .. }
            | DenseOptimizer::Adamw { lr, .. } => lr.reduction = reduction,
        }
        self
    }

    /// The factor of L2 regularization: `l2 * p` is added to the gradient of each parameter `p`. 0 without it.
    pub fn l2(&self) -> f64 {
        match *self {
            DenseOptimizer::Sgd { l2, .. }
            | DenseOptimizer::Momentum { l2, .. }
            | DenseOptimizer::Adagrad { l2, .. }
            | DenseOptimizer::Adam { l2, .. } => l2,
            DenseOptimizer::Adamw { .. } => 0.0,
        }
    }

    /// The same optimizer with this factor of L2 regularization; `None` for AdamW, which has none.
    #[must_use]
    pub fn with_l2(mut self, factor: f64) -> Option<DenseOptimizer> {
        match &mut self {
            DenseOptimizer::Sgd { l2, .. }
            | DenseOptimizer::Momentum { l2, .. }
            | DenseOptimizer::Adagrad { l2, .. }
            | DenseOptimizer::Adam { l2, .. } => *l2 = factor,
            DenseOptimizer::Adamw { .. } => return None,
        }
        Some(self)
    }

    /// Updates a range of parameters and their state in place with the gradient of step `step` (from 1).
    ///
    /// `first` and `second` are the state buffers in the order of [`DenseOptimizer::state_names`]; a missing one is empty. Plain
    /// loops over slices of one length: inlined into `arch.dispatch`, they become AVX-512 or AVX2 code.
    #[inline(always)]
    pub(crate) fn update(&self, step: u64, p: &mut [f32], g: &[f32], first: &mut [f32], second: &mut [f32]) {
        match self.l2() as f32 {
            0.0 => self.update_with::<false>(0.0, step, p, g, first, second),
            l2 => self.update_with::<true>(l2, step, p, g, first, second),
        }
    }

    /// [`update`](Self::update), with the term of L2 regularization or, for the bits of the plain formulas, without any.
    #[inline(always)]
    fn update_with<const L2: bool>(
        &self,
        l2: f32,
        step: u64,
        p: &mut [f32],
        g: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let gradient = |g: f32, p: f32| if L2 { g + l2 * p } else { g };
        let (size, correction) = self.step_size(step);
        let size = size as f32;
        if let Some(share) = self.share_left(step) {
            for p in p.iter_mut() {
                *p *= share as f32;
            }
        }
        match *self {
            DenseOptimizer::Sgd { .. } => {
                for (p, &g) in p.iter_mut().zip(g) {
                    *p -= size * gradient(g, *p);
                }
            }
            DenseOptimizer::Momentum { momentum, .. } => {
                let momentum = momentum as f32;
                for ((p, &g), v) in p.iter_mut().zip(g).zip(first) {
                    *v = momentum * *v + gradient(g, *p);
                    *p -= size * *v;
                }
            }
            DenseOptimizer::Adagrad { eps, .. } => {
                let eps = eps as f32;
                for ((p, &g), s) in p.iter_mut().zip(g).zip(first) {
                    let g = gradient(g, *p);
                    *s += g * g;
                    *p -= size * g / (s.sqrt() + eps);
                }
            }
            DenseOptimizer::Adam { beta1, beta2, eps, .. } | DenseOptimizer::Adamw { beta1, beta2, eps, .. } => {
                let (rest1, rest2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
                let (beta2, eps, scale) = (beta2 as f32, eps as f32, (1.0 / correction) as f32);
                for (((p, &g), m), v) in p.iter_mut().zip(g).zip(first).zip(second) {
                    let g = gradient(g, *p);
                    *m += (g - *m) * rest1;
                    *v = beta2 * *v + rest2 * g * g;
                    *p -= size * *m / (v.sqrt() * scale + eps);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_like_a_job_file_and_default_to_pytorch() {
        let adam: DenseOptimizer = toml::from_str("kind = \"adam\"").unwrap();
        assert_eq!(adam, DenseOptimizer::default());
        let adagrad: DenseOptimizer = toml::from_str("kind = \"adagrad\"\nlr = 0.05").unwrap();
        assert_eq!(adagrad, DenseOptimizer::adagrad(0.05));
        let adamw: DenseOptimizer = toml::from_str("kind = \"adamw\"").unwrap();
        assert_eq!(adamw, DenseOptimizer::adamw(0.001));
        let text = "kind = \"adamw\"\nlr = 0.1\nbeta1 = 0.8\nbeta2 = 0.95\neps = 1e-6\nweight_decay = 0.2";
        let expected = DenseOptimizer::Adamw { lr: 0.1.into(), beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.2 };
        assert_eq!(toml::from_str::<DenseOptimizer>(text).unwrap(), expected);
        let l2: DenseOptimizer = toml::from_str("kind = \"adam\"\nl2 = 1e-5").unwrap();
        assert_eq!(Some(l2), DenseOptimizer::default().with_l2(1e-5));
        // Earlier programs read what has none.
        assert!(toml::to_string(&l2).unwrap().contains("l2 = ") && !toml::to_string(&adam).unwrap().contains("l2"));
        assert!(toml::from_str::<DenseOptimizer>("kind = \"adamw\"\nl2 = 1").is_err());
        assert!(toml::from_str::<DenseOptimizer>("kind = \"adam\"\nbeta3 = 1").is_err());
        assert!(toml::from_str::<DenseOptimizer>("kind = \"none_such\"").is_err());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let message = |optimizer: DenseOptimizer| optimizer.validate().unwrap_err().to_string();
        assert!(message(DenseOptimizer::sgd(-1.0)).contains("lr is -1"));
        assert!(message(DenseOptimizer::adam(f64::NAN)).contains("lr is NaN"));
        assert!(message(DenseOptimizer::Momentum { lr: 0.1.into(), momentum: 1.0, l2: 0.0 }).contains("momentum is 1"));
        let adamw =
            |eps, weight_decay| DenseOptimizer::Adamw { lr: 0.1.into(), beta1: 0.9, beta2: 0.999, eps, weight_decay };
        assert!(message(adamw(-1.0, 0.01)).contains("eps is -1"));
        assert!(message(adamw(1e-8, -0.5)).contains("weight_decay is -0.5"));
        for optimizer in DenseOptimizer::one_of_each(0.1).into_iter().filter_map(|kind| kind.with_l2(-0.5)) {
            assert!(message(optimizer).contains("l2 is -0.5"), "{optimizer:?}");
        }
        assert!(message(DenseOptimizer::adam(0.1).with_l2(f64::INFINITY).unwrap()).contains("l2 is inf"));
        assert!(message(adamw(0.0, 0.01)).contains("eps is 0, expected a finite number above 0"));
        adamw(1e-12, 0.0).validate().unwrap();
        DenseOptimizer::default().validate().unwrap();
    }

    #[test]
    fn the_first_steps_match_the_formulas() {
        let step = |optimizer: DenseOptimizer| {
            let (mut p, mut a, mut b) = ([1.0f32], [optimizer.first_state()], [0.0f32]);
            optimizer.update(1, &mut p, &[0.5], &mut a, &mut b);
            optimizer.update(2, &mut p, &[0.5], &mut a, &mut b);
            p[0]
        };
        assert!((step(DenseOptimizer::sgd(0.1)) - 0.9).abs() < 1e-7);
        assert!((step(DenseOptimizer::momentum(0.1)) - (1.0 - 0.05 - 0.095)).abs() < 1e-7);
        let adagrad = 1.0 - 0.1 - 0.1 * 0.5 / 0.5f32.sqrt();
        assert!((step(DenseOptimizer::adagrad(0.1)) - adagrad).abs() < 1e-6);
        // With a constant gradient, Adam's corrected moments are the gradient itself: each step is lr.
        assert!((step(DenseOptimizer::adam(0.1)) - 0.8).abs() < 1e-5);
        // AdamW takes the same steps, each after a decay by lr * weight_decay = 0.001.
        assert!((step(DenseOptimizer::adamw(0.1)) - ((0.999 - 0.1) * 0.999 - 0.1)).abs() < 1e-5);
    }

    #[test]
    fn a_reduced_rate_takes_the_steps_of_a_schedule_that_falls_there() {
        let falls = LearningRate { decay: forebay_base::Decay::Steps { every: 4, factor: 0.1 }, ..0.1.into() };
        let reductions = forebay_base::LrReductions { factor: 0.1, min_lr: 0.0, after: vec![3] };
        for (plain, by_hand) in DenseOptimizer::one_of_each(0.1).into_iter().zip(DenseOptimizer::one_of_each(falls)) {
            let (mut p, mut first, mut second) = ([1.0f32, -2.0], [plain.first_state(); 2], [0.0f32; 2]);
            let (mut q, mut q_first, mut q_second, mut r) = (p, first, second, p);
            for step in 1..7 {
                let g = [0.5f32, -0.125 * step as f32];
                let (mut a, mut b) = (first, second);
                plain.update(step, &mut r, &g, &mut a, &mut b);
                plain.reduced(reductions.at(step)).update(step, &mut p, &g, &mut first, &mut second);
                by_hand.update(step, &mut q, &g, &mut q_first, &mut q_second);
                assert_eq!((p, first, second), (q, q_first, q_second), "{plain:?}, step {step}");
                assert_eq!(p == r, step < 4, "{plain:?}, step {step}");
            }
        }
    }

    /// The term is of the parameter before the step, and the state sees it as part of the gradient.
    #[test]
    fn l2_is_a_part_of_the_gradient_of_every_parameter() {
        for plain in DenseOptimizer::one_of_each(0.1) {
            let Some(with_l2) = plain.with_l2(0.25) else { continue };
            let (mut p, mut first, mut second) = ([1.0f32, -2.0], [plain.first_state(); 2], [0.0f32; 2]);
            let (mut q, mut q_first, mut q_second) = (p, first, second);
            for step in 1..5 {
                let g = [0.5f32, 0.125];
                let summed = [g[0] + 0.25 * q[0], g[1] + 0.25 * q[1]];
                with_l2.update(step, &mut p, &g, &mut first, &mut second);
                plain.update(step, &mut q, &summed, &mut q_first, &mut q_second);
                assert_eq!((p, first, second), (q, q_first, q_second), "{plain:?}");
            }
            assert_eq!(plain.with_l2(0.0), Some(plain));
        }
        let alone = DenseOptimizer::sgd(0.5).with_l2(0.5).unwrap();
        let mut p = [1.0f32];
        alone.update(1, &mut p, &[0.0], &mut [], &mut []);
        assert_eq!(p, [0.75], "a parameter without a gradient shrinks by lr * l2 of itself");
    }
}
