//! Binary cross-entropy on logits: the training loss, and `logloss` for evaluation.

/// The logistic function `1 / (1 + exp(-z))`, without overflow for any `z`.
pub fn sigmoid(z: f32) -> f32 {
    let e = (-z.abs()).exp();
    let small = e / (1.0 + e);
    if z >= 0.0 { 1.0 - small } else { small }
}

/// Loss of one row and its derivative by the logit: `ln(1 + exp(z)) - label * z` and `sigmoid(z) - label`.
///
/// Computed as `max(z, 0) - label * z + ln(1 + exp(-|z|))`, PyTorch's `binary_cross_entropy_with_logits`: no overflow
/// and no cancellation for large `|z|`. A NaN in either argument gives NaN.
pub fn bce_with_logits(z: f32, label: f32) -> (f32, f32) {
    let e = (-z.abs()).exp();
    let loss = (if z > 0.0 { z } else { 0.0 * z }) - label * z + e.ln_1p();
    let p = if z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
    (loss, p - label)
}

/// Mean binary cross-entropy of `logits` against `labels`, in nats, summed in f64; NaN for no rows.
///
/// # Panics
/// If the lengths differ.
pub fn logloss(logits: &[f32], labels: &[f32]) -> f64 {
    loss_sum(logits, labels, None) / logits.len() as f64
}

/// Sum over the rows of weight times binary cross-entropy, in nats, summed in f64; every row weighs 1 without weights.
///
/// # Panics
/// If the lengths differ.
pub fn loss_sum(logits: &[f32], labels: &[f32], weights: Option<&[f32]>) -> f64 {
    assert_eq!(logits.len(), labels.len(), "one label for each logit");
    let rows = logits.iter().zip(labels).map(|(&z, &label)| {
        let (z, label) = (f64::from(z), f64::from(label));
        z.max(0.0) - label * z + (-z.abs()).exp().ln_1p()
    });
    match weights {
        None => rows.sum(),
        Some(weights) => {
            assert_eq!(logits.len(), weights.len(), "one weight for each logit");
            rows.zip(weights).map(|(loss, &weight)| loss * f64::from(weight)).sum()
        }
    }
}

/// The sum over labels of weight times [`loss_sum`]: `logits` and `labels` are `[n x t]`, row-major, `label_weights` `[t]`, `weights`
/// `[n]`. With several labels, the labels that a row lacks (NaN) are left out.
///
/// # Panics
/// If the lengths do not go together.
pub fn losses_sum(logits: &[f32], labels: &[f32], label_weights: &[f32], weights: Option<&[f32]>) -> f64 {
    if label_weights.len() == 1 {
        return loss_sum(logits, labels, weights);
    }
    let of_label = |(k, &weight): (usize, &f32)| {
        let LabelRows { logits, labels, weights, .. } = LabelRows::of(logits, labels, weights, k, label_weights.len());
        f64::from(weight) * loss_sum(&logits, &labels, weights.as_deref())
    };
    label_weights.iter().enumerate().map(of_label).sum()
}

/// The rows that have a value of one of several labels; rows that lack this label have NaN.
pub struct LabelRows {
    /// The numbers of the rows, if some lack the label.
    pub rows: Option<Vec<u32>>,
    /// `[n]`: the logits of these rows.
    pub logits: Vec<f32>,
    /// `[n]`: their labels.
    pub labels: Vec<f32>,
    /// `[n]`: their weights, if rows have weights.
    pub weights: Option<Vec<f32>>,
}

impl LabelRows {
    /// The rows that have label `k` of `t`: `logits` and `labels` are `[n x t]`, row-major, `weights` `[n]`.
    pub fn of(logits: &[f32], labels: &[f32], weights: Option<&[f32]>, k: usize, t: usize) -> LabelRows {
        let [logits, labels] = [logits, labels].map(|of| label_column(of, k, t));
        if labels.iter().all(|label| !label.is_nan()) {
            return LabelRows { rows: None, logits, labels, weights: weights.map(<[f32]>::to_vec) };
        }
        let rows: Vec<u32> = (0..labels.len() as u32).filter(|&row| !labels[row as usize].is_nan()).collect();
        let gather = |from: &[f32]| -> Vec<f32> { rows.iter().map(|&row| from[row as usize]).collect() };
        let (logits, labels, weights) = (gather(&logits), gather(&labels), weights.map(gather));
        LabelRows { rows: Some(rows), logits, labels, weights }
    }
}

/// Number `k` of each row, `[n]`, of the logits or labels of rows with `t` labels, `[n x t]`.
pub fn label_column(values: &[f32], k: usize, t: usize) -> Vec<f32> {
    values.iter().skip(k).step_by(t).copied().collect()
}

/// The logit of the product of two probabilities that are given as logits, and its derivatives by them.
///
/// With `p = sigmoid(a) sigmoid(b)`, `1 / p - 1 = e^-a + e^-b + e^-(a+b)`: the logit is `-ln` of this sum, computed without overflow and
/// without cancellation.
pub fn product_logit(a: f32, b: f32) -> (f32, [f32; 2]) {
    let terms = [-a, -b, -a - b];
    let largest = terms[0].max(terms[1]).max(terms[2]);
    let [by_a, by_b, by_both] = terms.map(|term| (term - largest).exp());
    let sum = by_a + by_b + by_both;
    (-largest - sum.ln(), [(by_a + by_both) / sum, (by_b + by_both) / sum])
}

