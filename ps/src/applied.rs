//! The ids of the pushes that a shard has applied.

use std::collections::HashMap;

use crate::push::PushId;

/// The ids of the pushes that have been applied: a bit each, in words of 64 of one source.
///
/// A word takes about 40 bytes, and a push adds at most one. Acknowledged sources take none: see
/// [`acknowledge_before`](Self::acknowledge_before).
///
/// ```
/// # use forebay_ps::{Applied, PushId};
/// let (mut applied, id) = (Applied::default(), PushId { source: 7, sequence: 100 });
/// assert!(applied.insert(id));
/// assert!(!applied.insert(id) && applied.contains(id));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    words: HashMap<(u64, u32), u64>,
    /// All ids of lower sources are applied.
    acknowledged: u64,
}

impl Applied {
    /// Marks `id` as applied; false when it was before.
    pub fn insert(&mut self, id: PushId) -> bool {
        if id.source < self.acknowledged {
            return false;
        }
        let (word, bit) = place(id);
        let word = self.words.entry(word).or_default();
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether `id` was applied.
    pub fn contains(&self, id: PushId) -> bool {
        let (word, bit) = place(id);
        id.source < self.acknowledged || self.words.get(&word).is_some_and(|word| word & bit != 0)
    }

    /// From now on all ids of sources below this one count as applied.
    pub fn acknowledge_before(&mut self, source: u64) {
        self.acknowledged = self.acknowledged.max(source);
        self.words.retain(|(s, _), _| *s >= source);
    }

    /// Ids marked, of sources that are not acknowledged.
    pub fn len(&self) -> usize {
        self.words.values().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no id is marked.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

fn place(id: PushId) -> ((u64, u32), u64) {
    ((id.source, id.sequence / 64), 1 << (id.sequence % 64))
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
            for (source, sequence) in ids {
                let id = PushId { source, sequence };
                prop_assert_eq!(applied.contains(id), slow.contains(&id));
                prop_assert_eq!(applied.insert(id), slow.insert(id));
                prop_assert_eq!(applied.len(), slow.len());
            }
            // Acknowledged ids count as applied, and take no memory.
            applied.acknowledge_before(2);
            applied.acknowledge_before(1);
            slow.retain(|id| id.source >= 2);
            prop_assert_eq!(applied.len(), slow.len());
            for source in 0..4 {
                for sequence in 0..100 {
                    let id = PushId { source, sequence };
                    prop_assert_eq!(applied.contains(id), source < 2 || slow.contains(&id));
                    prop_assert_eq!(applied.insert(id), source >= 2 && slow.insert(id));
                }
            }
        }
    }
}
