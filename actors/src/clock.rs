//! The clock of a stage: how long it was busy, starved, blocked and waiting.
//!
//! The time is read only when the activity changes, and each interval is added to exactly one counter. One thread writes,
//! any thread reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Whether meters count. A program that is compiled with `--cfg forebay_unmetered` counts and records nothing, and reads no clock for that.
/// `benches/overhead.py` compares both programs: the difference is the cost of the meters.
pub(crate) const METERED: bool = cfg!(not(forebay_unmetered));

/// The time, for a meter. `None` if meters do not count.
pub(crate) fn now() -> Option<Instant> {
    METERED.then(Instant::now)
}

/// What a stage is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Not started, or ended: no time is counted.
    Nothing = 0,
    /// At work: the stage's code runs.
    Busy = 1,
    /// Waiting for input.
    Starved = 2,
    /// Waiting for room below.
    Blocked = 3,
    /// Waiting for anything else that the stage's code awaits: a store, a reply.
    Waiting = 4,
}

/// The number of activities.
const ACTIVITIES: usize = 5;

/// Sums up the time of each activity. One thread writes, any thread reads.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Instant,
    /// Time of the last change in nanoseconds since `base`, times 16, plus [`CHANGING`] during a change, plus the
    /// activity.
    since: AtomicU64,
    dials: [AtomicU64; ACTIVITIES],
}

/// Set in `since` during a change. Readers spin until the writer clears it, after it has read the time and made two stores.
const CHANGING: u64 = 8;

/// The bits of the activity in `since`.
const ACTIVITY: u64 = 7;

impl Clock {
    pub(crate) fn new() -> Self {
        Self::since(Instant::now())
    }

    /// A clock that counts the time from a moment that has passed: until it enters an activity as [`Activity::Nothing`].
    pub(crate) fn since(base: Instant) -> Self {
        Self { base, since: AtomicU64::new(0), dials: Default::default() }
    }

    /// The time since the base.
    pub(crate) fn time(&self) -> Duration {
        self.base.elapsed()
    }

    fn now(&self) -> u64 {
        // 60 bits of nanoseconds are 36 years.
        self.base.elapsed().as_nanos() as u64
    }

    pub(crate) fn enter(&self, doing: Activity) {
        if !METERED {
            return;
        }
        let word = self.since.load(Relaxed);
        self.since.store(word | CHANGING, SeqCst);
        // The time is read after this store. Otherwise a reader could count a later moment for the activity that ends, and the time of that
        // activity would fall.
        let now = self.now();
        let dial = &self.dials[(word & ACTIVITY) as usize];
        dial.store(dial.load(Relaxed) + (now - (word >> 4)), SeqCst);
        self.since.store(now << 4 | doing as u64, SeqCst);
    }

    pub(crate) fn doing(&self) -> Activity {
        match self.since.load(SeqCst) & ACTIVITY {
            1 => Activity::Busy,
            2 => Activity::Starved,
            3 => Activity::Blocked,
            4 => Activity::Waiting,
            _ => Activity::Nothing,
        }
    }

    /// How long the stage has been at work without a pause; `None` if it is not at work. For any thread.
    pub(crate) fn at_work_for(&self) -> Option<Duration> {
        let word = self.since.load(SeqCst);
        let is_at_work = word & (ACTIVITY | CHANGING) == Activity::Busy as u64;
        is_at_work.then(|| Duration::from_nanos(self.now().saturating_sub(word >> 4)))
    }

    /// The time of one activity, up to its last change. For the thread that writes.
    pub(crate) fn ended(&self, doing: Activity) -> Duration {
        Duration::from_nanos(self.dials[doing as usize].load(Relaxed))
    }

    /// The time of each activity so far.
    pub(crate) fn read(&self) -> Times {
        loop {
            let word = self.since.load(SeqCst);
            let mut dials = [0, 1, 2, 3, 4].map(|i: usize| self.dials[i].load(SeqCst));
            let now = self.now();
            // If the activity changes in between, an interval counts twice or not at all: read again.
            if word & CHANGING == 0 && self.since.load(SeqCst) == word {
                dials[(word & ACTIVITY) as usize] += now.saturating_sub(word >> 4);
                let [idle, busy, starved, blocked, waiting] = dials.map(Duration::from_nanos);
                return Times { idle, busy, starved, blocked, waiting };
            }
            std::hint::spin_loop();
        }
    }
}

/// The time of each activity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// The time of [`Activity::Nothing`]: before the stage began and after it ended.
    pub(crate) idle: Duration,
    pub(crate) busy: Duration,
    pub(crate) starved: Duration,
    pub(crate) blocked: Duration,
    pub(crate) waiting: Duration,
}

impl Times {
    /// The times since an `earlier` reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            idle: self.idle.saturating_sub(earlier.idle),
            busy: self.busy.saturating_sub(earlier.busy),
            starved: self.starved.saturating_sub(earlier.starved),
            blocked: self.blocked.saturating_sub(earlier.blocked),
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }

    pub(crate) fn of(&self, doing: Activity) -> Duration {
        match doing {
            Activity::Nothing => self.idle,
            Activity::Busy => self.busy,
            Activity::Starved => self.starved,
            Activity::Blocked => self.blocked,
            Activity::Waiting => self.waiting,
        }
    }

    /// The time that the stage lived: all but the idle time.
    pub(crate) fn sum(&self) -> Duration {
        self.busy + self.starved + self.blocked + self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_every_interval_once_and_no_time_falls_whatever_the_writer_does() {
        let clock = Clock::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for i in 0..300_000 {
                    clock.enter(if i % 2 == 0 { Activity::Busy } else { Activity::Starved });
                }
            });
            let mut last = Times::default();
            while !writer.is_finished() {
                let times = clock.read();
                assert!(times.sum() <= clock.base.elapsed(), "an interval was counted twice");
                assert!(times.sum() >= last.sum(), "an interval was not counted");
                assert!(times.busy >= last.busy && times.starved >= last.starved, "{times:?} after {last:?}");
                last = times;
            }
        });
    }

    #[test]
    fn the_time_before_the_first_activity_and_after_the_last_is_idle() {
        let second = Duration::from_secs(1);
        let clock = Clock::since(Instant::now() - second);
        let before = clock.read();
        assert!(before.idle >= second && before.sum().is_zero(), "{before:?}");
        clock.enter(Activity::Busy);
        let began = clock.read().idle;
        assert!(began >= before.idle);
        while clock.read().busy.is_zero() {
            std::hint::spin_loop();
        }
        assert_eq!(clock.read().idle, began, "a stage at work is not idle");
        clock.enter(Activity::Nothing);
        let ended = clock.read();
        let all = clock.base.elapsed();
        assert!(ended.idle >= began && ended.idle + ended.sum() <= all, "{ended:?}");
        assert!(clock.read().idle + ended.sum() >= all, "all the time since the base counts");
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
            assert!(reader.join().unwrap().busy >= Duration::from_secs(1));
        });
    }
}
