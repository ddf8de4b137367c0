//! Fetches splits ahead of their decoding, in order, within a byte budget. It runs as a task of the runtime that starts it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use forebay_actors::fault::Fault;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::decode_pool::{JobOutput, JobQueue, Stop};

/// Holds its part of the budget until it is dropped: it travels with the fetched bytes.
#[derive(Debug)]
pub(crate) struct BudgetPermit {
    _permit: OwnedSemaphorePermit,
}

/// The task that feeds; dropping it stops the fetching.
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

/// Starts the task. `splits` yields (bytes, what to fetch), and is polled for the next one only when there is room for some
/// of it; `fetch` gets it with the permit for those bytes and makes the job. A split over budget takes all of it.
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
    Fut: Future<Output = Result<J, Fault>> + Send + 'static,
    J: FnOnce(&JobOutput<T>) -> Result<(), Stop> + Send + 'static,
{
    let (fetches, known) = (queue.fetches(), queue.fetches());
    let splits = splits_known(splits, move |is_known| known.needs_lease(!is_known));
    Prefetch(tokio::spawn(async move {
        let mut jobs = pin!(
            admitted(budget_bytes, splits)
                .map(move |admitted| {
                    // A split that is fetched and waits for those before it is still under way.
                    let under_way = fetches.begin();
                    let fetching = admitted.map(|(what, permit)| fetch(what, permit));
                    async move {
                        let job = fetching?.await;
                        job.map(|job| (job, under_way))
                    }
                })
                .buffered(AT_ONCE)
        );
        while let Some(job) = jobs.next().await {
            match job {
                Ok((job, under_way)) => {
                    queue.submit(job);
                    drop(under_way);
                }
                Err(fault) => return queue.fail(fault),
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

/// The splits with their permits, each as soon as the budget allows.
fn admitted<W: Send + 'static>(
    budget_bytes: usize,
    splits: impl Stream<Item = Result<(u64, W), Fault>> + Send + 'static,
) -> impl Stream<Item = Result<(W, BudgetPermit), Fault>> + Send {
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
        // Only this stream acquires, so that what it holds cannot keep it from the rest.
        permit.merge(acquire(cost - 1).await);
        Ok(Some(((what, BudgetPermit { _permit: permit }), (splits, budget))))
    })
}
