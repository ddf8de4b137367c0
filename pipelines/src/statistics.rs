//! Statistics of the dense features of a job's training rows, in one pass: what `scale` needs.

use std::collections::BTreeMap;

use forebay_actors::{Fault, Place, Replicas, Sink, StageCx, Topology};
use forebay_connectors::OnBadRow;
use forebay_job::{Columns, DataOptions, DenseColumn, DenseStatistics, Job};

use crate::context::Context;
use crate::flow::ExampleBatch;
use crate::sources;
use crate::stages::Parse;

/// Reads the rows at `data.train` once, and returns the statistics of each dense feature, by column: of its clipped and transformed
/// values, over the rows where it is not missing. The rows pass the stages of `pipeline.after_read`. A job whose features
/// have scales needs no statistics for this. Blocks until it is done.
///
/// # Errors
/// A user fault if the job has no dense features or no rows, or if a feature has no value at all; the first fault of the run.
pub fn dense_statistics(job: &Job, context: &Context) -> Result<BTreeMap<String, DenseStatistics>, Fault> {
    let features = features(&job.columns)?;
    let columns = measured(job, &features);
    let data = DataOptions { epochs: 1, shuffle: false, ..job.data.clone() };
    let job = &Job { columns, data, ..job.clone() };
    job.check()?;
    context.registry.check(job)?;
    let read = sources::windows(job, context, None)?;
    let links = &job.pipeline.links;
    let rows = read.begin(Topology::new("stats")).link(links.to_parse());
    let rows = context.registry.after_read_of(rows, job, true)?;
    let (columns, on_bad_row): (Columns, OnBadRow) = (job.columns.clone(), job.data.on_bad_row.clone());
    let parse = move |_replica| Parse::new(&columns, 0, on_bad_row.clone());
    let replicas = Replicas::ordered(job.parse_replicas_alone());
    let examples = rows.replicated("parse", Place::Own, replicas, parse).link(links.to_batch());
    let measure = Measure::of(features.len());
    let outcome = examples.sink("measure", Place::Own, move || measure).start()?.wait();
    outcome.result?;
    let moments: Option<Vec<Moments>> = outcome.results.take("measure");
    let moments = moments.ok_or_else(|| Fault::internal("the statistics ended without a result"))?;
    features
        .into_iter()
        .zip(moments)
        .map(|(feature, moments)| Ok((feature.column.clone(), moments.of(feature)?)))
        .collect()
}

/// The dense features, one for each column: that with a scale if there are several.
fn features(columns: &Columns) -> Result<Vec<&DenseColumn>, Fault> {
    let mut features: Vec<&DenseColumn> = Vec::new();
    for feature in columns.dense.iter().filter(|feature| feature.length.is_none()) {
        match features.iter_mut().find(|other| other.column == feature.column) {
            None => features.push(feature),
            Some(other) if other.scale.is_none() => *other = feature,
            Some(_) => {}
        }
    }
    if features.is_empty() {
        return Err(Fault::user(
            "the job has no dense features (columns.dense), so there are no statistics to compute",
        ));
    }
    Ok(features)
}

/// Columns for reading the features alone, each with an indicator, which says where it is missing.
fn measured(job: &Job, features: &[&DenseColumn]) -> Columns {
    let columns = &job.columns;
    let measured =
        |feature: &&DenseColumn| DenseColumn { fill: None, indicator: true, scale: None, ..(*feature).clone() };
    let mut extra = columns.extra.clone();
    if !job.pipeline.after_read.is_empty() {
        // Stages may use any column of the job.
        extra.extend(columns.slots.iter().map(|slot| slot.column.clone()));
    }
    let mut measured = Columns {
        dense: features.iter().map(measured).collect(),
        // A job needs at least one slot.
        slots: columns.slots.iter().take(1).cloned().collect(),
        crosses: Vec::new(),
        statistics: None,
        extra,
        ..columns.clone()
    };
    let names = measured.names();
    measured.optional.retain(|column| names.contains(column));
    measured
}

/// Mean and sum of squared differences from it, in one pass (Chan, Golub and LeVeque 1979).
#[derive(Clone, Copy)]
struct Moments {
    values: u64,
    missing: u64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { values: 0, missing: 0, mean: 0.0, squares: 0.0, min, max }
    }
}

