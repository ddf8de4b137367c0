//! Features of time in the parse stage: hours, days of the week and ages of integers with a unit, and offsets from UTC.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Date32Array, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
    UInt64Array,
};
use arrow::compute::{DatePart, date_part};
use arrow::datatypes::{Int32Type, Int64Type};
use forebay_actors::{Lineage, Outbox, Stage, StageCx};
use forebay_batches::{ExampleBatch, Parse, SlotKeys};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_job::Columns;
use futures::executor::block_on;
use proptest::prelude::*;

fn columns(text: &str) -> Columns {
    let slots = if text.contains("slots") { "" } else { "slots = []\n" };
    let dense = if text.contains("dense") { "" } else { "dense = []\n" };
    toml::from_str(&format!("{slots}{dense}{text}")).unwrap()
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// The features of rows by the `dense` and `slots` of `text`, and what is wrong with the bad ones.
fn parse(text: &str, rows: Vec<(&str, ArrayRef)>) -> Result<(ExampleBatch, Vec<(usize, String)>), String> {
    let mut parse = Parse::new(&columns(text), 7, OnBadRow::Skip).for_prediction(Vec::new());
    parse.examples_of(batch(rows)).map_err(|fault| fault.to_string())
}

/// The dense inputs of rows that are all good.
fn dense(text: &str, rows: Vec<(&str, ArrayRef)>) -> Vec<f32> {
    let (examples, bad) = parse(&format!("dense = [{text}]"), rows).unwrap();
    assert!(bad.is_empty(), "{bad:?}");
    examples.dense
}

/// The keys of a slot of the column `t`.
fn keys(options: &str, array: ArrayRef) -> Vec<u64> {
    let (mut examples, bad) = parse(&format!("slots = [{{ column = 't', {options} }}]"), vec![("t", array)]).unwrap();
    assert!(bad.is_empty(), "{bad:?}");
    match examples.slots.pop().unwrap() {
        SlotKeys::One(keys) => keys,
        many => panic!("{many:?}"),
    }
}

/// The counts of bad rows in the ledger of a training.
fn rejected(text: &str, array: ArrayRef) -> Vec<(String, u64)> {
    let labels: ArrayRef = Arc::new(Int32Array::from(vec![1; array.len()]));
    let (cx, (mut out, _)) = (StageCx::detached("parse"), Outbox::collecting());
    let batch = batch(vec![("label", labels), ("t", array)]);
    let rows = Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
    block_on(Parse::new(&columns(text), 7, OnBadRow::Skip).on_batch(rows, &cx, &mut out)).unwrap();
    cx.ledger().snapshot().rejected.into_iter().map(|(reason, rows)| (reason.to_string(), rows)).collect()
}

/// The value of a moment in a unit, rounded down; `None` if 64 bits do not hold it.
fn in_unit(unit: &str, micros: i64) -> Option<i64> {
    match unit {
        "s" => Some(micros.div_euclid(1_000_000)),
        "ms" => Some(micros.div_euclid(1000)),
        "us" => Some(micros),
        _ => micros.checked_mul(1000)?.checked_add(999),
    }
}

/// An offset from UTC as a job has it.
fn offset(minutes: i32) -> String {
    let (sign, size) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
    format!("{sign}{:02}:{:02}", size / 60, size % 60)
}

proptest! {
    /// Arrow computes the parts of times with a zone by `chrono`.
    #[test]
    fn hours_and_days_of_integers_are_those_of_the_calendar_at_every_offset(
        moments in prop::collection::vec(
            prop::option::of(prop_oneof![
                -62_135_596_800_000_000_i64..253_402_300_800_000_000,
                0..2_000_000_000_000_000_i64,
                // Around midnight.
                (-40_000_i64..40_000, -2_i64..2).prop_map(|(day, second)| day * 86_400_000_000 + second * 1_000_000),
            ]),
            1..30,
        ),
        minutes in -840_i32..=840,
    ) {
        for unit in ["s", "ms", "us", "ns"] {
            let values: Vec<Option<i64>> = moments.iter().map(|moment| in_unit(unit, (*moment)?)).collect();
            let known = moments.iter().zip(&values).map(|(moment, value)| value.and(*moment));
            let local = known.collect::<TimestampMicrosecondArray>().with_timezone(offset(minutes));
            let part = |part| date_part(&local, part).unwrap().as_primitive::<Int32Type>().clone();
            let texts: StringArray = values.iter().map(|value| value.map(|value| value.to_string())).collect();
            let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values.clone())), Arc::new(texts)];
            if values.iter().flatten().all(|&value| value as f64 as i64 == value) {
                arrays.push(Arc::new(values.iter().map(|value| value.map(|value| value as f64)).collect::<Float64Array>()));
            }
            for (name, part) in [("hour", part(DatePart::Hour)), ("weekday", part(DatePart::DayOfWeekMonday0))] {
                let options = format!("unit = '{unit}', utc_offset = '{}'", offset(minutes));
                let numbers: Vec<f32> = part.iter().map(|part| part.unwrap_or(0) as f32).collect();
                let of_parts = keys("kind = 'int'", Arc::new(part));
                for array in &arrays {
                    let kind = array.data_type();
                    let feature = format!("{{ column = 't', transform = '{name}', {options} }}");
                    prop_assert_eq!(&dense(&feature, vec![("t", Arc::clone(array))]), &numbers, "{} {}", kind, options);
                    let found = keys(&format!("kind = '{name}', {options}"), Arc::clone(array));
                    prop_assert_eq!(&found, &of_parts, "{} {}", kind, options);
                }
                // Timestamps have a unit of their own.
                let stamps: ArrayRef = Arc::new(local.clone());
                prop_assert_eq!(keys(&format!("kind = '{name}', {options}"), stamps), of_parts);
            }
        }
    }
}

