//! The model that synthetic rows are drawn from: the frequency of each value, and the probability of a click.
//!
//! Every column is a function of (seed, row, field). The planted model has a weight per value, four factors per value
//! (pairwise products, Rendle's FM), and weights of the integers' logarithms. It is scaled to a logit of deviation 1.6
//! with 25.6% clicks; the best possible AUC is about .83. A second label, sales after clicks, has weights of its own beside these. Weights
//! are hashes of (seed, field, value). The only tables are the inverse distributions, 16 KiB a column, so that they stay in the core's
//! cache.

use forebay_base::mix64;

use super::histories::{Histories, Items};
use super::numbers::{Factors, exp, exp2, ln, log2, normal, normal_of, random, unit};
use crate::criteo::{CATEGORIES, INTEGERS};

/// Distinct values of the 26 categorical fields in Criteo's Kaggle set.
pub const CARDINALITIES: [u32; CATEGORIES] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992, 5_461_306,
    10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Share of rows without a value, by integer column.
const INTEGERS_MISSING: [f64; INTEGERS] = [0.4, 0.0, 0.2, 0.2, 0.03, 0.2, 0.05, 0.0, 0.05, 0.4, 0.05, 0.7, 0.2];

/// Share of rows without a value, by categorical column.
fn missing(field: usize) -> f64 {
    match field {
        2 | 3 | 11 | 15 => 0.03,
        18 | 19 | 20 | 21 | 23 | 24 | 25 => 0.3,
        _ => 0.0,
    }
}

/// Rows on which means, deviations and the bias are fitted; far from any row that is asked for.
const FITTED: u64 = 8192;
const FITTED_FROM: u64 = 1 << 62;

const CLICKS: f64 = 0.256;
const DEVIATION: f64 = 1.6;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct PlantedModel {
    fields: Vec<Field>,
    integers: Vec<Integer>,
    label: u64,
    scale: f64,
    bias: f64,
    histories: Option<Histories>,
}

#[derive(Clone, Debug)]
struct Field {
    stream: u64,
    /// Ranks from 1 to `values`; rank k has a share of about 1 / k^exponent.
    values: u32,
    #[cfg(test)]
    exponent: f64,
    /// The rank at every 1/2048 of the distribution; in between it is a straight line.
    quantiles: Vec<f64>,
    /// The share of rows without a value, times 2^32.
    missing: u64,
    weight: f64,
    /// Hides the rank in the number that is written.
    mask: u32,
}

#[derive(Clone, Debug)]
struct Integer {
    stream: u64,
    /// The value and ln(1 + value), by the quantile of the underlying normal number.
    values: Vec<(u32, f64)>,
    /// The share of rows without a value, times 2^32.
    missing: u64,
    weight: f64,
    mean: f64,
}

/// Entries of the inverse distributions.
const STEPS: usize = 2048;

fn of_2_32(share: f64) -> u64 {
    (share * (1u64 << 32) as f64) as u64
}

/// Columns of a run of rows; a missing value has its bit unset in `present` (bit of column as in Criteo's row).
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) labels: Vec<u32>,
    pub(crate) integers: [Vec<u32>; INTEGERS],
    pub(crate) categories: [Vec<u32>; CATEGORIES],
    pub(crate) present: Vec<u64>,
    /// Probability of a click under the planted model.
    pub(crate) probabilities: Vec<f64>,
    /// Nothing if the rows have no histories.
    pub(crate) items: Items,
}

impl PlantedModel {
    /// `cap` bounds the distinct values of a field, as hashing into that many buckets would.
    pub(crate) fn new(seed: u64, cap: u32) -> Self {
        let mut planted = Self::unfitted(seed, cap);
        planted.fit();
        planted
    }

    /// Every row also has a target and a history of up to this many items.
    pub(crate) fn with_histories(mut self, most: u32) -> Self {
        self.histories = (most > 0).then(|| Histories::new(self.label, most));
        self
    }

