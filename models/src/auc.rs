//! Area under the ROC curve: exact over any number of rows, and running over recent rows. Scores may be logits: only their
//! order counts.

/// Exact AUC by ranks, equal scores counted half (Mann and Whitney 1947); `None` if all labels are of one class.
///
/// Scores that are not finite are ordered by `f32::total_cmp`. Takes `O(n log n)` time and 8 bytes a row.
///
/// # Panics
/// If the lengths differ.
pub fn auc_exact(scores: &[f32], labels: &[f32]) -> Option<f64> {
    assert_eq!(scores.len(), labels.len(), "one label for each score");
    let mut rows: Vec<(f32, bool)> = scores.iter().zip(labels).map(|(&score, &label)| (score, label > 0.5)).collect();
    rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    // Pairs (positive, negative) in the right order, counted twice so that a tie counts one.
    let (mut pairs, mut positives, mut negatives) = (0_u128, 0_u64, 0_u64);
    for tie in rows.chunk_by(|a, b| a.0 == b.0) {
        let positive = tie.iter().filter(|(_, label)| *label).count() as u64;
        let negative = tie.len() as u64 - positive;
        pairs += u128::from(positive) * u128::from(2 * negatives + negative);
        positives += positive;
        negatives += negative;
    }
    (positives > 0 && negatives > 0).then(|| pairs as f64 / (2 * u128::from(positives) * u128::from(negatives)) as f64)
}

/// Exact AUC of weighted rows with soft labels: a row of weight w and label y is w · y positive and w · (1 - y) negative rows of the same
/// score. With labels of 0 and 1 and no weights the result is [`auc_exact`].
///
/// # Panics
/// If the lengths differ.
pub fn auc_weighted(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Option<f64> {
    if weights.is_none() && labels.iter().all(|&label| label == 0.0 || label == 1.0) {
        return auc_exact(scores, labels);
    }
    assert_eq!(scores.len(), labels.len(), "one label for each score");
    assert!(weights.is_none_or(|weights| weights.len() == scores.len()), "one weight for each score");
    let weight = |row: usize| weights.map_or(1.0, |weights| f64::from(weights[row]));
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| scores[a as usize].total_cmp(&scores[b as usize]));
    let (mut pairs, mut positives, mut negatives) = (0.0, 0.0, 0.0);
    for tie in order.chunk_by(|&a, &b| scores[a as usize] == scores[b as usize]) {
        let (mut positive, mut negative) = (0.0, 0.0);
        for &row in tie {
            let (weight, label) = (weight(row as usize), f64::from(labels[row as usize]));
            positive += weight * label;
            negative += weight * (1.0 - label);
        }
        pairs += positive * (negatives + 0.5 * negative);
        positives += positive;
        negatives += negative;
    }
    (positives > 0.0 && negatives > 0.0).then(|| pairs / (positives * negatives))
}

/// Buckets of the running AUC, equally wide in probability.
const BUCKETS: usize = 4096;

/// AUC over about the last `window` rows, in bounded memory: two histograms of predicted probabilities that decay.
///
/// Scores in one bucket count as ties, so the error is at most the share of pairs within a bucket.
#[derive(Clone, Debug)]
pub struct RunningAuc {
    window: f64,
    positive: Vec<f64>,
    negative: Vec<f64>,
    /// The weight of a new row. It grows, so that the weights of older rows need not shrink.
    weight: f64,
}

impl Default for RunningAuc {
    /// Over about the last 100,000 rows.
    fn default() -> Self {
        Self::new(100_000)
    }
}

