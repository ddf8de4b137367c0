//! Matrix products. Only this file calls the `gemm` crate, and checks the bounds that it relies on.

use gemm::Parallelism;

use super::amx;
use super::matrix::{MatrixView, reach};
use crate::MatmulPrecision;

/// How products are made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Products {
    /// Threads of the caller's rayon pool that share a product; with up to 1, the caller's thread alone makes it.
    pub(super) threads: usize,
    pub(super) precision: MatmulPrecision,
}

/// `out = a * b`, or `out += a * b` if `add`; `out` is row-major `[a.rows x b.cols]`, its rows `width` apart.
///
/// The order of the sums depends on the sizes, the precision and the machine's instruction set only: threads divide the numbers of `out`,
/// not the sum of one number.
pub(super) fn matmul(
    out: &mut [f32],
    width: usize,
    a: MatrixView<'_>,
    b: MatrixView<'_>,
    add: bool,
    products: Products,
) {
    assert_eq!(a.cols, b.rows, "inner sizes agree");
    assert!(b.cols <= width && reach(a.rows, b.cols, width, 1) <= out.len(), "product fits its slice");
    let Products { threads, precision } = products;
    if precision == MatmulPrecision::High && amx::supports(a, b) {
        return amx::matmul(out, width, a, b, add, threads);
    }
    let signed = |stride: usize| stride as isize;
    // SAFETY: the pointers come from live slices, and every element that the sizes and strides reach lies within them:
    // `MatrixView::new` checked it for both factors, the assertion above for `out`. `out` is borrowed mutably, so it overlaps
    // neither. No beta is read unless `add`.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out.as_mut_ptr(),
            1,
            signed(width),
            add,
            a.data.as_ptr(),
            signed(a.col_stride),
            signed(a.row_stride),
            b.data.as_ptr(),
            signed(b.col_stride),
            signed(b.row_stride),
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None },
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRECISIONS: [MatmulPrecision; 2] = [MatmulPrecision::High, MatmulPrecision::Highest];

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        (0..count as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ salt) % 17) as f32 - 8.0).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_three_loops(m in 1usize..40, k in 0usize..40, n in 1usize..40, pad in 0usize..5,
                                   ta: bool, tb: bool, add: bool) {
            let a = numbers((m + pad) * (k + pad), 1);
            let b = numbers((k + pad) * (n + pad), 2);
            let mut out = numbers(m * (n + pad), 3);
            let left = if ta { MatrixView::new(&a, k, m, m + pad).t() } else { MatrixView::new(&a, m, k, k + pad) };
            let right = if tb { MatrixView::new(&b, n, k, k + pad).t() } else { MatrixView::new(&b, k, n, n + pad) };
            let mut expected = out.clone();
            for i in 0..m {
                for j in 0..n {
                    let at = i * (n + pad) + j;
                    let start = if add { expected[at] } else { 0.0 };
                    expected[at] = (0..k).fold(start, |sum, l| {
                        sum + a[if ta { l * (m + pad) + i } else { i * (k + pad) + l }]
                            * b[if tb { j * (k + pad) + l } else { l * (n + pad) + j }]
                    });
                }
            }
            matmul(&mut out, n + pad, left, right, add, Products::default());
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
        let random = |count: u32, salt: u32| -> Vec<f32> {
            (0..count).map(|i| (i.wrapping_mul(2_654_435_761) ^ salt).wrapping_mul(40_503) as f32 / 7e8 - 3.0).collect()
        };
        let sizes = [(256, 429, 400), (400, 256, 429), (131, 300, 77), (64, 1100, 65)];
        for ((m, k, n), precision) in sizes.into_iter().flat_map(|sizes| PRECISIONS.map(|precision| (sizes, precision)))
        {
            let (a, b) = (random((m * k) as u32, 1), random((k * n) as u32, 2));
            let (left, right) = (MatrixView::new(&a, m, k, k), MatrixView::new(&b, k, n, n));
            let (right_of_t, left_of_t) = (MatrixView::new(&b, n, k, k).t(), MatrixView::new(&a, k, m, m).t());
            for (left, right) in [(left, right), (left, right_of_t), (left_of_t, right)] {
                let product = |threads| {
                    let mut out = random((m * n) as u32, 3);
                    let products = Products { threads, precision };
                    pool.install(|| matmul(&mut out, n, left, right, true, products));
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let alone = product(1);
                for threads in [2, 3, 5, 16] {
                    assert!(product(threads) == alone, "{precision:?}: {m} x {k} x {n} on {threads} threads");
                }
            }
        }
    }
}
