//! Matrix products on the tile unit of x86 processors (AMX), which multiplies bf16 numbers and adds up in f32.
//!
//! Each number `x` is split into two bf16 numbers: the sum `x0 + x1` differs from `x` by at most 2^-17 of `x`. A product is the sum of `a0
//! b0`, `a0 b1` and `a1 b0`: the "high" precision of PyTorch's `set_float32_matmul_precision`, known as bf16x3 (Henry, Tang and Heinecke,
//! "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", ARITH 2019). In a cycle the unit makes 16
//! times as many products as a vector unit; with three products for one the gain is about 5.

mod panel;
mod unit;

use std::cell::Cell;
use std::slice::ChunksExact;

use rayon::prelude::*;

use self::panel::{LINES, TILES, Tile, blocks, pack_left, pack_right};
use self::unit::TileUnit;
pub(super) use self::unit::is_available;
use super::matrix::MatrixView;

/// Panels of the left factor that are packed at once: with the panels of the right factor they stay in a core's second cache.
const LEFT_PANELS: usize = 4;
/// For shorter sums and fewer numbers in the product, packing takes more time than the unit saves.
const LEAST_SUM: usize = 32;
/// See [`LEAST_SUM`]: numbers in the product per packed number.
const LEAST_USES: usize = 48;

thread_local! {
    /// The packed factors of this thread's last product, left and right.
    static PACKED: [Cell<Vec<Tile>>; 2] = const { [Cell::new(Vec::new()), Cell::new(Vec::new())] };
}

/// Whether [`matmul`] can make this product, and is faster than others.
pub(super) fn supports(a: MatrixView<'_>, b: MatrixView<'_>) -> bool {
    a.cols >= LEAST_SUM && a.rows * b.cols >= LEAST_USES * (a.rows + b.cols) && is_available()
}

/// Whether [`PackedRight`] can be this factor, and is faster than others.
pub(super) fn supports_right(b: MatrixView<'_>) -> bool {
    b.rows >= LEAST_SUM && b.cols >= LEAST_USES && is_available()
}

/// As `gemm::matmul`, which has checked the sizes, for products that this machine [`suits`]. The order of the sums
/// depends on the sizes only.
pub(super) fn matmul(out: &mut [f32], width: usize, a: MatrixView<'_>, b: MatrixView<'_>, add: bool, threads: usize) {
    with_buffer(1, panels(b) * blocks(b.rows) * TILES, |right| {
        pack(right, b, threads);
        multiply(out, width, a, (right, b.cols), add, threads);
    });
}

/// The right factor of many products.
#[derive(Default)]
pub(super) struct PackedRight {
    panels: Vec<Tile>,
    rows: usize,
    cols: usize,
}

impl PackedRight {
    /// Takes another factor, which this machine [`supports_right`].
    pub(super) fn pack(&mut self, b: MatrixView<'_>) {
        self.panels.resize(panels(b) * blocks(b.rows) * TILES, Tile::default());
        pack(&mut self.panels, b, 1);
        (self.rows, self.cols) = (b.rows, b.cols);
    }

    /// As `gemm::matmul`, with the first `cols` columns of this factor and any number of rows.
    pub(super) fn matmul(
        &self,
        out: &mut [f32],
        (width, cols): (usize, usize),
        a: MatrixView<'_>,
        add: bool,
        threads: usize,
    ) {
        assert!(a.cols == self.rows && cols <= self.cols, "sizes agree");
        multiply(out, width, a, (&self.panels, cols), add, threads);
    }
}

/// The panels of a right factor.
fn panels(b: MatrixView<'_>) -> usize {
    b.cols.div_ceil(LINES)
}

fn pack(right: &mut [Tile], b: MatrixView<'_>, threads: usize) {
    let pack = |(i, panel): (usize, &mut [Tile])| {
        // SAFETY: the machine has AVX-512, because it has the tile unit.
        unsafe { pack_right(b, i * LINES, panel) }
    };
    let panel = blocks(b.rows) * TILES;
    if threads > 1 {
        right.par_chunks_exact_mut(panel).enumerate().for_each(pack);
    } else {
        right.chunks_exact_mut(panel).enumerate().for_each(pack);
    }
}

/// The product of `a` with a right factor, given as its panels and its columns.
fn multiply(
    out: &mut [f32],
    width: usize,
    a: MatrixView<'_>,
    (right, cols): (&[Tile], usize),
    add: bool,
    threads: usize,
) {
    let panel = blocks(a.cols) * TILES;
    let rows = LINES * a.rows.div_ceil(LINES * threads.max(1)).clamp(1, LEFT_PANELS);
    let multiply = |(i, out): (usize, &mut [f32])| {
        let (first, own) = (i * rows, rows.min(a.rows - i * rows));
        with_buffer(0, own.div_ceil(LINES) * panel, |left| {
            // SAFETY: the machine has AVX-512, because it has the tile unit.
            unsafe { pack_left(a, first, left) };
            multiply_panels(out, width, [own, cols], [left, right].map(|panels| panels.chunks_exact(panel)), add);
        });
    };
    let parts = a.rows.div_ceil(rows);
    if threads > 1 {
        out.par_chunks_mut(rows * width).take(parts).enumerate().for_each(multiply);
    } else {
        out.chunks_mut(rows * width).take(parts).enumerate().for_each(multiply);
    }
}

/// Calls `with` with a number of tiles of this thread, which hold anything.
fn with_buffer(number: usize, tiles: usize, with: impl FnOnce(&mut [Tile])) {
    // The buffer is taken out, because a thread that waits for others may begin another product.
    let mut buffer = PACKED.with(|packed| packed[number].take());
    if buffer.len() < tiles {
        buffer.resize(tiles, Tile::default());
    }
    with(&mut buffer[..tiles]);
    PACKED.with(|packed| packed[number].set(buffer));
}

