//! A block of the dense parameters with the state of their optimizer.
//!
//! The native model holds all of its parameters in one block. When trainers share the parameters, each ps process holds a
//! block and steps it alone. Every number is updated independently of the others, so the bits do not depend on the cuts.

use std::ops::Range;

use super::kernels;
use crate::params::{self, Param, check_len};
use crate::{DenseModel, DenseOptimizer, LrReduction, ModelError, NamedTensor};

/// The name of a block's values.
const VALUES: &str = "values";

/// A block as one parameter.
fn param(len: usize) -> Param {
    Param::at(VALUES.into(), vec![len], 0..len)
}

/// The state of a fresh optimizer of `len` parameters.
fn first_state(optimizer: &DenseOptimizer, len: usize) -> Vec<Vec<f32>> {
    optimizer.state_names().iter().map(|_| vec![optimizer.first_state(); len]).collect()
}

/// Parameters of one task: 64 KiB, small enough to spread over threads, large enough to be worth a task.
const TASK_LEN: usize = 16_384;

/// Where the trained parameters of a model lie in its `len` flat values. Buffers of a module, which are not trained, come after
/// them.
fn layout_of(len: usize, parameters: &[NamedTensor]) -> Result<Vec<Param>, ModelError> {
    let (mut layout, mut end) = (Vec::new(), 0);
    for tensor in parameters {
        if end == len {
            break;
        }
        let start = end;
        end += tensor.data.len();
        layout.push(Param::at(tensor.name.clone(), tensor.shape.clone(), start..end));
    }
    check_len("the parameters of the model", end, len)?;
    Ok(layout)
}

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
    /// One buffer for each of the optimizer's `state_names()`, each as long as `values`.
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
        let state = first_state(&optimizer, values.len());
        Ok(ParamBlock { optimizer, values, state, steps: 0 })
    }

    /// Replaces the parameters, which lie as in `layout`, by the parameters among `tensors`, and gives the optimizer an empty state. Makes
    /// no second copy of the parameters.
    ///
    /// # Errors
    /// [`ModelError::Load`] if a tensor is missing or of another shape; nothing is changed then.
    pub(super) fn load(&mut self, layout: &[Param], tensors: &[NamedTensor]) -> Result<(), ModelError> {
        params::copy_tensors(layout, "", tensors, &mut self.values)?;
        // The old state is freed first.
        self.state.clear();
        (self.steps, self.state) = (0, first_state(&self.optimizer, self.values.len()));
        Ok(())
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

    /// The optimizer's settings.
    pub fn optimizer(&self) -> DenseOptimizer {
        self.optimizer
    }

    /// Reduces the learning rate of later steps. Replaces an earlier reduction.
    pub fn reduce_lr(&mut self, reduction: LrReduction) {
        self.optimizer = self.optimizer.reduced(reduction);
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
        let names = self.optimizer.state_names();
        if state.len() != names.len() {
            return Err(ModelError::Load(format!("{} vectors of optimizer state, expected {names:?}", state.len())));
        }
        for (name, values) in names.iter().zip(&state) {
            check_len(name, values.len(), self.values.len())?;
        }
        (self.steps, self.state) = (steps, state);
        Ok(())
    }

    /// All that later steps depend on: `values [n]`, `optimizer.step [2]` and, for each buffer of the optimizer's state,
    /// `optimizer.BUFFER.values [n]`.
    pub fn save(&self) -> Vec<NamedTensor> {
        let layout = [param(self.values.len())];
        let mut tensors = params::to_tensors(&layout, "", &self.values);
        tensors.extend(params::save_optimizer(&layout, &self.optimizer, self.steps, &self.state));
        tensors
    }

    /// The block that [`ParamBlock::save`] saved: its later steps give the same bits.
    ///
    /// # Errors
    /// [`ModelError::Load`] if a tensor is missing, unknown, of another length, or of another optimizer.
    pub fn restored(optimizer: DenseOptimizer, saved: &[NamedTensor]) -> Result<ParamBlock, ModelError> {
        let (values, state) = crate::state::split(saved.iter().cloned());
        let [NamedTensor { name, data, .. }] = values.as_slice() else {
            return Err(ModelError::Load(format!("{} tensors of values, expected one", values.len())));
        };
        if name != VALUES {
            return Err(ModelError::Load(format!("`{name}` is no block of values, expected `{VALUES}`")));
        }
        let layout = [param(data.len())];
        let mut block = ParamBlock::new(optimizer, params::from_tensors(&layout, "", &values)?)?;
        let (steps, state) = params::load_optimizer(&layout, &optimizer, &state)?;
        block.set_state(steps, state)?;
        Ok(block)
    }

    /// The block of all trained values of `model` from `saved`: the parameters, in any order, and the state of the optimizer; without that
    /// state, a fresh optimizer.
    ///
    /// # Errors
    /// [`ModelError::Load`] if a tensor is missing, unknown, of another shape, or of another optimizer.
    pub fn of_model(
        optimizer: DenseOptimizer,
        model: &dyn DenseModel,
        saved: &[NamedTensor],
    ) -> Result<ParamBlock, ModelError> {
        let layout = layout_of(model.flat_len(), &model.parameters())?;
        let (parameters, state) = crate::state::split(saved.iter().cloned());
        let mut block = ParamBlock::new(optimizer, params::from_tensors(&layout, "", &parameters)?)?;
        if !state.is_empty() {
            let (steps, state) = params::load_optimizer(&layout, &optimizer, &state)?;
            block.set_state(steps, state)?;
        }
        Ok(block)
    }

    /// The state of the optimizer as [`DenseModel::optimizer`](crate::DenseModel::optimizer) gives it, for the model with these
    /// `parameters`, whose first numbers are this block's values.
    ///
    /// # Errors
    /// [`ModelError::Load`] if the parameters do not end after as many numbers as the block has.
    pub fn optimizer_of_model(&self, parameters: &[NamedTensor]) -> Result<Vec<NamedTensor>, ModelError> {
        let layout = layout_of(self.values.len(), parameters)?;
        Ok(params::save_optimizer(&layout, &self.optimizer, self.steps, &self.state))
    }

    /// One block of several that lie one after the other, for another number of processes.
    ///
    /// # Errors
    /// [`ModelError::Load`] if `blocks` is empty, or two blocks differ in their optimizer or their steps. A block without values takes no
    /// steps, so its number of steps is not compared.
    pub fn joined(blocks: &[ParamBlock]) -> Result<ParamBlock, ModelError> {
        let mut with_values = blocks.iter().filter(|block| !block.values.is_empty());
        let Some(first) = with_values.next().or(blocks.first()) else {
            return Err(ModelError::Load("no blocks to join, expected at least one".into()));
        };
        let mut whole = first.clone();
        for block in with_values {
            if block.optimizer != first.optimizer || block.steps != first.steps {
                let (found, expected) = ((block.optimizer, block.steps), (first.optimizer, first.steps));
                return Err(ModelError::Load(format!(
                    "a block of {found:?} (optimizer, steps), expected {expected:?} as the first has"
                )));
            }
            whole.values.extend_from_slice(&block.values);
            whole.state.iter_mut().zip(&block.state).for_each(|(all, own)| all.extend_from_slice(own));
        }
        Ok(whole)
    }

    /// The block of a range of these values. Panics if the range is not within them.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> ParamBlock {
        let state = self.state.iter().map(|buffer| buffer[range.clone()].to_vec()).collect();
        ParamBlock { optimizer: self.optimizer, values: self.values[range].to_vec(), state, steps: self.steps }
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
    fn a_saved_block_goes_on_to_the_same_bits_also_in_other_cuts() {
        let grads = |step: usize| -> Vec<f32> { (0..50).map(|i| ((i * 7 + step * 13) as f32).sin()).collect() };
        for optimizer in DenseOptimizer::one_of_each(0.1) {
            let mut whole = ParamBlock::new(optimizer, grads(99)).unwrap();
            (0..3).for_each(|step| whole.apply(&grads(step)).unwrap());
            let saved = whole.save();
            assert_eq!(ParamBlock::restored(optimizer, &saved).unwrap(), whole);
            let parts = [whole.part(0..16), whole.part(16..16), whole.part(16..50)];
            let parts = parts.map(|part| ParamBlock::restored(optimizer, &part.save()).unwrap());
            let mut again = ParamBlock::joined(&parts).unwrap();
            for step in 3..6 {
                whole.apply(&grads(step)).unwrap();
                again.apply(&grads(step)).unwrap();
            }
            assert_eq!(again, whole);
        }
    }

    #[test]
    fn a_block_of_a_saved_model_has_its_values_and_state_in_the_order_of_the_model() {
        let (optimizer, spec) = (DenseOptimizer::adam(0.1), crate::ModelSpec::wide_deep(3, 2, 4, &[8, 5]));
        let model = crate::NativeModel::new(spec, optimizer, 7, 1).unwrap();
        let parameters = model.parameters();
        let mut flat = Vec::new();
        model.read_flat(&mut flat).unwrap();
        let mut block = ParamBlock::new(optimizer, flat.clone()).unwrap();
        block.apply(&flat).unwrap();
        // The parameters of the block after a step, as the model names them; files hold them in another order.
        let mut at = 0;
        let mut saved: Vec<NamedTensor> = Vec::new();
        for tensor in &parameters {
            let end = at + tensor.data.len();
            saved.push(NamedTensor { data: block.values()[at..end].to_vec(), ..tensor.clone() });
            at = end;
        }
        saved.extend(block.optimizer_of_model(&parameters).unwrap());
        saved.sort_by(|a, b| a.name.cmp(&b.name));
        assert_ne!(saved[0].name, parameters[0].name, "the order is another");
        assert_eq!(ParamBlock::of_model(optimizer, &model, &saved).unwrap(), block);
        saved.retain(|tensor| !tensor.name.starts_with("optimizer."));
        assert_eq!(ParamBlock::of_model(optimizer, &model, &saved).unwrap().steps(), 0);
        saved.pop();
        assert!(ParamBlock::of_model(optimizer, &model, &saved).unwrap_err().to_string().contains("is missing"));
    }

    #[test]
    fn a_saved_block_that_does_not_fit_is_refused() {
        let adam = ParamBlock::new(DenseOptimizer::adam(0.1), vec![1.0; 4]).unwrap();
        let refused =
            |optimizer, saved: &[NamedTensor]| ParamBlock::restored(optimizer, saved).unwrap_err().to_string();
        assert!(refused(DenseOptimizer::sgd(0.1), &adam.save()).contains("optimizer.moment1.values is unknown"));
        assert!(refused(DenseOptimizer::adam(0.1), &adam.save()[1..]).contains("0 tensors of values"));
        assert!(refused(DenseOptimizer::adam(0.1), &adam.save()[..2]).contains("is missing"));
        let mut other = adam.save();
        other[0].name = "tower".into();
        assert!(refused(DenseOptimizer::adam(0.1), &other).contains("`tower` is no block"));
        let mut stepped = adam.clone();
        stepped.apply(&[1.0; 4]).unwrap();
        assert!(ParamBlock::joined(&[adam, stepped]).unwrap_err().to_string().contains("optimizer, steps"));
        assert!(ParamBlock::joined(&[]).is_err());
    }

    /// A ps process holds no values if there are fewer than 16 for each, and its block takes no steps.
    #[test]
    fn a_block_without_values_joins_blocks_of_any_number_of_steps() {
        let new = |values: Vec<f32>| ParamBlock::new(DenseOptimizer::adam(0.1), values).unwrap();
        let mut stepped = new(vec![1.0; 14]);
        stepped.apply(&[0.5; 14]).unwrap();
        let joined = ParamBlock::joined(&[new(Vec::new()), stepped.clone(), new(Vec::new())]);
        assert_eq!(joined.unwrap(), stepped);
        assert!(ParamBlock::joined(&[new(Vec::new())]).unwrap().values().is_empty());
    }

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
