//! Weights in one byte each, with a scale for each part of a row.
//!
//! ```text
//!   a part of one weight     the weight itself, f32
//!   a part of several        scale f32, a power of two, in the same place; after those of all parts a byte for each weight
//! ```
//!
//! The scale is the smallest by which the largest magnitude of the part is at most 127. The scale is a power of two, so reading is exact,
//! and writing the weights again gives the same bytes: exports, imports and checkpoints change no bit. Weights beyond ±127 * 2^121
//! (3.376e38) are kept as ±127 * 2^121.
//!
//! A weight between two multiples of the scale is rounded to one of them by chance, to the nearer one more often, so that the mean stays.
//! An update that is smaller than the scale counts; rounding to nearest would drop it. The chance comes from the bits of the weight before
//! rounding, its place, the seed of the part and the step. So the result depends on the row and the step alone, not on shards, threads or
//! the order of keys.

use forebay_base::mix64;

use super::part::Part;

/// The largest byte.
const LARGEST: f32 = 127.0;

/// The largest weight, 127 * 2^121: with the next scale, 2^122, a weight may be rounded up to 2^128, which f32 does not have.
const LARGEST_WEIGHT: f32 = LARGEST * LARGEST_SCALE;

/// The smallest and the largest scale: 2^-126 and 2^121.
const LEAST_SCALE: f32 = f32::MIN_POSITIVE;
const LARGEST_SCALE: f32 = f32::from_bits(0x7c00_0000);

/// Floats that the weights of these parts take up in a row.
pub(super) fn words(parts: &[Part]) -> usize {
    parts.len() + parts.iter().map(bytes_of).sum::<usize>().div_ceil(4)
}

fn bytes_of(part: &Part) -> usize {
    if part.dim > 1 { part.dim } else { 0 }
}

/// Copies the weights of a row, whose first words are these, to `out`.
#[inline(always)]
pub(super) fn read(parts: &[Part], words: &[f32], out: &mut [f32]) {
    let (scales, bytes) = words.split_at(parts.len());
    let mut bytes = as_bytes(bytes);
    for (part, &scale) in parts.iter().zip(scales) {
        let out = &mut out[part.weight_at..][..part.dim];
        if part.dim == 1 {
            out[0] = scale;
            continue;
        }
        let (own, rest) = bytes.split_at(part.dim);
        out.iter_mut().zip(own).for_each(|(out, byte)| *out = f32::from(*byte) * scale);
        bytes = rest;
    }
}

/// Rounds `weights` into the words of a row. `salt` depends on the step; it is 0 for weights that no step made.
#[inline(always)]
pub(super) fn write(parts: &[Part], words: &mut [f32], weights: &[f32], salt: u64) {
    let (scales, bytes) = words.split_at_mut(parts.len());
    let mut bytes = as_bytes_mut(bytes);
    for (part, to) in parts.iter().zip(scales) {
        let weights = &weights[part.weight_at..][..part.dim];
        if part.dim == 1 {
            *to = weights[0];
            continue;
        }
        let (own, rest) = bytes.split_at_mut(part.dim);
        let salt = part.seed ^ salt;
        *to = round(weights, own, |share, weight, at| (share + chance(weight, at, salt)).floor());
        bytes = rest;
    }
}

/// Rounds the weights of a part to the nearest multiple of the scale, which is returned. For values that are rounded only once. `bytes` has
/// a byte for each weight.
pub(crate) fn write_nearest(weights: &[f32], bytes: &mut [i8]) -> f32 {
    round(weights, bytes, |share, _, _| share.round_ties_even())
}

/// Undoes [`write_nearest`].
///
/// # Errors
/// What is wrong, if `write_nearest` gives no such scale or byte.
pub(crate) fn read_checked(scale: f32, bytes: &[i8], out: &mut [f32]) -> Result<(), String> {
    if !(LEAST_SCALE..=LARGEST_SCALE).contains(&scale) || scale.to_bits() & 0x007f_ffff != 0 {
        return Err(format!("its scale is {scale}, expected a power of two from 2^-126 to 2^121"));
    }
    if bytes.contains(&i8::MIN) {
        return Err(format!("it has the byte {}, expected {} to {}", i8::MIN, -i8::MAX, i8::MAX));
    }
    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = f32::from(*byte) * scale);
    Ok(())
}

/// Rounds the weights of a part with `whole`, which gets the weight in multiples of the scale, the weight itself and its place. Returns the
/// scale.
#[inline(always)]
fn round(weights: &[f32], bytes: &mut [i8], whole: impl Fn(f32, f32, usize) -> f32) -> f32 {
    let scale = scale_of(weights.iter().fold(0.0, |most, w| w.abs().max(most)));
    for (at, (byte, &weight)) in bytes.iter_mut().zip(weights).enumerate() {
        *byte = whole(weight / scale, weight, at).clamp(-LARGEST, LARGEST) as i8;
    }
    scale
}

/// The smallest power of two that divides `most` to at most 127; for a larger or infinite `most`, the scale of the largest weight.
#[inline(always)]
fn scale_of(most: f32) -> f32 {
    let most = most.min(LARGEST_WEIGHT);
    let share = most / LARGEST;
    // The power of two below it, or 2^-126.
    let below = f32::from_bits(share.to_bits() & 0x7f80_0000).max(LEAST_SCALE);
    if most > below * LARGEST { below * 2.0 } else { below }
}

