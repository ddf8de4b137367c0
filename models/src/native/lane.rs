//! One lane: a stretch of the batch's rows, forward and backward, chunk by chunk, with gradients of its own.
//!
//! Comes in: the network, its parameters, a checked batch. Goes out: logits, their gradients, the gradients of the
//! pooled embeddings, and the lane's share of the parameter gradients. Allocates on the first step only.

use std::ops::Range;

use super::gather::{Bags, gather};
use super::gemm::{Mat, product};
use super::kernels;
use super::network::{Layer, Network};
use crate::DenseBatch;
use crate::loss::bce_with_logits;

/// Rows of a chunk: the activations of 256 rows of a 400-400-400 tower take 1.5 MB, which a core's second cache holds.
const CHUNK: usize = 256;

/// Buffers of one lane, kept between steps.
#[derive(Default)]
pub(super) struct Lane {
    /// Gradients of all parameters, of this lane's rows.
    pub(super) grads: Vec<f32>,
    /// Sum of the losses of this lane's rows.
    pub(super) loss: f64,
    /// `[chunk x width]`: pooled embeddings, then dense features.
    x: Vec<f32>,
    /// Of each hidden layer of the tower, `[chunk x outputs]`.
    acts: Vec<Vec<f32>>,
    /// Gradients of two neighbouring layers' activations.
    deltas: [Vec<f32>; 2],
    /// Of each cross layer: its product plus bias, and its output, `[chunk x width]` each.
    cross: Vec<(Vec<f32>, Vec<f32>)>,
    /// FM: scratch `[dim]` and slopes `[chunk x slots * dim]`.
    fm: (Vec<f32>, Vec<f32>),
}

/// What a lane works on: views of its own rows.
pub(super) struct Stretch<'a> {
    pub(super) rows: Range<usize>,
    /// `[rows]`.
    pub(super) logits: &'a mut [f32],
    /// `[rows]`, the loss's gradient by each logit; empty when only predicting.
    pub(super) slopes: &'a mut [f32],
    /// `[rows x slots * dim]`, the loss's gradient by the pooled embeddings; empty when only predicting.
    pub(super) dx: &'a mut [f32],
}

impl Lane {
    /// Works off the stretch. With `slopes`, trains: gradients of the mean loss over `batch.rows` rows.
    pub(super) fn run(&mut self, net: &Network, params: &[f32], batch: &DenseBatch<'_>, stretch: Stretch<'_>) {
        let Stretch { rows, logits, mut slopes, mut dx } = stretch;
        let training = !slopes.is_empty();
        self.loss = 0.0;
        if training {
            self.grads.resize(net.len(), 0.0);
            self.grads.fill(0.0);
        }
        let starts = rows.clone().step_by(CHUNK);
        for (first, logits) in starts.zip(logits.chunks_mut(CHUNK)) {
            let rows = first..first + logits.len();
            self.forward(net, params, batch, rows.clone(), logits);
            if training {
                let (chunk_slopes, rest) = std::mem::take(&mut slopes).split_at_mut(logits.len());
                let (chunk_dx, rest_dx) = std::mem::take(&mut dx).split_at_mut(logits.len() * net.embedded());
                (slopes, dx) = (rest, rest_dx);
                self.lose(&batch.labels[rows.clone()], logits, chunk_slopes, batch.rows);
                self.backward(net, params, batch, rows, chunk_slopes, chunk_dx);
            }
        }
    }

    fn forward(
        &mut self,
        net: &Network,
        params: &[f32],
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        logits: &mut [f32],
    ) {
        let (n, width, d) = (rows.len(), net.width(), net.spec.dense);
        let bags = Bags {
            slots: net.spec.slots,
            inverse: batch.inverse,
            offsets: batch.offsets,
            first: rows.start,
            pooling: net.spec.pooling,
        };
        let dense = &batch.dense[rows.start * d..rows.end * d];
        self.x.resize(n * width, 0.0);
        gather(&bags, net.parts, batch.unique_rows, logits, &mut self.x, width);
        if let Some((weight, bias)) = &net.linear {
            match weight {
                Some(weight) => kernels::head(dense, &params[weight.clone()], params[*bias], logits),
                None => logits.iter_mut().for_each(|logit| *logit += params[*bias]),
            }
        }
        if width == 0 {
            return;
        }
        if d > 0 {
            let embedded = net.embedded();
            for (x, dense) in self.x.chunks_exact_mut(width).zip(dense.chunks_exact(d)) {
                x[embedded..].copy_from_slice(dense);
            }
        }
        if net.spec.fm {
            self.fm.0.resize(net.parts.dim, 0.0);
            self.fm.1.resize(n * net.embedded(), 0.0);
            kernels::fm(&self.x, width, net.spec.slots, &mut self.fm.0, logits, &mut self.fm.1);
        }
        if let Some((head, layers)) = net.cross.split_last() {
            self.cross.resize_with(layers.len(), Default::default);
            for (l, layer) in layers.iter().enumerate() {
                let (before, rest) = self.cross.split_at_mut(l);
                let x = before.last().map_or(&self.x, |(_, out)| out);
                let (u, out) = &mut rest[0];
                u.resize(n * width, 0.0);
                out.resize(n * width, 0.0);
                product(u, width, Mat::new(x, n, width, width), weight(params, layer).t(), false);
                kernels::cross(u, &params[layer.bias.clone()], &self.x, x, out);
            }
            let last = self.cross.last().map_or(&self.x, |(_, out)| out);
            kernels::head(last, &params[head.weight.clone()], params[head.bias.start], logits);
        }
        if let Some((head, layers)) = net.tower.split_last() {
            self.acts.resize_with(layers.len(), Vec::new);
            for (l, layer) in layers.iter().enumerate() {
                let (before, rest) = self.acts.split_at_mut(l);
                let x = before.last().unwrap_or(&self.x);
                let act = &mut rest[0];
                act.resize(n * layer.outputs, 0.0);
                let x = Mat::new(x, n, layer.inputs, layer.inputs);
                product(act, layer.outputs, x, weight(params, layer).t(), false);
                kernels::bias_relu(act, &params[layer.bias.clone()]);
            }
            let last = self.acts.last().unwrap_or(&self.x);
            kernels::head(last, &params[head.weight.clone()], params[head.bias.start], logits);
        }
    }

