//! The rule for the transform and the scale of the dense features for which the job sets none.
//!
//! Inputs far from 0, large, or tiny make a model learn little, and inputs of thousands let its loss explode: `docs/quality.md` has the
//! measurements. So such features get a scale by default. The manifests of the model and of checkpoints store the scale, and a run that
//! continues from them keeps it.

use forebay_actors::Fault;
use forebay_base::listed;
use forebay_job::{
    Columns, DenseColumn, DenseStatistics, FeatureScale, FeatureScales, Job, Scale, Transform, look_like_counts,
};

use super::far_values::{self, FarValues};
use super::statistics::Moments;
use super::value_sample::{ValueSample, typical};
use crate::columns::trained_types::TrainedTypes;

/// Numbers need a scale if their root mean square is at least this.
const LARGE: f64 = 2.0;

/// They also need one if one of them has at least this absolute value.
const LARGEST: f64 = 30.0;

/// Numbers also need a scale if they vary, but by less than this standard deviation: their weights would have to be large.
const SMALL: f64 = 0.1;

/// Logarithms need a scale if their mean is at least this, and at least as many standard deviations.
const FAR: f64 = 2.0;

/// In a model without layers, logarithms need a scale if their mean is at least this many standard deviations. The logarithms of counts
/// with many zeros have less, and are better without a scale.
const FAR_WITHOUT_LAYERS: f64 = 1.5;

/// The limit of scaled values, in standard deviations from the mean: values of later rows may be far away.
const LIMIT: f64 = 10.0;

/// Few values decide a standard deviation if it is this many times that of the others, or that of a normal distribution with the same
/// quartiles.
const DECIDED_BY_FEW: f64 = 2.0;

/// The distance of the quartiles of a normal distribution, in standard deviations.
const QUARTILES_OF_NORMAL: f64 = 1.349;

/// The values of a feature that tell its quartiles, and whether some are far from all others.
const SAMPLE: usize = 8192;

/// The moments of the values of a feature and of their logarithms, and a sample of the values.
#[derive(Clone)]
pub(crate) struct FeatureValues {
    values: Moments,
    logs: Moments,
    sample: ValueSample,
}

impl Default for FeatureValues {
    fn default() -> Self {
        Self { values: Moments::default(), logs: Moments::default(), sample: ValueSample::new(SAMPLE) }
    }
}

impl FeatureValues {
    /// Adds the values that are there in this many rows.
    pub(crate) fn add(&mut self, values: &[f64], rows: usize) {
        let missing = (rows - values.len()) as u64;
        self.values.add(values, missing);
        let logs: Vec<f64> = values.iter().copied().map(log1p).collect();
        self.logs.add(&logs, missing);
        self.sample.add(values);
    }

    /// Whether no row has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.values == 0
    }

    /// The moments without the values that are far from all others, and the share of these values; `None` if they do not decide the scale.
    fn without_far(&self, sorted: &[f64], are_logs: bool) -> Option<(Self, f64)> {
        let (count, typical) = (sorted.len(), typical(sorted, are_logs));
        let mut inner = Self::default();
        inner.add(&typical, typical.len());
        let (all, few) = (self.values.deviation(), inner.values.deviation());
        (few > 0.0 && all > DECIDED_BY_FEW * few).then(|| (inner, 1.0 - typical.len() as f64 / count as f64))
    }
}

/// The scales of [open features](Columns::open_features) by their entries in `columns.statistics`, and the features without an entry.
pub(crate) fn by_statistics<'a>(job: &Job, open: Vec<&'a DenseColumn>) -> (FeatureScales, Vec<&'a DenseColumn>) {
    let (known, unknown): (Vec<_>, Vec<_>) =
        open.into_iter().partition(|feature| described(&job.columns, feature).is_some());
    let linear = job.model.kind.dense_is_linear();
    let of_known = |feature: &DenseColumn| {
        let scale = scale_for(feature, described(&job.columns, feature)?, None, linear)?;
        Some((feature.column.clone(), scale))
    };
    (known.into_iter().filter_map(of_known).collect(), unknown)
}

