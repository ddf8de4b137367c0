//! The `[table]` section of a job.

use forebay_actors::Fault;
use forebay_models::RowPart;
use forebay_ps::{
    Admission, BloomCount, Eviction, Init, LEAST_CAP, Lifetime, MOST_BLOOM_COUNT, MOST_BLOOM_KEYS, Optimizer,
    PartConfig, Storage, TableConfig,
};
use serde::{Deserialize, Serialize};

use super::steps::Steps;
use super::{ByteSize, Knob};

/// Name of the one table of a job.
pub(super) const TABLE: &str = "embedding";

/// The table of embeddings and linear weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableOptions {
    /// Shards per ps process, each with its own thread. "auto": half of the ps's `pipeline.cores`; without ps processes a quarter; at
    /// least 1 and at most 16. Processes may have different numbers, and the trained model does not depend on them.
    /// A number is at least 1, and at most 1024 in all ps together.
    pub shards: Knob,
    /// The number format of the weights in memory.
    pub storage: Storage,
    /// Optimizer of the linear weights. By default FTRL with `alpha = 0.1 (m / n)^(1/3)`, at most 0.1, where m is 4,096 for the kinds `lr`
    /// and `fm` and 1,024 for others, and n is the number of rows that a step or its staleness covers, `train.batch_rows` times 1 +
    /// `train.staleness`; and with `beta = 1 / train.batch_rows`. With `train.sync` a step has a batch of each trainer
    /// ([why](quality.md#the-default-of-linear-weights)). FTRL without `alpha` or `beta`, such as `{ kind = "ftrl", l1 = 1e-4 }`, has this
    /// `alpha` or `beta`. Another optimizer is for instance `{ kind = "adagrad", lr = 0.05 }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_optimizer: Option<Optimizer>,
    /// Optimizer of the embeddings. By default Adam with `lr = 0.001`, with staleness 0 and more than 4,096 rows in a step with `lr = 0.001
    /// sqrt(rows / 4096)`, at most 0.01, and for `model.loss = "in_batch_softmax"` always with `lr = 0.03`
    /// ([quality.md](quality.md#two-towers)); Adam without `lr` has this one. Another optimizer is for instance `{ kind = "adagrad", lr =
    /// 0.05 }`, which keeps one number of state per weight; Adam keeps two. `lr` may change, as in `train.optimizer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_optimizer: Option<Optimizer>,
    /// Initial values of a new embedding. Linear weights start at 0.
    pub embedding_init: Init,
    /// Which keys get a row. Without these fields every key gets one.
    pub admission: AdmissionOptions,
    /// Which rows are removed. Without these fields no row is.
    pub eviction: EvictionOptions,
}

/// Which keys get a row. A key without a row reads as zeros, in training as in evaluation and prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionOptions {
    /// A key gets a row with the n-th batch that has the key, counted exactly; at least 2, for instance `3`.
    pub count: Option<u32>,
    /// Counts for `count` in a counting Bloom filter, in memory of a fixed size, for instance `{ keys = 100_000_000 }`: a share of keys
    /// gets a row too early.
    pub bloom: Option<BloomOptions>,
    /// The probability that a key gets a row in a batch that has the key, for instance `0.1`. Not together with `count`. Between 0 and 1.
    pub probability: Option<f64>,
}

/// The size of a counting Bloom filter (Fan et al. 2000).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BloomOptions {
    /// The most keys that wait at a time, over all shards and processes. If more wait, the counts of some start again from 0.
    /// From 1 to 68719476736.
    pub keys: u64,
    /// The share of keys that may get a row too early, at most 0.5. Default 0.01.
    #[serde(default = "one_percent")]
    pub error: f64,
}

fn one_percent() -> f64 {
    0.01
}

