//! Two towers over a chunk of rows: the vectors of both and their similarity, forward and backward.

use super::hidden_layers::{Gradients, HiddenLayers, Pass, ToInput, weight_gradient};
use super::kernels::{dot, kernel};
use super::two_tower_layers::{SideLayers, TwoTowerLayers};
use crate::two_towers::{LENGTH_EPSILON, Similarity};

/// The buffers of a micro-batch, kept between steps. `chunk` rows each.
#[derive(Default)]
pub(super) struct TwoTowerBuffers {
    sides: [SideBuffers; 2],
}

#[derive(Default)]
struct SideBuffers {
    /// `[chunk x width]`: the tower's inputs from `x0`.
    x: Vec<f32>,
    hidden: HiddenLayers,
    /// `[chunk x vector_dim]`, of length 1 if the cosine is the similarity.
    vectors: Vec<f32>,
    /// `[chunk]`: the factor of a vector's numbers; empty for the inner product.
    rates: Vec<f32>,
    /// `[chunk x vector_dim]`: the loss's gradient by the vectors.
    by_vector: Vec<f32>,
    /// `[chunk x embedded]`: the same by the embeddings of the tower.
    dx: Vec<f32>,
}

impl TwoTowerBuffers {
    /// Computes the vectors of both towers from `x0`, `[rows x width]`, and adds their similarity to `logits`.
    pub(super) fn forward(
        &mut self,
        pass: &Pass<'_>,
        two: &TwoTowerLayers,
        (x0, width): (&[f32], usize),
        logits: &mut [f32],
    ) {
        for (buffers, side) in self.sides.iter_mut().zip(&two.sides) {
            buffers.forward(pass, side, two.spec.similarity, (x0, width));
        }
        let bias = two.bias.map_or(0.0, |at| pass.params[at]);
        let [user, item] = self.vectors(logits.len() * two.vector_dim());
        similarity(user, item, two.vector_dim(), 1.0 / two.spec.temperature, bias, logits);
    }

    /// The first `len` numbers of the vectors of users and of items.
    pub(super) fn vectors(&self, len: usize) -> [&[f32]; 2] {
        [0, 1].map(|side: usize| &self.sides[side].vectors[..len])
    }

    /// The backward pass from `dlogits`, `[rows]`: adds to the gradients of the parameters, and sets `dx` to the gradient of the
    /// embeddings.
    pub(super) fn backward(
        &mut self,
        pass: &Pass<'_>,
        two: &TwoTowerLayers,
        dlogits: &[f32],
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        let scale = 1.0 / two.spec.temperature;
        if let Some(bias) = two.bias {
            grads.params[bias] += dlogits.iter().sum::<f32>();
        }
        let [user, item] = &mut self.sides;
        for (by_vector, other) in [(&mut user.by_vector, &item.vectors), (&mut item.by_vector, &user.vectors)] {
            by_vector.resize(dlogits.len() * two.vector_dim(), 0.0);
            scaled_rows(by_vector, other, two.vector_dim(), scale, dlogits);
        }
        self.sides_backward(pass, two, grads, dx);
    }

    /// The same from the gradients by the vectors, `[rows x vector_dim]` each.
    pub(super) fn backward_from(
        &mut self,
        pass: &Pass<'_>,
        two: &TwoTowerLayers,
        by_vectors: [&[f32]; 2],
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        for (side, by_vector) in self.sides.iter_mut().zip(by_vectors) {
            side.by_vector.clear();
            side.by_vector.extend_from_slice(by_vector);
        }
        self.sides_backward(pass, two, grads, dx);
    }

    fn sides_backward(&mut self, pass: &Pass<'_>, two: &TwoTowerLayers, grads: &mut Gradients<'_>, dx: &mut [f32]) {
        let embedded = pass.net.embedded();
        for (buffers, side) in self.sides.iter_mut().zip(&two.sides) {
            buffers.backward(pass, side, grads);
            for (dx, own) in dx.chunks_exact_mut(embedded).zip(buffers.dx.chunks_exact(side.embedded)) {
                // Each slot is in one tower. The gradient by the dense features is not computed.
                for &(from, to, count) in side.columns.iter().filter(|(_, to, _)| *to < side.embedded) {
                    let count = count.min(side.embedded - to);
                    dx[from..from + count].copy_from_slice(&own[to..to + count]);
                }
            }
        }
    }
}

