//! Decode threads. Jobs go in, in order; their items come out in the order of the jobs.
//!
//! A job blocks its thread while the budget of decoded bytes is used up. The job whose items are next always gets room for
//! one item more, so there is no deadlock. The consumer awaits and never blocks. A job that panics is a fault.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_actors::{Fault, StageCx, TunedKnob};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::decode_growth::{DecodeGrowth, EVERY};
use crate::options::ReadOptions;

/// Why a job ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The pool was dropped: no one takes the rest.
    Closed,
    /// The job cannot go on.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

type Job<T> = Box<dyn FnOnce(&JobOutput<T>) -> Result<(), Stop> + Send>;

/// The threads and their decoded items. A drop stops the threads after the item in hand.
pub(crate) struct DecodePool<T> {
    shared: Arc<SharedPool<T>>,
    cx: StageCx,
    growth: DecodeGrowth,
    threads: usize,
    /// When `growth` was last told.
    since: Instant,
}

/// Puts jobs into a pool.
pub(crate) struct JobQueue<T> {
    shared: Arc<SharedPool<T>>,
}

/// Where a job puts its items.
pub(crate) struct JobOutput<T> {
    shared: Arc<SharedPool<T>>,
    number: u64,
}

struct SharedPool<T> {
    state: Mutex<State<T>>,
    /// A job came, or the pool was closed.
    work: Condvar,
    /// An item was taken, or another job's items are next.
    room: Condvar,
    /// An item, or an end, came for the consumer.
    ready: Notify,
    budget: usize,
}

struct State<T> {
    jobs: VecDeque<(u64, Job<T>)>,
    /// Number of the job of `results[0]`, whose items are next.
    head: u64,
    results: VecDeque<JobResult<T>>,
    buffered: usize,
    /// The next split to fetch is not known: all leased rows are read.
    needs_lease: bool,
    /// Splits that are being fetched.
    fetching: usize,
    /// How long the consumer has waited for the store, and since when it does.
    at_store: (Duration, Option<tokio::time::Instant>),
    /// No more jobs will come.
    complete: bool,
    /// The consumer is gone, or has received a fault.
    closed: bool,
}

/// A wait of the consumer for the store. It lasts until the drop.
struct StoreWait<'a, T>(&'a SharedPool<T>);

impl<'a, T> StoreWait<'a, T> {
    fn begin(shared: &'a SharedPool<T>) -> Self {
        shared.lock().at_store.1 = Some(tokio::time::Instant::now());
        Self(shared)
    }
}

impl<T> Drop for StoreWait<'_, T> {
    fn drop(&mut self) {
        let (total, since) = &mut self.0.lock().at_store;
        *total += since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }
}

/// What the next item waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Awaited {
    Decode,
    Store,
    Lease,
}

impl<T> State<T> {
    fn awaited(&self) -> Awaited {
        match self {
            Self { results, .. } if results.front().is_some_and(|next| next.at_store) => Awaited::Store,
            Self { results, .. } if !results.is_empty() => Awaited::Decode,
            Self { needs_lease: true, fetching: 0, .. } => Awaited::Lease,
            _ => Awaited::Store,
        }
    }
}

struct JobResult<T> {
    items: VecDeque<(T, usize)>,
    end: Option<Result<(), Fault>>,
    /// The job waits for bytes of the store.
    at_store: bool,
}

impl<T> SharedPool<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Jobs run outside the lock, so that a panic cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> DecodePool<T> {
    /// Starts the threads that `options` say, named after the stage. They share the bytes of emitted items.
    pub(crate) fn of(cx: &StageCx, options: &ReadOptions) -> Result<(Self, JobQueue<T>), Fault> {
        let growth = DecodeGrowth::new(options.decode_threads, options.most_decode_threads);
        Self::growing(cx, options.decode_threads, growth, options.decode_ahead_bytes)
    }

    /// Starts `threads` threads, never more.
    #[cfg(test)]
    pub(crate) fn start(cx: &StageCx, threads: usize, budget: usize) -> Result<(Self, JobQueue<T>), Fault> {
        Self::growing(cx, threads, DecodeGrowth::new(threads, threads), budget)
    }

    fn growing(
        cx: &StageCx,
        threads: usize,
        growth: DecodeGrowth,
        budget: usize,
    ) -> Result<(Self, JobQueue<T>), Fault> {
        let state = State {
            jobs: VecDeque::new(),
            head: 0,
            results: VecDeque::new(),
            buffered: 0,
            needs_lease: false,
            fetching: 0,
            at_store: (Duration::ZERO, None),
            complete: false,
            closed: false,
        };
        let shared = Arc::new(SharedPool {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            ready: Notify::new(),
            budget,
        });
        let since = Instant::now();
        let mut pool = Self { shared: Arc::clone(&shared), cx: cx.clone(), growth, threads: 0, since };
        (0..threads).try_for_each(|_| pool.start_thread())?;
        Ok((pool, JobQueue { shared }))
    }