/// The quotient of two probabilities that are given as logits, at most 1: of a [product](product_logit) and one of its factors.
pub fn sigmoid_ratio(product: f32, factor: f32) -> f32 {
    let logarithm = |z: f32| f64::from(z).min(0.0) - (-f64::from(z).abs()).exp().ln_1p();
    (logarithm(product) - logarithm(factor)).min(0.0).exp() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_gradient_match_the_textbook_formula() {
        for label in [0.0f32, 1.0, 0.25] {
            for z in [-8.0f32, -1.5, -1e-3, 0.0, 0.7, 3.0, 9.0] {
                let p = 1.0 / (1.0 + (-f64::from(z)).exp());
                let expected = -f64::from(label) * p.ln() - (1.0 - f64::from(label)) * (1.0 - p).ln();
                let (loss, slope) = bce_with_logits(z, label);
                assert!((f64::from(loss) - expected).abs() < 2e-6, "{z} {label}: {loss} {expected}");
                assert!((f64::from(slope) - (p - f64::from(label))).abs() < 1e-6);
                assert!((f64::from(sigmoid(z)) - p).abs() < 1e-7);
            }
        }
        let logits = [2.0f32, -1.0, 0.5];
        let labels = [1.0f32, 0.0, 0.0];
        let rows: f64 = logits.iter().zip(&labels).map(|(&z, &y)| f64::from(bce_with_logits(z, y).0)).sum();
        assert!((logloss(&logits, &labels) - rows / 3.0).abs() < 1e-7);
        let twice = loss_sum(&[2.0, 2.0, -1.0], &[1.0, 1.0, 0.0], None);
        assert!((loss_sum(&logits, &labels, Some(&[2.0, 1.0, 0.0])) - twice).abs() < 1e-12);
    }

    #[test]
    fn the_logit_of_a_product_is_that_of_f64_wherever_f64_has_it() {
        for a in [-30.0f32, -9.0, -2.0, -0.5, 0.0, 0.25, 3.0, 8.0, 25.0] {
            for b in [-30.0f32, -9.0, -2.0, -0.5, 0.0, 0.25, 3.0, 8.0, 25.0] {
                let [x, y] = [a, b].map(|z| (-f64::from(z)).exp());
                let rest = x + y + x * y;
                let (logit, [by_a, by_b]) = product_logit(a, b);
                assert!((f64::from(logit) + rest.ln()).abs() < 4e-6, "{a} {b}: {logit} {}", -rest.ln());
                assert!((f64::from(by_a) - x * (1.0 + y) / rest).abs() < 1e-6, "{a} {b}: {by_a}");
                assert!((f64::from(by_b) - y * (1.0 + x) / rest).abs() < 1e-6, "{a} {b}: {by_b}");
            }
        }
        for (a, b) in [(1e4, 1e4), (-1e4, -1e4), (1e4, -1e4), (3e38, 3e38)] {
            let (logit, slopes) = product_logit(a, b);
            assert!(logit.is_finite() && slopes.iter().all(|slope| slope.is_finite()), "{a} {b}: {logit} {slopes:?}");
        }
        assert!(product_logit(f32::NAN, 0.0).0.is_nan());
    }

    #[test]
    fn the_loss_of_several_labels_is_the_weighted_sum_of_each() {
        let (logits, labels) = ([2.0f32, -1.0, 0.5, 0.25], [1.0f32, 0.0, 0.0, 1.0]);
        let (first, second) = (loss_sum(&[2.0, 0.5], &[1.0, 0.0], None), loss_sum(&[-1.0, 0.25], &[0.0, 1.0], None));
        assert_eq!(losses_sum(&logits, &labels, &[1.0, 0.5], None), first + 0.5 * second);
        assert_eq!(losses_sum(&logits, &labels, &[1.0], None), loss_sum(&logits, &labels, None));
        // The second row lacks the first label.
        let labels = [1.0f32, 0.0, f32::NAN, 1.0];
        let first = loss_sum(&[2.0], &[1.0], Some(&[3.0]));
        let second = loss_sum(&[-1.0, 0.25], &[0.0, 1.0], Some(&[3.0, 5.0]));
        assert_eq!(losses_sum(&logits, &labels, &[1.0, 0.5], Some(&[3.0, 5.0])), first + 0.5 * second);
        let of = LabelRows::of(&logits, &labels, Some(&[3.0, 5.0]), 0, 2);
        assert_eq!((of.rows, of.logits, of.labels, of.weights), (Some(vec![0]), vec![2.0], vec![1.0], Some(vec![3.0])));
    }

    #[test]
    fn extreme_logits_stay_finite_and_nan_is_not_hidden() {
        assert_eq!(bce_with_logits(1e30, 0.0), (1e30, 1.0));
        assert_eq!(bce_with_logits(-1e30, 0.0), (0.0, 0.0));
        assert_eq!(sigmoid(f32::MAX), 1.0);
        assert_eq!(sigmoid(f32::MIN), 0.0);
        assert!(bce_with_logits(f32::NAN, 1.0).0.is_nan());
        assert!(bce_with_logits(f32::INFINITY, 1.0).0.is_nan() || bce_with_logits(f32::INFINITY, 1.0).0.is_infinite());
        assert!(logloss(&[], &[]).is_nan());
    }
}
