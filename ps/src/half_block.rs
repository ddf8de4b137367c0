//! Values in half the bytes, for the wire: f16 with a power of two per block of 128.
//!
//! Finite f32 values become one f16 each and one exponent of 8 bits per [`BLOCK`]: 2 + 1/128 bytes per value, 0.502 of the bytes of f32.
//!
//! A block is scaled so that its largest magnitude lies in [2^14, 2^15), near the top of f16's range; scaling by a power
//! of two rounds nothing. So a value `v` of a block whose largest magnitude is `m` comes back with an error of at most
//! **max(2^-11 |v|, 2^-39 m)**. Zeros come back as they were, signs included, and so do f32's own subnormals. All finite
//! values can be encoded; NaN and infinities cannot, and travel as f32.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::simd::{Kernel, dispatch};

/// Values that share an exponent.
pub(crate) const BLOCK: usize = 128;

/// The binary exponent to which the largest magnitude of a block is scaled.
const TOP: i32 = 14;

/// The largest f16 below 2^15, so that no value is rounded up beyond f32's range: its error is within the bound as well.
const LARGEST: f32 = 32752.0;

/// The least exponent of a block: 2^126 is an f32, and brings f32's least subnormal into the range of f16.
const LEAST: i32 = -126;

/// The greatest exponent: of a block with [`f32::MAX`].
const MOST: i32 = 127 - TOP;

/// The number of exponents for this many values.
pub(crate) fn exponents_of(values: usize) -> usize {
    values.div_ceil(BLOCK)
}

/// Puts `values` into `halves`, and the exponents of their blocks into `exponents` (both are resized). False, and both
/// empty, when a value is NaN or infinite.
pub(crate) fn encode(values: &[f32], halves: &mut Vec<f16>, exponents: &mut Vec<i8>) -> bool {
    halves.clear();
    halves.resize(values.len(), f16::ZERO);
    exponents.clear();
    exponents.resize(exponents_of(values.len()), 0);
    let finite = dispatch(Encode { values, halves, exponents });
    if !finite {
        halves.clear();
        exponents.clear();
    }
    finite
}

/// Undoes [`encode`]: puts the values into `values` (which is resized).
///
/// # Errors
/// Lengths that do not match, or exponents that `encode` never gives.
pub(crate) fn decode(halves: &[f16], exponents: &[i8], values: &mut Vec<f32>) -> Result<(), String> {
    values.clear();
    let expected = exponents_of(halves.len());
    if exponents.len() != expected {
        return Err(format!("{} exponents came with {} values; expected {expected}", exponents.len(), halves.len()));
    }
    if let Some(found) = exponents.iter().find(|e| !(LEAST..=MOST).contains(&i32::from(**e))) {
        return Err(format!("a block has the exponent {found}; expected {LEAST} to {MOST}"));
    }
    values.resize(halves.len(), 0.0);
    dispatch(Decode { halves, exponents, values });
    Ok(())
}

/// 2^`exponent`, of a normal number.
#[inline(always)]
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

struct Encode<'a> {
    values: &'a [f32],
    halves: &'a mut [f16],
    exponents: &'a mut [i8],
}

impl Kernel for Encode<'_> {
    /// Whether all are finite.
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        const MAGNITUDE: u32 = 0x7fff_ffff;
        let mut scaled = [0.0; BLOCK];
        let blocks = self.values.chunks(BLOCK).zip(self.halves.chunks_mut(BLOCK)).zip(self.exponents);
        for ((values, halves), exponent) in blocks {
            let most = values.iter().fold(0, |most, v| (v.to_bits() & MAGNITUDE).max(most));
            let binary = (most >> 23) as i32 - 127;
            if binary > 127 {
                return false;
            }
            let e = (binary - TOP).max(LEAST);
            *exponent = e as i8;
            let scale = power(-e);
            let scaled = &mut scaled[..values.len()];
            scaled.iter_mut().zip(values).for_each(|(s, v)| *s = (v * scale).clamp(-LARGEST, LARGEST));
            halves.convert_from_f32_slice(scaled);
        }
        true
    }
}

