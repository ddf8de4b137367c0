//! Modules: from a batch to logits. The one that runs a [`ModelSpec`], and the trait for a user's own.

use tch::{Kind, TchError, Tensor};

use super::TorchBatch;
use super::dropout::factors;
use super::final_mlp::FinalMlpModule;
use super::layer::{Leaves, TorchLayer};
use crate::dropout::Dropout;
use crate::{Cross, ModelSpec, Pooling, RowPart, Tasks, TowerSide, TwoTowers};

/// A dense model in tch: the forward pass over parameters in a variable store. Autograd computes the gradients.
///
/// See [`TorchModel::from_module`](super::TorchModel::from_module).
pub trait TorchModule {
    /// One logit per row, `[n]` or `[n, 1]`, as `f32` on the batch's device.
    ///
    /// # Errors
    /// Errors of libtorch. (The methods of `Tensor` that do not begin with `f_` panic instead. Then the run ends, too, with a
    /// less readable message.)
    fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError>;
}

/// The shape of the batches that a user's own module reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleShape {
    /// Categorical columns.
    pub slots: usize,
    /// Dense features.
    pub dense: usize,
    /// The parts of a key's row.
    pub parts: Vec<RowPart>,
}

/// The module of a model.
pub(super) enum Module {
    Spec(Box<SpecModule>),
    Own(Box<dyn TorchModule>),
}

impl Module {
    /// See [`TorchModule::forward`].
    pub(super) fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        match self {
            Module::Spec(module) => module.forward(batch),
            Module::Own(module) => module.forward(batch),
        }
    }

    /// The two towers, if the model has them.
    pub(super) fn two_towers(&self) -> Option<(&SpecModule, &TwoTowersModule)> {
        match self {
            Module::Spec(module) => Some((module, module.two_towers.as_ref()?)),
            Module::Own(_) => None,
        }
    }
}

/// The spec's module, over leaves in the order of the native backend's layout.
pub(super) struct SpecModule {
    spec: ModelSpec,
    /// How each slot is pooled.
    pooling: Vec<Pooling>,
    linear_weight: Option<Tensor>,
    linear_bias: Option<Tensor>,
    /// For each pair its unit, the last layer being the one with one output.
    pub(super) units: Vec<Vec<TorchLayer>>,
    cross: Option<CrossModule>,
    tower: Vec<TorchLayer>,
    tasks: Option<TaskModule>,
    two_towers: Option<TwoTowersModule>,
    final_mlp: Option<FinalMlpModule>,
    dropout: Option<Dropout>,
}

/// The layers of a cross network: V, if it has a rank, and W or U with the bias; and its linear output, if it has one.
struct CrossModule {
    layers: Vec<(Option<Tensor>, TorchLayer)>,
    head: Option<TorchLayer>,
}

/// The layers of a model with several labels.
struct TaskModule {
    /// The hidden layers of the bottom, or of each expert.
    shared: Vec<Vec<TorchLayer>>,
    /// One for each label, if there are experts.
    gates: Vec<TorchLayer>,
    /// For each label its hidden layers, and the layer with one output.
    towers: Vec<Vec<TorchLayer>>,
}

/// The layers of both towers: the hidden ones, then the one of the vector.
pub(super) struct TwoTowersModule {
    pub(super) spec: TwoTowers,
    pub(super) bias: Option<Tensor>,
    pub(super) sides: [Vec<TorchLayer>; 2],
}

impl SpecModule {
    /// `leaves` of the layout, in its order; dropout comes from `seed`.
    pub(super) fn new(spec: ModelSpec, seed: u64, leaves: &[Tensor]) -> SpecModule {
        let mut leaves = Leaves(leaves.iter());
        let linear_weight = (spec.linear && spec.dense > 0).then(|| leaves.next());
        let linear_bias = spec.linear.then(|| leaves.next());
        let of_single_rows = spec.two_towers.as_ref().is_some_and(|two| !two.is_in_batch());
        let similarity_bias = of_single_rows.then(|| leaves.next());
        // The last of each is the layer with one output.
        let units = spec.attention.iter().flat_map(|attention| attention.pairs.iter().map(|_| &attention.unit));
        let units = units.map(|unit| leaves.stack(unit.hidden.len(), unit, true)).collect();
        let cross = spec.cross.as_ref().map(|cross| CrossModule::new(cross, &mut leaves));
        let tower = spec.tower.as_ref().map_or_else(Vec::new, |tower| leaves.stack(tower.hidden.len(), tower, true));
        let tasks = spec.tasks.as_ref().map(|tasks| TaskModule::new(tasks, &mut leaves));
        let two_towers = spec.two_towers.as_ref().map(|two| TwoTowersModule::new(two, similarity_bias, &mut leaves));
        let final_mlp = spec.final_mlp.as_ref().map(|parts| FinalMlpModule::new(&spec, parts, &mut leaves));
        let dropout = spec.any_tower().and_then(|tower| Dropout::new(tower.dropout, seed));
        let pooling = (0..spec.slots).map(|slot| spec.pooling_of(slot)).collect();
        SpecModule {
            spec,
            pooling,
            linear_weight,
            linear_bias,
            units,
            cross,
            tower,
            tasks,
            two_towers,
            final_mlp,
            dropout,
        }
    }
}