/// All products of a panel of the left factor with one of the first `cols` columns of the right factor.
fn multiply_panels(
    out: &mut [f32],
    width: usize,
    [rows, cols]: [usize; 2],
    [left, right]: [ChunksExact<'_, Tile>; 2],
    add: bool,
) {
    let unit = TileUnit::new().expect("a machine that suits");
    for (j, b) in right.take(cols.div_ceil(LINES)).enumerate() {
        for (i, a) in left.clone().enumerate() {
            let (row, col) = (i * LINES, j * LINES);
            let out = &mut out[row * width + col..];
            let (rows, cols) = (LINES.min(rows - row), LINES.min(cols - col));
            if (rows, cols) == (LINES, LINES) {
                unit.multiply(out, width, a, b, add);
                continue;
            }
            // Behind the last row or column there is no room for the product.
            let mut whole = [0.0; LINES * LINES];
            for (row, whole) in out.chunks(width).zip(whole.chunks_exact_mut(LINES)).take(rows) {
                whole[..cols].copy_from_slice(&row[..cols]);
            }
            unit.multiply(&mut whole, LINES, a, b, add);
            for (row, whole) in out.chunks_mut(width).zip(whole.chunks_exact(LINES)).take(rows) {
                row[..cols].copy_from_slice(&whole[..cols]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{SplitMix64, signed_unit_f32};
    use proptest::prelude::*;

    use super::*;

    /// As many numbers, of sizes that differ by up to 2^10.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        (0..count).map(|_| signed_unit_f32(random.next_u64()) * (1 << (random.next_u64() % 11)) as f32).collect()
    }

    /// The factors `[m x k]` and `[k x n]` in rows that are `pad` longer, transposed if `t`.
    fn views<'a>(a: &'a [f32], b: &'a [f32], [m, k, n]: [usize; 3], pad: usize, t: [bool; 2]) -> [MatrixView<'a>; 2] {
        let left = if t[0] { MatrixView::new(a, k, m, m + pad).t() } else { MatrixView::new(a, m, k, k + pad) };
        let right = if t[1] { MatrixView::new(b, n, k, k + pad).t() } else { MatrixView::new(b, k, n, n + pad) };
        [left, right]
    }

    fn at(of: MatrixView<'_>, row: usize, col: usize) -> f64 {
        f64::from(of.data[row * of.row_stride + col * of.col_stride])
    }

    proptest! {
        #[test]
        // Both factors are off by up to 2^-17 of them, and the product of their second parts, up to 2^-16, is left out.
        fn each_number_is_near_the_sum_in_f64(m in 1usize..200, k in 1usize..100, n in 1usize..100, pad in 0usize..5, t: [bool; 2],
                                              add: bool, seed: u64) {
            if !is_available() {
                return Ok(());
            }
            let (a, b) = (numbers((m + pad) * (k + pad), seed), numbers((k + pad) * (n + pad), seed ^ 1));
            let [left, right] = views(&a, &b, [m, k, n], pad, t);
            let before = numbers(m * (n + pad), seed ^ 2);
            // The last row ends with its last number.
            let mut out = before[..m * (n + pad) - pad].to_vec();
            matmul(&mut out, n + pad, left, right, add, 1);
            for (at_out, (&got, &before)) in out.iter().zip(&before).enumerate() {
                let (row, col) = (at_out / (n + pad), at_out % (n + pad));
                if col >= n {
                    prop_assert_eq!(got.to_bits(), before.to_bits(), "between the rows");
                    continue;
                }
                let start = if add { f64::from(before) } else { 0.0 };
                let (mut sum, mut size) = (start, start.abs());
                for l in 0..k {
                    let product = at(left, row, l) * at(right, l, col);
                    (sum, size) = (sum + product, size + product.abs());
                }
                prop_assert!((f64::from(got) - sum).abs() <= size / f64::from(1 << 15), "{} at {}, {}: {}", got, row, col, sum);
            }
        }
    }

    #[test]
    fn products_of_small_integers_are_exact_on_any_number_of_threads() {
        if !is_available() {
            return;
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (m, k, n) in [(1, 1, 1), (32, 32, 32), (33, 65, 31), (300, 40, 70)] {
            let integers = |count: usize| -> Vec<f32> { (0..count).map(|i| (i * 7 % 31) as f32 - 15.0).collect() };
            let (a, b) = (integers(m * k), integers(k * n));
            let [left, right] = views(&a, &b, [m, k, n], 0, [false; 2]);
            let expected: Vec<f32> = (0..m * n)
                .map(|i| (0..k).map(|l| at(left, i / n, l) * at(right, l, i % n)).sum::<f64>() as f32)
                .collect();
            for threads in [1, 2, 3] {
                let mut out = vec![f32::NAN; m * n];
                pool.install(|| matmul(&mut out, n, left, right, false, threads));
                assert_eq!(out, expected, "{m} x {k} x {n} on {threads} threads");
            }
        }
    }

    #[test]
    fn what_is_no_finite_number_stays_so() {
        if !is_available() {
            return;
        }
        for wrong in
            [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff), f32::INFINITY, f32::NEG_INFINITY]
        {
            let (mut a, b) = (vec![1.0; 32 * 32], vec![1.0; 32 * 32]);
            a[5 * 32 + 7] = wrong;
            for t in [[false; 2], [true; 2]] {
                let [left, right] = views(&a, &b, [32; 3], 0, t);
                let mut out = vec![0.0; 32 * 32];
                matmul(&mut out, 32, left, right, false, 1);
                assert_eq!(out.iter().filter(|x| !x.is_finite()).count(), 32, "{wrong}");
            }
        }
    }
}
