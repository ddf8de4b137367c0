//! The formulas of [`DenseOptimizer`] over one flat tensor, on any device.

use tch::{Kind, TchError, Tensor};

use crate::{DenseOptimizer, LrReduction};

/// A dense optimizer: settings and state.
pub(super) struct Optimizer {
    settings: DenseOptimizer,
    /// Steps taken.
    pub(super) steps: u64,
    /// In the order of `DenseOptimizer::state_names`, each as long as the parameters.
    pub(super) state: Vec<Tensor>,
}

impl Optimizer {
    /// A fresh optimizer of `count` parameters.
    pub(super) fn new(settings: DenseOptimizer, count: i64, device: tch::Device) -> Result<Optimizer, TchError> {
        let first = f64::from(settings.first_state());
        let state = settings
            .state_names()
            .iter()
            .map(|_| Tensor::f_full([count], first, (Kind::Float, device)))
            .collect::<Result<_, _>>()?;
        Ok(Optimizer { settings, steps: 0, state })
    }

    pub(super) fn settings(&self) -> &DenseOptimizer {
        &self.settings
    }

    /// Reduces the learning rate of later steps.
    pub(super) fn reduce_lr(&mut self, reduction: LrReduction) {
        self.settings = self.settings.reduced(reduction);
    }

    /// One step, in place. Overwrites the gradient.
    pub(super) fn step(&mut self, p: &mut Tensor, mut g: Tensor) -> Result<(), TchError> {
        self.steps += 1;
        let (size, correction) = self.settings.step_size(self.steps);
        if let Some(share) = self.settings.share_left(self.steps) {
            let _ = p.f_mul_scalar_(share)?;
        }
        let l2 = self.settings.l2();
        if l2 != 0.0 {
            let _ = g.f_add_(&p.f_mul_scalar(l2)?)?;
        }
        let state = &mut self.state;
        match self.settings {
            DenseOptimizer::Sgd { .. } => {
                let _ = p.f_sub_(&g.f_mul_scalar_(size)?)?;
            }
            DenseOptimizer::Momentum { momentum, .. } => {
                let v = &mut state[0];
                let _ = v.f_mul_scalar_(momentum)?.f_add_(&g)?;
                let _ = p.f_sub_(&v.f_mul_scalar(size)?)?;
            }
            DenseOptimizer::Adagrad { eps, .. } => {
                let s = &mut state[0];
                let _ = s.f_addcmul_(&g, &g)?;
                let root = s.f_sqrt()?.f_add_scalar_(eps)?;
                let _ = p.f_addcdiv_(&g.f_mul_scalar_(-size)?, &root)?;
            }
            DenseOptimizer::Adam { beta1, beta2, eps, .. } | DenseOptimizer::Adamw { beta1, beta2, eps, .. } => {
                let _ = state[0].f_lerp_(&g, 1.0 - beta1)?;
                let squares = g.f_square_()?.f_mul_scalar_(1.0 - beta2)?;
                let _ = state[1].f_mul_scalar_(beta2)?.f_add_(&squares)?;
                let root = state[1].f_sqrt()?.f_mul_scalar_(1.0 / correction)?.f_add_scalar_(eps)?;
                let _ = p.f_addcdiv_(&state[0].f_mul_scalar(-size)?, &root)?;
            }
        }
        Ok(())
    }
}
