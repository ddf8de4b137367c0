//! Attention over histories in a chunk of rows: matrix products over the elements of all of its histories, in blocks.
//!
//! The next block overwrites a block's activations, and the backward pass computes them again: for a history of 50 values and 64 units they
//! take 45 KB a row. So the memory does not grow with the length of histories (docs/adr/0020-attention-in-blocks.md).

mod first_weight;
mod kernels;

use self::first_weight::FirstWeight;
use self::kernels::{
    Element, SlotVectors, add_row_of_each, fill_input, fill_input_backward, sum_of_each_row, weighted_sums,
    weighted_sums_backward,
};
use super::activate::{self, Kept};
use super::bags::{BagView, RowParts};
use super::gemm::{Products, matmul};
use super::kernels::{head, head_input, head_weight};
use super::matrix::MatrixView;
use super::network::{Network, Unit};
use crate::{AttentionPair, DenseBatch};

/// Elements of a block: with 64 units their activations and derivatives take 1 MB, which a core's second cache holds.
const BLOCK: usize = 1024;

/// The input of a pass over a chunk, for every unit.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) params: &'a [f32],
    pub(super) bags: &'a BagView<'a>,
    pub(super) parts: RowParts,
    pub(super) unique_rows: &'a [f32],
    pub(super) rows: usize,
    /// When predicting, the least rows or elements to compute; the extra ones have arbitrary numbers.
    pub(super) least: Option<usize>,
    /// Numbers in a row of `x`.
    pub(super) width: usize,
    pub(super) products: Products,
}

impl<'a> Chunk<'a> {
    /// The chunk of a training step: the first `rows` rows of `bags`.
    pub(super) fn new(
        net: &Network,
        params: &'a [f32],
        batch: &DenseBatch<'a>,
        bags: &'a BagView<'a>,
        rows: usize,
        products: Products,
    ) -> Chunk<'a> {
        let (parts, unique_rows, width) = (net.parts, batch.unique_rows, net.width());
        Chunk { params, bags, parts, unique_rows, rows, least: None, width, products }
    }
}

/// The gradients that the backward pass adds to.
pub(super) struct AttentionGradients<'a> {
    /// By all parameters.
    pub(super) params: &'a mut [f32],
    /// `[rows x embedded]`: by the pooled embeddings. The pass reads the gradient of the history, and adds to the gradient of the target.
    pub(super) dx: &'a mut [f32],
    pub(super) embedded: usize,
    /// `[elements x dim]`, which the pass sets: by each value of a history.
    pub(super) by_element: &'a mut [f32],
}

/// The buffers of one unit, kept between steps.
#[derive(Default)]
pub(super) struct Buffers {
    /// The elements of the chunk, row after row.
    elements: Vec<Element>,
    weight: FirstWeight,
    /// `[rows x outputs]`: the term of the first layer that a row's elements share.
    shared: Vec<f32>,
    /// For a block: `[elements x 2 dim]`.
    input: Vec<f32>,
    /// For a block: the activations of each hidden layer.
    acts: Vec<Vec<f32>>,
    kept: Vec<Kept>,
    /// For a block: `[elements]`.
    scores: Vec<f32>,
    /// Gradients by the buffers with these names.
    by_scores: Vec<f32>,
    by_weight: FirstWeight,
    by_shared: Vec<f32>,
    by_input: Vec<f32>,
    /// `[rows x dim]`: the gradient by the weighted sums.
    by_sum: Vec<f32>,
    /// Gradients of two neighbouring layers' activations.
    deltas: [Vec<f32>; 2],
}

impl Buffers {
    /// Writes the weighted sum of each history to its place in `x`, whose other vectors are there.
    pub(super) fn forward(&mut self, chunk: &Chunk<'_>, unit: &Unit, x: &mut [f32]) {
        let Chunk { params, bags, parts, rows, width, .. } = *chunk;
        let (dim, AttentionPair { history, target }) = (parts.dim, unit.pair);
        self.elements.clear();
        for row in 0..rows {
            let element = |&value: &u32| Element { row: row as u32, value };
            self.elements.extend(bags.values(row, history).iter().map(element));
            x[row * width + history * dim..][..dim].fill(0.0);
        }
        let first = &unit.layers[0];
        self.weight.take_from(&params[first.weight.clone()], dim);
        let padded = rows.max(chunk.least.unwrap_or(0));
        self.shared.resize(padded * first.outputs, 0.0);
        let targets = MatrixView::new(&x[target * dim..], padded, dim, width);
        let weight = MatrixView::new(&self.weight.target, first.outputs, dim, dim).t();
        matmul(&mut self.shared, first.outputs, targets, weight, false, chunk.products);
        let elements = std::mem::take(&mut self.elements);
        let keeps = chunk.least.is_none() && elements.len() <= BLOCK;
        for block in elements.chunks(BLOCK) {
            self.block(chunk, unit, block, x, keeps);
            weighted_sums(block, &self.scores, &self.input, dim, &mut x[history * dim..], width);
        }
        self.elements = elements;
    }

