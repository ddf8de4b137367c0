//! Leases of a few windows that are spread evenly over a data set, so that rows of all its parts are looked at.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_connectors::{DataPlan, Lease, Leases};
use tokio::sync::Semaphore;

/// The most windows.
pub(crate) const MOST: usize = 8;

/// The windows, from 0 to 7 eighths of the way, in an order whose beginnings are spread, too.
const ORDER: [u64; MOST] = [0, 7, 4, 2, 6, 1, 5, 3];

/// Leases the windows one by one, each when [`grant`](Self::grant) allows it.
#[derive(Debug)]
pub(crate) struct SpreadWindows {
    granted: Semaphore,
    /// The next of [`ORDER`].
    next: AtomicU64,
    /// Rows of an epoch, once the source knows them; 0 if it does not.
    rows: AtomicU64,
}

impl SpreadWindows {
    pub(crate) fn new() -> Self {
        Self { granted: Semaphore::new(0), next: AtomicU64::new(0), rows: AtomicU64::new(0) }
    }

    /// Allows one more window. The source waits for it.
    pub(crate) fn grant(&self) {
        self.granted.add_permits(1);
    }

    /// Ends the source behind the windows that are granted.
    pub(crate) fn close(&self) {
        self.granted.close();
    }

    /// Rows of the data set; `None` if its source does not know them, or has not asked for a window.
    pub(crate) fn rows(&self) -> Option<u64> {
        Some(self.rows.load(Ordering::Relaxed)).filter(|rows| *rows > 0)
    }
}

/// The windows of this many, in the order in which they are leased.
fn spread(windows: u64) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::with_capacity(MOST);
    for place in ORDER {
        let window = (place as u128 * u128::from(windows.saturating_sub(1)) / (MOST - 1) as u128) as u64;
        if window < windows && !all.contains(&window) {
            all.push(window);
        }
    }
    all
}

#[async_trait]
impl Leases for SpreadWindows {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        self.rows.store(data.rows, Ordering::Relaxed);
        let Ok(permit) = self.granted.acquire().await else { return Ok(None) };
        permit.forget();
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let window = spread(data.windows).get(at).copied();
        Ok(window.map(|window| Lease { epoch: 0, windows: window..window + 1, term: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn windows_are_spread_from_the_first_to_the_last_and_come_once() {
        assert_eq!(spread(8), ORDER);
        assert_eq!(spread(71), [0, 70, 40, 20, 60, 10, 50, 30]);
        assert_eq!((spread(0), spread(1), spread(2)), (vec![], vec![0], vec![0, 1]));
        for windows in 1..100 {
            let mut all = spread(windows);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len() as u64, windows.min(8), "{windows}: {all:?}");
        }
        assert_eq!(spread(u64::MAX)[1], u64::MAX - 1);
    }

    #[test]
    fn a_window_is_leased_when_it_is_granted() {
        let windows = SpreadWindows::new();
        let plan = DataPlan { epochs: 1, rows: 30, windows: 3, fingerprint: 0 };
        let next = || windows.next(&plan).now_or_never().map(|lease| lease.unwrap().map(|lease| lease.windows.start));
        assert_eq!((windows.rows(), next(), windows.rows()), (None, None, Some(30)));
        windows.grant();
        windows.grant();
        assert_eq!((next(), next(), next()), (Some(Some(0)), Some(Some(2)), None));
        windows.close();
        assert_eq!(next(), Some(None));
    }
}
