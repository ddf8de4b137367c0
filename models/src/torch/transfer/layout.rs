//! The place of each number of a batch in the words to upload and to download.
//!
//! Each section begins at a multiple of 256 bytes, as libtorch's own tensors do, for kernels that read whole cache lines.

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use crate::DenseBatch;

/// Sections begin at multiples of this number of words.
pub(super) const ALIGN: usize = 64;

/// The sections to upload.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UploadLayout {
    pub(super) labels: Range<usize>,
    pub(super) weights: Option<Range<usize>>,
    pub(super) dense: Range<usize>,
    pub(super) unique_rows: Range<usize>,
    pub(super) values: Range<usize>,
    pub(super) offsets: Option<Range<usize>>,
    pub(super) value_weights: Option<Range<usize>>,
    /// The dense parameters to compute with, instead of the model's own.
    pub(super) params: Option<Range<usize>>,
    pub(super) words: usize,
}

/// The sections to download.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DownloadLayout {
    pub(super) logits: Range<usize>,
    pub(super) row_grads: Range<usize>,
    /// Two findings: of the parameters before the step, and of their gradient.
    pub(super) findings: Range<usize>,
    pub(super) dense_grads: Option<Range<usize>>,
    pub(super) words: usize,
}

/// Places sections one after the other.
#[derive(Default)]
struct LayoutBuilder(usize);

impl LayoutBuilder {
    fn section(&mut self, len: usize) -> Range<usize> {
        let start = self.0.next_multiple_of(ALIGN);
        self.0 = start + len;
        start..self.0
    }
}

impl UploadLayout {
    /// For a batch that passed its check.
    pub(super) fn of(batch: &DenseBatch<'_>, params: Option<&[f32]>) -> UploadLayout {
        let mut builder = LayoutBuilder::default();
        UploadLayout {
            labels: builder.section(batch.labels.len()),
            weights: batch.weights.map(|weights| builder.section(weights.len())),
            dense: builder.section(batch.dense.len()),
            unique_rows: builder.section(batch.unique_rows.len()),
            values: builder.section(batch.inverse.len()),
            offsets: batch.offsets.map(|offsets| builder.section(offsets.len())),
            value_weights: batch.value_weights.map(|weights| builder.section(weights.len())),
            params: params.map(|params| builder.section(params.len())),
            words: builder.0,
        }
    }

    /// Writes the batch into `words`.
    pub(super) fn pack(&self, batch: &DenseBatch<'_>, params: Option<&[f32]>, words: &mut [i32]) {
        put(&mut words[self.labels.clone()], batch.labels, |x| x.to_bits() as i32);
        if let (Some(at), Some(weights)) = (&self.weights, batch.weights) {
            put(&mut words[at.clone()], weights, |x| x.to_bits() as i32);
        }
        put(&mut words[self.dense.clone()], batch.dense, |x| x.to_bits() as i32);
        put(&mut words[self.unique_rows.clone()], batch.unique_rows, |x| x.to_bits() as i32);
        put(&mut words[self.values.clone()], batch.inverse, |x| x as i32);
        if let (Some(at), Some(offsets)) = (&self.offsets, batch.offsets) {
            put(&mut words[at.clone()], offsets, |x| x as i32);
        }
        if let (Some(at), Some(weights)) = (&self.value_weights, batch.value_weights) {
            put(&mut words[at.clone()], weights, |x| x.to_bits() as i32);
        }
        if let (Some(at), Some(params)) = (&self.params, params) {
            put(&mut words[at.clone()], params, |x| x.to_bits() as i32);
        }
    }
}

/// The closure keeps the bits, so this compiles to one copy.
fn put<T: Copy>(words: &mut [i32], numbers: &[T], word: impl Fn(T) -> i32) {
    for (place, &number) in words.iter_mut().zip(numbers) {
        *place = word(number);
    }
}

impl DownloadLayout {
    /// The results of a batch of these sections.
    pub(super) fn of(upload: &UploadLayout) -> DownloadLayout {
        let mut builder = LayoutBuilder::default();
        DownloadLayout {
            logits: builder.section(upload.labels.len()),
            row_grads: builder.section(upload.unique_rows.len()),
            findings: builder.section(2 * FINDING),
            dense_grads: upload.params.as_ref().map(|params| builder.section(params.len())),
            words: builder.0,
        }
    }
}

/// A section as floats, over the same memory.
pub(super) fn floats(words: &Tensor, at: &Range<usize>) -> Result<Tensor, TchError> {
    indices(words, at)?.f_view_dtype(Kind::Float)
}

/// A section as indices, over the same memory.
pub(super) fn indices(words: &Tensor, at: &Range<usize>) -> Result<Tensor, TchError> {
    words.f_narrow(0, at.start as i64, at.len() as i64)
}

