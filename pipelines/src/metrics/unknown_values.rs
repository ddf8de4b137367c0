//! Warns of a slot if all its values in the scored rows lack weights in the model. Usually the rows write these values in another way than
//! the training rows did, so all keys differ.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_actors::commas;
use forebay_batches::{ReadyBatch, missing_keys};
use forebay_job::Job;

/// Fewer rows may well have new values only.
const LEAST_ROWS: u64 = 100;

/// What is known of the values of each slot so far.
#[derive(Default)]
pub(crate) struct UnknownValues {
    slots: Vec<Slot>,
    rows: u64,
    warned: WarnedSlots,
}

/// The slots that a run has warned of in one of its evaluations. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct WarnedSlots(Arc<Mutex<BTreeSet<String>>>);

struct Slot {
    name: String,
    /// The key of a missing value; `None` for a cross.
    missing: Option<u64>,
    seen: Seen,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// No value.
    Nothing,
    /// Values whose rows of the table are missing, which are zeros.
    Unknown,
    /// A value with weights that is not a missing one: missing values are written alike everywhere.
    Known,
}

impl UnknownValues {
    /// For the slots and crosses of a job. Does not name the slots in `warned` again.
    pub(crate) fn of(job: &Job, warned: WarnedSlots) -> Self {
        let names = job.columns.slot_names().into_iter().zip(missing_keys(&job.columns, job.seed));
        let slots = names.map(|(name, missing)| Slot { name, missing, seen: Seen::Nothing }).collect();
        Self { slots, rows: 0, warned }
    }

    /// Looks at a batch. Costs nothing for a slot that has had a value with weights.
    pub(crate) fn add(&mut self, batch: &ReadyBatch) {
        let (rows, slots, inverse) = (batch.train.rows, self.slots.len(), &batch.train.inverse);
        self.rows += rows as u64;
        let offsets = batch.train.offsets.as_deref();
        // A stage of the program may have changed the slots.
        if offsets.map_or(inverse.len(), |offsets| offsets.len().saturating_sub(1)) != rows * slots {
            return;
        }
        let width = batch.rows.len() / batch.train.unique.len().max(1);
        let has_weights = |&key: &u32| {
            let from = key as usize * width;
            batch.rows[from..from + width].iter().any(|&weight| weight != 0.0)
        };
        for (slot, Slot { missing, seen, .. }) in
            self.slots.iter_mut().enumerate().filter(|(_, s)| s.seen != Seen::Known)
        {
            let is_missing = |&key: &u32| Some(batch.train.unique[key as usize]) == *missing;
            for bag in (0..rows).map(|row| row * slots + slot) {
                let (from, to) = offsets.map_or((bag, bag + 1), |at| (at[bag] as usize, at[bag + 1] as usize));
                let values = &inverse[from..to];
                if values.iter().any(|key| has_weights(key) && !is_missing(key)) {
                    *seen = Seen::Known;
                    break;
                }
                if values.iter().any(|key| !has_weights(key)) {
                    *seen = Seen::Unknown;
                }
            }
        }
    }

