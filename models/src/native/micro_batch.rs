//! A micro-batch: forward and backward over a range of the batch's rows, in chunks, with parameter gradients of its own.
//!
//! The batch has passed its check. Allocates on the first step only.

use std::ops::Range;

use super::attention::{self, Buffers, Chunk};
use super::cross_network::CrossBuffers;
use super::final_mlp::FinalMlpBuffers;
use super::gather::gather;
use super::gemm::Products;
use super::hidden_layers::{Gradients, HiddenLayers, Pass, ToInput};
use super::kernels;
use super::network::Network;
use super::packed_weights::Weights;
use super::scatter::ValueLists;
use super::tasks::TaskBuffers;
use super::two_towers::TwoTowerBuffers;
use crate::DenseBatch;
use crate::loss::bce_with_logits;

/// Rows of a chunk: the activations of 256 rows of a 400-400-400 tower take 1.5 MB, which a core's second cache holds.
pub(super) const CHUNK: usize = 256;

/// Buffers of one micro-batch, kept between steps.
#[derive(Default)]
pub(super) struct MicroBatch {
    pub(super) products: Products,
    /// Gradients of all parameters from these rows.
    pub(super) grads: Vec<f32>,
    /// Whether the gradients of hidden layers' weights hold the gradients of an earlier chunk.
    adds: bool,
    /// Sum of the losses of these rows.
    pub(super) loss: f64,
    /// Their values, for the parts of the unique rows, see [`ValueLists::list`].
    pub(super) values: ValueLists,
    pub(super) part_bits: u32,
    /// `[chunk x width]`: pooled embeddings, then dense features.
    x: Vec<f32>,
    tower: HiddenLayers,
    /// The buffers of the labels, in a model with several.
    tasks: TaskBuffers,
    two_towers: TwoTowerBuffers,
    final_mlp: FinalMlpBuffers,
    /// `[chunk]`: the pooled linear weights of a model with several labels, which has none.
    no_linear: Vec<f32>,
    /// Gradients of two neighbouring layers' activations.
    deltas: [Vec<f32>; 2],
    cross: CrossBuffers,
    /// The buffers of each pair of attention.
    attention: Vec<Buffers>,
    /// FM: scratch `[dim]` and dlogits `[chunk x slots * dim]`.
    fm: (Vec<f32>, Vec<f32>),
}

