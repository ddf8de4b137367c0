//! Arithmetic whose results are the same bits on every machine: logarithm and power of two by polynomials, and random
//! numbers by counter.
//!
//! Comes in: numbers. Goes out: numbers. Only +, -, ×, ÷ and bit operations of IEEE doubles are used, which no platform
//! may round differently; the standard library's `exp` and `ln` may differ. Nothing blocks.

use crate::split::mix64;

/// log2 of a positive normal number, to 3e-9.
#[inline]
pub(crate) fn log2(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    // Into [sqrt(1/2), sqrt(2)): the series below is about 1.
    let high = mantissa > std::f64::consts::SQRT_2;
    exponent += i32::from(high);
    mantissa *= if high { 0.5 } else { 1.0 };
    // ln m = 2 artanh((m - 1) / (m + 1)).
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let s = t * t;
    let series = 1.0 + s * (1.0 / 3.0 + s * (1.0 / 5.0 + s * (1.0 / 7.0 + s * (1.0 / 9.0 + s * (1.0 / 11.0)))));
    f64::from(exponent) + t * series * (2.0 * std::f64::consts::LOG2_E)
}

/// 2 to the power of a number in -1000..1000, to 3e-9 of the result.
#[inline]
pub(crate) fn exp2(x: f64) -> f64 {
    let x = x.clamp(-1000.0, 1000.0);
    // The nearest integer, by adding what leaves no room for a fraction.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let whole = (x + SHIFT) - SHIFT;
    let y = (x - whole) * std::f64::consts::LN_2;
    let series = 1.0
        + y * (1.0
            + y * (1.0 / 2.0
                + y * (1.0 / 6.0 + y * (1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0 + y * (1.0 / 5040.0)))))));
    f64::from_bits(((whole as i64 + 1023) as u64) << 52) * series
}

/// e to the power of x.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    exp2(x * std::f64::consts::LOG2_E)
}

/// The natural logarithm.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    log2(x) * std::f64::consts::LN_2
}

/// 64 random bits that belong to (stream, counter), whatever was asked before.
#[inline]
pub(crate) fn random(stream: u64, counter: u64) -> u64 {
    mix64(stream ^ counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A number in [0, 1) of 53 of the bits.
#[inline]
pub(crate) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A nearly normal number, mean 0, deviation 1: the sum of four uniform ones of 16 bits each (tails end at 3.46).
#[inline]
pub(crate) fn normal(bits: u64) -> f64 {
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    (sum as f64 - 2.0 * 65535.0) * (SQRT_3 / 65536.0)
}

/// Four nearly normal numbers, mean 0, deviation 1: each the sum of two uniform ones of 8 bits (tails end at 2.45).
#[inline]
pub(crate) fn four_normals(bits: u64) -> [f64; 4] {
    std::array::from_fn(|i| {
        let pair = bits >> (16 * i);
        let sum = (pair & 0xff) + (pair >> 8 & 0xff);
        (sum as f64 - 255.0) * (SQRT_6 / 256.0)
    })
}

const SQRT_3: f64 = 1.732_050_807_568_877_2;
const SQRT_6: f64 = 2.449_489_742_783_178;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn logarithm_and_power_are_right(x in 1e-12f64..1e12, y in -300.0f64..300.0) {
            prop_assert!((log2(x) - x.log2()).abs() < 1e-8, "{} {}", log2(x), x.log2());
            prop_assert!((exp2(y) / y.exp2() - 1.0).abs() < 1e-8);
            prop_assert!((ln(x) - x.ln()).abs() < 1e-8);
        }
    }

    #[test]
    fn the_normals_have_mean_0_and_deviation_1() {
        const N: u64 = 100_000;
        let moments = |numbers: &mut dyn Iterator<Item = f64>| {
            let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
            for x in numbers {
                (n, sum, squares) = (n + 1.0, sum + x, squares + x * x);
            }
            (sum / n, squares / n)
        };
        for (mean, square) in [
            moments(&mut (0..N).map(|i| normal(random(1, i)))),
            moments(&mut (0..N).flat_map(|i| four_normals(random(2, i)))),
        ] {
            assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
        }
    }
}
