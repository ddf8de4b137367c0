//! The report of a stage from its meters: its times, which add up to the run's wall time for each replica, and its counts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{Activity, Times};

/// How a wait counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// As waiting: for a store, a reply or a device.
    #[default]
    Waiting,
    /// As starved: for input from outside the pipeline.
    Starved,
    /// As blocked: for a resource that a later stage must free first.
    Blocked,
}

impl WaitKind {
    pub(crate) fn activity(self) -> Activity {
        match self {
            Self::Waiting => Activity::Waiting,
            Self::Starved => Activity::Starved,
            Self::Blocked => Activity::Blocked,
        }
    }
}

/// How often and how long a stage waited for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How many times.
    pub count: u64,
    /// Total time; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub total: Duration,
    /// Which time of the stage it is a part of.
    pub kind: WaitKind,
}

impl WaitReport {
    pub(crate) fn of(kind: WaitKind) -> Self {
        Self { kind, ..Self::default() }
    }
}

/// How often and how long a stage waited for one other process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessWait {
    /// How many times.
    pub count: u64,
    /// Total time; in JSON, seconds. Waits for several processes at once count for each of them.
    #[serde(with = "crate::seconds")]
    pub total: Duration,
    /// The round trip of a small request there; zero if it was not measured.
    #[serde(with = "crate::seconds", default)]
    pub round_trip: Duration,
}

impl ProcessWait {
    /// The mean time of a wait.
    pub fn mean(&self) -> Duration {
        self.total.div_f64(self.count.max(1) as f64)
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.round_trip = self.round_trip.max(other.round_trip);
    }
}

/// The values of a meter at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) times: Times,
    /// Batches, rows, bytes taken in.
    pub(crate) taken: [u64; 3],
    /// Batches, rows, bytes sent on.
    pub(crate) sent: [u64; 3],
    pub(crate) fetched: u64,
    pub(crate) threads: usize,
    pub(crate) rows_held: Option<u64>,
    pub(crate) describe: String,
    pub(crate) waits: BTreeMap<String, WaitReport>,
    pub(crate) by_process: BTreeMap<String, ProcessWait>,
}

impl Reading {
    /// The change since an `earlier` reading of the same meter. Values that are no counts, such as the rows held, stay.
    pub(crate) fn since(mut self, earlier: &Self) -> Self {
        let less = |counts: [u64; 3], earlier: [u64; 3]| [0, 1, 2].map(|i: usize| counts[i].saturating_sub(earlier[i]));
        self.times = self.times.since(&earlier.times);
        self.taken = less(self.taken, earlier.taken);
        self.sent = less(self.sent, earlier.sent);
        self.fetched = self.fetched.saturating_sub(earlier.fetched);
        for (name, before) in &earlier.waits {
            if let Some(wait) = self.waits.get_mut(name) {
                wait.count = wait.count.saturating_sub(before.count);
                wait.total = wait.total.saturating_sub(before.total);
            }
        }
        self.waits.retain(|_, wait| wait.count > 0 || !wait.total.is_zero());
        for (process, before) in &earlier.by_process {
            if let Some(wait) = self.by_process.get_mut(process) {
                wait.count = wait.count.saturating_sub(before.count);
                wait.total = wait.total.saturating_sub(before.total);
            }
        }
        self.by_process.retain(|_, wait| wait.count > 0);
        self
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_none(threads: &usize) -> bool {
    *threads == 0
}

/// Times and counts of a stage, summed over its replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Name given at wiring.
    pub name: String,
    /// `source`, `stage`, `sink` or `service`.
    pub kind: String,
    /// Where it runs: `shared` or `own`.
    pub place: String,
    /// What its `describe` returns.
    pub describe: String,
    /// How many replicas it has; 1 for a stage that is not replicated.
    pub replicas: usize,
    /// Batches (for a service: calls) taken in.
    pub items_in: u64,
    /// Rows taken in.
    pub rows_in: u64,
    /// Bytes taken in.
    pub bytes_in: u64,
    /// Batches sent on (for a service: replies).
    pub items_out: u64,
    /// Rows sent on.
    pub rows_out: u64,
    /// Bytes sent on.
    pub bytes_out: u64,
    /// Bytes that a source fetched from its store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_fetched: u64,
    /// Threads of its own that work for it, such as those that decode for a source.
    #[serde(default, skip_serializing_if = "is_none")]
    pub threads: usize,
    /// Rows that a service holds; `None` for a stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_held: Option<u64>,
    /// Time that its code ran. All times in JSON are seconds.
    #[serde(with = "crate::seconds")]
    pub busy: Duration,
    /// Time waiting for input.
    #[serde(with = "crate::seconds")]
    pub starved: Duration,
    /// Time waiting for room below; in an ordered replica, also for its turn.
    #[serde(with = "crate::seconds")]
    pub blocked: Duration,
    /// Time waiting for anything else, such as a store, a reply or a device.
    #[serde(with = "crate::seconds")]
    pub waiting: Duration,
    /// Time of the run before the stage began and after it ended.
    #[serde(with = "crate::seconds")]
    pub idle: Duration,
    /// The run's wall time, times the replicas: busy + starved + blocked + waiting + idle. If replicas were added or removed, the
    /// time of each.
    #[serde(with = "crate::seconds")]
    pub wall: Duration,
    /// What the stage waited for, by the names given to its [`StageMeter`](crate::StageMeter).
    pub waits: BTreeMap<String, WaitReport>,
    /// The other processes that it waited for: `lookup` for the replies of ps, `receive` for the batches of readers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_process: BTreeMap<String, ProcessWait>,
}

impl StageReport {
    /// Share of its time that its code ran, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        self.share(self.busy)
    }

