//! From a key to the number of its row: open addressing, linear probing over 16-byte slots, growth step by step.
//!
//! **Home slots keep the order of the hashes** (the home is the hash's high bits). So when the index doubles, slot `i` of the old array
//! goes to slot `2 i` of the new one or nearby: the move is a sweep over both, not a scatter.
//!
//! **Growth.** From eleven sixteenths full on, each insertion touches a share of the pages of a second array of twice the size. The kernel
//! takes a tenth of a millisecond or more to clear 2 MiB, and new keys go everywhere: otherwise each of the first hundred keys would wait
//! for a page. At three quarters full the second array begins to live: new keys go there, and each insertion also moves [`MOVE`] slots of
//! the old array. Rows never change their number, so the old array stays valid until the sweep has passed a page, which then goes back to
//! the system as zeros. So a key is looked for in the old array, then in the new one. As the sweep pauses only at empty slots, a key whose
//! home lies behind it was moved for certain and needs one probe only.
//!
//! **Removal.** In the live array the rest of the chain moves up. In the old array, which must not change before the sweep, the key stays
//! and its row number becomes [`GONE`].
//!
//! **Flooding.** The hash is seeded from the operating system's randomness, so an attacker cannot prepare keys that fall into one chain.
//! The seed changes no result: it decides where in the index a key lies, not the number or content of its row.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::slots::{PAGE, Slot, Slots};

pub(crate) mod scan;

/// Old slots moved per insertion while growing: the move ends after a 32nd of the old capacity was inserted.
const MOVE: usize = 32;

/// The row number, in the old array, of a key that was removed.
const GONE: u32 = u32::MAX - 1;

/// Slots of a new index.
const START: usize = 1 << 10;

/// The array that is being left.
struct Old {
    slots: Slots,
    /// Slots before this one were moved; an empty slot, unless the sweep is done.
    moved: usize,
}

/// Where a key may be found or put.
pub(crate) enum Entry {
    /// The row of the key.
    Found(u32),
    /// The key has no row; give one to [`Index::fill`].
    Vacant(Vacant),
}

/// An empty slot that waits for a key. Valid until the index is next changed.
pub(crate) struct Vacant {
    at: usize,
    key: u64,
}

/// The array that will live next.
struct Next {
    slots: Slots,
    /// Slots before this one have their memory.
    touched: usize,
}

/// The index of one table.
pub(crate) struct Index {
    live: Slots,
    next: Option<Next>,
    old: Option<Old>,
    len: usize,
    hasher: Hasher,
}

#[derive(Clone, Copy)]
struct Hasher {
    xor: u64,
    times: u64,
}

impl Hasher {
    /// Folded multiplication (as in wyhash): one multiplication, all bits of the key in the high bits of the result.
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        let wide = u128::from(key ^ self.xor) * u128::from(self.times);
        (wide >> 64) as u64 ^ wide as u64
    }
}

