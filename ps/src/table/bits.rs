//! One bit per row.

/// A list of bits that can grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    /// Bits at `len` and after are 0.
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    pub(super) fn zeros(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len }
    }

    pub(super) fn ones(len: usize) -> Self {
        let mut words = vec![u64::MAX; len.div_ceil(64)];
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(64)
        {
            *last = (1 << (len % 64)) - 1;
        }
        Self { words, len }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }

    /// Appends zeros up to `len` bits.
    pub(super) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
        if self.words.len() * 64 < self.len {
            self.words.resize(self.len.div_ceil(64), 0);
        }
    }

    /// Sets a bit and returns what it was. Panics if it is not below the length.
    #[inline(always)]
    pub(super) fn set(&mut self, at: u32) -> bool {
        let (word, bit) = (&mut self.words[at as usize / 64], 1 << (at % 64));
        let was = *word & bit != 0;
        // Most rows that change have changed before: their words are not written again.
        if !was {
            *word |= bit;
        }
        was
    }

    /// Clears a bit and returns what it was; false for a bit that is not below the length.
    #[inline(always)]
    pub(super) fn take(&mut self, at: u32) -> bool {
        let Some(word) = self.words.get_mut(at as usize / 64) else { return false };
        let bit = 1 << (at % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Clears every bit that is not set in `other`.
    pub(super) fn keep_only(&mut self, other: &Self) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
    }

    /// The place of the bit that is set after `before` other set bits; the length if there is none.
    pub(super) fn nth(&self, mut before: usize) -> usize {
        for (w, word) in self.words.iter().enumerate() {
            let here = word.count_ones() as usize;
            if before < here {
                let mut word = *word;
                (0..before).for_each(|_| word &= word - 1);
                return w * 64 + word.trailing_zeros() as usize;
            }
            before -= here;
        }
        self.len
    }

    /// The bits that are set.
    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Sets every bit that is set in `other`, which is not longer.
    pub(super) fn set_all(&mut self, other: &Self) {
        debug_assert!(other.len <= self.len);
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// Puts the places of the next set bits from `from` on into `places` (which is cleared), at most `at_most`. Returns
    /// where to go on.
    pub(super) fn list(&self, from: usize, at_most: usize, places: &mut Vec<u32>) -> usize {
        places.clear();
        for (w, word) in self.words.iter().enumerate().skip(from / 64) {
            let mut word = if w == from / 64 { *word & (u64::MAX << (from % 64)) } else { *word };
            while word != 0 {
                let at = w * 64 + word.trailing_zeros() as usize;
                if places.len() == at_most {
                    return at;
                }
                places.push(at as u32);
                word &= word - 1;
            }
        }
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(slow: &[bool]) -> Bits {
        let mut bits = Bits::default();
        for (at, bit) in slow.iter().enumerate() {
            bits.grow(at + 1);
            if *bit {
                assert!(!bits.set(at as u32) && bits.set(at as u32));
            }
        }
        bits
    }

    proptest! {
        #[test]
        fn bits_are_a_list_of_bools(
            slow in prop::collection::vec(any::<bool>(), 0..300),
            other in prop::collection::vec(any::<bool>(), 0..300),
            taken in prop::collection::vec(0u32..310, 0..20),
            from in 0usize..310,
            at_most in 0usize..40,
        ) {
            let (mut slow, mut fast) = (slow.clone(), bits(&slow));
            prop_assert_eq!(&Bits::ones(slow.len()), &bits(&vec![true; slow.len()]));
            prop_assert_eq!(&Bits::zeros(slow.len()), &bits(&vec![false; slow.len()]));
            for at in taken {
                let wanted = slow.get_mut(at as usize).map(std::mem::take);
                prop_assert_eq!(fast.take(at), wanted == Some(true));
            }
            prop_assert_eq!(fast.count(), slow.iter().filter(|bit| **bit).count() as u64);
            let from = from.min(slow.len());
            let mut all: Vec<u32> = (from..slow.len()).filter(|at| slow[*at]).map(|at| at as u32).collect();
            let next = all.get(at_most).map_or(slow.len(), |at| *at as usize);
            all.truncate(at_most);
            let mut places = vec![7];
            prop_assert_eq!(fast.list(from, at_most, &mut places), next);
            prop_assert_eq!(places, all);
            let nth = slow.iter().enumerate().filter(|(_, bit)| **bit).nth(at_most).map_or(slow.len(), |(at, _)| at);
            prop_assert_eq!(fast.nth(at_most), nth);
            let mut kept = fast.clone();
            kept.keep_only(&bits(&other));
            let both = |at: usize| slow[at] && other.get(at).copied().unwrap_or(false);
            prop_assert_eq!(kept, bits(&(0..slow.len()).map(both).collect::<Vec<_>>()));
            if other.len() <= slow.len() {
                fast.set_all(&bits(&other));
                slow.iter_mut().zip(&other).for_each(|(bit, other)| *bit |= other);
                prop_assert_eq!(fast, bits(&slow));
            }
        }
    }
}
