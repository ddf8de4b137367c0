//! The softmax over the items of a batch: the loss and its gradients by the vectors of users and of items.
//!
//! Blocks of rows are tasks that write numbers of their own, and each sum runs in the order of the batch: the numbers do not depend on the
//! number of threads. A matrix of all rows by all items is never in memory; its blocks are computed twice, by rows for the gradients of
//! users, and by items for the gradients of items.

use super::activate::exp_below_0;
use super::gemm::{Products, matmul};
use super::kernels::{kernel, sum};
use super::matrix::MatrixView;
use super::workers::Workers;
use crate::{DenseBatch, MatmulPrecision};

/// Rows, or items, of a block: beside 4,096 others their logits take 1 MB.
const BLOCK: usize = 64;
/// The number of a row's item if it has none.
const NO_ITEM: u32 = u32::MAX;

/// The items of the rows of a batch, as numbers of unique rows.
#[derive(Default)]
pub(super) struct BatchItems {
    /// `[n]`: the item of each row, or [`NO_ITEM`].
    items: Vec<u32>,
    /// `[u]`: for each unique row, the number of rows whose item it is.
    occurrences: Vec<u32>,
    /// `[n]`: the number to subtract from the logits of a candidate.
    log_q: Vec<f32>,
}

impl BatchItems {
    /// Reads the slot `item`. With `counts`, a unique row begins with the number of earlier rows with this item, and `ln(count +
    /// occurrences in the batch)` is the logarithm of an item's frequency, up to a constant.
    pub(super) fn read(&mut self, batch: &DenseBatch<'_>, (slots, item): (usize, usize), row_dim: usize, counts: bool) {
        let value = |row: usize| {
            let bag = row * slots + item;
            let at = match batch.offsets {
                None => bag..bag + 1,
                Some(offsets) => offsets[bag] as usize..offsets[bag + 1] as usize,
            };
            batch.inverse[at].first().copied().unwrap_or(NO_ITEM)
        };
        self.items.clear();
        self.items.extend((0..batch.rows).map(value));
        self.occurrences.clear();
        self.occurrences.resize(batch.unique(row_dim), 0);
        for &item in self.items.iter().filter(|item| **item != NO_ITEM) {
            self.occurrences[item as usize] += 1;
        }
        let log_q = |&item: &u32| {
            if !counts || item == NO_ITEM {
                return 0.0;
            }
            let before = batch.unique_rows[item as usize * row_dim];
            // NaN stays NaN.
            let before = if before < 0.0 { 0.0 } else { before };
            (before + self.occurrences[item as usize] as f32).ln()
        };
        self.log_q.clear();
        self.log_q.extend(self.items.iter().map(log_q));
    }

    /// Sets the gradient of each unique row's count, its first number, so that a step of size 1 counts its occurrences.
    pub(super) fn count(&self, row_grads: &mut [f32], row_dim: usize) {
        for (grads, &occurrences) in row_grads.chunks_exact_mut(row_dim).zip(&self.occurrences) {
            grads[0] = -(occurrences as f32);
        }
    }
}

/// Buffers, kept between steps.
#[derive(Default)]
pub(super) struct InBatchSoftmax {
    pub(super) items: BatchItems,
    /// The rows with a loss: their number, the factor of the loss, and their log-sum-exp.
    rows: Vec<Positive>,
    /// `[rows with a loss x dim]`: their users' vectors.
    users: Vec<f32>,
}

/// A row with a loss.
#[derive(Clone, Copy)]
pub(in crate::native) struct Positive {
    row: usize,
    weight: f32,
    log_sum: f32,
    loss: f64,
}