impl CrossModule {
    fn new(cross: &Cross, leaves: &mut Leaves<'_>) -> CrossModule {
        let layers = (0..cross.layers).map(|_| (cross.rank.map(|_| leaves.next()), leaves.layer(None))).collect();
        CrossModule { layers, head: (!cross.is_stacked()).then(|| leaves.layer(None)) }
    }

    /// The output of the last layer.
    fn output(&self, x0: &Tensor) -> Result<Tensor, TchError> {
        let mut x = x0.shallow_clone();
        for (v, w) in &self.layers {
            let u = match v {
                Some(v) => w.apply(&x.f_linear(v, None::<&Tensor>)?)?,
                None => w.apply(&x)?,
            };
            x = x0.f_mul(&u)?.f_add(&x)?;
        }
        Ok(x)
    }
}

impl TaskModule {
    fn new(tasks: &Tasks, leaves: &mut Leaves<'_>) -> TaskModule {
        let (hidden, tower) = (tasks.shared_hidden().len(), &tasks.tower);
        let shared = tasks.shared().iter().map(|_| leaves.stack(hidden, tower, false)).collect();
        let gates = if tasks.gate_outputs() > 0 { tasks.labels() } else { 0 };
        let gates = (0..gates).map(|_| leaves.layer(None)).collect();
        let towers = (0..tasks.labels()).map(|_| leaves.stack(tower.hidden.len(), tower, true)).collect();
        TaskModule { shared, gates, towers }
    }
}

impl TwoTowersModule {
    fn new(two: &TwoTowers, bias: Option<Tensor>, leaves: &mut Leaves<'_>) -> TwoTowersModule {
        let sides = TowerSide::BOTH.map(|side| leaves.stack(two.hidden(side).len(), &two.tower, true));
        TwoTowersModule { spec: two.clone(), bias, sides }
    }
}

impl SpecModule {
    /// The hidden layers of a stack over `x`; `first` is the number of the first among all hidden layers of the model.
    pub(super) fn hidden(
        &self,
        batch: &TorchBatch,
        layers: &[TorchLayer],
        first: usize,
        x: &Tensor,
    ) -> Result<Tensor, TchError> {
        let activation = self.spec.any_tower().map(|tower| tower.activation).unwrap_or_default();
        let mut x = x.shallow_clone();
        for (l, layer) in layers.iter().enumerate() {
            x = layer.apply_hidden(&x, activation)?;
            if let Some(dropout) = self.dropout.filter(|_| batch.training()) {
                let stream = dropout.stream(batch.id(), first + l);
                x = x.f_mul(&factors(&dropout, stream, batch.rows(), x.size()[1], x.device())?)?;
            }
        }
        Ok(x)
    }

    /// The embeddings, `[n, s, dim]`, of pooled rows: the last part of a row.
    pub(super) fn embedding_of(&self, pooled: &Tensor) -> Result<Tensor, TchError> {
        let dim = self.spec.embedding_dim as i64;
        pooled.f_narrow(2, pooled.size()[2] - dim, dim)
    }

    /// The embeddings of these slots, `[n, s, dim]`, one after the other, each as wide as its slot has it.
    pub(super) fn flat(&self, embedding: &Tensor, slots: impl Iterator<Item = i64>) -> Result<Tensor, TchError> {
        if self.spec.slot_dims.is_empty() {
            return embedding.f_reshape([embedding.size()[0], -1]);
        }
        let own = |(at, slot): (usize, i64)| {
            let dim = self.spec.dim_of(slot as usize) as i64;
            embedding.f_select(1, at as i64)?.f_narrow(1, 0, dim)
        };
        let slots: Vec<Tensor> = slots.enumerate().map(own).collect::<Result<_, TchError>>()?;
        Tensor::f_cat(&slots, 1)
    }

