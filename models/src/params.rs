//! The dense parameters of a spec: names, shapes and first values, the same for both backends.
//!
//! All lie in one flat buffer, so that an optimizer step is one pass and a snapshot one copy.

use std::ops::Range;

use forebay_base::{SplitMix64, mix64, signed_unit_f32};

use crate::final_mlp::{FinalMlp, STREAMS};
use crate::{Activation, DenseOptimizer, ModelError, ModelSpec, NamedTensor, Norm, Tasks, Tower, TowerSide};

/// Where one parameter lies in the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Param {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
    first: First,
}

/// The first values of a parameter. See [`initial`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    /// All the same.
    Constant(f32),
    /// Uniform in `+-1 / sqrt(inputs)`, for a layer with this many inputs.
    Uniform { inputs: usize },
}

/// The parameters that are added to the logit, in order of preference.
const OUTPUT_BIASES: [&str; 4] = ["linear.bias", "similarity.bias", "cross.out.bias", "fusion.bias"];

/// The slopes of [`Activation::Prelu`] begin with this, as in the paper and in PyTorch.
const FIRST_SLOPE: f32 = 0.25;

impl Param {
    /// A parameter whose first values are set elsewhere.
    pub(crate) fn at(name: String, shape: Vec<usize>, range: Range<usize>) -> Param {
        Param { name, shape, range, first: First::Constant(0.0) }
    }
}

/// The parameters of `spec`, in the order of the flat buffer.
///
/// | part | names and shapes |
/// |---|---|
/// | linear | `linear.weight [1, dense]` (if there are dense features), `linear.bias [1]` |
/// | attention | for each pair P the layers `attention.P.L` of its unit, as those of the tower; the first reads four embeddings |
/// | cross | for each layer `cross.L.weight [w, w]`, `cross.L.bias [w]`; with a rank r `cross.L.v.weight [r, w]`, `cross.L.weight [w, r]`, `cross.L.bias [w]`; then, unless stacked, `cross.out.weight [1, w]`, `cross.out.bias [1]` |
/// | tower | for each layer `tower.L.weight [outputs, inputs]`, `tower.L.bias [outputs]`; the last has one output. Behind the bias of a hidden layer: with layer norm `tower.L.gamma`, `tower.L.beta`; with `prelu` `tower.L.slope`; all `[outputs]` |
/// | tasks | hidden layers as those of the tower: `bottom.L`, or `expert.E.L` and then a gate for each label K, `gate.K.weight [experts, w]`, `gate.K.bias`; then for each label `task.K.L`, the last with one output |
/// | two towers | `similarity.bias [1]`, without in-batch softmax; then hidden layers as those of the tower: `user.L`, and behind them a linear layer with the vector as output; the same as `item.L` |
/// | FinalMLP | for each tower (`first`, `second`) its gate: `first_gate.context [1, embedding_dim]`, unless it reads slots, and `first_gate.L`, linear layers, the last with w outputs; then hidden layers as those of the tower: `first.L`. Then the fusion, for h heads and last layers of d1 and d2: `fusion.product.weight [d2, d1 / h]`, `fusion.first.weight [1, d1]`, `fusion.second.weight [1, d2]`, `fusion.bias [1]` |
pub(crate) fn layout(spec: &ModelSpec) -> Vec<Param> {
    let mut layout = Layout::default();
    let width = spec.input_width();
    if spec.linear {
        if spec.dense > 0 {
            layout.push("linear.weight".into(), vec![1, spec.dense], First::Constant(0.0));
        }
        layout.push("linear.bias".into(), vec![1], First::Constant(0.0));
    }
    if spec.two_towers.as_ref().is_some_and(|two| !two.is_in_batch()) {
        layout.push("similarity.bias".into(), vec![1], First::Constant(0.0));
    }
    if let Some(attention) = &spec.attention {
        for pair in 0..attention.pairs.len() {
            layout.perceptron(&format!("attention.{pair}"), 4 * spec.embedding_dim, &attention.unit);
        }
    }
    if let Some(cross) = &spec.cross {
        for l in 0..cross.layers {
            let rank = cross.rank.inspect(|&rank| {
                layout.push(format!("cross.{l}.v.weight"), vec![rank, width], First::Uniform { inputs: width });
            });
            layout.layer(&format!("cross.{l}"), width, rank.unwrap_or(width), None);
        }
        if !cross.is_stacked() {
            layout.layer("cross.out", 1, width, None);
        }
    }
    if let Some(tower) = &spec.tower {
        layout.perceptron("tower", width, tower);
    }
    if let Some(tasks) = &spec.tasks {
        for name in tasks.shared() {
            layout.hidden_layers(&name, width, tasks.shared_hidden(), &tasks.tower);
        }
        if tasks.gate_outputs() > 0 {
            for label in 0..tasks.labels() {
                layout.layer(&format!("gate.{label}"), tasks.gate_outputs(), width, None);
            }
        }
        for label in 0..tasks.labels() {
            layout.perceptron(&format!("task.{label}"), tasks.tower_inputs(width), &tasks.tower);
        }
    }
    if let Some(two) = &spec.two_towers {
        for side in TowerSide::BOTH {
            let (inputs, hidden) = (two.inputs(side), two.hidden(side));
            let embedded: usize = inputs.slots.iter().map(|&slot| spec.dim_of(slot)).sum();
            let width = embedded + inputs.dense.len();
            let last = layout.hidden_layers(side.name(), width, hidden, &two.tower);
            layout.layer(&format!("{}.{}", side.name(), hidden.len()), two.vector_dim, last, None);
        }
    }
    if let Some(final_mlp) = &spec.final_mlp {
        layout.final_mlp(spec, final_mlp);
    }
    layout.params
}

