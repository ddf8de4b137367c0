//! The formulas of [`DenseOptimizer`] over one flat tensor, on any device.

use tch::{Kind, TchError, Tensor};

use crate::DenseOptimizer;

/// A dense optimizer: settings and state.
pub(super) struct Optimizer {
    settings: DenseOptimizer,
    /// Steps taken.
    pub(super) steps: u64,
    /// In the order of `DenseOptimizer::state`, each as long as the parameters.
    pub(super) state: Vec<Tensor>,
}

impl Optimizer {
    /// A fresh optimizer of `count` parameters.
    pub(super) fn new(settings: DenseOptimizer, count: i64, device: tch::Device) -> Result<Optimizer, TchError> {
        let first = f64::from(settings.first_state());
        let state = settings
            .state()
            .iter()
            .map(|_| Tensor::f_full([count], first, (Kind::Float, device)))
            .collect::<Result<_, _>>()?;
        Ok(Optimizer { settings, steps: 0, state })
    }

    pub(super) fn settings(&self) -> &DenseOptimizer {
        &self.settings
    }

    /// One step, in place. Overwrites the gradient.
    pub(super) fn step(&mut self, p: &mut Tensor, mut g: Tensor) -> Result<(), TchError> {
        self.steps += 1;
        let (size, correction) = self.settings.step_size(self.steps);
        if let Some(share) = self.settings.share_left(self.steps) {
            let _ = p.f_mul_scalar_(share)?;
        }
        match (self.settings, self.state.as_mut_slice()) {
            (DenseOptimizer::Sgd { .. }, _) => {
                let _ = p.f_sub_(&g.f_mul_scalar_(size)?)?;
            }
            (DenseOptimizer::Momentum { momentum, .. }, [v]) => {
                let _ = v.f_mul_scalar_(momentum)?.f_add_(&g)?;
                let _ = p.f_sub_(&v.f_mul_scalar(size)?)?;
            }
            (DenseOptimizer::Adagrad { eps, .. }, [s]) => {
                let _ = s.f_addcmul_(&g, &g)?;
                let root = s.f_sqrt()?.f_add_scalar_(eps)?;
                let _ = p.f_addcdiv_(&g.f_mul_scalar_(-size)?, &root)?;
            }
            (
                DenseOptimizer::Adam { beta1, beta2, eps, .. } | DenseOptimizer::Adamw { beta1, beta2, eps, .. },
                [m, v],
            ) => {
                let _ = m.f_lerp_(&g, 1.0 - beta1)?;
                let squares = g.f_square_()?.f_mul_scalar_(1.0 - beta2)?;
                let _ = v.f_mul_scalar_(beta2)?.f_add_(&squares)?;
                let root = v.f_sqrt()?.f_mul_scalar_(1.0 / correction)?.f_add_scalar_(eps)?;
                let _ = p.f_addcdiv_(&m.f_mul_scalar(-size)?, &root)?;
            }
            _ => unreachable!("`new` made one tensor for each name of `DenseOptimizer::state`"),
        }
        Ok(())
    }
}
