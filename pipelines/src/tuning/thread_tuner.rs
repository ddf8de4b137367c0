//! Decides how many threads dense compute has, beside the other stages. As [`Tuner`](super::tuner::Tuner), it has no clock and no threads.
//!
//! A run begins with a thread for each core. If other stages are the limit and no core is idle, the threads of dense compute, which are
//! woken for each batch, take time from these stages: half of them may be enough. If dense compute is the limit and cores are idle, it gets
//! twice as many again. The next intervals say whether a change helped; if not, it is undone.

use std::time::Duration;

use forebay_actors::{Adjustment, ScaledStage, TunedKnob};
use forebay_base::TrialState;

use super::observation::Observation;
use super::recorded_trials::RecordedTrials;
use super::tuner::{HELPED, SATURATED};

/// No core is idle from this share of their time on.
const FULL: f64 = 0.9;

/// With half of its threads, dense compute must be expected to be occupied for at most this share of the time.
const SPARE: f64 = 0.8;

/// Chooses the threads of dense compute, between one and a thread for each core.
pub(super) struct ThreadTuner {
    cores: usize,
    /// The numbers of threads before and after each change.
    pub(super) trials: RecordedTrials<(usize, usize)>,
}

impl ThreadTuner {
    pub(super) fn new(cores: usize) -> Self {
        Self { cores, trials: RecordedTrials::new(false) }
    }

    /// Takes note of an interval that ended `at` this time of the run, with `now` threads. Returns the new number, if it changes.
    pub(super) fn observe(&mut self, at: Duration, seen: &Observation, now: usize) -> Option<usize> {
        match self.trials.observe(seen) {
            TrialState::Pending | TrialState::Kept(_) => None,
            TrialState::Undone(trial) => Some(trial.change.0),
            TrialState::Idle => self.decide(at, seen, now),
        }
    }

    fn decide(&mut self, at: Duration, seen: &Observation, now: usize) -> Option<usize> {
        let (rate, occupied) = (seen.rate(), seen.compute?);
        let used = seen.cpu / seen.seconds;
        let to = if used >= FULL * self.cores as f64 && 2.0 * occupied <= SPARE {
            (now / 2).max(1)
        } else if occupied >= SATURATED && used <= self.cores as f64 - 1.0 {
            (2 * now).min(self.cores)
        } else {
            now
        };
        let conditions = vec![rate, occupied];
        if to == now || self.trials.failed(&conditions).any(|failed| failed.change == (now, to)) {
            return None;
        }
        let stage = ScaledStage { stage: "train".into(), from: now, to, knob: TunedKnob::Threads };
        let why = format!("train {:.0}% busy, {used:.1} of {} cores in use", 100.0 * occupied, self.cores);
        let adjustment = Adjustment { at, stages: vec![stage], why, rows_per_second: rate, ..Adjustment::default() };
        self.trials.begin((now, to), conditions, HELPED, adjustment);
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on 16 cores, in which each batch costs other stages and dense compute CPU time; each thread of dense compute costs some more.
    struct Shared {
        others: f64,
        dense: f64,
        each_thread: f64,
        /// Stages before dense compute take this many cores at most.
        replicas: f64,
    }

    const CORES: f64 = 16.0;

    impl Shared {
        fn observe(&self, threads: usize) -> Observation {
            let dense = self.dense + self.each_thread * threads as f64;
            let step = self.dense / threads as f64;
            // Batches per second within the cores, and of each part.
            let rate = (CORES / (self.others + dense)).min(self.replicas / self.others).min(1.0 / step);
            Observation {
                seconds: 1.0,
                rows: 1000.0 * rate,
                cpu: rate * (self.others + dense),
                scalable: Vec::new(),
                others_occupied: 0.5,
                starved_behind: 0.0,
                paused: 0.0,
                free_bytes: f64::INFINITY,
                compute: Some(rate * step),
            }
        }

        /// Runs on for so many intervals. Returns the threads after each change.
        fn go_on(&self, tuner: &mut ThreadTuner, threads: &mut usize, intervals: u64) -> Vec<usize> {
            let mut changes = Vec::new();
            for second in 0..intervals {
                let seen = self.observe(*threads);
                if let Some(to) = tuner.observe(Duration::from_secs(second), &seen, *threads) {
                    *threads = to;
                    changes.push(to);
                }
            }
            changes
        }

        fn rate(&self, threads: usize) -> f64 {
            self.observe(threads).rate()
        }
    }

    #[test]
    fn a_run_that_waits_for_other_stages_on_full_cores_gets_fewer_threads_while_that_helps() {
        let run = Shared { others: 0.1, dense: 0.01, each_thread: 0.0015, replicas: 16.0 };
        let (mut tuner, mut threads) = (ThreadTuner::new(16), 16);
        assert_eq!(run.go_on(&mut tuner, &mut threads, 30), [8, 4, 2, 4], "two did not help enough");
        assert!(run.rate(threads) >= 0.95 * (1..=16).map(|n| run.rate(n)).fold(0.0, f64::max));
        assert_eq!(run.go_on(&mut tuner, &mut threads, 100), [0; 0]);
        let first = tuner.trials.adjustments()[0].to_string();
        let expected =
            "train 16 → 8 threads after 0 s: train 7% busy, 16.0 of 16 cores in use; throughput 119 k → 131 k rows/s";
        assert_eq!(first, expected);
        assert!(tuner.trials.adjustments()[2].rolled_back);
        // The input becomes cheap: dense compute is the limit, and cores are idle.
        let cheap = Shared { others: 0.001, dense: 0.1, each_thread: 0.0, replicas: 16.0 };
        assert_eq!(cheap.go_on(&mut tuner, &mut threads, 60), [8, 16]);
    }

    #[test]
    fn a_change_that_does_not_help_is_undone_and_not_tried_again() {
        let run = Shared { others: 0.1, dense: 0.01, each_thread: 0.0, replicas: 16.0 };
        let (mut tuner, mut threads) = (ThreadTuner::new(16), 16);
        assert_eq!(run.go_on(&mut tuner, &mut threads, 200), [8, 16]);
        assert!(tuner.trials.adjustments()[0].rolled_back);
    }

    #[test]
    fn nothing_changes_while_cores_are_idle_or_dense_compute_needs_its_threads_or_the_run_pauses() {
        let idle = Shared { others: 0.1, dense: 0.01, each_thread: 0.002, replicas: 8.0 };
        let bound = Shared { others: 0.01, dense: 0.3, each_thread: 0.0, replicas: 16.0 };
        for run in [idle, bound] {
            let (mut tuner, mut threads) = (ThreadTuner::new(16), 16);
            assert_eq!(run.go_on(&mut tuner, &mut threads, 100), [0; 0]);
        }
        let run = Shared { others: 0.1, dense: 0.01, each_thread: 0.002, replicas: 16.0 };
        let mut tuner = ThreadTuner::new(16);
        let paused = Observation { paused: 0.5, ..run.observe(16) };
        assert_eq!(tuner.observe(Duration::ZERO, &paused, 16), None);
        let unknown = Observation { compute: None, ..run.observe(16) };
        assert_eq!(tuner.observe(Duration::ZERO, &unknown, 16), None);
        assert_eq!(tuner.observe(Duration::ZERO, &run.observe(16), 16), Some(8));
    }
}
