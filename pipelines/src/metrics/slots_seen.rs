//! The counts of the slots of a run: values, rows without any, and an estimate of the keys. The trainers count batch by batch.

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_actors::{Fault, commas};
use forebay_batches::{KeySample, TrainBatch};
use forebay_job::Columns;
use forebay_ps::TableClient;
use futures::executor::block_on;
use serde::{Deserialize, Serialize};

use super::empty_features;

/// The most keys of a key space that are kept.
const MOST_OF_A_SPACE: usize = 512;

/// The most keys of all key spaces that are kept: they travel to the first trainer in one message.
const MOST_KEYS: usize = 32_768;

/// The largest count that a process may send: thousands of them can be added up.
const MOST: u64 = 1 << 50;

/// The counts of one slot in the rows that a run trained on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlotReport {
    /// The slot, or the columns of a cross.
    pub name: String,
    /// The table of its rows.
    pub table: String,
    /// Values of all rows together; a missing value of a slot without lists counts as one.
    pub values: u64,
    /// Values of a row, on average.
    pub mean_values: f64,
    /// Rows without a value (an empty list, a missing value), of all rows.
    pub empty_share: f64,
    /// Different keys that occurred. Slots that share a key space have one count.
    pub keys: u64,
    /// Whether `keys` and `rows` are estimates, from a sample of the keys: within some 5% (one standard deviation).
    pub estimated: bool,
    /// The number of these keys that have a row in the table at the end; the others were not admitted, or their rows were removed.
    pub rows: u64,
}

/// The slots of one run so far. Clones share them.
#[derive(Clone)]
pub(crate) struct SlotsSeen(Arc<Mutex<State>>);

#[derive(Clone)]
struct State {
    /// The number of each slot's key space.
    key_spaces: Vec<usize>,
    rows: u64,
    slots: Vec<SlotTotals>,
    /// One for each key space.
    samples: Vec<KeySample>,
}

/// Values, and rows without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SlotTotals {
    values: u64,
    empty: u64,
}

/// The counts of the slots in one process, as they are sent to the first trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentSlots {
    rows: u64,
    slots: Vec<SlotTotals>,
    /// For each key space, the level of the sample and its keys.
    samples: Vec<(u32, Vec<u64>)>,
}

impl SentSlots {
    /// The sum of the counts that several processes sent. It has the slots of the first process, leaves out processes with other slots, and
    /// is at most as large as the message of one process. `None`: `all` is empty.
    pub(crate) fn together<'a>(all: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut all = all.into_iter().peekable();
        let first = all.peek()?;
        let mut together = State::new(Vec::new(), first.slots.len(), first.samples.len());
        all.for_each(|sent| together.merge(sent));
        Some(together.sent())
    }

    /// Whether the counts can be added up, and memory for the keys is bounded.
    pub(crate) fn is_plausible(&self) -> bool {
        let kept = self.samples.iter().map(|(_, keys)| keys.len()).sum::<usize>();
        kept <= MOST_KEYS
            && self.rows <= MOST
            && self.slots.iter().all(|counts| counts.values <= MOST && counts.empty <= MOST)
    }
}

impl State {
    /// No counts yet, for this many slots and key spaces.
    fn new(key_spaces: Vec<usize>, slots: usize, spaces: usize) -> Self {
        let most = (MOST_KEYS / spaces.max(1)).clamp(1, MOST_OF_A_SPACE);
        Self {
            key_spaces,
            rows: 0,
            slots: vec![SlotTotals::default(); slots],
            samples: vec![KeySample::new(most); spaces],
        }
    }

    fn merge(&mut self, other: &SentSlots) {
        if (other.slots.len(), other.samples.len()) != (self.slots.len(), self.samples.len()) {
            return;
        }
        self.rows += other.rows;
        for (counts, other) in self.slots.iter_mut().zip(&other.slots) {
            counts.values += other.values;
            counts.empty += other.empty;
        }
        let samples = self.samples.iter_mut().zip(&other.samples);
        samples.for_each(|(sample, (level, keys))| sample.merge(*level, keys));
    }

