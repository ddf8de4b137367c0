//! The statistics of one column: missing values, distinct values, smallest and largest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, LargeListArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DECIMAL256_MAX_PRECISION, DataType, Decimal256Type, Float64Type, Int64Type, TimeUnit, UInt64Type,
};
use forebay_actors::Fault;
use forebay_base::{GOLDEN_GAMMA, mix64};

use super::distinct::Distinct;
use super::histogram::Bins;
use super::odd_text::{OddText, OddTexts};
use super::spelling::{OtherSpelling, Spelling};
use crate::text::number::parse_truth;

/// Running counts of one column.
pub(super) struct ColumnStats {
    pub(super) rows: u64,
    pub(super) missing: u64,
    /// Values; more or fewer than rows in a column of lists.
    pub(super) values: u64,
    pub(super) distinct: Distinct,
    /// Whether it has values of a type whose values are not counted, such as a struct.
    pub(super) uncounted: bool,
    /// Least and greatest value of a numeric column.
    pub(super) range: Option<(f64, f64)>,
    /// The same of a column of integers.
    integers: Option<(i128, i128)>,
    /// Sum of the values of a numeric column.
    pub(super) sum: f64,
    /// Values that are infinite in 32 bits.
    pub(super) infinite: u64,
    /// How often which values of a numeric column occur.
    pub(super) bins: Bins,
    /// Whether its numbers are days or microseconds since 1970.
    moments: bool,
    /// Whether texts count as numbers, because all of them were numbers so far.
    texts_are_numbers: bool,
    /// Whether all texts so far were numbers, or all of them truth values, also where they do not count as such.
    look_like_numbers: bool,
    /// Whether the texts so far were `true` and `false`, the numbers 1 and 0 of a column that has nothing else, or numbers.
    truths: Option<bool>,
    /// Texts of nothing but spaces: values of a column of text, missing in one of numbers.
    blanks: u64,
    /// Texts that are NaN, by their hash: values of a column of text, missing in one of numbers.
    nans: BTreeMap<u64, u64>,
    /// How texts that are numbers are written.
    spelling: Spelling,
    /// The only text beside numbers; `None` where the file knows its types.
    odd_texts: Option<OddTexts>,
}

/// How texts are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Texts {
    /// Texts: the file knows its types.
    Typed,
    /// Numbers, if all of them are, or if all of them are `true` and `false`.
    Numbers,
}

impl ColumnStats {
    pub(super) fn new(texts: Texts) -> Self {
        let distinct = Distinct::new();
        Self {
            rows: 0,
            missing: 0,
            values: 0,
            distinct,
            uncounted: false,
            range: None,
            integers: None,
            sum: 0.0,
            infinite: 0,
            bins: Bins::default(),
            moments: false,
            texts_are_numbers: texts != Texts::Typed,
            look_like_numbers: true,
            truths: None,
            blanks: 0,
            nans: BTreeMap::new(),
            spelling: Spelling::default(),
            odd_texts: (texts == Texts::Numbers).then(OddTexts::default),
        }
    }

    /// Counts one array. An empty text is a value, as it is in a slot, and NaN is none.
    pub(super) fn add(&mut self, array: &ArrayRef) -> Result<(), Fault> {
        self.rows += array.len() as u64;
        let missing = self.values(array)?;
        self.missing += missing;
        Ok(())
    }

