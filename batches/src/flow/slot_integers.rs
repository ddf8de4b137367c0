//! The integers of a slot before they are hashed. Most integers occur many times in a batch, so `batch` finds equal ones first and hashes
//! each of them once.

use std::ops::Range;
use std::sync::OnceLock;

use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;
use forebay_ps::SlotHasher;

use super::heap;
use crate::nullable::extend_or;

/// The integers of one slot, one for each row. The first use of the keys computes them.
#[derive(Clone, Debug)]
pub struct SlotIntegers {
    values: IntegerValues,
    /// Which values are present. `None`: all of them.
    present: Option<NullBuffer>,
    hasher: SlotHasher,
    keys: OnceLock<Vec<u64>>,
}

/// Integers as they were decoded.
#[derive(Clone, Debug)]
pub(crate) enum IntegerValues {
    Int32(ScalarBuffer<i32>),
    Int64(ScalarBuffer<i64>),
}

impl IntegerValues {
    pub(crate) fn of_32_bits(values: &ScalarBuffer<i32>) -> Self {
        Self::Int32(held_alone(values))
    }

    pub(crate) fn of_64_bits(values: &ScalarBuffer<i64>) -> Self {
        Self::Int64(held_alone(values))
    }
}

/// The same values. Copies them if they are less than half of their buffer, because a view keeps the whole buffer in memory.
fn held_alone<T: ArrowNativeType>(values: &ScalarBuffer<T>) -> ScalarBuffer<T> {
    if values.inner().capacity() > 2 * heap(values) { values.to_vec().into() } else { values.clone() }
}

impl SlotIntegers {
    /// Integers with the keys of `hasher`. A value that is not `present` is missing.
    pub(crate) fn new(values: IntegerValues, present: Option<&NullBuffer>, hasher: SlotHasher) -> Self {
        let present = present.filter(|present| present.null_count() > 0).cloned();
        Self { values, present, hasher, keys: OnceLock::new() }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match &self.values {
            IntegerValues::Int32(values) => values.len(),
            IntegerValues::Int64(values) => values.len(),
        }
    }

    /// The keys of all rows, `[n]`. The first call computes them.
    pub fn keys(&self) -> &[u64] {
        let present = self.present.as_ref();
        self.keys.get_or_init(|| match &self.values {
            IntegerValues::Int32(values) => hashed(&self.hasher, values, present, i64::from),
            IntegerValues::Int64(values) => hashed(&self.hasher, values, present, |value| value),
        })
    }

    /// The hasher of the keys.
    pub(crate) fn hasher(&self) -> SlotHasher {
        self.hasher
    }

    /// The least and the greatest integer of some rows; the number in place of a missing integer counts, too. `None` without rows.
    pub(crate) fn bounds(&self, rows: Range<usize>) -> Option<(i64, i64)> {
        match &self.values {
            IntegerValues::Int32(values) => bounds(&values[rows]).map(|(least, most)| (least.into(), most.into())),
            IntegerValues::Int64(values) => bounds(&values[rows]),
        }
    }

    /// Appends the integers of some rows, and `missing` for a missing one.
    pub(crate) fn append_integers(&self, rows: Range<usize>, missing: i64, out: &mut Vec<u64>) {
        let present = self.present_in(&rows);
        match &self.values {
            IntegerValues::Int32(values) => {
                extend_or(out, &values[rows], present.as_ref(), missing as u64, |value| i64::from(value) as u64);
            }
            IntegerValues::Int64(values) => {
                extend_or(out, &values[rows], present.as_ref(), missing as u64, |value| value as u64)
            }
        }
    }

    /// Appends the difference of each integer of some rows from `least`, in 32 bits, and `missing` for a missing one.
    pub(crate) fn append_numbers(&self, rows: Range<usize>, least: i64, missing: u32, out: &mut Vec<u32>) {
        let present = self.present_in(&rows);
        match &self.values {
            IntegerValues::Int32(values) => {
                // The lower 32 bits of a difference need only the lower bits of both integers.
                let least = least as i32;
                extend_or(out, &values[rows], present.as_ref(), missing, |value| value.wrapping_sub(least) as u32);
            }
            IntegerValues::Int64(values) => {
                extend_or(out, &values[rows], present.as_ref(), missing, |value| value.wrapping_sub(least) as u32);
            }
        }
    }