struct Decode<'a> {
    halves: &'a [f16],
    exponents: &'a [i8],
    values: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.halves.chunks(BLOCK).zip(self.values.chunks_mut(BLOCK)).zip(self.exponents);
        for ((halves, values), e) in blocks {
            halves.convert_to_f32_slice(values);
            let scale = power(i32::from(*e));
            values.iter_mut().for_each(|v| *v *= scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(values: &[f32]) -> Vec<f32> {
        let (mut halves, mut exponents, mut back) = (vec![f16::ONE], vec![7], vec![5.0]);
        assert!(encode(values, &mut halves, &mut exponents));
        let bytes = halves.len() * 2 + exponents.len();
        assert_eq!(bytes, values.len() * 2 + values.len().div_ceil(128));
        decode(&halves, &exponents, &mut back).unwrap();
        back
    }

    fn close(values: &[f32], back: &[f32]) -> bool {
        let blocks = values.chunks(BLOCK).zip(back.chunks(BLOCK));
        values.len() == back.len()
            && blocks.into_iter().all(|(values, back)| {
                let most = values.iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())));
                values.iter().zip(back).all(|(v, b)| {
                    let bound = (f64::from(v.abs()) * 2f64.powi(-11)).max(most * 2f64.powi(-39));
                    (f64::from(*v) - f64::from(*b)).abs() <= bound && v.is_sign_negative() == b.is_sign_negative()
                })
            })
    }

    proptest! {
        #[test]
        fn the_error_is_within_its_bound(
            like_gradients in prop::collection::vec(-1e-3f32..1e-3, 0..400),
            any_finite in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..400),
            exponent in -45i32..39,
        ) {
            prop_assert!(close(&like_gradients, &there_and_back(&like_gradients)));
            let any_finite: Vec<f32> = any_finite.into_iter().filter(|v| v.is_finite()).collect();
            prop_assert!(close(&any_finite, &there_and_back(&any_finite)));
            // Blocks of one size, down to subnormals and up to the largest.
            let scale = 10f32.powi(exponent);
            let scaled: Vec<f32> = like_gradients.iter().map(|v| v * 1e3 * scale).filter(|v| v.is_finite()).collect();
            prop_assert!(close(&scaled, &there_and_back(&scaled)));
        }
    }

    #[test]
    fn edges_come_back() {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let least = f32::from_bits(1);
        for exact in
            [vec![], vec![0.0, -0.0], vec![least, -least, least * 1023.0], vec![1.0; 300], vec![-2f32.powi(127)]]
        {
            assert_eq!(bits(&there_and_back(&exact)), bits(&exact));
        }
        let back = there_and_back(&[f32::MAX, f32::MIN, 1.0]);
        assert!(close(&[f32::MAX, f32::MIN, 1.0], &back) && back[1].is_finite(), "{back:?}");
        // A large value makes only the small values of its own block 0.
        let mut mixed = vec![1e-30; 256];
        mixed[0] = 1e30;
        let back = there_and_back(&mixed);
        assert_eq!(back[1], 0.0);
        assert!(close(&mixed[128..], &back[128..]));
    }

    #[test]
    fn values_that_are_not_finite_are_reported() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 200];
            values[150] = bad;
            let (mut halves, mut exponents) = (vec![f16::ONE], vec![1]);
            assert!(!encode(&values, &mut halves, &mut exponents));
            assert!(halves.is_empty() && exponents.is_empty());
        }
    }

    #[test]
    fn exponents_that_no_encoder_gives_are_refused() {
        let mut values = vec![1.0];
        let ones = vec![f16::ONE; 129];
        assert!(decode(&ones, &[0], &mut values).unwrap_err().contains("expected 2"));
        assert!(decode(&ones, &[0, 114], &mut values).unwrap_err().contains("114"));
        assert!(decode(&ones, &[-127, 0], &mut values).unwrap_err().contains("-127"));
        assert!(decode(&ones, &[-126, 113], &mut values).is_ok());
    }
}
