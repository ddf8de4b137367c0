//! Statistics of the columns of a job's training rows, in one pass: what `scale` and `quantiles` need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Schema};
use forebay_actors::{Fault, Place, Replicas, Sink, StageCx, Topology, counted};
use forebay_batches::{ExampleBatch, Parse};
use forebay_connectors::OnBadRow;
use forebay_job::{
    Clip, Columns, DataOptions, DenseColumn, DenseStatistics, Job, ModelKind, ModelOptions, Slot, SlotKind, Tables,
    Transform,
};

use super::value_sample::ValueSample;
use crate::columns::expected_types::ExpectedTypes;
use crate::columns::run_types::RunTypes;
use crate::context::Context;
use crate::sources;

/// The statistics of the columns of a job's training rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnStatistics {
    /// The statistics of each dense feature, by column.
    pub dense: BTreeMap<String, DenseStatistics>,
    /// The boundaries of each slot with `quantiles`, by column.
    pub quantiles: BTreeMap<String, Vec<f64>>,
    /// Rows that were read and are not bad.
    pub rows: u64,
}

/// Reads the rows at `data.train` once. The statistics of a dense feature describe its clipped and transformed values in the rows where it
/// is not missing; quantiles come from a sample of 65,536 values. The rows pass the stages of `pipeline.after_read`. A job whose columns
/// need statistics or quantiles need not have them yet. Blocks until it is done.
///
/// # Errors
/// A user fault if a run would refuse the job with the statistics, if the job has neither dense features nor slots with quantiles, if there
/// are no rows, or if a column has no values; the first fault of the run.
pub fn column_statistics(job: &Job, context: &Context) -> Result<ColumnStatistics, Fault> {
    let (features, cut) = (features(&job.columns), cut_slots(&job.columns));
    if features.is_empty() && cut.is_empty() {
        return Err(Fault::user(
            "the job has no dense features (columns.dense) and no slots with quantiles, so there are no statistics to compute",
        ));
    }
    let whole = with_any_statistics(job, &features, &cut);
    whole.check()?;
    context.registry.check(&whole)?;
    let job = &reading(job, &features, &cut);
    let read = sources::windows(job, context, None)?;
    let links = &job.pipeline.links;
    let rows = read.begin(Topology::new("stats")).link(links.to_parse());
    let rows = context.registry.after_read.wire(rows, &job.pipeline.after_read, links.to_parse(), job, true)?;
    let (columns, on_bad_row): (Columns, OnBadRow) = (job.columns.clone(), job.data.on_bad_row.clone());
    let of_slots = features.len();
    let types = RunTypes::default();
    let expected = ExpectedTypes::Run(types.clone(), Arc::new(job.clone()));
    let floats = Arc::new(OnceLock::new());
    let of_floats = Arc::clone(&floats);
    let parse = move |_replica| {
        let (expected, of_floats) = (expected.clone(), Arc::clone(&of_floats));
        let parse = Parse::new(&columns, 0, on_bad_row.clone()).checking_types(move |schema| {
            of_floats.get_or_init(|| columns_of_floats(schema));
            expected.check(schema)
        });
        parse.for_statistics(of_slots)
    };
    let replicas = Replicas::ordered(job.parse_replicas_alone());
    let examples = rows.replicated("parse", Place::Own, replicas, parse).link(links.to_batch());
    let measure = Measure::of(features.len(), cut.len());
    let outcome = examples.sink("measure", Place::Own, move || measure).start()?.wait();
    outcome.result?;
    let measured: Option<Measure> = outcome.results.take("measure");
    let Measure { moments, samples, rows } =
        measured.ok_or_else(|| Fault::internal("the statistics ended without a result"))?;
    let types = types.get().unwrap_or_default().types;
    // The transform that `auto` means in these rows. It may mean another one in other rows.
    let resolved = |feature: &DenseColumn| DenseColumn { transform: types.transform_of(feature), ..feature.clone() };
    let dense = features.into_iter().zip(moments);
    let quantiles = cut.into_iter().zip(samples);
    Ok(ColumnStatistics {
        dense: dense
            .map(|(feature, moments)| Ok((feature.column.clone(), moments.of(&resolved(feature))?)))
            .collect::<Result<_, Fault>>()?,
        quantiles: quantiles
            .map(|(slot, sample)| {
                let found = boundaries(sample, slot)?;
                let of_floats = floats.get().is_some_and(|floats| floats.contains(&slot.column));
                Ok((slot.column.clone(), if of_floats { found.into_iter().map(shortest).collect() } else { found }))
            })
            .collect::<Result<_, Fault>>()?,
        rows,
    })
}