    fn start_thread(&mut self) -> Result<(), Fault> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name(format!("{}-decode-{}", self.cx.name(), self.threads))
            .spawn(move || work(&shared))
            .map_err(|e| Fault::no_thread("a thread that decodes", e))?;
        self.threads += 1;
        self.cx.meter().has_threads(self.threads);
        Ok(())
    }

    /// Waits for a decoded item, and starts more threads if the wait takes most of the source's time.
    async fn wait_for_decoding(&mut self, ready: Notified<'_>) -> Result<(), Fault> {
        if !self.growth.may_grow() {
            self.cx.meter().waiting_on("decode", ready).await;
            return Ok(());
        }
        let begun = Instant::now();
        // Long decoding without an item is also a reason for more threads.
        let _ = self.cx.meter().waiting_on("decode", tokio::time::timeout(EVERY, ready)).await;
        let (waited, time) = (begun.elapsed(), self.since.elapsed());
        self.since = Instant::now();
        let queued = self.shared.lock().jobs.len();
        let more = self.growth.observe(time, waited, queued);
        if more > 0 {
            let before = self.threads;
            (0..more).try_for_each(|_| self.start_thread())?;
            let (name, meter) = (self.cx.name(), self.cx.meter());
            let rate = meter.rows_sent() as f64 / meter.time().as_secs_f64().max(1e-3);
            let why = format!("{name} waits for decoding most of the time");
            self.cx.adjust(TunedKnob::DecodeThreads, (before, self.threads), why, rate);
        }
        Ok(())
    }

    /// The next item, or `None` after the last job's last item. Cancel safe. The stage's meter counts the wait: as waiting for `decode`
    /// while a job makes the next item, as waiting for the `store` while the next job is fetched or fetches more, and as starved of a
    /// `lease` while there is nothing to fetch.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, Fault> {
        let shared = Arc::clone(&self.shared);
        loop {
            let notified = shared.ready.notified();
            if let Some(next) = self.poll() {
                return next;
            }
            let what = shared.lock().awaited();
            match what {
                Awaited::Decode => self.wait_for_decoding(notified).await?,
                Awaited::Store => {
                    let _wait = StoreWait::begin(&shared);
                    self.cx.meter().waiting_on("store", notified).await;
                }
                Awaited::Lease => self.cx.meter().starved_on("lease", notified).await,
            }
        }
    }

    fn poll(&self) -> Option<Result<Option<T>, Fault>> {
        let mut state = self.shared.lock();
        loop {
            let complete = state.complete;
            let Some(result) = state.results.front_mut() else {
                return complete.then_some(Ok(None));
            };
            if let Some((item, bytes)) = result.items.pop_front() {
                state.buffered -= bytes;
                drop(state);
                self.shared.room.notify_all();
                return Some(Ok(Some(item)));
            }
            match result.end.take() {
                None => return None,
                Some(Ok(())) => {
                    state.results.pop_front();
                    state.head += 1;
                    self.shared.room.notify_all();
                }
                Some(Err(fault)) => {
                    state.closed = true;
                    return Some(Err(fault));
                }
            }
        }
    }
}

impl<T> Drop for DecodePool<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        let results = std::mem::take(&mut state.results);
        drop(state);
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        drop((jobs, results));
    }
}

impl<T: Send + 'static> JobQueue<T> {
    /// Adds the next job; its items come after the items of earlier jobs.
    pub(crate) fn submit(&self, job: impl FnOnce(&JobOutput<T>) -> Result<(), Stop> + Send + 'static) {
        self.push(None, Some(Box::new(job)));
    }

    /// Adds a fault in place of a job that could not start.
    pub(crate) fn fail(&self, fault: Fault) {
        self.push(Some(Err(fault)), None);
    }

    fn push(&self, end: Option<Result<(), Fault>>, job: Option<Job<T>>) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        let number = state.head + state.results.len() as u64;
        state.results.push_back(JobResult { items: VecDeque::new(), end, at_store: false });
        match job {
            Some(job) => {
                state.jobs.push_back((number, job));
                drop(state);
                self.shared.work.notify_one();
            }
            None => {
                drop(state);
                self.shared.ready.notify_one();
            }
        }
    }
}

