//! Counters and clocks of a stage: atomics that the stage's thread writes and any thread reads.
//!
//! The clock is read only when the activity (busy, starved, blocked) changes, and each interval is added to exactly one
//! counter. So busy + starved + blocked is the wall time of the stage.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a stage is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Not started, or ended: no time is counted.
    Nothing = 0,
    /// At work on a batch, or awaiting in the stage's own code.
    Busy = 1,
    /// Waiting for input.
    Starved = 2,
    /// Waiting for room below.
    Blocked = 3,
}

/// Sums up the time of each activity. One thread writes, any thread reads.
#[derive(Debug)]
struct Clock {
    base: Instant,
    /// Time of the last change in nanoseconds since `base`, times 8, plus [`CHANGING`] during a change, plus the
    /// activity.
    since: AtomicU64,
    dials: [AtomicU64; 4],
}

/// Set in `since` during a change. Readers spin until it is cleared, two stores later.
const CHANGING: u64 = 4;

impl Clock {
    fn new() -> Self {
        Self { base: Instant::now(), since: AtomicU64::new(0), dials: Default::default() }
    }

    fn now(&self) -> u64 {
        // 61 bits of nanoseconds are 73 years.
        self.base.elapsed().as_nanos() as u64
    }

    fn enter(&self, doing: Activity) {
        let now = self.now();
        let word = self.since.load(Relaxed);
        self.since.store(word | CHANGING, SeqCst);
        let dial = &self.dials[(word & 3) as usize];
        dial.store(dial.load(Relaxed) + (now - (word >> 3)), SeqCst);
        self.since.store(now << 3 | doing as u64, SeqCst);
    }

    fn doing(&self) -> Activity {
        match self.since.load(SeqCst) & 3 {
            1 => Activity::Busy,
            2 => Activity::Starved,
            3 => Activity::Blocked,
            _ => Activity::Nothing,
        }
    }

    /// Time busy, starved and blocked, up to now.
    fn read(&self) -> [Duration; 3] {
        loop {
            let word = self.since.load(SeqCst);
            let mut dials = [1, 2, 3].map(|i: usize| self.dials[i].load(SeqCst));
            let now = self.now();
            // If the activity changes in between, an interval counts twice or not at all: read again.
            if word & CHANGING == 0 && self.since.load(SeqCst) == word {
                if word & 3 != 0 {
                    dials[(word & 3) as usize - 1] += now.saturating_sub(word >> 3);
                }
                return dials.map(Duration::from_nanos);
            }
            std::hint::spin_loop();
        }
    }
}

/// The meter of one stage, or of one replica if there are several.
#[derive(Debug)]
pub struct StageMeter {
    clock: Clock,
    items_in: AtomicU64,
    rows_in: AtomicU64,
    bytes_in: AtomicU64,
    items_out: AtomicU64,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    describe: String,
    waits: BTreeMap<String, WaitReport>,
}

/// How often and how long a stage waited for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How many times.
    pub count: u64,
    /// Total time; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub total: Duration,
}

/// Times and counts of a stage, summed over its replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Name given at wiring.
    pub name: String,
    /// `source`, `stage`, `sink` or `service`.
    pub kind: String,
    /// Where it runs: `shared`, `own`, `core 3`.
    pub place: String,
    /// What its `describe` returns.
    pub describe: String,
    /// How many replicas it has now; 1 for a stage that is not replicated.
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
    /// Time at work. All times in JSON are seconds.
    #[serde(with = "crate::seconds")]
    pub busy: Duration,
    /// Time waiting for input.
    #[serde(with = "crate::seconds")]
    pub starved: Duration,
    /// Time waiting for room below; in an ordered replica, also for its turn.
    #[serde(with = "crate::seconds")]
    pub blocked: Duration,
    /// From opening to end: busy + starved + blocked. Summed over replicas, so it may exceed the run's wall time.
    #[serde(with = "crate::seconds")]
    pub wall: Duration,
    /// What the stage waited for, by the name given to [`StageMeter::waiting`].
    pub waits: BTreeMap<String, WaitReport>,
}

