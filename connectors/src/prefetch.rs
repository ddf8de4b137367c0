//! Fetches splits ahead of their decoding, in order, within a byte budget. It runs as a task of the runtime that starts it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::fault::Fault;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::decode_pool::{JobOutput, JobQueue, Stop};

/// Holds a part of the budget until the drop. The permit travels with the fetched bytes.
#[derive(Debug)]
pub(crate) struct BudgetPermit(OwnedSemaphorePermit);

impl BudgetPermit {
    /// Gives back all but the budget of `bytes`.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let units = bytes.div_ceil(UNIT as u64).max(1);
        let more = (self.0.num_permits() as u64).saturating_sub(units);
        drop(self.0.split(more as usize));
    }
}

/// The task that fetches; dropping it stops the fetching.
#[derive(Debug)]
pub(crate) struct Prefetch(JoinHandle<()>);

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Budgets are counted in units of 1 KiB, so that a semaphore of 32 bits holds them.
const UNIT: usize = 1024;

/// Most splits that are fetched at once, however small they are.
const AT_ONCE: usize = 64;

/// Bytes under way at first. One request of a store with a latency of 20 ms needs about as many at 200 MB/s.
const FIRST_WINDOW: u64 = 4 << 20;

/// How many bytes may be under way. Splits share the line to the store: if all were requested at once, the first would arrive as late as
/// the last. So the window starts small, and each split that has come widens it by its bytes: the window doubles with each round trip, up
/// to the budget.
///
/// After a wait for a lease the decoding waits again for the first split. So the window is halved for every [`HALVED_AFTER`] in which
/// nothing was under way, like the window of TCP (RFC 2861, Handley, Padhye and Floyd, 2000).
struct Window {
    bytes: u64,
    under_way: u64,
    /// The budget: a wider window has no effect.
    most: u64,
}

/// The window is halved for every such time without a fetch.
const HALVED_AFTER: Duration = Duration::from_millis(100);

impl Window {
    fn new(most: u64) -> Self {
        Self { bytes: FIRST_WINDOW, under_way: 0, most: most.max(FIRST_WINDOW) }
    }

    /// Nothing was under way for this time.
    fn idle(&mut self, time: Duration) {
        let halvings = u32::try_from(time.as_nanos() / HALVED_AFTER.as_nanos()).unwrap_or(u32::MAX);
        self.bytes = self.bytes.checked_shr(halvings).unwrap_or(0).max(FIRST_WINDOW);
    }

    /// Whether another split may be fetched, of any size.
    fn has_room(&self) -> bool {
        self.under_way < self.bytes
    }

    fn begin(&mut self, bytes: u64) {
        self.under_way += bytes;
    }

    fn end(&mut self, bytes: u64) {
        self.under_way -= bytes;
        self.bytes = self.bytes.saturating_add(bytes).min(self.most);
    }
}

/// Starts the task. `splits` yields (bytes, split), and is polled for the next split only when there is room for a part of it; `fetch` gets
/// the split with the permit for these bytes and makes its jobs, in order. A split over budget takes all of it.
pub(crate) fn start<T, W, F, Fut, J>(
    budget_bytes: usize,
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
    let (fetches, known) = (queue.fetches(), queue.fetches());
    let splits = splits_known(splits, move |is_known| known.needs_lease(!is_known));
    Prefetch(tokio::spawn(async move {
        let mut splits = pin!(admitted(budget_bytes, splits));
        let (mut running, mut window) = (FuturesUnordered::new(), Window::new(budget_bytes as u64));
        let mut idle_since = Instant::now();
        // Splits that arrived before earlier ones, and the number of the next one to hand on.
        let (mut next, mut asked, mut more) = (0_u64, 0_u64, true);
        let mut early: BTreeMap<u64, Result<(Vec<J>, _), Fault>> = BTreeMap::new();
        while more || !running.is_empty() {
            tokio::select! {
                biased;
                Some((number, bytes, jobs)) = running.next() => {
                    window.end(bytes);
                    idle_since = Instant::now();
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
                admitted = splits.next(), if more && window.has_room() && running.len() < AT_ONCE => {
                    let Some(admitted) = admitted else {
                        more = false;
                        continue;
                    };
                    let bytes = admitted.as_ref().map_or(0, |(bytes, ..)| *bytes);
                    more = admitted.is_ok();
                    if running.is_empty() {
                        window.idle(idle_since.elapsed());
                    }
                    window.begin(bytes);
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

/// The splits with their bytes and permits, each as soon as the budget allows.
fn admitted<W: Send + 'static>(
    budget_bytes: usize,
    splits: impl Stream<Item = Result<(u64, W), Fault>> + Send + 'static,
) -> impl Stream<Item = Result<(u64, W, BudgetPermit), Fault>> + Send {
    let units = budget_bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize)) as u32;
    let state = (Box::pin(splits), Arc::new(Semaphore::new(units as usize)));
    stream::try_unfold(state, move |(mut splits, budget)| async move {
        let acquire =
            async |units| Arc::clone(&budget).acquire_many_owned(units).await.expect("the semaphore is never closed");
        let mut permit = acquire(1).await;
        let Some((bytes, what)) = splits.try_next().await? else {
            return Ok(None);
        };
        let cost = bytes.div_ceil(UNIT as u64).clamp(1, u64::from(units)) as u32;
        // Only this stream acquires permits, so the rest will become free.
        permit.merge(acquire(cost - 1).await);
        Ok(Some(((bytes, what, BudgetPermit(permit)), (splits, budget))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use forebay_actors::StageCx;
    use tokio::sync::{mpsc::unbounded_channel, oneshot};

    use super::*;
    use crate::decode_pool::DecodePool;

    const MIB: u64 = 1 << 20;

    /// The fetches under way, by number, each with what ends it.
    type Under = Arc<Mutex<BTreeMap<u64, oneshot::Sender<()>>>>;

    /// Fetches `splits`; each lasts until its sender is used.
    fn fetching(
        splits: impl Stream<Item = Result<(u64, u64), Fault>> + Send + 'static,
        budget: u64,
    ) -> (DecodePool<u64>, Prefetch, Under) {
        let (pool, queue) = DecodePool::start(&StageCx::detached("t"), 1, 1 << 20).unwrap();
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
        let prefetch = start(budget as usize, splits, fetch, queue);
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
        let mut window = Window::new(64 * MIB);
        window.idle(Duration::MAX);
        assert_eq!(window.bytes, FIRST_WINDOW);
    }

    #[tokio::test]
    async fn small_splits_are_fetched_side_by_side_and_come_in_order() {
        let (mut pool, _prefetch, under) = fetching(splits(200, MIB / 64), 64 * MIB);
        assert_eq!(numbers(&under).await.len(), AT_ONCE);
        for number in (0..AT_ONCE as u64).rev() {
            end(&under, number);
        }
        for number in 0..AT_ONCE as u64 {
            assert_eq!(pool.next().await.unwrap(), Some(number));
        }
    }
}