    /// Share of its time that it waited for input, 0 to 1.
    pub fn starved_share(&self) -> f64 {
        self.share(self.starved)
    }

    /// Share of its time that it waited for room below, 0 to 1.
    pub fn blocked_share(&self) -> f64 {
        self.share(self.blocked)
    }

    /// Share of its time that it waited for anything else, 0 to 1.
    pub fn waiting_share(&self) -> f64 {
        self.share(self.waiting)
    }

    /// Share of its time that it spent on its batches, 0 to 1: busy or waiting. Near 1, the stage limits the run, since its
    /// input is there and there is room below.
    pub fn occupied_share(&self) -> f64 {
        self.share(self.busy + self.waiting)
    }

    /// Share of its time that it waited for this, 0 to 1.
    pub fn wait_share(&self, what: &str) -> f64 {
        self.waits.get(what).map_or(0.0, |wait| self.share(wait.total))
    }

    fn share(&self, part: Duration) -> f64 {
        if self.wall.is_zero() { 0.0 } else { part.as_secs_f64() / self.wall.as_secs_f64() }
    }

    /// Rows per second in which a replica was occupied: its true rate (Kalavri et al., "Three steps is all you need", OSDI 2018).
    /// `replicas` times this is what the stage could do with input and room below.
    pub fn true_rate(&self) -> f64 {
        let useful = (self.busy + self.waiting).as_secs_f64();
        if useful > 0.0 { self.rows_in as f64 / useful } else { 0.0 }
    }

    /// Adds the reading of the meter of one replica.
    pub(crate) fn add(&mut self, reading: Reading) {
        let Reading { times, taken, sent, fetched, threads, rows_held, describe, waits, by_process } = reading;
        self.busy += times.busy;
        self.starved += times.starved;
        self.blocked += times.blocked;
        self.waiting += times.waiting;
        self.wall += times.sum();
        let sum = |counts: [&mut u64; 3], more: [u64; 3]| counts.into_iter().zip(more).for_each(|(sum, n)| *sum += n);
        sum([&mut self.items_in, &mut self.rows_in, &mut self.bytes_in], taken);
        sum([&mut self.items_out, &mut self.rows_out, &mut self.bytes_out], sent);
        self.bytes_fetched += fetched;
        self.threads += threads;
        self.rows_held = rows_held.or(self.rows_held);
        if !describe.is_empty() {
            self.describe = describe;
        }
        self.wait_also(&waits);
        self.wait_for_processes_also(&by_process);
    }

    /// Adds the same stage of another process.
    pub fn merge(&mut self, other: &Self) {
        self.replicas += other.replicas;
        self.busy += other.busy;
        self.starved += other.starved;
        self.blocked += other.blocked;
        self.waiting += other.waiting;
        self.idle += other.idle;
        self.wall += other.wall;
        self.items_in += other.items_in;
        self.rows_in += other.rows_in;
        self.bytes_in += other.bytes_in;
        self.items_out += other.items_out;
        self.rows_out += other.rows_out;
        self.bytes_out += other.bytes_out;
        self.bytes_fetched += other.bytes_fetched;
        self.threads += other.threads;
        self.wait_also(&other.waits);
        self.wait_for_processes_also(&other.by_process);
    }

    fn wait_for_processes_also(&mut self, by_process: &BTreeMap<String, ProcessWait>) {
        for (process, wait) in by_process {
            self.by_process.entry(process.clone()).or_default().add(*wait);
        }
    }

    fn wait_also(&mut self, waits: &BTreeMap<String, WaitReport>) {
        for (name, wait) in waits {
            let sum = self.waits.entry(name.clone()).or_insert_with(|| WaitReport::of(wait.kind));
            sum.count += wait.count;
            sum.total += wait.total;
        }
    }

    /// Makes the times add up to a run of `wall` for each replica. A service may live longer than the run: then it was starved.
    #[must_use]
    pub fn over(self, wall: Duration) -> Self {
        self.idle_at_most(Duration::MAX, wall)
    }

