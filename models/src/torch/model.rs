//! The step: a batch to the device, forward, autograd, checks, the optimizer; gradients of the unique rows back.
//!
//! Computes on the caller's thread and libtorch's own; blocks until the results are on the host.

use std::sync::Arc;

use tch::nn::{Path, VarStore};
use tch::{Reduction, Tensor};

use super::module::SpecModule;
use super::optim::Optimizer;
use super::params::{Params, all_finite, to_vec};
use super::transfer::{Facts, Uploader, launch};
use super::{Device, ModuleShape, TorchBatch, TorchModule};
use crate::dense::BatchShape;
use crate::params::{check_len, initial, layout, load_optimizer, save_optimizer};
use crate::transfer::{BatchUpload, Launched, Uploaded};
use crate::{DenseBatch, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, RowPart, StepOutput, logloss};

/// A model on libtorch: a spec, or a module of the user's own.
pub struct TorchModel {
    module: Box<dyn TorchModule>,
    pub(super) params: Params,
    pub(super) optimizer: Optimizer,
    pub(super) shape: BatchShape,
    parts: Vec<RowPart>,
    device: tch::Device,
    /// What the checks of launched steps know.
    facts: Arc<Facts>,
}

impl TorchModel {
    /// A model of a spec, with the names, shapes and first values of the native backend.
    ///
    /// `threads` holds for the whole process, see [`torch`](super).
    ///
    /// # Errors
    /// A spec that describes no model, optimizer settings out of range, a device that is not there.
    pub fn new(
        spec: ModelSpec,
        optimizer: DenseOptimizer,
        seed: u64,
        threads: usize,
        device: Device,
    ) -> Result<TorchModel, ModelError> {
        spec.validate()?;
        let device = start(&optimizer, threads, device)?;
        let layout = layout(&spec);
        let values = initial(&layout, seed);
        let params = Params::new(layout, &values, device)?;
        let shape = ModuleShape { slots: spec.slots, dense: spec.dense, parts: spec.parts() };
        let module = Box::new(SpecModule::new(spec, &params.leaves));
        TorchModel::assemble(shape, module, params, optimizer, device)
    }

    /// A module of the user's own: `make` creates it over the root of a new variable store, after libtorch's random
    /// numbers were seeded with `seed`. What requires a gradient there is trained with `optimizer`; the other variables
    /// (running means, say) are saved and loaded only. All have to be made in `make`, as `f32`.
    ///
    /// ```
    /// use forebay_models::torch::tch::{TchError, Tensor, nn};
    /// use forebay_models::torch::{Device, ModuleShape, TorchBatch, TorchModel, TorchModule};
    /// use forebay_models::{DenseOptimizer, RowPart, Pooling};
    ///
    /// struct Bilinear(nn::Linear);
    ///
    /// impl TorchModule for Bilinear {
    ///     fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
    ///         let slots = batch.pooled(Pooling::Sum)?; // [n, 2, 8]
    ///         let product = slots.f_select(1, 0)?.f_mul(&slots.f_select(1, 1)?)?;
    ///         product.f_linear(&self.0.ws, self.0.bs.as_ref())
    ///     }
    /// }
    ///
    /// let shape = ModuleShape { slots: 2, dense: 0, parts: vec![RowPart::new("embedding", 8)] };
    /// let model = TorchModel::from_module(shape, DenseOptimizer::adam(1e-3), 42, 1, Device::Cpu, |root| {
    ///     Ok(Bilinear(nn::linear(root / "out", 8, 1, Default::default())))
    /// })?;
    /// # Ok::<(), forebay_models::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// What `make` gives; optimizer settings out of range; a device that is not there.
    pub fn from_module<M: TorchModule + 'static>(
        shape: ModuleShape,
        optimizer: DenseOptimizer,
        seed: u64,
        threads: usize,
        device: Device,
        make: impl FnOnce(&Path<'_>) -> Result<M, ModelError>,
    ) -> Result<TorchModel, ModelError> {
        if shape.slots == 0 || shape.parts.iter().all(|part| part.dim == 0) {
            return Err(ModelError::Spec(format!(
                "{shape:?} has no slot or no weights per key, one of each is needed"
            )));
        }
        let device = start(&optimizer, threads, device)?;
        tch::manual_seed(seed as i64);
        let store = VarStore::new(device);
        let module = Box::new(make(&store.root())?);
        let params = Params::from_store(&store)?;
        TorchModel::assemble(shape, module, params, optimizer, device)
    }

