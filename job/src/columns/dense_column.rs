//! A dense feature: a column, the number for a missing value, and the transform of the others.

use std::collections::HashMap;

use forebay_actors::Fault;
use forebay_connectors::ValueKind;
use serde::{Deserialize, Serialize};

use super::Columns;
use super::transform::Transform;
use super::unix_unit::{UnixUnit, offset_microseconds, times_in_text};

/// Most numbers of a list.
const MOST_NUMBERS: usize = 16_384;

/// One dense feature. A value is clipped, then transformed, then scaled, then limited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseColumn {
    /// Name of the column, or a range.
    pub column: String,
    /// The column has a list of this many numbers in each row, for instance `64`: a vector that another model computed. Each number is an
    /// input of the model, and the options apply to each. A missing list counts as this many missing values. A row with a list of another
    /// length is a bad row. Default: the column has one number. From 1 to 16384.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// Transform of its values. With `auto` and no scale, a sample of 65,536 rows at `data.train` decides before the training whether
    /// the feature needs a "z_score", with a limit of 10, or `log1p`, and the model keeps that. Lists, and jobs with
    /// `data.source` or `pipeline.after_read`, are left out.
    #[serde(default)]
    pub transform: Transform,
    /// For `age_days` and `age_hours`, the end of the age: a column of dates or timestamps, such as the time of the event, or a moment in
    /// UTC, `2026-11-20` or `2026-11-20T03:04:05`; for instance `event_time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// For `hour`, `weekday`, `age_days` and `age_hours` of a column of integers: their unit. They count the time since 1970 in UTC, such
    /// as unix seconds; so do 64-bit floating-point numbers, whose fractions are rounded down. In CSV and JSON lines the column then has
    /// numbers, and no text. Other files may also have dates and timestamps there, which have their own unit. A time that is not in the
    /// years 1 to 9999 makes a bad row. Default: integers are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnixUnit>,
    /// The same for the integers of a column in `at`. Default: `unit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unit: Option<UnixUnit>,
    /// For `hour` and `weekday`: a fixed offset from UTC, for instance `+05:30`. The hour and the day are then those of clocks at this
    /// offset, the whole year. A date keeps its day. From `-14:00` to `+14:00`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc_offset: Option<String>,
    /// The value that replaces a missing value, before `clip` and `transform`, for instance `0`. Default: a missing value is 0 after
    /// transform and scale, which is the mean for "z_score". With `fill` or `indicator` NaN is a missing value; without, a row with NaN is
    /// a bad row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// Adds an input of the model: 1 where the value (of a list, one of its values) is missing, else 0. It comes after the feature's own
    /// inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indicator: bool,
    /// Limits of the column's values, applied before the transform: a value beyond a limit becomes the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
    /// Scale of the transformed values, by `columns.statistics`. Default: none, but see `transform`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// Limit of the scaled value: a finite value beyond ±limit becomes ±limit, for instance `10`. A missing value without `fill` is 0 all
    /// the same. Needs a `scale`. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
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

/// A scale of transformed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// (x - mean) / std, and 0 if the standard deviation is 0.
    ZScore,
    /// (x - min) / (max - min), and 0 if both are equal. Values beyond those of the statistics are outside 0 to 1: see `clip`.
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
    /// The transform of the values that they describe. For a feature with `auto` this is what `auto` meant, `none` or `log1p`; if it is
    /// `auto`, nothing is known.
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

impl DenseColumn {
    /// The column of the moment at which an age is measured.
    pub fn at_column(&self) -> Option<&String> {
        self.at.as_ref().filter(|at| !is_moment(at))
    }

    /// The moment at which an age is measured, if it is the same for all rows: microseconds since 1970.
    pub fn at_moment(&self) -> Option<i64> {
        self.at.as_deref().filter(|at| is_moment(at)).and_then(microseconds)
    }