/// The [open features](Columns::open_features) of `later` that had no two different values in the sample of an earlier run, which had the
/// columns `earlier`. Their inputs were 0 in that run, so no weight depends on their scale.
pub(crate) fn without_difference<'a>(earlier: &Columns, later: &'a Columns) -> Vec<&'a DenseColumn> {
    let scales = earlier.scales_for(later);
    let saw_no_two_values = |feature: &&DenseColumn| {
        let scale = scales.get(&feature.column).filter(|scale| scale.limit == Some(LIMIT));
        let statistics = scale.and_then(|scale| scale.statistics);
        statistics.is_some_and(|found| found.min == found.max) && feature.fill.is_none()
    };
    later.open_features().into_iter().filter(saw_no_two_values).collect()
}

/// The entry of a feature in `columns.statistics`, if it describes the feature.
fn described(columns: &Columns, feature: &DenseColumn) -> Option<DenseStatistics> {
    let statistics = columns.statistics_of(&feature.column).copied()?;
    let is_known = match feature.transform {
        Transform::Auto => statistics.transform.may_be_auto(),
        of_time => statistics.transform == of_time,
    };
    (is_known && statistics.clip == feature.clip).then_some(statistics)
}

/// The scales of features with these values, in columns of these types.
///
/// # Errors
/// The fault of [`Moments::of`], which features with values do not have.
pub(crate) fn by_values(
    job: &Job,
    features: &[&DenseColumn],
    values: Vec<FeatureValues>,
    types: &TrainedTypes,
) -> Result<FeatureScales, Fault> {
    let linear = job.model.kind.dense_is_linear();
    let (mut scales, mut far) = (FeatureScales::default(), Vec::new());
    for (feature, all) in features.iter().zip(values) {
        let with = |transform| DenseColumn { transform, ..(*feature).clone() };
        let transform = types.transform_of(feature);
        if all.is_empty() {
            scales.insert(feature.column.clone(), of_no_values(feature, transform));
            continue;
        }
        let described = |values: &FeatureValues| {
            Ok::<_, Fault>((values.values.of(&with(transform))?, values.logs.of(&with(Transform::Log1p))?))
        };
        let (found, logs) = described(&all)?;
        // Logarithms suit counts, also if some are far from all others that were sampled.
        let looks_like_counts = transform == Transform::None && look_like_counts(found.min, found.mean, found.std);
        let sorted = all.sample.clone().sorted();
        let inner = all.without_far(&sorted, transform == Transform::Log1p);
        let inner = inner.filter(|(_, share)| !looks_like_counts || *share > 0.0);
        let mut scale = match inner {
            None => scale_for(feature, found, Some(logs), linear),
            Some((inner, share)) => {
                let (typical, logs) = described(&inner)?;
                let counted =
                    |of: DenseStatistics| DenseStatistics { values: found.values, missing: found.missing, ..of };
                let (typical, logs) = (counted(typical), counted(logs));
                far.push(FarValues::new(feature, &typical, &found, share));
                let scale = scale_for(feature, typical, Some(logs), linear);
                Some(scale.unwrap_or_else(|| z_score(feature, typical)))
            }
        };
        if let Some(statistics) = scale.as_mut().and_then(|scale| scale.statistics.as_mut()) {
            let takes_logs = statistics.transform == Transform::Log1p && transform != Transform::Log1p;
            use_quartiles(statistics, &sorted, takes_logs);
        }
        if let Some(scale) = scale {
            scales.insert(feature.column.clone(), scale);
        }
    }
    far_values::warn(&far);
    Ok(scales)
}

/// If a long tail decides the standard deviation, the model hardly sees the difference of other values: the quartiles decide instead.
/// `sorted`: a sample of the values, ascending. `takes_logs`: the statistics describe the logarithms of the values.
fn use_quartiles(statistics: &mut DenseStatistics, sorted: &[f64], takes_logs: bool) {
    let quartile = |quarter: usize| {
        let value = sorted.get(quarter * sorted.len() / 4).copied().unwrap_or_default();
        if takes_logs { log1p(value) } else { value }
    };
    let std = (quartile(3) - quartile(1)) / QUARTILES_OF_NORMAL;
    if std > 0.0 && statistics.std > DECIDED_BY_FEW * std {
        (statistics.mean, statistics.std) = (quartile(2), std);
    }
}

