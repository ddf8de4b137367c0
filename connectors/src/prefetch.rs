//! Fetches splits ahead of their decoding, in order, within a byte budget. It runs as a task of the runtime that starts it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;

use forebay_actors::fault::Fault;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt, stream};
use tokio::task::JoinHandle;

use crate::decode_pool::{JobOutput, JobQueue, Stop};
use crate::read_ahead::{BudgetPermit, ReadAhead};

/// The task that fetches; dropping it stops the fetching.
#[derive(Debug)]
pub(crate) struct Prefetch(JoinHandle<()>);

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts the task. `splits` yields (bytes, split), and is polled for the next split only when there is room for a part of it; `fetch` gets
/// the split with the permit for these bytes and makes its jobs, in order. A split over budget takes all of it.
pub(crate) fn start<T, W, F, Fut, J>(
    mut ahead: ReadAhead,
    splits: impl Stream<Item = Result<(u64, W), Fault>> + Send + 'static,
    fetch: F,
    queue: JobQueue<T>,
) -> Prefetch
where
    T: Send + 'static,
    W: Send + 'static,
    F: Fn(W, BudgetPermit) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Vec<J>, Fault>> + Send + 'static,
    J: FnOnce(&JobOutput<T>) -> Result<(), Stop> + Send + 'static,
{
    let (fetches, known, waits) = (queue.fetches(), queue.fetches(), queue.fetches());
    let splits = splits_known(splits, move |is_known| known.needs_lease(!is_known));
    Prefetch(tokio::spawn(async move {
        let mut splits = pin!(ahead.admitted(splits));
        let mut running = FuturesUnordered::new();
        // Splits that arrived before earlier ones, and the number of the next one to hand on.
        let (mut next, mut asked, mut more) = (0_u64, 0_u64, true);
        let mut early: BTreeMap<u64, Result<(Vec<J>, _), Fault>> = BTreeMap::new();
        while more || !running.is_empty() {
            tokio::select! {
                biased;
                Some((number, bytes, jobs)) = running.next() => {
                    ahead.end(bytes, waits.waited_for_store());
                    early.insert(number, jobs);
                    while let Some(jobs) = early.remove(&next) {
                        next += 1;
                        match jobs {
                            Ok((jobs, under_way)) => {
                                jobs.into_iter().for_each(|job| queue.submit(job));
                                drop(under_way);
                            }
                            Err(fault) => return queue.fail(fault),
                        }
                    }
                }
                admitted = splits.next(), if more && ahead.has_room() => {
                    let Some(admitted) = admitted else {
                        more = false;
                        continue;
                    };
                    let bytes = admitted.as_ref().map_or(0, |(bytes, ..)| *bytes);
                    more = admitted.is_ok();
                    ahead.begin(bytes);
                    // A fetched split that waits for earlier ones is still under way.
                    let under_way = fetches.begin();
                    let fetching = admitted.map(|(_, what, permit)| fetch(what, permit));
                    let number = asked;
                    asked += 1;
                    running.push(async move {
                        let jobs = match fetching {
                            Ok(fetching) => fetching.await.map(|jobs| (jobs, under_way)),
                            Err(fault) => Err(fault),
                        };
                        (number, bytes, jobs)
                    });
                }
            }
        }
    }))
}

