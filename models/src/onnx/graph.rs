//! Writes a spec as a graph of ONNX operators, part by part, as the native backend computes it.

use super::messages::{
    ATTRIBUTE_INT, AttributeProto, DimensionProto, FLOAT, GraphProto, INT64, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::tower::NORM_EPSILON;
use crate::two_towers::LENGTH_EPSILON;
use crate::{
    Activation, Attention, Cross, ModelSpec, NamedTensor, Norm, Similarity, Tasks, Tower, TowerSide, TwoTowers,
};

/// The graph so far. Every value that a node makes has a name of its own.
#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
}

/// The axis of slots in `linear` and `embedding`, and of values in a matrix.
const AXIS_1: &str = "axis_1";
/// The vectors of all slots behind attention, `[rows, slots, embedding_dim]`.
const ATTENDED: &str = "attended";

impl Graph {
    /// The graph of a valid spec with its parameters.
    pub(super) fn of(spec: &ModelSpec, tensors: &[NamedTensor], correction: f32) -> GraphProto {
        let mut graph = Self::default();
        graph.initializers.extend(tensors.iter().map(parameter));
        graph.integers(AXIS_1, &[1]);
        let mut parts = Vec::new();
        if let Some(attention) = &spec.attention {
            graph.attention(spec, attention);
        }
        if spec.linear {
            parts.push(graph.linear(spec));
        }
        if spec.fm {
            parts.push(graph.fm(vectors(spec)));
        }
        if spec.cross.is_some() || spec.tower.is_some() {
            let mut input = graph.x0(spec);
            if let Some(cross) = &spec.cross {
                let output = graph.cross(cross, &input);
                if cross.is_stacked() {
                    input = output;
                } else {
                    parts.push(graph.layer("cross.out", &output));
                }
            }
            parts.extend(spec.tower.as_ref().map(|tower| graph.mlp(tower, "tower", &input)));
        }
        if let Some(two) = &spec.two_towers {
            parts.push(graph.two_towers(spec, two));
        }
        if let Some(final_mlp) = &spec.final_mlp {
            let x0 = graph.x0(spec);
            parts.push(graph.final_mlp(spec, final_mlp, &x0));
        }
        if correction != 0.0 {
            parts.push(graph.floats("correction", &[correction]));
        }
        match &spec.tasks {
            None => graph.logit(parts),
            Some(tasks) => {
                let x0 = graph.x0(spec);
                graph.labels(tasks, &x0);
            }
        }
        graph.node("Sigmoid", &["logit"], "probability");
        graph.leave_out_unused_axis();
        let labels: Vec<usize> = spec.tasks.iter().map(Tasks::labels).collect();
        GraphProto {
            node: graph.nodes,
            name: "forebay".into(),
            initializer: graph.initializers,
            input: inputs(spec),
            output: [
                value("logit", &labels, "the logit, corrected for down-sampled negatives"),
                value("probability", &labels, "the probability of label 1: the score of `forebay predict`"),
            ]
            .into_iter()
            .chain(spec.two_towers.iter().flat_map(|two| {
                TowerSide::BOTH
                    .map(|side| value(&vector(side), &[two.vector_dim], "what `forebay embed` writes for this tower"))
            }))
            .collect(),
        }
    }

