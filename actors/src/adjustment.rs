//! A change of the replicas of stages while a run goes on: what, when, why, and its effect.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A change of replicas that was made at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Adjustment {
    /// Since the start of the run; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub at: Duration,
    /// The stages whose replicas changed.
    pub stages: Vec<ScaledStage>,
    /// The reason, from the meters.
    pub why: String,
    /// Rows per second before.
    pub rows_per_second: f64,
    /// Rows per second after it, once that is measured.
    #[serde(default)]
    pub rows_per_second_after: Option<f64>,
    /// It did not help, so the replicas are as they were before.
    #[serde(default)]
    pub rolled_back: bool,
    /// In the report of several processes, the process that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// The replicas of a stage before and after an [`Adjustment`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaledStage {
    /// The stage.
    pub stage: String,
    /// Its replicas before.
    pub from: usize,
    /// Its replicas from then on.
    pub to: usize,
}

impl Adjustment {
    /// A report keeps the newest ones, at most this many.
    pub const MOST_KEPT: usize = 100;

    /// The stages and their replicas: `parse 1 → 3, batch 1 → 2 replicas`.
    pub fn what(&self) -> String {
        let stages = self.stages.iter().map(|ScaledStage { stage, from, to }| format!("{stage} {from} → {to}"));
        format!("{} replicas", stages.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Adjustment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(process) = &self.process {
            write!(f, "{process}: ")?;
        }
        write!(f, "{} after {:.0} s: {}", self.what(), self.at.as_secs_f64(), self.why)?;
        let before = Speed(self.rows_per_second);
        match self.rows_per_second_after.map(Speed) {
            None => write!(f, "; throughput before {before} rows/s"),
            Some(after) if self.rolled_back => write!(f, "; throughput {before} → {after} rows/s: rolled back"),
            Some(after) => write!(f, "; throughput {before} → {after} rows/s"),
        }
    }
}

/// Rows per second in three digits or so: `2.6 M`, `31 k`.
struct Speed(f64);

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1e6 => write!(f, "{:.2} M", n / 1e6),
            n if n >= 1e4 => write!(f, "{:.0} k", n / 1e3),
            n => write!(f, "{n:.0}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_when_why_and_what_came_of_it() {
        let stage = |stage: &str, from, to| ScaledStage { stage: stage.into(), from, to };
        let mut adjustment = Adjustment {
            at: Duration::from_secs(4),
            stages: vec![stage("parse", 1, 3), stage("batch", 1, 2)],
            why: "parse 98% busy".into(),
            rows_per_second: 1_004_000.0,
            ..Adjustment::default()
        };
        let begin = "parse 1 → 3, batch 1 → 2 replicas after 4 s: parse 98% busy; throughput ";
        assert_eq!(adjustment.to_string(), format!("{begin}before 1.00 M rows/s"));
        adjustment.rows_per_second_after = Some(2.6e6);
        assert_eq!(adjustment.to_string(), format!("{begin}1.00 M → 2.60 M rows/s"));
        (adjustment.rows_per_second_after, adjustment.rolled_back) = (Some(31_400.0), true);
        adjustment.process = Some("reader 0".into());
        assert_eq!(adjustment.to_string(), format!("reader 0: {begin}1.00 M → 31 k rows/s: rolled back"));
    }
}
