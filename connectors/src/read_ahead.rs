//! How many bytes may be fetched ahead: a budget in memory, which grows if the store is slow, and a window for the bytes under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use forebay_actors::{Fault, StageCx, TunedKnob};
use forebay_base::MemoryBudget;
use futures::{Stream, TryStreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::options::ReadOptions;
use crate::read_ahead_growth::{FetchInterval, FetchVerdict, ReadAheadGrowth};

/// Holds a part of the budget until the drop. The permit travels with the fetched bytes.
#[derive(Debug)]
pub(crate) struct BudgetPermit(OwnedSemaphorePermit);

impl BudgetPermit {
    /// Gives back all but the budget of `bytes`.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let units = bytes.div_ceil(UNIT).max(1);
        let more = (self.0.num_permits() as u64).saturating_sub(units);
        drop(self.0.split(more as usize));
    }
}

/// Budgets are counted in units of 1 KiB, so that a semaphore of 32 bits holds them.
const UNIT: u64 = 1024;

/// The permits of a budget whose size changes.
struct Permits {
    semaphore: Arc<Semaphore>,
    units: AtomicU32,
    /// Permits that are to be taken away.
    surplus: AtomicU32,
}

impl Permits {
    fn new(bytes: u64) -> Arc<Self> {
        let units = Self::units_of(bytes);
        let semaphore = Arc::new(Semaphore::new(units as usize));
        Arc::new(Self { semaphore, units: AtomicU32::new(units), surplus: AtomicU32::new(0) })
    }

    fn units_of(bytes: u64) -> u32 {
        bytes.div_ceil(UNIT).clamp(1, (Semaphore::MAX_PERMITS as u64).min(u64::from(u32::MAX))) as u32
    }

    fn resize(&self, bytes: u64) {
        let units = Self::units_of(bytes);
        let before = self.units.swap(units, Relaxed);
        match units.checked_sub(before) {
            Some(more) => self.semaphore.add_permits(more as usize),
            None => _ = self.surplus.fetch_add(before - units, Relaxed),
        }
    }

    async fn acquire(&self, units: u32) -> OwnedSemaphorePermit {
        let semaphore = Arc::clone(&self.semaphore);
        semaphore.acquire_many_owned(units).await.expect("the semaphore is never closed")
    }

    /// Permits for a split of `bytes`, which takes the whole budget if it is larger. For one task at a time, which must not drop the
    /// future.
    async fn admit(&self, first: OwnedSemaphorePermit, bytes: u64) -> BudgetPermit {
        let mut permit = first;
        let cost = bytes.div_ceil(UNIT).clamp(1, u64::from(self.units.load(Relaxed))) as u32;
        // Only this task acquires permits, so the rest will become free.
        permit.merge(self.acquire(cost - 1).await);
        BudgetPermit(permit)
    }

    /// The first permit of a split. Before that, permits are taken away if the budget has become smaller.
    async fn first(&self) -> OwnedSemaphorePermit {
        let surplus = self.surplus.swap(0, Relaxed);
        self.acquire(surplus).await.forget();
        self.acquire(1).await
    }
}

/// Bytes under way at first. One request of a store with a latency of 20 ms needs about as many at 200 MB/s.
const FIRST_WINDOW: u64 = 4 << 20;

/// How many bytes may be under way. Splits share the line to the store: if all were requested at once, the first would arrive as late as
/// the last. So the window starts small, and each split that has come widens it by its bytes: the window doubles with each round trip, up
/// to the budget.
///
/// After a wait for a lease the decoding waits again for the first split. So the window is halved for every [`HALVED_AFTER`] in which
/// nothing was under way, like the window of TCP (RFC 2861, Handley, Padhye and Floyd, 2000).
struct FetchWindow {
    bytes: u64,
    under_way: u64,
    /// The budget: a wider window has no effect.
    most: u64,
}

/// The window is halved for every such time without a fetch.
const HALVED_AFTER: Duration = Duration::from_millis(100);

impl FetchWindow {
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

    fn resize(&mut self, most: u64) {
        self.most = most.max(FIRST_WINDOW);
        self.bytes = self.bytes.min(self.most);
    }
}

/// Most splits that are fetched at once within the first budget, however small they are. With the budget their number grows.
pub(crate) const AT_ONCE: u64 = 64;

/// The budget and the window of a source.
pub(crate) struct ReadAhead {
    cx: StageCx,
    memory: MemoryBudget,
    first: u64,
    budget: u64,
    growth: ReadAheadGrowth,
    permits: Arc<Permits>,
    window: FetchWindow,
    under_way: u64,
    idle_since: Instant,
    /// At the last fetch that came: the time, and how long the source had waited for the store.
    seen: (Instant, Duration),
    /// At the end of the last interval: the time, and the rows that the source had sent.
    sent: (Instant, u64),
}