    /// Says which slots have no value with weights; `None`: all have one, the run has warned of the others, or there were few rows.
    pub(crate) fn warning(&self) -> Option<String> {
        if self.rows < LEAST_ROWS {
            return None;
        }
        let mut warned = self.warned.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = self.slots.iter().filter(|slot| slot.seen == Seen::Unknown).map(|slot| &slot.name);
        let new: Vec<String> =
            unknown.filter(|name| warned.insert((*name).clone())).map(|name| format!("`{name}`")).collect();
        if new.is_empty() {
            return None;
        }
        Some(format!(
            "in these {} rows no value of {} has weights in the model, so they do not count in the scores: they are all new or \
             missing, l1 of FTRL holds all their weights at zero, or they are written in another way than in the training, such as \
             `79.0` for `79` or `True` for `true`: compare what `forebay data inspect` says of both",
            commas(self.rows),
            new.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use forebay_batches::{Ticket, TrainBatch};

    use super::*;

    /// Of these slots of a job.
    fn of(slots: &str, warned: &WarnedSlots) -> UnknownValues {
        let job = Job { columns: toml::from_str(&format!("slots = {slots}")).unwrap(), ..Job::default() };
        UnknownValues::of(&job, warned.clone())
    }

    /// A batch of as many rows as `weights`, each with a key of this weight in its slot `a`; slot `b` has a list, of a key with a weight in
    /// every second row.
    fn batch(weights: &[f32], lists: bool) -> ReadyBatch {
        let rows = weights.len();
        let mut train = TrainBatch { rows, unique: (0..=rows as u64).collect(), ..TrainBatch::default() };
        let mut offsets = vec![0];
        for row in 0..rows as u32 {
            train.inverse.push(row);
            offsets.push(train.inverse.len() as u32);
            if !lists || row % 2 == 1 {
                train.inverse.push(rows as u32);
            }
            offsets.push(train.inverse.len() as u32);
        }
        train.offsets = lists.then_some(offsets);
        let of_keys = weights.iter().chain(&[1.0]).flat_map(|&weight| [0.0, weight]).collect();
        ReadyBatch { train, rows: of_keys, dense: None, ticket: Ticket::free() }
    }

    #[test]
    fn a_slot_is_named_if_no_value_of_it_has_weights_and_there_are_rows_enough() {
        for lists in [false, true] {
            let mut seen = of("['a', 'b']", &WarnedSlots::default());
            seen.add(&batch(&[0.0; 60], lists));
            assert_eq!(seen.warning(), None, "60 rows are few");
            seen.add(&batch(&[0.0; 60], lists));
            let said = seen.warning().unwrap();
            assert!(said.starts_with("in these 120 rows no value of `a` has weights"), "{said}");
            assert_eq!(seen.warning(), None, "it was said");
            seen.warned = WarnedSlots::default();
            let mut one = [0.0; 60];
            one[59] = 0.5;
            seen.add(&batch(&one, lists));
            assert_eq!(seen.warning(), None);
        }
        // Slots that a stage of the program has added.
        let mut seen = of("['a']", &WarnedSlots::default());
        seen.add(&batch(&[0.0; 200], true));
        assert_eq!(seen.warning(), None);
    }

    /// A bug: each evaluation of a run said it again.
    #[test]
    fn a_run_names_each_slot_once() {
        let warned = WarnedSlots::default();
        let said = |slots: &str| {
            let mut seen = of(slots, &warned);
            seen.add(&batch(&[0.0; 120], false));
            seen.warning()
        };
        assert!(said("['a', 'b']").unwrap().contains("no value of `a` has"));
        assert_eq!(said("['a', 'b']"), None);
        assert!(said("['c', 'b']").unwrap().contains("no value of `c` has"));
    }

    /// A bug: the weights of the missing value made a slot known whose other values are all written in another way.
    #[test]
    fn the_missing_value_makes_no_slot_known() {
        let of_keys = |missing_weight: f32, others: bool| {
            let mut seen = of("['a', 'b']", &WarnedSlots::default());
            let mut batch = batch(&[0.0; 120], false);
            let missing = seen.slots[0].missing.unwrap();
            // The first row of `a`, or all of them, have the missing value.
            batch.train.unique[0] = missing;
            batch.rows[1] = missing_weight;
            if !others {
                batch.train.inverse.iter_mut().step_by(2).for_each(|key| *key = 0);
            }
            seen.add(&batch);
            seen.warning()
        };
        assert!(of_keys(0.5, true).is_some());
        assert!(of_keys(0.0, true).is_some());
        assert_eq!(of_keys(0.5, false), None, "missing in all rows, as in the training");
        assert!(of_keys(0.0, false).is_some(), "missing in all rows, but never in the training");
    }
}
