//! A dense feature: a column, what stands for a missing value, and what becomes of the others.

use forebay_actors::Fault;
use forebay_connectors::ValueKind;
use serde::{Deserialize, Serialize};

use super::Columns;

/// Most numbers of a list.
const MOST_NUMBERS: usize = 16_384;

/// One dense feature. A value is clipped, then transformed, then scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseColumn {
    /// Name of the column, or a range.
    pub column: String,
    /// The column has a list of this many numbers in each row, for instance `64`: a vector that another model computed. Each number is an
    /// input of the model, and the options apply to each. A list that is missing is as many missing values, and a row with a list of
    /// another length is a bad row. Default: the column has one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// Transform of its values.
    #[serde(default)]
    pub transform: Transform,
    /// The value of the column that stands for a missing one, for instance `0`. Default: a missing value is 0 after transform and scale,
    /// which is the mean for "z_score". With `fill` or `indicator` NaN is a missing value; without, a row with NaN is a bad row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// Adds an input of the model: 1 where the value (of a list, one of its values) is missing, else 0. It comes after the feature's own
    /// inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indicator: bool,
    /// Limits of the column's values: a value beyond one becomes the limit, before the transform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
    /// Scale of the transformed values, by `columns.statistics`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
}

/// Limits of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clip {
    /// The smallest value, for instance `0`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The largest value, for instance `1000`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// A transform of dense values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// `log1p` for integers, `none` for floating-point numbers, booleans and the numbers of CSV.
    #[default]
    Auto,
    /// The value itself.
    None,
    /// sign(x) · ln(1 + |x|).
    Log1p,
    /// ln(x). A row with a value of 0 or less is a bad row: set `clip.min`.
    Log,
    /// The hour of a timestamp in UTC, 0 to 23. Text of CSV must be a date or a timestamp: `2026-11-20 03:04:05`, also with `T` and a
    /// time zone.
    Hour,
    /// The day of the week of a date or a timestamp in UTC: 0 for Monday to 6 for Sunday.
    Weekday,
}

/// A scale of transformed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// (x - mean) / std, and 0 if the standard deviation is 0.
    ZScore,
    /// (x - min) / (max - min), and 0 if both are equal. Values that the statistics have not seen may lie outside 0 to 1: see `clip`.
    MinMax,
}

/// What is known about the clipped and transformed values of a dense feature, over rows where it is not missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseStatistics {
    /// Mean.
    pub mean: f64,
    /// Standard deviation (of the population: divided by the number of values).
    pub std: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The transform of the values that they describe.
    #[serde(default)]
    pub transform: Transform,
    /// Their limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
    /// Rows that have a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<u64>,
    /// Rows where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
}

impl Transform {
    /// What its values are in text.
    pub(super) fn in_text(self) -> ValueKind {
        match self {
            Self::Hour | Self::Weekday => ValueKind::Text,
            Self::Auto | Self::None | Self::Log1p | Self::Log => ValueKind::Number,
        }
    }
}

impl DenseColumn {
    /// Whether NaN is a missing value of this column.
    pub fn takes_nan(&self) -> bool {
        self.fill.is_some() || self.indicator
    }

    /// Inputs of the model that are made of it.
    pub fn inputs(&self) -> usize {
        self.length.unwrap_or(1) + usize::from(self.indicator)
    }

    /// Whether it is a plain number that no option changes but the transforms `none` and `log1p`.
    pub fn is_plain(&self) -> bool {
        let plain =
            self.length.is_none() && matches!(self.transform, Transform::Auto | Transform::None | Transform::Log1p);
        plain && !self.takes_nan() && self.clip.is_none() && self.scale.is_none()
    }