/// Copies a downloaded section of floats.
pub(super) fn take(words: &[i32], at: &Range<usize>, out: &mut Vec<f32>) {
    out.clear();
    out.extend(words[at.clone()].iter().map(|&word| f32::from_bits(word as u32)));
}

/// Words of a finding, the first number of a flat tensor that is not finite: a mark, 0.0 or NaN, and an index.
pub(super) const FINDING: usize = 2;

/// Two kernels over `flat`, and two that write `at` (which is not its own length if `flat` is empty).
pub(super) fn find_non_finite(flat: &Tensor, words: &Tensor, at: usize) -> Result<(), TchError> {
    if flat.numel() == 0 {
        return indices(words, &(at..at + FINDING))?.f_zero_().map(drop);
    }
    // Zero times a finite number is a zero of either sign, otherwise NaN; and the largest of zeros and NaNs is the first NaN.
    let (mark, place) = flat.f_mul_scalar(0.0)?.f_max_dim(0, false)?;
    floats(words, &(at..at + 1))?.f_copy_(&mark.f_view(1)?)?;
    indices(words, &(at + 1..at + FINDING))?.f_copy_(&place.f_view(1)?)
}

/// The finding of [`find_non_finite`].
pub(super) fn found(words: &[i32], at: usize) -> Option<usize> {
    f32::from_bits(words[at] as u32).is_nan().then_some(words[at + 1] as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_is_packed_into_its_section(
            labels in prop::collection::vec(any::<f32>(), 0..200),
            weights in prop::option::of(prop::collection::vec(any::<f32>(), 0..200)),
            dense in prop::collection::vec(any::<f32>(), 0..200),
            unique_rows in prop::collection::vec(any::<f32>(), 0..200),
            inverse in prop::collection::vec(any::<u32>(), 0..200),
            offsets in prop::option::of(prop::collection::vec(any::<u32>(), 0..200)),
            value_weights in prop::option::of(prop::collection::vec(any::<f32>(), 0..200)),
            params in prop::option::of(prop::collection::vec(any::<f32>(), 0..200)),
        ) {
            let batch = DenseBatch {
                id: 0,
                rows: labels.len(),
                labels: &labels,
                weights: weights.as_deref(),
                dense: &dense,
                unique_rows: &unique_rows,
                inverse: &inverse,
                offsets: offsets.as_deref(),
                value_weights: value_weights.as_deref(),
            };
            let upload = UploadLayout::of(&batch, params.as_deref());
            let mut words = vec![-1; upload.words];
            upload.pack(&batch, params.as_deref(), &mut words);
            let of_floats = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits() as i32).collect::<Vec<_>>();
            let of_indices = |numbers: &[u32]| numbers.iter().map(|&x| x as i32).collect::<Vec<_>>();
            let sections = [
                (Some(upload.labels), Some(of_floats(&labels))),
                (upload.weights, weights.as_deref().map(of_floats)),
                (Some(upload.dense), Some(of_floats(&dense))),
                (Some(upload.unique_rows), Some(of_floats(&unique_rows))),
                (Some(upload.values), Some(of_indices(&inverse))),
                (upload.offsets, offsets.as_deref().map(of_indices)),
                (upload.value_weights, value_weights.as_deref().map(of_floats)),
                (upload.params, params.as_deref().map(of_floats)),
            ];
            let mut end = 0;
            for (at, numbers) in sections {
                prop_assert_eq!(at.is_some(), numbers.is_some());
                let (Some(at), Some(numbers)) = (at, numbers) else { continue };
                prop_assert!(at.start >= end && at.start % ALIGN == 0 && at.start < end + ALIGN);
                end = at.end;
                prop_assert_eq!(&words[at], &numbers[..]);
            }
            prop_assert_eq!(end, upload.words);
        }

        #[test]
        fn the_first_number_that_is_not_finite_is_found(
            mut numbers in prop::collection::vec(-1e38f32..1e38, 0..300),
            bad in prop::collection::vec((any::<prop::sample::Index>(), 0..3usize), 0..3),
        ) {
            if !numbers.is_empty() {
                for (at, which) in bad {
                    *at.get_mut(&mut numbers) = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][which];
                }
            }
            let words = Tensor::f_full([8], 7, (Kind::Int, tch::Device::Cpu)).unwrap();
            find_non_finite(&Tensor::from_slice(&numbers), &words, 3).unwrap();
            let words = Vec::<i32>::try_from(words).unwrap();
            prop_assert_eq!(found(&words, 3), numbers.iter().position(|x| !x.is_finite()));
            prop_assert_eq!((words[2], words[5]), (7, 7), "nothing beside it is written");
        }
    }
}