/// Which rows are removed. If the key of a removed row occurs again, it begins with a new count, new weights and new optimizer state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvictionOptions {
    /// Removes rows whose key was in none of the last n rows of data, counted in batches, for instance `50000000`. The removal is up to
    /// some 2,700 batches late. At least 1.
    pub unseen_rows: Option<u64>,
    /// The most rows of the whole table; at least 65536, for instance `100000000`. When a cell of the table is full, it removes the
    /// sixteenth of its rows that was unseen for longest.
    pub max_rows: Option<u64>,
    /// The most memory of the whole table in bytes, over all processes, for instance `8GB`. Forebay divides it by the largest size of a
    /// row, and rounds the number of rows down to a multiple of 65536. Each shard takes up to 5 MB beside its rows
    /// ([why](troubleshooting.md#out-of-memory)).
    pub max_bytes: Option<ByteSize>,
    /// Gives each row a score: every batch that has the key adds 1, and this many rows of data halve the score, for instance `10000000`.
    /// When a cell of the table is full, it removes the rows with the lowest score. At least 1.
    pub half_life_rows: Option<u64>,
    /// Removes rows with a lower score, at the same pace as `unseen_rows`, for instance `0.1`. A number above 0.
    pub min_score: Option<f32>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            shards: Knob::AUTO,
            storage: Storage::F32,
            linear_optimizer: None,
            embedding_optimizer: None,
            embedding_init: Init::Uniform { scale: 0.01 },
            admission: AdmissionOptions::default(),
            eviction: EvictionOptions::default(),
        }
    }
}

