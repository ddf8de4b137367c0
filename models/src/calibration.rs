//! Whether predicted probabilities are right on average: normalized entropy, clicks over predicted clicks, a reliability table.

use serde::{Deserialize, Serialize};

/// Rows of similar scores in a [`reliability`] table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// Rows in it.
    pub rows: u64,
    /// Mean score.
    pub predicted: f64,
    /// Share of rows with label 1.
    pub observed: f64,
}

/// Normalized entropy: the logloss over the logloss of a model that always predicts the share of positives (He et al., "Practical Lessons
/// from Predicting Clicks on Ads at Facebook", ADKDD 2014). Below 1 is better than that model. `None` if all labels are the same.
pub fn normalized_entropy(logloss: f64, positive_rate: f64) -> Option<f64> {
    let p = positive_rate;
    (p > 0.0 && p < 1.0).then(|| logloss / -(p * p.ln() + (1.0 - p) * (1.0 - p).ln()))
}

/// COPC, clicks over predicted clicks: the weighted sum of the labels over the weighted sum of the scores. Above 1 the scores are too low.
/// `None` if the sum of the scores is 0.
pub fn clicks_over_predicted(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Option<f64> {
    let sum = |values: &[f32]| weighted_sum((0..values.len()).map(|row| (values[row], weight_of(weights, row))));
    let predicted = sum(scores);
    (predicted > 0.0).then(|| sum(labels) / predicted)
}

fn weight_of(weights: Option<&[f32]>, row: usize) -> f32 {
    weights.map_or(1.0, |weights| weights[row])
}

fn weighted_sum(values: impl Iterator<Item = (f32, f32)>) -> f64 {
    values.map(|(value, weight)| f64::from(value) * f64::from(weight)).sum()
}

/// The rows in the order of their scores, cut into at most `bins` bins of about equally many rows, each with weighted means. Rows of
/// one score are in one bin. A bin whose rows all weigh 0 is left out.
///
/// Takes `O(n log n)` time and 12 bytes a row.
///
/// # Panics
/// If the lengths differ.
pub fn reliability(scores: &[f32], labels: &[f32], weights: Option<&[f32]>, bins: usize) -> Vec<ReliabilityBin> {
    assert_eq!(scores.len(), labels.len(), "one label for each score");
    let mut rows: Vec<(f32, f32, f32)> =
        scores.iter().zip(labels).enumerate().map(|(row, (&s, &l))| (s, l, weight_of(weights, row))).collect();
    rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut table, mut from) = (Vec::new(), 0);
    for bin in 1..=bins {
        let mut to = rows.len() * bin / bins;
        while to > from && to < rows.len() && rows[to].0 == rows[to - 1].0 {
            to += 1;
        }
        if to > from {
            let bin = &rows[from..to];
            let weight = weighted_sum(bin.iter().map(|row| (1.0, row.2)));
            if weight > 0.0 {
                table.push(ReliabilityBin {
                    rows: bin.len() as u64,
                    predicted: weighted_sum(bin.iter().map(|row| (row.0, row.2))) / weight,
                    observed: weighted_sum(bin.iter().map(|row| (row.1, row.2))) / weight,
                });
            }
            from = to;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_entropy_of_a_constant_model_is_1_and_of_one_class_undefined() {
        let background = |p: f64| -(p * p.ln() + (1.0 - p) * (1.0 - p).ln());
        assert!((normalized_entropy(background(0.2), 0.2).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!((normalized_entropy(0.1, 0.0), normalized_entropy(0.1, 1.0)), (None, None));
    }

    #[test]
    fn clicks_over_predicted_are_a_ratio_of_sums() {
        assert_eq!(clicks_over_predicted(&[0.25, 0.25, 0.5], &[1.0, 0.0, 1.0], None), Some(2.0));
        assert_eq!(clicks_over_predicted(&[0.0], &[1.0], None), None);
        assert_eq!(clicks_over_predicted(&[], &[], None), None);
    }

    #[test]
    fn a_weight_counts_as_so_many_rows() {
        let (scores, labels, weights) = ([0.25, 0.5, 0.5], [1.0, 0.0, 1.0], [2.0, 0.0, 1.0]);
        let (rows, row_labels) = ([0.25, 0.25, 0.5], [1.0, 1.0, 1.0]);
        let weighted = clicks_over_predicted(&scores, &labels, Some(&weights));
        assert_eq!(weighted, clicks_over_predicted(&rows, &row_labels, None));
        let (weighted, counted) =
            (reliability(&scores, &labels, Some(&weights), 1), reliability(&rows, &row_labels, None, 1));
        assert_eq!((weighted[0].predicted, weighted[0].observed), (counted[0].predicted, counted[0].observed));
        assert_eq!(reliability(&scores, &labels, Some(&[0.0; 3]), 2), []);
    }

    #[test]
    fn bins_hold_about_equally_many_rows() {
        let scores: Vec<f32> = (0..1000).rev().map(|i| i as f32 / 1000.0).collect();
        let labels: Vec<f32> = scores.iter().map(|&score| f32::from(u8::from(score >= 0.75))).collect();
        let table = reliability(&scores, &labels, None, 4);
        assert_eq!(table.iter().map(|bin| bin.rows).collect::<Vec<_>>(), [250; 4]);
        assert_eq!(table.iter().map(|bin| bin.observed).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 1.0]);
        assert!((table[0].predicted - 0.1245).abs() < 1e-6, "{table:?}");
        assert_eq!(reliability(&[0.5; 7], &[1.0; 7], None, 10).len(), 1, "one score, one bin");
        assert_eq!(reliability(&[], &[], None, 10), []);
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_bin_and_a_score_is_in_no_two(
            rows in prop::collection::vec((0_u8..30, any::<bool>()), 0..200), bins in 1_usize..12
        ) {
            let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.0) / 32.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| f32::from(u8::from(row.1))).collect();
            let table = reliability(&scores, &labels, None, bins);
            prop_assert!(table.len() <= bins);
            prop_assert_eq!(table.iter().map(|bin| bin.rows).sum::<u64>(), rows.len() as u64);
            let clicks: f64 = table.iter().map(|bin| bin.observed * bin.rows as f64).sum();
            prop_assert!((clicks - labels.iter().map(|&l| f64::from(l)).sum::<f64>()).abs() < 1e-9);
            let mut sorted = scores;
            sorted.sort_by(f32::total_cmp);
            let mut end = 0;
            for bin in &table {
                end += bin.rows as usize;
                prop_assert!(end == sorted.len() || sorted[end - 1] < sorted[end]);
            }
        }
    }
}
