//! Which source reads which windows: every source of a data set asks for one lease after the other, until all windows of
//! all epochs are done. All sources of a run must agree on the [`DataPlan`].

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_actors::{Fault, commas, counted};
use futures::Stream;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::rows::Rows;

/// The plan of the data, as each source computes it. Window `w` of an epoch is the rows `w * n .. (w + 1) * n` of the epoch, where `n` is
/// [`ReadOptions::window_rows`](crate::ReadOptions::window_rows): only the last window is shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Passes over the data.
    pub epochs: u32,
    /// Rows of an epoch; 0 if they are not known before they are parsed.
    pub rows: u64,
    /// Windows of an epoch: `rows`, if they are known, divided by the rows of a window, rounded up. 0 if the source has none, like a source
    /// of text without leases.
    pub windows: u64,
    /// A hash of the files (their places within the data set, sizes, parts), the columns, and the options that change the order of
    /// the rows. With the same fingerprint, windows of the same number hold the same rows.
    pub fingerprint: u64,
}

/// Called with the plan before the first row is read. A fault ends the source.
pub type PlanCheck = Arc<dyn Fn(&DataPlan) -> Result<(), Fault> + Send + Sync>;

impl DataPlan {
    /// Whether the source knows its windows before it reads them.
    pub fn has_windows(&self) -> bool {
        self.windows > 0
    }

    /// The difference from the `expected` plan, in words; `None` if they are the same.
    pub fn difference(&self, expected: &Self) -> Option<String> {
        let (found, expected) = (self, expected);
        if found.rows != expected.rows {
            return Some(format!("{}, expected {}", counted(found.rows, "row"), commas(expected.rows)));
        }
        if (found.windows, found.fingerprint) == (expected.windows, expected.fingerprint) {
            let epochs = || format!("{}, expected {}", counted(found.epochs, "epoch"), expected.epochs);
            return (found.epochs != expected.epochs).then(epochs);
        }
        let same = if found.rows > 0 { "the same number of rows, but " } else { "" };
        Some(format!("{same}other names or sizes of files"))
    }
}

/// Some windows of one epoch, to be read by one source: window after window, each with a last batch that closes it
/// ([`WindowMark::closes`](crate::WindowMark::closes)), even if that batch has no rows. A run waits for every window that it granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Numbers of the windows within the epoch.
    pub windows: Range<u64>,
    /// How often these windows were leased before.
    pub term: u32,
}

/// Hands out the windows of a data set.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Grants the next windows to the source that asks, or returns `None` when all are done. May wait for long, for instance for
    /// windows that another source gives up.
    ///
    /// A source reads ahead: it asks when it has begun to fetch all rows of its last lease, before it has returned them. It asks from a
    /// task of its own, and drops the future at its end.
    ///
    /// # Errors
    /// A fault ends the source; a plan that differs from the one of the first source is a user fault.
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault>;

    /// Whether a source may return rows of this window. It asks before it returns them. After the first `false` it ends, and the windows
    /// that it has not returned go to other sources.
    fn wants(&self, _epoch: u32, _window: u64) -> bool {
        true
    }

    /// Whether one source reads all windows, perhaps over several attempts: then the rows of the data set are the rows of its run.
    fn has_one_source(&self) -> bool {
        false
    }
}

/// Leases for several sources of one process. Each window goes to the first source that has room for it: a slow source gets fewer, and none
/// waits for another. Which source gets which window differs from run to run, but each row comes once in an epoch.
#[derive(Debug)]
pub struct LocalLeases {
    at_once: u64,
    /// The plan of the first source, and the epoch and number of the next window.
    given: Mutex<Option<(DataPlan, u32, u64)>>,
}

impl LocalLeases {
    /// Hands out `windows` at once, at least one.
    pub fn new(windows: u64) -> Self {
        Self { at_once: windows.max(1), given: Mutex::new(None) }
    }
}