impl TableOptions {
    /// The configuration of a table with these row parts. The part "linear" has the linear optimizer, "count" adds up
    /// what is pushed, every other part has the optimizer of the embeddings.
    pub(super) fn config(&self, parts: Vec<RowPart>, seed: u64, steps: Steps) -> TableConfig {
        let parts = parts
            .into_iter()
            .map(|part| {
                let (optimizer, init) = match part.name.as_str() {
                    "linear" => (self.linear_optimizer.unwrap_or_else(|| steps.linear_optimizer()), Init::Zeros),
                    // A part of two towers. Its gradients are negative numbers of rows.
                    "count" => (Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 }, Init::Zeros),
                    _ => (self.embedding_optimizer.unwrap_or_else(|| steps.embedding_optimizer()), self.embedding_init),
                };
                PartConfig { optimizer, init, name: part.name, dim: part.dim }
            })
            .collect();
        let (name, storage) = (TABLE.into(), self.storage);
        let mut config = TableConfig { name, seed, parts, storage, lifetime: Lifetime::default(), groups: Vec::new() };
        let admission = match (self.admission.count, self.admission.probability) {
            (Some(count), _) => Some(match self.admission.bloom {
                Some(BloomOptions { keys, error }) => Admission::Bloom(BloomCount { count, keys, error }),
                None => Admission::Count(count),
            }),
            (None, probability) => probability.map(Admission::Probability),
        };
        // Set first, because the bytes of a row depend on it.
        config.lifetime = Lifetime { admission, eviction: Some(Eviction::default()) };
        config.lifetime.eviction = self.eviction(&config, steps.rows);
        config
    }

    /// The section with the rules that decide which keys have a row, if there is one.
    pub(super) fn rules(&self) -> Option<&'static str> {
        match (self.admission == AdmissionOptions::default(), self.eviction == EvictionOptions::default()) {
            (false, _) => Some("admission"),
            (_, false) => Some("eviction"),
            (true, true) => None,
        }
    }

    fn eviction(&self, config: &TableConfig, rows_per_step: usize) -> Option<Eviction> {
        let EvictionOptions { unseen_rows, max_rows, max_bytes, half_life_rows, min_score } = self.eviction;
        let steps = |rows: Option<u64>| rows.map(|rows| rows.div_ceil(rows_per_step.max(1) as u64));
        let for_rows = |bytes: ByteSize| (bytes.0 as u64).saturating_sub(config.most_bloom_bytes());
        // A cell takes places for 16 rows at once, so a cap between two multiples of this would have the places of the next one.
        let whole = |rows: u64| rows / LEAST_CAP * LEAST_CAP;
        let rows_of_bytes = max_bytes.map(|bytes| whole(for_rows(bytes) / config.most_bytes_per_row()));
        let max_rows = max_rows.into_iter().chain(rows_of_bytes).min();
        let (unseen_steps, half_life) = (steps(unseen_rows), steps(half_life_rows));
        Some(Eviction { unseen_steps, max_rows, half_life, min_score }).filter(|rules| *rules != Eviction::default())
    }

    /// Checks admission and eviction.
    ///
    /// # Errors
    /// User: names the field and what is expected.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let AdmissionOptions { count, ref bloom, probability } = self.admission;
        if let Some(BloomOptions { keys, error }) = *bloom {
            let Some(count) = count else {
                return Err(Fault::user("table.admission.bloom needs table.admission.count, the number of batches"));
            };
            if count > MOST_BLOOM_COUNT {
                return Err(Fault::user(format!(
                    "table.admission.count is {count}, expected at most {MOST_BLOOM_COUNT} with table.admission.bloom, whose \
                     counters have four bits"
                )));
            }
            if !(1..=MOST_BLOOM_KEYS).contains(&keys) {
                return Err(Fault::user(format!(
                    "table.admission.bloom.keys is {keys}, expected 1 to {MOST_BLOOM_KEYS}"
                )));
            }
            if !(1e-9..=0.5).contains(&error) {
                return Err(Fault::user(format!("table.admission.bloom.error is {error}, expected 1e-9 to 0.5")));
            }
        }
        if count.is_some() && probability.is_some() {
            return Err(Fault::user(
                "table.admission has both a count and a probability, expected one of them: leave the other out",
            ));
        }
        if let Some(count) = count
            && count < 2
        {
            return Err(Fault::user(format!(
                "table.admission.count is {count}, expected at least 2: without it every key gets a row at once"
            )));
        }
        if let Some(p) = probability
            && !(p > 0.0 && p < 1.0)
        {
            return Err(Fault::user(format!(
                "table.admission.probability is {p}, expected more than 0 and less than 1"
            )));
        }
        let EvictionOptions { unseen_rows, max_rows, max_bytes, half_life_rows, min_score } = self.eviction;
        for (name, rows) in [("unseen_rows", unseen_rows), ("half_life_rows", half_life_rows)] {
            if rows == Some(0) {
                return Err(Fault::user(format!("table.eviction.{name} is 0, expected at least 1")));
            }
        }
        if let Some(rows) = max_rows
            && rows < LEAST_CAP
        {
            return Err(Fault::user(format!("table.eviction.max_rows is {rows}, expected at least {LEAST_CAP}")));
        }
        if half_life_rows.is_some() && max_rows.is_none() && max_bytes.is_none() && min_score.is_none() {
            return Err(Fault::user(
                "table.eviction.half_life_rows gives rows a score that nothing uses: set max_rows, max_bytes or min_score",
            ));
        }
        match min_score {
            Some(_) if half_life_rows.is_none() => {
                Err(Fault::user("table.eviction.min_score needs scores: set table.eviction.half_life_rows"))
            }
            Some(least) if !(least.is_finite() && least > 0.0) => {
                Err(Fault::user(format!("table.eviction.min_score is {least}, expected a number above 0")))
            }
            _ => Ok(()),
        }
    }

    /// Checks `max_bytes`. Its least value depends on the size of the rows.
    ///
    /// # Errors
    /// User: names the least value that is expected.
    pub(crate) fn check_bytes(&self, config: &TableConfig) -> Result<(), Fault> {
        let least = LEAST_CAP * config.most_bytes_per_row() + config.most_bloom_bytes();
        match self.eviction.max_bytes {
            Some(bytes) if (bytes.0 as u64) < least => Err(Fault::user(format!(
                "table.eviction.max_bytes is {bytes}, expected at least {}: {LEAST_CAP} rows of this model",
                ByteSize(least as usize)
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    const STEPS: Steps =
        Steps { rows: 1000, staleness: 0, in_batch: false, width_of_labels: None, dense_is_linear: false };

    fn table(text: &str) -> TableOptions {
        Job::from_toml(text, &[]).unwrap().table
    }

    #[test]
    fn rows_of_data_and_bytes_become_steps_and_rows() {
        let parts = || vec![RowPart { name: "embedding".into(), dim: 16 }];
        let lifetime = |text: &str| table(text).config(parts(), 1, STEPS).lifetime;
        assert!(lifetime("").is_unlimited());
        let all = lifetime(
            "[table.admission]\ncount = 3\n[table.eviction]\nunseen_rows = 5001\nhalf_life_rows = 2000\nmax_rows = 70000",
        );
        assert_eq!(all.admission, Some(Admission::Count(3)));
        let eviction = Eviction { unseen_steps: Some(6), max_rows: Some(70_000), half_life: Some(2), min_score: None };
        assert_eq!(all.eviction, Some(eviction));
        let rows = |text: &str| lifetime(text).eviction.unwrap().max_rows.unwrap();
        let (alone, counted) = (
            rows("[table.eviction]\nmax_bytes = '100MB'"),
            rows("[table.eviction]\nmax_bytes = '100MB'\n[table.admission]\ncount = 2"),
        );
        // 16 weights, twice as much state, the index, and the key with its age; and what a key that waits takes.
        assert!((300_000..500_000).contains(&alone) && counted < alone, "{alone}, {counted}");
        // 264 bytes each: what a cell would not fill does not become places for rows.
        for (bytes, cells) in [("18MB", 1), ("19MB", 1), ("34MB", 1), ("35MB", 2), ("100MB", 5), ("8GB", 462)] {
            assert_eq!(rows(&format!("[table.eviction]\nmax_bytes = '{bytes}'")), cells * LEAST_CAP, "{bytes}");
        }
        // A cap in rows is one of rows.
        assert_eq!(rows("[table.eviction]\nmax_bytes = '19MB'\nmax_rows = 65540"), LEAST_CAP);
        assert_eq!(rows("[table.eviction]\nmax_bytes = '100MB'\nmax_rows = 65540"), 65_540);
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_field() {
        for (text, words) in [
            ("[table.admission]\ncount = 1", "table.admission.count is 1"),
            ("[table.admission]\ncount = 2\nprobability = 0.5", "both a count and a probability"),
            ("[table.admission]\nbloom = { keys = 5 }", "table.admission.bloom needs table.admission.count"),
            ("[table.admission]\ncount = 15\nbloom = { keys = 5 }", "count is 15, expected at most 14"),
            ("[table.admission]\ncount = 2\nbloom = { keys = 0 }", "table.admission.bloom.keys is 0"),
            ("[table.admission]\ncount = 2\nbloom = { keys = 5, error = 1.0 }", "table.admission.bloom.error is 1"),
            ("[table.admission]\nprobability = 1.0", "table.admission.probability is 1"),
            ("[table.eviction]\nmax_rows = 100", "table.eviction.max_rows is 100, expected at least 65536"),
            ("[table.eviction]\nunseen_rows = 0", "table.eviction.unseen_rows is 0"),
            ("[table.eviction]\nhalf_life_rows = 9", "nothing uses"),
            ("[table.eviction]\nmin_score = 0.5", "half_life_rows"),
            ("[table.eviction]\nmin_score = -1.0\nhalf_life_rows = 5", "min_score is -1"),
        ] {
            let said = table(text).check().unwrap_err().to_string();
            assert!(said.contains(words), "no `{words}` in: {said}");
        }
        let small = table("[table.eviction]\nmax_bytes = '1MB'");
        let config = small.config(vec![RowPart { name: "embedding".into(), dim: 16 }], 1, STEPS);
        assert!(small.check_bytes(&config).unwrap_err().to_string().contains("max_bytes is 1"));
    }
}
