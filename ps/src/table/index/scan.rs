//! A scan of the index in slices, for callers that must not wait for all of it.

use super::Index;

/// Where a scan of the index in slices stands.
#[derive(Default)]
pub(in crate::table) struct Scan {
    /// Length of the live array: another one means that the index has begun to grow.
    live: usize,
    /// Whether the old array was scanned.
    in_live: bool,
    at: usize,
}

impl Index {
    /// Calls `visit` with the keys and rows of about `slots` slots; true when every key that was in the index when the scan
    /// began was visited. Keys may be inserted between two slices; some keys are visited twice, and when the index begins to
    /// grow, the scan begins anew.
    pub(in crate::table) fn scan(&self, scan: &mut Scan, slots: usize, mut visit: impl FnMut(u64, u32)) -> bool {
        if scan.live != self.live.len() {
            *scan = Scan { live: self.live.len(), ..Scan::default() };
        }
        // Keys move from the old array to the live one between slices. So the live one is scanned last, and as a whole.
        if !scan.in_live {
            let old = self.old.as_ref().map(|old| (old, scan.at.max(old.moved)));
            match old.filter(|(old, at)| *at < old.slots.len()) {
                Some((old, at)) => {
                    old.slots.range(at, slots).for_each(|(key, row)| visit(key, row));
                    scan.at = at + slots;
                    return false;
                }
                None => (scan.in_live, scan.at) = (true, 0),
            }
        }
        self.live.range(scan.at, slots).for_each(|(key, row)| visit(key, row));
        scan.at += slots;
        scan.at >= self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::Entry;
    use super::*;

    fn insert(index: &mut Index, key: u64) {
        assert!(index.grow());
        let hash = index.hash(key);
        match index.entry(hash, key) {
            Entry::Found(_) => panic!("key {key} is new"),
            Entry::Vacant(vacant) => index.fill(vacant, key as u32),
        }
    }

    #[test]
    fn a_scan_in_slices_sees_every_key_that_was_there_when_it_began() {
        for step in [1, 50, 5000] {
            let mut index = Index::seeded(5, 7).unwrap();
            (0..2000).for_each(|key| insert(&mut index, key));
            let (mut scan, mut seen, mut next, mut begun) = (Scan::default(), HashMap::new(), 2000, 0);
            while !index.scan(&mut scan, 100, |key, row| _ = seen.insert(key, row)) {
                begun += u32::from(index.old.is_some());
                (next..next + step).for_each(|key| insert(&mut index, key));
                next += step;
                assert!(next < 10_000_000, "the scan does not end");
            }
            assert!((0..2000).all(|key| seen.get(&key) == Some(&(key as u32))), "{step} keys per slice");
            assert!(seen.iter().all(|(key, row)| *key == u64::from(*row)));
            assert!(step != 50 || begun > 0, "the index was not seen growing");
        }
    }
}
