//! Fetches splits ahead of their decoding within a byte budget, in order.
//!
//! Comes in: for each turn its cost in bytes and a future that fetches it and makes a job of it. Goes out: jobs for the
//! decode threads, in turn. Runs as a task of the runtime it is started on; awaits the store and the budget, never
//! blocks.

use std::future::Future;
use std::sync::Arc;

use forebay_actors::fault::Fault;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::pool::{Emit, Feeder, Stop};

/// Holds its part of the budget until it is dropped: it travels with the fetched bytes.
#[derive(Debug)]
pub(crate) struct Credit {
    _permit: OwnedSemaphorePermit,
}

/// The task that feeds; dropping it stops the fetching.
#[derive(Debug)]
pub(crate) struct Feed(JoinHandle<()>);

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Budgets are counted in units of 1 KiB, so that a semaphore of 32 bits holds them.
const UNIT: usize = 1024;

/// Most splits that are fetched at once, however small they are.
const AT_ONCE: usize = 64;

/// Starts the task. `turns` yields (bytes, what to fetch); `fetch` gets it with the credit for those bytes and makes the
/// job. A split over budget takes all of it.
pub(crate) fn start<T, W, F, Fut, J>(
    budget_bytes: usize,
    turns: impl Iterator<Item = (u64, W)> + Send + 'static,
    fetch: F,
    feeder: Feeder<T>,
) -> Feed
where
    T: Send + 'static,
    W: Send + 'static,
    F: Fn(W, Credit) -> Fut + Send + 'static,
    Fut: Future<Output = Result<J, Fault>> + Send + 'static,
    J: FnOnce(&Emit<T>) -> Result<(), Stop> + Send + 'static,
{
    let units = budget_bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
    let budget = Arc::new(Semaphore::new(units));
    Feed(tokio::spawn(async move {
        let mut turns = turns.peekable();
        let mut under_way = FuturesOrdered::new();
        loop {
            let cost = turns.peek().map(|(bytes, _)| bytes.div_ceil(UNIT as u64).clamp(1, units as u64) as u32);
            tokio::select! {
                // Fetched splits first: they feed the decode threads.
                biased;
                Some(job) = under_way.next(), if !under_way.is_empty() => match job {
                    Ok(job) => feeder.submit(job),
                    Err(fault) => return feeder.fail(fault),
                },
                permit = Arc::clone(&budget).acquire_many_owned(cost.unwrap_or(1)), if cost.is_some() && under_way.len() < AT_ONCE => {
                    let permit = permit.expect("nobody closes the semaphore");
                    if let Some((_, what)) = turns.next() {
                        under_way.push_back(fetch(what, Credit { _permit: permit }));
                    }
                }
                else => return,
            }
        }
    }))
}
