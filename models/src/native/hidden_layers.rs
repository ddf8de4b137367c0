//! A stack of hidden layers over a chunk of rows, forward and backward, with the buffers that it keeps between the two.

use super::activate::{self, Drops, Kept};
use super::gemm::{Products, matmul};
use super::kernels;
use super::layer::{Layer, weight};
use super::matrix::MatrixView;
use super::network::Network;
use super::packed_weights::PackedWeights;
use super::step_weights::StepWeights;

/// The parameters of a pass over a chunk.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) net: &'a Network,
    pub(super) params: &'a [f32],
    /// Rows to compute.
    pub(super) rows: usize,
    /// The weights of layers, if they are packed for predictions.
    pub(super) packed: Option<&'a PackedWeights>,
    /// The same for a training step.
    pub(super) of_step: Option<&'a StepWeights>,
    pub(super) products: Products,
    /// The id of the batch and the number of the chunk's first row in it; `None` when predicting.
    pub(super) training: Option<(u64, usize)>,
}

impl Pass<'_> {
    /// `out = x * weight`, transposed: `x` is `[rows x inputs]` of a layer, `out` becomes `[rows x outputs]`.
    pub(super) fn product(&self, out: &mut [f32], layer: &Layer, x: &[f32]) {
        // A product of a packed weight is made by one thread.
        let packed = self.packed.filter(|_| self.products.threads == 1);
        if let Some(weight) = packed.and_then(|packed| packed.of(layer)) {
            return weight.multiply(out, x);
        }
        let x = MatrixView::new(x, self.rows, layer.inputs, layer.inputs);
        if !self.of_step.is_some_and(|weights| weights.forward(out, layer, x, self.products)) {
            matmul(out, layer.outputs, x, weight(self.params, layer).t(), false, self.products);
        }
    }

    /// `out = by_output * weight`, or `out += by_output * weight` if `add`: from the gradient by the outputs of a layer, `[rows x
    /// outputs]`, to the gradient by its first `columns` inputs, `[rows x columns]`.
    pub(super) fn by_inputs(&self, out: &mut [f32], layer: &Layer, by_output: &[f32], columns: usize, add: bool) {
        let by_output = MatrixView::new(by_output, self.rows, layer.outputs, layer.outputs);
        if !self.of_step.is_some_and(|weights| weights.backward(out, layer, by_output, (columns, add), self.products)) {
            let weight = MatrixView::new(&self.params[layer.weight.clone()], layer.outputs, columns, layer.inputs);
            matmul(out, columns, by_output, weight, add, self.products);
        }
    }
}

/// The gradients that a backward pass adds to.
pub(super) struct Gradients<'a> {
    /// By all parameters.
    pub(super) params: &'a mut [f32],
    /// Whether to add to the gradients by the weights of hidden layers: they hold the gradients of an earlier chunk.
    pub(super) adds: bool,
    /// Gradients of two neighbouring layers' activations. The first is the gradient by the output when a backward pass begins.
    pub(super) deltas: &'a mut [Vec<f32>; 2],
}

/// Where the gradient by the input of a stack goes: its first `columns` numbers of each row, `columns` apart.
pub(super) struct ToInput<'a> {
    pub(super) to: &'a mut [f32],
    pub(super) columns: usize,
    /// Whether it is added to the numbers in `to`, or replaces them.
    pub(super) adds: bool,
}

/// The buffers of one stack.
#[derive(Default)]
pub(super) struct HiddenLayers {
    /// Activations of each layer, `[chunk x outputs]`.
    acts: Vec<Vec<f32>>,
    /// For each layer, if it is more than bias and relu: the numbers for its backward pass.
    kept: Vec<Kept>,
}

impl HiddenLayers {
    /// Computes all layers from the input `x`. `first` is the number of the first layer among all hidden layers of the model.
    pub(super) fn forward(&mut self, pass: &Pass<'_>, layers: &[Layer], first: usize, x: &[f32]) {
        let Pass { net, params, rows: n, training, .. } = *pass;
        self.acts.resize_with(layers.len(), Vec::new);
        self.kept.resize_with(if net.plain { 0 } else { layers.len() }, Kept::default);
        for (l, layer) in layers.iter().enumerate() {
            let (before, rest) = self.acts.split_at_mut(l);
            let x = before.last().map_or(x, Vec::as_slice);
            let act = &mut rest[0];
            act.resize(n * layer.outputs, 0.0);
            pass.product(act, layer, x);
            if net.plain {
                kernels::bias_relu(act, &params[layer.bias.clone()]);
                continue;
            }
            let behind = layer.behind(params);
            match training {
                None => activate::predict(act, net.activation, &behind),
                Some((batch, row)) => {
                    let drops = |dropout: crate::dropout::Dropout| Drops {
                        dropout,
                        stream: dropout.stream(batch, first + l),
                        first: row,
                    };
                    activate::forward(act, net.activation, &behind, net.dropout.map(drops), &mut self.kept[l]);
                }
            }
        }
    }

    /// The output of the last layer; without layers the input `x`.
    pub(super) fn output<'a>(&'a self, x: &'a [f32]) -> &'a [f32] {
        self.acts.last().map_or(x, Vec::as_slice)
    }

    /// The backward pass from the gradient of the output, in `grads.deltas[0]`, to the parameters and to the input `x`.
    pub(super) fn backward(
        &self,
        pass: &Pass<'_>,
        layers: &[Layer],
        x: &[f32],
        grads: &mut Gradients<'_>,
        input: ToInput<'_>,
    ) {
        let Pass { net, params, rows: n, products, .. } = *pass;
        let ToInput { to, columns, adds } = input;
        if layers.is_empty() {
            if !adds {
                to.fill(0.0);
            }
            return kernels::add(to, &grads.deltas[0]);
        }
        for (l, layer) in layers.iter().enumerate().rev() {
            let [delta, below] = &mut *grads.deltas;
            if net.plain {
                kernels::relu_backward(delta, &self.acts[l], &mut grads.params[layer.bias.clone()]);
            } else {
                let behind = layer.behind(params);
                activate::backward(delta, &self.kept[l], &behind, layer.behind_mut(grads.params));
            }
            let input = if l == 0 { x } else { &self.acts[l - 1] };
            weight_gradient(grads.params, layer, delta, input, n, grads.adds, products);
            if l == 0 {
                pass.by_inputs(to, layer, delta, columns, adds);
            } else {
                below.resize(n * layer.inputs, 0.0);
                pass.by_inputs(below, layer, delta, layer.inputs, false);
                grads.deltas.swap(0, 1);
            }
        }
    }
}

/// `grads[weight] = deltaᵀ · input` over `n` rows, or `+=` if `add`.
pub(super) fn weight_gradient(
    grads: &mut [f32],
    layer: &Layer,
    delta: &[f32],
    input: &[f32],
    n: usize,
    add: bool,
    products: Products,
) {
    let delta = MatrixView::new(delta, n, layer.outputs, layer.outputs).t();
    let input = MatrixView::new(input, n, layer.inputs, layer.inputs);
    matmul(&mut grads[layer.weight.clone()], layer.inputs, delta, input, add, products);
}
