//! A sample of bounded size of ids that come one after the other, and how many distinct ones there were.

use std::collections::{BinaryHeap, HashSet};

use forebay_base::mix64;

/// Keeps the ids with the smallest hashes (bottom-k sampling). So the sample depends on the set of ids alone, neither on their order nor
/// on how often each comes, and each distinct id is equally likely to be in it.
#[derive(Default)]
pub(crate) struct SampleByHash {
    most: usize,
    /// The hashes of the ids in the sample, each with its place there. The hash is a bijection.
    largest: BinaryHeap<(u64, usize)>,
    known: HashSet<u64>,
    left_out: bool,
}

impl SampleByHash {
    /// At most `most` ids, which is above 0.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// If the id comes into the sample with this call, returns its place, from 0: the next free one, or that of an id that leaves.
    pub(crate) fn add(&mut self, id: u64) -> Option<usize> {
        let hash = mix64(id ^ 0x7265_6361_6c6c);
        if self.largest.len() < self.most {
            return self.known.insert(hash).then(|| self.put(hash, self.largest.len()));
        }
        let &(largest, place) = self.largest.peek()?;
        if hash == largest || self.known.contains(&hash) {
            return None;
        }
        self.left_out = true;
        if hash > largest {
            return None;
        }
        self.largest.pop();
        self.known.remove(&largest);
        self.known.insert(hash);
        Some(self.put(hash, place))
    }

    fn put(&mut self, hash: u64, place: usize) -> usize {
        self.largest.push((hash, place));
        place
    }

    /// The distinct ids that came: exact if all are in the sample, else estimated from the largest hash of the sample (Bar-Yossef et al.,
    /// "Counting Distinct Elements in a Data Stream", RANDOM 2002).
    pub(crate) fn distinct(&self) -> u64 {
        match self.largest.peek() {
            Some((largest, _)) if self.left_out => {
                ((self.most as f64 - 1.0).max(1.0) * 2f64.powi(64) / (*largest as f64).max(1.0)) as u64
            }
            _ => self.largest.len() as u64,
        }
    }

    /// Whether an id that came is not in the sample.
    pub(crate) fn is_partial(&self) -> bool {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ids at the places of the sample.
    fn sample(ids: &[u64], most: usize) -> (Vec<u64>, SampleByHash) {
        let (mut sample, mut places) = (SampleByHash::new(most), Vec::new());
        for &id in ids {
            match sample.add(id) {
                Some(at) if at == places.len() => places.push(id),
                Some(at) => places[at] = id,
                None => {}
            }
        }
        (places, sample)
    }

    proptest! {
        #[test]
        fn the_sample_depends_on_the_set_of_ids_alone(ids in prop::collection::vec(0u64..60, 0..150), most in 1usize..40, seed: u64) {
            let mut other = [&ids[..], &ids[..ids.len() / 2]].concat();
            forebay_base::SplitMix64::new(seed).shuffle(&mut other);
            let ((mut one, found), (mut two, _)) = (sample(&ids, most), sample(&other, most));
            one.sort_unstable();
            two.sort_unstable();
            prop_assert_eq!(&one, &two);
            let distinct: HashSet<u64> = ids.iter().copied().collect();
            prop_assert_eq!(one.len(), distinct.len().min(most));
            prop_assert_eq!(found.is_partial(), distinct.len() > most);
            if !found.is_partial() {
                prop_assert_eq!(found.distinct(), distinct.len() as u64);
            }
            prop_assert!(found.known.len() <= most, "memory is bounded");
            one.dedup();
            prop_assert_eq!(one.len(), distinct.len().min(most), "each id once");
        }
    }

    #[test]
    fn the_number_of_ids_is_estimated() {
        let ids: Vec<u64> = (0..50_000).collect();
        let estimate = sample(&ids, 2000).1.distinct() as f64;
        assert!((estimate / 50_000.0 - 1.0).abs() < 0.1, "{estimate}");
    }
}
