//! Decides the transform and the scale of the dense features for which the job sets none, by the first rows at `data.train`.
//!
//! Inputs far from 0, or large, make a model learn little, and inputs of thousands let its loss explode: `docs/quality.md` has the
//! measurements. So such features get a scale by default. The process that saves the model decides it, before anything is trained; the
//! manifests of the model and of checkpoints then have it, and a run that goes on from them keeps it.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use forebay_actors::{Domain, Fault};
use forebay_batches::Parse;
use forebay_connectors::OnBadRow;
use forebay_job::{Columns, DenseColumn, DenseStatistics, FeatureScale, FeatureScales, Job, Scale, Transform};

use crate::context::Context;
use crate::run_types::RowTypes;
use crate::sources;
use crate::statistics::{Moments, reading, values_there};

/// Rows that decide.
const ROWS: usize = 65_536;

/// Numbers need a scale from this root mean square on, and if one of them is that large.
const LARGE: f64 = 2.0;
const LARGEST: f64 = 30.0;

/// Logarithms need a scale if their mean is at least this, and at least as many standard deviations.
const FAR: f64 = 2.0;

/// In a model without layers, logarithms need a scale if their mean is at least so many standard deviations. Those of counts with many
/// zeros have less, and are better without.
const FAR_WITHOUT_LAYERS: f64 = 1.5;

/// Numbers of at least 0 are counts, most of them small and a few large, if their standard deviation is this many times their mean.
const SPREAD_OF_COUNTS: f64 = 2.0;

/// The limit of scaled values, in standard deviations from the mean: values of later rows may be far away.
const LIMIT: f64 = 10.0;

/// What the dense features of a run in one process get: see [`of_first_rows`]. Rows that make a user fault decide nothing, because the run
/// reads them, too, and says what is wrong.
///
/// # Errors
/// An external fault of the store.
pub(crate) fn of_run_alone(job: &Job, context: &Context) -> Result<FeatureScales, Fault> {
    match of_first_rows(job, context) {
        Err(fault) if fault.domain == Domain::User => {
            tracing::debug!(%fault, "the first rows cannot be read, so dense features stay as they are");
            Ok(FeatureScales::default())
        }
        decided => decided,
    }
}

/// What the [open features](Columns::open_features) of a job get: a column in `columns.statistics` by its entry there, the others by the
/// first rows at `data.train`. Nothing, if a custom source or a stage of `pipeline.after_read` makes the rows: these can be read once only.
/// Logs what was decided. Blocks on the store.
///
/// # Errors
/// A user fault if the rows cannot be read as the job says; an external fault of the store.
pub(crate) fn of_first_rows(job: &Job, context: &Context) -> Result<FeatureScales, Fault> {
    let open = job.columns.open_features();
    if open.is_empty() || job.data.source.is_some() || !job.pipeline.after_read.is_empty() {
        return Ok(FeatureScales::default());
    }
    let (known, others): (Vec<_>, Vec<_>) =
        open.into_iter().partition(|feature| described(&job.columns, feature).is_some());
    let linear = job.model.kind.dense_is_linear();
    let of_known = |feature: &DenseColumn| {
        let scale = scale_for(described(&job.columns, feature)?, None, linear)?;
        Some((feature.column.clone(), scale))
    };
    let mut scales: FeatureScales = known.into_iter().filter_map(of_known).collect();
    if !others.is_empty() {
        scales.extend(measured(job, &others, context)?);
    }
    log(&scales);
    Ok(scales)
}

/// The entry of a feature in `columns.statistics`, if it describes the feature.
fn described(columns: &Columns, feature: &DenseColumn) -> Option<DenseStatistics> {
    let statistics = columns.statistics_of(&feature.column).copied()?;
    let is_known = matches!(statistics.transform, Transform::None | Transform::Log1p);
    (is_known && statistics.clip == feature.clip).then_some(statistics)
}