    /// The pooled rows, `[n, s, row_dim]`.
    pub(super) fn pooled(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        batch.pooled_by(&self.pooling)
    }

    /// The logits of several labels, `[n, t]`.
    fn labels(&self, batch: &TorchBatch, tasks: &Tasks, module: &TaskModule, x0: &Tensor) -> Result<Tensor, TchError> {
        let shared = module.shared.iter().enumerate();
        let shared = shared.map(|(e, layers)| self.hidden(batch, layers, tasks.first_of_shared(e), x0));
        let shared: Vec<Tensor> = shared.collect::<Result<_, _>>()?;
        let mut outputs = Vec::with_capacity(module.towers.len());
        for (k, (out, layers)) in module.towers.iter().filter_map(|tower| tower.split_last()).enumerate() {
            let input = match (module.gates.get(k), shared.first()) {
                (Some(gate), _) => {
                    // [n, 1, experts] times [n, experts, width].
                    let shares = gate.apply(x0)?.f_softmax(1, Kind::Float)?.f_unsqueeze(1)?;
                    shares.f_bmm(&Tensor::f_stack(&shared, 1)?)?.f_squeeze_dim(1)?
                }
                (None, Some(bottom)) => bottom.shallow_clone(),
                (None, None) => x0.shallow_clone(),
            };
            outputs.push(out.apply(&self.hidden(batch, layers, tasks.first_of_tower(k), &input)?)?);
        }
        if let ([click, conversion], true) = (&mut outputs[..], tasks.is_esmm()) {
            // See `loss::product_logit`.
            let (not_click, not_conversion) = (click.f_neg()?, conversion.f_neg()?);
            let terms = [&not_click, &not_conversion, &not_click.f_add(&not_conversion)?];
            *conversion = Tensor::f_cat(&terms, 1)?.f_logsumexp([1i64].as_slice(), true)?.f_neg()?;
        }
        Tensor::f_cat(&outputs, 1)
    }
}

impl TorchModule for SpecModule {
    fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        let n = batch.rows();
        let pooled = batch.pooled_by(&self.pooling)?;
        let mut logits = Tensor::f_zeros([n, 1], (Kind::Float, pooled.device()))?;
        if let Some(bias) = &self.linear_bias {
            let wide = pooled.f_narrow(2, 0, 1)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
            logits = wide.f_add(bias)?;
        }
        if let Some(weight) = &self.linear_weight {
            logits = logits.f_add(&batch.dense().f_linear(weight, None::<&Tensor>)?)?;
        }
        let dim = self.spec.embedding_dim as i64;
        if dim == 0 {
            return Ok(logits);
        }
        let mut embedding = self.embedding_of(&pooled)?;
        if let Some(two_towers) = &self.two_towers {
            return two_towers.logits(&self.vectors(batch, two_towers)?);
        }
        if let Some(attention) = &self.spec.attention {
            embedding = self.attend(batch, attention, &embedding)?;
        }
        if self.spec.fm {
            // Without slots that have no embedding: the other slots have one width.
            let embedding = self.flat(&embedding, 0..batch.slots())?.f_reshape([n, -1, dim])?;
            // sum_{i<j} v_i . v_j = (|sum v_i|^2 - sum |v_i|^2) / 2
            let all = embedding.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?.f_square()?;
            let own = embedding.f_square()?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
            let pairs = all.f_sub(&own)?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?.f_mul_scalar(0.5)?;
            logits = logits.f_add(&pairs)?;
        }
        let of_x0 = self.cross.is_some() || !self.tower.is_empty() || self.tasks.is_some() || self.final_mlp.is_some();
        if !of_x0 {
            return Ok(logits);
        }
        let flat = self.flat(&embedding, 0..batch.slots())?;
        let mut x0 = if self.spec.dense > 0 { Tensor::f_cat(&[&flat, batch.dense()], 1)? } else { flat };
        if let Some(cross) = &self.cross {
            let output = cross.output(&x0)?;
            match &cross.head {
                Some(head) => logits = logits.f_add(&head.apply(&output)?)?,
                None => x0 = output,
            }
        }
        if let (Some(tasks), Some(module)) = (&self.spec.tasks, &self.tasks) {
            return self.labels(batch, tasks, module, &x0);
        }
        if let Some(final_mlp) = &self.final_mlp {
            return final_mlp.logits(&x0, |layers, first, x| self.hidden(batch, layers, first, x));
        }
        if let Some((out, layers)) = self.tower.split_last() {
            logits = logits.f_add(&out.apply(&self.hidden(batch, layers, 0, &x0)?)?)?;
        }
        Ok(logits)
    }
}