#[test]
fn integers_of_every_width_are_times_of_their_unit() {
    let hours = |array: ArrayRef, unit: &str| {
        dense(&format!("{{ column = 't', transform = 'hour', unit = '{unit}' }}"), vec![("t", array)])
    };
    // 20 November 2026, 03:04:05.
    assert_eq!(hours(Arc::new(Int32Array::from(vec![1_795_143_845, -1])), "s"), [3.0, 23.0]);
    assert_eq!(hours(Arc::new(UInt64Array::from(vec![1_795_143_845_000, 0])), "ms"), [3.0, 0.0]);
    assert_eq!(hours(Arc::new(UInt64Array::from(vec![1_795_143_845_000_000_999])), "ns"), [3.0]);
    let words: ArrayRef = Arc::new(StringArray::from(vec!["1795143845", "2026-11-20T04:00:00+01:00", "2026-11-20"]));
    assert_eq!(hours(words, "s"), [3.0, 3.0, 0.0]);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(0), Some(3600), None]),
        None,
        Some(vec![Some(7200)]),
    ]);
    let slot = "slots = [{ column = 't', kind = 'hour', unit = 's', last = 2 }]";
    let (mut examples, _) = parse(slot, vec![("t", Arc::new(lists))]).unwrap();
    let SlotKeys::Many { offsets, keys: found } = examples.slots.pop().unwrap() else { panic!() };
    assert_eq!(offsets, [0, 2, 2, 3]);
    assert_eq!(found, keys("kind = 'int'", Arc::new(Int64Array::from(vec![Some(1), None, Some(2)]))));
}

/// As `time.time()` of Python and `Date.now() / 1000` of JavaScript write them.
#[test]
fn numbers_with_fractions_and_text_of_them_are_rounded_down_to_their_unit() {
    for (unit, second) in [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)] {
        let hour = format!("{{ column = 't', transform = 'hour', unit = '{unit}' }}");
        // The last moment of the first hour, and of the hour before 1970.
        let last = 3600.0 * second - 0.25;
        let numbers: ArrayRef = Arc::new(Float64Array::from(vec![last, -0.25, 0.75]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![format!("{last}"), "-0.25".into(), "7.5e-1".into()]));
        for array in [numbers, texts] {
            assert_eq!(dense(&hour, vec![("t", Arc::clone(&array))]), [0.0, 23.0, 0.0], "{unit} {}", array.data_type());
        }
    }
    // An age counts whole seconds.
    let age = "{ column = 'a', transform = 'age_hours', at = 'b', unit = 's' }";
    let column = |value: f64| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
    let found = dense(age, vec![("a", column(1_790_000_000.75)), ("b", column(1_790_003_600.25))]);
    assert_eq!(found, [1.0]);
}

#[test]
fn a_date_keeps_its_day_at_every_offset() {
    let days: ArrayRef = Arc::new(Date32Array::from(vec![20_777, -1]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["2026-11-20", "1969-12-31"]));
    let midnight: ArrayRef = Arc::new(StringArray::from(vec!["2026-11-20 00:00:00", "1969-12-31T00:00:00Z"]));
    for (offset, of_midnight) in [("-08:00", [3.0, 1.0]), ("+14:00", [4.0, 2.0]), ("+00:00", [4.0, 2.0])] {
        let weekday = format!("{{ column = 't', transform = 'weekday', utc_offset = '{offset}' }}");
        for array in [&days, &texts] {
            assert_eq!(dense(&weekday, vec![("t", Arc::clone(array))]), [4.0, 2.0], "{offset} {}", array.data_type());
        }
        assert_eq!(dense(&weekday, vec![("t", Arc::clone(&midnight))]), of_midnight, "{offset}");
    }
}