impl Moments {
    /// Adds the values of a batch; `missing` is 1 where there is none.
    fn add(&mut self, values: &[f32], missing: &[f32]) {
        let there =
            || values.iter().zip(missing).filter(|(_, missing)| **missing == 0.0).map(|(&value, _)| f64::from(value));
        let count = there().count();
        self.missing += (values.len() - count) as u64;
        if count == 0 {
            return;
        }
        let mean = there().sum::<f64>() / count as f64;
        let squares: f64 = there().map(|value| (value - mean).powi(2)).sum();
        let (before, now) = (self.values as f64, count as f64);
        let difference = mean - self.mean;
        self.values += count as u64;
        self.mean += difference * now / (before + now);
        self.squares += squares + difference.powi(2) * before * now / (before + now);
        (self.min, self.max) = there().fold((self.min, self.max), |(min, max), value| (min.min(value), max.max(value)));
    }

    fn of(self, feature: &DenseColumn) -> Result<DenseStatistics, Fault> {
        if self.values == 0 {
            return Err(Fault::user(format!(
                "dense feature `{}` has no value in any of {} rows: leave it out of columns.dense",
                feature.column, self.missing
            )));
        }
        Ok(DenseStatistics {
            mean: rounded(self.mean),
            std: rounded((self.squares / self.values as f64).sqrt()),
            min: rounded(self.min),
            max: rounded(self.max),
            transform: feature.transform,
            clip: feature.clip,
            values: Some(self.values),
            missing: Some(self.missing),
        })
    }
}

/// Nine significant digits: so many that JSON gives the same number back, and more than the inputs of a model have.
fn rounded(value: f64) -> f64 {
    format!("{value:.8e}").parse().unwrap_or(value)
}

/// Adds up the moments of each feature, and leaves them in the run's results.
pub(crate) struct Measure(Vec<Moments>);

impl Measure {
    /// Of batches with this many features, each with its indicator.
    pub(crate) fn of(features: usize) -> Self {
        Self(vec![Moments::default(); features])
    }
}

impl Sink for Measure {
    type In = ExampleBatch;

    fn describe(&self) -> String {
        format!("mean, std, min and max of {} features", self.0.len())
    }

    async fn write(&mut self, batch: ExampleBatch, _cx: &StageCx) -> Result<(), Fault> {
        if batch.rows == 0 {
            return Ok(());
        }
        for (feature, moments) in self.0.iter_mut().enumerate() {
            moments.add(batch.dense_column(2 * feature), batch.dense_column(2 * feature + 1));
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        cx.leave(std::mem::take(&mut self.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batches_of_any_size_give_the_moments_of_all_values(
            batches in prop::collection::vec(prop::collection::vec((900.0_f32..1000.0, any::<bool>()), 0..20), 1..20)
        ) {
            let mut moments = Moments::default();
            for batch in &batches {
                let (values, missing): (Vec<f32>, Vec<f32>) = batch.iter().map(|&(v, m)| (v, f32::from(u8::from(m)))).unzip();
                moments.add(&values, &missing);
            }
            let all: Vec<f64> = batches.iter().flatten().filter(|(_, missing)| !missing).map(|(v, _)| f64::from(*v)).collect();
            prop_assert_eq!(moments.values, all.len() as u64);
            if all.is_empty() {
                prop_assert!(moments.of(&DenseColumn::from("x".to_owned())).is_err());
                return Ok(());
            }
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let std = (all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
            let found = moments.of(&DenseColumn::from("x".to_owned())).unwrap();
            prop_assert!((found.mean - mean).abs() < 1e-5 && (found.std - std).abs() < 1e-6, "{found:?} {mean} {std}");
            prop_assert_eq!(found.min, rounded(all.iter().copied().fold(f64::INFINITY, f64::min)));
            prop_assert_eq!(found.max, rounded(all.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
            let json = serde_json::to_string(&found).unwrap();
            prop_assert_eq!(serde_json::from_str::<DenseStatistics>(&json).unwrap(), found);
        }
    }
}