/// What features get by the first rows.
fn measured(job: &Job, features: &[&DenseColumn], context: &Context) -> Result<FeatureScales, Fault> {
    let reading = reading(job, features, &[]);
    let mut parse = Parse::new(&reading.columns, 0, OnBadRow::Skip).for_statistics(features.len());
    // Of the values, and of their logarithms.
    let mut moments = vec![[Moments::default(); 2]; features.len()];
    let mut types = None;
    sources::first_rows(&reading, context, ROWS, |batch| {
        types.get_or_insert_with(|| RowTypes::of(&reading, batch.schema_ref()).types);
        let (mut examples, bad) = parse.examples_of(batch.clone())?;
        if !bad.is_empty() {
            (examples, _) = parse.examples_of(without(&batch, &bad)?)?;
        }
        for (column, [moments, of_logs]) in moments.iter_mut().enumerate() {
            let values = values_there(&examples, column);
            let (missing, logs) = ((examples.rows - values.len()) as u64, values.iter().map(|&value| log1p(value)));
            of_logs.add(&logs.collect::<Vec<_>>(), missing);
            moments.add(&values, missing);
        }
        Ok(())
    })?;
    let types = types.unwrap_or_default();
    let linear = job.model.kind.dense_is_linear();
    let mut scales = FeatureScales::default();
    for (feature, [moments, of_logs]) in features.iter().zip(moments).filter(|(_, [moments, _])| moments.values > 0) {
        let with = |transform| DenseColumn { transform, ..(*feature).clone() };
        let found = moments.of(&with(types.transform_of(feature)))?;
        if let Some(scale) = scale_for(found, Some(of_logs.of(&with(Transform::Log1p))?), linear) {
            scales.insert(feature.column.clone(), scale);
        }
    }
    Ok(scales)
}

/// sign(x) · ln(1 + |x|).
fn log1p(value: f64) -> f64 {
    value.abs().ln_1p().copysign(value)
}

/// The rows without those that are bad.
fn without(batch: &RecordBatch, bad: &[(usize, String)]) -> Result<RecordBatch, Fault> {
    let mut good = vec![true; batch.num_rows()];
    bad.iter().for_each(|(row, _)| good[*row] = false);
    filter_record_batch(batch, &BooleanArray::from(good))
        .map_err(|e| Fault::internal("rows cannot be left out").because(e))
}

/// What a feature with these values gets; `None` if it needs nothing. `logs`: the statistics of the logarithms of numbers. A model whose
/// dense parameters are `linear` learns a weight for each input, and small inputs need large weights: it has a scale for all numbers but 0
/// and 1.
fn scale_for(found: DenseStatistics, logs: Option<DenseStatistics>, linear: bool) -> Option<FeatureScale> {
    let DenseStatistics { mean, std, min, max, transform, .. } = found;
    let largest = min.abs().max(max.abs());
    let is_large = mean.hypot(std) >= LARGE || largest >= LARGEST;
    let log1p = FeatureScale { transform: Transform::Log1p, ..FeatureScale::default() };
    match transform {
        Transform::None if is_large && min >= 0.0 && std >= SPREAD_OF_COUNTS * mean => {
            let far = logs.filter(|logs| is_far(logs, linear));
            Some(far.map_or(log1p, |logs| FeatureScale { transform: Transform::Log1p, ..z_score(logs) }))
        }
        Transform::None if is_large || linear && std > 0.0 && !is_0_or_1(&found) => Some(z_score(found)),
        Transform::Log1p if is_far(&found, linear) => Some(z_score(found)),
        _ => None,
    }
}

fn z_score(found: DenseStatistics) -> FeatureScale {
    let (scale, limit, statistics) = (Some(Scale::ZScore), Some(LIMIT), Some(found));
    FeatureScale { transform: Transform::Auto, scale, limit, statistics }
}

/// Whether logarithms are far from 0 for their spread. Those of 0 and 1 are not, in a model without layers.
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