#[test]
fn ages_of_integers_are_those_of_their_timestamps() {
    let seconds = [Some(1_795_143_845), Some(0), None, Some(-86_400)];
    let millis = [Some(1_795_200_000_500), None, Some(7), Some(43_200_000)];
    let rows = |integers: bool| -> Vec<(&'static str, ArrayRef)> {
        let of_seconds = seconds.map(|second| second.map(|second: i64| second * 1000)).to_vec();
        let (a, b): (ArrayRef, ArrayRef) = match integers {
            true => (Arc::new(Int64Array::from(seconds.to_vec())), Arc::new(Int64Array::from(millis.to_vec()))),
            false => (
                Arc::new(TimestampMillisecondArray::from(of_seconds)),
                Arc::new(TimestampMillisecondArray::from(millis.to_vec())),
            ),
        };
        vec![("a", a), ("b", b)]
    };
    for (ages, units) in [
        ("transform = 'age_days', at = 'b', indicator = true, clip = { min = 0 }", "unit = 's', at_unit = 'ms'"),
        ("transform = 'age_hours', at = '2026-11-20T12:00:00', fill = 3", "unit = 's'"),
    ] {
        let expected = dense(&format!("{{ column = 'a', {ages} }}"), rows(false));
        assert_eq!(dense(&format!("{{ column = 'a', {ages}, {units} }}"), rows(true)), expected);
        assert!(expected.iter().any(|&age| age > 1.0), "{expected:?}");
    }
    // A unit of both columns.
    let both = |unit: &str| {
        let age = format!("{{ column = 'a', transform = 'age_days', at = 'a2', {unit} }}");
        let a2: ArrayRef = Arc::new(Int64Array::from(vec![86_400]));
        dense(&age, vec![("a", Arc::new(Int64Array::from(vec![0]))), ("a2", a2)])
    };
    assert_eq!(both("unit = 's'"), [1.0]);
    assert_eq!(both("unit = 's', at_unit = 'ms'"), [0.001]);
}

#[test]
fn a_column_of_numbers_without_a_unit_is_refused_by_the_name_of_the_field() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1_795_143_845]));
    let said = |text: &str| {
        let rows = vec![("t", Arc::clone(&numbers)), ("stamp", Arc::new(Date32Array::from(vec![1])) as ArrayRef)];
        parse(text, rows).err().unwrap()
    };
    for (text, words) in [
        (
            "slots = [{ column = 't', kind = 'hour' }]",
            "`t` is Int64, expected timestamps, or text of them, for the hour: set unit to",
        ),
        (
            "slots = [{ column = 't', kind = 'weekday', utc_offset = '+01:00' }]",
            "for the day of the week: set unit to \"s\"",
        ),
        ("dense = [{ column = 't', transform = 'hour' }]", "set unit to \"s\", \"ms\", \"us\" or \"ns\""),
        ("dense = [{ column = 't', transform = 'age_days', at = 'stamp' }]", "for an age: set unit to"),
        (
            "dense = [{ column = 'stamp', transform = 'age_days', at = 't' }]",
            "`t` is Int64, expected dates or timestamps",
        ),
        ("dense = [{ column = 'stamp', transform = 'age_days', at = 't' }]", "set at_unit to \"s\""),
    ] {
        let said = said(text);
        assert!(said.contains(words), "no {words:?} in: {said}");
    }
    let floats: ArrayRef = Arc::new(Float32Array::from(vec![1.0]));
    let said = parse("slots = [{ column = 't', kind = 'hour', unit = 's' }]", vec![("t", floats)]).err().unwrap();
    assert!(said.contains("`t` is Float32") && said.contains("write it as bigint"), "{said}");
    // In text a value is a bad row, and its error names the field, too.
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1795143845", "yesterday"]));
    let (_, bad) = parse("slots = [{ column = 't', kind = 'hour' }]", vec![("t", Arc::clone(&texts))]).unwrap();
    assert!(bad[0].1.contains("`t` is \"1795143845\"") && bad[0].1.contains("set unit to \"s\""), "{bad:?}");
    assert!(bad[1].1.ends_with("2026-11-20T03:04:05.25 or 2026-11-20 03:04:05+05:30"), "{bad:?}");
    let with_unit = parse("slots = [{ column = 't', kind = 'hour', unit = 's' }]", vec![("t", texts)]).unwrap().1;
    assert_eq!(with_unit.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1]);
}