/// The parameters so far.
#[derive(Default)]
struct Layout {
    params: Vec<Param>,
}

impl Layout {
    fn push(&mut self, name: String, shape: Vec<usize>, first: First) {
        let end = total(&self.params);
        let len: usize = shape.iter().product();
        self.params.push(Param { name, shape, range: end..end + len, first });
    }

    /// A linear layer, with norm and activation if it is a hidden layer of `tower`.
    fn layer(&mut self, name: &str, outputs: usize, inputs: usize, tower: Option<&Tower>) {
        self.push(format!("{name}.weight"), vec![outputs, inputs], First::Uniform { inputs });
        self.push(format!("{name}.bias"), vec![outputs], First::Uniform { inputs });
        if tower.is_some_and(|tower| tower.norm == Norm::Layer) {
            self.push(format!("{name}.gamma"), vec![outputs], First::Constant(1.0));
            self.push(format!("{name}.beta"), vec![outputs], First::Constant(0.0));
        }
        if tower.is_some_and(|tower| tower.activation == Activation::Prelu) {
            self.push(format!("{name}.slope"), vec![outputs], First::Constant(FIRST_SLOPE));
        }
    }

    /// The hidden layers of a tower, and its head with one output.
    fn perceptron(&mut self, name: &str, inputs: usize, tower: &Tower) {
        let last = self.hidden_layers(name, inputs, &tower.hidden, tower);
        self.layer(&format!("{name}.{}", tower.hidden.len()), 1, last, None);
    }

    /// The gates and towers of FinalMLP, and their fusion.
    fn final_mlp(&mut self, spec: &ModelSpec, final_mlp: &FinalMlp) {
        let width = spec.input_width();
        for (stream, name) in STREAMS.into_iter().enumerate() {
            if let Some(gates) = &final_mlp.gates {
                let context = final_mlp.context(stream);
                if context.is_empty() {
                    self.push(format!("{name}_gate.context"), vec![1, spec.embedding_dim], First::Constant(0.0));
                }
                let of_slots: usize = context.iter().map(|&slot| spec.dim_of(slot)).sum();
                let inputs = if context.is_empty() { spec.embedding_dim } else { of_slots };
                let widths = gates.hidden.iter().chain([&width]);
                widths.enumerate().fold(inputs, |inputs, (l, &outputs)| {
                    self.layer(&format!("{name}_gate.{l}"), outputs, inputs, None);
                    outputs
                });
            }
            self.hidden_layers(name, width, final_mlp.hidden(stream), &final_mlp.tower);
        }
        let [first, second] = final_mlp.output_widths();
        let inputs = first / final_mlp.heads;
        // A layer over as many products as there are numbers.
        let products = First::Uniform { inputs: second * inputs };
        self.push("fusion.product.weight".into(), vec![second, inputs], products);
        self.push("fusion.first.weight".into(), vec![1, first], First::Uniform { inputs: first });
        self.push("fusion.second.weight".into(), vec![1, second], First::Uniform { inputs: second });
        self.push("fusion.bias".into(), vec![1], First::Constant(0.0));
    }

