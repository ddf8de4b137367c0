//! Crosses: the key of each combination of the keys of two or three slots.

use forebay_base::mix64;
use forebay_job::{Columns, SlotCross};
use forebay_ps::SlotHasher;

use super::bad_rows::BadRows;
use super::slot::into_buckets;
use crate::flow::SlotKeys;

/// The most combinations of a row: lists multiply.
const MOST: usize = 4096;
const TOO_MANY: &str = "too many combinations in a cross";

pub(super) struct CrossParser {
    name: String,
    /// The slots, by their number.
    slots: Vec<usize>,
    hasher: SlotHasher,
    buckets: Option<u64>,
}

impl CrossParser {
    pub(super) fn new(cross: &SlotCross, columns: &Columns, seed: u64) -> Self {
        let name = cross.key_space();
        let hasher = SlotHasher::new(&name, seed);
        Self { slots: cross.slots(columns), hasher, buckets: cross.buckets, name }
    }

    /// The keys of the cross from the keys of all slots. A row of too many combinations is a bad row.
    pub(super) fn parse(&self, slots: &[SlotKeys], bad: &mut BadRows) -> SlotKeys {
        let parts: Vec<&SlotKeys> = self.slots.iter().map(|&slot| &slots[slot]).collect();
        let (first, others) = parts.split_first().expect("a cross has at least two slots");
        let mut crossed = (*first).clone();
        for other in others {
            crossed = match (crossed, other) {
                (SlotKeys::One(mut a), SlotKeys::One(b)) => {
                    a.iter_mut().zip(b).for_each(|(a, &b)| *a = pair(*a, b));
                    SlotKeys::One(a)
                }
                (crossed, other) => self.product(&crossed, other, bad),
            };
        }
        let keys = crossed.all_mut();
        keys.iter_mut().for_each(|key| *key = self.hasher.int(*key as i64));
        if let Some(buckets) = self.buckets {
            into_buckets(keys, &self.hasher, buckets);
        }
        crossed
    }

    /// Every pair of the keys of each row.
    fn product(&self, left: &SlotKeys, right: &SlotKeys, bad: &mut BadRows) -> SlotKeys {
        let rows = left.rows();
        let (mut offsets, mut keys) = (Vec::with_capacity(rows + 1), Vec::new());
        offsets.push(0);
        for row in 0..rows {
            let (left, right) = (left.keys(row, row + 1), right.keys(row, row + 1));
            if left.len() * right.len() > MOST {
                let (name, of) = (&self.name, left.len() * right.len());
                bad.add(row, TOO_MANY, || format!("`{name}` has {of} combinations, expected at most {MOST}"));
            } else {
                keys.extend(left.iter().flat_map(|&a| right.iter().map(move |&b| pair(a, b))));
            }
            offsets.push(keys.len() as u32);
        }
        SlotKeys::Many { offsets, keys }
    }
}

/// A hash of two keys in this order.
fn pair(a: u64, b: u64) -> u64 {
    mix64(a ^ mix64(b))
}
