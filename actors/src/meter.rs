//! The meter of a stage: atomics that the stage's thread writes and any thread reads.
//!
//! While the stage's future is polled, the stage is busy: its code runs. While the future is pending, the stage is starved (it
//! waits for input), blocked (it waits for room below), or waiting (it awaits anything else, such as a store or a reply).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::batch::{Batch, BatchName, Lineage};
use crate::clock::{Activity, Clock, METERED, now};
use crate::lock::lock;
use crate::stage_report::{ProcessWait, Reading, WaitKind, WaitReport};
use crate::timeline::{Recorder, Watched};

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
    bytes_fetched: AtomicU64,
    threads: AtomicU64,
    /// Rows that a service holds, plus one; 0 if the service does not hold rows.
    rows_held: AtomicU64,
    notes: Mutex<Notes>,
    recorder: Recorder,
}

#[derive(Debug, Default)]
struct Notes {
    describe: String,
    waits: BTreeMap<String, WaitReport>,
    by_process: BTreeMap<String, ProcessWait>,
    /// The process that is awaited, and since when.
    awaited: Option<(String, Instant)>,
    /// The wait under way: its name, its kind, the time of its activity when it began, and when that was.
    current: Option<(String, WaitKind, Duration, Instant)>,
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
            bytes_fetched: counter(),
            threads: counter(),
            rows_held: counter(),
            notes: Mutex::default(),
            recorder: Recorder::default(),
        }
    }
}

impl StageMeter {
    /// A meter of a run that `started` then. It also tells an observer what the replica does.
    pub(crate) fn watched(started: Instant, watched: Option<Watched>) -> Self {
        Self { clock: Clock::since(started), recorder: Recorder::watched(watched), ..Self::default() }
    }

