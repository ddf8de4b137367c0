//! FinalMLP over a chunk of rows: two gated towers and the fusion of their outputs, forward and backward.

use super::feature_gates::GateBuffers;
use super::final_mlp_layers::FinalMlpLayers;
use super::gemm::matmul;
use super::hidden_layers::{Gradients, HiddenLayers, Pass, ToInput};
use super::kernels::{self, dot, kernel};
use super::layer::weight;
use super::matrix::MatrixView;

/// The buffers of a micro-batch, kept between steps. `chunk` rows each.
#[derive(Default)]
pub(super) struct FinalMlpBuffers {
    streams: [StreamBuffers; 2],
    /// `[chunk x second]`: for each head, one after the other, `W_h o1_h`.
    product: Vec<f32>,
    /// Gradients by the outputs of both towers, and by the input of a gated tower, `[chunk x width]`.
    by_outputs: [Vec<f32>; 2],
    by_x: Vec<f32>,
}

#[derive(Default)]
struct StreamBuffers {
    gate: GateBuffers,
    /// `[chunk x width]`: `x0 * gate`; empty without a gate.
    x: Vec<f32>,
    hidden: HiddenLayers,
}

impl StreamBuffers {
    /// The input of the tower.
    fn input<'a>(&'a self, x0: &'a [f32]) -> &'a [f32] {
        if self.x.is_empty() { x0 } else { &self.x }
    }

    fn output<'a>(&'a self, x0: &'a [f32]) -> &'a [f32] {
        self.hidden.output(self.input(x0))
    }
}

impl FinalMlpBuffers {
    /// Adds the logits of the rows of `x0`, `[rows x width]`.
    pub(super) fn forward(&mut self, pass: &Pass<'_>, layers: &FinalMlpLayers, x0: &[f32], logits: &mut [f32]) {
        let Pass { params, rows: n, products, .. } = *pass;
        for (buffers, stream) in self.streams.iter_mut().zip(&layers.streams) {
            if let Some(gate) = &stream.gate {
                buffers.gate.forward(pass, gate, x0, &mut buffers.x);
            }
            let input = if buffers.x.is_empty() { x0 } else { &buffers.x };
            buffers.hidden.forward(pass, &stream.hidden, stream.first_hidden, input);
        }
        let [first, second] = self.streams.each_ref().map(|stream| stream.output(x0));
        let [d1, d2] = layers.weights.each_ref().map(|weight| weight.len());
        self.product.resize(n * d2, 0.0);
        for (h, head) in layers.heads.iter().enumerate() {
            let own = MatrixView::new(&first[h * head.inputs..], n, head.inputs, d1);
            matmul(&mut self.product[h * head.outputs..], d2, own, weight(params, head).t(), false, products);
        }
        let [of_first, of_second] = layers.weights.each_ref().map(|weight| &params[weight.clone()]);
        kernels::head(first, of_first, params[layers.bias], logits);
        add_products(&self.product, second, of_second, logits);
    }

    /// The backward pass from `dlogits`, `[rows]`: adds to the gradients of the parameters, and sets `dx` to the gradient of the
    /// embeddings.
    pub(super) fn backward(
        &mut self,
        pass: &Pass<'_>,
        layers: &FinalMlpLayers,
        x0: &[f32],
        dlogits: &[f32],
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        self.fusion_backward(pass, layers, x0, dlogits, grads);
        dx.fill(0.0);
        let embedded = pass.net.embedded();
        let streams = self.streams.iter_mut().zip(&layers.streams).zip(&mut self.by_outputs);
        for ((buffers, stream), by_output) in streams {
            std::mem::swap(&mut grads.deltas[0], by_output);
            let Some(gate) = &stream.gate else {
                let to_input = ToInput { to: &mut *dx, columns: embedded, adds: true };
                buffers.hidden.backward(pass, &stream.hidden, x0, grads, to_input);
                continue;
            };
            self.by_x.resize(x0.len(), 0.0);
            let to_input = ToInput { to: &mut self.by_x, columns: pass.net.width(), adds: false };
            buffers.hidden.backward(pass, &stream.hidden, &buffers.x, grads, to_input);
            buffers.gate.backward(pass, gate, (x0, &self.by_x), grads, dx);
        }
    }

    /// From `dlogits` to the parameters of the fusion and the outputs of both towers.
    fn fusion_backward(
        &mut self,
        pass: &Pass<'_>,
        layers: &FinalMlpLayers,
        x0: &[f32],
        dlogits: &[f32],
        grads: &mut Gradients<'_>,
    ) {
        let Pass { params, rows: n, products, .. } = *pass;
        let [first, second] = self.streams.each_ref().map(|stream| stream.output(x0));
        let [d1, d2] = layers.weights.each_ref().map(|weight| weight.len());
        let [of_first, of_second] = &layers.weights;
        grads.params[layers.bias] += dlogits.iter().sum::<f32>();
        kernels::head_weight(dlogits, first, &mut grads.params[of_first.clone()]);
        kernels::head_weight(dlogits, second, &mut grads.params[of_second.clone()]);
        let [by_first, by_second] = &mut self.by_outputs;
        by_first.resize(n * d1, 0.0);
        by_second.resize(n * d2, 0.0);
        kernels::head_input(dlogits, &params[of_first.clone()], by_first);
        products_backward(dlogits, &mut self.product, second, &params[of_second.clone()], by_second);
        for (h, head) in layers.heads.iter().enumerate() {
            let by_product = MatrixView::new(&self.product[h * head.outputs..], n, head.outputs, d2);
            let own = MatrixView::new(&first[h * head.inputs..], n, head.inputs, d1);
            matmul(&mut grads.params[head.weight.clone()], head.inputs, by_product.t(), own, grads.adds, products);
            matmul(&mut by_first[h * head.inputs..], d1, by_product, weight(params, head), true, products);
        }
    }
}

kernel! {
    /// `logits[r] += (product[r] + weight) . second[r]`, rows as long as `weight`.
    fn add_products<'a>(product: &'a [f32], second: &'a [f32], weight: &'a [f32], logits: &'a mut [f32]) {
        let rows = product.chunks_exact(weight.len()).zip(second.chunks_exact(weight.len()));
        for (logit, (product, second)) in logits.iter_mut().zip(rows) {
            *logit += dot(product, second) + dot(weight, second);
        }
    }
}

kernel! {
    /// The backward pass of `add_products`: sets `by_second`, and turns `product` into the gradient by it.
    fn products_backward<'a>(g: &'a [f32], product: &'a mut [f32], second: &'a [f32], weight: &'a [f32],
                             by_second: &'a mut [f32]) {
        let width = weight.len();
        let rows = product.chunks_exact_mut(width).zip(second.chunks_exact(width)).zip(by_second.chunks_exact_mut(width));
        for (&g, ((product, second), by_second)) in g.iter().zip(rows) {
            for (((product, &second), &weight), by_second) in product.iter_mut().zip(second).zip(weight).zip(by_second) {
                *by_second = g * (*product + weight);
                *product = g * second;
            }
        }
    }
}