    fn assemble(
        ModuleShape { slots, dense, parts }: ModuleShape,
        module: Box<dyn TorchModule>,
        params: Params,
        optimizer: DenseOptimizer,
        device: tch::Device,
    ) -> Result<TorchModel, ModelError> {
        let row_dim = parts.iter().map(|part| part.dim).sum();
        let optimizer = Optimizer::new(optimizer, params.count(), device)?;
        let shape = BatchShape { slots, dense, row_dim };
        let facts = Arc::new(Facts { shape, params: params.layout.clone() });
        Ok(TorchModel { module, params, optimizer, shape, parts, device, facts })
    }

    /// `[n]`, from the module, whatever it gave checked.
    pub(super) fn forward(&self, batch: &TorchBatch) -> Result<Tensor, ModelError> {
        let logits = self.module.forward(batch)?;
        let (found, n) = (logits.size(), batch.rows());
        if found != [n] && found != [n, 1] {
            return Err(ModelError::Backend(format!(
                "the module gave logits of shape {found:?}, expected [{n}] or [{n}, 1]"
            )));
        }
        Ok(logits.f_view([n])?)
    }

    /// Forward, autograd and every check; gives the flat gradient, on the device.
    fn backward(&self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<Tensor, ModelError> {
        let inputs = TorchBatch::new(batch, self.shape, self.device, true)?;
        let logits = self.forward(&inputs)?;
        copy(&logits, &mut out.logits)?;
        // In f64 and on the host, where the logits are needed anyway: the number that the native backend gives.
        out.loss = logloss(&out.logits, batch.labels);
        if let Some(symptom) = loss_symptom(out) {
            return Err(self.blame(batch, &symptom));
        }
        let (row_grads, grad) = self.differentiate(&logits, &inputs)?;
        match row_grads {
            Some(grads) => copy(&grads, &mut out.row_grads)?,
            // No value in any bag, or a module that does not look at them.
            None => {
                out.row_grads.clear();
                out.row_grads.resize(batch.unique_rows.len(), 0.0);
            }
        }
        if let Some(symptom) = row_symptom(out, self.shape.row_dim) {
            return Err(self.blame(batch, &symptom));
        }
        if !all_finite(&grad)? {
            let name = self.params.first_non_finite(&grad)?.unwrap_or_default();
            return Err(self.blame(batch, &gradient_symptom(name)));
        }
        Ok(grad)
    }

    /// Autograd: the gradients of the mean loss by the unique rows (`None` if it does not depend on them) and by the
    /// parameters, flat; both on the device. Does not wait for it.
    pub(super) fn differentiate(
        &self,
        logits: &Tensor,
        inputs: &TorchBatch,
    ) -> Result<(Option<Tensor>, Tensor), ModelError> {
        let no_weights = None::<&Tensor>;
        let loss =
            logits.f_binary_cross_entropy_with_logits(inputs.labels(), no_weights, no_weights, Reduction::Mean)?;
        let mut wanted: Vec<&Tensor> = self.params.leaves.iter().collect();
        wanted.push(inputs.unique_rows());
        let mut grads = Tensor::f_run_backward(&[&loss], &wanted, false, false)?;
        let row_grads = grads.pop().filter(Tensor::defined);
        Ok((row_grads, self.params.flat_gradient(&grads)?))
    }

    /// [`TorchModel::backward`], and then `end` with the gradient. If one fails, a module's buffers are as they were.
    fn step(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        end: impl FnOnce(&mut Self, Tensor) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        batch.check(self.shape)?;
        let buffers = self.params.copy_buffers()?;
        let result = self.backward(batch, out).and_then(|grad| end(self, grad));
        if result.is_err() {
            self.params.restore_buffers(&buffers)?;
        }
        result
    }

    /// Names the first thing that is not finite, from the inputs on.
    fn blame(&self, batch: &DenseBatch<'_>, symptom: &str) -> ModelError {
        let parameter = self.params.first_non_finite(&self.params.flat).ok().flatten();
        blame(batch, self.shape, parameter, symptom)
    }
}

/// Of a loss that is not finite.
pub(super) fn loss_symptom(out: &StepOutput) -> Option<String> {
    (!out.loss.is_finite()).then(|| format!("the loss is {}", out.loss))
}

/// Of the first gradient of a unique row that is not finite.
pub(super) fn row_symptom(out: &StepOutput, row_dim: usize) -> Option<String> {
    let at = out.row_grads.iter().position(|x| !x.is_finite())?;
    Some(format!("the gradient of unique row {} is {}", at / row_dim, out.row_grads[at]))
}

/// Of a parameter whose gradient is not finite.
pub(super) fn gradient_symptom(name: &str) -> String {
    format!("the gradient of {name} is not finite")
}

/// The error for a symptom, named by the first of its possible causes: an input, a parameter.
pub(super) fn blame(batch: &DenseBatch<'_>, shape: BatchShape, parameter: Option<&str>, symptom: &str) -> ModelError {
    let parameter = || parameter.map(|name| format!("parameter {name} is not finite"));
    let cause = batch.first_non_finite(shape).or_else(parameter);
    ModelError::NonFinite(cause.unwrap_or_else(|| format!("{symptom}, though every input is finite")))
}

/// Settings checked, threads set, the device opened.
fn start(optimizer: &DenseOptimizer, threads: usize, device: Device) -> Result<tch::Device, ModelError> {
    optimizer.validate()?;
    if threads == 0 || threads > 1024 {
        return Err(ModelError::Backend(format!("{threads} threads asked for, expected 1 to 1024")));
    }
    let device = device.open()?;
    tch::set_num_threads(threads as i32);
    Ok(device)
}

/// Replaces the numbers; waits for the device.
fn copy(from: &Tensor, to: &mut Vec<f32>) -> Result<(), ModelError> {
    let count = from.numel();
    to.resize(count, 0.0);
    Ok(from.f_copy_data(to, count)?)
}

impl DenseModel for TorchModel {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        self.step(batch, out, |model, grad| Ok(tch::no_grad(|| model.optimizer.step(&mut model.params.flat, grad))?))
    }

