//! The `[checkpoint]` section of a job.

use std::time::Duration;

use forebay_actors::Fault;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Checkpoints of a run: everything that it needs to resume after its processes died.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointOptions {
    /// The folder of the checkpoints: a path or a URL (`hdfs://`, `s3://`, `file://`), for instance `rows/checkpoints`. All
    /// processes of the run must reach it. Default: no checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// A checkpoint of another folder to resume from: the folder (its newest checkpoint), `FOLDER#NUMBER`, or the path of a manifest, for
    /// instance `rows/earlier#12`. The run writes its own checkpoints to `checkpoint.to`. With `--resume`, `from` counts only while
    /// `checkpoint.to` has none. `--resume-from` is short for this field. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The time between two checkpoints. At least 100ms.
    pub every: Interval,
    /// Also write a checkpoint after this many rows, for instance `5_000_000`. A fast run trains on more rows before it: on the batches in
    /// the links, and while another checkpoint is being written. Default: only time counts. At least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// How many checkpoints stay. Older ones are removed. At least 1.
    pub keep: usize,
    /// Every n-th checkpoint is full: it has all rows of the tables. The others have only the rows that changed. 1 makes every checkpoint
    /// full. At least 1.
    pub full_every: usize,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { to: None, from: None, every: Interval(Duration::from_secs(600)), rows: None, keep: 3, full_every: 8 }
    }
}

impl CheckpointOptions {
    /// Checks values; the fault names the field.
    pub(super) fn check(&self) -> Result<(), Fault> {
        for (name, value) in [
            ("checkpoint.keep", self.keep as u64),
            ("checkpoint.full_every", self.full_every as u64),
            ("checkpoint.rows", self.rows.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(Fault::user(format!("{name} is 0, expected at least 1")));
            }
        }
        if self.every.0 < Duration::from_millis(100) {
            return Err(Fault::user(format!("checkpoint.every is {}, expected at least 100ms", self.every)));
        }
        Ok(())
    }
}

impl CheckpointOptions {
    /// Refuses fields that say when and how checkpoints are written if none is: without [`to`](Self::to).
    pub(super) fn check_folder(&self) -> Result<(), Fault> {
        let Self { to, from: _, every, rows, keep, full_every } = self;
        if to.is_some() {
            return Ok(());
        }
        let default = Self::default();
        let rows = rows.map(|rows| ("rows", rows.to_string()));
        let every = (*every != default.every).then(|| ("every", every.to_string()));
        let keep = (*keep != default.keep).then(|| ("keep", keep.to_string()));
        let full_every = (*full_every != default.full_every).then(|| ("full_every", full_every.to_string()));
        match rows.or(every).or(keep).or(full_every) {
            None => Ok(()),
            Some((field, value)) => Err(Fault::user(format!(
                "checkpoint.{field} is {value}, but checkpoint.to is not set, so that no checkpoint would be written: set checkpoint.to to a \
                 folder, or leave {field} out"
            ))),
        }
    }
}

/// A time between two events, such as "10min".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Duration);

/// Units with their milliseconds, the largest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];

impl std::str::FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time, expected for instance 10min, 30s, 1.5h or 500ms");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let number: f64 = trimmed[..digits].parse().map_err(|_| wrong())?;
        let unit = trimmed[digits..].trim();
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let millis = number * *millis as f64;
        if millis < 1e13 { Ok(Self(Duration::from_millis(millis.round() as u64))) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = self.0.as_millis() as u64;
        let fits = |(_, unit): &(_, u64)| millis > 0 && millis.is_multiple_of(*unit);
        let (name, unit) = UNITS.into_iter().find(fits).unwrap_or(("ms", 1));
        write!(f, "{}{name}", millis / unit)
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Time;
        impl de::Visitor<'_> for Time {
            type Value = Interval;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a time, such as \"10min\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Interval, E> {
                Err(without_unit(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Interval, E> {
                Err(without_unit(number))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Interval, E> {
                Err(without_unit(number))
            }
        }
        deserializer.deserialize_any(Time)
    }
}

fn without_unit<E: de::Error>(number: impl std::fmt::Display) -> E {
    E::custom(format!("the time {number} has no unit, expected for instance \"{number}s\" or \"{number}min\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    #[test]
    fn a_number_without_a_unit_is_refused_with_its_units() {
        for (text, words) in [
            ("[checkpoint]\nevery = 10", "the time 10 has no unit, expected for instance \"10s\" or \"10min\""),
            ("[output]\nretry_for = 1.5", "the time 1.5 has no unit, expected for instance \"1.5s\""),
            ("[checkpoint]\nevery = true", "found true, expected a time, such as \"10min\""),
        ] {
            let said = Job::from_toml(text, &[]).unwrap_err().to_string();
            assert!(said.contains("line 2") && said.contains(words), "{said}");
        }
        let said = Job::with_settings("", &["checkpoint.every=10"]).unwrap_err().to_string();
        assert!(said.contains("the time 10 has no unit") && said.contains("checkpoint.every"), "{said}");
    }

    /// A bug: such a run wrote no checkpoint, and said nothing.
    #[test]
    fn fields_of_checkpoints_without_a_folder_for_them_are_refused() {
        let job = |setting: &str, to: &str| Job::with_settings("", &[setting, to]).unwrap();
        for (setting, words) in [
            ("checkpoint.rows=1000", "checkpoint.rows is 1000, but checkpoint.to is not set"),
            ("checkpoint.every=1min", "checkpoint.every is 1min, but checkpoint.to is not set"),
            ("checkpoint.keep=1", "checkpoint.keep is 1, but checkpoint.to is not set"),
            ("checkpoint.full_every=1", "checkpoint.full_every is 1, but checkpoint.to is not set"),
        ] {
            let without = job(setting, "seed=1");
            let said = without.check().unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("set checkpoint.to to a folder, or leave"), "{said}");
            without.check_saved().unwrap();
            job(setting, "checkpoint.to=checkpoints").check().unwrap();
        }
        job("checkpoint.every=10min", "checkpoint.from=earlier").check().unwrap();
    }

    #[test]
    fn times_parse_with_their_units() {
        for (text, millis) in [("10min", 600_000), ("1.5 h", 5_400_000), ("30s", 30_000), ("500ms", 500), ("0s", 0)] {
            let interval: Interval = text.parse().unwrap();
            assert_eq!(interval.0, Duration::from_millis(millis));
            assert_eq!(interval.to_string().parse(), Ok(interval));
        }
        for text in ["", "10", "-1s", "min", "1 fortnight", "1e99h", "..s"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }
}