    /// As [`over`](Self::over), for a stage whose replicas were idle for this long by their own clocks. So the idle time of a run under
    /// way never falls from one report to the next, although `wall` is read a little after the meters.
    #[must_use]
    pub(crate) fn idle_at_most(mut self, idle: Duration, wall: Duration) -> Self {
        let wall = wall * self.replicas.max(1) as u32;
        self.starved -= self.wall.saturating_sub(wall).min(self.starved);
        let lived = self.busy + self.starved + self.blocked + self.waiting;
        self.idle = wall.saturating_sub(lived).min(idle);
        self.wall = lived + self.idle;
        self
    }

    /// Counts `more` time of the run before the stage began or after it ended: idle time of each replica. The other times of the replicas
    /// do not change.
    #[must_use]
    pub fn longer_by(mut self, more: Duration) -> Self {
        let more = more * self.replicas.max(1) as u32;
        self.idle += more;
        self.wall += more;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_to_the_runs_wall_time_whenever_the_stage_lived() {
        let [busy, starved, blocked, waiting] = [10, 20, 30, 40].map(Duration::from_millis);
        let times = Times { busy, starved, blocked, waiting, ..Times::default() };
        let mut lived = StageReport { replicas: 2, ..StageReport::default() };
        lived.add(Reading { times, ..Reading::default() });
        assert_eq!(lived.wall, Duration::from_millis(100));
        // The clocks of the replicas were read before the wall time, and after the end of the run they run on.
        for (clocks, idle) in [(890, 890), (1900, 1900), (5000, 1900)] {
            let report = lived.clone().idle_at_most(Duration::from_millis(clocks), Duration::from_secs(1));
            assert_eq!((report.idle, report.wall), (Duration::from_millis(idle), Duration::from_millis(idle + 100)));
        }
        let report = lived.clone().over(Duration::from_secs(1));
        assert_eq!(report.wall, Duration::from_secs(2));
        assert_eq!(busy + starved + blocked + waiting + report.idle, report.wall);
        // A service that waited for calls after the run had ended.
        let older = StageReport { starved: starved + Duration::from_secs(9), replicas: 1, ..lived.clone() };
        let older = StageReport { wall: lived.wall + Duration::from_secs(9), ..older }.over(Duration::from_secs(1));
        assert_eq!((older.wall, older.busy), (Duration::from_secs(1), busy));
    }

    #[test]
    fn what_a_meter_showed_before_does_not_count() {
        let second = Duration::from_secs(1);
        let wait = |count: u64| WaitReport { count, total: count as u32 * second, kind: WaitKind::Waiting };
        let reading = |n: u32, waits: &[(&str, u64)]| Reading {
            times: Times {
                busy: 2 * n * second,
                starved: n * second,
                blocked: second,
                waiting: n * second,
                ..Times::default()
            },
            taken: [1, 2, 3].map(|count| count * u64::from(n)),
            sent: [2, 4, 6].map(|count| count * u64::from(n)),
            fetched: 10 * u64::from(n),
            rows_held: Some(100 * u64::from(n)),
            waits: waits.iter().map(|&(name, count)| (name.to_owned(), wait(count))).collect(),
            ..Reading::default()
        };
        let Reading { times, taken, sent, fetched, rows_held, waits, .. } =
            reading(5, &[("store", 7), ("old", 2), ("new", 1)]).since(&reading(3, &[("store", 3), ("old", 2)]));
        let expected = Times { busy: 4 * second, starved: 2 * second, waiting: 2 * second, ..Times::default() };
        assert_eq!((times, taken, sent, fetched), (expected, [2, 4, 6], [4, 8, 12], 20));
        assert_eq!(rows_held, Some(500));
        assert_eq!(waits, BTreeMap::from([("store".to_owned(), wait(4)), ("new".to_owned(), wait(1))]));
    }

    #[test]
    fn a_replica_that_came_late_or_left_early_counts_for_its_own_time() {
        let second = Duration::from_secs(1);
        let mut stage = StageReport { replicas: 3, ..StageReport::default() };
        // One was busy for all of 9 seconds, and two came after 6.
        for busy in [9 * second, 3 * second, 3 * second] {
            stage.add(Reading { times: Times { busy, ..Times::default() }, ..Reading::default() });
        }
        let grown = stage.clone().longer_by(Duration::ZERO);
        assert_eq!((grown.wall, grown.busy_share()), (15 * second, 1.0));
        assert!(stage.clone().over(9 * second).busy_share() < 0.6);
        let shrunk = StageReport { replicas: 1, ..stage }.longer_by(second);
        assert_eq!((shrunk.wall, shrunk.idle), (16 * second, second));
        let longer = shrunk.longer_by(4 * second);
        assert_eq!((longer.wall, longer.idle, longer.busy), (20 * second, 5 * second, 15 * second));
    }

    #[test]
    fn the_true_rate_leaves_out_the_time_without_input_or_room() {
        let [busy, waiting, starved] = [1, 1, 8].map(Duration::from_secs);
        let stage = StageReport { rows_in: 100, busy, waiting, starved, ..StageReport::default() };
        assert_eq!(stage.true_rate(), 50.0);
        assert_eq!(StageReport::default().true_rate(), 0.0);
    }
}
