//! A micro-batch: forward and backward over a range of the batch's rows, in chunks, with parameter gradients of its own.
//!
//! The batch has passed its check. Allocates on the first step only.

use std::ops::Range;

use super::activate::{self, Drops, Kept};
use super::gather::{BagView, gather};
use super::gemm::{MatrixView, matmul};
use super::kernels;
use super::network::{Layer, Network};
use crate::DenseBatch;
use crate::loss::bce_with_logits;

/// Rows of a chunk: the activations of 256 rows of a 400-400-400 tower take 1.5 MB, which a core's second cache holds.
const CHUNK: usize = 256;

/// Buffers of one micro-batch, kept between steps.
#[derive(Default)]
pub(super) struct MicroBatch {
    /// Threads that share each of its matrix products.
    pub(super) threads: usize,
    /// Gradients of all parameters from these rows.
    pub(super) grads: Vec<f32>,
    /// Whether the gradients of hidden layers' weights hold those of an earlier chunk.
    adds: bool,
    /// Sum of the losses of these rows.
    pub(super) loss: f64,
    /// `[chunk x width]`: pooled embeddings, then dense features.
    x: Vec<f32>,
    /// Activations of each hidden layer of the tower, `[chunk x outputs]`.
    acts: Vec<Vec<f32>>,
    /// For each hidden layer, if it is more than bias and relu: what its way back needs.
    kept: Vec<Kept>,
    /// Gradients of two neighbouring layers' activations.
    deltas: [Vec<f32>; 2],
    /// For each cross layer: its product plus bias, and its output, `[chunk x width]` each.
    cross: Vec<(Vec<f32>, Vec<f32>)>,
    /// FM: scratch `[dim]` and dlogits `[chunk x slots * dim]`.
    fm: (Vec<f32>, Vec<f32>),
}

/// The rows of a micro-batch, and views of what it writes for them.
pub(super) struct MicroBatchRows<'a> {
    pub(super) rows: Range<usize>,
    /// `[rows]`.
    pub(super) logits: &'a mut [f32],
    /// `[rows]`, the loss's gradient by each logit; empty when only predicting.
    pub(super) dlogits: &'a mut [f32],
    /// `[rows x slots * dim]`, the loss's gradient by the pooled embeddings; empty when only predicting.
    pub(super) dx: &'a mut [f32],
}

impl MicroBatch {
    /// Forward, and if `dlogits` is not empty also loss and backward: gradients of the mean (weighted) loss over `batch.rows` rows.
    pub(super) fn run(&mut self, net: &Network, params: &[f32], batch: &DenseBatch<'_>, views: MicroBatchRows<'_>) {
        let MicroBatchRows { rows, logits, mut dlogits, mut dx } = views;
        let training = !dlogits.is_empty();
        self.loss = 0.0;
        if training {
            self.grads.resize(net.len(), 0.0);
            let mut end = 0;
            for layer in net.hidden() {
                self.grads[end..layer.weight.start].fill(0.0);
                end = layer.weight.end;
            }
            self.grads[end..].fill(0.0);
            self.adds = false;
        }
        let starts = rows.clone().step_by(CHUNK);
        for (first, logits) in starts.zip(logits.chunks_mut(CHUNK)) {
            let rows = first..first + logits.len();
            // A training step has the sums that it had before there were requests for single rows.
            let least = if training { None } else { Some(net.least_rows) };
            self.forward(net, params, batch, rows.clone(), logits, least);
            if training {
                let (chunk_dlogits, rest) = std::mem::take(&mut dlogits).split_at_mut(logits.len());
                let (chunk_dx, rest_dx) = std::mem::take(&mut dx).split_at_mut(logits.len() * net.embedded());
                (dlogits, dx) = (rest, rest_dx);
                self.add_loss(batch, rows.clone(), logits, chunk_dlogits);
                self.backward(net, params, batch, rows, chunk_dlogits, chunk_dx);
                self.adds = true;
            }
        }
    }

