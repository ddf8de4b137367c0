//! A batch whose rows several threads compute: each takes the next rows until none are left.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use forebay_batches::TrainBatch;
use forebay_models::{DenseModel, ModelError};

/// A batch with the table rows of its keys. The models of all threads have the same parameters, and
/// [independent rows](DenseModel::has_independent_rows).
pub(super) struct SplitBatch {
    batch: TrainBatch,
    rows: Vec<f32>,
    /// Rows that a thread takes at once.
    part: usize,
    /// The first row that no thread has taken.
    next: AtomicUsize,
    computed: Mutex<Computed>,
    changed: Condvar,
}

struct Computed {
    /// `[n × t]`.
    logits: Vec<f32>,
    /// Rows that are not computed yet.
    left: usize,
    failed: bool,
}

impl SplitBatch {
    /// `rows` are the table rows of `batch.unique`; `part` is above 0.
    pub(super) fn new(batch: TrainBatch, rows: Vec<f32>, part: usize) -> Self {
        let computed = Computed { logits: vec![0.0; batch.labels.len()], left: batch.rows, failed: false };
        Self { batch, rows, part, next: AtomicUsize::new(0), computed: Mutex::new(computed), changed: Condvar::new() }
    }

    /// Computes rows until none are left to take.
    pub(super) fn help(&self, model: &mut dyn DenseModel) {
        let (whole, labels) = (self.batch.dense_batch(&self.rows), self.batch.labels.len() / self.batch.rows.max(1));
        let (mut offsets, mut logits) = (Vec::new(), Vec::new());
        loop {
            let first = self.next.fetch_add(self.part, Ordering::Relaxed);
            if first >= self.batch.rows {
                return;
            }
            let rows = first..(first + self.part).min(self.batch.rows);
            // Dropping `taken` counts the rows, even if the model panics.
            let mut taken = Taken { batch: self, rows: rows.clone(), failed: true };
            if model.predict(&whole.part(rows.clone(), &mut offsets), &mut logits).is_ok() {
                self.computed().logits[rows.start * labels..rows.end * labels].copy_from_slice(&logits);
                taken.failed = false;
            }
        }
    }

    /// Computes with the other threads until all rows are done. `logits` become `[n × t]`.
    ///
    /// # Errors
    /// Returns the error of [`DenseModel::predict`]. If a part failed, this thread computes all rows again to find what is wrong with them.
    pub(super) fn finish(&self, model: &mut dyn DenseModel, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        self.help(model);
        let mut computed = self.computed();
        while computed.left > 0 {
            computed = self.changed.wait(computed).unwrap_or_else(PoisonError::into_inner);
        }
        if computed.failed {
            return model.predict(&self.batch.dense_batch(&self.rows), logits);
        }
        *logits = std::mem::take(&mut computed.logits);
        Ok(())
    }

    /// Under the lock there are only copies to places that exist, so nothing panics.
    fn computed(&self) -> MutexGuard<'_, Computed> {
        self.computed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows that a thread has taken.
struct Taken<'a> {
    batch: &'a SplitBatch,
    rows: Range<usize>,
    failed: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut computed = self.batch.computed();
        computed.left -= self.rows.len();
        computed.failed |= self.failed;
        if computed.left == 0 {
            self.batch.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use forebay_base::{SplitMix64, signed_unit_f32};
    use forebay_models::{DenseOptimizer, ModelSpec, NativeModel};
    use proptest::prelude::*;

    use super::*;

    fn model(spec: &ModelSpec) -> NativeModel {
        NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.1), 3, 1).unwrap()
    }

    /// A batch for models of 3 slots and 2 dense features, of `rows` rows; with bags of 0 to 2 values, or one value in each.
    fn batch(spec: &ModelSpec, rows: usize, bags: bool, seed: u64) -> (TrainBatch, Vec<f32>) {
        let mut random = SplitMix64::new(seed);
        let mut numbers = |n: usize| (0..n).map(|_| signed_unit_f32(random.next_u64())).collect::<Vec<f32>>();
        let unique_rows = numbers(20 * spec.row_dim());
        let dense = numbers(rows * 2);
        let mut offsets = vec![0];
        for bag in 0..rows * 3 {
            offsets.push(offsets[bag] + if bags { random.next_u64() as u32 % 3 } else { 1 });
        }
        let inverse = (0..offsets[rows * 3]).map(|_| random.next_u64() as u32 % 20).collect();
        let labels = vec![0.0; rows * spec.labels()];
        let offsets = bags.then_some(offsets);
        (
            TrainBatch { rows, labels, dense, inverse, offsets, unique: (0..20).collect(), ..TrainBatch::default() },
            unique_rows,
        )
    }

    fn bits(logits: &[f32]) -> Vec<u32> {
        logits.iter().map(|logit| logit.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn a_split_batch_has_the_bits_of_the_whole(
            rows in 1usize..80, part in 1usize..90, helpers in 0usize..4, bags: bool, packed: bool, which in 0usize..3, seed: u64,
        ) {
            let spec = [
                ModelSpec::wide_deep(3, 2, 8, &[40, 24]),
                ModelSpec::deep_fm(3, 2, 4, &[24]),
                ModelSpec::shared_bottom(3, 2, 4, &[24], &[7], &[1.0, 0.5]),
            ][which].clone();
            let (whole, unique_rows) = batch(&spec, rows, bags, seed);
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            model(&spec).predict(&whole.dense_batch(&unique_rows), &mut expected).unwrap();
            let split = SplitBatch::new(whole, unique_rows, part);
            let own = || {
                let mut model = model(&spec);
                if packed {
                    model.pack_weights();
                }
                model
            };
            thread::scope(|scope| {
                (0..helpers).for_each(|_| drop(scope.spawn(|| split.help(&mut own()))));
                split.finish(&mut own(), &mut found)
            }).unwrap();
            prop_assert_eq!(bits(&found), bits(&expected));
        }
    }

    #[test]
    fn a_part_that_fails_on_another_thread_is_computed_again() {
        let spec = ModelSpec::wide_deep(3, 2, 8, &[24]);
        let (whole, unique_rows) = batch(&spec, 10, false, 1);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        model(&spec).predict(&whole.dense_batch(&unique_rows), &mut expected).unwrap();
        let split = SplitBatch::new(whole, unique_rows, 4);
        // It has another number of dense features, so it refuses the batch.
        split.help(&mut model(&ModelSpec::wide_deep(3, 1, 8, &[24])));
        split.finish(&mut model(&spec), &mut found).unwrap();
        assert_eq!(bits(&found), bits(&expected));
    }

    #[test]
    fn what_is_wrong_with_the_rows_is_said_as_of_the_whole_batch() {
        let spec = ModelSpec::wide_deep(3, 2, 8, &[24]);
        let (mut whole, unique_rows) = batch(&spec, 10, false, 1);
        whole.dense[19] = f32::NAN;
        let split = SplitBatch::new(whole, unique_rows, 4);
        let said = split.finish(&mut model(&spec), &mut Vec::new()).unwrap_err().to_string();
        assert!(said.contains("dense feature 1 of row 9 is NaN"), "{said}");
    }
}
