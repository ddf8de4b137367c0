//! Columns with missing values, without a branch for each value.

use std::hint::select_unpredictable;

use arrow::buffer::NullBuffer;

/// Appends `converted` of each value, and `missing` for a value that is not `present`. `converted` is also called with the number in place
/// of a missing value.
pub(crate) fn extend_or<T: Copy, U: Copy>(
    out: &mut Vec<U>,
    values: &[T],
    present: Option<&NullBuffer>,
    missing: U,
    converted: impl Fn(T) -> U,
) {
    let Some(present) = present else { return out.extend(values.iter().map(|&value| converted(value))) };
    // No branch depends on whether a value is missing: it would be mispredicted in columns with many missing values.
    for (values, present) in values.chunks(64).zip(present.inner().bit_chunks().iter_padded()) {
        let value = |(i, &value)| select_unpredictable(present >> i & 1 == 1, converted(value), missing);
        out.extend(values.iter().enumerate().map(value));
    }
}