/// The columns of numbers with 32 bits.
fn columns_of_floats(schema: &Schema) -> HashSet<String> {
    let floats = schema.fields().iter().filter(|field| *field.data_type() == DataType::Float32);
    floats.map(|field| field.name().clone()).collect()
}

/// The number with the fewest digits that is this one with 32 bits: a file of 64 bits, or of text, has that.
fn shortest(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// The slots with quantiles, one for each column.
fn cut_slots(columns: &Columns) -> Vec<&Slot> {
    let mut seen = HashSet::new();
    columns.slots.iter().filter(|slot| slot.quantiles.is_some() && seen.insert(&slot.column)).collect()
}

/// The dense features, one for each column: if a column has several, the one with a scale.
fn features(columns: &Columns) -> Vec<&DenseColumn> {
    let mut features: Vec<&DenseColumn> = Vec::new();
    let mut places: HashMap<&String, usize> = HashMap::new();
    for feature in columns.dense.iter().filter(|feature| feature.length.is_none()) {
        let place = *places.entry(&feature.column).or_insert(features.len());
        match features.get_mut(place) {
            None => features.push(feature),
            Some(other) if other.scale.is_none() => *other = feature,
            Some(_) => {}
        }
    }
    features
}

/// The job with invented statistics and quantiles for all columns that may need them, so that it can be checked before the real ones are
/// known.
fn with_any_statistics(job: &Job, features: &[&DenseColumn], cut: &[&Slot]) -> Job {
    let statistics = |feature: &&DenseColumn| {
        let (transform, clip) = (feature.transform, feature.clip);
        (feature.column.clone(), DenseStatistics { transform, clip, ..DenseStatistics::default() })
    };
    let mut job = job.clone();
    job.columns.statistics = Some(features.iter().map(statistics).collect());
    job.columns.quantiles = Some(cut.iter().map(|slot| (slot.column.clone(), vec![0.0])).collect());
    job
}

/// The job that reads the columns of [`measured`]. Its model names no other columns; no model is made of it.
pub(crate) fn reading(job: &Job, features: &[&DenseColumn], cut: &[&Slot]) -> Job {
    let model = match job.columns.label.len() {
        1 => ModelOptions { kind: ModelKind::Lr, ..ModelOptions::default() },
        // The models of several labels name no slots.
        _ => job.model.clone(),
    };
    let data = DataOptions { epochs: 1, shuffle: false, ..job.data.clone() };
    Job { columns: measured(job, features, cut), data, model, tables: Tables::new(), ..job.clone() }
}

/// Columns for reading the features, and then the slots as numbers, each with an indicator, which says where it is missing.
fn measured(job: &Job, features: &[&DenseColumn], cut: &[&Slot]) -> Columns {
    let columns = &job.columns;
    let measured = |feature: &&DenseColumn| DenseColumn {
        fill: None,
        indicator: true,
        scale: None,
        limit: None,
        ..(*feature).clone()
    };
    let mut extra = columns.extra.clone();
    if !job.pipeline.after_read.is_empty() {
        // Stages may use any column of the job.
        extra.extend(columns.slots.iter().flat_map(Slot::columns).cloned());
    }
    // A slot takes infinity, and a dense feature does not.
    let (min, max) = (Some(f64::from(f32::MIN)), Some(f64::from(f32::MAX)));
    let as_number = |slot: &&Slot| DenseColumn {
        transform: Transform::None,
        indicator: true,
        clip: Some(Clip { min, max }),
        ..DenseColumn::from(slot.column.clone())
    };
    // A job needs at least one slot.
    let slot = columns.slots.iter().find(|slot| slot.quantiles.is_none()).or(columns.slots.first());
    let mut slot = slot.map(|slot| Slot { table: None, ..slot.clone() });
    if let Some(slot) = slot.as_mut().filter(|slot| slot.quantiles.is_some()) {
        (slot.kind, slot.quantiles) = (SlotKind::LogBucket, None);
    }
    let mut measured = Columns {
        dense: features.iter().map(measured).chain(cut.iter().map(as_number)).collect(),
        slots: slot.into_iter().collect(),
        quantiles: None,
        crosses: Vec::new(),
        statistics: None,
        extra,
        ..columns.clone()
    };
    let names: HashSet<String> = measured.names().into_iter().collect();
    measured.optional.retain(|column| names.contains(column));
    measured
}

/// Mean and sum of squared differences from it, in one pass (Chan, Golub and LeVeque 1979). The mean is kept as its difference from the
/// first value, so that equal values have no deviation at all, and values that hardly differ lose no digits.
#[derive(Clone, Copy)]
pub(crate) struct Moments {
    pub(crate) values: u64,
    missing: u64,
    first: f64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { values: 0, missing: 0, first: 0.0, mean: 0.0, squares: 0.0, min, max }
    }
}

