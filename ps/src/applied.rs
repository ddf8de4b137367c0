//! The ids of the pushes that a shard has applied.

use std::collections::HashMap;

use crate::push::PushId;

/// The ids of applied pushes: one bit for each, in words of 64 ids of one series.
///
/// A word takes about 40 bytes, and a push adds at most one. Acknowledged series take none: see
/// [`acknowledge_before`](Self::acknowledge_before).
///
/// ```
/// # use forebay_ps::{Applied, PushId};
/// let (mut applied, id) = (Applied::default(), PushId { series: 7, index: 100 });
/// assert!(applied.insert(id));
/// assert!(!applied.insert(id) && applied.contains(id));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    words: HashMap<(u64, u32), u64>,
    /// All ids of lower series are applied.
    acknowledged: u64,
    /// Higher than the series of all ids that were marked.
    above: u64,
}

impl Applied {
    /// Marks `id` as applied; false if it already was.
    pub fn insert(&mut self, id: PushId) -> bool {
        if id.series < self.acknowledged {
            return false;
        }
        self.above = self.above.max(id.series.saturating_add(1));
        let (word, bit) = place(id);
        let word = self.words.entry(word).or_default();
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether `id` was applied.
    pub fn contains(&self, id: PushId) -> bool {
        let (word, bit) = place(id);
        id.series < self.acknowledged || self.words.get(&word).is_some_and(|word| word & bit != 0)
    }

    /// From this call on all ids of series below this one count as applied.
    pub fn acknowledge_before(&mut self, series: u64) {
        self.acknowledged = self.acknowledged.max(series);
        self.words.retain(|(s, _), _| *s >= series);
    }

    /// As [`acknowledge_before`](Self::acknowledge_before), but at most up to the highest series of an id that was marked. There is nothing
    /// to forget of higher series, and a later push of one is not taken for an applied one.
    pub fn acknowledge_marked_before(&mut self, series: u64) {
        self.acknowledge_before(series.min(self.above));
    }

    /// Ids marked, of series that are not acknowledged.
    pub fn len(&self) -> usize {
        self.words.values().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no id is marked.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

fn place(id: PushId) -> ((u64, u32), u64) {
    ((id.series, id.index / 64), 1 << (id.index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn applied_is_a_set(ids in prop::collection::vec((0u64..4, prop_oneof![0u32..200, any::<u32>()]), 0..300)) {
            let (mut applied, mut slow) = (Applied::default(), HashSet::new());
            for (series, index) in ids {
                let id = PushId { series, index };
                prop_assert_eq!(applied.contains(id), slow.contains(&id));
                prop_assert_eq!(applied.insert(id), slow.insert(id));
                prop_assert_eq!(applied.len(), slow.len());
            }
            let above = slow.iter().map(|id| id.series + 1).max().unwrap_or(0);
            let mut marked = applied.clone();
            marked.acknowledge_marked_before(u64::MAX);
            prop_assert!(marked.is_empty());
            for series in 0..6 {
                prop_assert_eq!(marked.contains(PushId { series, index: 201 }), series < above);
            }
            // Acknowledged ids count as applied, and take no memory.
            applied.acknowledge_before(2);
            applied.acknowledge_before(1);
            slow.retain(|id| id.series >= 2);
            prop_assert_eq!(applied.len(), slow.len());
            for series in 0..4 {
                for index in 0..100 {
                    let id = PushId { series, index };
                    prop_assert_eq!(applied.contains(id), series < 2 || slow.contains(&id));
                    prop_assert_eq!(applied.insert(id), series >= 2 && slow.insert(id));
                }
            }
        }
    }
}