    fn unfitted(seed: u64, cap: u32) -> Self {
        let seed = mix64(seed ^ 0x666f_7265_6261_7921);
        let fields = CARDINALITIES.iter().enumerate().map(|(f, &cardinality)| {
            let stream = random(seed, f as u64);
            let pick = |i| unit(random(stream ^ 0xf1e1d, i));
            // Not nearer to 1 than 0.01, where the power below would lose its digits.
            let exponent = 0.9 + 0.3 * pick(0);
            let exponent = if (exponent - 1.0f64).abs() < 0.01 { 1.01 } else { exponent };
            let values = cardinality.min(cap.max(2)) - 1;
            // The continuous power law between 1 and values + 1, by its inverse; its whole part follows Zipf closely.
            let span = exp2((1.0 - exponent) * log2(f64::from(values) + 1.0)) - 1.0;
            let rank = |u: f64| exp2(log2(1.0 + u * span) / (1.0 - exponent));
            Field {
                stream,
                values,
                #[cfg(test)]
                exponent,
                quantiles: (0..=STEPS).map(|i| rank(i as f64 / STEPS as f64)).collect(),
                missing: of_2_32(missing(f)),
                weight: 0.15 + 0.4 * pick(1),
                mask: mix64(stream) as u32,
            }
        });
        let integers = INTEGERS_MISSING.iter().enumerate().map(|(i, &missing)| {
            let stream = random(seed, 100 + i as u64);
            let spread = 0.5 + 0.8 * unit(random(stream ^ 0x1e7, 0));
            let value = |step: usize| {
                let value = exp((1.2 + 1.4 * normal_of(step as f64 / STEPS as f64)) * spread) as u32;
                (value, ln(1.0 + f64::from(value)))
            };
            Integer {
                stream,
                values: (0..STEPS).map(value).collect(),
                missing: of_2_32(missing),
                weight: 0.25 * normal(random(stream ^ 0x1e7, 1)),
                mean: 0.0,
            }
        });
        Self {
            fields: fields.collect(),
            integers: integers.collect(),
            label: random(seed, 200),
            scale: 1.0,
            bias: 0.0,
            histories: None,
        }
    }