/// A random number of at least 0 and less than 1, in steps of 2^-16: with a whole number up to 127 the sum is exact.
#[inline(always)]
fn chance(weight: f32, at: usize, salt: u64) -> f32 {
    let mixed = mix64(u64::from(weight.to_bits()) << 32 ^ at as u64 ^ salt);
    (mixed >> 48) as f32 * (1.0 / 65_536.0)
}

#[inline(always)]
fn as_bytes(words: &[f32]) -> &[i8] {
    // SAFETY: i8 has smaller alignment and a quarter of the size, and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
}

#[inline(always)]
fn as_bytes_mut(words: &mut [f32]) -> &mut [i8] {
    // SAFETY: as for `as_bytes`; every four bytes are a valid f32, too.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Init, Optimizer, PartConfig, Storage, Table, TableConfig};

    fn config(dim: usize, lr: f64) -> TableConfig {
        let optimizer = Optimizer::Sgd { lr: lr.into(), l2: 0.0 };
        let part = |name, dim| PartConfig::new(name, dim, optimizer, Init::Zeros);
        let parts = vec![part("linear", 1), part("embedding", dim)];
        TableConfig { storage: Storage::Int8, ..TableConfig::new("t", 5, parts) }
    }

    fn kept(table: &mut Table, key: u64) -> Vec<f32> {
        let mut row = Vec::new();
        table.pull(&[key], &mut row).unwrap();
        row
    }

    proptest! {
        #[test]
        fn a_weight_is_kept_to_a_64th_of_the_largest_and_what_was_read_exactly(
            weights in prop::collection::vec(prop_oneof![-1.0f32..1.0, -1e-30f32..1e-30, Just(0.0), any::<u32>().prop_map(f32::from_bits)], 2..9),
        ) {
            let weights: Vec<f32> = weights.into_iter().map(|w| if w.is_finite() { w } else { 1.0 }).collect();
            let (mut table, mut copy) = (Table::new(&config(weights.len() - 1, 1.0)).unwrap(), Table::new(&config(weights.len() - 1, 1.0)).unwrap());
            table.import(&[7], &weights, None).unwrap();
            let row = kept(&mut table, 7);
            prop_assert_eq!(row[0].to_bits(), weights[0].to_bits(), "a part of one weight is exact");
            if weights.len() > 2 {
                let most = weights[1..].iter().fold(0.0f32, |most, w| most.max(w.abs()));
                for (found, weight) in row[1..].iter().zip(&weights[1..]) {
                    let off = (f64::from(*found) - f64::from(*weight)).abs();
                    prop_assert!(off <= (f64::from(most) / 63.5).max(2e-38), "{found} for {weight}, of {most}");
                }
            }
            copy.import(&[7], &row, None).unwrap();
            let again: Vec<u32> = kept(&mut copy, 7).iter().map(|w| w.to_bits()).collect();
            prop_assert_eq!(again, row.iter().map(|w| if *w == 0.0 { 0 } else { w.to_bits() }).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_largest_weights_stay_finite() {
        let mut table = Table::new(&config(4, 1.0)).unwrap();
        for key in 0..200 {
            table.import(&[key], &[0.0, f32::MAX, -f32::MAX, 3.38477e38, 1.0], None).unwrap();
            let largest = super::LARGEST_WEIGHT;
            assert_eq!(kept(&mut table, key)[..4], [0.0, largest, -largest, largest]);
        }
    }

    #[test]
    fn updates_smaller_than_the_scale_count_on_average() {
        let (keys, mut table): (Vec<u64>, _) = ((0..500).collect(), Table::new(&config(4, 1.0)).unwrap());
        let first: Vec<f32> = keys.iter().flat_map(|_| [0.0, 1.0, 0.3, -0.3, 0.1]).collect();
        table.import(&keys, &first, None).unwrap();
        // The scale is 1/64: each step is a twentieth of it.
        let grads = keys.iter().map(|key| 0.0008 + *key as f32 * 1e-8);
        let grads: Vec<f32> = grads.flat_map(|grad| [0.0, 0.0, -grad, grad, 0.0]).collect();
        (1..=100).for_each(|step| table.push(&keys, &grads, step).unwrap());
        let mut rows = Vec::new();
        table.pull(&keys, &mut rows).unwrap();
        let mean = |at: usize| rows.chunks(5).map(|row| f64::from(row[at])).sum::<f64>() / 500.0;
        assert!((mean(2) - 0.38).abs() < 0.01 && (mean(3) + 0.38).abs() < 0.01, "{} and {}", mean(2), mean(3));
        assert!((mean(1) - 1.0).abs() < 1e-6 && (mean(4) - 0.1).abs() < 0.01, "{} and {}", mean(1), mean(4));
    }

    #[test]
    fn a_row_takes_a_byte_for_each_weight_and_four_for_each_part() {
        let bytes = |storage| TableConfig { storage, ..config(16, 1.0) }.most_bytes_per_row();
        // Without state: 17 floats, and 2 words with 16 bytes, in a row of a power of two.
        assert_eq!((bytes(Storage::F32), bytes(Storage::Int8)), (80 + 48, 32 + 48));
    }
}