    /// The graph of one tower of a valid spec, with the parameters of both.
    pub(super) fn of_tower(spec: &ModelSpec, two: &TwoTowers, side: TowerSide, tensors: &[NamedTensor]) -> GraphProto {
        let mut graph = Self::default();
        let own = format!("{}.", side.name());
        graph.initializers.extend(tensors.iter().filter(|tensor| tensor.name.starts_with(&own)).map(parameter));
        graph.integers(AXIS_1, &[1]);
        let inputs = two.inputs(side);
        let shape = graph.integers("x.shape", &[-1, (inputs.slots.len() * spec.embedding_dim) as i64]);
        let flat = graph.node("Reshape", &["embedding", &shape], "x.embedding");
        let flat = graph.own_columns(spec, inputs.slots.iter().copied(), "x", flat);
        let x = if inputs.dense.is_empty() {
            flat
        } else {
            let joined = graph.node("Concat", &[&flat, "dense"], "x");
            graph.attribute("axis", 1);
            joined
        };
        graph.vector(two, side, &x);
        graph.leave_out_unused_axis();
        let (slots, dense) = (inputs.slots.len(), inputs.dense.len());
        let mut input = vec![value(
            "embedding",
            &[slots, spec.embedding_dim],
            "the pooled embeddings of the slots of this tower, in the order of the model",
        )];
        if dense > 0 {
            input.push(value("dense", &[dense], "the dense features of this tower, after their transforms"));
        }
        GraphProto {
            node: graph.nodes,
            name: "forebay".into(),
            initializer: graph.initializers,
            input,
            output: vec![value(&vector(side), &[two.vector_dim], "what `forebay embed` writes for this tower")],
        }
    }

    /// Runtimes warn of initializers that no node reads.
    fn leave_out_unused_axis(&mut self) {
        if !self.nodes.iter().any(|node| node.input.iter().any(|input| input == AXIS_1)) {
            self.initializers.retain(|initializer| initializer.name != AXIS_1);
        }
    }

    /// The similarity of the vectors of both towers, and its bias, `[rows, 1]`.
    fn two_towers(&mut self, spec: &ModelSpec, two: &TwoTowers) -> String {
        let all = self.x0(spec);
        for side in TowerSide::BOTH {
            let (name, inputs) = (side.name(), two.inputs(side));
            let first_dense = spec.embedded();
            let of_slot = |&slot: &usize| spec.slot_at(slot)..spec.slot_at(slot) + spec.dim_of(slot);
            let columns = inputs.slots.iter().flat_map(of_slot).chain(inputs.dense.iter().map(|at| first_dense + at));
            let columns: Vec<i64> = columns.map(|column| column as i64).collect();
            let columns = self.integers(&format!("{name}.columns"), &columns);
            let x = self.node("Gather", &[&all, &columns], &format!("{name}.x"));
            self.attribute("axis", 1);
            self.vector(two, side, &x);
        }
        let [user, item] = TowerSide::BOTH.map(vector);
        let product = self.node("Mul", &[&user, &item], "similarity.product");
        let sum = self.sum_over_axis_1(&product, "similarity.sum", true);
        let scale = self.floats("similarity.scale", &[1.0 / two.temperature]);
        let scaled = self.node("Mul", &[&sum, &scale], "similarity.scaled");
        if two.is_in_batch() { scaled } else { self.node("Add", &[&scaled, "similarity.bias"], "similarity.logit") }
    }

    /// The vector of a tower over its input `x`, `[rows, vector_dim]`, as the value that [`vector`] names.
    fn vector(&mut self, two: &TwoTowers, side: TowerSide, x: &str) {
        let (name, hidden) = (side.name(), two.hidden(side));
        let x = self.hidden(name, hidden, &two.tower, x);
        let y = self.layer(&format!("{name}.{}", hidden.len()), &x);
        if two.similarity == Similarity::Dot {
            self.node("Identity", &[&y], &vector(side));
            return;
        }
        let squares = self.node("Mul", &[&y, &y], &format!("{name}.squares"));
        let sum = self.sum_over_axis_1(&squares, &format!("{name}.sum_of_squares"), true);
        let epsilon = self.floats(&format!("{name}.epsilon"), &[LENGTH_EPSILON]);
        let above_0 = self.node("Add", &[&sum, &epsilon], &format!("{name}.above_0"));
        let length = self.node("Sqrt", &[&above_0], &format!("{name}.length"));
        self.node("Div", &[&y, &length], &vector(side));
    }

    /// The sum over the slots of the pooled weights, and the dense features, `[rows, 1]`.
    fn linear(&mut self, spec: &ModelSpec) -> String {
        let slots = self.sum_over_axis_1("linear", "linear.slots", true);
        if spec.dense == 0 {
            return self.node("Add", &[&slots, "linear.bias"], "linear.logit");
        }
        let dense = self.layer("linear", "dense");
        self.node("Add", &[&slots, &dense], "linear.logit")
    }