    fn values(&mut self, array: &ArrayRef) -> Result<u64, Fault> {
        let as_type = |to: &DataType| {
            cast(array, to).map_err(|e| {
                Fault::user(format!("cannot compute statistics of a column of the type {}", array.data_type()))
                    .because(e)
            })
        };
        let mut missing = 0;
        match array.data_type() {
            DataType::UInt64 => {
                for value in array.as_primitive::<UInt64Type>() {
                    match value {
                        Some(value) => self.integer(value, value.into()),
                        None => missing += 1,
                    }
                }
            }
            t if t.is_integer() || *t == DataType::Boolean => missing += self.whole(array)?,
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale)
            | DataType::Decimal256(_, scale) => {
                let exact = as_type(&DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale))?;
                let numbers = as_type(&DataType::Float64)?;
                for (exact, number) in
                    exact.as_primitive::<Decimal256Type>().iter().zip(numbers.as_primitive::<Float64Type>())
                {
                    match (exact, number) {
                        (Some(exact), Some(number)) => {
                            self.number(xxhash_rust::xxh3::xxh3_64(&exact.to_le_bytes()), number);
                        }
                        _ => missing += 1,
                    }
                }
            }
            t if t.is_floating() => {
                let array = as_type(&DataType::Float64)?;
                for value in array.as_primitive::<Float64Type>() {
                    match value {
                        Some(value) if !value.is_nan() => {
                            self.number(mix64(value.to_bits().wrapping_add(GOLDEN_GAMMA)), value);
                        }
                        _ => missing += 1,
                    }
                }
            }
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
                self.moments = true;
                missing += self.whole(&as_type(&moment(array.data_type()))?)?;
            }
            DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) => missing += self.whole(array)?,
            DataType::Dictionary(_, value) => missing += self.values(&as_type(value)?)?,
            DataType::FixedSizeList(item, _) => missing += self.values(&as_type(&DataType::List(item.clone()))?)?,
            DataType::List(item) | DataType::LargeList(item) => {
                missing += array.null_count() as u64;
                let array = as_type(&DataType::LargeList(item.clone()))?;
                let lists = array.as_list::<i64>();
                for Range { start, end } in items_of(lists) {
                    self.values(&lists.values().slice(start, end - start))?;
                }
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                let array = as_type(&DataType::Utf8)?;
                for value in array.as_string::<i32>() {
                    match value {
                        Some(text) if text.trim_ascii().is_empty() => self.blanks += 1,
                        Some(text) if self.is_nan(text) => {
                            *self.nans.entry(xxhash_rust::xxh3::xxh3_64(text.as_bytes())).or_default() += 1;
                        }
                        Some(text) => {
                            self.bytes(text.as_bytes());
                            self.text(text);
                        }
                        None => missing += 1,
                    }
                }
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
                let array = as_type(&DataType::LargeBinary)?;
                for value in array.as_binary::<i64>() {
                    match value {
                        Some(bytes) => self.bytes(bytes),
                        None => missing += 1,
                    }
                }
            }
            _ => {
                let nulls = array.logical_null_count();
                self.uncounted |= nulls < array.len();
                missing += nulls as u64;
            }
        }
        Ok(missing)
    }

    /// Counts values that are integers of at most 64 bits with a sign. Returns how many are missing.
    fn whole(&mut self, array: &ArrayRef) -> Result<u64, Fault> {
        let numbers = cast(array, &DataType::Int64).map_err(|e| {
            Fault::user(format!("cannot compute statistics of a column of the type {}", array.data_type())).because(e)
        })?;
        let mut missing = 0;
        for value in numbers.as_primitive::<Int64Type>() {
            match value {
                Some(value) => self.integer(value as u64, value.into()),
                None => missing += 1,
            }
        }
        Ok(missing)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.values += 1;
        self.distinct.add(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    /// Whether a text is NaN in a column that has had numbers alone so far.
    fn is_nan(&self, text: &str) -> bool {
        let letters = text.trim_ascii().trim_start_matches(['+', '-']);
        self.texts_are_numbers && letters.eq_ignore_ascii_case("nan")
    }

    fn text(&mut self, text: &str) {
        let counts_odd = self.odd_texts.as_ref().is_some_and(|odd| !odd.is_settled());
        if !self.look_like_numbers && !counts_odd {
            return;
        }
        let truth = parse_truth(text.as_bytes());
        let number = match truth {
            Some(truth) => Some(f64::from(u8::from(truth))),
            None => text.trim_ascii().parse::<f64>().ok(),
        };
        if let Some(odd) = self.odd_texts.as_mut().filter(|_| counts_odd) {
            odd.add(text, number.is_some() && truth.is_none());
        }
        if !self.look_like_numbers {
            return;
        }
        match number {
            Some(number) if *self.truths.get_or_insert(truth.is_some()) == truth.is_some() => {
                if self.texts_are_numbers {
                    self.range_of(number);
                }
                if !number.is_nan() {
                    self.spelling.add(text, number);
                }
            }
            _ => self.are_texts(),
        }
    }

    /// The column turns out to be text.
    fn are_texts(&mut self) {
        (self.texts_are_numbers, self.look_like_numbers) = (false, false);
        (self.range, self.infinite, self.bins) = (None, 0, Bins::default());
        self.spelling = Spelling::default();
    }

    /// Values of a column of texts that are all numbers, or all truth values, in a spelling that other programs do not use.
    pub(super) fn other_spelling(&mut self) -> Option<OtherSpelling> {
        self.spelling.finish()
    }

    /// The only text beside numbers.
    pub(super) fn odd_text(&mut self) -> Option<OddText> {
        self.odd_texts.as_mut()?.finish()
    }

    /// Counts blanks and NaN after all arrays: as values in a column of text, as missing values in a column of numbers.
    pub(super) fn finish(&mut self) {
        let numbers = self.texts_are_numbers && self.range.is_some();
        // With truths, NaN is a text like any other: then the column has no numbers.
        if numbers && self.truths == Some(true) && !self.nans.is_empty() {
            self.are_texts();
        }
        let numbers = self.texts_are_numbers && self.range.is_some();
        for (hash, count) in std::mem::take(&mut self.nans) {
            if numbers {
                self.missing += count;
            } else {
                self.values += count;
                self.distinct.add(hash);
            }
        }
        match std::mem::take(&mut self.blanks) {
            0 => {}
            blanks if numbers => self.missing += blanks,
            blanks => {
                self.values += blanks;
                self.distinct.add(xxhash_rust::xxh3::xxh3_64(b""));
            }
        }
    }

    /// The least and the greatest value as text, if they are dates or timestamps.
    pub(super) fn moments(&self, kind: &DataType) -> Option<[String; 2]> {
        let (low, high) = self.range.filter(|_| self.moments)?;
        let kind = match kind {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
            DataType::Dictionary(_, value) => value,
            kind => kind,
        };
        let text = |value: f64| {
            let number: ArrayRef = Arc::new(Int64Array::from(vec![value as i64]));
            let number = if moment(kind) == DataType::Date32 { cast(&number, &DataType::Int32).ok()? } else { number };
            let text = cast(&cast(&number, &moment(kind)).ok()?, &DataType::Utf8).ok()?;
            // Whole seconds.
            Some(text.as_string::<i32>().value(0).chars().take(19).collect())
        };
        Some([text(low)?, text(high)?])
    }

    /// The least and the greatest value as text, if `range` and JSON cannot tell them: integers that a floating-point number rounds, and
    /// infinite numbers.
    pub(super) fn exact(&self) -> Option<[String; 2]> {
        const WHOLE: u128 = 1 << f64::MANTISSA_DIGITS;
        match (self.integers, self.range?) {
            (Some((low, high)), _) => {
                let rounds = low.unsigned_abs().max(high.unsigned_abs()) > WHOLE;
                rounds.then(|| [low.to_string(), high.to_string()])
            }
            (None, (low, high)) => {
                (low.is_infinite() || high.is_infinite()).then(|| [format!("{low:?}"), format!("{high:?}")])
            }
        }
    }

    /// Counts an integer, given its 64 bits and its value.
    fn integer(&mut self, bits: u64, value: i128) {
        self.number(mix64(bits.wrapping_add(GOLDEN_GAMMA)), value as f64);
        let (low, high) = self.integers.unwrap_or((value, value));
        self.integers = Some((low.min(value), high.max(value)));
    }

    fn number(&mut self, hash: u64, value: f64) {
        self.values += 1;
        self.distinct.add(hash);
        self.range_of(value);
    }

    fn range_of(&mut self, value: f64) {
        self.sum += value;
        self.infinite += u64::from((value as f32).is_infinite());
        self.bins.add(value);
        let (low, high) = self.range.unwrap_or((value, value));
        self.range = Some((low.min(value), high.max(value)));
    }
}

/// The ranges of the items of all lists: one range, unless a missing list has items.
fn items_of(lists: &LargeListArray) -> Vec<Range<usize>> {
    let ends = lists.offsets();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for row in (0..lists.len()).filter(|&row| lists.is_valid(row)) {
        let items = ends[row] as usize..ends[row + 1] as usize;
        match ranges.last_mut() {
            Some(last) if last.end == items.start => last.end = items.end,
            _ if items.is_empty() => {}
            _ => ranges.push(items),
        }
    }
    ranges
}

/// Dates as days, timestamps as microseconds since 1970 in UTC.
fn moment(kind: &DataType) -> DataType {
    match kind {
        DataType::Timestamp(..) => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => DataType::Date32,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryArray, Date32Array, Date64Array, Decimal64Array, Decimal128Array, FixedSizeBinaryArray,
        FixedSizeListArray, Float64Array, NullArray, StringArray, TimestampMillisecondArray, UInt64Array,
    };
    use arrow::buffer::NullBuffer;
    use arrow::datatypes::Float32Type;

    use super::*;

    #[test]
    fn unsigned_integers_beyond_those_with_a_sign_are_values() {
        let mut stats = ColumnStats::new(Texts::Typed);
        stats
            .add(&(Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(1 << 63), Some(5)])) as ArrayRef))
            .unwrap();
        assert_eq!((stats.rows, stats.missing, stats.values, stats.distinct.estimate()), (4, 1, 3, 3));
        assert_eq!(stats.range, Some((5.0, u64::MAX as f64)));
    }

    /// A bug: decimals were counted as the floating-point numbers next to them.
    #[test]
    fn decimals_that_a_float_cannot_tell_apart_are_distinct() {
        for from in [10_i128.pow(25), 1 << 53, -(1 << 60)] {
            let values = (0..40).map(|i| if i == 7 { None } else { Some(from + i % 20) }).collect::<Decimal128Array>();
            for scale in [0, -2, 10] {
                let decimals = values.clone().with_precision_and_scale(38, scale).unwrap();
                let mut stats = ColumnStats::new(Texts::Typed);
                stats.add(&(Arc::new(decimals) as ArrayRef)).unwrap();
                assert_eq!((stats.missing, stats.values), (1, 39));
                assert!(
                    (19..=20).contains(&stats.distinct.estimate()),
                    "{from} {scale}: {}",
                    stats.distinct.estimate()
                );
            }
        }
        let small = Decimal64Array::from(vec![Some(150), None, Some(-25)]).with_precision_and_scale(18, 2).unwrap();
        let mut stats = ColumnStats::new(Texts::Typed);
        stats.add(&(Arc::new(small) as ArrayRef)).unwrap();
        assert_eq!((stats.missing, stats.range, stats.sum), (1, Some((-0.25, 1.5)), 1.25));
    }

    #[test]
    fn ends_that_a_float_or_json_cannot_tell_are_texts() {
        let ends = |array: ArrayRef| {
            let mut stats = ColumnStats::new(Texts::Typed);
            stats.add(&array).unwrap();
            stats.exact()
        };
        let text = |low: &str, high: &str| Some([low.to_owned(), high.to_owned()]);
        let large = (1_i64 << 53) + 1;
        assert_eq!(ends(Arc::new(Int64Array::from(vec![5, large]))), text("5", "9007199254740993"));
        assert_eq!(ends(Arc::new(UInt64Array::from(vec![u64::MAX, 1]))), text("1", "18446744073709551615"));
        assert_eq!(ends(Arc::new(Float64Array::from(vec![f64::NEG_INFINITY, 1.5]))), text("-inf", "1.5"));
        assert_eq!(ends(Arc::new(Int64Array::from(vec![5, large - 1]))), None);
        assert_eq!(ends(Arc::new(Float64Array::from(vec![1e300]))), None);
    }

    #[test]
    fn nan_is_missing_as_it_is_in_training() {
        let mut stats = ColumnStats::new(Texts::Typed);
        stats.add(&(Arc::new(Float64Array::from(vec![f64::NAN, 2.0, -1.0])) as ArrayRef)).unwrap();
        assert_eq!((stats.missing, stats.values, stats.range, stats.sum), (1, 2, Some((-1.0, 2.0)), 1.0));
    }

    fn of_texts(texts: &[&str], kind: Texts) -> ColumnStats {
        let mut stats = ColumnStats::new(kind);
        stats.add(&(Arc::new(StringArray::from(texts.to_vec())) as ArrayRef)).unwrap();
        stats.finish();
        stats
    }

    #[test]
    fn nan_in_text_is_missing_among_numbers_and_a_value_among_texts() {
        let numbers = of_texts(&["1", "nan", "NaN", "", "2"], Texts::Numbers);
        assert_eq!((numbers.missing, numbers.values, numbers.range), (3, 2, Some((1.0, 2.0))));
        assert_eq!(numbers.distinct.estimate(), 2);
        let texts = of_texts(&["nan", "x", "nan"], Texts::Numbers);
        assert_eq!((texts.missing, texts.values, texts.range, texts.distinct.estimate()), (0, 3, None, 2));
    }

    #[test]
    fn truths_are_the_numbers_1_and_0_as_a_conversion_writes_them() {
        let truths = of_texts(&["true", "false", "true"], Texts::Numbers);
        assert_eq!((truths.range, truths.sum, truths.distinct.estimate()), (Some((0.0, 1.0)), 2.0, 2));
        for texts in [["true", "1"], ["1", "false"], ["true", "x"], ["nan", "true"]] {
            assert_eq!(of_texts(&texts, Texts::Numbers).range, None, "{texts:?}");
        }
        assert_eq!(of_texts(&["True", "FALSE"], Texts::Numbers).range, Some((0.0, 1.0)), "as pandas writes them");
        assert_eq!(of_texts(&["true", "false"], Texts::Typed).range, None);
    }

    /// A bug: nothing told a column of numbers with `\N` for missing values from one of text.
    #[test]
    fn the_only_text_among_numbers_is_told() {
        let odd = |texts: &[&str], kind| of_texts(texts, kind).odd_text().map(|odd| (odd.values, odd.text));
        let found = |values, text: &str| Some((values, text.to_owned()));
        assert_eq!(odd(&["1", "\\N", "2.5", "\\N", "", "nan"], Texts::Numbers), found(2, "\\N"));
        assert_eq!(odd(&["NA", "1"], Texts::Numbers), found(1, "NA"));
        for texts in
            [&["1", "2"][..], &["x", "x"], &["1", "x", "y"], &["1", "a sentence of many words"], &["true", "x"]]
        {
            assert_eq!(odd(texts, Texts::Numbers), None, "{texts:?}");
        }
        assert_eq!(odd(&["1", "NA"], Texts::Typed), None);
    }

    /// A bug: nothing said it of string columns of Parquet, which pandas writes with `79.0` as it writes CSV.
    #[test]
    fn numbers_in_typed_texts_are_texts_whose_spelling_is_told() {
        let spelling = |texts: &[&str]| of_texts(texts, Texts::Typed).other_spelling().map(|other| other.first);
        assert_eq!(spelling(&["80", "79.0", "", "nan"]).as_deref(), Some("79.0"));
        assert_eq!(spelling(&["true", "False"]).as_deref(), Some("False"));
        for usual in [&["79", "80"][..], &["79.0", "x"], &["79.0", "0.5"], &["x", "79.0"]] {
            assert_eq!(spelling(usual), None, "{usual:?}");
        }
        let texts = of_texts(&["79.0", "80.0"], Texts::Typed);
        assert_eq!((texts.range, texts.values, texts.bins.finish()), (None, 2, None));
    }

    fn of(array: impl Array + 'static) -> (ColumnStats, DataType) {
        let (mut stats, kind) = (ColumnStats::new(Texts::Typed), array.data_type().clone());
        stats.add(&(Arc::new(array) as ArrayRef)).unwrap();
        (stats, kind)
    }

    #[test]
    fn dates_and_timestamps_have_a_range_in_days_and_microseconds_and_as_text() {
        let day = 20_777;
        let moments = [
            (of(Date32Array::from(vec![Some(day), None, Some(day - 1), Some(day)])), day as f64, "2026-11-20"),
            (
                of(Date64Array::from(vec![Some(day as i64 * 86_400_000), None, Some(0), Some(0)])),
                day as f64,
                "2026-11-20",
            ),
            (
                of(TimestampMillisecondArray::from(vec![
                    Some(day as i64 * 86_400_000 + 11_045_678),
                    None,
                    Some(-1),
                    Some(-1),
                ])
                .with_timezone("UTC")),
                (day as f64 * 86_400.0 + 11_045.678) * 1e6,
                "2026-11-20T03:04:05",
            ),
        ];
        for ((stats, kind), last, text) in moments {
            assert_eq!((stats.rows, stats.missing, stats.values, stats.distinct.estimate()), (4, 1, 3, 2), "{kind}");
            assert_eq!(stats.range.unwrap().1, last, "{kind}");
            assert_eq!(stats.moments(&kind).unwrap()[1], text);
            assert_eq!(stats.bins.clone().finish().unwrap().counts.iter().sum::<u64>(), 3);
        }
    }

    #[test]
    fn binary_values_lists_of_a_fixed_size_and_nulls_are_counted() {
        // An empty text is a value, as in training.
        let (stats, _) = of(BinaryArray::from(vec![Some(&b"ab"[..]), None, Some(b""), Some(b"ab"), Some(b"c")]));
        assert_eq!((stats.missing, stats.values, stats.distinct.estimate()), (1, 4, 3));
        let bytes = FixedSizeBinaryArray::try_from_iter([[1u8, 2], [3, 4], [1, 2]].iter()).unwrap();
        assert_eq!(of(bytes).0.distinct.estimate(), 2);
        let lists = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            [Some([Some(1.0), Some(-2.0)]), None, Some([Some(1.0), None])],
            2,
        );
        let (stats, _) = of(lists);
        assert_eq!((stats.rows, stats.missing, stats.values, stats.range), (3, 1, 3, Some((-2.0, 1.0))));
        let (stats, _) = of(NullArray::new(4));
        assert_eq!((stats.missing, stats.uncounted), (4, false));
    }

    /// A bug: the lists of all rows were counted one by one, which took five times as long.
    #[test]
    fn the_items_of_lists_are_counted_at_once_without_items_of_missing_lists() {
        let lists = LargeListArray::from_iter_primitive::<Int64Type, _, _>([
            Some(vec![Some(9), Some(9)]),
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
            Some(vec![Some(3), Some(5)]),
            Some(vec![Some(9)]),
        ]);
        let part = lists.slice(1, 4);
        assert_eq!(items_of(&part), [Range { start: 2, end: 6 }]);
        let (stats, _) = of(part);
        assert_eq!((stats.rows, stats.missing, stats.values, stats.range), (4, 1, 3, Some((1.0, 5.0))));
        // A missing list may have items.
        let (field, offsets, items, _) = lists.into_parts();
        let present = NullBuffer::from(vec![true, false, true, true, true, false]);
        let lists = LargeListArray::new(field, offsets, items, Some(present));
        assert_eq!(items_of(&lists), [0..2, 4..6]);
        let (stats, _) = of(lists);
        assert_eq!((stats.missing, stats.values, stats.range, stats.sum), (2, 4, Some((3.0, 9.0)), 26.0));
    }
}
