//! The biases that a new model begins with where labels are rare. A bias that begins at 0, which predicts one half, moves by about the
//! learning rate in each step. Until it arrives, other parameters learn the difference: `docs/quality.md` has the measurements. Karpathy,
//! "A Recipe for Training Neural Networks" (2019), advises the same.

use std::iter::Sum;

use forebay_job::{InitialBias, Job, ModelKind};

/// The share of positive labels, or of negative ones, up to which the bias is set.
const RARE: f64 = 0.1;

/// Fewer rows with one of the labels do not tell their share.
const ENOUGH: u64 = 20;

/// The values of one label.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LabelCounts {
    /// Rows whose label is less than one half, and others.
    rows: [u64; 2],
    /// The sum of the weights, and of the weighted labels.
    weights: f64,
    positive: f64,
}

/// Whether a sample of the rows may decide the biases: the job sets none, and no custom stage changes the shares of the labels.
pub(crate) fn is_open(job: &Job) -> bool {
    let stages = [&job.pipeline.after_parse, &job.pipeline.after_batch];
    let has_biases = || job.model_spec().is_ok_and(|spec| !spec.output_biases().is_empty());
    let is_plain = stages.into_iter().all(Vec::is_empty);
    job.train.initial_bias.is_none() && is_plain && job.model.kind != ModelKind::Own && has_biases()
}

/// The biases that the labels decide: for each, if it is rare, its log-odds, else 0. `None` if all are 0. The second tower of ESMM predicts
/// the second label among the rows that have the first one.
pub(crate) fn decide(job: &Job, labels: &[LabelCounts]) -> Option<InitialBias> {
    let log_odds = match (job.model.kind, labels) {
        (ModelKind::Esmm, [click, conversion]) => vec![click.log_odds(1.0), conversion.among(click).log_odds(1.0)],
        (_, labels) => labels.iter().map(|label| label.log_odds(job.data.negatives)).collect(),
    };
    let bias = InitialBias(log_odds.into_iter().map(Option::unwrap_or_default).collect());
    (!bias.is_zero()).then_some(bias)
}

/// Logs what was decided.
pub(crate) fn log(bias: &InitialBias) {
    let InitialBias(biases) = bias;
    let what = if biases.len() == 1 { "bias of the model begins" } else { "biases of the labels begin" };
    let zero = InitialBias(vec![0.0; biases.len()]);
    tracing::info!("the {what} at {bias} (train.initial_bias = {zero} begins at 0)");
}

impl LabelCounts {
    /// Adds the label of rows with these weights; without weights, each row weighs 1. Rows without a value of the label (NaN) do not count.
    pub(crate) fn add(&mut self, labels: &[f32], weights: &[f32]) {
        for (row, &label) in labels.iter().enumerate().filter(|(_, label)| !label.is_nan()) {
            let weight = f64::from(weights.get(row).copied().unwrap_or(1.0));
            self.rows[usize::from(label >= 0.5)] += 1;
            self.weights += weight;
            self.positive += weight * f64::from(label);
        }
    }

    /// The share of the rows with a value whose label is at least one half; `None` if there are fewer than `enough` rows.
    pub(crate) fn share_of_positive_rows(&self, enough: u64) -> Option<f64> {
        let [negative, positive] = self.rows;
        (negative + positive >= enough).then(|| positive as f64 / (negative + positive) as f64)
    }

    /// The mean weight of the rows that have this label; `None` if no row has it.
    pub(crate) fn mean_weight(&self) -> Option<f64> {
        let rows: u64 = self.rows.iter().sum();
        (rows > 0).then(|| self.weights / rows as f64)
    }

    /// This label among the rows that have `other`, without which no row has this one. The rows with a value of this label may be others
    /// than those with a value of `other`.
    fn among(&self, other: &Self) -> Self {
        let rows = [other.rows[1].saturating_sub(self.rows[1]), self.rows[1]];
        let share = other.positive / other.weights;
        Self { rows, weights: self.weights * share, positive: self.positive }
    }

