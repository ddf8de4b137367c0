//! Turns categorical values into keys: hashes of (key space, value).
//!
//! Each value of a dictionary column is hashed once. The batches of a row group share a dictionary, so its keys are kept
//! until the dictionary changes.

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float64Type, Int32Type, Int64Type, UInt32Type, UInt64Type};
use forebay_actors::Fault;
use forebay_base::parse_hex;
use forebay_job::{Columns, Padding, Slot, SlotKind};
use forebay_ps::SlotHasher;

use super::bad_rows::{BadRows, WrongValue, WrongValues};
use super::calendar::CalendarPart;
use super::column::{Wanted, lists, number_in, wrong_items, wrong_type};
use super::moments::{MomentColumn, moments};
use super::value_weights;
use crate::flow::{IntegerValues, SlotIntegers, SlotKeys, hashed};
use crate::nullable::extend_or;

const NOT_HEX: &str = "category is not hexadecimal";

pub(super) struct SlotParser {
    slot: Slot,
    /// For the kind `boundaries`.
    boundaries: Vec<f64>,
    hasher: SlotHasher,
    /// The keys of the values that fill lists up.
    padding: Vec<u64>,
    /// Whether integers stay as they are, so that `batch` hashes them.
    hashes_late: bool,
    /// Whether the column has lists, for faults.
    has_lists: bool,
    dictionary: Option<Dictionary>,
}

/// The last dictionary of a column.
struct Dictionary {
    values: ArrayRef,
    /// The key of each value; 0 for a bad one.
    keys: Vec<u64>,
    /// Whether each value is bad; empty if none is.
    bad: Vec<bool>,
}

impl SlotParser {
    pub(super) fn new(slot: &Slot, columns: &Columns, seed: u64) -> Self {
        let hasher = SlotHasher::new(slot.key_space(), seed);
        let boundaries = columns.boundaries_of(slot).to_vec();
        let padding =
            slot.padding.as_ref().map_or_else(Vec::new, |padding| keys_of_padding(padding, slot.kind, &hasher));
        Self { slot: slot.clone(), boundaries, hasher, padding, hashes_late: false, has_lists: false, dictionary: None }
    }

    /// Leaves integers as they are: `batch` computes their keys. Keys in buckets, and keys with weights, are computed here.
    pub(super) fn hash_late(&mut self) {
        self.hashes_late = self.slot.buckets.is_none()
            && self.slot.weights.is_none()
            && matches!(self.slot.kind, SlotKind::Auto | SlotKind::Int | SlotKind::Hex);
    }

    /// The keys of `array`, and their weights if the slot has some, from the column `weights`.
    pub(super) fn parse(
        &mut self,
        name: &str,
        array: &ArrayRef,
        weights: Option<&ArrayRef>,
        bad: &mut BadRows,
    ) -> Result<SlotKeys, Fault> {
        let mut keys = self.all(name, array, bad)?;
        if let Some(buckets) = self.slot.buckets {
            into_buckets(keys.all_mut(), &self.hasher, buckets);
        }
        match weights {
            None => Ok(keys),
            Some(weights) => value_weights::weighted(&self.slot, keys, array, weights, bad),
        }
    }