    /// Awaits a store, a reply or a device. The time that `wait` is pending counts as waiting, and the report shows it under
    /// `what`; the time that it is polled counts as busy. Use few, constant names. Cancel safe if `wait` is.
    pub async fn waiting_on<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.wait_on(WaitKind::Waiting, what, wait).await
    }

    /// As [`waiting_on`](Self::waiting_on), for a call that blocks the stage's own thread while something else works.
    pub fn waiting_in_place<T>(&self, what: &str, wait: impl FnOnce() -> T) -> T {
        let _wait = Wait::begin(self, WaitKind::Waiting, what);
        wait()
    }

    /// Awaits a resource that a later stage must free first, for instance a ticket. The time counts as blocked, and the report shows it
    /// under `what`. Cancel safe if `wait` is.
    pub async fn blocked_on<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.wait_on(WaitKind::Blocked, what, wait).await
    }

    /// Awaits input from outside the pipeline, in a source. The time counts as starved, and the report shows it under
    /// `what`. Cancel safe if `wait` is.
    pub async fn starved_on<T>(&self, what: &str, wait: impl Future<Output = T>) -> T {
        self.wait_on(WaitKind::Starved, what, wait).await
    }

    async fn wait_on<T>(&self, kind: WaitKind, what: &str, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        // A future that is ready at the first poll did not wait: no clock is read.
        let mut begun = None;
        poll_fn(|task| {
            if kind == WaitKind::Waiting && begun.is_some() {
                self.resumes();
            }
            let polled = wait.as_mut().poll(task);
            if polled.is_pending() {
                begun.get_or_insert_with(|| Wait::begin(self, kind, what));
                self.pauses();
            }
            polled
        })
        .await
    }

    /// The stage's code runs again.
    pub(crate) fn resumes(&self) {
        if self.doing() == Activity::Waiting {
            self.enter(Activity::Busy);
        }
    }

    /// The stage's code waits. Without a named wait the time counts as waiting.
    pub(crate) fn pauses(&self) {
        if self.doing() == Activity::Busy {
            self.enter(Activity::Waiting);
        }
    }

    /// Counts a batch that the replica takes. Call [`Work::done`] at the end of the work on it.
    pub(crate) fn takes(&self, batch: &impl Batch) -> Work<'_> {
        self.recorder.takes(batch);
        self.works(batch, now())
    }

    /// Counts a batch that a source has waited for since `began`, as [`takes`](Self::takes) does for a stage.
    pub(crate) fn works(&self, batch: &impl Batch, began: Option<Instant>) -> Work<'_> {
        self.took(batch.rows(), batch.bytes());
        let slice = began.map(|began| (began, batch.lineage().clone(), batch.rows(), batch.name()));
        Work { recorder: &self.recorder, slice }
    }

    /// Records the slices of the replica.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn describe(&self, line: String) {
        self.notes().describe = line;
    }

    pub(crate) fn description(&self) -> String {
        self.notes().describe.clone()
    }

    /// How long the stage has been at work without a pause; `None` if it is not at work.
    pub(crate) fn at_work_for(&self) -> Option<Duration> {
        self.clock.at_work_for()
    }

    pub(crate) fn enter(&self, doing: Activity) {
        self.clock.enter(doing);
    }

    pub(crate) fn doing(&self) -> Activity {
        self.clock.doing()
    }

    pub(crate) fn took(&self, rows: usize, bytes: usize) {
        if METERED {
            self.items_in.fetch_add(1, Relaxed);
            self.rows_in.fetch_add(rows as u64, Relaxed);
            self.bytes_in.fetch_add(bytes as u64, Relaxed);
        }
    }

    pub(crate) fn sent(&self, rows: usize, bytes: usize) {
        if METERED {
            self.items_out.fetch_add(1, Relaxed);
            self.rows_out.fetch_add(rows as u64, Relaxed);
            self.bytes_out.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Counts bytes that a source fetched from its store.
    pub fn fetched(&self, bytes: u64) {
        self.bytes_fetched.fetch_add(bytes, Relaxed);
    }

    /// Bytes that were counted as [`fetched`](Self::fetched).
    pub fn bytes_fetched(&self) -> u64 {
        self.bytes_fetched.load(Relaxed)
    }

    /// Rows that the stage has sent.
    pub fn rows_sent(&self) -> u64 {
        self.rows_out.load(Relaxed)
    }

    /// The time since the start of the run.
    pub fn time(&self) -> Duration {
        self.clock.time()
    }

    /// Sets the number of other threads that work for the stage.
    pub fn has_threads(&self, threads: usize) {
        self.threads.store(threads as u64, Relaxed);
    }

    /// Says for which other process the stage waited this long. This divides the waits of one name by process, and adds no time to them.
    pub fn waited_for(&self, process: &str, time: Duration) {
        let mut notes = self.notes();
        let wait = match notes.by_process.get_mut(process) {
            Some(wait) => wait,
            None => notes.by_process.entry(process.to_owned()).or_default(),
        };
        wait.count += 1;
        wait.total += time;
    }

    /// Sets which other process the stage waits for, as far as it is known, and since when; `None` at the end of the wait. Until then
    /// reports show the wait as after [`waited_for`](Self::waited_for).
    pub fn awaits(&self, awaited: Option<(String, Instant)>) {
        self.notes().awaited = awaited;
    }

    /// Sets the rows that a service holds.
    pub(crate) fn holds(&self, rows: u64) {
        self.rows_held.store(rows + 1, Relaxed);
    }

    pub(crate) fn read(&self) -> Reading {
        let load = |counters: [&AtomicU64; 3]| counters.map(|counter| counter.load(Relaxed));
        let notes = self.notes();
        let times = self.clock.read();
        let mut waits = notes.waits.clone();
        if let Some((what, kind, before, _)) = &notes.current {
            let wait = waits.entry(what.clone()).or_insert_with(|| WaitReport::of(*kind));
            wait.count += 1;
            wait.total += times.of(kind.activity()).saturating_sub(*before);
        }
        let mut by_process = notes.by_process.clone();
        if let Some((process, since)) = &notes.awaited {
            let wait = by_process.entry(process.clone()).or_default();
            wait.count += 1;
            wait.total += since.elapsed();
        }
        Reading {
            times,
            taken: load([&self.items_in, &self.rows_in, &self.bytes_in]),
            sent: load([&self.items_out, &self.rows_out, &self.bytes_out]),
            fetched: self.bytes_fetched.load(Relaxed),
            threads: self.threads.load(Relaxed) as usize,
            rows_held: self.rows_held.load(Relaxed).checked_sub(1),
            describe: notes.describe.clone(),
            waits,
            by_process,
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        lock(&self.notes)
    }
}

/// The work of a replica on one batch.
pub(crate) struct Work<'a> {
    recorder: &'a Recorder,
    /// When it began, and on what. `None` if meters do not count.
    slice: Option<(Instant, Lineage, usize, Option<BatchName>)>,
}

impl Work<'_> {
    pub(crate) fn done(self) {
        if let Some((began, lineage, rows, name)) = self.slice {
            self.recorder.worked(began, lineage, rows, name);
        }
    }
}

