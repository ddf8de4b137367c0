//! How high two towers rank the items of the rows with label 1: recall and mean reciprocal rank.

use forebay_actors::{commas, counted};
use forebay_models::Rank;
use serde::{Deserialize, Serialize};

/// The share of rows whose item is among the `k` items with the highest scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecallAt {
    /// The number of items.
    pub k: u32,
    /// The share, weighted.
    pub recall: f64,
}

/// How high the items of rows with label 1 rank among all items of the rows; see [`forebay_models::rank_items`] for ties and for what is
/// compared. A row counts with its label times its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// Rows that were ranked: with an item, and a label and a weight above 0.
    pub rows: u64,
    /// All such rows: more than `rows` if `evaluation.recall_rows` is less.
    pub all_rows: u64,
    /// Distinct items among which they were ranked: those of all rows, also of rows with label 0.
    pub items: u64,
    /// All distinct items. If `evaluation.recall_items` is less, `items` is a sample, and this is an estimate.
    pub all_items: u64,
    /// The recall for each `k` of `evaluation.recall_at`.
    pub recall: Vec<RecallAt>,
    /// The mean of 1 divided by the rank.
    pub mrr: f64,
}

impl Retrieval {
    /// The metrics of these ranks, each of a row with this weight. `None` without a weight above 0.
    pub(crate) fn of(ranks: &[Rank], weights: &[f64], at: &[u32]) -> Option<Self> {
        let all: f64 = weights.iter().sum();
        let mean = |of: &dyn Fn(&Rank) -> f64| {
            ranks.iter().zip(weights).map(|(rank, weight)| weight * of(rank)).sum::<f64>() / all
        };
        let recall = at.iter().map(|&k| RecallAt { k, recall: mean(&|rank| rank.is_within(k)) }).collect();
        let rows = ranks.len() as u64;
        let measured =
            Self { rows, all_rows: rows, items: 0, all_items: 0, recall, mrr: mean(&|rank| rank.reciprocal()) };
        (all > 0.0).then_some(measured)
    }

    /// What was ranked, as a line; it says so if it is a sample.
    pub(crate) fn how(&self) -> String {
        let mut line =
            format!("ranked {} with label 1 among {}", counted(self.rows, "row"), counted(self.items, "item"));
        if self.all_rows > self.rows {
            line += &format!("; a sample of {} rows (evaluation.recall_rows)", commas(self.all_rows));
        }
        if self.all_items > self.items {
            line += &format!(
                "; a sample of about {} items (evaluation.recall_items), so recall and MRR are too high: compare them only with the same \
                 settings",
                commas(self.all_items)
            );
        }
        line
    }
}

/// The metrics, with commas between them.
impl std::fmt::Display for Retrieval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.recall.iter().try_for_each(|at| write!(f, "{at}, "))?;
        write!(f, "MRR {:.5}", self.mrr)
    }
}

impl std::fmt::Display for RecallAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "recall@{} {:.5}", self.k, self.recall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_with_its_weight() {
        let ranks = [Rank { better: 0, equal: 0 }, Rank { better: 3, equal: 0 }];
        let found = Retrieval::of(&ranks, &[3.0, 1.0], &[1, 4]).unwrap();
        assert_eq!(found.to_string(), "recall@1 0.75000, recall@4 1.00000, MRR 0.81250");
        assert_eq!(Retrieval::of(&[], &[], &[1]), None);
        assert_eq!(Retrieval::of(&ranks, &[0.0, 0.0], &[1]), None);
    }

    #[test]
    fn a_sample_is_told() {
        let whole = Retrieval { rows: 1, all_rows: 1, items: 20, all_items: 20, recall: Vec::new(), mrr: 1.0 };
        assert_eq!(whole.how(), "ranked 1 row with label 1 among 20 items");
        let sample = Retrieval { all_rows: 5000, all_items: 70_000, ..whole };
        for words in ["a sample of 5,000 rows", "a sample of about 70,000 items", "too high"] {
            assert!(sample.how().contains(words), "{}", sample.how());
        }
    }
}
