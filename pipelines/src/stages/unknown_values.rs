//! Warns of a slot if all its values in the scored rows lack weights in the model. Usually the rows write these values in another way than
//! the training rows did, so all keys differ.

use forebay_actors::commas;
use forebay_batches::ReadyBatch;

/// Fewer rows may well have new values only.
const LEAST_ROWS: u64 = 100;

/// What the values of each slot have been so far.
pub(super) struct UnknownValues {
    slots: Vec<(String, Seen)>,
    rows: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// No value.
    Nothing,
    /// Values whose rows of the table are missing, which are zeros.
    Unknown,
    /// A value with weights.
    Known,
}

impl UnknownValues {
    /// Of slots with these names, those of the rows.
    pub(super) fn of(slots: Vec<String>) -> Self {
        Self { slots: slots.into_iter().map(|slot| (slot, Seen::Nothing)).collect(), rows: 0 }
    }

    /// Looks at a batch. Costs nothing for a slot that has had a value with weights.
    pub(super) fn add(&mut self, batch: &ReadyBatch) {
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
        for (slot, (_, seen)) in self.slots.iter_mut().enumerate().filter(|(_, (_, seen))| *seen != Seen::Known) {
            for bag in (0..rows).map(|row| row * slots + slot) {
                let (from, to) = offsets.map_or((bag, bag + 1), |at| (at[bag] as usize, at[bag + 1] as usize));
                let values = &inverse[from..to];
                if values.iter().any(has_weights) {
                    *seen = Seen::Known;
                    break;
                }
                if !values.is_empty() {
                    *seen = Seen::Unknown;
                }
            }
        }
    }

    /// Says which slots have no value with weights; `None`: all have one, or there were few rows.
    pub(super) fn warning(&self) -> Option<String> {
        let unknown: Vec<String> = self.slots.iter().filter(|(_, seen)| *seen == Seen::Unknown).map(name).collect();
        if self.rows < LEAST_ROWS || unknown.is_empty() {
            return None;
        }
        Some(format!(
            "in these {} rows no value of {} has weights in the model, so they do not count in the scores: they are all new or \
             missing, l1 of FTRL holds all their weights at zero, or they are written in another way than in the training, such as \
             `79.0` for `79` or `True` for `true`: compare what `forebay data inspect` says of both",
            commas(self.rows),
            unknown.join(", ")
        ))
    }
}

fn name((name, _): &(String, Seen)) -> String {
    format!("`{name}`")
}

#[cfg(test)]
mod tests {
    use forebay_batches::{Ticket, TrainBatch};

    use super::*;

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
        let names = || vec!["a".to_owned(), "b".to_owned()];
        for lists in [false, true] {
            let mut seen = UnknownValues::of(names());
            seen.add(&batch(&[0.0; 60], lists));
            assert_eq!(seen.warning(), None, "60 rows are few");
            seen.add(&batch(&[0.0; 60], lists));
            let said = seen.warning().unwrap();
            assert!(said.starts_with("in these 120 rows no value of `a` has weights"), "{said}");
            let mut one = [0.0; 60];
            one[59] = 0.5;
            seen.add(&batch(&one, lists));
            assert_eq!(seen.warning(), None);
        }
        // Slots that a stage of the program has added.
        let mut seen = UnknownValues::of(vec!["a".to_owned()]);
        seen.add(&batch(&[0.0; 200], true));
        assert_eq!(seen.warning(), None);
    }
}
