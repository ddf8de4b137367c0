//! Element-wise loops over rows, compiled for the machine's widest vectors and picked at run time. No allocation.
//!
//! `width` is the length of a row; matrices are row-major without gaps. Sums run in a fixed order.

/// Defines a function whose body is compiled once per instruction set (AVX-512, AVX2, baseline); safe code throughout.
macro_rules! kernel {
    ($(#[$doc:meta])* fn $name:ident<$($life:lifetime),+>($($arg:ident: $kind:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(in crate::native) fn $name<$($life),+>($($arg: $kind),*) $(-> $out)? {
            struct Kernel<$($life),+> { $($arg: $kind),* }
            impl<$($life),+> pulp::NullaryFnOnce for Kernel<$($life),+> {
                #[allow(unused_parens)]
                type Output = ($($out)?);
                #[inline(always)]
                #[allow(unused_parens)]
                fn call(self) -> Self::Output {
                    let Kernel { $($arg),* } = self;
                    $body
                }
            }
            pulp::Arch::new().dispatch(Kernel { $($arg),* })
        }
    };
}
pub(super) use kernel;

/// Partial sums side by side: as many as a vector register holds.
const LANES: usize = 16;

/// Inner product, summed in `LANES` interleaved partial sums.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] += a * b;
    }
    total(sums)
}

/// Sum, in `LANES` interleaved partial sums.
#[inline(always)]
pub(super) fn sum(a: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (lanes, rest) = a.as_chunks::<LANES>();
    for a in lanes {
        for lane in 0..LANES {
            sums[lane] += a[lane];
        }
    }
    for (sum, a) in sums.iter_mut().zip(rest) {
        *sum += a;
    }
    total(sums)
}

/// The sum of partial sums, pair by pair.
#[inline(always)]
fn total(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

kernel! {
    /// `y = max(y + bias, 0)`; NaN stays NaN.
    fn bias_relu<'a>(y: &'a mut [f32], bias: &'a [f32]) {
        for row in y.chunks_exact_mut(bias.len()) {
            for (y, &bias) in row.iter_mut().zip(bias) {
                let sum = *y + bias;
                *y = if sum <= 0.0 { 0.0 } else { sum };
            }
        }
    }
}

kernel! {
    /// Backward of `bias_relu`: `delta = 0` where `act = 0`, and `bias_grad += sum of delta's rows`.
    fn relu_backward<'a>(delta: &'a mut [f32], act: &'a [f32], bias_grad: &'a mut [f32]) {
        let width = bias_grad.len();
        for (delta, act) in delta.chunks_exact_mut(width).zip(act.chunks_exact(width)) {
            for ((delta, &act), sum) in delta.iter_mut().zip(act).zip(bias_grad.iter_mut()) {
                *delta = if act > 0.0 { *delta } else { 0.0 };
                *sum += *delta;
            }
        }
    }
}

kernel! {
    /// `logits[r] += x[r] . weight + bias`, rows of `x` being as long as `weight`.
    fn head<'a>(x: &'a [f32], weight: &'a [f32], bias: f32, logits: &'a mut [f32]) {
        for (logit, row) in logits.iter_mut().zip(x.chunks_exact(weight.len())) {
            *logit += dot(row, weight) + bias;
        }
    }
}

kernel! {
    /// `weight_grad += sum over r of g[r] * x[r]`: backward of `head` by the weight.
    fn head_weight<'a>(g: &'a [f32], x: &'a [f32], weight_grad: &'a mut [f32]) {
        for (&g, row) in g.iter().zip(x.chunks_exact(weight_grad.len())) {
            for (sum, &x) in weight_grad.iter_mut().zip(row) {
                *sum += g * x;
            }
        }
    }
}

kernel! {
    /// `delta[r] = g[r] * weight`: backward of `head` by the input.
    fn head_input<'a>(g: &'a [f32], weight: &'a [f32], delta: &'a mut [f32]) {
        for (&g, row) in g.iter().zip(delta.chunks_exact_mut(weight.len())) {
            for (delta, &weight) in row.iter_mut().zip(weight) {
                *delta = g * weight;
            }
        }
    }
}

kernel! {
    /// Pairwise interactions of the first `slots * dim` numbers of each row of `x`, by the sum-square identity
    /// `sum_{i<j} v_i . v_j = (|sum v_i|^2 - sum |v_i|^2) / 2`. Adds them to the logits; where `derivatives` is not empty,
    /// writes their derivative by each embedding, `sum v - v_i`, there (`[rows x slots * dim]`). `sum` is scratch `[dim]`.
    fn fm<'a>(x: &'a [f32], width: usize, slots: usize, sum: &'a mut [f32], logits: &'a mut [f32],
              derivatives: &'a mut [f32]) {
        let dim = sum.len();
        for (r, (logit, x)) in logits.iter_mut().zip(x.chunks_exact(width)).enumerate() {
            let x = &x[..slots * dim];
            sum.fill(0.0);
            for v in x.chunks_exact(dim) {
                for (sum, &v) in sum.iter_mut().zip(v) {
                    *sum += v;
                }
            }
            *logit += 0.5 * (dot(sum, sum) - dot(x, x));
            if !derivatives.is_empty() {
                let derivatives = &mut derivatives[r * slots * dim..][..slots * dim];
                for (derivative, v) in derivatives.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
                    for ((derivative, &sum), &v) in derivative.iter_mut().zip(sum.iter()).zip(v) {
                        *derivative = sum - v;
                    }
                }
            }
        }
    }
}

kernel! {
    /// `x[r] *= g[r]`, rows of `width`.
    fn scale_rows<'a>(x: &'a mut [f32], width: usize, g: &'a [f32]) {
        for (row, &g) in x.chunks_exact_mut(width).zip(g) {
            for x in row {
                *x *= g;
            }
        }
    }
}

