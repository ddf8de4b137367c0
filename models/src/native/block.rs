//! A block of the dense parameters with the state of their optimizer.
//!
//! The native model holds all of its parameters in one block. When trainers share the parameters, each ps process holds a
//! block and steps it alone. Every number is updated independently of the others, so the bits do not depend on the cuts.

use super::kernels;
use crate::params::check_len;
use crate::{DenseOptimizer, ModelError};

/// Parameters of one task: 64 KiB, small enough to spread over threads, large enough to be worth a task.
const TASK_LEN: usize = 16_384;

/// A block of the flat dense parameters with the state of their optimizer.
///
/// ```
/// use forebay_models::{ParamBlock, DenseOptimizer};
///
/// let mut block = ParamBlock::new(DenseOptimizer::sgd(0.5), vec![1.0, 2.0])?;
/// block.apply(&[1.0, -1.0])?;
/// assert_eq!((block.values(), block.steps()), ([0.5, 2.5].as_slice(), 1));
/// # Ok::<(), forebay_models::ModelError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ParamBlock {
    optimizer: DenseOptimizer,
    values: Vec<f32>,
    /// One buffer for each name in the optimizer's `state()`, each as long as `values`.
    state: Vec<Vec<f32>>,
    steps: u64,
}

impl ParamBlock {
    /// A block of these values, with a fresh optimizer.
    ///
    /// # Errors
    /// [`ModelError::Optimizer`] if a setting is out of range.
    pub fn new(optimizer: DenseOptimizer, values: Vec<f32>) -> Result<ParamBlock, ModelError> {
        optimizer.validate()?;
        let state = optimizer.state().iter().map(|_| vec![optimizer.first_state(); values.len()]).collect();
        Ok(ParamBlock { optimizer, values, state, steps: 0 })
    }

    /// One step of the optimizer, on the caller's thread. `grads` is as long as [`ParamBlock::values`].
    ///
    /// # Errors
    /// [`ModelError::Batch`] for another length, [`ModelError::NonFinite`] for a gradient that is NaN or infinite; nothing
    /// is changed then.
    pub fn apply(&mut self, grads: &[f32]) -> Result<(), ModelError> {
        if grads.len() != self.values.len() {
            return Err(ModelError::Batch(format!("{} gradients for {} parameters", grads.len(), self.values.len())));
        }
        if !kernels::all_finite(grads) {
            let at = grads.iter().position(|g| !g.is_finite()).unwrap_or_default();
            return Err(ModelError::NonFinite(format!("gradient {at} of the block is {}", grads[at])));
        }
        self.step(grads).into_iter().for_each(UpdateTask::run);
        Ok(())
    }

    /// The parameters.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Replaces the parameters. The optimizer keeps its state.
    ///
    /// # Errors
    /// [`ModelError::Load`] for another length; nothing is changed then.
    pub fn set_values(&mut self, values: &[f32]) -> Result<(), ModelError> {
        check_len("values", values.len(), self.values.len())?;
        self.values.copy_from_slice(values);
        Ok(())
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The buffers of the optimizer's state (moments, for instance), each as long as [`ParamBlock::values`].
    pub fn state(&self) -> &[Vec<f32>] {
        &self.state
    }

    /// Replaces the optimizer's [`steps`](ParamBlock::steps) and [`state`](ParamBlock::state).
    ///
    /// # Errors
    /// [`ModelError::Load`] for another number of vectors or another length; nothing is changed then.
    pub fn set_state(&mut self, steps: u64, state: Vec<Vec<f32>>) -> Result<(), ModelError> {
        let names = self.optimizer.state();
        if state.len() != names.len() {
            return Err(ModelError::Load(format!("{} vectors of optimizer state, expected {names:?}", state.len())));
        }
        for (name, values) in names.iter().zip(&state) {
            check_len(name, values.len(), self.values.len())?;
        }
        (self.steps, self.state) = (steps, state);
        Ok(())
    }

    /// Begins a step: tasks to [`run`](UpdateTask::run) once each, in any order. `grads` is as long as the values.
    pub(super) fn step<'a>(&'a mut self, grads: &'a [f32]) -> Vec<UpdateTask<'a>> {
        debug_assert_eq!(grads.len(), self.values.len());
        self.steps += 1;
        let (optimizer, step) = (&self.optimizer, self.steps);
        let mut state = self.state.iter_mut().map(|buffer| buffer.chunks_mut(TASK_LEN));
        let (mut first, mut second) = (state.next(), state.next());
        let task = |(values, grads)| UpdateTask {
            optimizer,
            step,
            values,
            grads,
            first: first.as_mut().and_then(Iterator::next).unwrap_or_default(),
            second: second.as_mut().and_then(Iterator::next).unwrap_or_default(),
        };
        self.values.chunks_mut(TASK_LEN).zip(grads.chunks(TASK_LEN)).map(task).collect()
    }

    pub(super) fn optimizer(&self) -> &DenseOptimizer {
        &self.optimizer
    }
}

/// The update of one range of parameters. It depends on no other task.
pub(super) struct UpdateTask<'a> {
    optimizer: &'a DenseOptimizer,
    step: u64,
    values: &'a mut [f32],
    grads: &'a [f32],
    /// State buffers; a missing one is empty.
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl UpdateTask<'_> {
    pub(super) fn run(self) {
        kernels::optimize(self.optimizer, self.step, self.values, self.grads, self.first, self.second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lengths_are_refused_and_change_nothing() {
        let mut block = ParamBlock::new(DenseOptimizer::adam(0.1), vec![1.0; 3]).unwrap();
        block.apply(&[0.5; 3]).unwrap();
        let before = block.clone();
        let error = block.apply(&[0.5; 2]).unwrap_err().to_string();
        assert!(error.contains("2 gradients for 3"), "{error}");
        let error = block.apply(&[0.5, f32::NEG_INFINITY, 0.5]).unwrap_err();
        assert_eq!(error, ModelError::NonFinite("gradient 1 of the block is -inf".into()));
        assert!(block.set_values(&[0.0; 4]).unwrap_err().to_string().contains("4 numbers for 3"));
        let error = block.set_state(1, vec![vec![0.0; 3]]).unwrap_err().to_string();
        assert!(error.contains("1 vectors") && error.contains("moment2"), "{error}");
        let error = block.set_state(1, vec![vec![0.0; 3], vec![0.0; 2]]).unwrap_err().to_string();
        assert!(error.contains("moment2: 2 numbers"), "{error}");
        assert_eq!(block, before);
        assert!(matches!(ParamBlock::new(DenseOptimizer::sgd(-1.0), vec![]), Err(ModelError::Optimizer(_))));
    }

    #[test]
    fn an_empty_block_steps_too() {
        let mut block = ParamBlock::new(DenseOptimizer::adagrad(0.1), vec![]).unwrap();
        block.apply(&[]).unwrap();
        assert_eq!(block.steps(), 1);
    }
}