impl InBatchSoftmax {
    /// Returns the mean over the rows of the loss, and sets `by_user` and `by_item`, `[n x dim]`, to its gradients by the vectors
    /// `users` and `items`; `scale` is 1 / temperature.
    pub(super) fn run(
        &mut self,
        workers: &Workers,
        batch: &DenseBatch<'_>,
        [users, items]: [&[f32]; 2],
        (dim, scale): (usize, f32),
        [by_user, by_item]: [&mut [f32]; 2],
        precision: MatmulPrecision,
    ) -> f64 {
        let products = Products { threads: 1, precision };
        let of = &self.items;
        let weight = |row: usize| batch.labels[row] * batch.weights.map_or(1.0, |weights| weights[row]);
        self.rows.clear();
        self.rows.extend(
            (0..batch.rows)
                .map(|row| Positive { row, weight: weight(row), log_sum: 0.0, loss: 0.0 })
                .filter(|positive| positive.weight > 0.0 && of.items[positive.row] != NO_ITEM),
        );
        self.users.clear();
        self.rows.iter().for_each(|positive| self.users.extend_from_slice(&users[positive.row * dim..][..dim]));
        let users = &self.users;
        let share = 1.0 / batch.rows as f32;
        let n = batch.rows;
        // Two products and an exponential of each pair, in each of both passes.
        let threads = workers.worth(self.rows.len() * n * (dim / 16 + 1) / 2);

        let mut by_positive = vec![0.0; users.len()];
        let blocks =
            self.rows.chunks_mut(BLOCK).zip(users.chunks(BLOCK * dim)).zip(by_positive.chunks_mut(BLOCK * dim));
        workers.each(threads, blocks.collect(), |((rows, users), by_user)| {
            let mut logits = vec![0.0; rows.len() * n];
            let users = MatrixView::new(users, rows.len(), dim, dim);
            matmul(&mut logits, n, users, MatrixView::new(items, n, dim, dim).t(), false, products);
            for (positive, logits) in rows.iter_mut().zip(logits.chunks_exact_mut(n)) {
                let item = of.items[positive.row];
                let (own, log_sum) = softmax(logits, scale, &of.log_q, &of.items, item, positive.row);
                positive.log_sum = log_sum;
                positive.loss = f64::from(positive.weight) * (f64::from(log_sum) - f64::from(own));
                gradient(logits, positive.weight * share * scale, positive.row);
            }
            let by_logits = MatrixView::new(&logits, rows.len(), n, n);
            matmul(by_user, dim, by_logits, MatrixView::new(items, n, dim, dim), false, products);
        });
        by_user.fill(0.0);
        for (positive, by_positive) in self.rows.iter().zip(by_positive.chunks_exact(dim)) {
            by_user[positive.row * dim..][..dim].copy_from_slice(by_positive);
        }

        let (rows, count) = (&self.rows, self.rows.len());
        let blocks = items.chunks(BLOCK * dim).zip(by_item.chunks_mut(BLOCK * dim)).enumerate();
        workers.each(threads, blocks.collect(), |(block, (items, by_item))| {
            let here = items.len() / dim;
            let mut logits = vec![0.0; here * count];
            let items = MatrixView::new(items, here, dim, dim);
            matmul(&mut logits, count, items, MatrixView::new(users, count, dim, dim).t(), false, products);
            if count > 0 {
                for (candidate, logits) in (block * BLOCK..).zip(logits.chunks_exact_mut(count)) {
                    let (item, log_q) = (of.items[candidate], of.log_q[candidate]);
                    gradient_by_item(logits, rows, &of.items, (candidate, item, log_q), (scale, share));
                }
            }
            let by_logits = MatrixView::new(&logits, here, count, count);
            matmul(by_item, dim, by_logits, MatrixView::new(users, count, dim, dim), false, products);
        });
        self.rows.iter().map(|positive| positive.loss).sum::<f64>() / batch.rows as f64
    }
}

kernel! {
    /// Turns the similarities of a user and all candidates into their probabilities. Candidates without an item, and candidates of other
    /// rows with the item of this row, have probability 0. Returns the logit of the row itself, and the logarithm of the sum.
    fn softmax<'a>(logits: &'a mut [f32], scale: f32, log_q: &'a [f32], items: &'a [u32], item: u32, row: usize)
                   -> (f32, f32) {
        let own = scale * logits[row] - log_q[row];
        let mut largest = own;
        for ((logit, &log_q), &other) in logits.iter_mut().zip(log_q).zip(items) {
            let corrected = scale * *logit - log_q;
            *logit = if other == item || other == NO_ITEM { f32::NEG_INFINITY } else { corrected };
            largest = if *logit > largest || logit.is_nan() { *logit } else { largest };
        }
        logits[row] = own;
        for logit in logits.iter_mut() {
            *logit = exp_below_0(*logit - largest);
        }
        let total = sum(logits);
        for probability in logits {
            *probability /= total;
        }
        (own, largest + total.ln())
    }
}

/// Turns the probabilities of a row's candidates into the gradients of `weight` times its loss.
fn gradient(probabilities: &mut [f32], weight: f32, row: usize) {
    probabilities[row] -= 1.0;
    probabilities.iter_mut().for_each(|p| *p *= weight);
}

kernel! {
    /// The same of the similarities of one candidate with the users of `rows`.
    fn gradient_by_item<'a>(logits: &'a mut [f32], rows: &'a [Positive], items: &'a [u32],
                            candidate: (usize, u32, f32), factors: (f32, f32)) {
        let (candidate, item, log_q) = candidate;
        let (scale, share) = factors;
        for (logit, positive) in logits.iter_mut().zip(rows) {
            let own = positive.row == candidate;
            let left_out = item == NO_ITEM || (items[positive.row] == item && !own);
            let probability = exp_below_0((scale * *logit - log_q - positive.log_sum).min(0.0));
            let probability = if left_out { 0.0 } else { probability };
            *logit = (probability - f32::from(u8::from(own))) * (positive.weight * share * scale);
        }
    }
}