    /// The fault names the column and the option.
    pub(super) fn check(&self, columns: &Columns) -> Result<(), Fault> {
        let name = &self.column;
        let refuse = |what: String| Err(Fault::user(format!("columns.dense: `{name}`: {what}")));
        if let Some(length) = self.length {
            if !(1..=MOST_NUMBERS).contains(&length) {
                return refuse(format!("length is {length}, expected 1 to {MOST_NUMBERS}"));
            }
            if matches!(self.transform, Transform::Hour | Transform::Weekday) {
                return refuse("length is for lists of numbers, and transform for timestamps: leave one out".into());
            }
            if self.scale.is_some() {
                return refuse("scale needs the statistics of one number: leave it out for a list".into());
            }
        }
        if self.fill.is_some_and(|fill| !fill.is_finite()) {
            return refuse("fill is not a finite number".into());
        }
        if let Some(Clip { min, max }) = self.clip {
            if min.is_none() && max.is_none() {
                return refuse("clip has neither min nor max".into());
            }
            if min.is_some_and(f64::is_nan) || max.is_some_and(f64::is_nan) || min.zip(max).is_some_and(|(a, b)| a > b)
            {
                return refuse("clip.min is above clip.max, or one of them is not a number".into());
            }
            if matches!(self.transform, Transform::Hour | Transform::Weekday) {
                return refuse(
                    "clip limits numbers, and the column has timestamps: leave one of clip and transform out".into(),
                );
            }
        }
        if self.fill.is_some() && matches!(self.transform, Transform::Hour | Transform::Weekday) {
            return refuse(
                "fill is a value of the column, which has timestamps: leave it out, then a missing value is 0, and add \
                 indicator = true to tell it from a 0"
                    .into(),
            );
        }
        match self.scale {
            None => Ok(()),
            Some(_) => self.check_statistics(columns),
        }
    }

    fn check_statistics(&self, columns: &Columns) -> Result<(), Fault> {
        let name = &self.column;
        let compute = "`forebay data stats JOB --write` computes them";
        let Some(statistics) = columns.statistics_of(name) else {
            return Err(Fault::user(format!(
                "columns.dense: `{name}` has a scale, but columns.statistics says nothing about it: {compute}"
            )));
        };
        let DenseStatistics { mean, std, min, max, transform, clip, .. } = *statistics;
        if ![mean, std, min, max].into_iter().all(f64::is_finite) || std < 0.0 || min > max {
            return Err(Fault::user(format!(
                "columns.statistics.{name}: mean, std, min and max must be finite, std at least 0, min at most max"
            )));
        }
        if transform != self.transform || clip != self.clip {
            return Err(Fault::user(format!(
                "columns.statistics.{name} is of other values: transform or clip differ from those of `{name}` in columns.dense: \
                 {compute}"
            )));
        }
        Ok(())
    }
}

impl From<String> for DenseColumn {
    fn from(column: String) -> Self {
        let transform = Transform::default();
        Self { column, length: None, transform, fill: None, indicator: false, clip: None, scale: None }
    }
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn options_without_meaning_are_refused_by_name() {
        let check = |text: &str| toml::from_str::<Columns>(text).unwrap().check();
        let statistics = "[statistics.x]\nmean = 0\nstd = 1\nmin = 0\nmax = 2\ntransform = 'log1p'\n";
        for (dense, words) in [
            ("{ column = 'x', fill = nan }", "fill is not a finite number"),
            ("{ column = 'x', clip = {} }", "neither min nor max"),
            ("{ column = 'x', length = 0 }", "length is 0, expected 1 to"),
            ("{ column = 'x', length = 3, transform = 'hour' }", "leave one out"),
            ("{ column = 'x', length = 3, scale = 'z_score' }", "leave it out for a list"),
            ("{ column = 'x', clip = { min = 3, max = 2 } }", "clip.min is above clip.max"),
            ("{ column = 'x', transform = 'hour', clip = { min = 3 } }", "timestamps"),
            ("{ column = 'x', transform = 'weekday', fill = 3 }", "indicator = true"),
            ("{ column = 'y', scale = 'z_score' }", "`y` has a scale, but columns.statistics says nothing"),
            ("{ column = 'x', scale = 'z_score' }", "columns.statistics.x is of other values"),
            ("{ column = 'x', transform = 'log1p', scale = 'z_score', clip = { max = 9 } }", "of other values"),
        ] {
            let said = check(&format!("dense = [{dense}]\nslots = []\n{statistics}")).unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        check(&format!("dense = [{{ column = 'x', transform = 'log1p', scale = 'min_max' }}]\n{statistics}")).unwrap();
        let broken = statistics.replace("std = 1", "std = -1");
        let said = check(&format!("dense = [{{ column = 'x', transform = 'log1p', scale = 'min_max' }}]\n{broken}"));
        assert!(said.unwrap_err().to_string().contains("columns.statistics.x: mean, std"));
    }

    #[test]
    fn text_has_no_lists() {
        let columns: Columns = toml::from_str("dense = [{ column = 'x', length = 3 }]").unwrap();
        let refused = columns.in_files(forebay_connectors::Format::Csv).unwrap_err().to_string();
        assert!(refused.contains("`x` has a length, but CSV has no lists"), "{refused}");
        assert_eq!(columns.dense_inputs(), 3);
    }
}
