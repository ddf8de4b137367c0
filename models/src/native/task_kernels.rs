//! Loops over rows for gates and mixtures of experts. `kernels.rs` describes the conventions of all kernels.

use super::kernels::{dot, kernel};

kernel! {
    /// The softmax of a linear layer: `shares[r] = softmax(weight · x[r] + bias)`, `weight` being `[bias.len() x width of x]`.
    ///
    /// Each number is summed by itself, so that it does not depend on the number of rows.
    fn gate<'a>(x: &'a [f32], weight: &'a [f32], bias: &'a [f32], shares: &'a mut [f32]) {
        let width = weight.len() / bias.len();
        for (shares, x) in shares.chunks_exact_mut(bias.len()).zip(x.chunks_exact(width)) {
            let mut largest = f32::NEG_INFINITY;
            for ((share, weight), &bias) in shares.iter_mut().zip(weight.chunks_exact(width)).zip(bias) {
                *share = dot(x, weight) + bias;
                largest = largest.max(*share);
            }
            let mut sum = 0.0;
            for share in shares.iter_mut() {
                *share = (*share - largest).exp();
                sum += *share;
            }
            for share in shares.iter_mut() {
                *share /= sum;
            }
        }
    }
}

kernel! {
    /// Adds expert `e`, weighted by its share, to each row of `mixture`, which it sets if `e` is 0. `shares` has `experts` a row.
    fn mix<'a>(shares: &'a [f32], experts: usize, e: usize, expert: &'a [f32], mixture: &'a mut [f32], width: usize) {
        let rows = mixture.chunks_exact_mut(width).zip(expert.chunks_exact(width));
        for ((mixture, expert), shares) in rows.zip(shares.chunks_exact(experts)) {
            let share = shares[e];
            for (mixture, &x) in mixture.iter_mut().zip(expert) {
                *mixture = if e == 0 { share * x } else { *mixture + share * x };
            }
        }
    }
}

kernel! {
    /// The backward pass of `mix`: adds to the gradient of the expert's output, and sets the gradient of its share.
    fn mix_backward<'a>(by_mixture: &'a [f32], shares: &'a [f32], experts: usize, e: usize, expert: &'a [f32],
                        by_expert: &'a mut [f32], by_shares: &'a mut [f32], width: usize) {
        let rows = by_mixture.chunks_exact(width).zip(expert.chunks_exact(width)).zip(by_expert.chunks_exact_mut(width));
        let shares = shares.chunks_exact(experts).zip(by_shares.chunks_exact_mut(experts));
        for (((by_mixture, expert), by_expert), (shares, by_shares)) in rows.zip(shares) {
            by_shares[e] = dot(by_mixture, expert);
            for (by_expert, &by_mixture) in by_expert.iter_mut().zip(by_mixture) {
                *by_expert += shares[e] * by_mixture;
            }
        }
    }
}

kernel! {
    /// The backward pass of the softmax: `by_shares`, the gradient by the shares, becomes the gradient by the inputs of the softmax, which
    /// is added to `bias_grad`.
    fn gate_backward<'a>(shares: &'a [f32], by_shares: &'a mut [f32], bias_grad: &'a mut [f32]) {
        let experts = bias_grad.len();
        for (shares, by_shares) in shares.chunks_exact(experts).zip(by_shares.chunks_exact_mut(experts)) {
            let mean = dot(shares, by_shares);
            for ((by_share, &share), bias_grad) in by_shares.iter_mut().zip(shares).zip(bias_grad.iter_mut()) {
                *by_share = share * (*by_share - mean);
                *bias_grad += *by_share;
            }
        }
    }
}
