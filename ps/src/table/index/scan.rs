//! A scan of the index in slices, for callers that must not wait for all of it.
//!
//! Both arrays keep their keys in the order of the hashes, also when the index doubles. So the position of a scan is a hash: all keys with
//! a lower hash were visited, in either array.

use super::Index;

/// Where a scan stands.
#[derive(Default)]
pub(crate) struct Scan {
    /// All keys whose hash is lower were visited.
    hash: u64,
}

impl Index {
    /// Calls `visit` with the keys and rows of about `slots` slots, an even number; true when every key was visited that was
    /// in the index when the scan began. Keys may be inserted between two slices. Some keys are visited twice.
    pub(crate) fn scan(&self, scan: &mut Scan, slots: usize, mut visit: impl FnMut(u64, u32)) -> bool {
        // Even, so that the slice ends with a slot of the old array as well, which is half as long.
        debug_assert!(slots.is_multiple_of(2));
        let end = u64::try_from(u128::from(scan.hash) + ((slots as u128) << self.live.shift())).ok();
        let old = self.old.as_ref().map(|old| (&old.slots, old.moved));
        for (slots, first) in old.into_iter().chain([(&self.live, 0)]) {
            let from = slots.home(scan.hash).max(first);
            slots.visit_from(from, end.map_or(slots.len(), |end| slots.home(end)), &mut visit);
        }
        let Some(end) = end else {
            // Keys of the last homes may lie at the start, perhaps moved there after the scan began.
            self.live.visit_from(0, 0, &mut visit);
            return true;
        };
        scan.hash = end;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::Entry;
    use super::*;

    /// The hash of a key is its complement in the second index, so keys from 0 on begin at the last slot and wrap.
    fn key(i: u32) -> u64 {
        if i < 300 { u64::from(i) } else { forebay_base::mix64(u64::from(i)) }
    }

    fn insert(index: &mut Index, i: u32) {
        assert!(index.grow());
        let hash = index.hash(key(i));
        match index.entry(hash, key(i)) {
            Entry::Found(_) => panic!("key {i} is new"),
            Entry::Vacant(vacant) => index.fill(vacant, i),
        }
    }

    /// Keys that were there when the scan began, and keys inserted after each slice. Returns whether the index doubled
    /// meanwhile.
    fn sees_every_key(mut index: Index, before: u32, step: u32, slots: usize) -> bool {
        (0..before).for_each(|i| insert(&mut index, i));
        let (mut scan, mut seen, mut next) = (Scan::default(), HashMap::new(), before);
        let length = index.live.len();
        while !index.scan(&mut scan, slots, |key, row| _ = seen.insert(row, key)) {
            (next..next + step).for_each(|i| insert(&mut index, i));
            next += step;
            assert!(next < 1_000_000, "the scan does not end");
        }
        assert!((0..before).all(|i| seen.contains_key(&i)), "{before} keys, {step} per slice of {slots}");
        assert!(seen.iter().all(|(row, seen)| *seen == key(*row)));
        index.live.len() > length
    }

    #[test]
    fn a_scan_in_slices_sees_every_key_that_was_there_when_it_began() {
        let mut doubled = 0;
        for before in [2900, 3050, 3072, 3073, 3100, 3300] {
            for (step, slots) in [(4, 10), (100, 100), (10, 16), (500, 512), (700, 1024)] {
                for index in [Index::seeded(5, 7), Index::seeded(u64::MAX, 1)] {
                    doubled += u32::from(sees_every_key(index.unwrap(), before, step, slots));
                }
            }
        }
        assert!(doubled > 20, "the index doubled in {doubled} of 60 scans");
    }
}
