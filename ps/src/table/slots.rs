//! One array of the index: 16-byte slots, four to a cache line, probed one after the other.

use crate::memory::{Pages, Zeroed};
use crate::simd::prefetch;

/// Slots that the kernel clears at once: a huge page.
pub(super) const PAGE: usize = (2 << 20) / std::mem::size_of::<Slot>();

#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Slot {
    key: u64,
    /// Row number + 1; 0 is an empty slot, so every key is valid and fresh pages are an empty array.
    row: u32,
    /// Fills the slot up to 16 bytes.
    spare: u32,
}

// SAFETY: zero bytes are an empty slot.
unsafe impl Zeroed for Slot {}

impl Slot {
    pub(super) const EMPTY: Self = Self { key: 0, row: 0, spare: 0 };

    #[inline(always)]
    pub(super) fn new(key: u64, row: u32) -> Self {
        Self { key, row: row + 1, spare: 0 }
    }

    /// Key and row, unless the slot is empty.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<(u64, u32)> {
        Some((self.key, self.row.checked_sub(1)?))
    }
}

/// An array of slots. Never full: its owner sees to that.
pub(super) struct Slots {
    slots: Pages<Slot>,
    /// 64 - log2(capacity).
    shift: u32,
}

impl Slots {
    /// An empty array of `capacity` slots, a power of two; `None` if there is not enough memory.
    pub(super) fn new(capacity: usize) -> Option<Self> {
        debug_assert!(capacity.is_power_of_two() && capacity > 1);
        Some(Self { slots: Pages::zeroed(capacity)?, shift: 64 - capacity.ilog2() })
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Where the probing for a hash begins: its high bits, so homes are in the order of hashes.
    #[inline(always)]
    pub(super) fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// Fetches the home of a hash.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(self.slots.as_ptr().wrapping_add(self.home(hash)));
    }

    /// The slot of `key`, or the empty one where it would go.
    #[inline(always)]
    pub(super) fn probe(&self, hash: u64, key: u64) -> usize {
        let slots = &self.slots[..];
        let mask = slots.len() - 1;
        let mut at = self.home(hash) & mask;
        while slots[at].row != 0 && slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline(always)]
    pub(super) fn find(&self, hash: u64, key: u64) -> Option<u32> {
        self.slots[self.probe(hash, key)].row.checked_sub(1)
    }

    /// Empties a slot, and moves slots of its chain so that every key is found.
    pub(super) fn remove(&mut self, at: usize, hash: impl Fn(u64) -> u64) {
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (at, (at + 1) & mask);
        while let Some((key, _)) = self.slots[next].get() {
            let home = self.home(hash(key)) & mask;
            // The hole lies on the way from its home.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = Slot::EMPTY;
    }

    #[inline(always)]
    pub(super) fn at(&self, at: usize) -> Slot {
        self.slots[at]
    }

    #[inline(always)]
    pub(super) fn put(&mut self, at: usize, slot: Slot) {
        self.slots[at] = slot;
    }

    /// Gives the memory of slots without use back, page by page; they may read as empty afterwards.
    pub(super) fn release(&mut self, first: usize, end: usize) {
        self.slots.release(first, end);
    }

    /// Every key with its row, from slot `first` on.
    pub(super) fn iter_from(&self, first: usize) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.slots[first..].iter().filter_map(Slot::get)
    }

    /// Visits the keys of the slots from `first` to `end`, and on to the next empty slot: among them is every key whose home is there,
    /// unless the key lies at the start of the array.
    pub(super) fn visit_from(&self, first: usize, end: usize, visit: &mut impl FnMut(u64, u32)) {
        for (at, slot) in self.slots.iter().enumerate().skip(first) {
            match slot.get() {
                Some((key, row)) => visit(key, row),
                None if at >= end => break,
                None => {}
            }
        }
    }

    /// Hash bits below the bits of the home.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_16_bytes() {
        assert_eq!(std::mem::size_of::<Slot>(), 16);
    }
}