impl Moments {
    /// Adds the values of a batch, and how many are missing in it.
    pub(crate) fn add(&mut self, values: &[f64], missing: u64) {
        self.missing += missing;
        let Some(&first) = values.first() else { return };
        if self.values == 0 {
            self.first = first;
        }
        let (before, now) = (self.values as f64, values.len() as f64);
        let from = self.first;
        let differences = || values.iter().map(move |value| value - from);
        let mean = differences().sum::<f64>() / now;
        let squares: f64 = differences().map(|difference| (difference - mean).powi(2)).sum();
        let difference = mean - self.mean;
        self.values += values.len() as u64;
        self.mean += difference * now / (before + now);
        self.squares += squares + difference.powi(2) * before * now / (before + now);
        (self.min, self.max) = values.iter().fold((self.min, self.max), |(min, max), &v| (min.min(v), max.max(v)));
    }

    /// The standard deviation; 0 without values.
    pub(crate) fn deviation(&self) -> f64 {
        (self.squares / self.values.max(1) as f64).sqrt()
    }

    /// # Errors
    /// A user fault if there is no value.
    pub(crate) fn of(self, feature: &DenseColumn) -> Result<DenseStatistics, Fault> {
        if self.values == 0 {
            return Err(Fault::user(format!(
                "dense feature `{}` has no value in any of {} rows: leave it out of columns.dense",
                feature.column, self.missing
            )));
        }
        Ok(DenseStatistics {
            mean: self.first + self.mean,
            std: self.deviation(),
            min: self.min,
            max: self.max,
            transform: feature.transform,
            clip: feature.clip,
            values: Some(self.values),
            missing: Some(self.missing),
        })
    }
}

/// Values of a sample. The share of values below a quantile of so many is right to .2% or so.
const SAMPLE: usize = 65_536;

/// Ascending values that cut the sample into parts of about as many values as the slot asks for; fewer if many values are equal.
fn boundaries(sample: ValueSample, slot: &Slot) -> Result<Vec<f64>, Fault> {
    let (values, parts) = (sample.sorted(), slot.quantiles.unwrap_or(1).max(1));
    let mut boundaries: Vec<f64> =
        (1..parts).filter_map(|part| values.get(part * values.len() / parts)).copied().collect();
    boundaries.dedup();
    let least = values.first().copied();
    boundaries.retain(|&boundary| Some(boundary) != least);
    match (least, boundaries.is_empty()) {
        (None, _) => {
            Err(Fault::user(format!("slot `{}` has no value in any row: leave it out of columns.slots", slot.column)))
        }
        // Most values equal the least one, and all others form the second part.
        (Some(least), true) => match values.iter().find(|&&value| value > least) {
            Some(&next) => Ok(vec![next]),
            None => Err(Fault::user(format!(
                "slot `{}` has the value {least} in all rows, so it has no quantiles: leave it out of columns.slots",
                slot.column
            ))),
        },
        (Some(_), false) => Ok(boundaries),
    }
}

/// Adds up the moments of each feature and takes a sample of each slot, and leaves them in the run's results.
#[derive(Default)]
pub(crate) struct Measure {
    moments: Vec<Moments>,
    samples: Vec<ValueSample>,
    rows: u64,
}

impl Measure {
    /// For batches with this many features, followed by this many sampled slots, each with its indicator and what it loses as `f32`.
    pub(crate) fn of(features: usize, slots: usize) -> Self {
        let samples = vec![ValueSample::new(SAMPLE); slots];
        Self { moments: vec![Moments::default(); features], samples, rows: 0 }
    }
}

/// The values of a column in the rows that have one, each put together from its parts.
pub(crate) fn values_there(batch: &ExampleBatch, column: usize) -> Vec<f64> {
    let [values, missing, rests, last] = [0, 1, 2, 3].map(|input| batch.dense_column(4 * column + input));
    let there = (0..batch.rows).filter(|&row| missing[row] == 0.0);
    there.map(|row| f64::from(values[row]) + (f64::from(rests[row]) + f64::from(last[row]))).collect()
}

impl Sink for Measure {
    type In = ExampleBatch;

    fn describe(&self) -> String {
        let (features, slots) = (counted(self.moments.len(), "feature"), counted(self.samples.len(), "slot"));
        format!("mean, std, min and max of {features}, quantiles of {slots}")
    }