    /// Sets means, deviations, scale and bias so that logits have the deviation and clicks the share that is wanted.
    fn fit(&mut self) {
        let mut out = Columns::default();
        let mut sums = vec![0.0; FITTED as usize];
        for i in 0..INTEGERS {
            let logs: Vec<f64> = (0..FITTED).map(|r| self.integers[i].draw(FITTED_FROM + r).1).collect();
            let (mean, deviation) = moments(&logs);
            self.integers[i].mean = mean;
            self.integers[i].weight /= deviation.max(1e-6);
        }
        self.logits(FITTED_FROM, FITTED as usize, &mut out, &mut sums);
        self.scale = DEVIATION / moments(&sums).1;
        let (mut low, mut high) = (-10.0, 10.0);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            let clicks: f64 = sums.iter().map(|z| sigmoid(z * self.scale + middle)).sum();
            if clicks / FITTED as f64 > CLICKS { high = middle } else { low = middle }
        }
        self.bias = (low + high) / 2.0;
    }

    /// The rows from `first` on; `out` is emptied first.
    pub(crate) fn rows(&self, first: u64, rows: usize, out: &mut Columns) {
        let mut logits = vec![0.0; rows];
        self.logits(first, rows, out, &mut logits);
        out.probabilities.clear();
        out.items = Items::default();
        match &self.histories {
            None => out.probabilities.extend(logits.iter().map(|z| sigmoid(z * self.scale + self.bias))),
            Some(histories) => out.probabilities.extend(
                logits
                    .iter()
                    .zip(first..)
                    .map(|(z, row)| sigmoid(z * self.scale + self.bias + histories.add_row(row, &mut out.items))),
            ),
        }
        out.labels.clear();
        let draw = |(r, p): (usize, &f64)| u32::from(unit(random(self.label, first + r as u64)) < *p);
        out.labels.extend(out.probabilities.iter().enumerate().map(draw));
    }

    /// For rows that were made from `first` on: 1 if the row is a click and a sale follows it. The logit of a sale is half the logit of a
    /// click, and half weights of its own for the values of the categories.
    pub(crate) fn buys(&self, first: u64, rows: &Columns) -> Vec<i32> {
        let mut own = vec![0.0; rows.labels.len()];
        for field in &self.fields {
            for (r, own) in own.iter_mut().enumerate() {
                let rank = field.draw(first + r as u64).0;
                *own += field.weight * normal(random(field.stream ^ 0xb1d, u64::from(rank)));
            }
        }
        let buy = |(r, own): (usize, &f64)| {
            let click = rows.probabilities[r];
            let logit = BUY_BIAS + 0.5 * ln(click / (1.0 - click)) + BUY_SCALE * own;
            let drawn = unit(random(self.label ^ 0xb1d, first + r as u64)) < sigmoid(logit);
            i32::from(rows.labels[r] == 1 && drawn)
        };
        own.iter().enumerate().map(buy).collect()
    }

    /// Fills integers, categories and `present`; writes the unscaled logits.
    fn logits(&self, first: u64, rows: usize, out: &mut Columns, logits: &mut [f64]) {
        logits.fill(0.0);
        out.present.clear();
        out.present.resize(rows, 1);
        for (i, integer) in self.integers.iter().enumerate() {
            let column = &mut out.integers[i];
            column.clear();
            for (r, logit) in logits.iter_mut().enumerate() {
                let (value, log, present) = integer.draw(first + r as u64);
                column.push(value);
                *logit += integer.weight * (log - integer.mean);
                out.present[r] |= u64::from(present) << (1 + i);
            }
        }
        let mut factors = vec![Factors::default(); rows];
        for (f, field) in self.fields.iter().enumerate() {
            let column = &mut out.categories[f];
            column.clear();
            for (r, logit) in logits.iter_mut().enumerate() {
                let (rank, value) = field.draw(first + r as u64);
                column.push(value);
                out.present[r] |= u64::from(rank > 0) << (1 + INTEGERS + f);
                let hash = random(field.stream ^ 0x5eed, u64::from(rank));
                *logit += field.weight * normal(hash);
                factors[r].add(mix64(hash));
            }
        }
        for (logit, factors) in logits.iter_mut().zip(&factors) {
            *logit += 1.5 * FACTOR * FACTOR * factors.pairs(CATEGORIES);
        }
    }
}

/// The bias of a sale after a click: about 17% of the clicks.
const BUY_BIAS: f64 = -1.9;
const BUY_SCALE: f64 = 0.6;

/// Deviation of a factor.
const FACTOR: f64 = 0.13;

impl Field {
    /// Rank (0 for missing) and the number written.
    #[inline]
    fn draw(&self, row: u64) -> (u32, u32) {
        let bits = random(self.stream, row);
        let step = (bits >> 53) as usize;
        let (low, high) = (self.quantiles[step], self.quantiles[step + 1]);
        let x = low + (high - low) * unit(bits << 11);
        let rank = (x as u32).clamp(1, self.values.max(1));
        let rank = if other_half(bits) < self.missing { 0 } else { rank };
        (rank, scatter(rank ^ self.mask))
    }
}

impl Integer {
    /// The bits of the value, ln(1 + value), and whether there is one.
    #[inline]
    fn draw(&self, row: u64) -> (u32, f64, bool) {
        let bits = random(self.stream, row);
        let present = other_half(bits) >= self.missing;
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        let (value, log) = self.values[(sum >> 7) as usize & (STEPS - 1)];
        if present { (value, log, true) } else { (0, 0.0, false) }
    }
}

/// 32 more bits of the same draw, by another mix.
#[inline]
fn other_half(bits: u64) -> u64 {
    bits.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32
}

