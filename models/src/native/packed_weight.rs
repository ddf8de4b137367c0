//! The weight of a layer in the order in which a product reads it, packed once for many products.
//!
//! `gemm` packs the weight again for each product, which takes a seventh of the time for 100 rows. A product of a packed weight has the
//! bits of [`matmul`](super::gemm::matmul): each sum is one chain of fused multiply-adds, from the first input to the last.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// `gemm` adds up this many products in one chain on every machine. It cuts longer chains by the sizes of the caches.
const LONGEST_CHAIN: usize = 512;
/// Rows of `x` that a tile multiplies: with four vectors of outputs, their sums take 24 of 32 registers.
const TILE_ROWS: usize = 6;
/// Inputs that are compared at once.
const LANES: usize = 16;
/// Numbers of a cache line. A vector that lies in two lines is slower to load.
const LINE: usize = 16;

/// Unrolls a loop over the numbers from 0 to `count`. In a loop, the compiler would keep the sums in memory instead of registers.
macro_rules! each {
    ($at:ident of $count:ident in $($number:literal)*, $do:expr) => {
        $(if $number < $count {
            let $at = $number;
            $do;
        })*
    };
}

/// A weight `[outputs x inputs]` in panels, each of up to four vectors of outputs.
pub(super) struct PackedWeight {
    inputs: usize,
    outputs: usize,
    vectors: Vectors,
    /// From `start` on, for each panel `[inputs x vectors x lanes]`; behind the last output there are zeros.
    values: Vec<f32>,
    start: usize,
}

/// The vectors of this machine.
#[derive(Clone, Copy)]
struct Vectors {
    /// Numbers in a vector.
    lanes: usize,
    /// The most numbers of a panel.
    panel: usize,
}

impl Vectors {
    /// `None` on a machine without fused multiply-add, and on an architecture whose bits were not compared with `gemm`.
    fn new() -> Option<Self> {
        match Arch::new() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(_) => Some(Self { lanes: 16, panel: 4 }),
            #[cfg(target_arch = "x86_64")]
            Arch::V3(_) => Some(Self { lanes: 8, panel: 2 }),
            #[allow(unreachable_patterns, reason = "depends on the target")]
            _ => None,
        }
    }
}

impl PackedWeight {
    /// `None` if [`matmul`](super::gemm::matmul) has other bits for such a weight.
    pub(super) fn new(weight: &[f32], inputs: usize) -> Option<Self> {
        Self::of(Vectors::new()?, weight, inputs)
    }

    fn of(vectors: Vectors, weight: &[f32], inputs: usize) -> Option<Self> {
        let outputs = weight.len() / inputs.max(1);
        // For shorter sums, and for a single output, `gemm` has other kernels.
        if !(3..=LONGEST_CHAIN).contains(&inputs) || outputs < 2 {
            return None;
        }
        let lanes = vectors.lanes;
        let mut values = vec![0.0; outputs.div_ceil(lanes) * lanes * inputs + LINE];
        let start = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut packed = Self { inputs, outputs, vectors, values: Vec::new(), start };
        let (mut rest, mut rows) = (&mut values[start..], weight.chunks_exact(inputs));
        for width in packed.panels() {
            let (panel, behind) = rest.split_at_mut(inputs * width * lanes);
            for (output, row) in rows.by_ref().take(width * lanes).enumerate() {
                for (value, to) in row.iter().zip(panel[output..].iter_mut().step_by(width * lanes)) {
                    *to = *value;
                }
            }
            rest = behind;
        }
        packed.values = values;
        Some(packed)
    }

    /// The vectors of each panel, as equal as possible: a tile with few sums waits for the latency of each multiply-add.
    fn panels(&self) -> impl Iterator<Item = usize> + use<> {
        let vectors = self.outputs.div_ceil(self.vectors.lanes);
        let panels = vectors.div_ceil(self.vectors.panel);
        (0..panels).map(move |panel| vectors / panels + usize::from(panel < vectors % panels))
    }

    /// `out = x * weight`, transposed: `x` is `[rows x inputs]`, `out` becomes `[rows x outputs]`.
    pub(super) fn multiply(&self, out: &mut [f32], x: &[f32]) {
        Arch::new().dispatch(self.product(out, x));
    }

