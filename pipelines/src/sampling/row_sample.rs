//! Reads some rows at `data.train`, the first ones and others of all parts of the data, which decide what a new model begins with.
//! `feature_scales.rs` and `initial_bias.rs` have the rules, `label_order.rs`, `mean_weight.rs` and `metrics/empty_features.rs` warnings.
//!
//! The process that saves the model reads the rows. A run that continues from a model or a checkpoint has both already. Only the features
//! that had no two values in the rows of the model are decided again.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use forebay_actors::{Domain, Fault, commas};
use forebay_batches::Parse;
use forebay_connectors::OnBadRow;
use forebay_job::{Columns, DenseColumn, FeatureScales, Job};

use super::feature_scales::{self, FeatureValues};
use super::initial_bias::{self, LabelCounts};
use super::statistics::{reading, values_there};
use super::{label_order, mean_weight};
use crate::columns::run_types::RowTypes;
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;
use crate::metrics::empty_features;
use crate::sources;

/// The rows of the sample.
const ROWS: usize = 65_536;

/// As [`decide`], for a run in one process. If the rows make a user fault, they decide nothing: the run reads them, too, and reports the
/// fault.
///
/// # Errors
/// An external fault of the store.
pub(crate) fn decide_alone(job: &Job, context: &Context) -> Result<SampledSettings, Fault> {
    match decide(job, context) {
        Err(fault) if fault.domain == Domain::User => {
            tracing::debug!(%fault, "no sample of the rows can be read, so it decides nothing");
            Ok(SampledSettings::default())
        }
        decided => decided,
    }
}

/// The settings that the job leaves open and a sample of the rows decides. The sample decides nothing if a custom source or a stage of
/// `pipeline.after_read` makes the rows, because such rows can be read only once. Logs the settings. Blocks on the store.
///
/// # Errors
/// A user fault if the rows cannot be read as the job says; an external fault of the store.
pub(crate) fn decide(job: &Job, context: &Context) -> Result<SampledSettings, Fault> {
    let is_made = is_made(job);
    let open = if is_made { Vec::new() } else { job.columns.open_features() };
    let (mut scales, unknown) = feature_scales::by_statistics(job, open);
    let mut initial_bias = job.train.initial_bias.clone().filter(|bias| !bias.is_zero());
    let bias_is_open = !is_made && initial_bias::is_open(job);
    if !unknown.is_empty() || bias_is_open {
        let (found, labels) = read(job, &unknown, context)?;
        scales.extend(found);
        if let Some(bias) = initial_bias::decide(job, &labels).filter(|_| bias_is_open) {
            initial_bias::log(&bias);
            initial_bias = Some(bias);
        }
    }
    feature_scales::log(&scales);
    Ok(SampledSettings { scales, initial_bias })
}

/// The scales of a run that continues from a model with the columns `earlier`: those of the model. A feature that had no two values in the
/// rows of the model, such as a new column of nulls, gets a scale by the rows of this run. If they cannot be read, it keeps the old one,
/// and the run reports the fault when it reads them, too. Blocks on the store.
pub(crate) fn decide_after(earlier: &Columns, job: &Job, context: &Context) -> SampledSettings {
    let mut scales = earlier.scales_for(&job.columns);
    let undecided = if is_made(job) { Vec::new() } else { feature_scales::without_difference(earlier, &job.columns) };
    if !undecided.is_empty() {
        match read(job, &undecided, context) {
            Ok((mut found, _)) => {
                found.retain(|_, scale| scale.statistics.is_none_or(|found| found.min < found.max));
                feature_scales::log(&found);
                scales.extend(found);
            }
            Err(fault) => {
                tracing::debug!(%fault, "no sample of the rows can be read, so features keep the scales of the model")
            }
        }
    }
    SampledSettings { scales, initial_bias: None }
}

/// Whether a custom source or a stage makes the rows, so that they can be read only once.
fn is_made(job: &Job) -> bool {
    job.data.source.is_some() || !job.pipeline.after_read.is_empty()
}

/// Reads a sample of the rows: the scales of features, and the counts of labels.
fn read(job: &Job, features: &[&DenseColumn], context: &Context) -> Result<(FeatureScales, Vec<LabelCounts>), Fault> {
    let reading = reading(job, features, &[]);
    let mut parse = Parse::new(&reading.columns, 0, OnBadRow::Skip).for_statistics(features.len());
    let mut values = vec![FeatureValues::default(); features.len()];
    let (mut parts, mut types) = (Vec::new(), None);
    let mut sampled = 0;
    let rows = sources::sampled_rows(&reading, context, ROWS, |part, batch| {
        types.get_or_insert_with(|| RowTypes::of(&reading, batch.schema_ref()).types);
        let (mut examples, bad) = parse.examples_of(batch.clone())?;
        if !bad.is_empty() {
            (examples, _) = parse.examples_of(without(&batch, &bad)?)?;
        }
        sampled += examples.rows as u64;
        for (column, values) in values.iter_mut().enumerate() {
            values.add(&values_there(&examples, column), examples.rows);
        }
        if parts.len() <= part {
            parts.resize(part + 1, vec![LabelCounts::default(); job.columns.label.len()]);
        }
        for (values, label) in examples.labels.chunks(examples.rows.max(1)).zip(&mut parts[part]) {
            label.add(values, &examples.weights);
        }
        Ok(())
    })?;
    label_order::check(job, &parts, rows);
    let labels: Vec<_> = (0..job.columns.label.len()).map(|label| parts.iter().map(|part| part[label]).sum()).collect();
    mean_weight::check(job, &labels);
    if sampled > 0 {
        let empty = features.iter().zip(&values).filter(|(_, values)| values.is_empty());
        let empty: Vec<_> = empty.map(|(feature, _)| feature.column.clone()).collect();
        empty_features::warn("columns.dense", &empty, &format!("a sample of {}", commas(sampled)));
    }
    Ok((feature_scales::by_values(job, features, values, &types.unwrap_or_default())?, labels))
}