/// The result that a micro-batch computes for its rows.
pub(super) enum Pace<'a> {
    /// The logits.
    Predict,
    /// The logits of a training step, loss and gradients.
    Train,
    /// The logits, and the vectors of both towers, `[rows x vector_dim]` each; as in a training step if `training`.
    Vectors { of: [&'a mut [f32]; 2], training: bool },
    /// The logits of a training step, and the other gradients from these gradients by the vectors of both towers.
    Back([&'a [f32]; 2]),
}

/// The rows of a micro-batch, and views of what it writes for them.
pub(super) struct MicroBatchRows<'a> {
    pub(super) rows: Range<usize>,
    /// `[rows x labels]`.
    pub(super) logits: &'a mut [f32],
    /// `[rows x labels]`, the loss's gradient by each logit; empty when only predicting.
    pub(super) dlogits: &'a mut [f32],
    /// `[rows x slots * dim]`, the loss's gradient by the pooled embeddings; empty when only predicting.
    pub(super) dx: &'a mut [f32],
    /// For each pair of attention `[values x dim]`, the loss's gradient by each value of the history; empty when only predicting.
    pub(super) by_value: Vec<&'a mut [f32]>,
    pub(super) pace: Pace<'a>,
}

impl MicroBatch {
    /// Forward, and the rest as `pace` says; the gradients are of the mean (weighted) loss over `batch.rows` rows.
    pub(super) fn run(
        &mut self,
        net: &Network,
        weights: Weights<'_>,
        batch: &DenseBatch<'_>,
        views: MicroBatchRows<'_>,
    ) {
        let MicroBatchRows { rows, logits, mut dlogits, mut dx, mut by_value, mut pace } = views;
        let (params, training) = (weights.params, matches!(pace, Pace::Train | Pace::Back(_)));
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
            self.values.list(&net.bags(batch, rows.start), rows.len(), self.part_bits);
        }
        let (starts, labels) = (rows.clone().step_by(CHUNK), net.labels());
        for (first, logits) in starts.zip(logits.chunks_mut(CHUNK * labels)) {
            let n = logits.len() / labels;
            let rows = first..first + n;
            // Only predictions need the least number of rows.
            let forward_of_step = training || matches!(pace, Pace::Vectors { training: true, .. });
            let least = if forward_of_step { None } else { Some(net.least_rows) };
            self.forward(net, weights, batch, rows.clone(), logits, least);
            let dim = net.vector_dim();
            if let Pace::Vectors { of, .. } = &mut pace {
                for (to, from) in of.iter_mut().zip(self.two_towers.vectors(n * dim)) {
                    let (own, rest) = std::mem::take(to).split_at_mut(n * dim);
                    own.copy_from_slice(from);
                    *to = rest;
                }
            }
            if training {
                let (chunk_dlogits, rest) = std::mem::take(&mut dlogits).split_at_mut(logits.len());
                let (chunk_dx, rest_dx) = std::mem::take(&mut dx).split_at_mut(n * net.embedded());
                (dlogits, dx) = (rest, rest_dx);
                let by_vectors = match &mut pace {
                    Pace::Back(by_vectors) => Some(by_vectors.each_mut().map(|by_vector| {
                        let (own, rest) = by_vector.split_at(n * dim);
                        *by_vector = rest;
                        own
                    })),
                    _ => None,
                };
                if by_vectors.is_none() {
                    self.add_loss(net, batch, rows.clone(), logits, chunk_dlogits);
                }
                self.backward(net, weights, batch, rows.clone(), (chunk_dlogits, by_vectors), chunk_dx);
                self.attention_backward(net, params, batch, rows, chunk_dx, &mut by_value);
                self.adds = true;
            }
        }
    }

    /// The logits of `rows`, for a training step, or, with `least`, to predict: then it computes at least `least` rows, and the extra ones
    /// have arbitrary numbers.
    fn forward(
        &mut self,
        net: &Network,
        Weights { params, packed, of_step }: Weights<'_>,
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        logits: &mut [f32],
        least: Option<usize>,
    ) {
        let (n, width, d) = (rows.len().max(least.unwrap_or(0)), net.width(), net.spec.dense);
        let bags = net.bags(batch, rows.start);
        let dense = &batch.dense[rows.start * d..rows.end * d];
        self.x.resize(n * width, 0.0);
        if net.tasks.is_some() {
            self.no_linear.resize(rows.len(), 0.0);
            gather(&bags, net.parts, batch.unique_rows, &mut self.no_linear, &mut self.x, width);
        } else {
            gather(&bags, net.parts, batch.unique_rows, logits, &mut self.x, width);
        }
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
        self.attention.resize_with(net.attention.len(), Buffers::default);
        let chunk = Chunk::new(net, params, batch, &bags, rows.len(), self.products);
        for (unit, buffers) in net.attention.iter().zip(&mut self.attention) {
            buffers.forward(&Chunk { least, ..chunk }, unit, &mut self.x);
        }
        if net.spec.fm {
            self.fm.0.resize(net.parts.dim, 0.0);
            self.fm.1.resize(n * net.embedded(), 0.0);
            let slots = net.embedded() / net.parts.dim;
            kernels::fm(&self.x, width, slots, &mut self.fm.0, logits, &mut self.fm.1);
        }
        let training = least.is_none().then_some((batch.id, rows.start));
        let pass = Pass { net, params, packed, of_step, rows: n, products: self.products, training };
        let mut input = self.x.as_slice();
        if let Some(cross) = &net.cross {
            let output = self.cross.forward(&pass, cross, &self.x);
            match &cross.head {
                Some(head) => kernels::head(output, &params[head.weight.clone()], params[head.bias.start], logits),
                None => input = output,
            }
        }
        if let Some((head, layers)) = net.tower.split_last() {
            self.tower.forward(&pass, layers, 0, input);
            let last = self.tower.output(input);
            kernels::head(last, &params[head.weight.clone()], params[head.bias.start], logits);
        }
        if let Some(tasks) = &net.tasks {
            self.tasks.forward(&pass, tasks, &self.x, logits);
        }
        if let Some(two) = &net.two_towers {
            self.two_towers.forward(&pass, two, (&self.x, width), logits);
        }
        if let Some(layers) = &net.final_mlp {
            self.final_mlp.forward(&pass, layers, &self.x, logits);
        }
    }

    /// Losses of `rows`, and their dlogits by the logits, of the mean over all rows of the batch.
    fn add_loss(
        &mut self,
        net: &Network,
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        logits: &[f32],
        dlogits: &mut [f32],
    ) {
        let count = net.labels();
        let labels = &batch.labels[rows.start * count..rows.end * count];
        let weights = batch.weights.map(|weights| &weights[rows]);
        let share = 1.0 / batch.rows as f32;
        let of_labels = net.tasks.as_ref().map_or(&[1.0][..], |tasks| &tasks.spec.weights);
        let labels = labels.chunks_exact(count);
        let rows = labels.zip(logits.chunks_exact(count)).zip(dlogits.chunks_exact_mut(count));
        for (row, ((labels, logits), dlogits)) in rows.enumerate() {
            let of_row = weights.map_or(1.0, |weights| weights[row]);
            for (((&of_label, &label), &logit), dlogit) in of_labels.iter().zip(labels).zip(logits).zip(dlogits) {
                // The row lacks this label.
                if label.is_nan() && count > 1 {
                    *dlogit = 0.0;
                    continue;
                }
                let weight = of_label * of_row;
                let (loss, by_logit) = bce_with_logits(logit, label);
                self.loss += f64::from(loss) * f64::from(weight);
                *dlogit = by_logit * share * weight;
            }
        }
    }

    /// The backward pass from `dlogits`, or from the gradients by the vectors of two towers, if given.
    fn backward(
        &mut self,
        net: &Network,
        Weights { params, of_step, .. }: Weights<'_>,
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        (dlogits, by_vectors): (&[f32], Option<[&[f32]; 2]>),
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
        let mut grads = Gradients { params: &mut self.grads, adds: self.adds, deltas: &mut self.deltas };
        let training = Some((batch.id, rows.start));
        let pass = Pass { net, params, packed: None, of_step, rows: n, products: self.products, training };
        if let Some(tasks) = &net.tasks {
            return self.tasks.backward(&pass, tasks, &self.x, dlogits, &mut grads, dx);
        }
        if let Some(layers) = &net.final_mlp {
            return self.final_mlp.backward(&pass, layers, &self.x, dlogits, &mut grads, dx);
        }
        match (&net.two_towers, by_vectors) {
            (Some(two), None) => return self.two_towers.backward(&pass, two, dlogits, &mut grads, dx),
            (Some(two), Some(by)) => return self.two_towers.backward_from(&pass, two, by, &mut grads, dx),
            (None, _) => {}
        }
        let is_stacked = net.cross.as_ref().is_some_and(|cross| cross.head.is_none());
        if let Some((head, layers)) = net.tower.split_last() {
            let (input, to) = if is_stacked {
                let (output, by_output) = self.cross.output_and_gradient(n * net.width());
                (output, ToInput { to: by_output, columns: net.width(), adds: false })
            } else {
                // The gradient by the dense features is not computed.
                (self.x.as_slice(), ToInput { to: &mut *dx, columns: net.embedded(), adds: false })
            };
            let last = self.tower.output(input);
            kernels::head_weight(dlogits, last, &mut grads.params[head.weight.clone()]);
            grads.params[head.bias.start] += dlogits.iter().sum::<f32>();
            grads.deltas[0].resize(n * head.inputs, 0.0);
            kernels::head_input(dlogits, &params[head.weight.clone()], &mut grads.deltas[0]);
            self.tower.backward(&pass, layers, input, &mut grads, to);
        }
        if net.tower.is_empty() || is_stacked {
            dx.fill(0.0);
        }
        if net.spec.fm {
            let by_embedding = &mut self.fm.1[..n * net.embedded()];
            kernels::scale_rows(by_embedding, net.embedded(), dlogits);
            kernels::add(dx, by_embedding);
        }
        if let Some(cross) = &net.cross {
            if let Some(head) = &cross.head {
                self.cross.head_backward(&pass, head, dlogits, grads.params);
            }
            self.cross.backward(&pass, cross, &self.x, &mut grads, (dx, net.embedded()));
        }
    }

    /// From the gradient by the vectors of attention, in `dx`, to the gradients of its parameters, targets and values. Takes the buffers
    /// that it writes from the beginning of `by_value`.
    fn attention_backward(
        &mut self,
        net: &Network,
        params: &[f32],
        batch: &DenseBatch<'_>,
        rows: Range<usize>,
        dx: &mut [f32],
        by_value: &mut [&mut [f32]],
    ) {
        let bags = net.bags(batch, rows.start);
        let chunk = Chunk::new(net, params, batch, &bags, rows.len(), self.products);
        for ((unit, buffers), by_value) in net.attention.iter().zip(&mut self.attention).zip(by_value) {
            let values = bags.count(unit.pair.history, rows.len());
            let (own, rest) = std::mem::take(by_value).split_at_mut(values * net.parts.dim);
            *by_value = rest;
            let grads = attention::AttentionGradients {
                params: &mut self.grads,
                dx: &mut *dx,
                embedded: net.embedded(),
                by_element: own,
            };
            buffers.backward(&chunk, unit, &self.x, grads);
        }
    }
}
