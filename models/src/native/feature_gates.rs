//! The gate of one tower of FinalMLP over a chunk of rows, forward and backward. With a learnt context the gate is one row for the whole
//! chunk.

use super::activate::sigmoids;
use super::final_mlp_layers::{GateContext, GateLayers};
use super::gemm::matmul;
use super::hidden_layers::{Gradients, Pass, weight_gradient};
use super::kernels::{self, dot, kernel};
use super::layer::weight;
use super::matrix::MatrixView;

/// The buffers of a micro-batch, kept between steps. `rows` is the number of rows of the chunk, or 1 with a learnt context.
#[derive(Default)]
pub(super) struct GateBuffers {
    /// `[rows x inputs]`: the context.
    input: Vec<f32>,
    /// `[rows x outputs]` of each layer; the last is the gate.
    acts: Vec<Vec<f32>>,
    /// Gradients of two neighbouring layers.
    by_gate: Vec<f32>,
    below: Vec<f32>,
}

impl GateBuffers {
    /// Computes the gate from `x0`, `[chunk x width]`, and sets `x` to `x0 * gate`.
    pub(super) fn forward(&mut self, pass: &Pass<'_>, gate: &GateLayers, x0: &[f32], x: &mut Vec<f32>) {
        let params = pass.params;
        let width = gate.layers.last().map_or(0, |layer| layer.outputs);
        let rows = match &gate.context {
            GateContext::Learnt(learnt) => {
                self.input.clear();
                self.input.extend_from_slice(&params[learnt.clone()]);
                1
            }
            GateContext::Slots(columns) => {
                self.input.resize(pass.rows * gate.layers[0].inputs, 0.0);
                copy_columns(columns, x0, width, &mut self.input, gate.layers[0].inputs);
                pass.rows
            }
        };
        self.acts.resize_with(gate.layers.len(), Vec::new);
        for (l, layer) in gate.layers.iter().enumerate() {
            let (before, rest) = self.acts.split_at_mut(l);
            let (input, act) = (before.last().map_or(self.input.as_slice(), Vec::as_slice), &mut rest[0]);
            act.resize(rows * layer.outputs, 0.0);
            match &gate.context {
                // A product of one row is summed in another order than a product of many.
                GateContext::Learnt(_) => one_row(input, &params[layer.weight.clone()], act),
                GateContext::Slots(_) => {
                    let input = MatrixView::new(input, rows, layer.inputs, layer.inputs);
                    matmul(act, layer.outputs, input, weight(params, layer).t(), false, pass.products);
                }
            }
            let bias = &params[layer.bias.clone()];
            if l + 1 < gate.layers.len() { kernels::bias_relu(act, bias) } else { twice_sigmoid(act, bias) }
        }
        x.resize(x0.len(), 0.0);
        apply(x0, self.acts.last().map_or(&[][..], Vec::as_slice), width, x);
    }

    /// From the gradient by `x0 * gate`, `[chunk x width]`, adds to the gradients of the parameters, and to `dx`, the gradient of the
    /// embeddings: through the product, and through the context.
    pub(super) fn backward(
        &mut self,
        pass: &Pass<'_>,
        gate: &GateLayers,
        (x0, by_x): (&[f32], &[f32]),
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        let (params, embedded) = (pass.params, pass.net.embedded());
        let Some((last, act)) = gate.layers.last().zip(self.acts.last()) else { return };
        let rows = if matches!(gate.context, GateContext::Learnt(_)) { 1 } else { pass.rows };
        self.by_gate.clear();
        self.by_gate.resize(act.len(), 0.0);
        apply_backward(x0, by_x, act, last.outputs, &mut self.by_gate, dx, embedded);
        twice_sigmoid_backward(&mut self.by_gate, act, &mut grads.params[last.bias.clone()]);
        for (l, layer) in gate.layers.iter().enumerate().rev() {
            if l + 1 < gate.layers.len() {
                kernels::relu_backward(&mut self.by_gate, &self.acts[l], &mut grads.params[layer.bias.clone()]);
            }
            let input = if l == 0 { &self.input } else { &self.acts[l - 1] };
            weight_gradient(grads.params, layer, &self.by_gate, input, rows, grads.adds, pass.products);
            self.below.resize(rows * layer.inputs, 0.0);
            let delta = MatrixView::new(&self.by_gate, rows, layer.outputs, layer.outputs);
            matmul(&mut self.below, layer.inputs, delta, weight(params, layer), false, pass.products);
            std::mem::swap(&mut self.by_gate, &mut self.below);
        }
        match &gate.context {
            GateContext::Learnt(learnt) => kernels::add(&mut grads.params[learnt.clone()], &self.by_gate),
            GateContext::Slots(columns) => {
                let mut from = 0;
                let inputs = gate.layers[0].inputs;
                for &(to, count) in columns {
                    let rows = dx.chunks_exact_mut(embedded).zip(self.by_gate.chunks_exact(inputs));
                    rows.for_each(|(dx, by)| kernels::add(&mut dx[to..to + count], &by[from..from + count]));
                    from += count;
                }
            }
        }
    }
}

