//! A change of replicas, threads or read-ahead while a run goes on: what, when, why, and its effect.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lock::lock;
use crate::numbers::size;

/// A change that was made at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Adjustment {
    /// Since the start of the run; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub at: Duration,
    /// The stages that changed.
    pub stages: Vec<ScaledStage>,
    /// The reason, from the meters.
    pub why: String,
    /// Rows per second before.
    pub rows_per_second: f64,
    /// Rows per second after it, once that is measured.
    #[serde(default)]
    pub rows_per_second_after: Option<f64>,
    /// It did not help, so all is as it was before.
    #[serde(default)]
    pub rolled_back: bool,
    /// In the report of several processes, the process that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// A knob of a stage before and after an [`Adjustment`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaledStage {
    /// The stage.
    pub stage: String,
    /// The number before.
    pub from: usize,
    /// The number from then on.
    pub to: usize,
    /// What the number counts; not written for replicas.
    #[serde(default, skip_serializing_if = "TunedKnob::is_replicas")]
    pub knob: TunedKnob,
}

/// What can change while a run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TunedKnob {
    /// Replicas of a stage.
    #[default]
    Replicas,
    /// Threads that decode for a source.
    DecodeThreads,
    /// Bytes that a source fetches ahead of decoding, at most.
    ReadAhead,
    /// Threads of dense compute.
    Threads,
}

impl TunedKnob {
    fn is_replicas(&self) -> bool {
        *self == Self::Replicas
    }

    fn number(self, n: usize) -> String {
        if self == Self::ReadAhead { size(n as u64) } else { n.to_string() }
    }

    /// The words behind the numbers.
    fn noun(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::DecodeThreads => "decode threads",
            Self::ReadAhead => "of read-ahead",
            Self::Threads => "threads",
        }
    }
}

impl Adjustment {
    /// A report keeps the newest ones, at most this many.
    pub const MOST_KEPT: usize = 100;

    /// The stages and their numbers: `parse 1 → 3, batch 1 → 2 replicas`. All stages of an adjustment change the same knob.
    pub fn what(&self) -> String {
        let number = |ScaledStage { stage, from, to, knob }: &ScaledStage| {
            format!("{stage} {} → {}", knob.number(*from), knob.number(*to))
        };
        let noun = self.stages.first().map_or(TunedKnob::Replicas, |stage| stage.knob).noun();
        format!("{} {noun}", self.stages.iter().map(number).collect::<Vec<_>>().join(", "))
    }
}

/// The changes of a run, by the parts of the run that make them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjustments(Arc<Mutex<BTreeMap<String, Vec<Adjustment>>>>);

impl Adjustments {
    /// Sets the changes that this part has made. They replace earlier ones of the part.
    pub(crate) fn set(&self, part: &str, made: Vec<Adjustment>) {
        lock(&self.0).insert(part.to_owned(), made);
    }

    /// Adds a change of this part.
    pub(crate) fn add(&self, part: &str, made: Adjustment) {
        let mut all = lock(&self.0);
        let of_part = all.entry(part.to_owned()).or_default();
        if of_part.len() >= Adjustment::MOST_KEPT {
            of_part.remove(0);
        }
        of_part.push(made);
    }

    /// Says what came of the newest change of this part.
    pub(crate) fn verified(&self, part: &str, rows_per_second: f64, rolled_back: bool) {
        if let Some(newest) = lock(&self.0).get_mut(part).and_then(|made| made.last_mut()) {
            (newest.rows_per_second_after, newest.rolled_back) = (Some(rows_per_second), rolled_back);
        }
    }

    /// The newest changes of all parts, in the order of time.
    pub(crate) fn all(&self) -> Vec<Adjustment> {
        let mut all: Vec<Adjustment> = lock(&self.0).values().flatten().cloned().collect();
        all.sort_by_key(|made| made.at);
        all.drain(..all.len().saturating_sub(Adjustment::MOST_KEPT));
        all
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
        let stage = |stage: &str, from, to| ScaledStage { stage: stage.into(), from, to, ..ScaledStage::default() };
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

    #[test]
    fn a_line_has_the_unit_of_its_knob_and_json_names_it_unless_it_is_replicas() {
        let of = |knob| Adjustment {
            stages: vec![ScaledStage { stage: "read".into(), from: 64_000_000, to: 128_000_000, knob }],
            ..Adjustment::default()
        };
        assert_eq!(of(TunedKnob::ReadAhead).what(), "read 64.0 MB → 128.0 MB of read-ahead");
        assert_eq!(of(TunedKnob::DecodeThreads).what(), "read 64000000 → 128000000 decode threads");
        for (knob, named) in [(TunedKnob::Replicas, None), (TunedKnob::Threads, Some("threads"))] {
            let json = serde_json::to_value(of(knob)).unwrap();
            assert_eq!(json["stages"][0].get("knob").and_then(|knob| knob.as_str()), named);
            assert_eq!(serde_json::from_value::<Adjustment>(json).unwrap(), of(knob));
        }
    }

    #[test]
    fn the_changes_of_all_parts_are_in_the_order_of_time_and_the_oldest_go() {
        let (all, at) =
            (Adjustments::default(), |at| Adjustment { at: Duration::from_secs(at), ..Adjustment::default() });
        all.set("tuner", vec![at(1), at(4)]);
        all.add("read", at(2));
        all.add("read", at(3));
        all.verified("read", 7.0, true);
        all.verified("train", 7.0, true);
        let told: Vec<_> = all.all().iter().map(|made| (made.at.as_secs(), made.rolled_back)).collect();
        assert_eq!(told, [(1, false), (2, false), (3, true), (4, false)]);
        (5..200).for_each(|second| all.add("read", at(second)));
        let told: Vec<_> = all.all().iter().map(|made| made.at.as_secs()).collect();
        assert_eq!(told, (100..200).collect::<Vec<_>>());
    }
}