    /// Losses, and their slopes by the logits, of the mean over `all` rows.
    fn lose(&mut self, labels: &[f32], logits: &[f32], slopes: &mut [f32], all: usize) {
        let share = 1.0 / all as f32;
        for ((&label, &logit), slope) in labels.iter().zip(logits).zip(slopes) {
            let (loss, by_logit) = bce_with_logits(logit, label);
            self.loss += f64::from(loss);
            *slope = by_logit * share;
        }
    }

    fn backward(
        &mut self,
        net: &Network,
        params: &[f32],
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        slopes: &[f32],
        dx: &mut [f32],
    ) {
        let (n, d) = (rows.len(), net.spec.dense);
        if let Some((weight, bias)) = &net.linear {
            if let Some(weight) = weight {
                kernels::head_weight(
                    slopes,
                    &batch.dense[rows.start * d..rows.end * d],
                    &mut self.grads[weight.clone()],
                );
            }
            self.grads[*bias] += slopes.iter().sum::<f32>();
        }
        if net.width() == 0 {
            return;
        }
        if net.tower.is_empty() {
            dx.fill(0.0);
        } else {
            self.tower_backward(net, params, slopes, dx);
        }
        if net.spec.fm {
            let by_embedding = &mut self.fm.1[..n * net.embedded()];
            kernels::scale_rows(by_embedding, net.embedded(), slopes);
            kernels::add(dx, by_embedding);
        }
        if !net.cross.is_empty() {
            self.cross_backward(net, params, slopes, dx);
        }
    }

    /// Sets `dx` to the tower's gradient by the embeddings. The dense features' is of no use to anybody.
    fn tower_backward(&mut self, net: &Network, params: &[f32], slopes: &[f32], dx: &mut [f32]) {
        let n = slopes.len();
        let (head, layers) = net.tower.split_last().expect("only called with a tower");
        let last = self.acts.last().unwrap_or(&self.x);
        kernels::head_weight(slopes, last, &mut self.grads[head.weight.clone()]);
        self.grads[head.bias.start] += slopes.iter().sum::<f32>();
        self.deltas[0].resize(n * head.inputs, 0.0);
        kernels::head_input(slopes, &params[head.weight.clone()], &mut self.deltas[0]);
        for (l, layer) in layers.iter().enumerate().rev() {
            let [delta, below] = &mut self.deltas;
            kernels::relu_backward(delta, &self.acts[l], &mut self.grads[layer.bias.clone()]);
            let input = if l == 0 { &self.x } else { &self.acts[l - 1] };
            weight_gradient(&mut self.grads, layer, delta, input, n);
            let delta = Mat::new(delta, n, layer.outputs, layer.outputs);
            if l == 0 {
                let embedded = net.embedded();
                let to_embeddings = Mat::new(&params[layer.weight.clone()], layer.outputs, embedded, layer.inputs);
                product(dx, embedded, delta, to_embeddings, false);
            } else {
                below.resize(n * layer.inputs, 0.0);
                product(below, layer.inputs, delta, weight(params, layer), false);
                self.deltas.swap(0, 1);
            }
        }
    }

    /// Adds the cross network's gradient by the embeddings to `dx`.
    fn cross_backward(&mut self, net: &Network, params: &[f32], slopes: &[f32], dx: &mut [f32]) {
        let (n, width) = (slopes.len(), net.width());
        let (head, layers) = net.cross.split_last().expect("only called with cross layers");
        let last = self.cross.last().map_or(&self.x, |(_, out)| out);
        kernels::head_weight(slopes, last, &mut self.grads[head.weight.clone()]);
        self.grads[head.bias.start] += slopes.iter().sum::<f32>();
        let [g, dx0] = &mut self.deltas;
        g.resize(n * width, 0.0);
        dx0.clear();
        dx0.resize(n * width, 0.0);
        kernels::head_input(slopes, &params[head.weight.clone()], g);
        for (l, layer) in layers.iter().enumerate().rev() {
            let (before, rest) = self.cross.split_at_mut(l);
            let input = before.last().map_or(&self.x, |(_, out)| out);
            let u = &mut rest[0].0;
            kernels::cross_backward(g, u, &self.x, dx0, &mut self.grads[layer.bias.clone()]);
            weight_gradient(&mut self.grads, layer, u, input, n);
            product(g, width, Mat::new(u, n, width, width), weight(params, layer), true);
        }
        let embedded = net.embedded();
        kernels::add_columns(dx, embedded, g, dx0, width, true);
    }
}

fn weight<'a>(params: &'a [f32], layer: &Layer) -> Mat<'a> {
    Mat::new(&params[layer.weight.clone()], layer.outputs, layer.inputs, layer.inputs)
}

/// `grads[weight] += deltaᵀ · input` over `n` rows.
fn weight_gradient(grads: &mut [f32], layer: &Layer, delta: &[f32], input: &[f32], n: usize) {
    let delta = Mat::new(delta, n, layer.outputs, layer.outputs).t();
    let input = Mat::new(input, n, layer.inputs, layer.inputs);
    product(&mut grads[layer.weight.clone()], layer.inputs, delta, input, true);
}
