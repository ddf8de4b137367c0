//! What follows the product of a hidden layer, and its way back. A step keeps the derivative of each output, so that the way
//! back is the same for every activation.

use super::kernels::kernel;
use crate::Activation;

/// What one hidden layer keeps of a chunk between forward and backward, besides its output.
#[derive(Default)]
pub(super) struct Kept {
    /// `[chunk x outputs]`: the derivative of each output by what went into its activation.
    slopes: Vec<f32>,
    /// `[chunk x outputs]` if the activation learns slopes: the derivative of each output by its slope.
    by_slope: Vec<f32>,
}

/// The parameters of a hidden layer behind its weight, or their gradients.
pub(super) struct Behind<T> {
    pub(super) bias: T,
    /// Empty unless the activation learns slopes.
    pub(super) slope: T,
}

/// Turns the product `y` of a hidden layer, `[rows x outputs]`, into its output. `kept` gets what `backward` needs; `None` when
/// only predicting.
pub(super) fn forward(y: &mut [f32], activation: Activation, behind: &Behind<&[f32]>, kept: Option<&mut Kept>) {
    let Some(kept) = kept else {
        return activate(y, activation, behind, &mut [], &mut []);
    };
    kept.slopes.resize(y.len(), 0.0);
    kept.by_slope.resize(if behind.slope.is_empty() { 0 } else { y.len() }, 0.0);
    activate(y, activation, behind, &mut kept.slopes, &mut kept.by_slope);
}

/// Turns `delta`, the gradient of a hidden layer's output, into the gradient of its product, and adds to the gradients of the
/// parameters behind it.
pub(super) fn backward(delta: &mut [f32], kept: &Kept, grads: Behind<&mut [f32]>) {
    if !kept.by_slope.is_empty() {
        add_products(delta, &kept.by_slope, grads.slope);
    }
    through(delta, &kept.slopes, grads.bias);
}

kernel! {
    /// Bias and activation, row by row. `slopes` and `by_slope` are as long as `y`, or empty if nobody needs them.
    fn activate<'a>(y: &'a mut [f32], activation: Activation, behind: &'a Behind<&'a [f32]>, slopes: &'a mut [f32],
                    by_slope: &'a mut [f32]) {
        let width = behind.bias.len();
        let (mut slopes, mut by_slope) = (slopes.chunks_exact_mut(width), by_slope.chunks_exact_mut(width));
        for y in y.chunks_exact_mut(width) {
            for (y, &bias) in y.iter_mut().zip(behind.bias) {
                *y += bias;
            }
            let slopes = slopes.next().unwrap_or_default();
            match activation {
                Activation::Relu => map(y, slopes, relu),
                Activation::Gelu => map(y, slopes, gelu),
                Activation::Silu => map(y, slopes, silu),
                Activation::Prelu => prelu(y, behind.slope, slopes, by_slope.next().unwrap_or_default()),
            }
        }
    }
}

kernel! {
    /// `delta *= slopes`, and `bias_grad += sum of delta's rows`.
    fn through<'a>(delta: &'a mut [f32], slopes: &'a [f32], bias_grad: &'a mut [f32]) {
        let width = bias_grad.len();
        for (delta, slopes) in delta.chunks_exact_mut(width).zip(slopes.chunks_exact(width)) {
            for ((delta, &slope), sum) in delta.iter_mut().zip(slopes).zip(bias_grad.iter_mut()) {
                *delta *= slope;
                *sum += *delta;
            }
        }
    }
}

kernel! {
    /// `sums += sum of the rows of a * b`.
    fn add_products<'a>(a: &'a [f32], b: &'a [f32], sums: &'a mut [f32]) {
        let width = sums.len();
        for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            for ((&a, &b), sum) in a.iter().zip(b).zip(sums.iter_mut()) {
                *sum += a * b;
            }
        }
    }
}

/// Replaces each number by `f` of it, which also gives the derivative; that goes to `slopes`, if there is room.
#[inline(always)]
fn map(y: &mut [f32], slopes: &mut [f32], f: impl Fn(f32) -> (f32, f32)) {
    if slopes.is_empty() {
        for y in y {
            *y = f(*y).0;
        }
        return;
    }
    for (y, slope) in y.iter_mut().zip(slopes) {
        (*y, *slope) = f(*y);
    }
}

#[inline(always)]
fn relu(z: f32) -> (f32, f32) {
    // NaN stays NaN.
    (if z <= 0.0 { 0.0 } else { z }, if z > 0.0 { 1.0 } else { 0.0 })
}

/// `z Φ(z)`. Φ by formula 7.1.26 of Abramowitz and Stegun, which is 7.5e-8 off at most: the rounding of an `f32` near 1.
#[inline(always)]
fn gelu(z: f32) -> (f32, f32) {
    const ROOT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
    const DENSITY_AT_0: f32 = 0.398_942_3;
    let e = exp_below_0(-0.5 * z * z);
    let t = 1.0 / (1.0 + (0.327_591_1 * ROOT_HALF) * z.abs());
    let p = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_8) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    let tail = 0.5 * p * e;
    let below = if z < 0.0 { tail } else { 1.0 - tail };
    (z * below, below + z * (DENSITY_AT_0 * e))
}