#[test]
fn times_beyond_the_years_and_infinite_ones_are_bad_rows() {
    let hour = |unit: &str| format!("slots = [{{ column = 't', kind = 'hour', unit = '{unit}' }}]");
    let bad = |array: ArrayRef, unit: &str| parse(&hour(unit), vec![("t", array)]).unwrap().1;
    // Milliseconds where seconds are expected.
    let millis: ArrayRef = Arc::new(Int64Array::from(vec![0, 1_795_143_845_000, i64::MIN]));
    let found = bad(Arc::clone(&millis), "s");
    let words = "column `t` is 1795143845000, expected seconds since 1970 in the years 1 to 9999 (unit is \"s\")";
    assert_eq!((found.len(), found[0].0, found[0].1.as_str()), (2, 1, words));
    assert_eq!(rejected(&hour("s"), millis), [("time is not in the years 1 to 9999".to_owned(), 2)]);
    assert!(bad(Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX])), "ns").is_empty());
    // A bug: timestamps and dates beyond the years were times of some hour.
    let seconds: ArrayRef =
        Arc::new(TimestampSecondArray::from(vec![Some(0), Some(1_795_143_845_000), None, Some(i64::MAX)]));
    let found = bad(seconds, "s");
    let words = "column `t` is 1795143845000 seconds since 1970, expected a time in the years 1 to 9999";
    assert_eq!((found.len(), found[0].0, found[0].1.as_str(), found[1].0), (2, 1, words, 3));
    let nanos: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![i64::MIN, i64::MAX]));
    assert!(bad(nanos, "s").is_empty());
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(20_777), Some(1_795_143_845), None, Some(i32::MIN)]));
    let weekday = "slots = [{ column = 't', kind = 'weekday' }]";
    let found: Vec<usize> = parse(weekday, vec![("t", days)]).unwrap().1.into_iter().map(|(row, _)| row).collect();
    assert_eq!(found, [1, 3]);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["0000-12-31 23:59:59", "0001-01-01", "9999-12-31 23:59:59"]));
    assert_eq!(bad(texts, "s").into_iter().map(|(row, _)| row).collect::<Vec<_>>(), [0]);
    assert_eq!(bad(Arc::new(UInt64Array::from(vec![0, u64::MAX])), "ns").len(), 1);
    let floats: ArrayRef =
        Arc::new(Float64Array::from(vec![0.0, 1.5, f64::INFINITY, f64::NAN, 1e300, -0.0, 1e19, f64::NEG_INFINITY]));
    let found: Vec<usize> = bad(Arc::clone(&floats), "ns").into_iter().map(|(row, _)| row).collect();
    assert_eq!(found, [2, 4, 6, 7], "NaN is a missing value of a slot");
    let counts = [("time is not a finite number", 2), ("time is not in the years 1 to 9999", 2)];
    assert_eq!(rejected(&hour("ns"), floats), counts.map(|(reason, rows)| (reason.to_owned(), rows)));
    let (_, found) = parse(&hour("ms"), vec![("t", Arc::new(Float64Array::from(vec![f64::NEG_INFINITY])))]).unwrap();
    let words = "expected a finite number of milliseconds since 1970 (unit is \"ms\")";
    assert!(found[0].1.contains("column `t` is -inf") && found[0].1.ends_with(words), "{found:?}");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["0.5", "1795143845000.5", "1e400", "nan"]));
    let found = bad(texts, "s");
    assert_eq!(found.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(found[0].1.contains("column `t` is 1795143845000.5, expected seconds"), "{found:?}");
    // Of dense features, NaN is missing where one says what stands for it.
    let nan = || vec![("t", Arc::new(Float64Array::from(vec![Some(f64::NAN), None, Some(7200.0)])) as ArrayRef)];
    let feature = |more: &str| format!("dense = [{{ column = 't', transform = 'hour', unit = 's'{more} }}]");
    assert_eq!(parse(&feature(""), nan()).unwrap().1.len(), 1);
    let (examples, found) = parse(&feature(", indicator = true"), nan()).unwrap();
    assert_eq!((examples.dense, found), (vec![0.0, 0.0, 2.0, 1.0, 1.0, 0.0], Vec::new()));
    let age = "dense = [{ column = 'a', transform = 'age_days', at = 't', at_unit = 's' }]";
    let rows: Vec<(&str, ArrayRef)> =
        vec![("a", Arc::new(Date32Array::from(vec![0]))), ("t", Arc::new(Int64Array::from(vec![1_795_143_845_000])))];
    let (_, found) = parse(age, rows).unwrap();
    assert!(
        found[0].1.contains("column `t` is 1795143845000") && found[0].1.contains("(at_unit is \"s\")"),
        "{found:?}"
    );
}
