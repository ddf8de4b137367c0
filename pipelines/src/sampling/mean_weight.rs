//! A warning about weights of rows that are far from 1 on average: they multiply the loss, and so the gradients of every step.

use forebay_job::Job;

use super::initial_bias::LabelCounts;

/// A mean weight between these changes steps by less than a learning rate is usually off.
const USUAL: std::ops::RangeInclusive<f64> = 0.1..=10.0;

/// Warns if the mean weight of the rows of a sample is far from 1. `labels`: the labels of these rows.
pub(crate) fn check(job: &Job, labels: &[LabelCounts]) {
    if let Some(text) = said(job, labels) {
        tracing::warn!("{text}");
    }
}

fn said(job: &Job, labels: &[LabelCounts]) -> Option<String> {
    let column = job.columns.weight.as_ref()?;
    // Another warning tells of weights that are all 0.
    let mean = labels.first()?.mean_weight().filter(|mean| *mean > 0.0 && !USUAL.contains(mean))?;
    let (shown, steps) = (shown(mean), if mean > 1.0 { "large" } else { "small" });
    Some(format!(
        "columns.weight: the weights of a sample of the rows are {shown} on average (column `{column}`). They multiply the gradients, so \
         steps are too {steps}, and learning rates have another meaning: divide the column by its mean"
    ))
}

fn shown(mean: f64) -> String {
    if (1e-3..1e6).contains(&mean) { format!("{mean:.3}") } else { format!("{mean:.2e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weights_far_from_1_on_average_are_told() {
        let warns = |weights: &[f32], settings: &[&str]| {
            let job = Job::with_settings("", settings).unwrap();
            let mut counts = LabelCounts::default();
            counts.add(&vec![1.0; weights.len().max(3)], weights);
            said(&job, &[counts])
        };
        let weight = ["columns.weight=w"];
        let text = warns(&[10.0, 20.0, 300.0], &weight).unwrap();
        assert!(text.contains("are 110.000 on average (column `w`)") && text.contains("steps are too large"), "{text}");
        let text = warns(&[1e-5, 3e-5, 2e-5], &weight).unwrap();
        assert!(text.contains("are 2.00e-5 on average") && text.contains("steps are too small"), "{text}");
        for usual in [[0.1, 0.0, 0.5], [1.0, 1.0, 1.0], [30.0, 0.0, 0.0]] {
            assert_eq!(warns(&usual, &weight), None, "{usual:?}");
        }
        assert_eq!((warns(&[0.0; 3], &weight), warns(&[], &[])), (None, None));
    }
}