    /// The unit of the integers of the column in `at`.
    pub fn unit_of_at(&self) -> Option<UnixUnit> {
        self.at_unit.or(self.unit)
    }

    /// `utc_offset` in microseconds; 0 is UTC.
    pub fn utc_offset_microseconds(&self) -> i64 {
        self.utc_offset.as_deref().and_then(offset_microseconds).unwrap_or(0)
    }

    /// The type of the feature's values in text files.
    pub(super) fn in_text(&self) -> ValueKind {
        if self.transform.is_of_time() { times_in_text(self.unit) } else { ValueKind::Number }
    }

    /// The type of the values of the column in `at` in text files.
    pub(super) fn at_in_text(&self) -> ValueKind {
        times_in_text(self.unit_of_at())
    }

    /// Whether NaN is a missing value of this column.
    pub fn takes_nan(&self) -> bool {
        self.fill.is_some() || self.indicator
    }

    /// How many inputs of the model the feature has.
    pub fn inputs(&self) -> usize {
        self.length.unwrap_or(1) + usize::from(self.indicator)
    }

    /// Whether the feature is one number, without options other than the transforms `none` and `log1p`.
    pub fn is_plain(&self) -> bool {
        let plain = self.length.is_none() && self.transform.is_plain();
        plain && !self.takes_nan() && self.clip.is_none() && self.scale.is_none()
    }