    fn all(&mut self, name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<SlotKeys, Fault> {
        if let Some(integers) = self.integers(array) {
            return Ok(SlotKeys::Integers(integers));
        }
        if let Some(list) = lists(name, array)? {
            self.has_lists = true;
            return self.many(name, list.offsets(), list.values(), &list, bad);
        }
        let mut wrong = Vec::new();
        let keys = self.keys(name, array, &mut wrong)?;
        for (row, value) in wrong {
            bad.add_wrong(row, value);
        }
        Ok(SlotKeys::One(keys))
    }

    /// The integers of `array`, if their keys are computed later.
    fn integers(&self, array: &ArrayRef) -> Option<SlotIntegers> {
        let values = match array.data_type() {
            _ if !self.hashes_late => return None,
            DataType::Int32 => IntegerValues::of_32_bits(array.as_primitive::<Int32Type>().values()),
            DataType::Int64 => IntegerValues::of_64_bits(array.as_primitive::<Int64Type>().values()),
            _ => return None,
        };
        Some(SlotIntegers::new(values, array.nulls(), self.hasher))
    }

    fn many(
        &mut self,
        name: &str,
        ends: &OffsetBuffer<i32>,
        values: &ArrayRef,
        list: &dyn Array,
        bad: &mut BadRows,
    ) -> Result<SlotKeys, Fault> {
        let (from, to) = (ends[0] as usize, ends[ends.len() - 1] as usize);
        let mut wrong = Vec::new();
        let mut all = self.keys(name, &values.slice(from, to - from), &mut wrong)?;
        let mut ends: Vec<u32> = ends.iter().map(|&end| end as u32 - from as u32).collect();
        if !self.padding.is_empty() {
            self.leave_padding_out(&mut ends, &mut all, &mut wrong);
        }
        let kept = |row: usize| {
            let (first, end) = (ends[row] as usize, ends[row + 1] as usize);
            let kept = self.slot.kept_of(end - first);
            first + kept.start..first + kept.end
        };
        for (at, value) in wrong {
            let row = ends.partition_point(|&end| end as usize <= at) - 1;
            if kept(row).contains(&at) {
                bad.add_wrong(row, value);
            }
        }
        if list.null_count() == 0 && self.slot.first.is_none() && self.slot.last.is_none() {
            return Ok(SlotKeys::Many { offsets: ends, keys: all });
        }
        let mut offsets = Vec::with_capacity(ends.len());
        let mut keys = Vec::with_capacity(all.len());
        offsets.push(0);
        for row in 0..ends.len() - 1 {
            // Arrow allows a null list to have values; they are skipped.
            if !list.is_null(row) {
                keys.extend_from_slice(&all[kept(row)]);
            }
            offsets.push(keys.len() as u32);
        }
        Ok(SlotKeys::Many { offsets, keys })
    }

    /// Leaves the padding out of the keys of lists that end at `ends`, and moves the places of wrong values.
    fn leave_padding_out(&self, ends: &mut [u32], keys: &mut Vec<u64>, wrong: &mut WrongValues) {
        let is_padding = |key: &u64| self.padding.contains(key);
        let padding: Vec<usize> = (0..keys.len()).filter(|&at| is_padding(&keys[at])).collect();
        let before = |at: usize| padding.partition_point(|&place| place < at);
        ends.iter_mut().for_each(|end| *end -= before(*end as usize) as u32);
        wrong.iter_mut().for_each(|(at, _)| *at -= before(*at));
        keys.retain(|key| !is_padding(key));
    }

    /// The key of each value. Values that do not fit the slot's kind are added to `wrong`, with their index.
    fn keys(&mut self, name: &str, array: &ArrayRef, wrong: &mut WrongValues) -> Result<Vec<u64>, Fault> {
        let expected = match self.slot.kind {
            SlotKind::Auto => Wanted::Slot("integers, strings, booleans, dates or timestamps"),
            SlotKind::Int => Wanted::Slot("integers, booleans, dates or timestamps"),
            SlotKind::Hex => Wanted::Slot("hexadecimal strings or integers"),
            SlotKind::String => Wanted::Slot("strings"),
            SlotKind::LogBucket | SlotKind::Boundaries => Wanted::Other("numbers"),
            SlotKind::Hour => return self.calendar(CalendarPart::Hour, name, array, wrong),
            SlotKind::Weekday => return self.calendar(CalendarPart::Weekday, name, array, wrong),
        };
        let strings_fit = matches!(self.slot.kind, SlotKind::Auto | SlotKind::Hex | SlotKind::String);
        let integers_fit = matches!(self.slot.kind, SlotKind::Auto | SlotKind::Int | SlotKind::Hex);
        let cannot = |e| Fault::user(format!("column `{name}` cannot be read")).because(e);
        let recast = |to: &DataType| cast(array, to).map_err(cannot);
        match array.data_type() {
            kind if matches!(self.slot.kind, SlotKind::LogBucket | SlotKind::Boundaries)
                && (kind.is_integer() || kind.is_floating() || kind.is_decimal()) =>
            {
                let numbers = recast(&DataType::Float64)?;
                let numbers = numbers.as_primitive::<Float64Type>();
                Ok(match self.slot.kind {
                    SlotKind::LogBucket => self.cut(numbers, log_bucket),
                    _ => {
                        let boundaries: Vec<f64> = self.boundaries.iter().map(|&b| number_in(kind, b)).collect();
                        self.cut(numbers, |x| boundaries.partition_point(|&boundary| boundary <= x) as i64)
                    }
                })
            }
            // A column that all files lack.
            DataType::Null => Ok(vec![self.hasher.missing(); array.len()]),
            DataType::Int32 if integers_fit => Ok(self.numbers(array.as_primitive::<Int32Type>(), i64::from)),
            DataType::Int64 if integers_fit => Ok(self.numbers(array.as_primitive::<Int64Type>(), |v| v)),
            DataType::UInt32 if integers_fit => Ok(self.numbers(array.as_primitive::<UInt32Type>(), i64::from)),
            DataType::UInt64 if integers_fit => Ok(self.numbers(array.as_primitive::<UInt64Type>(), |v| v as i64)),
            kind if kind.is_integer() && integers_fit => self.keys(name, &recast(&DataType::Int64)?, wrong),
            DataType::Boolean if self.slot.kind != SlotKind::Hex && integers_fit => {
                self.keys(name, &recast(&DataType::Int64)?, wrong)
            }
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
                if self.slot.kind != SlotKind::Hex && integers_fit =>
            {
                self.keys(name, &moments(array).map_err(cannot)?, wrong)
            }
            DataType::Utf8 if strings_fit => {
                Ok(self.strings(name, array.as_string::<i32>().iter().map(|v| v.map(str::as_bytes)), wrong))
            }
            DataType::LargeUtf8 | DataType::Utf8View if strings_fit => {
                self.keys(name, &recast(&DataType::Utf8)?, wrong)
            }
            // Hive, Impala and old Spark write strings as binary without the string annotation.
            DataType::Binary if strings_fit => Ok(self.strings(name, array.as_binary::<i32>().iter(), wrong)),
            DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) if strings_fit => {
                self.keys(name, &recast(&DataType::Binary)?, wrong)
            }
            DataType::Dictionary(index, value) => match (index.as_ref(), value.as_ref()) {
                (DataType::Int32, _) => self.dictionary(name, array, wrong),
                (_, value) => {
                    let to = DataType::Dictionary(Box::new(DataType::Int32), Box::new(value.clone()));
                    self.dictionary(name, &recast(&to)?, wrong)
                }
            },
            _ if self.has_lists => Err(wrong_items(name, array, expected)),
            _ => Err(wrong_type(name, array, expected)),
        }
    }