    /// Computes the input, activations and scores of a block. `keeps`: for the backward pass.
    fn block(&mut self, chunk: &Chunk<'_>, unit: &Unit, elements: &[Element], x: &[f32], keeps: bool) {
        let Chunk { params, parts, products, .. } = *chunk;
        let (n, dim) = (elements.len().max(chunk.least.unwrap_or(0)), parts.dim);
        let (last, layers) = unit.layers.split_last().expect("a unit has a head");
        self.input.resize(n * 2 * dim, 0.0);
        let targets = SlotVectors { from: &x[unit.pair.target * dim..], width: chunk.width };
        fill_input(elements, chunk.unique_rows, parts.row_dim, targets, dim, &mut self.input);
        self.acts.resize_with(layers.len(), Vec::new);
        self.kept.resize_with(layers.len(), Kept::default);
        for (l, layer) in layers.iter().enumerate() {
            let (before, rest) = self.acts.split_at_mut(l);
            let act = &mut rest[0];
            act.resize(n * layer.outputs, 0.0);
            let (from, weight, inputs) = match before.last() {
                None => (&self.input, self.weight.element.as_slice(), 2 * dim),
                Some(before) => (before, &params[layer.weight.clone()], layer.inputs),
            };
            let weight = MatrixView::new(weight, layer.outputs, inputs, inputs).t();
            matmul(act, layer.outputs, MatrixView::new(from, n, inputs, inputs), weight, false, products);
            if l == 0 {
                add_row_of_each(elements, &self.shared, layer.outputs, act);
            }
            let behind = layer.behind(params);
            if keeps {
                activate::forward(act, unit.activation, &behind, None, &mut self.kept[l]);
            } else {
                activate::predict(act, unit.activation, &behind);
            }
        }
        self.scores.clear();
        self.scores.resize(n, 0.0);
        let output = &self.acts[layers.len() - 1];
        head(output, &params[last.weight.clone()], params[last.bias.start], &mut self.scores);
    }

    /// The backward pass of [`Buffers::forward`] over the same chunk, in a training step.
    pub(super) fn backward(&mut self, chunk: &Chunk<'_>, unit: &Unit, x: &[f32], grads: AttentionGradients<'_>) {
        let Chunk { parts, rows, width, products, .. } = *chunk;
        let AttentionGradients { params: grads, dx, embedded, by_element } = grads;
        let (dim, AttentionPair { history, target }) = (parts.dim, unit.pair);
        let first = &unit.layers[0];
        self.by_sum.clear();
        for row in 0..rows {
            self.by_sum.extend_from_slice(&dx[row * embedded + history * dim..][..dim]);
        }
        self.by_weight.clear(first.outputs, dim);
        self.by_shared.clear();
        self.by_shared.resize(rows * first.outputs, 0.0);
        let elements = std::mem::take(&mut self.elements);
        for (block, by_element) in elements.chunks(BLOCK).zip(by_element.chunks_mut(BLOCK * dim)) {
            if elements.len() > BLOCK {
                self.block(chunk, unit, block, x, true);
            }
            self.block_backward(chunk, unit, block, grads, by_element);
            let targets = SlotVectors { from: &x[target * dim..], width };
            let by_target = &mut dx[target * dim..];
            fill_input_backward(block, &self.by_input, &self.input, targets, dim, by_element, by_target, embedded);
        }
        self.elements = elements;
        let by_shared = MatrixView::new(&self.by_shared, rows, first.outputs, first.outputs);
        let targets = MatrixView::new(&x[target * dim..], rows, dim, width);
        matmul(&mut self.by_weight.target, dim, by_shared.t(), targets, true, products);
        self.by_weight.add_to(grads, first.weight.clone(), dim);
        let weight = MatrixView::new(&self.weight.target, first.outputs, dim, dim);
        matmul(&mut dx[target * dim..], embedded, by_shared, weight, true, products);
    }

    /// From the gradient by the weighted sums to the gradients by the parameters, by the shared term and by the input, and to the part of
    /// `by_element` that does not come through the scores.
    fn block_backward(
        &mut self,
        chunk: &Chunk<'_>,
        unit: &Unit,
        elements: &[Element],
        grads: &mut [f32],
        by_element: &mut [f32],
    ) {
        let Chunk { params, parts, products, .. } = *chunk;
        let (n, dim) = (elements.len(), parts.dim);
        let (last, layers) = unit.layers.split_last().expect("a unit has a head");
        self.by_scores.resize(n, 0.0);
        let by_sum = SlotVectors { from: &self.by_sum, width: dim };
        weighted_sums_backward(elements, &self.scores, &self.input, dim, by_sum, &mut self.by_scores, by_element);
        head_weight(&self.by_scores, &self.acts[layers.len() - 1], &mut grads[last.weight.clone()]);
        grads[last.bias.start] += self.by_scores.iter().sum::<f32>();
        self.deltas[0].resize(n * last.inputs, 0.0);
        head_input(&self.by_scores, &params[last.weight.clone()], &mut self.deltas[0]);
        for (l, layer) in layers.iter().enumerate().rev() {
            let [delta, below] = &mut self.deltas;
            activate::backward(delta, &self.kept[l], &layer.behind(params), layer.behind_mut(grads));
            let by_output = MatrixView::new(delta, n, layer.outputs, layer.outputs);
            if l == 0 {
                sum_of_each_row(elements, delta, layer.outputs, &mut self.by_shared);
                let input = MatrixView::new(&self.input, n, 2 * dim, 2 * dim);
                matmul(&mut self.by_weight.element, 2 * dim, by_output.t(), input, true, products);
                self.by_input.resize(n * 2 * dim, 0.0);
                let weight = MatrixView::new(&self.weight.element, layer.outputs, 2 * dim, 2 * dim);
                matmul(&mut self.by_input, 2 * dim, by_output, weight, false, products);
                continue;
            }
            let input = MatrixView::new(&self.acts[l - 1], n, layer.inputs, layer.inputs);
            matmul(&mut grads[layer.weight.clone()], layer.inputs, by_output.t(), input, true, products);
            below.resize(n * layer.inputs, 0.0);
            let weight = MatrixView::new(&params[layer.weight.clone()], layer.outputs, layer.inputs, layer.inputs);
            matmul(below, layer.inputs, by_output, weight, false, products);
            self.deltas.swap(0, 1);
        }
    }
}