    fn product<'a>(&'a self, out: &'a mut [f32], x: &'a [f32]) -> Product<'a> {
        let rows = out.len() / self.outputs;
        assert!(rows * self.outputs == out.len() && rows * self.inputs <= x.len(), "rows are whole");
        let x = &x[..rows * self.inputs];
        Product { weight: self, out, x, same: same_inputs(x, self.inputs) }
    }
}

/// The number of inputs at the front whose bits are the same in all rows, rounded down to whole [`LANES`]. If the rows are the candidates
/// of one user, these are the inputs of the user.
fn same_inputs(x: &[f32], inputs: usize) -> usize {
    let mut rows = x.chunks_exact(inputs).map(|row| row.as_chunks::<LANES>().0);
    let first = rows.next().unwrap_or_default();
    let mut same = first.len();
    for row in rows {
        let differ = |(a, b): (&[f32; LANES], &[f32; LANES])| {
            a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a.to_bits() ^ b.to_bits())) != 0
        };
        same = first[..same].iter().zip(row).position(differ).unwrap_or(same);
        if same == 0 {
            break;
        }
    }
    same * LANES
}

struct Product<'a> {
    weight: &'a PackedWeight,
    out: &'a mut [f32],
    x: &'a [f32],
    /// The number of inputs at the front that are the same in all rows.
    same: usize,
}

impl WithSimd for Product<'_> {
    type Output = ();

    /// Panel after panel: one stays in the second cache while all rows are multiplied with it.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        if self.x.is_empty() {
            return;
        }
        let (mut rest, mut first) = (&self.weight.values[self.weight.start..], 0);
        for width in self.weight.panels() {
            let (panel, behind) = rest.split_at(self.weight.inputs * width * S::F32_LANES);
            let panel = S::as_simd_f32s(panel).0;
            match width {
                4 => self.panel::<S, 4>(simd, panel, first),
                3 => self.panel::<S, 3>(simd, panel, first),
                2 => self.panel::<S, 2>(simd, panel, first),
                _ => self.panel::<S, 1>(simd, panel, first),
            }
            (rest, first) = (behind, first + width * S::F32_LANES);
        }
    }
}

impl Product<'_> {
    /// The outputs of a panel, from output `first` on, for all rows.
    #[inline(always)]
    fn panel<S: Simd, const VECTORS: usize>(&mut self, simd: S, panel: &[S::f32s], first: usize) {
        let (inputs, outputs) = (self.weight.inputs, self.weight.outputs);
        let own = first..(first + VECTORS * S::F32_LANES).min(outputs);
        let (same, others) = panel.as_chunks::<VECTORS>().0.split_at(self.same);
        // The inputs that all rows share are multiplied once, and the chain of each row continues from there.
        let [begin] = tile::<S, VECTORS, 1>(simd, same, [&self.x[..self.same]], [simd.splat_f32s(0.0); VECTORS]);
        let x = self.x.chunks(inputs * TILE_ROWS);
        for (x, out) in x.zip(self.out.chunks_mut(outputs * TILE_ROWS)) {
            macro_rules! rows {
                ($($rows:literal)*) => {
                    match x.len() / inputs {
                        $($rows => {
                            let mut of = [x; $rows];
                            for (row, of) in of.iter_mut().enumerate() {
                                *of = &x[row * inputs + self.same..(row + 1) * inputs];
                            }
                            let sums = tile::<S, VECTORS, $rows>(simd, others, of, begin);
                            store(simd, sums, out, outputs, own.clone());
                        })*
                        _ => unreachable!("a tile has at most six rows"),
                    }
                };
            }
            rows!(6 5 4 3 2 1);
        }
    }
}

/// For each row `begin + x * columns`; `columns` are the weights of a panel by each input of `x`.
#[inline(always)]
fn tile<S: Simd, const VECTORS: usize, const ROWS: usize>(
    simd: S,
    columns: &[[S::f32s; VECTORS]],
    mut x: [&[f32]; ROWS],
    begin: [S::f32s; VECTORS],
) -> [[S::f32s; VECTORS]; ROWS] {
    for x in &mut x {
        *x = &x[..columns.len()];
    }
    let mut sums = [begin; ROWS];
    for (input, column) in columns.iter().enumerate() {
        each!(row of ROWS in 0 1 2 3 4 5, {
            let x = simd.splat_f32s(x[row][input]);
            each!(vector of VECTORS in 0 1 2 3, {
                sums[row][vector] = simd.mul_add_f32s(x, column[vector], sums[row][vector]);
            });
        });
    }
    sums
}