#[async_trait]
impl Leases for LocalLeases {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let (expected, epoch, window) = given.get_or_insert_with(|| (data.clone(), 0, 0));
        if let Some(what) = data.difference(expected) {
            return Err(Fault::user(format!(
                "sources that share a data set must read the same data with the same options: found {what}"
            )));
        }
        if *window == data.windows {
            (*epoch, *window) = (*epoch + 1, 0);
        }
        if *epoch >= data.epochs || data.windows == 0 {
            return Ok(None);
        }
        let end = data.windows.min(window.saturating_add(self.at_once));
        let lease = Lease { epoch: *epoch, windows: *window..end, term: 0 };
        *window = end;
        Ok(Some(lease))
    }
}

/// The hash of the text that `write` writes; see [`DataPlan`].
pub(crate) fn fingerprint(write: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result) -> u64 {
    struct HashWriter(Xxh3);
    impl fmt::Write for HashWriter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut hash = HashWriter(Xxh3::new());
    // Writing to the hash cannot fail.
    let _ = write(&mut hash);
    hash.0.digest()
}

/// The leases of one source, each asked for when the stream is polled for it, each within the plan.
pub(crate) fn granted(leases: Arc<dyn Leases>, plan: DataPlan) -> impl Stream<Item = Result<Lease, Fault>> + Send {
    futures::stream::try_unfold((leases, plan), |(leases, plan)| async move {
        let Some(lease) = leases.next(&plan).await? else {
            return Ok(None);
        };
        let Lease { epoch, windows, .. } = &lease;
        if *epoch >= plan.epochs || windows.is_empty() || windows.end > plan.windows {
            return Err(Fault::internal(format!("{lease:?} does not lie within {plan:?}")));
        }
        Ok(Some((lease, (leases, plan))))
    })
}

/// The rows of all epochs, from the rows of one; `None` if the source shares them with other sources.
pub(crate) fn total_rows(leases: Option<&Arc<dyn Leases>>, rows: u64, epochs: usize) -> Option<u64> {
    rows.checked_mul(epochs as u64).filter(|_| leases.is_none_or(|leases| leases.has_one_source()))
}

/// Whether a source may return these rows.
pub(crate) fn wanted(leases: Option<&Arc<dyn Leases>>, rows: &Rows) -> bool {
    leases.is_none_or(|leases| leases.wants(rows.lineage.epoch, rows.window.window))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: one process that continues from a checkpoint reads through leases, and did not know how many rows there are.
    #[test]
    fn the_rows_of_all_epochs_are_known_unless_several_sources_share_them() {
        struct OneSource;
        #[async_trait]
        impl Leases for OneSource {
            async fn next(&self, _: &DataPlan) -> Result<Option<Lease>, Fault> {
                Ok(None)
            }

            fn has_one_source(&self) -> bool {
                true
            }
        }
        let (one, shared): (Arc<dyn Leases>, Arc<dyn Leases>) = (Arc::new(OneSource), Arc::new(LocalLeases::new(1)));
        let of = |leases| total_rows(leases, 100, 3);
        assert_eq!((of(None), of(Some(&one)), of(Some(&shared))), (Some(300), Some(300), None));
        assert_eq!(total_rows(None, u64::MAX, 2), None);
    }

    #[test]
    fn other_rows_are_told_in_words() {
        let plan = DataPlan { epochs: 1, rows: 120_000, windows: 2, fingerprint: 5 };
        let said = |found: DataPlan, expected: &DataPlan| found.difference(expected);
        assert_eq!(said(plan.clone(), &plan), None);
        let epochs = said(DataPlan { epochs: 7, ..plan.clone() }, &plan);
        assert_eq!(epochs.as_deref(), Some("7 epochs, expected 1"));
        let more = said(DataPlan { rows: 180_000, fingerprint: 6, ..plan.clone() }, &plan);
        assert_eq!(more.as_deref(), Some("180,000 rows, expected 120,000"));
        let renamed = said(DataPlan { fingerprint: 6, ..plan.clone() }, &plan);
        assert_eq!(renamed.as_deref(), Some("the same number of rows, but other names or sizes of files"));
        let text = DataPlan { rows: 0, windows: 0, ..plan };
        let other = said(DataPlan { fingerprint: 6, ..text.clone() }, &text);
        assert_eq!(other.as_deref(), Some("other names or sizes of files"));
    }
}