/// A bijection of 32 bits that looks random (Mueller's finaliser): distinct ranks are distinct categories.
#[inline]
fn scatter(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x45d9_f3b5);
    x = (x ^ (x >> 16)).wrapping_mul(0x45d9_f3b5);
    x ^ (x >> 16)
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + exp(-z))
}

fn moments(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(planted: &PlantedModel, first: u64, rows: usize) -> Columns {
        let mut out = Columns::default();
        planted.rows(first, rows, &mut out);
        out
    }

    #[test]
    fn a_row_is_a_function_of_seed_and_number() {
        let planted = PlantedModel::new(7, 1000);
        let whole = rows(&planted, 100, 50);
        for cut in [0, 1, 17, 49] {
            let part = rows(&planted, 100 + cut as u64, 50 - cut);
            assert_eq!(part.labels, whole.labels[cut..]);
            assert_eq!(part.present, whole.present[cut..]);
            assert_eq!(part.integers[3], whole.integers[3][cut..]);
            assert_eq!(part.categories[25], whole.categories[25][cut..]);
        }
        let other = rows(&PlantedModel::new(8, 1000), 100, 50);
        assert_ne!(other.categories[2], whole.categories[2]);
    }

    #[test]
    fn clicks_missing_rates_and_bayes_auc_are_as_planned() {
        const N: usize = 40_000;
        let out = rows(&PlantedModel::new(1, 86_140), 0, N);
        let share = |bit: usize| 1.0 - out.present.iter().filter(|p| *p >> bit & 1 == 1).count() as f64 / N as f64;
        for (i, missing) in INTEGERS_MISSING.iter().enumerate() {
            assert!((share(1 + i) - missing).abs() < 0.015, "I{}: {}", i + 1, share(1 + i));
        }
        for f in 0..CATEGORIES {
            assert!((share(1 + INTEGERS + f) - missing(f)).abs() < 0.015, "C{}", f + 1);
        }
        let clicks = out.labels.iter().sum::<u32>() as f64 / N as f64;
        assert!((clicks - CLICKS).abs() < 0.012, "{clicks}");
        let mut ranked: Vec<_> = out.probabilities.iter().zip(&out.labels).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(b.0));
        let (mut below, mut pairs) = (0.0, 0.0);
        for (_, label) in ranked {
            if *label == 1 { pairs += below } else { below += 1.0 }
        }
        let positives = N as f64 - below;
        let auc = pairs / (below * positives);
        assert!((0.81..0.85).contains(&auc), "{auc}");
    }

    #[test]
    fn the_most_frequent_value_is_as_frequent_as_zipf_has_it() {
        const N: u64 = 50_000;
        let planted = PlantedModel::new(1, 86_140);
        for field in planted.fields.iter().filter(|f| f.values > 100) {
            let exponent = field.exponent;
            let total: f64 = (1..=field.values).map(|k| f64::from(k).powf(-exponent)).sum();
            let first = (0..N).filter(|&r| field.draw(r).0 == 1).count() as f64
                / N as f64
                / (1.0 - field.missing as f64 / (1u64 << 32) as f64);
            // The continuous law gives its whole part 1 somewhat less than Zipf: 0.62 to 1 of it.
            let ratio = first * total;
            assert!((0.55..1.1).contains(&ratio), "exponent {exponent}, values {}: {ratio}", field.values);
        }
    }

    proptest! {
        #[test]
        fn ranks_stay_in_range_and_scatter_loses_none(row: u64, seed: u64, cap in 2u32..100_000) {
            let planted = PlantedModel::unfitted(seed, cap);
            for field in &planted.fields {
                prop_assert!(field.draw(row).0 <= field.values);
            }
        }

        #[test]
        fn scatter_is_a_bijection(a: u32, b: u32) {
            prop_assert_eq!(a == b, scatter(a) == scatter(b));
        }
    }
}