    /// Half of the square of the sum less the sum of the squares, over the slots, `[rows, 1]`.
    fn fm(&mut self, embedding: &str) -> String {
        let sum = self.sum_over_axis_1(embedding, "fm.sum", false);
        let square_of_sum = self.node("Mul", &[&sum, &sum], "fm.square_of_sum");
        let squares = self.node("Mul", &[embedding, embedding], "fm.squares");
        let sum_of_squares = self.sum_over_axis_1(&squares, "fm.sum_of_squares", false);
        let difference = self.node("Sub", &[&square_of_sum, &sum_of_squares], "fm.difference");
        let twice = self.sum_over_axis_1(&difference, "fm.twice", true);
        let half = self.floats("fm.half", &[0.5]);
        self.node("Mul", &[&twice, &half], "fm.logit")
    }

    /// All pooled embeddings of a row, then its dense features, `[rows, input_width]`.
    fn x0(&mut self, spec: &ModelSpec) -> String {
        let shape = self.integers("x0.shape", &[-1, (spec.slots * spec.embedding_dim) as i64]);
        let flat = self.node("Reshape", &[vectors(spec), &shape], "x0.embedding");
        let flat = self.own_columns(spec, 0..spec.slots, "x0", flat);
        if spec.dense == 0 {
            return flat;
        }
        let joined = self.node("Concat", &[&flat, "dense"], "x0");
        self.attribute("axis", 1);
        joined
    }

    /// Drops the padding from the embeddings of these slots: `flat` has them one after the other, padded to one width.
    fn own_columns(
        &mut self,
        spec: &ModelSpec,
        slots: impl Iterator<Item = usize>,
        name: &str,
        flat: String,
    ) -> String {
        if spec.slot_dims.is_empty() {
            return flat;
        }
        let dim = spec.embedding_dim;
        let columns = slots.enumerate().flat_map(|(at, slot)| at * dim..at * dim + spec.dim_of(slot));
        let columns: Vec<i64> = columns.map(|column| column as i64).collect();
        let columns = self.integers(&format!("{name}.own"), &columns);
        let own = self.node("Gather", &[&flat, &columns], &format!("{name}.own_embedding"));
        self.attribute("axis", 1);
        own
    }

    /// `embedding` with the vectors of attention in place of the histories' embeddings, as the value [`ATTENDED`].
    fn attention(&mut self, spec: &ModelSpec, attention: &Attention) {
        let dim = spec.embedding_dim as i64;
        let element = self.integers("element", &[-1, dim]);
        let mut slots = Vec::new();
        for slot in 0..spec.slots {
            let number = self.integers(&format!("slot.{slot}"), &[slot as i64]);
            slots.push(self.node("Gather", &["embedding", &number], &format!("slot.{slot}.vector")));
            self.attribute("axis", 1);
        }
        for (at, pair) in attention.pairs.iter().enumerate() {
            let (name, history) = (format!("attention.{at}"), format!("history_{at}"));
            let shape = self.node("Shape", &[&history], &format!("{name}.shape"));
            let target = self.node("Expand", &[&slots[pair.target], &shape], &format!("{name}.targets"));
            let target = self.node("Reshape", &[&target, &element], &format!("{name}.target"));
            let values = self.node("Reshape", &[&history, &element], &format!("{name}.values"));
            let difference = self.node("Sub", &[&target, &values], &format!("{name}.difference"));
            let product = self.node("Mul", &[&target, &values], &format!("{name}.product"));
            let x = self.node("Concat", &[&target, &values, &difference, &product], &format!("{name}.x"));
            self.attribute("axis", 1);
            let score = self.mlp(&attention.unit, &name, &x);
            let weighted = self.node("Mul", &[&score, &values], &format!("{name}.weighted"));
            let weighted = self.node("Reshape", &[&weighted, &shape], &format!("{name}.weighted_rows"));
            slots[pair.history] = self.sum_over_axis_1(&weighted, &format!("{name}.sum"), true);
        }
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        self.node("Concat", &slots, ATTENDED);
        self.attribute("axis", 1);
    }

