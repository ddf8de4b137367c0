//! Values of rows in fewer bytes, for files: in f16, or in int8 with a scale for each row. The formats are as in
//! [`Storage`](crate::Storage); all values are rounded to the nearest.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::table::{halves, int8};

/// A row with a value that cannot be rounded, or that no rounding gives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct RoundingError {
    /// The number of the row.
    pub row: usize,
    /// What was found, and what was expected.
    pub what: String,
}

/// Rows in int8.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Rows {
    /// A power of two for each row.
    pub scales: Vec<f32>,
    /// `[rows x dim]`: multiples of the scale, from -127 to 127, in two's complement.
    pub bytes: Vec<u8>,
}

/// Rounds `values`, `[rows x dim]`, to f16. A value of a magnitude of at least 2^-14 is off by at most 2^-11 of it, a smaller one by at
/// most 2^-25.
///
/// # Errors
/// The first row with a value that is not finite, or beyond ±65504.
pub fn to_f16(values: &[f32], dim: usize) -> Result<Vec<f16>, RoundingError> {
    find(values, dim, |value| {
        not_finite(value).or_else(|| {
            let beyond = value.abs() > halves::LARGEST;
            beyond.then(|| format!("{value} does not fit f16, which ends at {}", halves::LARGEST))
        })
    })?;
    let mut rounded = vec![f16::ZERO; values.len()];
    rounded.convert_from_f32_slice(values);
    Ok(rounded)
}

/// Undoes [`to_f16`].
///
/// # Errors
/// The first row with a value that is not finite.
pub fn from_f16(values: &[f16], dim: usize) -> Result<Vec<f32>, RoundingError> {
    let values = values.to_f32_vec();
    find(&values, dim, not_finite)?;
    Ok(values)
}

/// Rounds `values`, `[rows x dim]`, to int8. A value is off by at most 1/127 of the largest magnitude of its row, or by 2^-127 if that is
/// more.
///
/// # Errors
/// The first row with a value that is not finite.
pub fn to_int8(values: &[f32], dim: usize) -> Result<Int8Rows, RoundingError> {
    find(values, dim, not_finite)?;
    let mut bytes = vec![0; values.len()];
    let rows = values.chunks_exact(dim).zip(bytes.chunks_exact_mut(dim));
    let scales = rows.map(|(values, bytes)| int8::write_nearest(values, bytes)).collect();
    Ok(Int8Rows { scales, bytes: bytes.into_iter().map(i8::cast_unsigned).collect() })
}

/// Undoes [`to_int8`]. There are `dim` bytes for each scale.
///
/// # Errors
/// The first row with a scale or a byte that [`to_int8`] does not give.
pub fn from_int8(scales: &[f32], bytes: &[u8], dim: usize) -> Result<Vec<f32>, RoundingError> {
    let (mut values, mut signed) = (vec![0.0; scales.len() * dim], vec![0; dim]);
    let rows = values.chunks_exact_mut(dim).zip(bytes.chunks_exact(dim));
    for (row, (&scale, (values, bytes))) in scales.iter().zip(rows).enumerate() {
        signed.iter_mut().zip(bytes).for_each(|(signed, byte)| *signed = byte.cast_signed());
        int8::read_checked(scale, &signed, values).map_err(|what| RoundingError { row, what })?;
    }
    Ok(values)
}

/// Fails with the first row that has a value which `wrong` refuses; `wrong` returns the reason.
fn find(values: &[f32], dim: usize, wrong: impl Fn(f32) -> Option<String>) -> Result<(), RoundingError> {
    let bad = values.iter().enumerate().find_map(|(at, &value)| Some((at, wrong(value)?)));
    bad.map_or(Ok(()), |(at, what)| Err(RoundingError { row: at / dim, what }))
}