    fn sent(&self) -> SentSlots {
        let samples = self.samples.iter().map(|sample| (sample.level(), sample.keys())).collect();
        SentSlots { rows: self.rows, slots: self.slots.clone(), samples }
    }
}

impl SlotsSeen {
    /// No counts yet, for the slots and crosses of these columns.
    pub(crate) fn new(columns: &Columns) -> Self {
        let key_spaces = columns.key_spaces();
        let spaces = key_spaces.iter().map(|space| space + 1).max().unwrap_or(0);
        let slots = key_spaces.len();
        Self(Arc::new(Mutex::new(State::new(key_spaces, slots, spaces))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Counts a batch that was trained on. Costs an addition for each slot, and a multiplication and a comparison for each key of the
    /// batch's list, not for each value.
    pub(crate) fn add(&self, batch: &TrainBatch) {
        let State { key_spaces, rows, slots, samples } = &mut *self.state();
        if batch.slots.len() != slots.len() {
            return;
        }
        *rows += batch.rows as u64;
        let mut ends = vec![0; samples.len()];
        for ((counts, own), &space) in slots.iter_mut().zip(&batch.slots).zip(&*key_spaces) {
            counts.values += u64::from(own.values);
            counts.empty += u64::from(own.empty);
            ends[space] = own.keys_end as usize;
        }
        let mut from = 0;
        for (sample, end) in samples.iter_mut().zip(ends) {
            // The end may be wrong, if the batch came from another process or a custom stage changed the keys.
            let to = end.clamp(from, batch.unique.len());
            sample.add(&batch.unique[from..to]);
            from = to;
        }
    }

    /// Adds the counts of another process. Does nothing if they are of other slots.
    pub(crate) fn merge(&self, other: &SentSlots) {
        self.state().merge(other);
    }

    /// The counts that this process sends.
    pub(crate) fn sent(&self) -> SentSlots {
        self.state().sent()
    }

    /// Logs which slots had no value in any of these rows.
    pub(crate) fn warn_of_empty(&self, columns: &Columns) {
        let rows = self.state().rows;
        empty_features::warn("columns.slots", &self.without_values(columns), &commas(rows));
    }

    /// The slots that had no value in any row; none if there were no rows.
    fn without_values(&self, columns: &Columns) -> Vec<String> {
        let State { rows, slots, .. } = &*self.state();
        // A cross has values where its slots have none.
        let slots = columns.slot_names().into_iter().zip(slots).take(columns.slots.len());
        slots.filter(|(_, counts)| *rows > 0 && counts.empty == *rows).map(|(name, _)| name).collect()
    }

    /// The counts of each slot, and how many of its keys have a row in `table`. Empty if no batch was counted. Blocks on the shards, if
    /// their table admits or removes keys.
    ///
    /// # Errors
    /// If a shard does not answer.
    pub(crate) fn report(&self, columns: &Columns, table: &TableClient) -> Result<Vec<SlotReport>, Fault> {
        let State { key_spaces, rows, slots, samples } = self.state().clone();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let config = table.config();
        let rows_of = |sample: &KeySample| match config.has_lifetime() {
            false => Ok(sample.count()),
            true => with_rows(sample, table).map(|kept| sample.stands_for(kept)),
        };
        let of_spaces: Vec<u64> = samples.iter().map(rows_of).collect::<Result<_, _>>()?;
        let tables = config.of_groups();
        let names = columns.slot_names().into_iter().zip(columns.slot_tables());
        let reports =
            names.zip(slots).zip(key_spaces).map(|(((name, in_table), SlotTotals { values, empty }), space)| {
                let sample = &samples[space];
                SlotReport {
                    name,
                    table: tables.get(in_table).map(|table| table.name.clone()).unwrap_or_default(),
                    values,
                    mean_values: values as f64 / rows as f64,
                    empty_share: empty as f64 / rows as f64,
                    keys: sample.count(),
                    estimated: sample.level() > 0,
                    rows: of_spaces[space],
                }
            });
        Ok(reports.collect())
    }
}

/// How many keys of the sample have a row. A row whose weights are all 0 cannot be distinguished from a missing row.
fn with_rows(sample: &KeySample, table: &TableClient) -> Result<usize, Fault> {
    let (keys, mut rows) = (sample.keys(), Vec::new());
    block_on(table.peek(&keys, &mut rows))?;
    let there = |row: &&[f32]| row.iter().any(|weight| *weight != 0.0);
    Ok(rows.chunks_exact(table.row_dim().max(1)).filter(there).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_batches::SlotCounts;

    /// Slots `a` and `b`, which share their keys, and `c`.
    fn columns() -> Columns {
        toml::from_str("slots = ['a', { column = 'b', key_space = 'a' }, 'c']").unwrap()
    }

    fn batch(rows: usize, values: u32, unique: Vec<u64>, ends: [u32; 2]) -> TrainBatch {
        let counts = |values, keys_end| SlotCounts { values, empty: 1, keys_end };
        let slots = vec![counts(rows as u32, ends[0]), counts(rows as u32, ends[0]), counts(values, ends[1])];
        TrainBatch { rows, unique, slots, ..TrainBatch::default() }
    }

    #[test]
    fn what_two_trainers_saw_is_what_one_would_have_seen() {
        let batches = [batch(4, 9, vec![1, 2, 3, 10, 11], [3, 5]), batch(2, 0, vec![3, 4, 11], [2, 3])];
        let (one, first, second) = (SlotsSeen::new(&columns()), SlotsSeen::new(&columns()), SlotsSeen::new(&columns()));
        batches.iter().for_each(|batch| one.add(batch));
        first.add(&batches[0]);
        second.add(&batches[1]);
        let sent: SentSlots = serde_json::from_slice(&serde_json::to_vec(&second.sent()).unwrap()).unwrap();
        assert!(sent.is_plausible());
        first.merge(&sent);
        let sorted = |seen: &SlotsSeen| {
            let mut sent = seen.sent();
            sent.samples.iter_mut().for_each(|(_, keys)| keys.sort_unstable());
            sent
        };
        assert_eq!(sorted(&first), sorted(&one));
        // The coordinator puts together what the others sent.
        let (both, at_once, one_by_one) = ([one.sent(), sent], SlotsSeen::new(&columns()), SlotsSeen::new(&columns()));
        at_once.merge(&SentSlots::together(&both).unwrap());
        both.iter().for_each(|sent| one_by_one.merge(sent));
        assert_eq!(sorted(&at_once), sorted(&one_by_one));
        assert_eq!(SentSlots::together([]), None);
        let SentSlots { rows, slots, samples } = sorted(&one);
        assert_eq!((rows, slots[2]), (6, SlotTotals { values: 9, empty: 2 }));
        assert_eq!(samples, [(0, vec![1, 2, 3, 4]), (0, vec![10, 11])]);
    }

    #[test]
    fn only_slots_that_are_empty_in_all_rows_have_no_values() {
        let seen = SlotsSeen::new(&columns());
        assert!(seen.without_values(&columns()).is_empty(), "no rows");
        // Each slot of these batches is empty in one row.
        seen.add(&batch(1, 0, vec![1], [1, 1]));
        assert_eq!(seen.without_values(&columns()), ["a", "b", "c"]);
        seen.add(&batch(2, 1, vec![1, 2], [1, 2]));
        assert!(seen.without_values(&columns()).is_empty());
    }

    #[test]
    fn counts_that_do_not_fit_are_left_out() {
        let seen = SlotsSeen::new(&columns());
        // Without counts, with ends beyond the keys, and with ends that fall.
        seen.add(&TrainBatch { rows: 3, ..TrainBatch::default() });
        seen.add(&batch(1, 1, vec![1, 2], [9, 9]));
        seen.add(&batch(1, 1, vec![3, 4], [2, 1]));
        assert_eq!(seen.sent().rows, 2);
        let mut other = seen.sent();
        other.samples.pop();
        seen.merge(&other);
        assert_eq!(seen.sent().rows, 2, "samples of other slots");
        other.rows = u64::MAX;
        assert!(!other.is_plausible());
    }
}
