//! The end of a hidden layer after its product (bias, norm, activation, dropout), and its backward pass. A step keeps the derivative of
//! each output, so that the backward pass is the same for every activation.

use forebay_base::SplitMix64;

use super::kernels::{dot, kernel, sum};
use crate::Activation;
use crate::dropout::Dropout;
use crate::tower::NORM_EPSILON;

/// The numbers of a chunk that one hidden layer keeps between forward and backward, besides its output.
#[derive(Default)]
pub(super) struct Kept {
    /// `[chunk x outputs]`: the derivative of each output by the input of its activation.
    slopes: Vec<f32>,
    /// `[chunk x outputs]` if the activation learns slopes: the derivative of each output by its slope.
    by_slope: Vec<f32>,
    /// With layer norm: `[chunk x outputs]`, the normalized numbers before `gamma` and `beta`.
    normal: Vec<f32>,
    /// With layer norm: `[chunk]`, the factor of each row's numbers.
    rates: Vec<f32>,
    /// `[outputs]` with dropout: the factors of a row's units.
    factors: Vec<f32>,
}

/// The dropout of a layer in a training step.
#[derive(Clone, Copy)]
pub(super) struct Drops {
    pub(super) dropout: Dropout,
    /// The seed of the stream of the layer and the batch.
    pub(super) stream: u64,
    /// The number of the first row within the batch.
    pub(super) first: usize,
}

/// The parameters of a hidden layer behind its weight, or their gradients.
pub(super) struct Behind<T> {
    pub(super) bias: T,
    /// Empty without layer norm, and so is `beta`.
    pub(super) gamma: T,
    pub(super) beta: T,
    /// Empty unless the activation learns slopes.
    pub(super) slope: T,
}

/// Turns the product `y` of a hidden layer, `[rows x outputs]`, into its output, when predicting.
pub(super) fn predict(y: &mut [f32], activation: Activation, behind: &Behind<&[f32]>) {
    activate(y, activation, behind, None, &mut Kept::default());
}

/// The same in a training step: `kept` gets what `backward` needs.
pub(super) fn forward(
    y: &mut [f32],
    activation: Activation,
    behind: &Behind<&[f32]>,
    drops: Option<Drops>,
    kept: &mut Kept,
) {
    kept.slopes.resize(y.len(), 0.0);
    kept.by_slope.resize(if behind.slope.is_empty() { 0 } else { y.len() }, 0.0);
    kept.factors.resize(if drops.is_some() { behind.bias.len() } else { 0 }, 0.0);
    let normalized = !behind.gamma.is_empty();
    kept.normal.resize(if normalized { y.len() } else { 0 }, 0.0);
    kept.rates.resize(if normalized { y.len() / behind.bias.len() } else { 0 }, 0.0);
    activate(y, activation, behind, drops, kept);
}

/// Turns `delta`, the gradient of a hidden layer's output, into the gradient of its product, and adds to the gradients of the
/// parameters behind it.
pub(super) fn backward(delta: &mut [f32], kept: &Kept, behind: &Behind<&[f32]>, grads: Behind<&mut [f32]>) {
    if !kept.by_slope.is_empty() {
        add_products(delta, &kept.by_slope, grads.slope);
    }
    if behind.gamma.is_empty() {
        through(delta, &kept.slopes, grads.bias);
        return;
    }
    through_norm(delta, kept, behind.gamma, grads);
}

kernel! {
    /// Applies bias, norm, activation and dropout to each row. A training keeps in `kept` what its gradients need; a prediction passes
    /// empty buffers.
    fn activate<'a>(y: &'a mut [f32], activation: Activation, behind: &'a Behind<&'a [f32]>, drops: Option<Drops>,
                    kept: &'a mut Kept) {
        let width = behind.bias.len();
        let Kept { slopes, by_slope, normal, rates, factors } = kept;
        let (mut slopes, mut by_slope) = (slopes.chunks_exact_mut(width), by_slope.chunks_exact_mut(width));
        let mut normal = normal.chunks_exact_mut(width);
        for (row, y) in y.chunks_exact_mut(width).enumerate() {
            for (y, &bias) in y.iter_mut().zip(behind.bias) {
                *y += bias;
            }
            if !behind.gamma.is_empty() {
                let rate = normalize(y, behind.gamma, behind.beta, normal.next().unwrap_or_default());
                if let Some(kept) = rates.get_mut(row) {
                    *kept = rate;
                }
            }
            let (slopes, by_slope) = (slopes.next().unwrap_or_default(), by_slope.next().unwrap_or_default());
            match activation {
                Activation::Relu => map(y, &mut *slopes, relu),
                Activation::Gelu => map(y, &mut *slopes, gelu),
                Activation::Silu => map(y, &mut *slopes, silu),
                Activation::Sigmoid => map(y, &mut *slopes, sigmoid),
                Activation::Prelu => prelu(y, behind.slope, &mut *slopes, &mut *by_slope),
            }
            if let Some(drops) = &drops {
                factors_of_row(drops, row, factors);
                scale(y, factors);
                scale(slopes, factors);
                scale(by_slope, factors);
            }
        }
    }
}

