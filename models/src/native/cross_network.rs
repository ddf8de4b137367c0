//! The cross network of DCN V2 over a chunk of rows, forward and backward, with the buffers that it keeps between the two.

use super::cross_layers::{CrossLayer, CrossLayers};
use super::hidden_layers::{Gradients, Pass, weight_gradient};
use super::kernels;
use super::layer::Layer;

/// The buffers of one chunk.
#[derive(Default)]
pub(super) struct CrossBuffers {
    layers: Vec<LayerBuffers>,
    /// The gradients by the output of a layer, and by `x0` through the product: `[chunk x width]` each.
    by_output: Vec<f32>,
    by_x0: Vec<f32>,
    /// The gradient by the output of V, `[chunk x rank]`.
    by_low: Vec<f32>,
}

#[derive(Default)]
struct LayerBuffers {
    /// The output of V, `[chunk x rank]`; empty without V.
    low: Vec<f32>,
    /// `W x + b`, and the output: `[chunk x width]` each.
    u: Vec<f32>,
    out: Vec<f32>,
}

impl CrossBuffers {
    /// Computes all layers from `x0`, `[rows x width]`. Returns the output of the last.
    pub(super) fn forward<'a>(&'a mut self, pass: &Pass<'_>, cross: &CrossLayers, x0: &'a [f32]) -> &'a [f32] {
        let Pass { params, rows: n, .. } = *pass;
        self.layers.resize_with(cross.layers.len(), Default::default);
        for (l, CrossLayer { v, w }) in cross.layers.iter().enumerate() {
            let (before, rest) = self.layers.split_at_mut(l);
            let x = before.last().map_or(x0, |layer| &layer.out);
            let (LayerBuffers { low, u, out }, width) = (&mut rest[0], w.outputs);
            let mut input = x;
            if let Some(v) = v {
                low.resize(n * v.outputs, 0.0);
                pass.product(low, v, input);
                input = low;
            }
            u.resize(n * width, 0.0);
            out.resize(n * width, 0.0);
            pass.product(u, w, input);
            kernels::cross(u, &params[w.bias.clone()], x0, x, out);
        }
        self.layers.last().map_or(x0, |layer| &layer.out)
    }

    /// The output of the last layer, and where the gradient by it goes before [`Self::backward`], `[rows x width]` of this length.
    pub(super) fn output_and_gradient(&mut self, len: usize) -> (&[f32], &mut [f32]) {
        self.by_output.resize(len, 0.0);
        (self.layers.last().map_or(&[][..], |layer| &layer.out), &mut self.by_output)
    }

    /// From the gradient by the logit of the head to its parameters and to the output.
    pub(super) fn head_backward(&mut self, pass: &Pass<'_>, head: &Layer, dlogits: &[f32], grads: &mut [f32]) {
        let (output, by_output) = self.output_and_gradient(pass.rows * head.inputs);
        kernels::head_weight(dlogits, output, &mut grads[head.weight.clone()]);
        grads[head.bias.start] += dlogits.iter().sum::<f32>();
        kernels::head_input(dlogits, &pass.params[head.weight.clone()], by_output);
    }

    /// The backward pass from the gradient of the output to the parameters, and to the first `embedded` numbers of each row of `x0`, to
    /// which it is added.
    pub(super) fn backward(
        &mut self,
        pass: &Pass<'_>,
        cross: &CrossLayers,
        x0: &[f32],
        grads: &mut Gradients<'_>,
        (dx, embedded): (&mut [f32], usize),
    ) {
        let Pass { rows: n, products, .. } = *pass;
        let width = self.by_output.len() / n;
        self.by_x0.clear();
        self.by_x0.resize(n * width, 0.0);
        for (l, CrossLayer { v, w }) in cross.layers.iter().enumerate().rev() {
            let (before, rest) = self.layers.split_at_mut(l);
            let x = before.last().map_or(x0, |layer| &layer.out);
            let LayerBuffers { low, u, .. } = &mut rest[0];
            kernels::cross_backward(&self.by_output, u, x0, &mut self.by_x0, &mut grads.params[w.bias.clone()]);
            match v {
                None => {
                    weight_gradient(grads.params, w, u, x, n, grads.adds, products);
                    pass.by_inputs(&mut self.by_output, w, u, width, true);
                }
                Some(v) => {
                    weight_gradient(grads.params, w, u, low, n, grads.adds, products);
                    self.by_low.resize(n * v.outputs, 0.0);
                    pass.by_inputs(&mut self.by_low, w, u, v.outputs, false);
                    weight_gradient(grads.params, v, &self.by_low, x, n, grads.adds, products);
                    pass.by_inputs(&mut self.by_output, v, &self.by_low, width, true);
                }
            }
        }
        kernels::add_columns(dx, embedded, &self.by_output, &self.by_x0, width, true);
    }
}
