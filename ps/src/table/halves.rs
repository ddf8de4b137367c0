//! Weights in two bytes each: f16, rounded to nearest.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The largest weight.
pub(crate) const LARGEST: f32 = 65504.0;

/// Copies the weights of a row, whose first words are these, to `out`.
#[inline(always)]
pub(super) fn read(words: &[f32], out: &mut [f32]) {
    as_halves(words)[..out.len()].convert_to_f32_slice(out);
}

/// Rounds `weights` into the words of a row, those beyond the largest to that. Returns how many these were.
#[inline(always)]
pub(super) fn write(weights: &mut [f32], words: &mut [f32]) -> u64 {
    let mut saturated = 0;
    for w in &mut *weights {
        saturated += u64::from(w.abs() > LARGEST);
        *w = w.clamp(-LARGEST, LARGEST);
    }
    as_halves_mut(words)[..weights.len()].convert_from_f32_slice(weights);
    saturated
}

/// Floats seen as pairs of f16.
#[inline(always)]
fn as_halves(words: &[f32]) -> &[f16] {
    // SAFETY: f16 is a transparent u16: smaller alignment, half the size, every bit pattern valid.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 2) }
}

/// Floats seen as pairs of f16.
#[inline(always)]
fn as_halves_mut(words: &mut [f32]) -> &mut [f16] {
    // SAFETY: as for `as_halves`; every pair of bit patterns is a valid f32, too.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}