/// The logarithm of [`Transform::Log1p`].
fn log1p(value: f64) -> f64 {
    value.abs().ln_1p().copysign(value)
}

/// The scale of a feature without values: later rows may have some, and the model knows nothing about them.
fn of_no_values(feature: &DenseColumn, transform: Transform) -> FeatureScale {
    let clip = feature.clip;
    z_score(feature, DenseStatistics { transform, clip, ..DenseStatistics::default() })
}

/// The scale of a feature with these values; `None` if it needs none. `logs`: the statistics of the logarithms of numbers. A model whose
/// dense parameters are `linear` learns one weight for each input, so it gets a scale for all numbers but 0 and 1. Equal values get a scale
/// for its limit: later rows may have others.
fn scale_for(
    feature: &DenseColumn,
    found: DenseStatistics,
    logs: Option<DenseStatistics>,
    linear: bool,
) -> Option<FeatureScale> {
    let DenseStatistics { mean, std, min, max, transform, .. } = found;
    let largest = min.abs().max(max.abs());
    let is_large = mean.hypot(std) >= LARGE || largest >= LARGEST;
    let is_small = std > 0.0 && (linear || std < SMALL) && !is_0_or_1(&found);
    let log1p = FeatureScale { transform: Transform::Log1p, ..FeatureScale::default() };
    let z_score = |found| z_score(feature, found);
    match transform {
        Transform::None if is_large && look_like_counts(min, mean, std) => {
            let far = logs.filter(|logs| is_far(logs, linear));
            Some(far.map_or(log1p, |logs| FeatureScale { transform: Transform::Log1p, ..z_score(logs) }))
        }
        Transform::Log1p if is_far(&found, linear) || std == 0.0 => Some(z_score(found)),
        Transform::Log1p => None,
        Transform::None
        | Transform::Auto
        | Transform::Log
        | Transform::Hour
        | Transform::Weekday
        | Transform::AgeDays
        | Transform::AgeHours => (is_large || is_small || std == 0.0).then(|| z_score(found)),
    }
}

/// If all values of the sample are equal, later rows may still have others, which a deviation of 0 would ignore.
fn z_score(feature: &DenseColumn, found: DenseStatistics) -> FeatureScale {
    let std = if found.std > 0.0 { found.std } else { (found.mean.abs() / 10.0).max(1.0) };
    let found = DenseStatistics { std, ..found };
    let (scale, limit, statistics) = (Some(Scale::ZScore), Some(LIMIT), Some(found));
    FeatureScale { transform: feature.transform, scale, limit, statistics }
}

/// Whether logarithms are far from 0 for their spread. In a model without layers the logarithms of 0 and 1 are not.
fn is_far(logs: &DenseStatistics, linear: bool) -> bool {
    let DenseStatistics { mean, std, min, max, .. } = *logs;
    let is_0_or_1 = min >= 0.0 && max < 1.0;
    match linear {
        true => !is_0_or_1 && mean.abs() >= FAR_WITHOUT_LAYERS * std,
        false => mean.abs() >= FAR.max(FAR * std),
    }
}

/// Whether all values are 0 or 1: no others between these have so large a variance for their mean.
fn is_0_or_1(found: &DenseStatistics) -> bool {
    let DenseStatistics { mean, std, min, max, .. } = *found;
    min >= 0.0 && max <= 1.0 && (mean * (1.0 - mean) - std * std).abs() < 1e-9
}

pub(crate) fn log(scales: &FeatureScales) {
    /// A job may have thousands of columns.
    const SHOWN: usize = 10;
    let kinds = [
        (false, true, "scale = \"z_score\""),
        (true, false, "transform = \"log1p\""),
        (true, true, "transform = \"log1p\" with scale = \"z_score\""),
    ];
    let decided: Vec<String> = kinds
        .into_iter()
        .filter_map(|(logs, scaled, what)| {
            let is_of_kind =
                |scale: &FeatureScale| (scale.transform == Transform::Log1p, scale.scale.is_some()) == (logs, scaled);
            let of_kind = scales.iter().filter(|(_, scale)| is_of_kind(scale));
            let columns = listed(of_kind.map(|(column, _)| format!("`{column}`")), SHOWN);
            (!columns.is_empty()).then(|| format!("{what} for {columns}"))
        })
        .collect();
    if !decided.is_empty() {
        tracing::info!(
            "by a sample of the rows, dense features get {} (transform = \"none\" leaves a feature as it is)",
            decided.join(", and ")
        );
    }
}