    /// The fault names the column and the option. `scaled` has the features with a scale, by column.
    pub(super) fn check(&self, columns: &Columns, scaled: &HashMap<&str, Vec<&Self>>) -> Result<(), Fault> {
        let name = &self.column;
        let refuse = |what: String| Err(Fault::user(format!("columns.dense: `{name}`: {what}")));
        match &self.at {
            None if self.transform.is_age() => {
                return refuse("an age needs `at`: set it to a column of dates or timestamps, or to a moment".into());
            }
            Some(_) if !self.transform.is_age() => {
                return refuse("at is for transform = \"age_days\" or \"age_hours\": set one, or leave it out".into());
            }
            Some(at) if is_moment(at) && microseconds(at).is_none() => {
                return refuse(format!(
                    "at is `{at}`, expected a moment such as 2026-11-20 or 2026-11-20T03:04:05, or a column"
                ));
            }
            _ => {}
        }
        if self.length.is_some() && self.transform.is_age() {
            return refuse("length is for lists of numbers, and an age is of one moment: leave one out".into());
        }
        if let Some(length) = self.length {
            if !(1..=MOST_NUMBERS).contains(&length) {
                return refuse(format!("length is {length}, expected 1 to {MOST_NUMBERS}"));
            }
            if self.transform.is_calendar_part() {
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
            if self.transform.is_calendar_part() {
                return refuse(
                    "clip limits numbers, and the column has timestamps: leave one of clip and transform out".into(),
                );
            }
        }
        if self.fill.is_some() && self.transform.is_calendar_part() {
            return refuse(
                "fill is a value of the column, which has timestamps: leave it out, then a missing value is 0, and add \
                 indicator = true to tell it from a 0"
                    .into(),
            );
        }
        match (self.limit, self.scale) {
            (Some(limit), _) if !(limit.is_finite() && limit > 0.0) => {
                return refuse(format!("limit is {limit}, expected a finite number above 0"));
            }
            (Some(_), None) => return refuse("limit is one of scaled values: add a scale, or use clip".into()),
            _ => {}
        }
        match self.scale {
            None => Ok(()),
            Some(_) => self.check_shared_statistics(scaled).and_then(|()| self.check_statistics(columns)),
        }
    }

    /// A column has one entry in `columns.statistics`, so all of its features with a scale must have the same values before it.
    fn check_shared_statistics(&self, scaled: &HashMap<&str, Vec<&Self>>) -> Result<(), Fault> {
        let mut scaled = scaled.get(self.column.as_str()).into_iter().flatten();
        match scaled.find(|other| other.before_scale() != self.before_scale()) {
            None => Ok(()),
            Some(other) => Err(Fault::user(format!(
                "columns.dense: {} and {} need other statistics, and columns.statistics has one entry for a column: leave out the scale \
                 of one of them, or write the column twice into the rows, under two names",
                self.described(),
                other.described()
            ))),
        }
    }

    /// What decides about the values that are scaled.
    fn before_scale(&self) -> (Transform, Option<Clip>, Option<&str>, i64) {
        (self.transform, self.clip, self.at.as_deref(), self.utc_offset_microseconds())
    }

    /// The feature as a job file has it.
    fn described(&self) -> String {
        toml::Value::try_from(self).map_or_else(|_| format!("`{}`", self.column), |value| value.to_string())
    }

    fn check_statistics(&self, columns: &Columns) -> Result<(), Fault> {
        let name = &self.column;
        let compute = "`forebay data stats JOB --write` computes them";
        let Some(statistics) = columns.statistics_of(name) else {
            return Err(Fault::user(format!(
                "columns.dense: `{name}` has a scale, but columns.statistics has no entry for it: {compute}"
            )));
        };
        let DenseStatistics { mean, std, min, max, transform, clip, .. } = *statistics;
        if ![mean, std, min, max].into_iter().all(f64::is_finite) || std < 0.0 || min > max {
            return Err(Fault::user(format!(
                "columns.statistics.{name}: mean, std, min and max must be finite, std at least 0, min at most max"
            )));
        }
        // `auto` is one of the two in the rows that they describe; the types of other rows are not known here.
        let of_auto = self.transform == Transform::Auto && transform.may_be_auto();
        if (transform != self.transform && !of_auto) || clip != self.clip {
            return Err(Fault::user(format!(
                "columns.statistics.{name} was computed with another transform or clip than `{name}` has in \
                 columns.dense: {compute}"
            )));
        }
        Ok(())
    }
}

/// A moment begins with a digit, and no column does.
fn is_moment(at: &str) -> bool {
    at.starts_with(|first: char| first.is_ascii_digit())
}

/// `2026-11-20` or `2026-11-20T03:04:05` (or with a space), in UTC.
fn microseconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, between: char, lengths: [usize; 3]| {
        let parts: Vec<&str> = text.split(between).collect();
        let fits = parts.len() == 3 && parts.iter().zip(lengths).all(|(part, length)| part.len() == length);
        let digits = fits && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        digits.then(|| parts.iter().filter_map(|part| part.parse::<i64>().ok()).collect::<Vec<_>>())
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?[..] else { return None };
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?[..] else { return None };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let of_month = *days_of.get(usize::try_from(month - 1).ok()?)?;
    if !(1..=of_month).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let before = year - 1;
    let years = 365 * before + before / 4 - before / 100 + before / 400;
    let days = years + days_of[..month as usize - 1].iter().sum::<i64>() + day - 1 - 719_162;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000)
}