/// The rows of the batch that are not bad.
fn without(batch: &RecordBatch, bad: &[(usize, String)]) -> Result<RecordBatch, Fault> {
    let mut good = vec![true; batch.num_rows()];
    bad.iter().for_each(|(row, _)| good[*row] = false);
    let good = BooleanArray::from(good);
    filter_record_batch(batch, &good).map_err(|e| Fault::internal("rows cannot be left out").because(e))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use forebay_job::InitialBias;

    use super::*;

    fn decided(dir: &std::path::Path, text: &str, columns: &str) -> Result<FeatureScales, Fault> {
        let path = dir.join("rows.csv");
        std::fs::write(&path, text).unwrap();
        let train = format!("data.train={}", path.display());
        let job = Job::from_toml(&format!("[columns]\n{columns}\nslots = ['c']"), &[train]).unwrap();
        decide(&job, &Context::default()).map(|decided| decided.scales)
    }

    #[test]
    fn good_rows_decide() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "label,x,y,c\n".to_owned();
        for i in 0..ROWS {
            writeln!(text, "{},{},{},a", i % 2, i % 10, if i % 4 == 0 { "" } else { "7" }).unwrap();
        }
        // A row with a bad label does not count.
        let bad = text.replacen("\n0,0,", "\n5,90000,", 1);
        let scales = decided(dir.path(), &text, "dense = ['x', 'z']");
        assert!(scales.unwrap_err().to_string().contains('z'), "a column that is not there");
        let dense = "dense = ['x', { column = 'y', indicator = true }]";
        let scales = decided(dir.path(), &text, dense).unwrap();
        let x = scales["x"].statistics.unwrap();
        assert!((x.mean - 4.5).abs() < 1e-3 && x.max == 9.0 && x.values == Some(ROWS as u64), "{x:?}");
        let y = scales["y"].statistics.unwrap();
        assert_eq!((y.mean, y.std, y.missing), (7.0, 1.0, Some(ROWS as u64 / 4)));
        let x = decided(dir.path(), &bad, dense).unwrap()["x"].statistics.unwrap();
        assert_eq!((x.max, x.values), (9.0, Some(ROWS as u64 - 1)));
    }

    /// A bug: the first rows alone decided, and a feature with one value there was 0 in all rows.
    #[test]
    fn rows_of_all_parts_decide() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "label,x,c\n".to_owned();
        for i in 0..300_000 {
            let x = if i < 200_000 { 15 } else { 16 + i % 15 };
            writeln!(text, "{},{x},a", i % 2).unwrap();
        }
        let x = decided(dir.path(), &text, "dense = ['x']").unwrap()["x"].statistics.unwrap();
        assert!(x.max == 30.0 && x.min == 15.0 && x.mean > 16.0, "{x:?}");
        assert!(x.values == Some(ROWS as u64), "{x:?}");
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
            assert_eq!(decide(&job(made), &Context::default()).unwrap(), SampledSettings::default());
        }
        let nowhere = job("data.train = 'nowhere'");
        assert!(decide(&nowhere, &Context::default()).is_err());
        assert_eq!(decide_alone(&nowhere, &Context::default()).unwrap(), SampledSettings::default());
    }

    #[test]
    fn rare_labels_decide_the_bias_of_a_new_model() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        let mut text = "label,c,w\n".to_owned();
        for i in 0..1000 {
            writeln!(text, "{},a,{}", u8::from(i % 20 == 0), if i % 20 == 0 { 2 } else { 1 }).unwrap();
        }
        std::fs::write(&path, text).unwrap();
        let bias = |settings: &[&str]| {
            let train = format!("data.train={}", path.display());
            let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).chain([train]).collect();
            let job = Job::from_toml("columns = { dense = [], slots = ['c'] }", &settings).unwrap();
            decide(&job, &Context::default()).unwrap().initial_bias
        };
        let one = |bias| Some(InitialBias(vec![bias]));
        assert_eq!(bias(&[]), one(-2.9444), "ln(50 / 950)");
        assert_eq!(bias(&["columns.weight=w"]), one(-2.2513));
        assert_eq!(bias(&["data.negatives=0.1"]), None, "then they are not rare");
        assert_eq!((bias(&["train.initial_bias=0"]), bias(&["train.initial_bias=-1"])), (None, one(-1.0)));
    }
}