#[cfg(test)]
mod tests {
    use forebay_batches::ColumnType;

    use super::*;

    fn values(of: impl Iterator<Item = f64>) -> DenseStatistics {
        let (values, mut moments) = (of.collect::<Vec<_>>(), Moments::default());
        moments.add(&values, 0);
        moments.of(&DenseColumn { transform: Transform::None, ..DenseColumn::from("x".to_owned()) }).unwrap()
    }

    fn logs(of: impl Iterator<Item = f64>) -> DenseStatistics {
        DenseStatistics { transform: Transform::Log1p, ..values(of.map(f64::ln_1p)) }
    }

    fn of(found: DenseStatistics, logs: Option<DenseStatistics>, linear: bool) -> Option<FeatureScale> {
        scale_for(&DenseColumn::from("x".to_owned()), found, logs, linear)
    }

    #[test]
    fn large_numbers_are_scaled_counts_get_logarithms_and_small_numbers_stay() {
        let hundred = || (0..100).map(f64::from);
        let few_large = || hundred().map(|i| if i < 95.0 { 0.0 } else { 40.0 * i });
        for (what, found, decided) in [
            ("a share", values(hundred().map(|i| i / 100.0)), None),
            ("click rates", values(hundred().map(|i| i / 1e4)), Some((Transform::Auto, true))),
            ("always the same share", values(hundred().map(|_| 0.01)), Some((Transform::Auto, true))),
            ("always 0", values(hundred().map(|_| 0.0)), Some((Transform::Auto, true))),
            ("scaled before", values(hundred().map(|i| (i - 49.5) / 28.9)), None),
            ("0 and 1", values(hundred().map(|i| f64::from(u8::from(i < 99.0)))), None),
            ("ages", values(hundred()), Some((Transform::Auto, true))),
            ("balances", values(hundred().map(|i| (i - 20.0) * 50.0)), Some((Transform::Auto, true))),
            (
                "one large value",
                values(hundred().map(|i| if i == 0.0 { -100.0 } else { 0.0 })),
                Some((Transform::Auto, true)),
            ),
            ("a year", values(hundred().map(|_| 2026.0)), Some((Transform::Auto, true))),
            ("counts", values(few_large()), Some((Transform::Log1p, false))),
            ("logarithms of counts", logs(few_large()), None),
            ("logarithms of small numbers", logs(hundred().map(|i| i % 5.0)), None),
            ("logarithms of years", logs(hundred().map(|i| 1990.0 + i)), Some((Transform::Auto, true))),
        ] {
            let scale = of(found, None, false).map(|scale| (scale.transform, scale.scale == Some(Scale::ZScore)));
            assert_eq!(scale, decided, "{what}");
        }
        let shares = values(hundred().map(|i| i / 1e4));
        assert_eq!(
            of(shares, None, true).unwrap().scale,
            Some(Scale::ZScore),
            "without layers, all numbers are scaled"
        );
        let flags = [1.0, 50.0, 99.0].map(|ones| values(hundred().map(|i| f64::from(u8::from(i < ones)))));
        assert!(flags.into_iter().all(|flags| of(flags, None, true).is_none()));
        assert_eq!(of(logs(few_large()), None, true), None);
        let small = || logs(hundred().map(|i| i % 6.0));
        assert_eq!([false, true].map(|linear| of(small(), None, linear).is_some()), [false, true]);
        assert_eq!(of(logs(hundred().map(|i| f64::from(u8::from(i < 90.0)))), None, true), None, "0 and 1");
        let incomes = || hundred().map(|i| if i < 95.0 { 30_000.0 } else { 1e6 * i });
        let scale = of(values(incomes()), Some(logs(incomes())), false).unwrap();
        assert_eq!(
            (scale.transform, scale.scale),
            (Transform::Log1p, Some(Scale::ZScore)),
            "a few large, and none near 0"
        );
        assert_eq!(scale.statistics.unwrap().transform, Transform::Log1p);
        let scale = of(values(few_large()), Some(logs(few_large())), false).unwrap();
        assert_eq!((scale.transform, scale.scale), (Transform::Log1p, None));
    }

