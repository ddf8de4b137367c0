//! How long the row of a key lives: which keys get a row (admission), and which rows are removed (eviction).
//!
//! Only pushes admit keys and remove rows: each push is applied once, while a pull may be repeated. What a push does depends on the rows
//! and on its step alone: not on the number of shards, and not on what came before a checkpoint. For that, keys are divided into [`CELLS`]
//! cells by their hash. A cell lies in one shard, holds its share of the cap, and removes rows by comparing them with the other rows of the
//! cell.

use forebay_base::{GOLDEN_GAMMA, mix64};
use serde::{Deserialize, Serialize};

/// Cells of a table, over all its shards.
pub const CELLS: usize = 1 << CELL_BITS;
pub(crate) const CELL_BITS: u32 = 12;

/// The cell of a key, below [`CELLS`]. The cells of a shard follow each other: see [`Route`](crate::Route).
#[inline(always)]
pub fn cell_of(key: u64) -> usize {
    (mix64(key ^ GOLDEN_GAMMA) >> (64 - CELL_BITS)) as usize
}

/// The fewest rows of a cap: 16 in each cell.
pub const LEAST_CAP: u64 = CELLS as u64 * 16;

/// Which keys get a row, and which rows are removed. The default: every key gets one and keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lifetime {
    /// Which keys get a row. `None`: every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Which rows are removed. `None`: no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
}

/// When a key without a row gets one. Until then it reads as zeros, as it does in an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// With the push of this number that has the key, counted exactly; at least 2.
    Count(u32),
    /// With this probability p in each push that has the key, above 0 and below 1: after 1/p pushes on average. The random number depends
    /// on (seed, key, step).
    Probability(f64),
    /// As `Count`, but counted in a filter of a fixed size, so that a bounded share of keys is admitted too early.
    Bloom(BloomCount),
}

/// Counts pushes in a counting Bloom filter (Fan et al. 2000) with counters of four bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BloomCount {
    /// A key gets a row with the push of this number that has it; from 2 to [`MOST_BLOOM_COUNT`].
    pub count: u32,
    /// Keys that may wait at a time, over all shards; at least 1. It sets the size of the filter. If more wait, counts of some start again
    /// from 0.
    pub keys: u64,
    /// The share of keys that may be admitted too early, above 0 and at most .5.
    pub error: f64,
}

/// The largest count of [`Admission::Bloom`].
pub const MOST_BLOOM_COUNT: u32 = 14;

/// The most keys of a filter.
pub const MOST_BLOOM_KEYS: u64 = 1 << 36;

impl BloomCount {
    /// Counters of a key: log2(1 / error), rounded up.
    pub fn counters_per_key(&self) -> u32 {
        ((-self.error.log2()).ceil() as u32).clamp(1, 64)
    }

    fn check(&self) -> Result<(), String> {
        let Self { count, keys, error } = *self;
        if !(2..=MOST_BLOOM_COUNT).contains(&count) {
            return Err(format!("admission count is {count}; expected 2 to {MOST_BLOOM_COUNT} with a Bloom filter"));
        }
        if !(1..=MOST_BLOOM_KEYS).contains(&keys) {
            return Err(format!("a Bloom filter for {keys} keys; expected 1 to {MOST_BLOOM_KEYS}"));
        }
        if !(1e-9..=0.5).contains(&error) {
            return Err(format!("a Bloom filter with an error of {error}; expected 1e-9 to 0.5"));
        }
        Ok(())
    }
}

/// Which rows are removed. At least one limit must be set. A key whose row was removed has none: when it comes again, it
/// starts again, with a new count, weights and optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Eviction {
    /// Rows that no push of this many steps has had. Each push looks at a 1,024th of the table, so they stay up to some 2,700
    /// steps longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen_steps: Option<u64>,
    /// The most rows of the whole table, over all shards; at least [`LEAST_CAP`]. When a cell is full, the sixteenth of its rows
    /// that was not seen for longest is removed, or with `half_life` those of the lowest score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// Rows have a score: each push that has the key adds 1, and it halves within this many steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life: Option<u64>,
    /// Rows whose score is lower are removed, at the same pace as `unseen_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f32>,
}

impl Lifetime {
    /// Whether every key gets a row and keeps it.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the numbers; the error names what was found and what was expected.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.admission {
            Some(Admission::Count(n)) if n < 2 => {
                return Err(format!(
                    "admission count is {n}; expected at least 2, or none at all: every key then gets a row"
                ));
            }
            Some(Admission::Bloom(rules)) => rules.check()?,
            Some(Admission::Probability(p)) if !(p > 0.0 && p < 1.0) => {
                return Err(format!("admission probability is {p}; expected more than 0 and less than 1"));
            }
            _ => {}
        }
        let Some(Eviction { unseen_steps, max_rows, half_life, min_score }) = self.eviction else { return Ok(()) };
        if unseen_steps.is_none() && max_rows.is_none() && min_score.is_none() {
            return Err("eviction has no limit; expected an age, a cap or a least score".into());
        }
        if unseen_steps == Some(0) || half_life == Some(0) {
            return Err("eviction has an age or a half-life of 0 steps; expected at least 1".into());
        }
        if let Some(rows) = max_rows
            && rows < LEAST_CAP
        {
            return Err(format!("eviction keeps at most {rows} rows; expected at least {LEAST_CAP}"));
        }
        if let Some(least) = min_score {
            if half_life.is_none() {
                return Err("eviction has a least score and no half-life; a score needs one".into());
            }
            if !(least.is_finite() && least > 0.0) {
                return Err(format!("eviction has a least score of {least}; expected a finite number above 0"));
            }
        }
        Ok(())
    }
}

/// When a row was last used, and how much: a table with a lifetime keeps this beside its weights and state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowUsage {
    /// The last step that had the key.
    pub last_seen: u32,
    /// The score at that step; 0 without a half-life.
    pub score: f32,
}

/// A key without a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The key.
    pub key: u64,
    /// Pushes that had it; 0: nothing is remembered of the key.
    pub count: u32,
    /// The last step that had the key.
    pub seen: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_its_name() {
        let read = |json: &str| serde_json::from_str::<Lifetime>(json).unwrap();
        read(r#"{"admission": {"count": 3}, "eviction": {"max_rows": 65536}}"#).check().unwrap();
        read(r#"{"admission": {"probability": 0.25}, "eviction": {"half_life": 9, "min_score": 0.5}}"#)
            .check()
            .unwrap();
        for (json, word) in [
            (r#"{"admission": {"count": 1}}"#, "count is 1"),
            (r#"{"admission": {"probability": 1.0}}"#, "probability is 1"),
            (r#"{"eviction": {}}"#, "no limit"),
            (r#"{"eviction": {"half_life": 5}}"#, "no limit"),
            (r#"{"eviction": {"unseen_steps": 0}}"#, "0 steps"),
            (r#"{"eviction": {"max_rows": 65535}}"#, "65535 rows"),
            (r#"{"eviction": {"min_score": 1.0}}"#, "half-life"),
            (r#"{"eviction": {"min_score": -1.0, "half_life": 1}}"#, "score of -1"),
        ] {
            let said = read(json).check().unwrap_err();
            assert!(said.contains(word), "{said}");
        }
        assert!(serde_json::from_str::<Lifetime>(r#"{"eviction": {"rows": 1}}"#).is_err());
    }
}