impl Index {
    /// An empty index, or `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        let random = RandomState::new();
        Self::seeded(random.hash_one(1u8), random.hash_one(2u8))
    }

    fn seeded(xor: u64, times: u64) -> Option<Self> {
        Some(Self { live: Slots::new(START)?, next: None, old: None, len: 0, hasher: Hasher { xor, times: times | 1 } })
    }

    /// Makes an empty index as large as it would grow with this many keys. Nothing happens if it has keys, or the system has no memory.
    pub(crate) fn reserve(&mut self, keys: usize) {
        if self.len > 0 || self.old.is_some() || self.next.is_some() {
            return;
        }
        let mut slots = self.live.len();
        while keys >= slots / 16 * 11 {
            let Some(more) = slots.checked_mul(2) else { return };
            slots = more;
        }
        if slots > self.live.len()
            && let Some(live) = Slots::new(slots)
        {
            self.live = live;
        }
    }

    /// Keys in the index.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn arrays(&self) -> impl Iterator<Item = &Slots> {
        let old = self.old.as_ref().map(|old| &old.slots);
        [Some(&self.live), old, self.next.as_ref().map(|next| &next.slots)].into_iter().flatten()
    }

    /// Slots, of both arrays while growing.
    pub(crate) fn capacity(&self) -> usize {
        self.arrays().map(Slots::len).sum()
    }

    /// Keys per slot of the live array.
    pub(crate) fn load(&self) -> f64 {
        self.len as f64 / self.live.len() as f64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.arrays().map(Slots::bytes).sum()
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        self.hasher.hash(key)
    }

    /// Fetches the slot where a key of this hash most likely stands.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let slots = match &self.old {
            Some(old) if old.slots.home(hash) >= old.moved => &old.slots,
            _ => &self.live,
        };
        slots.prefetch(hash);
    }

    /// The row of `key` in the old array, unless all keys of its home were moved.
    #[inline(always)]
    fn find_old(&self, hash: u64, key: u64) -> Option<u32> {
        match &self.old {
            Some(old) if old.slots.home(hash) >= old.moved => old.slots.find(hash, key).filter(|row| *row != GONE),
            _ => None,
        }
    }

    /// The row of `key`.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, key: u64) -> Option<u32> {
        self.find_old(hash, key).or_else(|| self.live.find(hash, key))
    }

    /// The row of `key`, or where it would go.
    #[inline(always)]
    pub(crate) fn entry(&self, hash: u64, key: u64) -> Entry {
        if let Some(row) = self.find_old(hash, key) {
            return Entry::Found(row);
        }
        let at = self.live.probe(hash, key);
        match self.live.at(at).get() {
            Some((_, row)) => Entry::Found(row),
            None => Entry::Vacant(Vacant { at, key }),
        }
    }

    /// Puts the key with its row into the slot. The index may need [`grow`](Self::grow) before the next one.
    #[inline(always)]
    pub(crate) fn fill(&mut self, vacant: Vacant, row: u32) {
        self.live.put(vacant.at, Slot::new(vacant.key, row));
        self.len += 1;
    }

    /// Removes the key, and returns its row.
    pub(crate) fn remove(&mut self, hash: u64, key: u64) -> Option<u32> {
        let mut removed = None;
        if let Some(old) = &mut self.old
            && old.slots.home(hash) >= old.moved
        {
            let at = old.slots.probe(hash, key);
            removed = old.slots.at(at).get().map(|(_, row)| row).filter(|row| *row != GONE);
            if removed.is_some() {
                old.slots.put(at, Slot::new(key, GONE));
            }
        }
        // A key at the start of the old array, whose home is at its end, may have been moved already.
        let at = self.live.probe(hash, key);
        if let Some((_, row)) = self.live.at(at).get() {
            let hasher = self.hasher;
            self.live.remove(at, |key| hasher.hash(key));
            removed = Some(row);
        }
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// To be called before each insertion, with no [`Vacant`] held: a bounded step of growth, if there is one to do.
    /// False when the system has no memory for a larger index.
    #[inline(always)]
    pub(crate) fn grow(&mut self) -> bool {
        if self.old.is_some() {
            self.advance();
            true
        } else if self.len >= self.live.len() / 16 * 11 {
            self.prepare()
        } else {
            true
        }
    }

    #[inline(never)]
    fn prepare(&mut self) -> bool {
        let sixteenth = self.live.len() / 16;
        if self.next.is_none() {
            match Slots::new(sixteenth * 32) {
                Some(slots) => self.next = Some(Next { slots, touched: 0 }),
                // The old slots still have room, and memory may become free later.
                None => return self.len < sixteenth * 12,
            }
        }
        let Some(next) = &mut self.next else { return false };
        // 32 new slots per insertion: after `sixteenth` insertions all new slots are written.
        let wanted = (self.len - sixteenth * 11 + 1) * 32;
        while next.touched < wanted.min(next.slots.len()) {
            next.slots.put(next.touched, Slot::EMPTY);
            next.touched += PAGE;
        }
        if self.len >= sixteenth * 12
            && let Some(next) = self.next.take()
        {
            self.old = Some(Old { slots: std::mem::replace(&mut self.live, next.slots), moved: 0 });
            self.advance();
        }
        true
    }

    /// Moves [`MOVE`] slots, and on to the next empty one.
    #[inline(never)]
    fn advance(&mut self) {
        let Some(old) = &mut self.old else { return };
        let end = old.slots.len();
        let enough = (old.moved + MOVE).min(end);
        let mut at = old.moved;
        while at < end {
            let slot = old.slots.at(at);
            match slot.get() {
                Some((_, GONE)) => {}
                Some((key, _)) => self.live.put(self.live.probe(self.hasher.hash(key), key), slot),
                None if at >= enough => break,
                None => {}
            }
            at += 1;
        }
        let done = at == end;
        let moved = std::mem::replace(&mut old.moved, at);
        old.slots.release(moved, at);
        if done {
            self.old = None;
        }
    }

    /// Every key with its row, each once, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let unmoved = self.old.iter().flat_map(|old| old.slots.iter_from(old.moved));
        unmoved.filter(|(_, row)| *row != GONE).chain(self.live.iter_from(0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    fn insert(index: &mut Index, key: u64, row: u32) -> u32 {
        let hash = index.hash(key);
        if let Some(row) = index.find(hash, key) {
            return row;
        }
        assert!(index.grow());
        match index.entry(hash, key) {
            Entry::Found(row) => row,
            Entry::Vacant(vacant) => {
                index.fill(vacant, row);
                row
            }
        }
    }

    fn same(index: &Index, twin: &HashMap<u64, u32>) {
        assert_eq!(index.len(), twin.len());
        assert!(twin.iter().all(|(k, row)| index.find(index.hash(*k), *k) == Some(*row)));
        let mut all: Vec<_> = index.iter().collect();
        all.sort_unstable();
        let mut wanted: Vec<_> = twin.iter().map(|(k, row)| (*k, *row)).collect();
        wanted.sort_unstable();
        assert_eq!(all, wanted);
    }

    #[test]
    fn agrees_with_a_hash_map_at_every_step_of_growth() {
        let mut index = Index::seeded(5, 7).unwrap();
        let mut twin = HashMap::new();
        let mut grown = 0;
        for i in 0..7000u64 {
            let key = if i % 3 == 0 { i } else { forebay_base::mix64(i) };
            insert(&mut index, key, i as u32);
            twin.insert(key, i as u32);
            if index.old.is_some() {
                grown += 1;
                if i % 7 == 0 {
                    same(&index, &twin);
                    assert!(index.find(index.hash(!key), !key).is_none());
                }
            }
        }
        assert!(grown > 50, "the index was seen growing {grown} times");
        same(&index, &twin);
    }

    #[test]
    fn an_index_with_room_for_its_keys_is_as_large_as_one_that_grew_and_does_not_grow() {
        for keys in [1, 700, 704, 5000, 40_000] {
            let (mut grown, mut roomy) = (Index::seeded(5, 7).unwrap(), Index::seeded(5, 7).unwrap());
            roomy.reserve(keys);
            for key in 0..keys as u64 {
                insert(&mut grown, key, key as u32);
                insert(&mut roomy, key, key as u32);
                assert!(roomy.old.is_none() && roomy.next.is_none(), "{key} of {keys}");
            }
            assert!(roomy.live.len() <= 2 * grown.live.len(), "{keys} keys");
            let before = roomy.live.len();
            roomy.reserve(1 << 40);
            assert_eq!(roomy.live.len(), before, "it has keys");
            same(&roomy, &(0..keys as u64).map(|key| (key, key as u32)).collect());
        }
        let mut none = Index::seeded(5, 7).unwrap();
        none.reserve(usize::MAX);
        insert(&mut none, 3, 4);
        same(&none, &HashMap::from([(3, 4)]));
    }

    #[test]
    fn one_chain_for_all_keys_is_slow_and_right() {
        // With a factor of 1 and no seed the hash of a small key is itself: every home is slot 0. The worst flood.
        let mut index = Index::seeded(0, 0).unwrap();
        let mut twin = HashMap::new();
        for key in 0..3000u64 {
            assert_eq!(index.live.home(index.hash(key)), 0);
            insert(&mut index, key, key as u32);
            twin.insert(key, key as u32);
        }
        same(&index, &twin);
        // And at the end of the array, so that the chain wraps.
        let mut index = Index::seeded(u64::MAX, 1).unwrap();
        let mut twin = HashMap::new();
        for key in 0..3000u64 {
            insert(&mut index, key, key as u32);
            twin.insert(key, key as u32);
        }
        assert_eq!(index.live.home(index.hash(0)), index.live.len() - 1);
        same(&index, &twin);
    }

    #[test]
    fn a_chain_that_wraps_is_found_while_pages_are_released() {
        // The hash of a key is its complement, so keys from 0 on begin at the last slot and wrap.
        let mut index = Index::seeded(u64::MAX, 1).unwrap();
        let mut seen = 0;
        for i in 0..420_000u64 {
            let key = if i < 300 { i } else { forebay_base::mix64(i) };
            insert(&mut index, key, i as u32);
            let released = index.old.as_ref().is_some_and(|old| old.moved > PAGE);
            if released && i % 64 == 0 {
                seen += 1;
                assert!((0..300).all(|key| index.find(index.hash(key), key) == Some(key as u32)));
                let mixed = |i| forebay_base::mix64(i);
                assert!((300..i).step_by(997).all(|i| index.find(index.hash(mixed(i)), mixed(i)) == Some(i as u32)));
            }
        }
        assert!(seen > 50, "seen {seen} times");
        assert_eq!(index.iter().count(), 420_000);
    }

    #[test]
    fn agrees_with_a_hash_map_when_keys_are_removed_at_every_step_of_growth() {
        // The second index has one long chain, the third one that wraps: such a chain is moved in one step.
        for (xor, times, most, least) in [(5, 7, 9000u64, 30), (0, 0, 4000, 10), (u64::MAX, 1, 4000, 10)] {
            let mut index = Index::seeded(xor, times).unwrap();
            let (mut twin, mut grown) = (HashMap::new(), 0);
            for i in 0..most {
                let key = if times == 7 { forebay_base::mix64(i) } else { i };
                insert(&mut index, key, i as u32);
                twin.insert(key, i as u32);
                // Some old keys go, some of them come back with another row.
                for old in [i / 2, i.saturating_sub(3)] {
                    let old = if times == 7 { forebay_base::mix64(old) } else { old };
                    if i % 3 == 1 {
                        assert_eq!(index.remove(index.hash(old), old), twin.remove(&old));
                        assert_eq!(index.find(index.hash(old), old), None);
                    } else if i % 7 == 0 {
                        let row = insert(&mut index, old, i as u32 + 100_000);
                        assert_eq!(row, *twin.entry(old).or_insert(i as u32 + 100_000));
                    }
                }
                if index.old.is_some() {
                    grown += 1;
                    if i % 7 == 0 {
                        same(&index, &twin);
                    }
                }
            }
            assert!(grown > least, "the index was seen growing {grown} times");
            same(&index, &twin);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(
            keys in prop::collection::vec(prop_oneof![0u64..4000, Just(0), Just(u64::MAX), any::<u64>()], 0..4000),
            xor: u64, times: u64,
        ) {
            let mut index = Index::seeded(xor, times).unwrap();
            let mut twin = HashMap::new();
            for (i, key) in keys.iter().enumerate() {
                let row = insert(&mut index, *key, i as u32);
                prop_assert_eq!(row, *twin.entry(*key).or_insert(i as u32));
            }
            same(&index, &twin);
        }
    }
}
