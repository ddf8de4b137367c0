//! Arithmetic with the same bits on every machine: logarithm and power of two by polynomials, random numbers by counter.
//! It uses only +, -, ×, ÷ and bit operations of IEEE doubles. The standard library's `exp` and `ln` may differ between
//! platforms.

use forebay_base::{GOLDEN_GAMMA, mix64};

/// log2 of a positive normal number, to 3e-9.
#[inline]
pub(crate) fn log2(x: f64) -> f64 {
    // Into [sqrt(1/2), sqrt(2)), about 1, where the series below is good; without a branch.
    let bits = x.to_bits().wrapping_add(0x3ff0_0000_0000_0000 - SQRT_HALF);
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) + SQRT_HALF);
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
    // Rounds to the nearest integer: after adding this number, no bits are left for a fraction.
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

/// 64 random bits of (stream, counter), independent of earlier calls.
#[inline]
pub(crate) fn random(stream: u64, counter: u64) -> u64 {
    mix64(stream ^ counter.wrapping_mul(GOLDEN_GAMMA))
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

/// The result of [`normal`] when its sum is at this share of its range.
pub(crate) fn normal_of(share: f64) -> f64 {
    (share * 4.0 - 2.0) * SQRT_3
}

/// Sums over fields of four nearly normal factors each (the sum of two uniform numbers of 8 bits: mean 0, deviation 1,
/// tails at 2.45), in whole numbers, so that no order of adding changes them. At most 128 fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Factors {
    /// Four sums of 16 bits, each `FACTOR_MEAN` too high per field.
    sums: u64,
    /// Sum of the squares of all four, each factor `FACTOR_MEAN` too high.
    squares: u64,
}

const FACTOR_MEAN: u64 = 255;
const FACTOR_SCALE: f64 = SQRT_6 / 256.0;

impl Factors {
    /// Adds a field's factors, which are these bits.
    #[inline]
    pub(crate) fn add(&mut self, bits: u64) {
        const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
        let four = (bits & EVEN) + (bits >> 8 & EVEN);
        self.sums += four;
        for i in 0..4 {
            let factor = four >> (16 * i) & 0xffff;
            self.squares += factor * factor;
        }
    }

    /// The sum over all pairs of fields of the product of their factors, by Rendle's identity: half of (square of the
    /// sum - sum of the squares).
    pub(crate) fn pairs(&self, fields: usize) -> f64 {
        let shift = FACTOR_MEAN as i64 * fields as i64;
        let sums = [0, 16, 32, 48].map(|i| (self.sums >> i & 0xffff) as i64);
        // The sum of the squares of (factor - mean) is squares - 2 mean sum + n mean^2.
        let mean = FACTOR_MEAN as i64;
        let squares = self.squares as i64 - 2 * mean * sums.iter().sum::<i64>() + 4 * shift * mean;
        let of_sums: i64 = sums.iter().map(|sum| (sum - shift) * (sum - shift)).sum();
        (of_sums - squares) as f64 * (0.5 * FACTOR_SCALE * FACTOR_SCALE)
    }
}

/// The bits of the square root of 1/2.
const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
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
    fn the_normal_has_mean_0_and_deviation_1() {
        const N: u64 = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for x in (0..N).map(|i| normal(random(1, i))) {
            (sum, squares) = (sum + x, squares + x * x);
        }
        let (mean, square) = (sum / N as f64, squares / N as f64);
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
        assert!((normal_of(0.5)).abs() < 1e-12 && (normal_of(1.0) - 2.0 * SQRT_3).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn pairs_are_what_two_loops_give(bits in prop::collection::vec(any::<u64>(), 1..100)) {
            let mut factors = Factors::default();
            bits.iter().for_each(|&b| factors.add(b));
            let of = |b: u64, i: usize| ((b >> (16 * i) & 0xff) + (b >> (16 * i + 8) & 0xff)) as f64 - 255.0;
            let mut slow = 0.0;
            for a in 0..bits.len() {
                for b in 0..a {
                    slow += (0..4).map(|i| of(bits[a], i) * of(bits[b], i)).sum::<f64>();
                }
            }
            let slow = slow * FACTOR_SCALE * FACTOR_SCALE;
            prop_assert!((factors.pairs(bits.len()) - slow).abs() < 1e-6 * (1.0 + slow.abs()));
        }
    }
}