    /// `x_{l+1} = x0 * (W_l x_l + b_l) + x_l`, with the weight or its two factors: the output of the last layer.
    fn cross(&mut self, cross: &Cross, x0: &str) -> String {
        let mut x = x0.to_owned();
        for l in 0..cross.layers {
            let low = cross.rank.map(|_| {
                let low = self.node("Gemm", &[&x, &format!("cross.{l}.v.weight")], &format!("cross.{l}.low"));
                self.attribute("transB", 1);
                low
            });
            let u = self.layer(&format!("cross.{l}"), low.as_ref().unwrap_or(&x));
            let product = self.node("Mul", &[x0, &u], &format!("cross.{l}.product"));
            x = self.node("Add", &[&product, &x], &format!("cross.{l}.x"));
        }
        x
    }

    /// The layers `name.L`, the last with one output.
    fn mlp(&mut self, tower: &Tower, name: &str, x0: &str) -> String {
        let x = self.hidden(name, &tower.hidden, tower, x0);
        self.layer(&format!("{name}.{}", tower.hidden.len()), &x)
    }

    /// The hidden layers `name.0`, `name.1`.. of these widths.
    pub(super) fn hidden(&mut self, name: &str, widths: &[usize], tower: &Tower, x0: &str) -> String {
        let mut x = x0.to_owned();
        for (l, &width) in widths.iter().enumerate() {
            let name = format!("{name}.{l}");
            let y = self.layer(&name, &x);
            let y = match tower.norm {
                Norm::None => y,
                Norm::Layer => self.layer_norm(&y, width, &name),
            };
            x = self.activation(tower.activation, &y, &name);
        }
        x
    }

    /// The `logit` of several labels, `[rows, labels]`.
    fn labels(&mut self, tasks: &Tasks, x0: &str) {
        let tower = &tasks.tower;
        let shared: Vec<String> =
            tasks.shared().iter().map(|name| self.hidden(name, tasks.shared_hidden(), tower, x0)).collect();
        let mut outputs = Vec::new();
        for k in 0..tasks.labels() {
            let input = match shared.first() {
                _ if tasks.gate_outputs() > 0 => self.mixture(k, &shared, x0),
                Some(bottom) => bottom.clone(),
                None => x0.to_owned(),
            };
            let x = self.hidden(&format!("task.{k}"), &tower.hidden, tower, &input);
            outputs.push(self.layer(&format!("task.{k}.{}", tower.hidden.len()), &x));
        }
        if tasks.is_esmm() {
            // See `loss::product_logit`.
            let [a, b] = [0, 1].map(|k| self.node("Neg", &[&outputs[k]], &format!("task.{k}.not")));
            let both = self.node("Add", &[&a, &b], "product.not");
            let terms = self.node("Concat", &[&a, &b, &both], "product.terms");
            self.attribute("axis", 1);
            // Not ReduceLogSumExp, which some runtimes compute without care for large numbers.
            let largest = self.node("Max", &[&a, &b, &both], "product.largest");
            let below = self.node("Sub", &[&terms, &largest], "product.below");
            let powers = self.node("Exp", &[&below], "product.powers");
            let sum = self.sum_over_axis_1(&powers, "product.sum", true);
            let logarithm = self.node("Log", &[&sum], "product.logarithm");
            let not = self.node("Add", &[&logarithm, &largest], "product.not_logit");
            outputs[1] = self.node("Neg", &[&not], "product.logit");
        }
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        self.node("Concat", &outputs, "logit");
        self.attribute("axis", 1);
    }