kernel! {
    /// One cross layer after its product: `u += bias; out = x0 * u + x`.
    fn cross<'a>(u: &'a mut [f32], bias: &'a [f32], x0: &'a [f32], x: &'a [f32], out: &'a mut [f32]) {
        let width = bias.len();
        let rows = u.chunks_exact_mut(width).zip(x0.chunks_exact(width)).zip(x.chunks_exact(width));
        for (((u, x0), x), out) in rows.zip(out.chunks_exact_mut(width)) {
            for ((((u, &bias), &x0), &x), out) in u.iter_mut().zip(bias).zip(x0).zip(x).zip(out) {
                *u += bias;
                *out = x0 * *u + x;
            }
        }
    }
}

kernel! {
    /// Backward of `cross`, before its product: `dx0 += g * u`, then `u = g * x0` (the product's gradient), and
    /// `bias_grad += sum of u's rows`. `g` is the gradient of `out`; it is also the gradient of `x`.
    fn cross_backward<'a>(g: &'a [f32], u: &'a mut [f32], x0: &'a [f32], dx0: &'a mut [f32], bias_grad: &'a mut [f32]) {
        let width = bias_grad.len();
        let rows = g.chunks_exact(width).zip(u.chunks_exact_mut(width)).zip(x0.chunks_exact(width));
        for (((g, u), x0), dx0) in rows.zip(dx0.chunks_exact_mut(width)) {
            for ((((&g, u), &x0), dx0), sum) in g.iter().zip(u).zip(x0).zip(dx0).zip(bias_grad.iter_mut()) {
                *dx0 += g * *u;
                *u = g * x0;
                *sum += *u;
            }
        }
    }
}

kernel! {
    /// Adds the first `width` columns of two matrices (rows `from_width` apart) to `to`, or sets it if not `add`.
    fn add_columns<'a>(to: &'a mut [f32], width: usize, a: &'a [f32], b: &'a [f32], from_width: usize, add: bool) {
        let rows = to.chunks_exact_mut(width).zip(a.chunks_exact(from_width)).zip(b.chunks_exact(from_width));
        for ((to, a), b) in rows {
            for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
                *to = if add { *to } else { 0.0 } + (a + b);
            }
        }
    }
}

kernel! {
    /// `to += from`.
    fn add<'a>(to: &'a mut [f32], from: &'a [f32]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

kernel! {
    /// Whether no number is NaN or infinite.
    fn all_finite<'a>(numbers: &'a [f32]) -> bool {
        const INFINITE: u32 = 0x7f80_0000;
        numbers.iter().fold(0u32, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)) < INFINITE
    }
}

kernel! {
    /// One optimizer step over a range of parameters; see [`crate::DenseOptimizer`].
    fn optimize<'a>(optimizer: &'a crate::DenseOptimizer, step: u64, params: &'a mut [f32], grads: &'a [f32],
                    first: &'a mut [f32], second: &'a mut [f32]) {
        optimizer.update(step, params, grads, first, second);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fm_agrees_with_the_double_loop(slots in 1usize..6, dim in 1usize..20, rows in 1usize..4, pad in 0usize..3,
                                          seed in 0u32..1000) {
            let width = slots * dim + pad;
            let x: Vec<f32> =
                (0..(rows * width) as u32).map(|i| ((i + seed).wrapping_mul(40_503) % 1000) as f32 / 500.0 - 1.0).collect();
            let (mut logits, mut derivatives) = (vec![0.5f32; rows], vec![9.0f32; rows * slots * dim]);
            fm(&x, width, slots, &mut vec![7.0; dim], &mut logits, &mut derivatives);
            for r in 0..rows {
                let v = |slot: usize, f: usize| f64::from(x[r * width + slot * dim + f]);
                let mut pairs = 0.5f64;
                for i in 0..slots {
                    for j in i + 1..slots {
                        pairs += (0..dim).map(|f| v(i, f) * v(j, f)).sum::<f64>();
                    }
                }
                prop_assert!((f64::from(logits[r]) - pairs).abs() < 1e-4, "{} {}", logits[r], pairs);
                for i in 0..slots {
                    for f in 0..dim {
                        let derivative: f64 = (0..slots).filter(|&j| j != i).map(|j| v(j, f)).sum();
                        prop_assert!((f64::from(derivatives[(r * slots + i) * dim + f]) - derivative).abs() < 1e-5);
                    }
                }
            }
        }

        #[test]
        fn dot_agrees_with_a_plain_sum(length in 0usize..100) {
            let a: Vec<f32> = (0..length).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..length).map(|i| (i % 5) as f32 - 2.0).collect();
            prop_assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>());
            prop_assert_eq!(sum(&a), a.iter().sum::<f32>());
        }
    }

    #[test]
    fn relu_keeps_nan_and_its_gradient_at_zero_is_zero() {
        let mut y = [-2.0, 0.5, f32::NAN, 1.0];
        bias_relu(&mut y, &[1.0, 1.0]);
        assert_eq!(y[..2], [0.0, 1.5]);
        assert!(y[2].is_nan());
        let (mut delta, mut sums) = ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0]);
        relu_backward(&mut delta, &[0.0, 1.0, 2.0, 0.0], &mut sums);
        assert_eq!(delta, [0.0, 2.0, 3.0, 0.0]);
        assert_eq!(sums, [13.0, 22.0]);
    }

    #[test]
    fn a_bad_number_is_found_at_any_index() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..70 {
                let mut numbers = [f32::MAX; 70];
                assert!(all_finite(&numbers));
                numbers[at] = bad;
                assert!(!all_finite(&numbers));
            }
        }
        assert!(all_finite(&[]));
    }
}
