//! The rules of evaluations while a model is trained: when one is due, which is the best, when the learning rates are reduced, and when
//! the training stops. They depend on the earlier evaluations alone, so that a run that continues from a checkpoint decides as if it had
//! not been stopped.

use forebay_actors::Fault;
use forebay_base::LrReductions;
use forebay_job::{EvaluateEvery, EvaluationMetric, EvaluationOptions, ReduceLrOnPlateau};

use crate::metrics::evaluation_points::EvaluationPoint;

/// Whether an evaluation is due after `rows` rows and `epochs` whole epochs. `last`: the same of the last one, which was made or missed.
pub(super) fn is_due(every: EvaluateEvery, last: Option<(u64, u32)>, rows: u64, epochs: u32) -> bool {
    let (rows_then, epochs_then) = last.unwrap_or_default();
    rows > rows_then
        && match every {
            EvaluateEvery::Epochs(every) => epochs / every > epochs_then / every,
            EvaluateEvery::Rows(every) => rows / every > rows_then / every,
        }
}

/// Fails if the first evaluation has no value of the metric: then no later one is likely to have one.
///
/// # Errors
/// A user fault that names the metric.
pub(crate) fn check_first(options: &EvaluationOptions, point: &EvaluationPoint) -> Result<(), Fault> {
    match point.value(options.metric) {
        Some(_) => Ok(()),
        None => Err(Fault::user(format!(
            "evaluation.metric is the {}, which has no value on the rows of the evaluation: they need {}",
            options.metric,
            match options.metric {
                EvaluationMetric::Recall | EvaluationMetric::Mrr => "a row with label 1 and an item",
                _ => "both labels, 0 and 1",
            }
        ))),
    }
}

/// The index of the best of these evaluations; of equal ones, the first. `None`: none has a value of the metric.
pub(crate) fn best(options: &EvaluationOptions, points: &[EvaluationPoint]) -> Option<usize> {
    best_of(options, points, |_| true)
}

/// As [`best`], of the evaluations whose index `counts`.
pub(super) fn best_of(
    options: &EvaluationOptions,
    points: &[EvaluationPoint],
    counts: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (at, point) in points.iter().enumerate().filter(|(at, _)| counts(*at)) {
        let Some(value) = point.value(options.metric) else { continue };
        if best.is_none_or(|(_, than)| gain(options.metric, value, than) > 0.0) {
            best = Some((at, value));
        }
    }
    best.map(|(at, _)| at)
}

/// Whether the training stops after these evaluations: the last `patience` ones brought no improvement.
pub(crate) fn stops_after(options: &EvaluationOptions, points: &[EvaluationPoint]) -> bool {
    let Some(patience) = options.patience else { return false };
    let without = improvements(options, points).fold(0, |without, improves| if improves { 0 } else { without + 1 });
    without >= patience
}

/// Whether the learning rates are reduced after the last of these evaluations: as many in a row as the job says brought no improvement,
/// since the last one that did or the last reduction. Depends only on `options` and the metrics.
pub(super) fn reduces_lr_after<'a>(
    options: &'a EvaluationOptions,
    points: impl IntoIterator<Item = &'a EvaluationPoint>,
) -> bool {
    let Some(ReduceLrOnPlateau { patience, .. }) = options.reduce_lr_on_plateau else { return false };
    let mut without = 0;
    for improves in improvements(options, points) {
        without = if improves { 0 } else { without % patience.max(1) + 1 };
    }
    without == patience
}

/// The reductions that were made after these evaluations; `None` if the job reduces no learning rates.
pub(super) fn lr_reductions(options: &EvaluationOptions, points: &[EvaluationPoint]) -> Option<LrReductions> {
    let ReduceLrOnPlateau { factor, min_lr, .. } = options.reduce_lr_on_plateau?;
    let after = points.iter().filter(|point| point.reduced_lr).map(|point| point.steps).collect();
    Some(LrReductions { factor, min_lr, after })
}

