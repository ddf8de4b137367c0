//! The model on libtorch. A step copies a batch to the device, runs forward, autograd, checks and the optimizer, and copies
//! the results back. It computes on the caller's thread and libtorch's own, and blocks until the results are on the host.

use std::sync::Arc;

use forebay_base::mix64;
use tch::Tensor;
use tch::nn::{Path, VarStore};

use super::dense_optimizer::Optimizer;
use super::graph::{LabelLosses, StepGraph, copy};
use super::module::{Module, SpecModule};
use super::non_finite::ModelInfo;
use super::params::{Params, to_vec};
use super::transfer::{Uploader, launch};
use super::{Device, ModuleShape, TorchBatch, TorchModule};
use crate::dense::NO_VECTORS;
use crate::params::{check_len, initial, layout, load_optimizer, save_optimizer};
use crate::state;
use crate::transfer::{BatchUpload, QueuedStep, UploadedBatch};
use crate::{BatchShape, clip_norm};
use crate::{
    DenseBatch, DenseModel, DenseOptimizer, LrReduction, ModelError, ModelSpec, NamedTensor, RowPart, StepOutput,
    TowerSide,
};

/// A model on libtorch: a spec, or a module of the user's own.
pub struct TorchModel {
    graph: StepGraph,
    optimizer: Optimizer,
    parts: Vec<RowPart>,
    device: tch::Device,
    /// Shared with the launched steps, for their checks.
    info: Arc<ModelInfo>,
    /// The seed of libtorch's random numbers, for a module of the user's own.
    seed: Option<u64>,
    /// Whether the loss ties together the rows of a batch. The three parts of a step know only losses of single rows.
    in_batch: bool,
}

impl TorchModel {
    /// A model of a spec, with the names, shapes and first values of the native backend.
    ///
    /// `threads` holds for the whole process, see [`torch`](super).
    ///
    /// # Errors
    /// A spec that describes no model, optimizer settings out of range, a missing device.
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
        let label_weights = spec.tasks.as_ref().map_or_else(|| vec![1.0], |tasks| tasks.weights.clone());
        let in_batch = spec.two_towers.as_ref().is_some_and(|two| two.is_in_batch());
        let module = Module::Spec(Box::new(SpecModule::new(spec, seed, &params.leaves)));
        let losses = LabelLosses::new(label_weights, device)?;
        let model = TorchModel::assemble(shape, module, params, optimizer, losses, device, None)?;
        Ok(TorchModel { in_batch, ..model })
    }

    /// A module of the user's own: `make` creates it over the root of a new variable store, after libtorch's random numbers were seeded
    /// with `seed`. `optimizer` trains the variables that require a gradient; the other variables, such as running means, are only saved
    /// and loaded. `make` must create all variables, as `f32`.
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
    /// The error of `make`; optimizer settings out of range; a missing device.
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
                "a model needs at least one slot, and a part of at least one weight per key: {shape:?}"
            )));
        }
        let device = start(&optimizer, threads, device)?;
        tch::manual_seed(seed as i64);
        let store = VarStore::new(device);
        let module = Module::Own(Box::new(make(&store.root())?));
        let params = Params::from_store(&store)?;
        let losses = LabelLosses::new(vec![1.0], device)?;
        TorchModel::assemble(shape, module, params, optimizer, losses, device, Some(seed))
    }

    fn assemble(
        ModuleShape { slots, dense, parts }: ModuleShape,
        module: Module,
        params: Params,
        optimizer: DenseOptimizer,
        losses: LabelLosses,
        device: tch::Device,
        seed: Option<u64>,
    ) -> Result<TorchModel, ModelError> {
        let row_dim = parts.iter().map(|part| part.dim).sum();
        let optimizer = Optimizer::new(optimizer, params.count(), device)?;
        let shape = BatchShape { slots, dense, row_dim, labels: losses.weights().len() };
        let label_weights = losses.weights().to_vec();
        let info = Arc::new(ModelInfo { shape, params: params.layout.clone(), label_weights });
        Ok(TorchModel {
            graph: StepGraph { module, params, shape, clip_norm: None, losses },
            optimizer,
            parts,
            device,
            info,
            seed,
            in_batch: false,
        })
    }

    /// Starts libtorch's random numbers again, from the seed and the number of steps: a module draws the same numbers after a checkpoint
    /// and after its restore.
    fn reseed(&self) {
        if let Some(seed) = self.seed {
            tch::manual_seed(mix64(seed ^ mix64(self.optimizer.steps)) as i64);
        }
    }

    fn saved_optimizer(&self) -> Result<Vec<NamedTensor>, ModelError> {
        let state: Vec<Vec<f32>> = self.optimizer.state.iter().map(to_vec).collect::<Result<_, _>>()?;
        let settings = self.optimizer.settings();
        Ok(save_optimizer(&self.graph.params.layout, settings, self.optimizer.steps, &state))
    }

    /// Runs [`StepGraph::backward`], then `end` with the gradient. If either fails, the module's buffers are restored.
    fn step(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        end: impl FnOnce(&mut Self, Tensor) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        batch.check(self.graph.shape)?;
        let buffers = self.graph.params.copy_buffers()?;
        let result = self.graph.backward(batch, out, self.device).and_then(|grad| end(self, grad));
        if result.is_err() {
            self.graph.params.restore_buffers(&buffers)?;
        }
        result
    }
}

