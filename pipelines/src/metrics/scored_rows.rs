//! How far an evaluation or a prediction is.

use forebay_actors::LedgerReport;

/// The rows that an evaluation or a prediction has scored so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredRows {
    /// Rows that were scored.
    pub rows: u64,
    /// The part of all rows that was scored or left out, 0 to 1, if the source knows how many there are. For text files it is an estimate.
    pub share: Option<f64>,
}

impl ScoredRows {
    /// `total`: the rows of the source, known or estimated.
    pub(crate) fn of(ledger: &LedgerReport, total: Option<u64>) -> Self {
        let done = ledger.delivered + ledger.rejected_total();
        let share = total.filter(|&total| total > 0).map(|total| (done as f64 / total as f64).min(1.0));
        Self { rows: ledger.delivered, share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_left_out_are_done_too() {
        let ledger = LedgerReport { read: 90, delivered: 30, rejected: [("bad".into(), 10)].into(), unwritten: 0 };
        let of = |total| ScoredRows::of(&ledger, total);
        assert_eq!(of(Some(80)), ScoredRows { rows: 30, share: Some(0.5) });
        assert_eq!(of(Some(35)).share, Some(1.0), "an estimate may be too low");
        assert_eq!((of(None).share, of(Some(0)).share), (None, None));
    }
}
