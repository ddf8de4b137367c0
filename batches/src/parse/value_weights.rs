//! Parses the weights of a slot's values: a column beside the slot's column, with a number for each value.

use arrow::array::{Array, ArrayRef, ListArray};
use arrow::datatypes::DataType;
use forebay_actors::{Fault, counted};
use forebay_job::Slot;

use super::bad_rows::BadRows;
use super::column::{lists, shown};
use super::label::numbers;
use crate::flow::SlotKeys;

const ANOTHER_NUMBER: &str = "weights of another number than values";
const BAD_WEIGHT: &str = "weight of a value is not a number from 0 to 1e30";

/// Weights from 1e-30 to 1e30 can be added up, and a mean divided by their sum, in `f32`. Smaller ones are 0.
const MOST: f64 = 1e30;
const LEAST: f64 = 1e-30;

/// The places of each row's values in a column of lists, or of single values.
enum Rows {
    Lists(ListArray),
    Single(ArrayRef),
}

impl Rows {
    fn of(name: &str, array: &ArrayRef) -> Result<Self, Fault> {
        Ok(lists(name, array)?.map_or_else(|| Self::Single(array.clone()), Self::Lists))
    }

    /// The first place and the number of the values of a row. Arrow allows a null list to have values; they do not count.
    fn values(&self, row: usize) -> (usize, usize) {
        match self {
            Self::Lists(lists) if lists.is_null(row) => (0, 0),
            Self::Lists(lists) => (lists.value_offsets()[row] as usize, lists.value_length(row) as usize),
            Self::Single(_) => (row, 1),
        }
    }
}

/// The keys of `slot` with their weights. `keys` are the used keys of `array`: of the first or the last values of each list. The weights of
/// other values are not used. A row is bad if it has another number of weights than values, or a weight that is missing, negative, NaN or
/// above 1e30.
pub(super) fn weighted(
    slot: &Slot,
    keys: SlotKeys,
    array: &ArrayRef,
    column: &ArrayRef,
    bad: &mut BadRows,
) -> Result<SlotKeys, Fault> {
    let name = slot.weights.as_deref().unwrap_or_default();
    let (values, rows) = (Rows::of(&slot.column, array)?, Rows::of(name, column)?);
    let inner = match &rows {
        Rows::Lists(lists) => lists.values(),
        Rows::Single(array) => array,
    };
    let found = match inner.data_type() {
        DataType::Null => vec![0.0; inner.len()],
        _ => numbers(name, inner, "numbers, for the weights of the values of a slot")?,
    };
    // An array of the type null has no bitmap of nulls.
    let missing = |at: usize| *inner.data_type() == DataType::Null || inner.is_null(at);
    let (mut offsets, mut weights) = (Vec::with_capacity(array.len() + 1), Vec::with_capacity(found.len()));
    offsets.push(0);
    for row in 0..array.len() {
        let ((_, count), (begin, mut weighted)) = (values.values(row), rows.values(row));
        // A row without values needs no weight, even if the column has one weight for each row.
        if count != 1 && matches!(rows, Rows::Single(_)) && missing(row) {
            weighted = 0;
        }
        let kept = slot.kept_of(count);
        let end = weights.len() + keys.keys(row, row + 1).len();
        if count == weighted {
            for at in kept {
                let weight = found[begin + at];
                if missing(begin + at) || !(0.0..=MOST).contains(&weight) {
                    bad.add(row, BAD_WEIGHT, || {
                        let found = match missing(begin + at) {
                            true => "no value".to_owned(),
                            false => shown(weight),
                        };
                        format!("column `{name}` has {found} at place {at}, expected a number from 0 to 1e30")
                    });
                    break;
                }
                weights.push(if weight < LEAST { 0.0 } else { weight as f32 });
            }
        } else {
            bad.add(row, ANOTHER_NUMBER, || {
                format!(
                    "column `{name}` has {}, expected {count}: a weight for each value of `{}`",
                    counted(weighted, "value"),
                    slot.column
                )
            });
        }
        // The weights of a bad row are meaningless.
        weights.resize(end, 0.0);
        offsets.push(end as u32);
    }
    let keys = match keys {
        SlotKeys::One(keys) | SlotKeys::Many { keys, .. } | SlotKeys::Weighted { keys, .. } => keys,
        SlotKeys::Integers(integers) => integers.keys().to_vec(),
    };
    Ok(SlotKeys::Weighted { offsets, keys, weights })
}