/// Checks the settings, sets the number of threads, and opens the device.
fn start(optimizer: &DenseOptimizer, threads: usize, device: Device) -> Result<tch::Device, ModelError> {
    optimizer.validate()?;
    if threads == 0 || threads > 1024 {
        return Err(ModelError::Setting(format!("{threads} threads asked for, expected 1 to 1024")));
    }
    let device = device.open()?;
    tch::set_num_threads(threads as i32);
    Ok(device)
}

impl DenseModel for TorchModel {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        self.step(batch, out, |model, grad| {
            Ok(tch::no_grad(|| model.optimizer.step(&mut model.graph.params.flat, grad))?)
        })
    }

    fn gradients(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        grads: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.step(batch, out, |_, grad| copy(&grad, grads))
    }

    fn set_clip_norm(&mut self, most: f64) -> Result<(), ModelError> {
        clip_norm::check(most)?;
        self.graph.clip_norm = Some(most);
        Ok(())
    }

    fn reduce_lr(&mut self, reduction: LrReduction) -> Result<(), ModelError> {
        self.optimizer.reduce_lr(reduction);
        Ok(())
    }

    fn flat_len(&self) -> usize {
        self.graph.params.flat.numel()
    }

    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError> {
        copy(&self.graph.params.flat, values)
    }

    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError> {
        check_len("values", values.len(), self.flat_len())?;
        Ok(self.graph.params.flat.f_copy_(&Tensor::f_from_slice(values)?)?)
    }

    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        batch.check(self.graph.shape)?;
        tch::no_grad(|| {
            let inputs = TorchBatch::new(batch, self.graph.shape, self.device, false)?;
            copy(&self.graph.forward(&inputs)?, logits)
        })?;
        match logits.iter().position(|logit| !logit.is_finite()) {
            Some(at) => {
                let row = at / self.graph.shape.labels;
                Err(self.graph.non_finite(batch, &format!("the logit of row {row} is {}", logits[at])))
            }
            None => Ok(()),
        }
    }

    fn embed(&mut self, batch: &DenseBatch<'_>, side: TowerSide, vectors: &mut Vec<f32>) -> Result<(), ModelError> {
        batch.check(self.graph.shape)?;
        let Some((spec, two_towers)) = self.graph.module.two_towers() else {
            return Err(ModelError::Setting(NO_VECTORS.into()));
        };
        tch::no_grad(|| {
            let inputs = TorchBatch::new(batch, self.graph.shape, self.device, false)?;
            copy(&spec.vectors(&inputs, two_towers)?[side as usize], vectors)
        })?;
        match vectors.iter().any(|x| !x.is_finite()) {
            true => Err(self.graph.non_finite(batch, "a vector is not finite")),
            false => Ok(()),
        }
    }

    /// # Panics
    /// If the device was lost.
    fn parameters(&self) -> Vec<NamedTensor> {
        self.graph.params.save().expect("a device that trained can be read")
    }

    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let fresh = Optimizer::new(*self.optimizer.settings(), self.graph.params.count(), self.device)?;
        self.graph.params.load(tensors)?;
        self.optimizer = fresh;
        Ok(())
    }

    /// # Panics
    /// If the device was lost.
    fn optimizer(&self) -> Vec<NamedTensor> {
        self.saved_optimizer().expect("a device that trained can be read")
    }

    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let (steps, state) = load_optimizer(&self.graph.params.layout, self.optimizer.settings(), tensors)?;
        let place = |values: &Vec<f32>| Tensor::f_from_slice(values)?.f_to_device(self.device);
        self.optimizer.state = state.iter().map(place).collect::<Result<_, tch::TchError>>()?;
        self.optimizer.steps = steps;
        Ok(())
    }

    /// As for every model. libtorch's random numbers start again: the process has one generator, so a module that draws from it (dropout)
    /// goes on to the same bits if no other model of the process draws meanwhile. Its numbers then also depend on when checkpoints are
    /// made.
    fn state(&self) -> Result<Vec<NamedTensor>, ModelError> {
        let state = state::join(self.graph.params.save()?, self.saved_optimizer()?)?;
        self.reseed();
        Ok(state)
    }

    fn restore(&mut self, saved: Vec<NamedTensor>) -> Result<(), ModelError> {
        let (parameters, optimizer) = state::split(saved);
        self.load(&parameters)?;
        drop(parameters);
        self.load_optimizer(&optimizer)?;
        self.reseed();
        Ok(())
    }

    fn uploader(&mut self) -> Result<Option<Box<dyn BatchUpload>>, ModelError> {
        if self.in_batch {
            return Ok(None);
        }
        Ok(Some(Box::new(Uploader::new(self.device, self.graph.shape, self.flat_len())?)))
    }

    fn launch(&mut self, batch: UploadedBatch) -> Result<Box<dyn QueuedStep>, ModelError> {
        launch(&mut self.graph, &mut self.optimizer, batch, &self.info)
    }

    fn parts(&self) -> Vec<RowPart> {
        self.parts.clone()
    }
}