    /// The keys of parts of moments. Values that are no moments are added to `wrong`.
    fn calendar(
        &self,
        part: CalendarPart,
        name: &str,
        array: &ArrayRef,
        wrong: &mut WrongValues,
    ) -> Result<Vec<u64>, Fault> {
        let (unit, shift) = (self.slot.unit, self.slot.utc_offset_microseconds());
        let column = MomentColumn { name, array, unit, field: "unit", takes_nan: true, shift };
        let parts = part.parse(column, wrong)?;
        Ok(self.numbers(&parts, |v| v))
    }

    /// The keys of numbers, which `cut` converts to integers. NaN is a missing value.
    fn cut(&self, array: &PrimitiveArray<Float64Type>, cut: impl Fn(f64) -> i64) -> Vec<u64> {
        if array.values().iter().any(|value| value.is_nan()) {
            let numbers = array.iter().map(|value| value.filter(|value| !value.is_nan()));
            return self.numbers(&numbers.collect::<PrimitiveArray<Float64Type>>(), cut);
        }
        self.numbers(array, cut)
    }

    fn numbers<T: ArrowPrimitiveType>(
        &self,
        array: &PrimitiveArray<T>,
        integer: impl Fn(T::Native) -> i64,
    ) -> Vec<u64> {
        hashed(&self.hasher, array.values(), array.nulls(), integer)
    }