kernel! {
    /// As `through`, and then through the norm: with `x` the normalized numbers and `d = delta * gamma`, `delta` becomes
    /// `rate * (d - mean(d) - x * mean(d * x))`. Adds to the gradients of bias, `gamma` and `beta`.
    fn through_norm<'a>(delta: &'a mut [f32], kept: &'a Kept, gamma: &'a [f32], grads: Behind<&'a mut [f32]>) {
        let width = gamma.len();
        let (slopes, normal) = (kept.slopes.chunks_exact(width), kept.normal.chunks_exact(width));
        let rows = delta.chunks_exact_mut(width).zip(slopes).zip(normal).zip(&kept.rates);
        for (((delta, slopes), normal), &rate) in rows {
            for (((delta, &slope), &gamma), (&x, (beta_grad, gamma_grad))) in delta
                .iter_mut()
                .zip(slopes)
                .zip(gamma)
                .zip(normal.iter().zip(grads.beta.iter_mut().zip(grads.gamma.iter_mut())))
            {
                let by_output = *delta * slope;
                *beta_grad += by_output;
                *gamma_grad += by_output * x;
                *delta = by_output * gamma;
            }
            let (mean, along) = (sum(delta) / width as f32, dot(delta, normal) / width as f32);
            for ((delta, &x), bias_grad) in delta.iter_mut().zip(normal).zip(grads.bias.iter_mut()) {
                *delta = rate * (*delta - mean - x * along);
                *bias_grad += *delta;
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

/// Brings a row to mean 0 and variance 1, and then to `gamma` and `beta`. `normal`, unless empty, gets the numbers between. Returns their
/// factor.
#[inline(always)]
fn normalize(y: &mut [f32], gamma: &[f32], beta: &[f32], normal: &mut [f32]) -> f32 {
    let width = y.len() as f32;
    let mean = sum(y) / width;
    y.iter_mut().for_each(|y| *y -= mean);
    let rate = 1.0 / (dot(y, y) / width + NORM_EPSILON).sqrt();
    y.iter_mut().for_each(|y| *y *= rate);
    for (normal, &y) in normal.iter_mut().zip(&*y) {
        *normal = y;
    }
    for ((y, &gamma), &beta) in y.iter_mut().zip(gamma).zip(beta) {
        *y = *y * gamma + beta;
    }
    rate
}

/// The factors of dropout for the units of a row: 0 or `1 / (1 - rate)`. See `dropout.rs`.
#[inline(always)]
fn factors_of_row(drops: &Drops, row: usize, factors: &mut [f32]) {
    let Dropout { below, scale, .. } = drops.dropout;
    let factor = |bits: u32| if bits < below { 0.0 } else { scale };
    let half = factors.len().div_ceil(2);
    let first = ((drops.first + row) * half) as u64;
    let word = |j: usize| SplitMix64::word(drops.stream, first.wrapping_add(j as u64));
    let (low, high) = factors.split_at_mut(half);
    for (j, (low, high)) in low.iter_mut().zip(high.iter_mut()).enumerate() {
        let word = word(j);
        (*low, *high) = (factor(word as u32), factor((word >> 32) as u32));
    }
    if high.len() < half {
        low[half - 1] = factor(word(half - 1) as u32);
    }
}

/// `y *= factors`, where `y` is not empty.
#[inline(always)]
fn scale(y: &mut [f32], factors: &[f32]) {
    for (y, &factor) in y.iter_mut().zip(factors) {
        *y *= factor;
    }
}

/// Replaces each number by `f` of it. The derivative, which `f` also gives, goes to `slopes`, if there is room.
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
    let (sigmoid, other) = sigmoids(z);
    (z * sigmoid, sigmoid * (1.0 + z * other))
}

#[inline(always)]
fn sigmoid(z: f32) -> (f32, f32) {
    let (sigmoid, other) = sigmoids(z);
    (sigmoid, sigmoid * other)
}

/// `sigmoid(z)` and `sigmoid(-z)`.
#[inline(always)]
pub(super) fn sigmoids(z: f32) -> (f32, f32) {
    let e = exp_below_0(-z.abs());
    let small = e / (1.0 + e);
    if z < 0.0 { (small, 1.0 - small) } else { (1.0 - small, small) }
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
pub(super) fn exp_below_0(x: f32) -> f32 {
    /// The addition of this number rounds to an integer, which is then in the low bits.
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
            near(super::sigmoid(z), sigmoid, sigmoid * (1.0 - sigmoid), "sigmoid");
            near(relu(z), wide.max(0.0), if z > 0.0 { 1.0 } else { 0.0 }, "relu");
        }
        assert_eq!((gelu(1e30), silu(1e30)), ((1e30, 1.0), (1e30, 1.0)));
        assert_eq!((gelu(-1e30), silu(-1e30)), ((0.0, 0.0), (0.0, 0.0)));
        assert!(gelu(f32::NAN).0.is_nan() && silu(f32::NAN).0.is_nan() && relu(f32::NAN).0.is_nan());
    }

    #[test]
    fn dropout_is_its_definition() {
        for (width, rate) in [(1, 0.5), (2, 0.25), (7, 0.9), (40, 0.1), (401, 0.5)] {
            let dropout = Dropout::new(rate, 3).unwrap();
            let drops = Drops { dropout, stream: dropout.stream(5, 1), first: 1000 };
            let (bias, half) = (vec![2.0; width], width.div_ceil(2));
            let behind = Behind { bias: &bias[..], gamma: &[], beta: &[], slope: &[] };
            let (mut y, mut kept) = (vec![0.0; 100 * width], Kept::default());
            forward(&mut y, Activation::Relu, &behind, Some(drops), &mut kept);
            for (at, (&y, &slope)) in y.iter().zip(&kept.slopes).enumerate() {
                let (row, unit) = (1000 + at / width, at % width);
                let word = SplitMix64::word(drops.stream, (row * half + unit % half) as u64);
                let bits = if unit < half { word & 0xffff_ffff } else { word >> 32 };
                let kept = bits >= (rate * 4_294_967_296.0) as u64;
                let factor = if kept { (1.0 / (1.0 - rate)) as f32 } else { 0.0 };
                assert_eq!((y, slope), (2.0 * factor, factor), "{width} units, number {at}");
            }
            let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / y.len() as f64;
            assert!((dropped - rate).abs() < 3.0 / (y.len() as f64).sqrt(), "{width}: {dropped} of {rate}");
        }
    }

    #[test]
    fn a_row_is_normalized_as_by_its_formula_and_predicted_as_in_a_step() {
        for width in [1, 5, 16, 37, 400] {
            let numbers = |salt: usize| (0..width).map(move |i| ((i * 37 + salt) % 101) as f32 / 50.0 - 1.0);
            let [bias, gamma, beta] = [3, 20, 77].map(|salt| numbers(salt).collect::<Vec<f32>>());
            let behind = Behind { bias: &bias[..], gamma: &gamma, beta: &beta, slope: &[] };
            let product: Vec<f32> = numbers(50).chain(numbers(9)).collect();
            let (mut y, mut predicted, mut kept) = (product.clone(), product.clone(), Kept::default());
            forward(&mut y, Activation::Silu, &behind, None, &mut kept);
            predict(&mut predicted, Activation::Silu, &behind);
            assert_eq!(y, predicted);
            for (row, y) in y.chunks_exact(width).enumerate() {
                let wide = |i: usize| f64::from(product[row * width + i]) + f64::from(bias[i]);
                let mean = (0..width).map(wide).sum::<f64>() / width as f64;
                let variance = (0..width).map(|i| (wide(i) - mean).powi(2)).sum::<f64>() / width as f64;
                for (i, &y) in y.iter().enumerate() {
                    let normal = (wide(i) - mean) / (variance + 1e-5).sqrt();
                    let z = normal * f64::from(gamma[i]) + f64::from(beta[i]);
                    let expected = z / (1.0 + (-z).exp());
                    assert!((f64::from(y) - expected).abs() < 1e-5, "{width}, {row}, {i}: {y}, expected {expected}");
                }
            }
        }
    }

    #[test]
    fn rows_go_forward_and_back() {
        let (bias, slope) = ([1.0, -1.0], [0.5, 0.25]);
        let behind = Behind { bias: &bias[..], gamma: &[], beta: &[], slope: &slope[..] };
        let (mut y, mut kept) = ([1.0, 0.0, -3.0, 5.0], Kept::default());
        forward(&mut y, Activation::Prelu, &behind, None, &mut kept);
        assert_eq!(y, [2.0, -0.25, -1.0, 4.0]);
        let (mut predicted, mut delta) = ([1.0, 0.0, -3.0, 5.0], [1.0, 2.0, 3.0, 4.0]);
        predict(&mut predicted, Activation::Prelu, &behind);
        assert_eq!(predicted, y);
        let (mut bias_grad, mut slope_grad) = ([0.0; 2], [10.0; 2]);
        let grads = Behind { bias: &mut bias_grad[..], gamma: &mut [], beta: &mut [], slope: &mut slope_grad[..] };
        backward(&mut delta, &kept, &behind, grads);
        assert_eq!(delta, [1.0, 0.5, 1.5, 4.0]);
        assert_eq!((bias_grad, slope_grad), ([2.5, 4.5], [10.0 - 6.0, 10.0 - 2.0]));
    }
}