impl SideBuffers {
    fn forward(&mut self, pass: &Pass<'_>, side: &SideLayers, similarity: Similarity, (x0, width): (&[f32], usize)) {
        let n = pass.rows;
        self.x.resize(n * side.width, 0.0);
        for (x, x0) in self.x.chunks_exact_mut(side.width).zip(x0.chunks_exact(width)) {
            for &(from, to, count) in &side.columns {
                x[to..to + count].copy_from_slice(&x0[from..from + count]);
            }
        }
        let (out, hidden) = side.layers.split_last().expect("a tower has a layer for its vector");
        self.hidden.forward(pass, hidden, side.first_hidden, &self.x);
        self.vectors.resize(n * out.outputs, 0.0);
        pass.product(&mut self.vectors, out, self.hidden.output(&self.x));
        self.rates.resize(if similarity == Similarity::Cosine { n } else { 0 }, 0.0);
        finish_vectors(&mut self.vectors, &pass.params[out.bias.clone()], &mut self.rates);
    }

    /// From `by_vector` to the parameters and to `dx`.
    fn backward(&mut self, pass: &Pass<'_>, side: &SideLayers, grads: &mut Gradients<'_>) {
        let n = pass.rows;
        let (out, hidden) = side.layers.split_last().expect("a tower has a layer for its vector");
        vectors_backward(&mut self.by_vector, &self.vectors, &self.rates, &mut grads.params[out.bias.clone()]);
        let last = self.hidden.output(&self.x);
        weight_gradient(grads.params, out, &self.by_vector, last, n, grads.adds, pass.products);
        self.dx.resize(n * side.embedded, 0.0);
        if hidden.is_empty() {
            return pass.by_inputs(&mut self.dx, out, &self.by_vector, side.embedded, false);
        }
        grads.deltas[0].resize(n * out.inputs, 0.0);
        pass.by_inputs(&mut grads.deltas[0], out, &self.by_vector, out.inputs, false);
        let to_input = ToInput { to: &mut self.dx, columns: side.embedded, adds: false };
        self.hidden.backward(pass, hidden, &self.x, grads, to_input);
    }
}

kernel! {
    /// Adds the bias to each vector and, if `rates` is not empty, scales the vector to length 1: `rates` gets the factor.
    fn finish_vectors<'a>(vectors: &'a mut [f32], bias: &'a [f32], rates: &'a mut [f32]) {
        let mut rates = rates.iter_mut();
        for vector in vectors.chunks_exact_mut(bias.len()) {
            for (y, &bias) in vector.iter_mut().zip(bias) {
                *y += bias;
            }
            if let Some(rate) = rates.next() {
                *rate = 1.0 / (dot(vector, vector) + LENGTH_EPSILON).sqrt();
                for y in vector {
                    *y *= *rate;
                }
            }
        }
    }
}

kernel! {
    /// `logits[r] += scale * user[r] . item[r] + bias`, vectors of `dim`.
    fn similarity<'a>(user: &'a [f32], item: &'a [f32], dim: usize, scale: f32, bias: f32, logits: &'a mut [f32]) {
        for ((logit, user), item) in logits.iter_mut().zip(user.chunks_exact(dim)).zip(item.chunks_exact(dim)) {
            *logit += scale * dot(user, item) + bias;
        }
    }
}

kernel! {
    /// `out[r] = scale * g[r] * vectors[r]`, vectors of `dim`.
    fn scaled_rows<'a>(out: &'a mut [f32], vectors: &'a [f32], dim: usize, scale: f32, g: &'a [f32]) {
        for ((out, vector), &g) in out.chunks_exact_mut(dim).zip(vectors.chunks_exact(dim)).zip(g) {
            let g = scale * g;
            for (out, &x) in out.iter_mut().zip(vector) {
                *out = g * x;
            }
        }
    }
}

kernel! {
    /// The backward pass of `finish_vectors`: with `v` a vector of length 1, the gradient `d` by it becomes `rate * (d - v * (v . d))`.
    /// Adds to the gradient of the bias.
    fn vectors_backward<'a>(by_vector: &'a mut [f32], vectors: &'a [f32], rates: &'a [f32], bias_grad: &'a mut [f32]) {
        let dim = bias_grad.len();
        let mut rates = rates.iter();
        for (d, vector) in by_vector.chunks_exact_mut(dim).zip(vectors.chunks_exact(dim)) {
            if let Some(&rate) = rates.next() {
                let along = dot(d, vector);
                for (d, &v) in d.iter_mut().zip(vector) {
                    *d = rate * (*d - v * along);
                }
            }
            for (sum, &d) in bias_grad.iter_mut().zip(d.iter()) {
                *sum += d;
            }
        }
    }
}