    /// The outputs of the experts, each times its share in the gate of label `k`, added up.
    fn mixture(&mut self, k: usize, experts: &[String], x0: &str) -> String {
        let gate = self.layer(&format!("gate.{k}"), x0);
        let shares = self.node("Softmax", &[&gate], &format!("gate.{k}.shares"));
        self.attribute("axis", 1);
        let mut sum = String::new();
        for (e, expert) in experts.iter().enumerate() {
            let at = self.integers(&format!("gate.{k}.at.{e}"), &[e as i64]);
            let share = self.node("Gather", &[&shares, &at], &format!("gate.{k}.share.{e}"));
            self.attribute("axis", 1);
            let part = self.node("Mul", &[&share, expert], &format!("gate.{k}.part.{e}"));
            sum = if e == 0 { part } else { self.node("Add", &[&sum, &part], &format!("gate.{k}.sum.{e}")) };
        }
        sum
    }

    /// The layer norm of the layer `name`, of `width` units, in operators that are older than LayerNormalization.
    fn layer_norm(&mut self, y: &str, width: usize, name: &str) -> String {
        let share = self.floats(&format!("{name}.share_of_mean"), &[1.0 / width as f32]);
        let epsilon = self.floats(&format!("{name}.epsilon"), &[NORM_EPSILON]);
        let sum = self.sum_over_axis_1(y, &format!("{name}.sum"), true);
        let mean = self.node("Mul", &[&sum, &share], &format!("{name}.mean"));
        let centered = self.node("Sub", &[y, &mean], &format!("{name}.centered"));
        let squares = self.node("Mul", &[&centered, &centered], &format!("{name}.squares"));
        let sum_of_squares = self.sum_over_axis_1(&squares, &format!("{name}.sum_of_squares"), true);
        let variance = self.node("Mul", &[&sum_of_squares, &share], &format!("{name}.variance"));
        let above_0 = self.node("Add", &[&variance, &epsilon], &format!("{name}.above_0"));
        let deviation = self.node("Sqrt", &[&above_0], &format!("{name}.deviation"));
        let normal = self.node("Div", &[&centered, &deviation], &format!("{name}.normal"));
        let scaled = self.node("Mul", &[&normal, &format!("{name}.gamma")], &format!("{name}.normal_scaled"));
        self.node("Add", &[&scaled, &format!("{name}.beta")], &format!("{name}.normal_shifted"))
    }

    /// The activation of the layer `name`. Operator set 13 has no Gelu and no Silu, so these are made of others.
    fn activation(&mut self, activation: Activation, y: &str, name: &str) -> String {
        let out = format!("{name}.x");
        match activation {
            Activation::Relu => self.node("Relu", &[y], &out),
            Activation::Sigmoid => self.node("Sigmoid", &[y], &out),
            Activation::Prelu => self.node("PRelu", &[y, &format!("{name}.slope")], &out),
            Activation::Silu => {
                let sigmoid = self.node("Sigmoid", &[y], &format!("{name}.sigmoid"));
                self.node("Mul", &[y, &sigmoid], &out)
            }
            // y / 2 · (1 + erf(y / √2))
            Activation::Gelu => {
                let root_half = self.floats(&format!("{name}.root_half"), &[std::f32::consts::FRAC_1_SQRT_2]);
                let (half, one) =
                    (self.floats(&format!("{name}.half"), &[0.5]), self.floats(&format!("{name}.one"), &[1.0]));
                let scaled = self.node("Mul", &[y, &root_half], &format!("{name}.scaled"));
                let erf = self.node("Erf", &[&scaled], &format!("{name}.erf"));
                let twice = self.node("Add", &[&erf, &one], &format!("{name}.twice"));
                let share = self.node("Mul", &[&twice, &half], &format!("{name}.share"));
                self.node("Mul", &[y, &share], &out)
            }
        }
    }

    /// Adds up the parts, each `[rows, 1]`, to `logit`, `[rows]`.
    fn logit(&mut self, parts: Vec<String>) {
        let mut parts = parts.into_iter();
        let mut sum = parts.next().expect("a valid spec has a part");
        for (at, part) in parts.enumerate() {
            sum = self.node("Add", &[&sum, &part], &format!("sum.{at}"));
        }
        self.node("Squeeze", &[&sum, AXIS_1], "logit");
    }