    /// A stack of hidden layers. Returns the outputs of the last.
    fn hidden_layers(&mut self, name: &str, inputs: usize, hidden: &[usize], tower: &Tower) -> usize {
        hidden.iter().enumerate().fold(inputs, |inputs, (l, &outputs)| {
            self.layer(&format!("{name}.{l}"), outputs, inputs, Some(tower));
            outputs
        })
    }
}

/// Name of the parameter that position `at` of the flat values belongs to.
pub(crate) fn name_at(layout: &[Param], at: usize) -> Option<&str> {
    layout.iter().find(|param| param.range.contains(&at)).map(|param| param.name.as_str())
}

/// The number of values of all parameters.
pub(crate) fn total(layout: &[Param]) -> usize {
    layout.last().map_or(0, |param| param.range.end)
}

impl ModelSpec {
    /// The number of values of all dense parameters, for a spec that is [valid](Self::validate): the length of
    /// [`read_flat`](crate::DenseModel::read_flat).
    pub fn dense_len(&self) -> usize {
        total(&layout(self))
    }

    /// The bias that is added to each logit (with [`Sharing::Esmm`](crate::Sharing::Esmm) to the logit of each tower), for a spec that is
    /// [valid](Self::validate): the name of its tensor, and its place in the flat buffer. Empty if the model has no such biases.
    pub fn output_biases(&self) -> Vec<(String, usize)> {
        let layout = layout(self);
        let is_named = |param: &&Param| OUTPUT_BIASES.contains(&param.name.as_str());
        let of_tower = |tower: &str| {
            let is_of_tower = |param: &&Param| param.name.starts_with(tower) && param.name.ends_with(".bias");
            layout.iter().rev().find(is_of_tower)
        };
        let labels = self.tasks.as_ref().map_or(0, Tasks::labels);
        let biases: Vec<&Param> = match labels {
            0 => layout.iter().find(is_named).or_else(|| of_tower("tower.")).into_iter().collect(),
            labels => (0..labels).filter_map(|label| of_tower(&format!("task.{label}."))).collect(),
        };
        biases.into_iter().map(|bias| (bias.name.clone(), bias.range.start)).collect()
    }

    /// The name and the shape of the dense parameter with the most values, for a spec that is [valid](Self::validate); `None` without
    /// dense parameters.
    pub fn largest_parameter(&self) -> Option<(String, Vec<usize>)> {
        let largest = layout(self).into_iter().max_by_key(|param| param.range.len())?;
        Some((largest.name, largest.shape))
    }
}

/// First values of all parameters, from the seed and each parameter's name alone.
///
/// Layers of the tower and the cross network start as PyTorch's `nn.Linear` does (Kaiming uniform with `a = sqrt(5)`):
/// weight and bias uniform in `+-1 / sqrt(inputs)`. The linear part starts at zero, as logistic regression should.
pub(crate) fn initial(layout: &[Param], seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; total(layout)];
    for param in layout {
        let inputs = match param.first {
            First::Constant(value) => {
                values[param.range.clone()].fill(value);
                continue;
            }
            First::Uniform { inputs } => inputs,
        };
        let bound = 1.0 / (inputs as f32).sqrt();
        let start = param.name.bytes().fold(mix64(seed), |state, byte| mix64(state ^ u64::from(byte)));
        let mut stream = SplitMix64::new(start);
        values[param.range.clone()].fill_with(|| signed_unit_f32(stream.next_u64()) * bound);
    }
    values
}

/// The flat buffer as named tensors, `prefix` before each name.
pub(crate) fn to_tensors(layout: &[Param], prefix: &str, values: &[f32]) -> Vec<NamedTensor> {
    let tensor = |param: &Param| NamedTensor {
        name: format!("{prefix}{}", param.name),
        shape: param.shape.clone(),
        data: values[param.range.clone()].to_vec(),
    };
    layout.iter().map(tensor).collect()
}