    /// The rows with these numbers.
    pub(crate) fn select(&self, rows: &[u32]) -> Self {
        fn take<T: ArrowNativeType>(values: &[T], rows: &[u32]) -> ScalarBuffer<T> {
            rows.iter().map(|&row| values[row as usize]).collect()
        }
        let values = match &self.values {
            IntegerValues::Int32(values) => IntegerValues::Int32(take(values, rows)),
            IntegerValues::Int64(values) => IntegerValues::Int64(take(values, rows)),
        };
        let of_rows =
            |present: &NullBuffer| -> Vec<bool> { rows.iter().map(|&row| present.is_valid(row as usize)).collect() };
        let present = self.present.as_ref().map(|present| NullBuffer::from(of_rows(present)));
        Self::new(values, present.as_ref(), self.hasher)
    }

    pub(super) fn bytes(&self) -> usize {
        let values = match &self.values {
            IntegerValues::Int32(values) => heap(values),
            IntegerValues::Int64(values) => heap(values),
        };
        values + self.keys.get().map_or(0, |keys| heap(keys))
    }

    fn present_in(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        self.present.as_ref().map(|present| present.slice(rows.start, rows.len()))
    }
}

/// Integers are equal if their keys are.
impl PartialEq for SlotIntegers {
    fn eq(&self, other: &Self) -> bool {
        self.keys() == other.keys()
    }
}

/// The keys of integers of any width; a value that is not `present` has the key of a missing one.
pub(crate) fn hashed<T: Copy>(
    hasher: &SlotHasher,
    values: &[T],
    present: Option<&NullBuffer>,
    integer: impl Fn(T) -> i64,
) -> Vec<u64> {
    match present {
        None => hasher.ints(values, integer),
        Some(present) => hasher.ints_or_missing(values, present.inner().bit_chunks().iter_padded(), integer),
    }
}

fn bounds<T: Copy + Ord>(values: &[T]) -> Option<(T, T)> {
    let first = *values.first()?;
    Some(values.iter().fold((first, first), |(least, most), &value| (least.min(value), most.max(value))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Int32Array, Int64Array};
    use proptest::prelude::*;

    use super::*;

    fn of_32_bits(array: &Int32Array, hasher: SlotHasher) -> SlotIntegers {
        SlotIntegers::new(IntegerValues::of_32_bits(array.values()), array.nulls(), hasher)
    }

    fn of_64_bits(array: &Int64Array, hasher: SlotHasher) -> SlotIntegers {
        SlotIntegers::new(IntegerValues::of_64_bits(array.values()), array.nulls(), hasher)
    }

    proptest! {
        #[test]
        fn integers_of_both_widths_agree_with_each_row(
            values in prop::collection::vec(prop::option::of(any::<i32>()), 1..200), cut in (0_usize..200, 0_usize..200),
            chosen in prop::collection::vec(0_u32..200, 0..20),
        ) {
            let hasher = SlotHasher::new("c", 3);
            let narrow = of_32_bits(&Int32Array::from(values.clone()), hasher);
            let wide = of_64_bits(&values.iter().map(|value| value.map(i64::from)).collect(), hasher);
            let key = |value: &Option<i32>| value.map_or(hasher.missing(), |value| hasher.int(value.into()));
            let keys: Vec<u64> = values.iter().map(key).collect();
            let rows = cut.0.min(cut.1).min(values.len())..cut.0.max(cut.1).min(values.len());
            let least = -5;
            for integers in [narrow, wide] {
                prop_assert_eq!(integers.rows(), values.len());
                prop_assert_eq!(integers.keys(), &keys);
                let (mut each, mut numbers) = (Vec::new(), Vec::new());
                integers.append_integers(rows.clone(), 77, &mut each);
                integers.append_numbers(rows.clone(), least, 9, &mut numbers);
                for (i, value) in values[rows.clone()].iter().enumerate() {
                    prop_assert_eq!(each[i], value.map_or(77, i64::from) as u64);
                    prop_assert_eq!(numbers[i], value.map_or(9, |value| (i64::from(value) - least) as u32));
                }
                prop_assert_eq!((each.len(), numbers.len()), (rows.len(), rows.len()));
                prop_assert_eq!(integers.bounds(rows.clone()).is_none(), rows.is_empty());
                if let Some((least, most)) = integers.bounds(rows.clone()) {
                    let within = |&value: &i32| (least..=most).contains(&i64::from(value));
                    prop_assert!(values[rows.clone()].iter().flatten().all(within));
                }
                let chosen: Vec<u32> = chosen.iter().map(|&row| row % values.len() as u32).collect();
                let expected: Vec<u64> = chosen.iter().map(|&row| keys[row as usize]).collect();
                let selected = integers.select(&chosen);
                prop_assert_eq!(selected.keys(), &expected);
            }
        }
    }
}