impl RunningAuc {
    /// Over about the last `window` rows.
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1) as f64, positive: vec![0.0; BUCKETS], negative: vec![0.0; BUCKETS], weight: 1.0 }
    }

    /// Adds rows: logits, labels and, if there are any, weights, `[n]` each. Soft labels count as in [`auc_weighted`].
    pub fn add(&mut self, logits: &[f32], labels: &[f32], weights: Option<&[f32]>) {
        self.weight *= (logits.len() as f64 / self.window).exp();
        if self.weight > 1e100 {
            let scale = 1.0 / self.weight;
            self.positive.iter_mut().chain(&mut self.negative).for_each(|sum| *sum *= scale);
            self.weight = 1.0;
        }
        for (row, (&logit, &label)) in logits.iter().zip(labels).enumerate() {
            let bucket = ((crate::sigmoid(logit) * BUCKETS as f32) as usize).min(BUCKETS - 1);
            let weight = self.weight * weights.map_or(1.0, |weights| f64::from(weights[row]));
            self.positive[bucket] += weight * f64::from(label);
            self.negative[bucket] += weight * (1.0 - f64::from(label));
        }
    }

    /// The counts, for [`restore`](Self::restore): the sums of each bucket, of positive and of negative rows, and the weight of a new row.
    pub fn counted(&self) -> ([&[f64]; 2], f64) {
        ([&self.positive, &self.negative], self.weight)
    }

    /// Replaces the counts by those that another AUC over as many rows has [`counted`](Self::counted). Returns false, and changes nothing,
    /// if these are sums of other buckets.
    pub fn restore(&mut self, [positive, negative]: [Vec<f64>; 2], weight: f64) -> bool {
        let fits = positive.len() == BUCKETS && negative.len() == BUCKETS;
        if fits {
            (self.positive, self.negative, self.weight) = (positive, negative, weight);
        }
        fits
    }

    /// The AUC; `None` until rows of both classes were added.
    pub fn value(&self) -> Option<f64> {
        let (mut pairs, mut positives, mut negatives) = (0.0, 0.0, 0.0);
        for (&positive, &negative) in self.positive.iter().zip(&self.negative) {
            pairs += positive * (negatives + 0.5 * negative);
            positives += positive;
            negatives += negative;
        }
        (positives > 0.0 && negatives > 0.0).then(|| pairs / positives / negatives)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_pairs(scores: &[f32], labels: &[f32]) -> Option<f64> {
        let (mut right, mut pairs) = (0.0, 0.0);
        for (a, &positive) in scores.iter().zip(labels).filter(|(_, l)| **l == 1.0).map(|(a, _)| (a, a)) {
            for (&negative, _) in scores.iter().zip(labels).filter(|(_, l)| **l == 0.0) {
                pairs += 1.0;
                right += if *a > negative {
                    1.0
                } else if positive == negative {
                    0.5
                } else {
                    0.0
                };
            }
        }
        (pairs > 0.0).then(|| right / pairs)
    }

    proptest! {
        #[test]
        fn exact_agrees_with_counting_every_pair(rows in prop::collection::vec((-5_i8..5, any::<bool>()), 0..80)) {
            let scores: Vec<f32> = rows.iter().map(|r| f32::from(r.0)).collect();
            let labels: Vec<f32> = rows.iter().map(|r| f32::from(u8::from(r.1))).collect();
            match (auc_exact(&scores, &labels), by_pairs(&scores, &labels)) {
                (Some(a), Some(b)) => prop_assert!((a - b).abs() < 1e-12, "{a} {b}"),
                (a, b) => prop_assert_eq!(a, b),
            }
        }

        #[test]
        fn a_weight_counts_as_so_many_rows_and_a_soft_label_as_a_share_of_each_class(
            rows in prop::collection::vec((-3_i8..3, 0_u8..5, 0_u8..4), 0..40)
        ) {
            let (mut scores, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
            let (mut each_score, mut each_label) = (Vec::new(), Vec::new());
            for (score, quarters, weight) in rows {
                scores.push(f32::from(score));
                labels.push(f32::from(quarters) / 4.0);
                weights.push(f32::from(weight));
                for quarter in 0..4 {
                    each_score.extend(std::iter::repeat_n(f32::from(score), weight.into()));
                    each_label.extend(std::iter::repeat_n(f32::from(u8::from(quarter < quarters)), weight.into()));
                }
            }
            match (auc_weighted(&scores, &labels, Some(&weights)), auc_exact(&each_score, &each_label)) {
                (Some(a), Some(b)) => prop_assert!((a - b).abs() < 1e-9, "{a} {b}"),
                (a, b) => prop_assert_eq!(a, b),
            }
        }

        #[test]
        fn the_running_auc_is_near_the_exact_one_within_the_window(seed in 0_u32..1000) {
            let mix = |i: u32| (i ^ seed).wrapping_mul(2_654_435_761) >> 8;
            let logits: Vec<f32> = (0..2000).map(|i| (mix(i) % 4000) as f32 / 1000.0 - 2.0).collect();
            let labels: Vec<f32> =
                (0..2000).map(|i| f32::from(u8::from((mix(i + 5000) % 4000) as f32 / 1000.0 - 2.0 < logits[i as usize]))).collect();
            let mut running = RunningAuc::new(1_000_000);
            for (logits, labels) in logits.chunks(100).zip(labels.chunks(100)) {
                running.add(logits, labels, None);
            }
            let (running, exact) = (running.value().unwrap(), auc_exact(&logits, &labels).unwrap());
            prop_assert!((running - exact).abs() < 2e-3, "{running} {exact}");
        }
    }

    #[test]
    fn the_running_auc_forgets_old_rows() {
        let mut running = RunningAuc::new(1000);
        let (good, bad) = ([[2.0, -2.0], [-2.0, 2.0]].map(|l| l.repeat(500)), [1.0, 0.0].repeat(500));
        for _ in 0..300 {
            running.add(&good[1], &bad, None);
        }
        assert!(running.value().unwrap() < 0.01);
        for _ in 0..20 {
            running.add(&good[0], &bad, None);
        }
        assert!(running.value().unwrap() > 0.99);
    }

    #[test]
    fn one_that_continues_from_the_sums_of_another_counts_as_that_does() {
        let (logits, labels) = ([0.3, -1.0, 2.0, 0.1].repeat(30), [1.0, 0.0, 1.0, 0.0].repeat(30));
        let (mut first, mut second) = (RunningAuc::new(1000), RunningAuc::new(1000));
        first.add(&logits, &labels, None);
        let (sums, weight) = first.counted();
        assert!(second.restore(sums.map(<[f64]>::to_vec), weight));
        assert!(!second.restore([vec![0.0; 7], vec![0.0; 7]], 1.0), "other buckets");
        first.add(&logits[1..], &labels[..119], None);
        second.add(&logits[1..], &labels[..119], None);
        assert_eq!(first.value().unwrap().to_bits(), second.value().unwrap().to_bits());
    }

    #[test]
    fn a_single_class_has_no_auc() {
        assert_eq!(auc_exact(&[1.0, 2.0], &[1.0, 1.0]), None);
        assert_eq!(auc_exact(&[], &[]), None);
        assert_eq!(RunningAuc::default().value(), None);
    }
}