fn not_finite(value: f32) -> Option<String> {
    (!value.is_finite()).then(|| format!("{value} is not a finite number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The nearest multiple of the scale, in f64 and byte by byte.
    fn slow_int8(row: &[f32]) -> Vec<f32> {
        let most = row.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs())));
        let mut scale = 2f64.powi(-126);
        while most > 127.0 * scale && scale < 2f64.powi(121) {
            scale *= 2.0;
        }
        let nearest = |value: &f32| {
            (-127..=127).map(|byte| f64::from(byte) * scale).min_by(|a, b| {
                let (a, b) = (a - f64::from(*value), b - f64::from(*value));
                a.abs().total_cmp(&b.abs())
            })
        };
        row.iter().map(|value| nearest(value).unwrap() as f32).collect()
    }

    fn any_finite() -> impl Strategy<Value = f32> {
        let any = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
        prop_oneof![-1.0f32..1.0, -1e-3f32..1e-3, Just(0.0), any]
    }

    proptest! {
        #[test]
        fn int8_is_the_nearest_multiple_within_its_bound_and_is_rounded_once(
            values in prop::collection::vec(any_finite(), 15).prop_map(|mut v| { v.truncate(v.len() / 5 * 5); v }),
        ) {
            let Int8Rows { scales, bytes } = to_int8(&values, 5).unwrap();
            let back = from_int8(&scales, &bytes, 5).unwrap();
            for (row, back) in values.chunks(5).zip(back.chunks(5)) {
                let (slow, most) = (slow_int8(row), row.iter().fold(0.0f32, |most, v| most.max(v.abs())));
                for ((value, found), slow) in row.iter().zip(back).zip(&slow) {
                    let off = |other: &f32| (f64::from(*value) - f64::from(*other)).abs();
                    prop_assert_eq!(off(found), off(slow), "{} and {} for {}", found, slow, value);
                    prop_assert!(off(found) <= (f64::from(most) / 127.0).max(2f64.powi(-127)));
                }
            }
            let again = to_int8(&back, 5).unwrap();
            prop_assert_eq!(from_int8(&again.scales, &again.bytes, 5).unwrap(), back);
        }

        #[test]
        fn f16_is_within_its_bound_and_is_rounded_once(values in prop::collection::vec(any_finite(), 12)) {
            let values: Vec<f32> = values.into_iter().map(|v| v.clamp(-65504.0, 65504.0)).collect();
            let back = from_f16(&to_f16(&values, 4).unwrap(), 4).unwrap();
            for (value, found) in values.iter().zip(&back) {
                let (value, off) = (f64::from(*value), (f64::from(*value) - f64::from(*found)).abs());
                prop_assert!(off <= (value.abs() * 2f64.powi(-11)).max(2f64.powi(-25)), "{found} for {value}");
            }
            prop_assert_eq!(from_f16(&to_f16(&back, 4).unwrap(), 4).unwrap(), back);
        }
    }

    #[test]
    fn what_cannot_be_rounded_names_the_row() {
        for (value, words) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf"), (65505.0, "65505 does not fit f16")] {
            let bad = to_f16(&[0.0, 1.0, 2.0, value], 2).unwrap_err();
            assert!(bad.row == 1 && bad.what.contains(words), "{bad:?}");
        }
        let bad = to_int8(&[f32::INFINITY, 1.0], 2).unwrap_err();
        assert!(bad.row == 0 && bad.what.contains("inf is not a finite number"), "{bad:?}");
    }

    #[test]
    fn what_no_rounding_gives_names_the_row() {
        for half in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            let bad = from_f16(&[f16::ONE, f16::ONE, half, f16::ONE], 2).unwrap_err();
            assert!(bad.row == 1 && bad.what.contains("is not a finite number"), "{bad:?}");
        }
        let largest = f32::from_bits(0x7c00_0000);
        for scale in [f32::NAN, f32::INFINITY, 0.0, -0.5, 0.75, largest * 2.0, f32::MIN_POSITIVE / 2.0] {
            let bad = from_int8(&[1.0, scale], &[1; 4], 2).unwrap_err();
            assert!(bad.row == 1 && bad.what.contains("its scale is"), "{bad:?}");
        }
        assert_eq!(from_int8(&[0.5, largest], &[127, 129, 0, 255], 2).unwrap(), [63.5, -63.5, 0.0, -largest]);
        let bad = from_int8(&[0.5], &[0, 128], 2).unwrap_err();
        assert!(bad.row == 0 && bad.what.contains("byte -128, expected -127 to 127"), "{bad:?}");
    }
}