/// A wait under way. Dropping it ends the wait, also if the wait is cancelled.
struct Wait<'a> {
    meter: &'a StageMeter,
    kind: WaitKind,
    before: Activity,
}

impl<'a> Wait<'a> {
    /// `None` if meters do not count.
    fn begin(meter: &'a StageMeter, kind: WaitKind, what: &str) -> Option<Self> {
        let since = now()?;
        let before = meter.doing();
        let ended = meter.clock.ended(kind.activity());
        meter.notes().current = Some((what.to_owned(), kind, ended, since));
        meter.enter(kind.activity());
        Some(Self { meter, kind, before })
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.meter.enter(self.before);
        let ended = self.meter.clock.ended(self.kind.activity());
        let mut notes = self.meter.notes();
        let Some((what, kind, began, since)) = notes.current.take() else { return };
        self.meter.recorder.waited(since, &what);
        let wait = notes.waits.entry(what).or_insert_with(|| WaitReport::of(kind));
        wait.count += 1;
        wait.total += ended.saturating_sub(began);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::FutureExt as _;

    use super::*;

    /// Pending once.
    async fn pause() {
        let mut polled = false;
        poll_fn(|task| {
            task.waker().wake_by_ref();
            if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn at_work() -> StageMeter {
        let meter = StageMeter::default();
        meter.enter(Activity::Busy);
        meter
    }

    #[test]
    fn waits_count_as_the_activity_of_their_kind_and_work_within_a_wait_counts_as_busy() {
        let meter = at_work();
        let seen = async {
            pause().await;
            meter.doing()
        };
        assert_eq!(futures::executor::block_on(meter.blocked_on("ticket", seen)), Activity::Blocked);
        let seen = async {
            pause().await;
            meter.doing()
        };
        assert_eq!(futures::executor::block_on(meter.waiting_on("reply", seen)), Activity::Busy);
        assert_eq!(meter.doing(), Activity::Busy);
        meter.enter(Activity::Nothing);
        let Reading { times, waits, .. } = meter.read();
        assert_eq!(waits["ticket"], WaitReport { count: 1, total: times.blocked, kind: WaitKind::Blocked });
        assert_eq!(waits["reply"], WaitReport { count: 1, total: times.waiting, kind: WaitKind::Waiting });
        assert!(times.waiting > Duration::ZERO && times.blocked > Duration::ZERO);
    }

    #[test]
    fn a_wait_that_is_over_at_once_is_not_counted() {
        let meter = at_work();
        futures::executor::block_on(meter.starved_on("lease", async {}));
        assert!(meter.read().waits.is_empty());
    }

    #[test]
    fn a_cancelled_wait_is_counted_and_ends() {
        let meter = at_work();
        let never = meter.starved_on("readers", std::future::pending::<()>());
        assert!(never.now_or_never().is_none());
        assert_eq!(meter.doing(), Activity::Busy);
        assert_eq!(meter.read().waits["readers"].count, 1);
    }

    #[test]
    fn a_reading_shows_the_wait_under_way() {
        let meter = at_work();
        let mut wait = Box::pin(meter.waiting_on("store", std::future::pending::<()>()));
        assert!(wait.as_mut().now_or_never().is_none());
        let Reading { times, waits, .. } = meter.read();
        assert_eq!(waits["store"], WaitReport { count: 1, total: times.waiting, kind: WaitKind::Waiting });
    }

    #[test]
    fn a_reading_shows_which_process_is_awaited_until_the_wait_is_over() {
        let (meter, second) = (at_work(), Duration::from_secs(1));
        meter.waited_for("reader 1", second);
        meter.awaits(Some(("reader 1".into(), Instant::now() - second)));
        let wait = meter.read().by_process["reader 1"];
        assert!(wait.count == 2 && wait.total >= 2 * second, "{wait:?}");
        meter.awaits(None);
        let ended = meter.read().by_process;
        assert_eq!(ended["reader 1"], ProcessWait { count: 1, total: second, ..ProcessWait::default() });
        assert_eq!(ended.len(), 1);
    }
}