/// `z sigmoid(z)`.
#[inline(always)]
fn silu(z: f32) -> (f32, f32) {
    let e = exp_below_0(-z.abs());
    let small = e / (1.0 + e);
    let sigmoid = if z < 0.0 { small } else { 1.0 - small };
    let other = if z < 0.0 { 1.0 - small } else { small };
    (z * sigmoid, sigmoid * (1.0 + z * other))
}

/// A row: `y` above 0, else `y` times the unit's slope.
#[inline(always)]
fn prelu(y: &mut [f32], slope: &[f32], slopes: &mut [f32], by_slope: &mut [f32]) {
    let one = |z: f32, slope: f32| if z > 0.0 { (z, 1.0, 0.0) } else { (slope * z, slope, z) };
    if slopes.is_empty() {
        for (y, &slope) in y.iter_mut().zip(slope) {
            *y = one(*y, slope).0;
        }
        return;
    }
    for (((y, &slope), slopes), by_slope) in y.iter_mut().zip(slope).zip(slopes).zip(by_slope) {
        (*y, *slopes, *by_slope) = one(*y, slope);
    }
}

/// `e^x` for `x <= 0`, to about one unit in the last place, in operations that vectors have: `e^x = 2^n e^r` with a polynomial for
/// `e^r` (Cephes, `expf`). 0 where the result would be below 1e-37; NaN stays NaN.
#[inline(always)]
fn exp_below_0(x: f32) -> f32 {
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let p =
        ((((1.987_569_2e-4 * r + 1.398_2e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 0.166_666_66) * r + 0.5;
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let y = (p * r * r + r + 1.0) * f32::from_bits(power);
    if x < -85.0 { 0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From -90 to 90, with many near 0.
    fn numbers() -> impl Iterator<Item = f32> {
        (-3000..=3000).map(|i| (i as f32 / 1000.0).powi(3) * 3.34).chain([0.0, -0.0, 1e-30, -1e-30])
    }

    /// e^x, from f64.
    #[test]
    fn exponentials_are_those_of_the_standard_library() {
        for x in numbers().map(|x| -x.abs()) {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp_below_0(x)) - expected).abs();
            assert!(error <= expected * 2e-7 || x < -85.0 && error < 1e-36, "{x}: {error}");
        }
        assert_eq!((exp_below_0(0.0), exp_below_0(f32::NEG_INFINITY)), (1.0, 0.0));
        assert!(exp_below_0(f32::NAN).is_nan());
    }

    /// Φ by Simpson's rule over the density.
    fn normal_below(z: f64) -> f64 {
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (steps, z) = (2000, z.clamp(-12.0, 12.0));
        let h = z / f64::from(steps);
        let sum: f64 = (0..=steps)
            .map(|i| density(h * f64::from(i)) * if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) })
            .sum();
        0.5 + sum * h / 3.0
    }

    #[test]
    fn activations_and_their_derivatives_agree_with_their_formulas() {
        for z in numbers() {
            let wide = f64::from(z);
            let near = |(y, slope): (f32, f32), expected: f64, derivative: f64, name: &str| {
                let error = (f64::from(y) - expected).abs();
                assert!(error <= 3e-7 * expected.abs().max(1.0), "{name}({z}) is {y}, expected {expected}");
                assert!((f64::from(slope) - derivative).abs() < 1e-6, "{name}'({z}) is {slope}, expected {derivative}");
            };
            let (below, density) =
                (normal_below(wide), (-0.5 * wide * wide).exp() / (2.0 * std::f64::consts::PI).sqrt());
            near(gelu(z), wide * below, below + wide * density, "gelu");
            let sigmoid = 1.0 / (1.0 + (-wide).exp());
            near(silu(z), wide * sigmoid, sigmoid * (1.0 + wide * (1.0 - sigmoid)), "silu");
            near(relu(z), wide.max(0.0), if z > 0.0 { 1.0 } else { 0.0 }, "relu");
        }
        assert_eq!((gelu(1e30), silu(1e30)), ((1e30, 1.0), (1e30, 1.0)));
        assert_eq!((gelu(-1e30), silu(-1e30)), ((0.0, 0.0), (0.0, 0.0)));
        assert!(gelu(f32::NAN).0.is_nan() && silu(f32::NAN).0.is_nan() && relu(f32::NAN).0.is_nan());
    }

    #[test]
    fn rows_go_forward_and_back() {
        let (bias, slope) = ([1.0, -1.0], [0.5, 0.25]);
        let behind = Behind { bias: &bias[..], slope: &slope[..] };
        let (mut y, mut kept) = ([1.0, 0.0, -3.0, 5.0], Kept::default());
        forward(&mut y, Activation::Prelu, &behind, Some(&mut kept));
        assert_eq!(y, [2.0, -0.25, -1.0, 4.0]);
        let (mut predicted, mut delta) = ([1.0, 0.0, -3.0, 5.0], [1.0, 2.0, 3.0, 4.0]);
        forward(&mut predicted, Activation::Prelu, &behind, None);
        assert_eq!(predicted, y);
        let (mut bias_grad, mut slope_grad) = ([0.0; 2], [10.0; 2]);
        backward(&mut delta, &kept, Behind { bias: &mut bias_grad, slope: &mut slope_grad });
        assert_eq!(delta, [1.0, 0.5, 1.5, 4.0]);
        assert_eq!((bias_grad, slope_grad), ([2.5, 4.5], [10.0 - 6.0, 10.0 - 2.0]));
    }
}
