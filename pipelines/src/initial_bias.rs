//! The bias that a new model begins with where labels are rare. From 0, which stands for one half, the bias moves by about the learning
//! rate in each step, and until it arrives, other parameters learn what it lacks: `docs/quality.md` has the measurements. Karpathy, "A
//! Recipe for Training Neural Networks" (2019), advises the same.

use forebay_job::{Job, ModelKind};

/// The share of positive labels, or of negative ones, up to which the bias is set.
const RARE: f64 = 0.1;

/// Fewer rows with one of the labels do not tell their share.
const ENOUGH: u64 = 20;

/// The labels of rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LabelCounts {
    /// Rows whose label is less than one half, and others.
    rows: [u64; 2],
    /// The sum of the weights, and of the weighted labels.
    weights: f64,
    positive: f64,
}

/// Whether the first rows may decide the bias: the job sets none, has one label, and no custom stage changes the share of its values.
pub(crate) fn is_open(job: &Job) -> bool {
    let stages = [&job.pipeline.after_parse, &job.pipeline.after_batch];
    let has_bias = || job.model_spec().is_ok_and(|spec| spec.output_bias().is_some());
    let is_plain = job.columns.label.len() == 1 && stages.into_iter().all(Vec::is_empty);
    job.train.initial_bias.is_none() && is_plain && job.model.kind != ModelKind::Own && has_bias()
}

impl LabelCounts {
    /// Adds the labels of rows with these weights; without weights, each row weighs 1.
    pub(crate) fn add(&mut self, labels: &[f32], weights: &[f32]) {
        for (row, &label) in labels.iter().enumerate() {
            let weight = f64::from(weights.get(row).copied().unwrap_or(1.0));
            self.rows[usize::from(label >= 0.5)] += 1;
            self.weights += weight;
            self.positive += weight * f64::from(label);
        }
    }

    /// The log-odds of a positive label, if one of the labels is rare, and there are enough rows of both. `negatives`: the share of rows
    /// with the label 0 that are trained on.
    pub(crate) fn log_odds(self, negatives: f64) -> Option<f64> {
        let others = (self.weights - self.positive) * negatives;
        let share = self.positive / (self.positive + others);
        let is_rare = share <= RARE || share >= 1.0 - RARE;
        let is_known = self.rows.into_iter().all(|rows| rows >= ENOUGH) && self.positive > 0.0 && others > 0.0;
        // Rounded, because the logarithm may differ in the last bit between machines.
        (is_known && is_rare).then(|| ((self.positive / others).ln() * 1e4).round() / 1e4)
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
    fn a_job_may_leave_it_open_if_the_model_adds_a_bias_to_one_logit() {
        let open = |text: &str| is_open(&Job::from_toml(text, &[]).unwrap());
        for kind in ["lr", "fm", "wide_deep", "deep_fm", "ctr_dnn", "dcn_v2", "final_mlp"] {
            assert!(open(&format!("model.kind = '{kind}'")), "{kind}");
        }
        assert!(!open("train.initial_bias = 0"));
        assert!(!open("pipeline.after_batch = ['mine']") && !open("model.kind = 'own'\nmodel.name = 'mine'"));
        assert!(!open("model.kind = 'mmoe'\ncolumns.label = ['a', 'b']"));
    }
}