/// Says which features get what.
fn log(scales: &FeatureScales) {
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
            let columns: Vec<_> =
                scales.iter().filter(|(_, scale)| is_of_kind(scale)).map(|(column, _)| column).collect();
            let shown: Vec<_> = columns.iter().take(SHOWN).map(|column| format!("`{column}`")).collect();
            let more = columns.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            (!columns.is_empty()).then(|| format!("{what} for {}{more}", shown.join(", ")))
        })
        .collect();
    if !decided.is_empty() {
        tracing::info!(
            "by their first values, dense features get {} (transform = \"none\" leaves a feature as it is)",
            decided.join(", and ")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn values(of: impl Iterator<Item = f64>) -> DenseStatistics {
        let (values, mut moments) = (of.collect::<Vec<_>>(), Moments::default());
        moments.add(&values, 0);
        moments.of(&DenseColumn { transform: Transform::None, ..DenseColumn::from("x".to_owned()) }).unwrap()
    }

    fn logs(of: impl Iterator<Item = f64>) -> DenseStatistics {
        DenseStatistics { transform: Transform::Log1p, ..values(of.map(f64::ln_1p)) }
    }

    #[test]
    fn large_numbers_are_scaled_counts_get_logarithms_and_small_numbers_stay() {
        let hundred = || (0..100).map(f64::from);
        let few_large = || hundred().map(|i| if i < 95.0 { 0.0 } else { 40.0 * i });
        for (what, found, decided) in [
            ("a share", values(hundred().map(|i| i / 100.0)), None),
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
            let scale =
                scale_for(found, None, false).map(|scale| (scale.transform, scale.scale == Some(Scale::ZScore)));
            assert_eq!(scale, decided, "{what}");
        }
        let shares = values(hundred().map(|i| i / 1e4));
        assert_eq!(
            scale_for(shares, None, true).unwrap().scale,
            Some(Scale::ZScore),
            "without layers, all numbers are scaled"
        );
        let flags = [1.0, 50.0, 99.0, 100.0].map(|ones| values(hundred().map(|i| f64::from(u8::from(i < ones)))));
        assert!(flags.into_iter().all(|flags| scale_for(flags, None, true).is_none()));
        assert_eq!(scale_for(logs(few_large()), None, true), None);
        let small = || logs(hundred().map(|i| i % 6.0));
        assert_eq!([false, true].map(|linear| scale_for(small(), None, linear).is_some()), [false, true]);
        assert_eq!(scale_for(logs(hundred().map(|i| f64::from(u8::from(i < 90.0)))), None, true), None, "0 and 1");
        let incomes = || hundred().map(|i| if i < 95.0 { 30_000.0 } else { 1e6 * i });
        let scale = scale_for(values(incomes()), Some(logs(incomes())), false).unwrap();
        assert_eq!(
            (scale.transform, scale.scale),
            (Transform::Log1p, Some(Scale::ZScore)),
            "a few large, and none near 0"
        );
        assert_eq!(scale.statistics.unwrap().transform, Transform::Log1p);
        let scale = scale_for(values(few_large()), Some(logs(few_large())), false).unwrap();
        assert_eq!((scale.transform, scale.scale), (Transform::Log1p, None));
        let unknown = DenseStatistics { transform: Transform::Hour, ..values(hundred()) };
        assert_eq!(scale_for(unknown, None, true), None);
    }

    fn decided(dir: &std::path::Path, text: &str, columns: &str) -> Result<FeatureScales, Fault> {
        let path = dir.join("rows.csv");
        std::fs::write(&path, text).unwrap();
        let train = format!("data.train={}", path.display());
        let job = Job::from_toml(&format!("[columns]\n{columns}\nslots = ['c']"), &[train]).unwrap();
        of_first_rows(&job, &Context::default())
    }

    #[test]
    fn the_first_good_rows_decide() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "label,x,y,c\n".to_owned();
        for i in 0..ROWS {
            writeln!(text, "{},{},{},a", i % 2, i % 10, if i % 4 == 0 { "" } else { "7" }).unwrap();
        }
        // Neither a later row nor one with a bad label counts.
        let first = text.replacen("\n0,0,", "\n5,90000,", 1);
        text += "1,1000000,9,a\n";
        let scales = decided(dir.path(), &text, "dense = ['x', 'z']");
        assert!(scales.unwrap_err().to_string().contains('z'), "a column that is not there");
        let dense = "dense = ['x', { column = 'y', indicator = true }]";
        let scales = decided(dir.path(), &text, dense).unwrap();
        let x = scales["x"].statistics.unwrap();
        assert!((x.mean - 4.5).abs() < 1e-3 && x.max == 9.0 && x.values == Some(ROWS as u64), "{x:?}");
        let y = scales["y"].statistics.unwrap();
        assert_eq!((y.mean, y.std, y.missing), (7.0, 0.0, Some(ROWS as u64 / 4)));
        let x = decided(dir.path(), &first, dense).unwrap()["x"].statistics.unwrap();
        assert_eq!((x.max, x.values), (9.0, Some(ROWS as u64 - 1)));
    }

    #[test]
    fn a_job_decides_by_its_own_statistics_and_not_by_rows_that_are_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let rows = "label,x,c\n1,50,a\n0,60,b\n";
        let with = |more: &str| decided(dir.path(), rows, &format!("dense = ['x']\n{more}")).unwrap();
        assert_eq!(with("")["x"].statistics.unwrap().mean, 55.0);
        let own = "statistics = { x = { mean = 9, std = 1, min = 0, max = 9, transform = 'none' } }";
        assert_eq!(with(own)["x"].statistics.unwrap().mean, 9.0);
        let others = own.replace("'none'", "'none', clip = { max = 9 }");
        assert_eq!(with(&others)["x"].statistics.unwrap().mean, 55.0, "they describe other values");
        let job = |text: &str| Job::from_toml(&format!("columns.dense = ['x']\n{text}"), &[]).unwrap();
        for made in ["data.source = 'mine'", "data.train = 'nowhere'\npipeline.after_read = ['mine']"] {
            assert_eq!(of_first_rows(&job(made), &Context::default()).unwrap(), FeatureScales::default());
        }
        let nowhere = job("data.train = 'nowhere'");
        assert!(of_first_rows(&nowhere, &Context::default()).is_err());
        assert_eq!(of_run_alone(&nowhere, &Context::default()).unwrap(), FeatureScales::default());
    }
}