    fn strings<'a>(
        &self,
        name: &str,
        values: impl ExactSizeIterator<Item = Option<&'a [u8]>>,
        wrong: &mut WrongValues,
    ) -> Vec<u64> {
        let mut keys = Vec::with_capacity(values.len());
        for (row, value) in values.enumerate() {
            keys.push(match value {
                None => self.hasher.missing(),
                Some(text) if self.slot.kind != SlotKind::Hex => self.hasher.bytes(text),
                Some([]) => self.hasher.missing(),
                Some(text) => match parse_hex(text) {
                    Some(value) => self.hasher.int(value as i64),
                    None => {
                        wrong.push((row, not_hex(name, &String::from_utf8_lossy(text))));
                        0
                    }
                },
            });
        }
        keys
    }

    fn dictionary(&mut self, name: &str, array: &ArrayRef, wrong: &mut WrongValues) -> Result<Vec<u64>, Fault> {
        let dictionary = array.as_dictionary::<Int32Type>();
        let values = dictionary.values();
        let known = self.dictionary.take().filter(|known| known.values.to_data().ptr_eq(&values.to_data()));
        let known = match known {
            Some(known) => known,
            None => self.known(name, values)?,
        };
        let (indices, missing) = (dictionary.keys(), self.hasher.missing());
        let mut keys = Vec::with_capacity(array.len());
        // The index of a missing value may be any number.
        let key = |index: i32| known.keys.get(index as usize).copied().unwrap_or(missing);
        extend_or(&mut keys, indices.values(), indices.nulls(), missing, key);
        if !known.bad.is_empty() {
            let bad = indices.iter().enumerate().filter_map(|(row, index)| Some((row, index? as usize)));
            let texts = cast(values, &DataType::Binary);
            let texts = texts.map_err(|e| Fault::user(format!("column `{name}` cannot be read")).because(e))?;
            let text = |index| String::from_utf8_lossy(texts.as_binary::<i32>().value(index));
            let bad = bad.filter(|&(_, index)| known.bad[index]);
            wrong.extend(bad.map(|(row, index)| (row, not_hex(name, &text(index)))));
        }
        self.dictionary = Some(known);
        Ok(keys)
    }

    /// The keys of a dictionary.
    fn known(&mut self, name: &str, values: &ArrayRef) -> Result<Dictionary, Fault> {
        let mut wrong = Vec::new();
        let mut keys = self.keys(name, values, &mut wrong)?;
        let mut bad = vec![false; if wrong.is_empty() { 0 } else { keys.len() }];
        for (at, _) in wrong {
            (keys[at], bad[at]) = (0, true);
        }
        Ok(Dictionary { values: values.clone(), keys, bad })
    }
}

/// The keys that a padding has in lists of integers and in lists of strings.
fn keys_of_padding(padding: &Padding, kind: SlotKind, hasher: &SlotHasher) -> Vec<u64> {
    if kind == SlotKind::Hex {
        return parse_hex(padding.text().as_bytes()).map(|value| hasher.int(value as i64)).into_iter().collect();
    }
    let integer = padding.integer().map(|value| hasher.int(value));
    std::iter::once(hasher.bytes(padding.text().as_bytes())).chain(integer).collect()
}

fn not_hex(name: &str, value: &str) -> WrongValue {
    let short: String = value.chars().take(40).collect();
    let detail = format!("column `{name}` is {short:?}, expected up to 16 hexadecimal digits");
    WrongValue { reason: NOT_HEX, detail }
}

/// ⌊ln(x)²⌋ + 2 for x ≥ 3, else ⌊x⌋; for infinities the last and the first integer.
fn log_bucket(x: f64) -> i64 {
    if x >= 3.0 { ((x.ln().powi(2)).floor() as i64).saturating_add(2) } else { x.floor() as i64 }
}

/// Replaces each key by the key of its bucket, one of `buckets`. A missing value keeps its own.
pub(super) fn into_buckets(keys: &mut [u64], hasher: &SlotHasher, buckets: u64) {
    for key in keys.iter_mut().filter(|key| **key != hasher.missing()) {
        // Keys are uniform over 64 bits, so the upper half of the product is a uniform bucket.
        let bucket = (u128::from(*key) * u128::from(buckets)) >> 64;
        *key = hasher.int(bucket as i64);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::ListArray;

    use super::*;

    /// A bug: a list of numbers with fractions was called a number.
    #[test]
    fn a_list_of_the_wrong_type_is_called_a_list() {
        let columns: Columns = toml::from_str("dense = []\nslots = ['x']").unwrap();
        let mut parser = SlotParser::new(&columns.slots[0], &columns, 0);
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(0.5)])]));
        let said = parser.parse("x", &lists, None, &mut BadRows::default()).err().unwrap().to_string();
        assert!(
            said.contains("column `x` is a list of Float64, expected integers") && said.contains("log_bucket"),
            "{said}"
        );
    }

    #[test]
    fn log_buckets_never_fall_and_tell_small_counts_apart() {
        let buckets: Vec<i64> = (-3..2000).map(|x| log_bucket(f64::from(x))).collect();
        assert!(buckets.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(&buckets[..6], [-3, -2, -1, 0, 1, 2]);
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY].map(log_bucket), [i64::MAX, i64::MIN]);
    }
}