/// Writes the sums of a panel to the columns `own` of `out`, whose rows are `outputs` apart. The last panel has more sums than columns.
#[inline(always)]
fn store<S: Simd, const VECTORS: usize, const ROWS: usize>(
    simd: S,
    sums: [[S::f32s; VECTORS]; ROWS],
    out: &mut [f32],
    outputs: usize,
    own: Range<usize>,
) {
    each!(row of ROWS in 0 1 2 3 4 5, {
        let (whole, rest) = S::as_mut_simd_f32s(&mut out[row * outputs..][own.clone()]);
        let count = whole.len();
        each!(vector of VECTORS in 0 1 2 3, match whole.get_mut(vector) {
            Some(whole) => *whole = sums[row][vector],
            None if vector == count => simd.partial_store_f32s(rest, sums[row][vector]),
            None => {}
        });
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::gemm::{Products, matmul};
    use super::super::matrix::MatrixView;
    use super::*;

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        let mix = |i: u32| (i.wrapping_mul(2_654_435_761) ^ salt).wrapping_mul(40_503) as f32;
        (0..count as u32).map(|i| mix(i) / 7e8 - 3.0).collect()
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }

    /// By `matmul`, with so many rows that the order of its sums does not depend on them.
    fn plain(x: &[f32], weight: &[f32], rows: usize, inputs: usize, outputs: usize) -> Vec<f32> {
        let most = rows.max(129);
        let x = [x, &vec![0.0; (most - rows) * inputs]].concat();
        let mut out = vec![0.0; most * outputs];
        let weight = MatrixView::new(weight, outputs, inputs, inputs).t();
        matmul(&mut out, outputs, MatrixView::new(&x, most, inputs, inputs), weight, false, Products::default());
        out.truncate(rows * outputs);
        out
    }

    proptest! {
        #[test]
        fn a_packed_weight_has_the_bits_of_the_plain_product(
            rows in 1usize..30, inputs in 1usize..530, outputs in 1usize..150, same in 0usize..530, salt: u32,
        ) {
            let (mut x, weight) = (numbers(rows * inputs, salt), numbers(inputs * outputs, !salt));
            let (first, others) = x.split_at_mut(inputs);
            for row in others.chunks_exact_mut(inputs) {
                let same = same.min(inputs);
                row[..same].copy_from_slice(&first[..same]);
            }
            let Some(packed) = PackedWeight::new(&weight, inputs) else { return Ok(()) };
            let expected = bits(&plain(&x, &weight, rows, inputs, outputs));
            let mut out = vec![f32::NAN; rows * outputs];
            packed.multiply(&mut out, &x);
            prop_assert_eq!(bits(&out), &*expected);
            // The vectors of a machine without AVX-512.
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V3::try_new() {
                let packed = PackedWeight::of(Vectors { lanes: 8, panel: 2 }, &weight, inputs).unwrap();
                out.fill(f32::NAN);
                Simd::vectorize(simd, packed.product(&mut out, &x));
                prop_assert_eq!(bits(&out), &*expected);
            }
        }
    }

    #[test]
    fn inputs_are_the_same_if_their_bits_are() {
        let mut x = vec![1.5; 3 * 40];
        assert_eq!(same_inputs(&x, 40), 32, "in steps of 16");
        x[40 + 17] = 2.0;
        assert_eq!(same_inputs(&x, 40), 16);
        (x[0], x[40], x[80]) = (0.0, 0.0, -0.0);
        assert_eq!(same_inputs(&x, 40), 0);
        assert_eq!(same_inputs(&x[..40], 40), 32);
    }

    #[test]
    fn a_weight_that_gemm_would_sum_in_parts_is_not_packed() {
        assert!(PackedWeight::new(&vec![1.0; 513 * 4], 513).is_none());
        assert!(PackedWeight::new(&[1.0; 40], 40).is_none(), "one output");
        assert!(PackedWeight::new(&[], 0).is_none());
    }

    #[test]
    #[should_panic(expected = "rows are whole")]
    fn an_output_that_has_no_whole_rows_is_refused() {
        match PackedWeight::new(&[1.0; 40], 10) {
            Some(packed) => packed.multiply(&mut [0.0; 7], &[0.0; 20]),
            None => panic!("this machine packs nothing; rows are whole"),
        }
    }
}
