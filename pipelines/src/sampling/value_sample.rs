//! A sample of the values of a column, and those of them that are typical.

use forebay_base::mix64;

/// A uniform sample of values (Vitter 1985, algorithm R), the same in each run.
#[derive(Clone)]
pub(crate) struct ValueSample {
    most: usize,
    seen: u64,
    values: Vec<f64>,
}

impl ValueSample {
    /// A sample of at most this many values.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, seen: 0, values: Vec::new() }
    }

    /// Adds the values of a batch.
    pub(crate) fn add(&mut self, values: &[f64]) {
        for &value in values {
            self.seen += 1;
            if self.values.len() < self.most {
                self.values.push(value);
                continue;
            }
            let at = (u128::from(mix64(self.seen)) * u128::from(self.seen)) >> 64;
            if let Some(place) = self.values.get_mut(at as usize) {
                *place = value;
            }
        }
    }

    /// The values of the sample, ascending.
    pub(crate) fn sorted(mut self) -> Vec<f64> {
        self.values.sort_by(f64::total_cmp);
        self.values
    }
}

/// At least this share of the values is typical.
const TYPICAL: f64 = 0.75;

/// A value is far if its distance from the median is this many times the largest distance of a typical value.
const FAR: f64 = 20.0;

/// The same for logarithms, and for negative values if no typical value is negative.
const FAR_IN_LOGS: f64 = 4.0;

/// The values without a few that are far from all others, such as -999 where a value is missing, or errors: the values up to the first gap
/// in their distances from the median. A long tail has no such gap. `are_logs`: the values are logarithms.
pub(crate) fn typical(sorted: &[f64], are_logs: bool) -> Vec<f64> {
    let Some(&median) = sorted.get(sorted.len() / 2) else { return Vec::new() };
    let mut values = sorted.to_vec();
    values.sort_by(|a, b| (a - median).abs().total_cmp(&(b - median).abs()));
    let least = (values.len() as f64 * TYPICAL).ceil() as usize;
    let mut has_negative = values[..least].iter().any(|value| *value < 0.0);
    for end in least..values.len() {
        let (last, next) = (values[end - 1], values[end]);
        let factor = if are_logs || (next < 0.0 && !has_negative) { FAR_IN_LOGS } else { FAR };
        let (inner, outer) = ((last - median).abs(), (next - median).abs());
        if inner > 0.0 && outer > factor * inner {
            values.truncate(end);
            break;
        }
        has_negative |= next < 0.0;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(of: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut sample = ValueSample::new(8192);
        of.collect::<Vec<_>>().chunks(100).for_each(|values| sample.add(values));
        sample.sorted()
    }

    #[test]
    fn a_sample_is_of_all_values() {
        let mut sample = ValueSample::new(1000);
        (0..100_000).for_each(|i| sample.add(&[f64::from(i)]));
        let sorted = sample.sorted();
        assert_eq!(sorted.len(), 1000);
        for (at, value) in sorted.into_iter().enumerate() {
            assert!((value - 100.0 * at as f64).abs() < 6000.0, "{at}: {value}");
        }
    }

    #[test]
    fn placeholders_and_errors_are_not_typical_but_long_tails_are() {
        let hundred = |i: u32| f64::from(i % 101);
        for (far, every) in [(-999.0, 5), (-999.0, 100), (1e9, 100), (-1e9, 1000), (9_223_372_036_854_775_807.0, 50)] {
            let all = values((0..5000).map(|i| if i % every == 0 { far } else { hundred(i) }));
            let typical = typical(&all, false);
            assert_eq!(typical.len(), 5000 - 5000 / every as usize, "{far}");
            assert!(typical.iter().all(|value| (0.0..=100.0).contains(value)), "{far}");
        }
        let logs = values((0..5000).map(|i| if i % 100 == 0 { 43.0 } else { hundred(i).ln_1p() }));
        assert_eq!([false, true].map(|are_logs| typical(&logs, are_logs).len()), [5000, 4950]);
        // Counts, a log-normal and a Pareto distribution, 0 and 1, a half of each, few values.
        let uniform = |i: u32| (f64::from(i) + 0.5) / 5000.0;
        let normal = |i: u32| (0..12).map(|k| uniform(mix64(u64::from(i * 12 + k)) as u32 % 5000)).sum::<f64>() - 6.0;
        for all in [
            values((0..5000).map(|i| if i % 20 > 0 { 0.0 } else { f64::from(i) })),
            values((0..5000).map(|i| (2.0 * normal(i)).exp())),
            values((0..5000).map(|i| uniform(i).powf(-0.7))),
            values((0..5000).map(|i| f64::from(u8::from(i % 1000 == 0)))),
            values((0..5000).map(|i| if i % 2 == 0 { 1e6 + hundred(i) } else { hundred(i) })),
            values([1.0, 2.0, 3.0].into_iter()),
            values([7.0; 30].into_iter()),
            Vec::new(),
        ] {
            assert_eq!(typical(&all, false).len(), all.len(), "{:?}", &all[all.len().saturating_sub(5)..]);
        }
    }
}
