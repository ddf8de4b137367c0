//! The history of a run: samples of its meters, at most [`MOST`] of them for a run of any length.

use std::time::{Duration, Instant};

use crate::pipelines::{RunReport, RunningTraining, Snapshot};
use crate::time_left::TimeLeft;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::sample::{Sample, StageTimes};

/// The most samples. At one more, every second one is left out, and the time between two is doubled.
const MOST: usize = 512;

/// The time between two samples, at first.
const EVERY: Duration = Duration::from_millis(200);

/// The samples of a run. In JSON one list for each value, with an entry for each sample.
pub(crate) struct History {
    samples: Vec<Sample>,
    every: Duration,
    next: Instant,
    left: TimeLeft,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { samples: Vec::new(), every: EVERY, next: Instant::now(), left: TimeLeft::default() }
    }

    /// The time that is left when this share of the run is done.
    pub(crate) fn left(&self, share: f64) -> Option<Duration> {
        self.left.at(share)
    }

    /// Takes a sample if it is time for one.
    pub(crate) fn follow(&mut self, running: &RunningTraining) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.every;
        let report = running.run_report();
        self.left.follow(running.position().share, &report);
        self.add(Sample::of(&running.progress(), &report));
    }

    /// Takes the sample of the end of the run.
    pub(crate) fn ends(&mut self, progress: &Snapshot, report: &RunReport) {
        self.add_last(Sample::of(progress, report));
    }

    /// If the sample before is too near, this one replaces it: their difference would say nothing.
    fn add_last(&mut self, sample: Sample) {
        if self.samples.len() > 1 {
            self.samples.pop_if(|last| sample.seconds - last.seconds < EVERY.as_secs_f64() / 2.0);
        }
        self.add(sample);
    }

    fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
        if self.samples.len() > MOST {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    fn each<T>(&self, value: impl Fn(&Sample) -> T) -> Vec<T> {
        self.samples.iter().map(value).collect()
    }
}

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // In a cluster the stages of other processes come later than the first sample.
        let last = self.samples.last();
        let stages = last.iter().flat_map(|last| &last.stages).map(|StageTimes { name, .. }| {
            let times = |value: fn(&StageTimes) -> f64| {
                self.each(|sample| sample.stages.iter().find(|stage| stage.name == *name).map_or(0.0, value))
            };
            let replicas = |sample: &Sample| {
                sample.stages.iter().find(|stage| stage.name == *name).map_or(0, |stage| stage.replicas)
            };
            json!({
                "name": name,
                "replicas": self.each(replicas),
                "busy": times(|stage| stage.busy),
                "waiting": times(|stage| stage.waiting),
                "starved": times(|stage| stage.starved),
                "blocked": times(|stage| stage.blocked),
            })
        });
        let links = last.iter().flat_map(|last| &last.links).map(|(to, _)| {
            let depth = |sample: &Sample| sample.links.iter().find(|link| link.0 == *to).map_or(0, |link| link.1);
            json!({ "to": to, "depth": self.each(depth) })
        });
        json!({
            "seconds": self.each(|sample| sample.seconds),
            "rows": self.each(|sample| sample.rows),
            "all_rows": self.each(|sample| sample.all_rows),
            "bytes": self.each(|sample| sample.bytes),
            "store_bytes": self.each(|sample| sample.store_bytes),
            "table_rows": self.each(|sample| sample.table_rows),
            "logloss": self.each(|sample| sample.logloss),
            "auc": self.each(|sample| sample.auc),
            "stages": stages.collect::<Vec<_>>(),
            "links": links.collect::<Vec<_>>(),
        })
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: usize) -> Sample {
        let stage = |name: &str| StageTimes {
            name: name.into(),
            replicas: 1,
            busy: number as f64,
            waiting: 0.0,
            starved: 0.0,
            blocked: 0.0,
            wall: number as f64,
        };
        // The reader is known from the third sample on.
        let names = if number < 2 { &["train"][..] } else { &["read", "train"] };
        Sample {
            seconds: number as f64,
            rows: number as u64,
            all_rows: 2 * number as u64,
            bytes: 10 * number as u64,
            store_bytes: 4 * number as u64,
            table_rows: 5 * number as u64,
            logloss: 0.5,
            auc: None,
            stages: names.iter().map(|name| stage(name)).collect(),
            links: vec![("train".into(), 3)],
        }
    }

    #[test]
    fn a_long_run_has_a_bounded_number_of_samples_evenly_spaced() {
        let mut history = History::new();
        for number in 0..5000 {
            // As `follow` does: no sample is taken before it is due.
            if number % (history.every.as_millis() / EVERY.as_millis()) as usize == 0 {
                history.add(sample(number));
            }
        }
        assert!(history.samples.len() <= MOST && history.samples.len() > MOST / 2);
        let steps: Vec<f64> = history.samples.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    }

    #[test]
    fn the_last_sample_is_that_of_the_end() {
        let mut history = History::new();
        (0..3).for_each(|number| history.add(sample(number)));
        let end = |seconds| Sample { seconds, ..sample(9) };
        history.add_last(end(2.5));
        assert_eq!(history.each(|sample| sample.seconds), [0.0, 1.0, 2.0, 2.5]);
        history.add_last(end(2.55));
        assert_eq!(history.each(|sample| sample.seconds), [0.0, 1.0, 2.0, 2.55]);
    }

    #[test]
    fn every_list_has_an_entry_for_each_sample() {
        let mut history = History::new();
        (0..4).for_each(|number| history.add(sample(number)));
        let json = serde_json::to_value(&history).unwrap();
        assert_eq!(json["seconds"], json!([0.0, 1.0, 2.0, 3.0]));
        assert_eq!((&json["rows"], &json["all_rows"]), (&json!([0, 1, 2, 3]), &json!([0, 2, 4, 6])));
        assert_eq!(json["bytes"], json!([0, 10, 20, 30]));
        assert_eq!(json["store_bytes"], json!([0, 4, 8, 12]));
        assert_eq!(json["table_rows"], json!([0, 5, 10, 15]));
        assert_eq!(json["stages"][0]["name"], "read");
        assert_eq!(json["stages"][0]["busy"], json!([0.0, 0.0, 2.0, 3.0]));
        assert_eq!(json["stages"][0]["replicas"], json!([0, 0, 1, 1]));
        assert_eq!(json["links"], json!([{ "to": "train", "depth": [3, 3, 3, 3] }]));
    }
}
