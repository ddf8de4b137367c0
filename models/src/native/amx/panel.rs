//! A factor of a product in the order in which the tile unit reads it, split into bf16 numbers.
//!
//! A *line* is a row of the left factor or a column of the right one; the sum of a product runs along the lines. A panel has 32 lines, cut
//! into blocks of 32 numbers along the sum. A block is four tiles: the first parts of lines 0 to 15, the first parts of lines 16 to 31, and
//! the second parts of both. A number of a tile is a pair: place `i` of the block in its lower half, and place `i + 16` in its upper half.
//! The pairs of a line lie in a row of a tile of the left factor, and in a column of a tile of the right factor.

use std::arch::x86_64::*;

use crate::native::matrix::MatrixView;

/// Rows and columns of a tile.
pub(super) const SIDE: usize = 16;
/// Lines of a panel, and numbers of a block along the sum.
pub(super) const LINES: usize = 2 * SIDE;
/// Tiles of a block.
pub(super) const TILES: usize = 4;

/// The contents of a register of the unit: 16 rows of 16 pairs of bf16 numbers.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Tile([[u32; SIDE]; SIDE]);

/// A number of vectors that are the rows of a square.
type Square = [__m512; SIDE];

/// The blocks of each panel.
pub(super) fn blocks(sum: usize) -> usize {
    sum.div_ceil(LINES)
}

/// Writes panels of the left factor, from row `first` on; behind its last row and its last column there are zeros.
#[target_feature(enable = "avx512f")]
pub(super) fn pack_left(a: MatrixView<'_>, first: usize, panels: &mut [Tile]) {
    for (panel, tiles) in panels.chunks_exact_mut(blocks(a.cols) * TILES).enumerate() {
        for (block, tiles) in tiles.chunks_exact_mut(TILES).enumerate() {
            for half in 0..2 {
                let (row, col) = (first + panel * LINES + half * SIDE, block * LINES);
                split(square(a, row, col), square(a, row, col + SIDE), tiles, half);
            }
        }
    }
}

/// Writes panels of the right factor, from column `first` on; behind its last row and its last column there are zeros.
#[target_feature(enable = "avx512f")]
pub(super) fn pack_right(b: MatrixView<'_>, first: usize, panels: &mut [Tile]) {
    for (panel, tiles) in panels.chunks_exact_mut(blocks(b.rows) * TILES).enumerate() {
        for (block, tiles) in tiles.chunks_exact_mut(TILES).enumerate() {
            for half in 0..2 {
                let (row, col) = (block * LINES, first + panel * LINES + half * SIDE);
                split(square(b, row, col), square(b, row + SIDE, col), tiles, half);
            }
        }
    }
}

/// Both parts of the pairs of two squares, to the tiles of half of the lines.
#[target_feature(enable = "avx512f")]
#[inline]
fn split(low: Square, high: Square, tiles: &mut [Tile], half: usize) {
    for (row, (low, high)) in low.into_iter().zip(high).enumerate() {
        let (low0, low1) = parts(low);
        let (high0, high1) = parts(high);
        store(&mut tiles[half].0[row], pairs(low0, high0));
        store(&mut tiles[2 + half].0[row], pairs(round(low1), round(high1)));
    }
}

/// Splits each number: the nearest number of 8 bits (Veltkamp's splitting: Dekker, "A floating-point technique for extending the available
/// precision", 1971), and the rest. Not a number if it is 2^111 or more.
#[target_feature(enable = "avx512f")]
#[inline]
fn parts(x: __m512) -> (__m512, __m512) {
    let far = _mm512_mul_ps(x, _mm512_set1_ps(65537.0));
    let near = _mm512_sub_ps(far, _mm512_sub_ps(far, x));
    (near, _mm512_sub_ps(x, near))
}

/// Rounds so that the upper halves alone are the nearest bf16 numbers.
#[target_feature(enable = "avx512f")]
#[inline]
fn round(x: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)))
}

/// The upper halves of two vectors of numbers.
#[target_feature(enable = "avx512f")]
#[inline]
fn pairs(low: __m512, high: __m512) -> __m512i {
    let (low, high) = (_mm512_srli_epi32::<16>(_mm512_castps_si512(low)), _mm512_castps_si512(high));
    _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(to: &mut [u32; SIDE], pairs: __m512i) {
    // SAFETY: `to` is as long as the vector.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) }
}

/// 16 x 16 numbers from `(row, col)` on, and zeros where the matrix ends.
#[target_feature(enable = "avx512f")]
#[inline]
fn square(of: MatrixView<'_>, row: usize, col: usize) -> Square {
    let (rows, cols) = (of.rows.saturating_sub(row), of.cols.saturating_sub(col));
    if of.col_stride == 1 {
        vectors(of.data, row * of.row_stride + col, of.row_stride, rows, cols)
    } else {
        transpose(vectors(of.data, row + col * of.col_stride, of.col_stride, cols, rows))
    }
}

/// 16 vectors that begin `stride` apart, or zeros from vector `count` on; of each only the first `len` numbers are read.
#[target_feature(enable = "avx512f")]
#[inline]
fn vectors(data: &[f32], at: usize, stride: usize, count: usize, len: usize) -> Square {
    let mut square = [_mm512_setzero_ps(); SIDE];
    let (count, len) = (count.min(SIDE), len.min(SIDE));
    if count == 0 || len == 0 {
        return square;
    }
    let data = &data[at..at + (count - 1) * stride + len];
    let mask = ((1u32 << len) - 1) as __mmask16;
    for (i, vector) in square.iter_mut().take(count).enumerate() {
        // SAFETY: the vector's `len` numbers lie in `data`, whose length was checked above; no other numbers are read.
        *vector = unsafe { _mm512_maskz_loadu_ps(mask, data.as_ptr().add(i * stride)) };
    }
    square
}

#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(rows: Square) -> Square {
    let low = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    let high = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    let (mut from, mut to) = (rows, rows);
    // Within each quarter of the vectors: pairs of numbers, then pairs of these.
    for i in (0..SIDE).step_by(2) {
        to[i] = _mm512_unpacklo_ps(from[i], from[i + 1]);
        to[i + 1] = _mm512_unpackhi_ps(from[i], from[i + 1]);
    }
    for i in (0..SIDE).step_by(4) {
        from[i] = low(to[i], to[i + 2]);
        from[i + 1] = high(to[i], to[i + 2]);
        from[i + 2] = low(to[i + 1], to[i + 3]);
        from[i + 3] = high(to[i + 1], to[i + 3]);
    }
    // Then whole quarters.
    for i in [0, 1, 2, 3, 8, 9, 10, 11] {
        to[i] = _mm512_shuffle_f32x4::<0x88>(from[i], from[i + 4]);
        to[i + 4] = _mm512_shuffle_f32x4::<0xdd>(from[i], from[i + 4]);
    }
    for i in 0..8 {
        from[i] = _mm512_shuffle_f32x4::<0x88>(to[i], to[i + 8]);
        from[i + 8] = _mm512_shuffle_f32x4::<0xdd>(to[i], to[i + 8]);
    }
    from
}