    fn decided(of: impl Iterator<Item = f64>) -> FeatureScale {
        let (job, feature, mut values) = (Job::default(), DenseColumn::from("x".to_owned()), FeatureValues::default());
        let numbers = TrainedTypes([("x".to_owned(), ColumnType::Number)].into());
        of.collect::<Vec<_>>().chunks(1000).for_each(|chunk| values.add(chunk, chunk.len()));
        by_values(&job, &[&feature], vec![values], &numbers).unwrap()["x"]
    }

    /// A bug: the model saw no difference between the other values.
    #[test]
    fn a_few_far_values_do_not_decide_a_scale() {
        let hundred = |i: u32| f64::from(i % 100);
        for (far, every) in [(-999.0, 5), (-1e9, 10_000), (1e9, 100)] {
            let scale = decided((0..60_000).map(|i| if i % every == 1 { far } else { hundred(i) }));
            let DenseStatistics { mean, std, values, .. } = scale.statistics.unwrap();
            assert!((mean - 49.5).abs() < 1.0 && (std - 28.9).abs() < 1.0, "{far}: {mean} {std}");
            assert_eq!((scale.scale, scale.limit, values), (Some(Scale::ZScore), Some(LIMIT), Some(60_000)));
        }
        // Without a scale, these few would still be inputs.
        let scale = decided((0..6000).map(|i| if i % 100 == 0 { -1e6 } else { hundred(i) / 100.0 }));
        assert_eq!((scale.scale, scale.limit), (Some(Scale::ZScore), Some(LIMIT)));
        let scale = decided((0..6000).map(|i| if i % 1000 == 0 { 1e7 } else { f64::from(i % 1000 / 999 * 500) }));
        assert_eq!((scale.transform, scale.scale), (Transform::Log1p, None), "counts");
    }

    #[test]
    fn a_long_tail_does_not_decide_a_scale() {
        let tail = |i: u32| (f64::from(i % 1000) + 0.5) / 1000.0;
        let scale = decided((0..6000).map(|i| 1e-3 * tail(i).powf(-0.9) * if i % 2 == 0 { 1.0 } else { -1.0 }));
        let DenseStatistics { mean, std, .. } = scale.statistics.unwrap();
        assert!(mean.abs() < 1.1e-3 && (1e-3..4e-3).contains(&std), "{mean} {std}");
    }

    #[test]
    fn a_feature_without_values_gets_a_limit() {
        let scale = decided(std::iter::empty());
        let statistics = scale.statistics.unwrap();
        assert_eq!(
            (scale.scale, scale.limit, statistics.mean, statistics.std),
            (Some(Scale::ZScore), Some(10.0), 0.0, 1.0)
        );
    }

    /// A bug: such a feature was 0 in all rows, also where it had other values, and in all later runs.
    #[test]
    fn a_feature_with_one_value_has_a_deviation_for_later_ones() {
        for (value, std) in [(15.0, 1.5), (2.0, 1.0), (-2000.0, 200.0)] {
            let statistics = of(values([value; 3].into_iter()), None, false).unwrap().statistics.unwrap();
            assert_eq!((statistics.mean, statistics.std), (value, std));
        }
    }

    #[test]
    fn times_keep_their_transform() {
        let ages = |days: f64| DenseStatistics {
            transform: Transform::AgeDays,
            ..values((0..100).map(|i| days + f64::from(i)))
        };
        let feature = DenseColumn { transform: Transform::AgeDays, ..DenseColumn::from("x".to_owned()) };
        let scale = scale_for(&feature, ages(1000.0), None, false).unwrap();
        assert_eq!((scale.transform, scale.scale, scale.limit), (Transform::AgeDays, Some(Scale::ZScore), Some(LIMIT)));
        let few = DenseStatistics { transform: Transform::AgeDays, ..values([0.0, 0.5, 1.0].into_iter()) };
        assert_eq!(scale_for(&feature, few, None, false), None);
    }
}
