//! The books of a run: rows read = rows delivered + rows rejected, by reason.
//!
//! Comes in: counts from sources (`read`), sinks (`delivered`) and whoever drops a row (`reject`). Goes out: a
//! [`LedgerReport`], and a fault when the sum does not come out. Nothing blocks but a short lock in `reject`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultKind};

/// Counts rows of one run; a cheap clone of a shared book.
///
/// The shell of a source counts [`read`](Ledger::read) for every batch it returns, the shell of a sink counts
/// [`delivered`](Ledger::delivered) after `write` succeeded. Whoever drops a row says so with
/// [`reject`](Ledger::reject); a source that drops rows before it returns them counts them as read as well.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    book: Arc<Book>,
}

#[derive(Debug, Default)]
struct Book {
    read: AtomicU64,
    delivered: AtomicU64,
    rejected: Mutex<BTreeMap<String, u64>>,
}

/// What the books say; serde, so that it goes into reports as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Rows that came in.
    pub read: u64,
    /// Rows that reached the end.
    pub delivered: u64,
    /// Rows that were left out, by reason.
    pub rejected: BTreeMap<String, u64>,
}

impl LedgerReport {
    /// Rows that were left out, for whatever reason.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }
}

impl Ledger {
    /// Rows came in.
    pub fn read(&self, rows: u64) {
        self.book.read.fetch_add(rows, Relaxed);
    }

    /// Rows reached the end.
    pub fn delivered(&self, rows: u64) {
        self.book.delivered.fetch_add(rows, Relaxed);
    }

    /// Rows were left out. Use few, constant reasons: each is a line in the report.
    pub fn reject(&self, reason: &str, rows: u64) {
        if rows == 0 {
            return;
        }
        let mut rejected = self.book.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        match rejected.get_mut(reason) {
            Some(count) => *count += rows,
            None => {
                rejected.insert(reason.to_owned(), rows);
            }
        }
    }

    /// The counts as they are now.
    pub fn snapshot(&self) -> LedgerReport {
        LedgerReport {
            read: self.book.read.load(Relaxed),
            delivered: self.book.delivered.load(Relaxed),
            rejected: self.book.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Holds when every row read was delivered or rejected; to be asked when nothing is under way any more.
    ///
    /// # Errors
    /// An internal fault with the three numbers.
    pub fn check(&self) -> Result<(), Fault> {
        let LedgerReport { read, delivered, rejected } = self.snapshot();
        let left_out: u64 = rejected.values().sum();
        if u128::from(read) == u128::from(delivered) + u128::from(left_out) {
            return Ok(());
        }
        Err(Fault::internal(format!(
            "the ledger does not add up: {read} rows read, but {delivered} delivered and {left_out} rejected \
             (difference {}): a stage lost, invented or forgot to reject rows",
            i128::from(read) - i128::from(delivered) - i128::from(left_out)
        ))
        .kind(FaultKind::LedgerMismatch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_by_reason() {
        let ledger = Ledger::default();
        ledger.read(10);
        ledger.delivered(6);
        ledger.clone().reject("bad label", 3);
        ledger.reject("bad label", 0);
        ledger.reject("short row", 1);
        ledger.check().unwrap();
        let report = ledger.snapshot();
        assert_eq!(report.rejected_total(), 4);
        assert_eq!(report.rejected.get("bad label"), Some(&3));
    }

    #[test]
    fn a_difference_is_a_fault_with_the_numbers() {
        let ledger = Ledger::default();
        ledger.read(10);
        ledger.delivered(7);
        ledger.reject("bad label", 1);
        let text = ledger.check().unwrap_err().to_string();
        assert!(text.contains("10 rows read") && text.contains("7 delivered") && text.contains("1 rejected"), "{text}");
        assert!(text.contains("difference 2"), "{text}");
    }
}
