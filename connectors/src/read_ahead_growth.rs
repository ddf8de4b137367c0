//! When a source may fetch more bytes ahead: while it waits for its store most of the time, and the bytes under way fill their budget.
//!
//! A store with a latency gives more bytes in a second if more are asked for at once; a store with a full line does not. So the next
//! interval after a change says whether the change helped. If not, it is undone, and not tried again while the store is as fast as then.

use std::time::Duration;

use forebay_base::{TrialState, Trials};

/// A shorter interval says too little.
const SHORTEST: Duration = Duration::from_millis(250);

/// From this share of its time on, a source waits mostly for the store; below the other one, it hardly waits.
const MOSTLY: f64 = 0.5;
const HARDLY: f64 = 0.05;

/// A larger budget is kept if the store then gives at least this many times as many bytes in a second.
const HELPED: f64 = 1.1;

/// The budget grows by at most this share of the free memory at once. Other parts of the run need memory, too.
const TAKEN: f64 = 0.25;

/// The budget is halved if the source hardly waited for the store in so many intervals in a row.
const IDLE_INTERVALS: u32 = 40;

/// What happened between two fetches that came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FetchInterval {
    pub(crate) time: Duration,
    /// The part of the time in which the source waited for the store.
    pub(crate) waited: Duration,
    /// Bytes that came.
    pub(crate) bytes: u64,
    /// Bytes that were under way at the end.
    pub(crate) under_way: u64,
    /// No more could be fetched, because the budget was used up.
    pub(crate) is_full: bool,
}

/// What an interval has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FetchVerdict {
    /// The share of the time in which the source waited for the store.
    pub(crate) waited: f64,
    /// Whether the change under trial helped, if there was one.
    pub(crate) helped: Option<bool>,
    /// The new budget, if it changes.
    pub(crate) budget: Option<u64>,
}

/// Decides how many bytes may be fetched ahead. It has no clock.
#[derive(Debug)]
pub(crate) struct ReadAheadGrowth {
    budget: u64,
    most: u64,
    /// The budget never falls below this: the first one, or one that was needed again after it had been halved.
    floor: u64,
    shrunk: bool,
    sum: FetchInterval,
    fetches: u32,
    full: u32,
    /// Each change is named by the budget before it; the rate is bytes per second.
    trials: Trials<u64>,
    idle_intervals: u32,
    /// The interval before was a reason for a larger budget.
    wants: bool,
}

impl ReadAheadGrowth {
    /// From `first` bytes up to `most`.
    pub(crate) fn new(first: u64, most: u64) -> Self {
        Self {
            budget: first,
            most: most.max(first),
            floor: first,
            shrunk: false,
            sum: FetchInterval::default(),
            fetches: 0,
            full: 0,
            // The first interval is the start of the run.
            trials: Trials::new(1, true),
            idle_intervals: 0,
            wants: false,
        }
    }

    /// Takes note of a fetch that came. Returns what the interval shows, if it is long enough: all bytes under way must have come twice.
    /// `free`: bytes of memory that are free.
    pub(crate) fn observe(&mut self, seen: FetchInterval, free: impl FnOnce() -> f64) -> Option<FetchVerdict> {
        let sum = &mut self.sum;
        (sum.time, sum.waited, sum.bytes) = (sum.time + seen.time, sum.waited + seen.waited, sum.bytes + seen.bytes);
        sum.under_way = sum.under_way.max(seen.under_way);
        self.fetches += 1;
        self.full += u32::from(seen.is_full);
        if sum.time < SHORTEST || sum.bytes < sum.under_way.saturating_mul(2) {
            return None;
        }
        let FetchInterval { time, waited, bytes, .. } = std::mem::take(&mut self.sum);
        let is_full = 2 * std::mem::take(&mut self.full) >= std::mem::take(&mut self.fetches);
        let (rate, waited) = (bytes as f64 / time.as_secs_f64(), waited.as_secs_f64() / time.as_secs_f64());
        let verdict = FetchVerdict { waited, ..FetchVerdict::default() };
        let helped = match self.trials.observe(rate) {
            TrialState::Pending => return Some(verdict),
            TrialState::Idle => None,
            TrialState::Kept(_) => Some(true),
            TrialState::Undone(trial) => {
                return Some(FetchVerdict { helped: Some(false), budget: Some(self.set(trial.change)), ..verdict });
            }
        };
        let budget = self.decide((rate, waited), is_full, free);
        Some(FetchVerdict { helped, budget, ..verdict })
    }

