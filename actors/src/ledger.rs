//! The row counts of a run: rows read = rows delivered + rows rejected, by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultKind};
use crate::lock::lock;
use crate::numbers::counted;

/// Counts the rows of one run. Clones share the counts.
///
/// The runtime counts the rows of each batch that a source returns as [`read`](Ledger::read), and of each batch that a
/// sink wrote as [`delivered`](Ledger::delivered). A stage that drops rows must call [`reject`](Ledger::reject). A
/// source that drops rows must call `read` and `reject`.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    book: Arc<Book>,
}

#[derive(Debug, Default)]
struct Book {
    read: AtomicU64,
    delivered: AtomicU64,
    rejected: Mutex<BTreeMap<String, u64>>,
    unwritten: AtomicU64,
}

/// The counts of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Rows that the source read.
    pub read: u64,
    /// Rows that the sink took in.
    pub delivered: u64,
    /// Rows that were dropped, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Bad rows that are missing in the file for bad rows, because the file could not be written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unwritten: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl LedgerReport {
    /// Rows that were dropped, for all reasons together.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// A line about [`unwritten`](Self::unwritten) rows, if there are any.
    pub fn unwritten_line(&self) -> Option<String> {
        let bad = counted(self.unwritten, "bad row");
        (self.unwritten > 0).then(|| format!("{bad} could not be written to the file of bad rows"))
    }
}

/// A line for each reason of [`LedgerReport::rejected`]: `left out 2 rows: too few fields`.
pub fn left_out_lines(rejected: &BTreeMap<String, u64>) -> impl Iterator<Item = String> {
    rejected.iter().map(|(reason, &rows)| format!("left out {}: {reason}", counted(rows, "row")))
}

impl Ledger {
    /// Counts rows that the source read.
    pub fn read(&self, rows: u64) {
        self.book.read.fetch_add(rows, Relaxed);
    }

    /// Counts rows that the sink took in.
    pub fn delivered(&self, rows: u64) {
        self.book.delivered.fetch_add(rows, Relaxed);
    }

    /// Counts rows that were dropped. Use few, constant reasons: the report lists each.
    pub fn reject(&self, reason: &str, rows: u64) {
        if rows == 0 {
            return;
        }
        let mut rejected = lock(&self.book.rejected);
        match rejected.get_mut(reason) {
            Some(count) => *count += rows,
            None => {
                rejected.insert(reason.to_owned(), rows);
            }
        }
    }

    /// Counts bad rows that could not be written to the file for bad rows. [`check`](Ledger::check) does not look at them.
    pub fn unwritten(&self, rows: u64) {
        self.book.unwritten.fetch_add(rows, Relaxed);
    }

    /// The current counts.
    pub fn snapshot(&self) -> LedgerReport {
        LedgerReport {
            read: self.book.read.load(Relaxed),
            delivered: self.book.delivered.load(Relaxed),
            rejected: lock(&self.book.rejected).clone(),
            unwritten: self.book.unwritten.load(Relaxed),
        }
    }

    /// Checks that every row read was delivered or rejected. Call it when no batch is under way.
    ///
    /// # Errors
    /// An internal fault with the three numbers.
    pub fn check(&self) -> Result<(), Fault> {
        let LedgerReport { read, delivered, rejected, .. } = self.snapshot();
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
        ledger.unwritten(2);
        ledger.check().unwrap();
        let report = ledger.snapshot();
        assert_eq!(report.unwritten_line().unwrap(), "2 bad rows could not be written to the file of bad rows");
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