/// The inverse of [`to_tensors`]: finds each parameter by name and checks its shape; `tensors` may hold others too.
pub(crate) fn from_tensors(layout: &[Param], prefix: &str, tensors: &[NamedTensor]) -> Result<Vec<f32>, ModelError> {
    let mut values = vec![0.0; total(layout)];
    copy_tensors(layout, prefix, tensors, &mut values)?;
    Ok(values)
}

/// As [`from_tensors`], into `values`, which stay as they are after an error.
pub(crate) fn copy_tensors(
    layout: &[Param],
    prefix: &str,
    tensors: &[NamedTensor],
    values: &mut [f32],
) -> Result<(), ModelError> {
    let mut found = Vec::with_capacity(layout.len());
    for param in layout {
        let name = format!("{prefix}{}", param.name);
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == name) else {
            let found: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            return Err(ModelError::Load(format!("{name} is missing, found {found:?}")));
        };
        if tensor.shape != param.shape || tensor.data.len() != param.range.len() {
            return Err(ModelError::Load(format!(
                "{name} has shape {:?} with {} numbers, this model expects {:?}",
                tensor.shape,
                tensor.data.len(),
                param.shape
            )));
        }
        found.push(tensor);
    }
    for (param, tensor) in layout.iter().zip(found) {
        values[param.range.clone()].copy_from_slice(&tensor.data);
    }
    Ok(())
}

/// Refuses a vector of another length than its parameters.
pub(crate) fn check_len(what: &str, found: usize, expected: usize) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Load(format!("{what}: {found} numbers for {expected} parameters")))
}

/// Refuses tensors that the model has no place for.
pub(crate) fn refuse_unknown(known: &[String], tensors: &[NamedTensor]) -> Result<(), ModelError> {
    match tensors.iter().find(|tensor| !known.contains(&tensor.name)) {
        Some(tensor) => Err(ModelError::Load(format!("{} is unknown to this model, which has {known:?}", tensor.name))),
        None => Ok(()),
    }
}

/// Steps taken and state buffers as named tensors: `optimizer.step [2]` (two 24-bit halves, exact in f32) and for each
/// buffer and parameter `optimizer.BUFFER.PARAMETER`.
pub(crate) fn save_optimizer(
    layout: &[Param],
    optimizer: &DenseOptimizer,
    step: u64,
    state: &[Vec<f32>],
) -> Vec<NamedTensor> {
    let halves = vec![(step & 0xff_ffff) as f32, (step >> 24) as f32];
    let mut tensors = vec![NamedTensor { name: STEP.into(), shape: vec![2], data: halves }];
    for (name, values) in optimizer.state_names().iter().zip(state) {
        tensors.extend(to_tensors(layout, &format!("optimizer.{name}."), values));
    }
    tensors
}

/// The inverse of [`save_optimizer`].
pub(crate) fn load_optimizer(
    layout: &[Param],
    optimizer: &DenseOptimizer,
    tensors: &[NamedTensor],
) -> Result<(u64, Vec<Vec<f32>>), ModelError> {
    let mut known = vec![STEP.to_string()];
    for name in optimizer.state_names() {
        known.extend(layout.iter().map(|param| format!("optimizer.{name}.{}", param.name)));
    }
    refuse_unknown(&known, tensors)?;
    let half = |x: f32| (0.0..(1u32 << 24) as f32).contains(&x) && x.fract() == 0.0;
    let step = match tensors.iter().find(|tensor| tensor.name == STEP).map(|tensor| tensor.data.as_slice()) {
        Some(&[low, high]) if half(low) && half(high) => low as u64 + ((high as u64) << 24),
        found => return Err(ModelError::Load(format!("{STEP} is {found:?}, expected two whole numbers below 2^24"))),
    };
    let buffer = |name: &&str| from_tensors(layout, &format!("optimizer.{name}."), tensors);
    Ok((step, optimizer.state_names().iter().map(buffer).collect::<Result<_, _>>()?))
}