impl<T> JobQueue<T> {
    /// Another handle that tells the pool what is awaited before the next job.
    pub(crate) fn fetches(&self) -> Fetches<T> {
        Fetches { shared: Arc::clone(&self.shared) }
    }
}

/// Tells a pool what its next job waits for.
pub(crate) struct Fetches<T> {
    shared: Arc<SharedPool<T>>,
}

impl<T> Clone for Fetches<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Fetches<T> {
    /// Whether the next split to fetch is not known.
    pub(crate) fn needs_lease(&self, needs: bool) {
        let mut state = self.shared.lock();
        if state.needs_lease != needs {
            state.needs_lease = needs;
            drop(state);
            self.shared.ready.notify_one();
        }
    }

    /// How long the consumer has waited for the store so far.
    pub(crate) fn waited_for_store(&self) -> Duration {
        let (total, since) = self.shared.lock().at_store;
        total + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A fetch begins; it lasts until the value is dropped.
    pub(crate) fn begin(&self) -> Fetching<T> {
        self.shared.lock().fetching += 1;
        self.shared.ready.notify_one();
        Fetching { shared: Arc::clone(&self.shared) }
    }
}

/// A fetch under way.
pub(crate) struct Fetching<T> {
    shared: Arc<SharedPool<T>>,
}

impl<T> Drop for Fetching<T> {
    fn drop(&mut self) {
        self.shared.lock().fetching -= 1;
        self.shared.ready.notify_one();
    }
}

/// No more jobs will come.
impl<T> Drop for JobQueue<T> {
    fn drop(&mut self) {
        self.shared.lock().complete = true;
        self.shared.work.notify_all();
        self.shared.ready.notify_one();
    }
}

impl<T> JobOutput<T> {
    /// Calls `wait`, in which the job waits for bytes of the store: meanwhile the next item waits for the store, too, not for decoding.
    pub(crate) fn at_store<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.is_at_store(true);
        let came = wait();
        self.is_at_store(false);
        came
    }

    fn is_at_store(&self, at_store: bool) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        let index = (self.number - state.head) as usize;
        state.results[index].at_store = at_store;
        drop(state);
        if index == 0 {
            self.shared.ready.notify_one();
        }
    }
}