/// Calls `known` with false when the next split has to wait for a lease, and with true when it is there.
fn splits_known<W>(
    splits: impl Stream<Item = Result<(u64, W), Fault>> + Send + 'static,
    known: impl Fn(bool) + Send + 'static,
) -> impl Stream<Item = Result<(u64, W), Fault>> + Send {
    let mut splits = Box::pin(splits);
    stream::poll_fn(move |task| {
        let next = splits.poll_next_unpin(task);
        known(next.is_ready());
        next
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use forebay_actors::{Adjustment, StageCx};
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt, PutPayload};
    use tokio::sync::{mpsc::unbounded_channel, oneshot};

    use super::*;
    use crate::decode_pool::DecodePool;
    use crate::options::ReadOptions;
    use crate::read_ahead::AT_ONCE;
    use crate::throttle::ThrottledStore;

    const MIB: u64 = 1 << 20;

    /// The fetches under way, by number, each with what ends it.
    type Under = Arc<Mutex<BTreeMap<u64, oneshot::Sender<()>>>>;

    /// Fetches `splits`; each lasts until its sender is used.
    fn fetching(
        splits: impl Stream<Item = Result<(u64, u64), Fault>> + Send + 'static,
        budget: u64,
    ) -> (DecodePool<u64>, Prefetch, Under) {
        let cx = StageCx::detached("t");
        let (pool, queue) = DecodePool::start(&cx, 1, 1 << 20).unwrap();
        let under = Under::default();
        let gates = Arc::clone(&under);
        let fetch = move |number: u64, permit: BudgetPermit| {
            let (end, ended) = oneshot::channel();
            gates.lock().unwrap().insert(number, end);
            async move {
                ended.await.map_err(|e| Fault::internal("ended").because(e))?;
                Ok(vec![move |output: &JobOutput<u64>| {
                    drop(permit);
                    output.push(number, 1)
                }])
            }
        };
        let options = ReadOptions { read_ahead_bytes: budget as usize, ..ReadOptions::default() };
        let prefetch = start(ReadAhead::of(&cx, &options), splits, fetch, queue);
        (pool, prefetch, under)
    }

    /// `count` splits of `bytes`.
    fn splits(count: u64, bytes: u64) -> impl Stream<Item = Result<(u64, u64), Fault>> + Send + 'static {
        stream::iter((0..count).map(move |number| Ok((bytes, number))))
    }

    async fn numbers(under: &Under) -> Vec<u64> {
        // One thread runs all tasks, so each has come as far as it can.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        under.lock().unwrap().keys().copied().collect()
    }

    fn end(under: &Under, number: u64) {
        under.lock().unwrap().remove(&number).unwrap().send(()).unwrap();
    }

    // Paused: time without a fetch makes the window smaller.
    #[tokio::test(start_paused = true)]
    async fn the_first_split_has_the_line_to_itself_and_more_follow_with_each_that_comes() {
        let (mut pool, _prefetch, under) = fetching(splits(40, 5 * MIB), 64 * MIB);
        assert_eq!(numbers(&under).await, [0]);
        end(&under, 0);
        assert_eq!(pool.next().await.unwrap(), Some(0));
        assert_eq!(numbers(&under).await, [1, 2]);
        end(&under, 1);
        end(&under, 2);
        assert_eq!((pool.next().await.unwrap(), pool.next().await.unwrap()), (Some(1), Some(2)));
        assert_eq!(numbers(&under).await, [3, 4, 5, 6]);
        for number in 3..20 {
            end(&under, number);
            assert_eq!(pool.next().await.unwrap(), Some(number));
            numbers(&under).await;
        }
        assert_eq!(numbers(&under).await.len(), 12, "the budget holds twelve");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_wait_for_a_lease_the_first_split_has_the_line_to_itself_again() {
        let (leases, lease) = unbounded_channel::<u64>();
        let splits =
            stream::unfold(lease, |mut lease| async move { Some((Ok((5 * MIB, lease.recv().await?)), lease)) });
        let (mut pool, _prefetch, under) = fetching(splits, 64 * MIB);
        // After twenty splits the window has grown to the budget of twelve. It stays so if the next lease comes at once.
        for (lease, idle, at_first) in [(0, 0, 1), (1, 0, 12), (2, 150, 7), (3, 2000, 1)] {
            tokio::time::advance(Duration::from_millis(idle)).await;
            let splits = 20 * lease..20 * (lease + 1);
            splits.clone().for_each(|number| leases.send(number).unwrap());
            assert_eq!(numbers(&under).await.len(), at_first, "after {idle} ms");
            for number in splits {
                assert!(numbers(&under).await.contains(&number), "{number} is not fetched");
                end(&under, number);
                assert_eq!(pool.next().await.unwrap(), Some(number));
            }
        }
    }

    #[tokio::test]
    async fn small_splits_are_fetched_side_by_side_and_come_in_order() {
        let (mut pool, _prefetch, under) = fetching(splits(200, MIB / 64), 64 * MIB);
        assert_eq!(numbers(&under).await.len() as u64, AT_ONCE);
        for number in (0..AT_ONCE).rev() {
            end(&under, number);
        }
        for number in 0..AT_ONCE {
            assert_eq!(pool.next().await.unwrap(), Some(number));
        }
    }

    /// A run that takes all that a store gives, whose line has four gigabytes per second.
    struct Reading {
        cx: StageCx,
        pool: DecodePool<u64>,
        _prefetch: Prefetch,
        store: Arc<ThrottledStore>,
    }

    impl Reading {
        async fn start(options: &ReadOptions) -> Self {
            let (memory, path) = (InMemory::new(), object_store::path::Path::from("a"));
            memory.put(&path, PutPayload::from(vec![0; SPLIT as usize])).await.unwrap();
            let store = ThrottledStore::new(Arc::new(memory), Duration::from_millis(1), Some(4_000_000_000));
            let (store, cx) = (Arc::new(store), StageCx::detached("read"));
            let (pool, queue) = DecodePool::start(&cx, 1, 1 << 20).unwrap();
            let of = Arc::clone(&store);
            let fetch = move |_: u64, permit: BudgetPermit| {
                let (store, path) = (Arc::clone(&of), path.clone());
                async move {
                    store.get_range(&path, 0..SPLIT).await.map_err(|e| Fault::internal("fetched").because(e))?;
                    drop(permit);
                    // Nothing to decode: the source waits for the store all the time.
                    Ok(Vec::<fn(&JobOutput<u64>) -> Result<(), Stop>>::new())
                }
            };
            let prefetch = start(ReadAhead::of(&cx, options), splits(u64::MAX, SPLIT), fetch, queue);
            Self { cx, pool, _prefetch: prefetch, store }
        }

        /// Reads on for so many seconds of the clock, which the test turns. Returns the bytes per second.
        async fn read_for(&mut self, seconds: u64) -> f64 {
            let before = self.store.counts().bytes();
            assert!(tokio::time::timeout(Duration::from_secs(seconds), self.pool.next()).await.is_err());
            (self.store.counts().bytes() - before) as f64 / seconds as f64
        }
    }

    const SPLIT: u64 = 4 * MIB;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_becomes_slow_in_the_middle_gets_more_requests_at_once_and_the_report_says_why() {
        let pinned = |bytes: u64| ReadOptions { read_ahead_bytes: bytes as usize, ..ReadOptions::default() };
        let slow = Duration::from_millis(30);
        let mut pinned_rates = Vec::new();
        for budget in [64, 128, 256, 512, 1024] {
            let mut reading = Reading::start(&pinned(budget * MIB)).await;
            reading.store.set_latency(slow);
            reading.read_for(2).await;
            pinned_rates.push(reading.read_for(5).await);
        }
        let best = pinned_rates.iter().copied().fold(0.0, f64::max);
        assert!(pinned_rates[0] < 0.7 * best, "the first budget is too small for this store: {pinned_rates:?}");
        let most_read_ahead_bytes = 1 << 30;
        let mut reading = Reading::start(&ReadOptions { most_read_ahead_bytes, ..pinned(64 * MIB) }).await;
        // The line is full: twice the bytes under way do not help.
        reading.read_for(5).await;
        let [Adjustment { rolled_back: true, .. }] = reading.cx.adjustments()[..] else {
            panic!("{:?}", reading.cx.adjustments())
        };
        assert!(reading.store.counts().live() <= 64 * MIB + SPLIT);
        reading.store.set_latency(slow);
        reading.read_for(6).await;
        let settled = reading.cx.adjustments().len();
        let found = reading.read_for(5).await;
        assert!(found >= 0.9 * best, "{found} bytes per second, {best} with the best budget");
        assert!(reading.store.counts().live() > 100 * MIB);
        let made = reading.cx.adjustments();
        assert_eq!(made.len(), settled, "{made:?}");
        let kept = made.iter().find(|made| made.rows_per_second_after.is_some() && !made.rolled_back).unwrap();
        let (made, why) = (kept.what(), kept.why.as_str());
        let expected = ("read 67.1 MB → 134.2 MB of read-ahead", "read waits for its store for 100% of the time");
        assert_eq!((made.as_str(), why), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pinned_budget_and_a_process_without_memory_fetch_no_more() {
        let none = ReadOptions { most_read_ahead_bytes: 1 << 30, memory_limit: Some(1), ..ReadOptions::default() };
        for options in [ReadOptions::default(), none] {
            let mut reading = Reading::start(&options).await;
            reading.store.set_latency(Duration::from_millis(100));
            reading.read_for(20).await;
            assert!(reading.cx.adjustments().is_empty());
            assert!(reading.store.counts().peak() <= 64 * MIB, "{}", reading.store.counts().peak());
        }
    }
}