    /// The log-odds of a positive label, if one of its values is rare, and there are enough rows of both. `negatives`: the share of rows
    /// with the label 0 that are trained on.
    fn log_odds(self, negatives: f64) -> Option<f64> {
        let others = (self.weights - self.positive) * negatives;
        let share = self.positive / (self.positive + others);
        let is_rare = share <= RARE || share >= 1.0 - RARE;
        let is_known = self.rows.into_iter().all(|rows| rows >= ENOUGH) && self.positive > 0.0 && others > 0.0;
        // Rounded, because the logarithm may differ in the last bit between machines.
        (is_known && is_rare).then(|| ((self.positive / others).ln() * 1e4).round() / 1e4)
    }
}

impl Sum for LabelCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            rows: [sum.rows[0] + one.rows[0], sum.rows[1] + one.rows[1]],
            weights: sum.weights + one.weights,
            positive: sum.positive + one.positive,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_odds(positive: usize, negative: usize, negatives: f64) -> Option<f64> {
        let mut counts = LabelCounts::default();
        counts.add(&[vec![1.0; positive], vec![0.0; negative]].concat(), &[]);
        counts.log_odds(negatives)
    }

    #[test]
    fn rare_labels_have_log_odds_and_others_none() {
        assert_eq!(log_odds(100, 9900, 1.0), Some(-4.5951));
        assert_eq!(log_odds(9900, 100, 1.0), Some(4.5951));
        assert_eq!(log_odds(1000, 9000, 1.0), Some(-2.1972), "a tenth");
        assert_eq!(log_odds(1001, 8999, 1.0), None);
        assert_eq!(log_odds(100, 9900, 0.1), Some(-2.2925), "a tenth of the negative rows");
        assert_eq!(log_odds(100, 9900, 0.01), None);
        assert_eq!((log_odds(19, 9900, 1.0), log_odds(0, 9900, 1.0), log_odds(0, 0, 1.0)), (None, None, None));
    }

    #[test]
    fn weights_and_soft_labels_count_as_they_are() {
        let mut counts = LabelCounts::default();
        counts.add(&[0.5; 100], &[0.1; 100]);
        counts.add(&[0.0; 100], &[1.0; 100]);
        assert_eq!(counts.log_odds(1.0), Some(((5.0 / 105.0_f64).ln() * 1e4).round() / 1e4));
    }

    #[test]
    fn each_label_has_its_own_and_a_conversion_that_of_the_rows_with_a_click() {
        let bias = |kind: &str, labels: [(usize, usize, usize); 2]| {
            let job = Job::from_toml(&format!("model.kind = '{kind}'\ncolumns.label = ['click', 'buy']"), &[]).unwrap();
            let labels = labels.map(|(positive, negative, missing)| {
                let mut counts = LabelCounts::default();
                counts.add(&[vec![1.0; positive], vec![f32::NAN; missing], vec![0.0; negative]].concat(), &[]);
                counts
            });
            decide(&job, &labels).map(|InitialBias(biases)| biases)
        };
        let both = [(500, 9500, 0), (50, 9950, 0)];
        for kind in ["shared_bottom", "mmoe"] {
            assert_eq!(bias(kind, both), Some(vec![-2.9444, -5.2933]));
        }
        assert_eq!(bias("esmm", both), Some(vec![-2.9444, -2.1972]), "50 of 500");
        assert_eq!(bias("esmm", [(500, 9500, 0), (25, 4975, 5000)]), Some(vec![-2.9444, -2.1972]), "half are missing");
        assert_eq!(bias("esmm", [(500, 9500, 0), (490, 9510, 0)]), Some(vec![-2.9444, 0.0]), "10 clicks without");
        assert_eq!(bias("mmoe", [(5000, 5000, 0), (19, 9981, 0)]), None);
        assert_eq!(bias("esmm", [(0, 0, 10), (0, 0, 10)]), None);
    }

    #[test]
    fn a_job_may_leave_it_open_if_the_model_adds_biases_to_its_logits() {
        let open = |text: &str| is_open(&Job::from_toml(text, &[]).unwrap());
        for kind in ["lr", "fm", "wide_deep", "deep_fm", "ctr_dnn", "dcn_v2", "final_mlp"] {
            assert!(open(&format!("model.kind = '{kind}'")), "{kind}");
        }
        for kind in ["shared_bottom", "mmoe", "esmm"] {
            assert!(open(&format!("model.kind = '{kind}'\ncolumns.label = ['a', 'b']")), "{kind}");
        }
        assert!(!open("train.initial_bias = 0"));
        assert!(!open("pipeline.after_batch = ['mine']") && !open("model.kind = 'own'\nmodel.name = 'mine'"));
    }
}