impl<T: Send + 'static> JobOutput<T> {
    /// Hands over one item of `bytes` bytes. Blocks while the budget is used up.
    pub(crate) fn push(&self, item: T, bytes: usize) -> Result<(), Stop> {
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(Stop::Closed);
            }
            let index = (self.number - state.head) as usize;
            let fits = state.buffered + bytes <= self.shared.budget;
            if fits || (index == 0 && state.results[0].items.is_empty()) {
                state.buffered += bytes;
                state.results[index].items.push_back((item, bytes));
                drop(state);
                if index == 0 {
                    self.shared.ready.notify_one();
                }
                return Ok(());
            }
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work<T: Send + 'static>(shared: &Arc<SharedPool<T>>) {
    loop {
        let mut state = shared.lock();
        let (number, job) = loop {
            if state.closed {
                return;
            }
            if let Some(job) = state.jobs.pop_front() {
                break job;
            }
            if state.complete {
                return;
            }
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let output = JobOutput { shared: Arc::clone(shared), number };
        let end = match catch_unwind(AssertUnwindSafe(|| job(&output))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Stop::Fault(fault))) => Err(fault),
            Ok(Err(Stop::Closed)) => return,
            Err(panic) => Err(Fault::of_panic("a decode job panicked", &*panic)),
        };
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        let index = (number - state.head) as usize;
        state.results[index].end = Some(end);
        drop(state);
        shared.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;

    async fn drain(pool: &mut DecodePool<u64>) -> Result<Vec<u64>, Fault> {
        let mut all = Vec::new();
        while let Some(item) = pool.next().await? {
            all.push(item);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn items_come_in_the_order_of_the_jobs_whatever_the_threads_and_the_budget() {
        for (threads, budget) in [(1, 0), (1, 1000), (4, 0), (4, 25), (3, 1000)] {
            let (mut pool, queue) = DecodePool::start(&StageCx::detached("t"), threads, budget).unwrap();
            for job in 0..50u64 {
                queue.submit(move |output| {
                    for i in 0..job % 7 {
                        if (job + i) % 3 == 0 {
                            std::thread::yield_now();
                        }
                        output.push(job * 10 + i, 10)?;
                    }
                    Ok(())
                });
            }
            drop(queue);
            let expected: Vec<u64> = (0..50).flat_map(|j| (0..j % 7).map(move |i| j * 10 + i)).collect();
            assert_eq!(drain(&mut pool).await.unwrap(), expected, "{threads} threads, budget {budget}");
        }
    }

    #[tokio::test]
    async fn emitted_bytes_stay_within_the_budget_and_one_item() {
        // The consumer may count an item out before the job has counted it in.
        let live = Arc::new(AtomicIsize::new(0));
        let peak = Arc::new(AtomicIsize::new(0));
        let (mut pool, queue) = DecodePool::start(&StageCx::detached("t"), 4, 50).unwrap();
        for _ in 0..20 {
            let (live, peak) = (Arc::clone(&live), Arc::clone(&peak));
            queue.submit(move |output| {
                for _ in 0..10 {
                    output.push(0, 10)?;
                    peak.fetch_max(live.fetch_add(10, Ordering::SeqCst) + 10, Ordering::SeqCst);
                }
                Ok(())
            });
        }
        drop(queue);
        let mut items = 0;
        while pool.next().await.unwrap().is_some() {
            live.fetch_sub(10, Ordering::SeqCst);
            items += 1;
            tokio::task::yield_now().await;
        }
        assert_eq!(items, 200);
        // Four threads may be between the push and the count, and one item is always let in for the job that is next.
        assert!(peak.load(Ordering::SeqCst) <= 50 + 10 + 4 * 10, "{peak:?}");
    }

    #[tokio::test]
    async fn a_fault_comes_after_the_items_before_it_and_a_panic_is_one() {
        for panics in [false, true] {
            let (mut pool, queue) = DecodePool::start(&StageCx::detached("t"), 2, 1000).unwrap();
            queue.submit(|output| output.push(1, 1));
            queue.submit(move |output| {
                output.push(2, 1)?;
                if panics {
                    panic!("on purpose");
                }
                Err(Fault::user("on purpose").into())
            });
            queue.submit(|output| output.push(3, 1));
            assert_eq!(pool.next().await.unwrap(), Some(1));
            assert_eq!(pool.next().await.unwrap(), Some(2));
            assert!(pool.next().await.unwrap_err().to_string().contains("on purpose"));
        }
    }

    /// A bug: the time that a compressed file took to come counted as decoding.
    #[tokio::test]
    async fn a_job_that_fetches_more_waits_for_the_store() {
        let (mut pool, queue) = DecodePool::start(&StageCx::detached("t"), 1, 1000).unwrap();
        let (came, coming) = std::sync::mpsc::channel();
        queue.submit(move |output| output.push(output.at_store(|| coming.recv()).unwrap(), 1));
        drop(queue);
        let begun = Instant::now();
        while pool.shared.lock().awaited() != Awaited::Store {
            assert!(begun.elapsed() < Duration::from_secs(60), "60 s, and the job does not wait for the store");
            std::thread::yield_now();
        }
        came.send(7).unwrap();
        assert_eq!(drain(&mut pool).await.unwrap(), [7]);
    }

    #[tokio::test]
    async fn more_threads_start_while_the_next_item_is_long_in_coming() {
        let options = ReadOptions { most_decode_threads: 3, ..ReadOptions::default() };
        let cx = StageCx::detached("t");
        let (mut pool, queue) = DecodePool::of(&cx, &options).unwrap();
        // No job ends before three run at once.
        let together = Arc::new((Mutex::new(0), Condvar::new()));
        for number in 0..9 {
            let together = Arc::clone(&together);
            queue.submit(move |output| {
                let (running, changed) = &*together;
                let mut running = running.lock().unwrap();
                *running += 1;
                changed.notify_all();
                let limit = Duration::from_secs(60);
                let (running, waited) = changed.wait_timeout_while(running, limit, |running| *running < 3).unwrap();
                assert!(!waited.timed_out(), "{running} jobs ran at once");
                drop(running);
                output.push(number, 1)
            });
        }
        drop(queue);
        assert_eq!(drain(&mut pool).await.unwrap(), (0..9).collect::<Vec<_>>());
        assert_eq!(pool.threads, 3);
    }

    #[tokio::test]
    async fn dropping_the_pool_frees_a_blocked_job() {
        let (mut pool, queue) = DecodePool::start(&StageCx::detached("t"), 1, 1).unwrap();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        queue.submit(move |output| {
            let _held = held;
            loop {
                output.push(0, 10)?;
            }
        });
        assert_eq!(pool.next().await.unwrap(), Some(0));
        drop(pool);
        let begun = Instant::now();
        while Arc::strong_count(&alive) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the job still runs, 60 s after its pool was dropped");
            std::thread::yield_now();
        }
    }
}