    fn gradients(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        grads: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.step(batch, out, |_, grad| copy(&grad, grads))
    }

    fn flat_len(&self) -> usize {
        self.params.flat.numel()
    }

    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError> {
        copy(&self.params.flat, values)
    }

    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError> {
        check_len("values", values.len(), self.flat_len())?;
        Ok(self.params.flat.f_copy_(&Tensor::f_from_slice(values)?)?)
    }

    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        batch.check(self.shape)?;
        tch::no_grad(|| {
            let inputs = TorchBatch::new(batch, self.shape, self.device, false)?;
            copy(&self.forward(&inputs)?, logits)
        })?;
        match logits.iter().position(|logit| !logit.is_finite()) {
            Some(row) => Err(self.blame(batch, &format!("the logit of row {row} is {}", logits[row]))),
            None => Ok(()),
        }
    }

    /// # Panics
    /// If the device was lost.
    fn parameters(&self) -> Vec<NamedTensor> {
        self.params.save().expect("a device that trained can be read")
    }

    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let fresh = Optimizer::new(*self.optimizer.settings(), self.params.count(), self.device)?;
        self.params.load(tensors)?;
        self.optimizer = fresh;
        Ok(())
    }

    /// # Panics
    /// If the device was lost.
    fn optimizer(&self) -> Vec<NamedTensor> {
        let state: Vec<Vec<f32>> = self
            .optimizer
            .state
            .iter()
            .map(|state| to_vec(state).expect("a device that trained can be read"))
            .collect();
        save_optimizer(&self.params.layout, self.optimizer.settings(), self.optimizer.steps, &state)
    }

    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let (steps, state) = load_optimizer(&self.params.layout, self.optimizer.settings(), tensors)?;
        let place = |values: &Vec<f32>| Tensor::f_from_slice(values)?.f_to_device(self.device);
        self.optimizer.state = state.iter().map(place).collect::<Result<_, tch::TchError>>()?;
        self.optimizer.steps = steps;
        Ok(())
    }

    fn uploader(&mut self) -> Result<Option<Box<dyn BatchUpload>>, ModelError> {
        Ok(Some(Box::new(Uploader::new(self.device, self.shape, self.flat_len())?)))
    }

    fn launch(&mut self, batch: Uploaded) -> Result<Box<dyn Launched>, ModelError> {
        let facts = Arc::clone(&self.facts);
        launch(self, batch, &facts)
    }

    fn parts(&self) -> Vec<RowPart> {
        self.parts.clone()
    }
}