/// Whether each of these evaluations, in order, is better than the last improvement by at least `min_delta`.
fn improvements<'a>(
    options: &'a EvaluationOptions,
    points: impl IntoIterator<Item = &'a EvaluationPoint>,
) -> impl Iterator<Item = bool> {
    let mut improved_to: Option<f64> = None;
    points.into_iter().map(move |point| {
        let improves = |value: &f64| {
            improved_to.is_none_or(|than| {
                let gain = gain(options.metric, *value, than);
                gain > 0.0 && gain >= options.min_delta
            })
        };
        let improved = point.value(options.metric).filter(improves);
        improved_to = improved.or(improved_to);
        improved.is_some()
    })
}

/// By how much `value` is better than `than`.
fn gain(metric: EvaluationMetric, value: f64, than: f64) -> f64 {
    match metric {
        EvaluationMetric::Auc | EvaluationMetric::Gauc | EvaluationMetric::Recall | EvaluationMetric::Mrr => {
            value - than
        }
        EvaluationMetric::Logloss => than - value,
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::LearningRate;
    use proptest::prelude::*;

    use super::*;

    fn point(rows: u64, epochs: u32, value: f64) -> EvaluationPoint {
        let (auc, logloss, gauc) = (Some(value), Some(value), None);
        EvaluationPoint { rows, steps: 0, epochs, auc, logloss, gauc, recall: None, mrr: None, reduced_lr: false }
    }

    /// The definition, without speed: goes through the evaluations, and looks back from each one.
    fn slow(values: &[f64], patience: usize, min_delta: f64, lower_is_better: bool) -> Option<usize> {
        let better = |a: f64, b: f64| if lower_is_better { b - a } else { a - b };
        let mut improvements = vec![0];
        for at in 1..values.len() {
            let gain = better(values[at], values[*improvements.last().unwrap()]);
            if gain > 0.0 && gain >= min_delta {
                improvements.push(at);
            } else if at - improvements.last().unwrap() == patience {
                return Some(at);
            }
        }
        None
    }

    /// PyTorch's `ReduceLROnPlateau` (`threshold_mode = "abs"`, `eps = 0`): the rate after each of the values. Its patience is one less,
    /// and a gain of exactly `min_delta` counts here.
    fn rates(values: &[f64], lower_is_better: bool, min_delta: f64, patience: u32, least: f64) -> Vec<f64> {
        let (mut lr, mut best, mut bad) = (1.0, values[0], 0);
        let rate_after = |&value: &f64| {
            let gain = if lower_is_better { best - value } else { value - best };
            (best, bad) = if gain > 0.0 && gain >= min_delta { (value, 0) } else { (best, bad + 1) };
            if bad > patience - 1 {
                (lr, bad) = (f64::max(lr * 0.5, least), 0);
            }
            lr
        };
        let rest: Vec<f64> = values[1..].iter().map(rate_after).collect();
        [&[1.0][..], &rest].concat()
    }

    proptest! {
        #[test]
        fn rates_are_those_of_pytorch(
            values in prop::collection::vec(0u8..12, 1..40), patience in 1u32..4, min_delta in 0u8..3, lower: bool, least in 0u8..3,
        ) {
            let metric = if lower { EvaluationMetric::Logloss } else { EvaluationMetric::Auc };
            let (min_delta, least) = (f64::from(min_delta), f64::from(least) / 10.0);
            let reduce = ReduceLrOnPlateau { factor: 0.5, patience, min_lr: least };
            let reduce_lr_on_plateau = Some(reduce);
            let options = EvaluationOptions { metric, min_delta, reduce_lr_on_plateau, ..Default::default() };
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let mut points: Vec<EvaluationPoint> = Vec::new();
            for (at, &value) in values.iter().enumerate() {
                let point = EvaluationPoint { steps: 10 * at as u64, ..point(0, 0, value) };
                let reduced_lr = reduces_lr_after(&options, points.iter().chain([&point]));
                points.push(EvaluationPoint { reduced_lr, ..point });
            }
            let reductions = lr_reductions(&options, &points).unwrap();
            let rate = |step| LearningRate { reduction: reductions.at(step), ..1.0.into() }.at(step);
            let expected = rates(&values, lower, min_delta, patience, least);
            // Each reduction holds from the step after its evaluation on.
            for (at, expected) in expected.iter().enumerate() {
                prop_assert_eq!([rate(10 * at as u64 + 1), rate(10 * at as u64 + 10)], [*expected; 2]);
            }
            prop_assert_eq!(reductions.newest(), reductions.at(10 * values.len() as u64));
            let without = EvaluationOptions { reduce_lr_on_plateau: None, ..options.clone() };
            prop_assert!(!reduces_lr_after(&without, &points) && lr_reductions(&without, &points).is_none());
        }

        #[test]
        fn the_training_stops_where_the_definition_says(
            values in prop::collection::vec(0u8..12, 1..40), patience in 1usize..5, min_delta in 0u8..3, lower: bool,
        ) {
            let metric = if lower { EvaluationMetric::Logloss } else { EvaluationMetric::Auc };
            let patient = Some(patience as u32);
            let options =
                EvaluationOptions { metric, patience: patient, min_delta: f64::from(min_delta), ..Default::default() };
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let points: Vec<_> = values.iter().map(|&value| point(0, 0, value)).collect();
            let stop = (1..=points.len()).find(|&n| stops_after(&options, &points[..n])).map(|n| n - 1);
            prop_assert_eq!(stop, slow(&values, patience, f64::from(min_delta), lower));
            let ends = values.iter().copied();
            let most = if lower { ends.fold(f64::MAX, f64::min) } else { ends.fold(f64::MIN, f64::max) };
            prop_assert_eq!(best(&options, &points), values.iter().position(|&value| value == most));
        }

        /// Batches of any size, and stops between them from which the run goes on.
        #[test]
        fn an_evaluation_is_due_once_in_each_step_of_rows(every in 1u64..30, batches in prop::collection::vec(1u64..50, 1..60)) {
            let (mut rows, mut last, mut points) = (0, None, Vec::new());
            for batch in batches {
                // Asked twice, as a run that goes on asks again.
                let due = is_due(EvaluateEvery::Rows(every), last, rows, 0);
                if due {
                    last = Some((rows, 0));
                    points.push(rows);
                }
                prop_assert!(!is_due(EvaluateEvery::Rows(every), last, rows, 0));
                rows += batch;
            }
            prop_assert!(points.windows(2).all(|pair| pair[0] / every < pair[1] / every));
        }
    }

    #[test]
    fn an_evaluation_is_due_after_whole_epochs() {
        let due = |every, last, rows, epochs| is_due(EvaluateEvery::Epochs(every), last, rows, epochs);
        assert!(!due(1, None, 0, 0) && !due(1, None, 50, 0) && due(1, None, 100, 1));
        assert!(!due(1, Some((100, 1)), 150, 1) && due(1, Some((100, 1)), 200, 2));
        assert!(!due(2, None, 100, 1) && due(2, None, 200, 2) && due(2, Some((200, 2)), 500, 5));
    }

    /// A bug: all evaluations before the second resume were left out, also the best one whose model was kept after the first.
    #[test]
    fn the_best_of_some_evaluations_is_one_of_these() {
        let options = EvaluationOptions::default();
        let points = [0.7, 0.9, 0.6, 0.8, 0.8].map(|value| point(0, 0, value));
        let of = |counts: &[usize]| best_of(&options, &points, |at| counts.contains(&at));
        assert_eq!([of(&[0, 1, 2]), of(&[4, 3, 2]), of(&[2])], [Some(1), Some(3), Some(2)]);
        assert_eq!((of(&[]), best(&options, &points)), (None, Some(1)));
    }

    #[test]
    fn an_evaluation_without_a_value_is_no_improvement() {
        let options = EvaluationOptions { patience: Some(2), ..Default::default() };
        let none = EvaluationPoint { auc: None, ..point(0, 0, 0.5) };
        let nan = point(0, 0, f64::NAN);
        assert_eq!(best(&options, &[none, nan]), None);
        assert!(stops_after(&options, &[none, nan]) && !stops_after(&options, &[none, point(0, 0, 0.5), nan]));
        assert_eq!(best(&options, &[none, point(0, 0, 0.5), nan]), Some(1));
        let reduce_lr_on_plateau = Some(ReduceLrOnPlateau { patience: 2, ..Default::default() });
        let options = EvaluationOptions { reduce_lr_on_plateau, ..options };
        assert!(
            reduces_lr_after(&options, &[none, nan]) && !reduces_lr_after(&options, &[none, point(0, 0, 0.5), nan])
        );
    }
}