    async fn write(&mut self, batch: ExampleBatch, _cx: &StageCx) -> Result<(), Fault> {
        if batch.rows == 0 {
            return Ok(());
        }
        self.rows += batch.rows as u64;
        for (column, moments) in self.moments.iter_mut().enumerate() {
            let values = values_there(&batch, column);
            moments.add(&values, (batch.rows - values.len()) as u64);
        }
        for (slot, sample) in self.samples.iter_mut().enumerate() {
            sample.add(&values_there(&batch, self.moments.len() + slot));
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        cx.leave(std::mem::take(self));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantiles(values: &[f64], parts: usize) -> Result<Vec<f64>, String> {
        let mut sample = ValueSample::new(SAMPLE);
        values.chunks(100).for_each(|values| sample.add(values));
        let slot = Slot { quantiles: Some(parts), ..Slot::from("x".to_owned()) };
        boundaries(sample, &slot).map_err(|fault| fault.to_string())
    }

    #[test]
    fn quantiles_cut_the_values_into_parts_of_one_size() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from((i * 7919) % 1000) / 10.0).collect();
        assert_eq!(quantiles(&values, 4).unwrap(), [25.0, 50.0, 75.0]);
        assert_eq!(quantiles(&values, 2).unwrap(), [50.0]);
        assert_eq!(quantiles(&[0.1, 0.2, 0.3], 3).unwrap(), [0.2, 0.3]);
        let skewed: Vec<f64> = (0..100).map(|i| if i < 95 { 0.0 } else { f64::from(i) }).collect();
        assert_eq!(quantiles(&skewed, 10).unwrap(), [95.0], "the least value is no boundary");
        assert!(quantiles(&[3.0; 9], 4).unwrap_err().contains("the value 3 in all rows"));
        assert!(quantiles(&[], 4).unwrap_err().contains("no value in any row"));
    }

    #[test]
    fn a_sample_of_many_values_has_their_quantiles() {
        let many: Vec<f64> = (0..400_000).map(|i| f64::from(i / 40)).collect();
        for (at, boundary) in quantiles(&many, 10).unwrap().into_iter().enumerate() {
            assert!((boundary - (at + 1) as f64 * 1000.0).abs() < 100.0, "{at}: {boundary}");
        }
    }

    /// A bug: the standard deviation of equal values was 1.5e-14, and inputs became tens of thousands.
    #[test]
    fn equal_values_have_no_deviation() {
        for value in [0.1, 123_456.789, f64::from(7.0_f32.ln_1p()), -1e30, 1.7e18] {
            let mut moments = Moments::default();
            for rows in [1, 999, 8192, 3] {
                moments.add(&vec![value; rows], 2);
            }
            let DenseStatistics { mean, std, min, max, values, missing, .. } =
                moments.of(&DenseColumn::from("x".to_owned())).unwrap();
            assert_eq!((mean, std, min, max, values, missing), (value, 0.0, value, value, Some(9195), Some(8)));
        }
    }

    proptest! {
        #[test]
        fn batches_of_any_size_give_the_moments_of_all_values(
            batches in prop::collection::vec(prop::collection::vec((900.0_f64..1000.0, any::<bool>()), 0..20), 1..20)
        ) {
            let mut moments = Moments::default();
            let there = |batch: &[(f64, bool)]| -> Vec<f64> {
                batch.iter().filter(|(_, missing)| !missing).map(|&(value, _)| value).collect()
            };
            for batch in &batches {
                let values = there(batch);
                moments.add(&values, (batch.len() - values.len()) as u64);
            }
            let all: Vec<f64> = batches.iter().flat_map(|batch| there(batch)).collect();
            prop_assert_eq!(moments.values, all.len() as u64);
            if all.is_empty() {
                prop_assert!(moments.of(&DenseColumn::from("x".to_owned())).is_err());
                return Ok(());
            }
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let std = (all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
            let found = moments.of(&DenseColumn::from("x".to_owned())).unwrap();
            prop_assert!((found.mean - mean).abs() < 1e-9 && (found.std - std).abs() < 1e-9, "{found:?} {mean} {std}");
            prop_assert_eq!(found.min, all.iter().copied().fold(f64::INFINITY, f64::min));
            prop_assert_eq!(found.max, all.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let json = serde_json::to_string(&found).unwrap();
            prop_assert_eq!(serde_json::from_str::<DenseStatistics>(&json).unwrap(), found);
            let toml = toml::to_string(&found).unwrap();
            prop_assert_eq!(toml::from_str::<DenseStatistics>(&toml).unwrap(), found);
        }
    }
}
