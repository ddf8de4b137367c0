//! How often values occur in bins of one width: counted in one pass, in the space of the bins.

use serde::{Deserialize, Serialize};

/// Most bins.
const BINS: usize = 16;

/// The bars of a bin, from few values to many.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Counts of the finite values of a column in bins of one width. A bin has the values from its lower end to below its upper end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// The lower end of the first bin.
    pub from: f64,
    /// The width of each bin: a power of 2.
    pub width: f64,
    /// Values of each bin: 1 to 16 bins.
    pub counts: Vec<u64>,
}

/// A histogram that is being counted. Bins begin at multiples of their width, 2^`exponent`; the width doubles until all values fit.
#[derive(Clone, Debug, Default)]
pub(super) struct Bins {
    exponent: i32,
    /// The number of the first bin.
    first: i64,
    counts: Vec<u64>,
}

impl Bins {
    pub(super) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.counts.is_empty() {
            // 40 bits finer than the first value.
            self.exponent = exponent_of(value) - 40;
        }
        // The number of a bin has at most 50 bits.
        self.coarsen((exponent_of(value) - 50 - self.exponent).max(0));
        let at = (value / 2f64.powi(self.exponent)).floor() as i64;
        if self.counts.is_empty() {
            (self.first, self.counts) = (at, vec![0]);
        }
        let (mut low, mut high, mut by) = (at.min(self.first), at.max(self.first + self.counts.len() as i64 - 1), 0);
        while high - low >= BINS as i64 {
            (low, high, by) = (low >> 1, high >> 1, by + 1);
        }
        self.coarsen(by);
        let at = at >> by;
        while at < self.first {
            self.first -= 1;
            self.counts.insert(0, 0);
        }
        let place = (at - self.first) as usize;
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
    }

    /// Makes bins 2^`by` times as wide.
    fn coarsen(&mut self, by: i32) {
        if by == 0 || self.counts.is_empty() {
            return;
        }
        let shift = by.min(63);
        let first = self.first >> shift;
        let mut counts = Vec::new();
        for (at, &count) in self.counts.iter().enumerate() {
            let place = (((self.first + at as i64) >> shift) - first) as usize;
            if place >= counts.len() {
                counts.resize(place + 1, 0);
            }
            counts[place] += count;
        }
        (self.first, self.counts, self.exponent) = (first, counts, self.exponent + by);
    }

    /// `None` without values.
    pub(super) fn finish(self) -> Option<Histogram> {
        let width = 2f64.powi(self.exponent);
        (!self.counts.is_empty()).then_some(Histogram { from: self.first as f64 * width, width, counts: self.counts })
    }
}

/// The exponent of the power of 2 at or below the size of a value; -900 for small values and 0.
fn exponent_of(value: f64) -> i32 {
    if value.abs() < 2f64.powi(-900) { -900 } else { value.abs().log2().floor() as i32 }
}

impl Histogram {
    /// A character for each bin: its height is the share of the largest bin, a space is a bin without values.
    pub fn bars(&self) -> String {
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1) as f64;
        let bar = |&count: &u64| match count {
            0 => ' ',
            count => BARS[((count as f64 / most * BARS.len() as f64).ceil() as usize).clamp(1, BARS.len()) - 1],
        };
        self.counts.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::mix64;

    use super::*;

    fn of(values: &[f64]) -> Histogram {
        let mut bins = Bins::default();
        values.iter().for_each(|&value| bins.add(value));
        bins.finish().unwrap()
    }

    #[test]
    fn every_value_is_in_the_bin_that_its_ends_say() {
        let random = |i: u64| (mix64(i) >> 11) as f64 / (1u64 << 53) as f64;
        let sets: [Vec<f64>; 6] = [
            (0..1000).map(f64::from).collect(),
            (0..1000).map(|i| random(i) - 0.5).collect(),
            (0..1000).map(|i| 10f64.powf(random(i) * 40.0 - 20.0)).collect(),
            vec![0.0, 1e300, -1e300, 1e-300, 7.0],
            vec![-3.0; 5],
            vec![1.7e18, 1.7e18 + 512.0, 1.7e18 + 1024.0],
        ];
        for values in sets {
            let found = of(&values);
            assert!((1..=BINS).contains(&found.counts.len()), "{found:?}");
            assert!(found.counts[0] > 0 && found.counts[found.counts.len() - 1] > 0, "{found:?}");
            for (at, &count) in found.counts.iter().enumerate() {
                let from = found.from + at as f64 * found.width;
                let inside = values.iter().filter(|&&value| from <= value && value < from + found.width).count();
                assert_eq!(count, inside as u64, "bin {at} of {found:?}");
            }
        }
    }

    #[test]
    fn the_order_of_values_changes_nothing_but_how_fine_the_bins_are() {
        let values: Vec<f64> = (0..500).map(|i| f64::from(i % 37)).collect();
        let backwards: Vec<f64> = values.iter().rev().copied().collect();
        assert_eq!(of(&values), of(&backwards));
        assert!(of(&values).counts.len() > BINS / 2, "{:?}", of(&values));
    }

    #[test]
    fn bars_are_as_high_as_their_share() {
        let bars = |counts: &[u64]| Histogram { from: 0.0, width: 1.0, counts: counts.to_vec() }.bars();
        assert_eq!(bars(&[8, 4, 0, 1, 8000]), "▁▁ ▁█");
        assert_eq!(bars(&[8, 4, 2, 1]), "█▄▂▁");
        let mut bins = Bins::default();
        [f64::NAN, f64::INFINITY].into_iter().for_each(|value| bins.add(value));
        assert_eq!(bins.finish(), None);
    }
}
