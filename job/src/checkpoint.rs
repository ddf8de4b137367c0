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
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