const STEP: &str = "optimizer.step";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_covers_the_buffer_without_gap() {
        let spec = ModelSpec::wide_deep(3, 2, 4, &[8, 5]).with_cross(2);
        let layout = layout(&spec);
        let names: Vec<&str> = layout.iter().map(|param| param.name.as_str()).collect();
        assert_eq!(names[..4], ["linear.weight", "linear.bias", "cross.0.weight", "cross.0.bias"]);
        assert_eq!(names[names.len() - 2..], ["tower.2.weight", "tower.2.bias"]);
        assert_eq!(layout.iter().find(|p| p.name == "tower.1.weight").unwrap().shape, [5, 8]);
        for pair in layout.windows(2) {
            assert_eq!(pair[0].range.end, pair[1].range.start);
        }
        assert!(layout.iter().all(|param| param.shape.iter().product::<usize>() == param.range.len()));
    }

    #[test]
    fn first_values_depend_on_seed_and_name_and_fill_the_range() {
        let layout = layout(&ModelSpec::ctr_dnn(10, 0, 10, &[200]));
        let values = initial(&layout, 7);
        assert_eq!(values, initial(&layout, 7));
        assert_ne!(values, initial(&layout, 8));
        let weight = &values[layout[0].range.clone()];
        let mean = weight.iter().sum::<f32>() / weight.len() as f32;
        let variance = weight.iter().map(|w| w * w).sum::<f32>() / weight.len() as f32;
        assert!(weight.iter().all(|w| w.abs() <= 0.1));
        assert!(mean.abs() < 2e-3, "{mean}");
        assert!((variance - 0.01 / 3.0).abs() < 1e-4, "{variance}");
        assert_ne!(values[layout[0].range.start], values[layout[2].range.start]);
    }

    #[test]
    fn tensors_round_trip_and_wrong_shapes_are_named() {
        let layout = layout(&ModelSpec::ctr_dnn(2, 1, 2, &[3]));
        let values = initial(&layout, 1);
        let tensors = to_tensors(&layout, "", &values);
        assert_eq!(from_tensors(&layout, "", &tensors).unwrap(), values);
        let error = from_tensors(&layout, "", &tensors[1..]).unwrap_err().to_string();
        assert!(error.contains("tower.0.weight is missing"), "{error}");
        let mut other = tensors.clone();
        other[0].shape = vec![5, 3];
        assert!(from_tensors(&layout, "", &other).unwrap_err().to_string().contains("expects [3, 5]"));
        let known: Vec<String> = tensors[1..].iter().map(|tensor| tensor.name.clone()).collect();
        assert!(refuse_unknown(&known, &tensors).unwrap_err().to_string().contains("tower.0.weight is unknown"));
    }

    #[test]
    fn optimizer_state_round_trips_and_damage_is_named() {
        let layout = layout(&ModelSpec::ctr_dnn(2, 1, 2, &[3]));
        let count = layout.last().unwrap().range.end;
        let adam = DenseOptimizer::adam(0.1);
        let state = vec![initial(&layout, 1), initial(&layout, 2)];
        for step in [0, 1, (1 << 24) + 1, (1 << 40) + 5] {
            let tensors = save_optimizer(&layout, &adam, step, &state);
            assert_eq!(load_optimizer(&layout, &adam, &tensors), Ok((step, state.clone())));
        }
        let tensors = save_optimizer(&layout, &adam, 3, &state);
        for bad in [vec![f32::MAX, f32::MAX], vec![-1.0, 0.0], vec![f32::NAN, 0.0], vec![0.5, 0.0], vec![1.0]] {
            let mut damaged = tensors.clone();
            damaged[0].data = bad;
            let error = load_optimizer(&layout, &adam, &damaged).unwrap_err().to_string();
            assert!(error.contains("two whole numbers"), "{error}");
        }
        let error = load_optimizer(&layout, &DenseOptimizer::sgd(0.1), &tensors).unwrap_err().to_string();
        assert!(error.contains("optimizer.moment1.tower.0.weight is unknown"), "{error}");
        let momentum = save_optimizer(&layout, &DenseOptimizer::momentum(0.1), 3, &[vec![0.0; count]]);
        assert!(load_optimizer(&layout, &adam, &momentum).is_err());
    }
}