impl ReadAhead {
    /// The budget that `options` say. `cx` gets its changes.
    pub(crate) fn of(cx: &StageCx, options: &ReadOptions) -> Self {
        let first = options.read_ahead_bytes as u64;
        let now = Instant::now();
        Self {
            cx: cx.clone(),
            memory: MemoryBudget::new(options.memory_limit),
            first,
            budget: first,
            growth: ReadAheadGrowth::new(first, options.most_read_ahead_bytes as u64),
            permits: Permits::new(first),
            window: FetchWindow::new(first),
            under_way: 0,
            idle_since: now,
            seen: (now, Duration::ZERO),
            sent: (now, 0),
        }
    }

    /// Whether another split may be fetched, of any size.
    pub(crate) fn has_room(&self) -> bool {
        self.window.has_room() && self.under_way < self.at_once()
    }

    fn at_once(&self) -> u64 {
        AT_ONCE * (self.budget / self.first.max(1)).max(1)
    }

    /// A fetch of `bytes` begins.
    pub(crate) fn begin(&mut self, bytes: u64) {
        if self.under_way == 0 {
            self.window.idle(self.idle_since.elapsed());
        }
        self.under_way += 1;
        self.window.begin(bytes);
    }

    /// A fetch of `bytes` came. So far the source has waited for the store for `waited`.
    pub(crate) fn end(&mut self, bytes: u64, waited: Duration) {
        let now = Instant::now();
        let is_full = self.permits.semaphore.available_permits() == 0
            || self.window.under_way >= self.window.most
            || self.under_way >= self.at_once();
        let (since, waited_before) = std::mem::replace(&mut self.seen, (now, waited));
        let seen = FetchInterval {
            time: now - since,
            waited: waited.saturating_sub(waited_before),
            bytes,
            under_way: self.window.under_way,
            is_full,
        };
        self.under_way -= 1;
        self.window.end(bytes);
        self.idle_since = now;
        let memory = self.memory;
        if let Some(verdict) = self.growth.observe(seen, || memory.free()) {
            self.apply(now, verdict);
        }
    }

    fn apply(&mut self, now: Instant, verdict: FetchVerdict) {
        let sent = self.cx.meter().rows_sent();
        let (since, sent_before) = std::mem::replace(&mut self.sent, (now, sent));
        let rate = (sent - sent_before) as f64 / (now - since).as_secs_f64().max(1e-3);
        if let Some(helped) = verdict.helped {
            self.cx.adjusted(TunedKnob::ReadAhead, rate, !helped);
        }
        let Some(budget) = verdict.budget else { return };
        if verdict.helped != Some(false) {
            let why = format!("{} waits for its store for {:.0}% of the time", self.cx.name(), 100.0 * verdict.waited);
            self.cx.adjust(TunedKnob::ReadAhead, (self.budget as usize, budget as usize), why, rate);
        }
        self.budget = budget;
        self.permits.resize(budget);
        self.window.resize(budget);
    }

    /// The splits with their bytes and permits, each as soon as the budget allows.
    pub(crate) fn admitted<W, S>(
        &self,
        splits: S,
    ) -> impl Stream<Item = Result<(u64, W, BudgetPermit), Fault>> + Send + use<W, S>
    where
        W: Send + 'static,
        S: Stream<Item = Result<(u64, W), Fault>> + Send + 'static,
    {
        let state = (Box::pin(splits), Arc::clone(&self.permits));
        stream::try_unfold(state, move |(mut splits, permits)| async move {
            let first = permits.first().await;
            let Some((bytes, what)) = splits.try_next().await? else {
                return Ok(None);
            };
            let permit = permits.admit(first, bytes).await;
            Ok(Some(((bytes, what, permit), (splits, permits))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_fetches_falls_to_the_first_one_and_stays_within_a_smaller_budget() {
        let mut window = FetchWindow::new(64 << 20);
        window.begin(64 << 20);
        window.end(64 << 20);
        assert_eq!(window.bytes, 64 << 20);
        window.resize(32 << 20);
        assert_eq!(window.bytes, 32 << 20);
        window.idle(Duration::MAX);
        assert_eq!(window.bytes, FIRST_WINDOW);
    }

    #[tokio::test]
    async fn a_budget_that_becomes_smaller_takes_permits_as_they_come_back() {
        let permits = Permits::new(64 * UNIT);
        let admit = async |units: u64| {
            let first = permits.first().await;
            permits.admit(first, units * UNIT).await
        };
        let (large, small) = (admit(40).await, admit(24).await);
        permits.resize(32 * UNIT);
        drop(small);
        let mut next = std::pin::pin!(admit(24));
        assert!(futures::poll!(&mut next).is_pending(), "24 of the 32 permits of the surplus came back");
        drop(large);
        let held = next.await;
        assert_eq!(permits.semaphore.available_permits(), 32 - 24);
        permits.resize(64 * UNIT);
        drop(held);
        assert_eq!(permits.semaphore.available_permits(), 64);
    }
}