    /// A linear layer with the parameters `name.weight` and `name.bias`.
    pub(super) fn layer(&mut self, name: &str, x: &str) -> String {
        let y = self.node("Gemm", &[x, &format!("{name}.weight"), &format!("{name}.bias")], &format!("{name}.y"));
        self.attribute("transB", 1);
        y
    }

    pub(super) fn sum_over_axis_1(&mut self, x: &str, name: &str, keeps_axis: bool) -> String {
        let sum = self.node("ReduceSum", &[x, AXIS_1], name);
        self.attribute("keepdims", i64::from(keeps_axis));
        sum
    }

    /// Appends a node that makes `name`, which it returns.
    pub(super) fn node(&mut self, operator: &str, inputs: &[&str], name: &str) -> String {
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: operator.to_owned(),
            attribute: Vec::new(),
        });
        name.to_owned()
    }

    /// Adds an attribute to the last node.
    pub(super) fn attribute(&mut self, name: &str, i: i64) {
        let node = self.nodes.last_mut().expect("a node was appended");
        node.attribute.push(AttributeProto { name: name.to_owned(), i, r#type: ATTRIBUTE_INT });
    }

    pub(super) fn integers(&mut self, name: &str, values: &[i64]) -> String {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dims = vec![values.len() as i64];
        self.initializers.push(TensorProto { dims, data_type: INT64, name: name.to_owned(), raw_data });
        name.to_owned()
    }

    pub(super) fn floats(&mut self, name: &str, values: &[f32]) -> String {
        let tensor = NamedTensor { name: name.to_owned(), shape: vec![values.len()], data: values.to_vec() };
        self.initializers.push(parameter(&tensor));
        name.to_owned()
    }
}

fn parameter(tensor: &NamedTensor) -> TensorProto {
    TensorProto {
        dims: tensor.shape.iter().map(|&size| size as i64).collect(),
        data_type: FLOAT,
        name: tensor.name.clone(),
        raw_data: tensor.data.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn inputs(spec: &ModelSpec) -> Vec<ValueInfoProto> {
    let mut inputs = Vec::new();
    if spec.linear {
        inputs.push(value("linear", &[spec.slots], "the pooled linear weights of each slot"));
    }
    if spec.uses_embeddings() {
        inputs.push(value("embedding", &[spec.slots, spec.embedding_dim], "the pooled embeddings of each slot"));
    }
    for at in 0..spec.attention.as_ref().map_or(0, |attention| attention.pairs.len()) {
        let doc = "the embeddings of the values of a history, then zeros: as many for each row, at least one";
        inputs.push(sized(&format!("history_{at}"), &[None, Some(spec.embedding_dim)], doc));
    }
    if spec.dense > 0 {
        inputs.push(value("dense", &[spec.dense], "dense features after their transforms"));
    }
    inputs
}

/// The name of a tower's vector.
fn vector(side: TowerSide) -> String {
    format!("{}_vector", side.name())
}

/// The vectors of all slots.
fn vectors(spec: &ModelSpec) -> &'static str {
    if spec.attention.is_some() { ATTENDED } else { "embedding" }
}

/// A value of `rows` times `sizes` floats.
fn value(name: &str, sizes: &[usize], doc: &str) -> ValueInfoProto {
    let sizes: Vec<Option<usize>> = sizes.iter().copied().map(Some).collect();
    sized(name, &sizes, doc)
}

/// A value of `rows` times `sizes` floats; a size that is not given may be any number.
fn sized(name: &str, sizes: &[Option<usize>], doc: &str) -> ValueInfoProto {
    let rows = DimensionProto { dim_value: None, dim_param: Some("rows".into()) };
    let sizes = sizes.iter().map(|size| match size {
        Some(size) => DimensionProto { dim_value: Some(*size as i64), dim_param: None },
        None => DimensionProto { dim_value: None, dim_param: Some(format!("values_of_{name}")) },
    });
    let shape = TensorShapeProto { dim: std::iter::once(rows).chain(sizes).collect() };
    let tensor_type = Some(TensorTypeProto { elem_type: FLOAT, shape: Some(shape) });
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type }), doc_string: doc.into() }
}