    fn decide(&mut self, (rate, waited): (f64, f64), is_full: bool, free: impl FnOnce() -> f64) -> Option<u64> {
        self.idle_intervals = if waited < HARDLY { self.idle_intervals + 1 } else { 0 };
        if self.idle_intervals >= IDLE_INTERVALS && self.budget > self.floor {
            self.shrunk = true;
            return Some(self.set((self.budget / 2).max(self.floor)));
        }
        let wants = waited >= MOSTLY && is_full;
        // The store may have become slow in the middle of the interval, so that the rate is of both.
        if !std::mem::replace(&mut self.wants, wants) || !wants || self.budget >= self.most {
            return None;
        }
        if self.trials.failed(&[rate]).any(|failed| failed.change == self.budget) {
            return None;
        }
        let more = (TAKEN * free()).min(self.budget as f64) as u64;
        let wanted = self.budget.saturating_add(more).min(self.most);
        // A small step cannot show that it helps.
        if wanted < self.budget + self.budget / 4 {
            return None;
        }
        self.trials.begin(self.budget, vec![rate], HELPED);
        if self.shrunk {
            self.floor = wanted;
        }
        Some(self.set(wanted))
    }

    fn set(&mut self, budget: u64) -> u64 {
        (self.budget, self.idle_intervals) = (budget, 0);
        self.trials.settle();
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A store with a latency, whose line has a limit, and a run that takes at most so many bytes per second.
    #[derive(Clone, Copy)]
    struct Simulated {
        latency: f64,
        line: f64,
        takes: f64,
    }

    /// Runs for so many seconds. Returns the budget after each change.
    fn run(growth: &mut ReadAheadGrowth, store: Simulated, seconds: f64, free: f64) -> Vec<u64> {
        let (mut time, mut changes) = (0.0, Vec::new());
        while time < seconds {
            let able = (growth.budget as f64 / store.latency).min(store.line);
            let rate = able.min(store.takes);
            let tick = 0.1;
            time += tick;
            let waited = if able < store.takes { 1.0 - able / store.takes } else { 0.0 };
            let of = |share: f64| Duration::from_secs_f64(share * tick);
            let (time, waited, bytes) = (of(1.0), of(waited), (rate * tick) as u64);
            let seen = FetchInterval { time, waited, bytes, under_way: growth.budget, is_full: able < store.takes };
            changes.extend(growth.observe(seen, || free).and_then(|verdict| verdict.budget));
        }
        changes
    }

    #[test]
    fn the_budget_doubles_while_the_store_gives_more_and_stays_there() {
        let store = Simulated { latency: 0.2, line: 1e12, takes: 2e9 };
        let mut growth = ReadAheadGrowth::new(64 * MIB, 1024 * MIB);
        assert_eq!(run(&mut growth, store, 30.0, 1e12), [128 * MIB, 256 * MIB]);
        assert!(256.0 * MIB as f64 / 0.2 > store.takes / 2.0, "it waits for less than half of the time");
        assert_eq!(run(&mut growth, store, 300.0, 1e12), [0; 0]);
        // At most what is allowed.
        let mut least = ReadAheadGrowth::new(64 * MIB, 100 * MIB);
        assert_eq!(run(&mut least, store, 30.0, 1e12), [100 * MIB]);
        assert_eq!(run(&mut ReadAheadGrowth::new(64 * MIB, 64 * MIB), store, 30.0, 1e12), [0; 0], "it is pinned");
    }

    #[test]
    fn a_change_that_does_not_help_is_undone_and_tried_again_when_the_store_is_another() {
        let full = Simulated { latency: 0.001, line: 1e8, takes: 1e9 };
        let mut growth = ReadAheadGrowth::new(64 * MIB, 1024 * MIB);
        assert_eq!(run(&mut growth, full, 30.0, 1e12), [128 * MIB, 64 * MIB]);
        assert_eq!(run(&mut growth, full, 300.0, 1e12), [0; 0]);
        let slow = Simulated { latency: 2.0, line: 1e12, ..full };
        assert_eq!(run(&mut growth, slow, 60.0, 1e12), [128 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB]);
    }

    #[test]
    fn the_budget_takes_a_quarter_of_the_free_memory_and_none_of_little() {
        let store = Simulated { latency: 0.2, line: 1e12, takes: 2e9 };
        let grown = |free: f64| run(&mut ReadAheadGrowth::new(64 * MIB, 1024 * MIB), store, 3.0, free * MIB as f64);
        assert_eq!(grown(128.0).first(), Some(&(96 * MIB)));
        assert_eq!(grown(40.0), [0; 0], "the step would be too small to show that it helps");
        assert_eq!(grown(0.0), [0; 0]);
    }

    #[test]
    fn a_budget_that_is_not_needed_is_halved_down_to_the_first_and_one_that_is_needed_again_stays() {
        let (slow, fast) =
            (Simulated { latency: 0.5, line: 1e12, takes: 1e9 }, Simulated { latency: 1e-3, line: 1e12, takes: 1e9 });
        let mut growth = ReadAheadGrowth::new(64 * MIB, 1024 * MIB);
        assert_eq!(run(&mut growth, slow, 30.0, 1e12), [128 * MIB, 256 * MIB]);
        assert_eq!(run(&mut growth, fast, 100.0, 1e12), [128 * MIB, 64 * MIB]);
        assert_eq!(run(&mut growth, slow, 30.0, 1e12), [128 * MIB, 256 * MIB]);
        assert_eq!(run(&mut growth, fast, 300.0, 1e12), [0; 0]);
    }
}