impl From<String> for DenseColumn {
    fn from(column: String) -> Self {
        Self {
            column,
            length: None,
            transform: Transform::default(),
            at: None,
            unit: None,
            at_unit: None,
            utc_offset: None,
            fill: None,
            indicator: false,
            clip: None,
            scale: None,
            limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01", Some(0)),
            ("2026-11-20T03:04:05", Some(1_795_143_845)),
            ("2026-11-20 03:04:05", Some(1_795_143_845)),
            ("2000-02-29", Some(951_782_400)),
            ("1969-12-31T23:59:59", Some(-1)),
            ("1900-02-29", None),
            ("2026-13-01", None),
            ("2026-11-20T24:00:00", None),
            ("2026-11", None),
            ("20261120", None),
            ("2026-11-2x", None),
        ] {
            assert_eq!(super::microseconds(text), seconds.map(|seconds: i64| seconds * 1_000_000), "{text}");
        }
    }

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
            ("{ column = 'x', transform = 'age_days' }", "an age needs `at`"),
            ("{ column = 'x', at = 'y' }", "at is for transform = \"age_days\""),
            (
                "{ column = 'x', transform = 'age_hours', at = '2026-02-30' }",
                "at is `2026-02-30`, expected a moment such as",
            ),
            ("{ column = 'x', transform = 'age_hours', at = 'y', length = 2 }", "an age is of one moment"),
            ("{ column = 'x', limit = 3 }", "limit is one of scaled values: add a scale, or use clip"),
            ("{ column = 'x', transform = 'log1p', scale = 'z_score', limit = 0 }", "limit is 0, expected a finite"),
            ("{ column = 'y', scale = 'z_score' }", "`y` has a scale, but columns.statistics has no entry"),
            (
                "{ column = 'x', transform = 'none', scale = 'z_score' }",
                "columns.statistics.x was computed with another transform",
            ),
            ("{ column = 'x', transform = 'log1p', scale = 'z_score', clip = { max = 9 } }", "another transform"),
        ] {
            let said = check(&format!("dense = [{dense}]\nslots = []\n{statistics}")).unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        check(&format!("dense = [{{ column = 'x', transform = 'log1p', scale = 'min_max' }}]\n{statistics}")).unwrap();
        let auto = |transform: &str| {
            let statistics = statistics.replace("log1p", transform);
            check(&format!("dense = [{{ column = 'x', scale = 'min_max' }}]\n{statistics}"))
        };
        assert!(["auto", "none", "log1p"].into_iter().all(|transform| auto(transform).is_ok()));
        assert!(["log", "hour"].into_iter().all(|transform| auto(transform).is_err()), "`auto` is never one of these");
        let broken = statistics.replace("std = 1", "std = -1");
        let said = check(&format!("dense = [{{ column = 'x', transform = 'log1p', scale = 'min_max' }}]\n{broken}"));
        assert!(said.unwrap_err().to_string().contains("columns.statistics.x: mean, std"));
    }

    /// A bug: the fault advised `forebay data stats --write`, also when that very command printed it.
    #[test]
    fn a_column_has_statistics_for_one_feature_with_a_scale() {
        let check = |dense: &str| {
            let statistics = "[statistics.t]\nmean = 0\nstd = 1\nmin = 0\nmax = 2\ntransform = 'hour'\n";
            toml::from_str::<Columns>(&format!("dense = [{dense}]\nslots = []\n{statistics}")).unwrap().check()
        };
        let hour = "{ column = 't', transform = 'hour', scale = 'min_max' }";
        for (other, words) in [
            ("{ column = 't', transform = 'age_hours', at = 'u', scale = 'z_score' }", r#"transform = "age_hours""#),
            ("{ column = 't', transform = 'none', scale = 'min_max' }", r#"transform = "none""#),
        ] {
            let said = check(&format!("{hour}, {other}")).unwrap_err().to_string();
            let both = said.contains(words) && said.contains(r#"transform = "hour""#);
            assert!(both && said.contains("one entry for a column") && !said.contains("data stats"), "{said}");
        }
        let ages = "{ column = 't', transform = 'age_days', at = '2026-01-01', scale = 'z_score' }";
        assert!(check(&format!("{ages}, {}", ages.replace("2026", "2027"))).is_err(), "ages at two moments");
        check(&format!("{hour}, {}", hour.replace("min_max", "z_score"))).unwrap();
        check(&format!("{hour}, {{ column = 't', transform = 'weekday' }}")).unwrap();
    }

    #[test]
    fn text_has_no_lists() {
        let columns: Columns = toml::from_str("dense = [{ column = 'x', length = 3 }]").unwrap();
        let refused = columns.in_files(forebay_connectors::Format::Csv).unwrap_err().to_string();
        assert!(refused.contains("`x` has a length, but CSV has no lists"), "{refused}");
        assert_eq!(columns.dense_inputs(), 3);
    }
}