impl StageReport {
    /// Share of its time a stage was at work, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        share(self.busy, self.wall)
    }

    /// Share of its time a stage waited for input, 0 to 1.
    pub fn starved_share(&self) -> f64 {
        share(self.starved, self.wall)
    }

    /// Share of its time a stage waited for room below, 0 to 1.
    pub fn blocked_share(&self) -> f64 {
        share(self.blocked, self.wall)
    }

    /// Adds the meters of one replica.
    pub(crate) fn add(&mut self, meter: &StageMeter) {
        let [busy, starved, blocked] = meter.clock.read();
        self.busy += busy;
        self.starved += starved;
        self.blocked += blocked;
        self.wall += busy + starved + blocked;
        self.items_in += meter.items_in.load(Relaxed);
        self.rows_in += meter.rows_in.load(Relaxed);
        self.bytes_in += meter.bytes_in.load(Relaxed);
        self.items_out += meter.items_out.load(Relaxed);
        self.rows_out += meter.rows_out.load(Relaxed);
        self.bytes_out += meter.bytes_out.load(Relaxed);
        let notes = meter.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.describe.is_empty() {
            self.describe.clone_from(&notes.describe);
        }
        for (name, wait) in &notes.waits {
            let sum = self.waits.entry(name.clone()).or_default();
            sum.count += wait.count;
            sum.total += wait.total;
        }
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

impl Default for StageMeter {
    fn default() -> Self {
        let counter = || AtomicU64::new(0);
        Self {
            clock: Clock::new(),
            items_in: counter(),
            rows_in: counter(),
            bytes_in: counter(),
            items_out: counter(),
            rows_out: counter(),
            bytes_out: counter(),
            notes: Mutex::default(),
        }
    }
}

impl StageMeter {
    /// Adds a wait of `duration` for `what` (a store, a reply) to the report; the time still counts as busy. Use few,
    /// constant names.
    pub fn waiting(&self, what: &str, duration: Duration) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.waits.contains_key(what) {
            notes.waits.insert(what.to_owned(), WaitReport::default());
        }
        if let Some(wait) = notes.waits.get_mut(what) {
            wait.count += 1;
            wait.total += duration;
        }
    }

    /// Awaits what a later stage must free first, for instance a ticket. The time counts as blocked, and the report
    /// shows it under `what`. Cancel safe if `wait` is.
    pub async fn blocked_on<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.idle_on(Activity::Blocked, what, wait).await
    }

    /// Awaits input from outside the pipeline, in a source. The time counts as starved, and the report shows it under
    /// `what`. Cancel safe if `wait` is.
    pub async fn starved_on<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.idle_on(Activity::Starved, what, wait).await
    }

    async fn idle_on<T>(&self, doing: Activity, what: &str, wait: impl Future<Output = T>) -> T {
        let (before, start) = (self.doing(), Instant::now());
        self.enter(doing);
        let value = wait.await;
        self.enter(before);
        self.waiting(what, start.elapsed());
        value
    }

    pub(crate) fn describe(&self, line: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).describe = line;
    }

    pub(crate) fn enter(&self, doing: Activity) {
        self.clock.enter(doing);
    }

    pub(crate) fn doing(&self) -> Activity {
        self.clock.doing()
    }

    pub(crate) fn took(&self, rows: usize, bytes: usize) {
        self.items_in.fetch_add(1, Relaxed);
        self.rows_in.fetch_add(rows as u64, Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, rows: usize, bytes: usize) {
        self.items_out.fetch_add(1, Relaxed);
        self.rows_out.fetch_add(rows as u64, Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interval_is_counted_once() {
        let meter = StageMeter::default();
        let before = Instant::now();
        for doing in [Activity::Busy, Activity::Starved, Activity::Busy, Activity::Blocked, Activity::Busy] {
            meter.enter(doing);
            std::hint::black_box((0..1000).sum::<u64>());
        }
        let mut report = StageReport::default();
        report.add(&meter);
        assert!(report.wall <= before.elapsed(), "no more time than passed");
        meter.enter(Activity::Nothing);
        let mut ended = StageReport::default();
        ended.add(&meter);
        // Every interval from the first change to the last is counted.
        let since = meter.clock.since.load(SeqCst) >> 3;
        let idle = meter.clock.dials[0].load(SeqCst);
        assert_eq!(ended.wall, Duration::from_nanos(since - idle));
        assert_eq!(ended.wall, ended.busy + ended.starved + ended.blocked);
        let mut again = StageReport::default();
        again.add(&meter);
        assert_eq!(again, ended, "an ended stage counts no time");
    }

    #[test]
    fn waiting_for_what_is_given_back_below_counts_as_blocked() {
        let meter = StageMeter::default();
        meter.enter(Activity::Busy);
        let seen = futures::executor::block_on(meter.blocked_on("ticket", async { meter.doing() }));
        assert_eq!((seen, meter.doing()), (Activity::Blocked, Activity::Busy));
        meter.enter(Activity::Nothing);
        let mut report = StageReport::default();
        report.add(&meter);
        assert!(report.blocked > Duration::ZERO && report.blocked <= report.waits["ticket"].total);
        assert_eq!(report.waits["ticket"].count, 1);
    }

    #[test]
    fn readers_see_every_interval_once_whatever_the_writer_does() {
        let clock = Clock::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for i in 0..300_000 {
                    clock.enter(if i % 2 == 0 { Activity::Busy } else { Activity::Starved });
                }
            });
            let mut last = Duration::ZERO;
            while !writer.is_finished() {
                let sum: Duration = clock.read().into_iter().sum();
                assert!(sum <= clock.base.elapsed(), "an interval was counted twice");
                assert!(sum >= last, "an interval was not counted");
                last = sum;
            }
        });
    }

    /// The dial is written, but the change is not over.
    #[test]
    fn a_reader_waits_for_the_end_of_a_change() {
        let clock = Clock::new();
        clock.enter(Activity::Busy);
        let word = clock.since.fetch_or(CHANGING, SeqCst);
        clock.dials[1].fetch_add(1_000_000_000, SeqCst);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| clock.read());
            for _ in 0..1_000 {
                std::thread::yield_now();
                assert!(!reader.is_finished());
            }
            clock.since.store(word & !CHANGING, SeqCst);
            assert!(reader.join().unwrap()[0] >= Duration::from_secs(1));
        });
    }

    #[test]
    fn waits_are_summed_by_name() {
        let meter = StageMeter::default();
        meter.waiting("store", Duration::from_millis(2));
        meter.waiting("store", Duration::from_millis(3));
        meter.waiting("ticket", Duration::from_millis(1));
        let mut report = StageReport::default();
        report.add(&meter);
        assert_eq!(report.waits["store"], WaitReport { count: 2, total: Duration::from_millis(5) });
        assert_eq!(report.waits.len(), 2);
    }
}