/// Copies these runs of columns of each row, one after the other.
fn copy_columns(columns: &[(usize, usize)], from: &[f32], width: usize, to: &mut [f32], inputs: usize) {
    for (to, from) in to.chunks_exact_mut(inputs).zip(from.chunks_exact(width)) {
        let mut rest = to;
        for &(at, count) in columns {
            let (own, tail) = rest.split_at_mut(count);
            own.copy_from_slice(&from[at..at + count]);
            rest = tail;
        }
    }
}

kernel! {
    /// `y = weight · x` for one row `x`.
    fn one_row<'a>(x: &'a [f32], weight: &'a [f32], y: &'a mut [f32]) {
        for (y, weight) in y.iter_mut().zip(weight.chunks_exact(x.len())) {
            *y = dot(x, weight);
        }
    }
}

kernel! {
    /// `y = 2 sigmoid(y + bias)`.
    fn twice_sigmoid<'a>(y: &'a mut [f32], bias: &'a [f32]) {
        for row in y.chunks_exact_mut(bias.len()) {
            for (y, &bias) in row.iter_mut().zip(bias) {
                *y = 2.0 * sigmoids(*y + bias).0;
            }
        }
    }
}

kernel! {
    /// The backward pass of `twice_sigmoid`, from its output `gate`: `delta *= gate (1 - gate / 2)`. Adds to the gradient of the bias.
    fn twice_sigmoid_backward<'a>(delta: &'a mut [f32], gate: &'a [f32], bias_grad: &'a mut [f32]) {
        let width = bias_grad.len();
        for (delta, gate) in delta.chunks_exact_mut(width).zip(gate.chunks_exact(width)) {
            for ((delta, &gate), sum) in delta.iter_mut().zip(gate).zip(bias_grad.iter_mut()) {
                *delta *= gate * (1.0 - 0.5 * gate);
                *sum += *delta;
            }
        }
    }
}

kernel! {
    /// `x = x0 * gate`, rows of `width`; a gate of one row holds for all rows.
    fn apply<'a>(x0: &'a [f32], gate: &'a [f32], width: usize, x: &'a mut [f32]) {
        for ((x, x0), gate) in x.chunks_exact_mut(width).zip(x0.chunks_exact(width)).zip(gate.chunks_exact(width).cycle()) {
            for ((x, &x0), &gate) in x.iter_mut().zip(x0).zip(gate) {
                *x = x0 * gate;
            }
        }
    }
}

kernel! {
    /// The backward pass of `apply`: adds to `by_gate`, which has as many rows as `gate`, and to the `embedded` numbers of each row of
    /// `dx`.
    fn apply_backward<'a>(x0: &'a [f32], by_x: &'a [f32], gate: &'a [f32], width: usize, by_gate: &'a mut [f32],
                          dx: &'a mut [f32], embedded: usize) {
        let each = gate.len() > width;
        let rows = x0.chunks_exact(width).zip(by_x.chunks_exact(width)).zip(dx.chunks_exact_mut(embedded));
        for (row, ((x0, by_x), dx)) in rows.enumerate() {
            let own = if each { row * width } else { 0 };
            for ((by_gate, &x0), &by_x) in by_gate[own..own + width].iter_mut().zip(x0).zip(by_x) {
                *by_gate += x0 * by_x;
            }
            for ((dx, &gate), &by_x) in dx.iter_mut().zip(&gate[own..own + width]).zip(by_x) {
                *dx += gate * by_x;
            }
        }
    }
}