    /// The logits of `rows`, for a training step, or, with `least`, to predict: then it computes at least so many rows, and those
    /// that are too many have any numbers.
    fn forward(
        &mut self,
        net: &Network,
        params: &[f32],
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        logits: &mut [f32],
        least: Option<usize>,
    ) {
        let (n, width, d) = (rows.len().max(least.unwrap_or(0)), net.width(), net.spec.dense);
        let bags = BagView {
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
                matmul(u, width, MatrixView::new(x, n, width, width), weight(params, layer).t(), false, self.threads);
                kernels::cross(u, &params[layer.bias.clone()], &self.x, x, out);
            }
            let last = self.cross.last().map_or(&self.x, |(_, out)| out);
            kernels::head(last, &params[head.weight.clone()], params[head.bias.start], logits);
        }
        if let (Some((head, layers)), Some(tower)) = (net.tower.split_last(), &net.spec.tower) {
            self.acts.resize_with(layers.len(), Vec::new);
            self.kept.resize_with(if net.plain { 0 } else { layers.len() }, Kept::default);
            for (l, layer) in layers.iter().enumerate() {
                let (before, rest) = self.acts.split_at_mut(l);
                let x = before.last().unwrap_or(&self.x);
                let act = &mut rest[0];
                act.resize(n * layer.outputs, 0.0);
                let x = MatrixView::new(x, n, layer.inputs, layer.inputs);
                matmul(act, layer.outputs, x, weight(params, layer).t(), false, self.threads);
                if net.plain {
                    kernels::bias_relu(act, &params[layer.bias.clone()]);
                } else {
                    let behind = layer.behind(params);
                    if least.is_some() {
                        activate::predict(act, tower.activation, &behind);
                    } else {
                        let drops = net.dropout.map(|dropout| Drops {
                            dropout,
                            stream: dropout.stream(batch.id, l),
                            first: rows.start,
                        });
                        activate::forward(act, tower.activation, &behind, drops, &mut self.kept[l]);
                    }
                }
            }
            let last = self.acts.last().unwrap_or(&self.x);
            kernels::head(last, &params[head.weight.clone()], params[head.bias.start], logits);
        }
    }

    /// Losses of `rows`, and their dlogits by the logits, of the mean over all rows of the batch.
    fn add_loss(&mut self, batch: &DenseBatch<'_>, rows: Range<usize>, logits: &[f32], dlogits: &mut [f32]) {
        let (labels, weights) = (&batch.labels[rows.clone()], batch.weights.map(|weights| &weights[rows]));
        let share = 1.0 / batch.rows as f32;
        for (row, ((&label, &logit), dlogit)) in labels.iter().zip(logits).zip(dlogits).enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            let (loss, by_logit) = bce_with_logits(logit, label);
            self.loss += f64::from(loss) * f64::from(weight);
            *dlogit = by_logit * share * weight;
        }
    }

    fn backward(
        &mut self,
        net: &Network,
        params: &[f32],
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        dlogits: &[f32],
        dx: &mut [f32],
    ) {
        let (n, d) = (rows.len(), net.spec.dense);
        if let Some((weight, bias)) = &net.linear {
            if let Some(weight) = weight {
                kernels::head_weight(
                    dlogits,
                    &batch.dense[rows.start * d..rows.end * d],
                    &mut self.grads[weight.clone()],
                );
            }
            self.grads[*bias] += dlogits.iter().sum::<f32>();
        }
        if net.width() == 0 {
            return;
        }
        if net.tower.is_empty() {
            dx.fill(0.0);
        } else {
            self.tower_backward(net, params, dlogits, dx);
        }
        if net.spec.fm {
            let by_embedding = &mut self.fm.1[..n * net.embedded()];
            kernels::scale_rows(by_embedding, net.embedded(), dlogits);
            kernels::add(dx, by_embedding);
        }
        if !net.cross.is_empty() {
            self.cross_backward(net, params, dlogits, dx);
        }
    }

    /// Sets `dx` to the tower's gradient by the embeddings. The gradient by the dense features is not computed.
    fn tower_backward(&mut self, net: &Network, params: &[f32], dlogits: &[f32], dx: &mut [f32]) {
        let n = dlogits.len();
        let (head, layers) = net.tower.split_last().expect("only called with a tower");
        let last = self.acts.last().unwrap_or(&self.x);
        kernels::head_weight(dlogits, last, &mut self.grads[head.weight.clone()]);
        self.grads[head.bias.start] += dlogits.iter().sum::<f32>();
        self.deltas[0].resize(n * head.inputs, 0.0);
        kernels::head_input(dlogits, &params[head.weight.clone()], &mut self.deltas[0]);
        for (l, layer) in layers.iter().enumerate().rev() {
            let [delta, below] = &mut self.deltas;
            if net.plain {
                kernels::relu_backward(delta, &self.acts[l], &mut self.grads[layer.bias.clone()]);
            } else {
                let behind = layer.behind(params);
                activate::backward(delta, &self.kept[l], &behind, layer.behind_mut(&mut self.grads));
            }
            let input = if l == 0 { &self.x } else { &self.acts[l - 1] };
            weight_gradient(&mut self.grads, layer, delta, input, n, self.adds, self.threads);
            let delta = MatrixView::new(delta, n, layer.outputs, layer.outputs);
            if l == 0 {
                let embedded = net.embedded();
                let to_embeddings =
                    MatrixView::new(&params[layer.weight.clone()], layer.outputs, embedded, layer.inputs);
                matmul(dx, embedded, delta, to_embeddings, false, self.threads);
            } else {
                below.resize(n * layer.inputs, 0.0);
                matmul(below, layer.inputs, delta, weight(params, layer), false, self.threads);
                self.deltas.swap(0, 1);
            }
        }
    }

    /// Adds the cross network's gradient by the embeddings to `dx`.
    fn cross_backward(&mut self, net: &Network, params: &[f32], dlogits: &[f32], dx: &mut [f32]) {
        let (n, width) = (dlogits.len(), net.width());
        let (head, layers) = net.cross.split_last().expect("only called with cross layers");
        let last = self.cross.last().map_or(&self.x, |(_, out)| out);
        kernels::head_weight(dlogits, last, &mut self.grads[head.weight.clone()]);
        self.grads[head.bias.start] += dlogits.iter().sum::<f32>();
        let [g, dx0] = &mut self.deltas;
        g.resize(n * width, 0.0);
        dx0.clear();
        dx0.resize(n * width, 0.0);
        kernels::head_input(dlogits, &params[head.weight.clone()], g);
        for (l, layer) in layers.iter().enumerate().rev() {
            let (before, rest) = self.cross.split_at_mut(l);
            let input = before.last().map_or(&self.x, |(_, out)| out);
            let u = &mut rest[0].0;
            kernels::cross_backward(g, u, &self.x, dx0, &mut self.grads[layer.bias.clone()]);
            weight_gradient(&mut self.grads, layer, u, input, n, self.adds, self.threads);
            matmul(g, width, MatrixView::new(u, n, width, width), weight(params, layer), true, self.threads);
        }
        let embedded = net.embedded();
        kernels::add_columns(dx, embedded, g, dx0, width, true);
    }
}

fn weight<'a>(params: &'a [f32], layer: &Layer) -> MatrixView<'a> {
    MatrixView::new(&params[layer.weight.clone()], layer.outputs, layer.inputs, layer.inputs)
}

/// `grads[weight] = deltaᵀ · input` over `n` rows, or `+=` if `add`.
fn weight_gradient(
    grads: &mut [f32],
    layer: &Layer,
    delta: &[f32],
    input: &[f32],
    n: usize,
    add: bool,
    threads: usize,
) {
    let delta = MatrixView::new(delta, n, layer.outputs, layer.outputs).t();
    let input = MatrixView::new(input, n, layer.inputs, layer.inputs);
    matmul(&mut grads[layer.weight.clone()], layer.inputs, delta, input, add, threads);
}
