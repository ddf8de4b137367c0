//! The options of dense features and slots, in the parse stage: missing values, limits, scales, parts of timestamps, buckets, crosses.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Lineage, Outbox, Stage, StageCx};
use forebay_batches::Parse;
use forebay_batches::{ExampleBatch, SlotKeys};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_job::Columns;
use futures::executor::block_on;

/// Parses rows, which get labels, by the `dense`, `slots` and so on of `text`. Returns the rows and the reasons of bad ones.
fn parse(text: &str, columns: Vec<(&str, ArrayRef)>) -> Result<(ExampleBatch, Vec<(String, u64)>), Fault> {
    let rows = columns[0].1.len();
    let labels: ArrayRef = Arc::new(Int32Array::from(vec![1; rows]));
    let all = [vec![("label", labels)], columns].concat().into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(all).unwrap();
    let slots = if text.contains("slots") { "" } else { "\nslots = []" };
    let dense = if text.contains("dense") { "" } else { "\ndense = []" };
    let columns: Columns = toml::from_str(&format!("label = 'label'{slots}{dense}\n{text}")).unwrap();
    let cx = StageCx::detached("parse");
    let (mut out, collected) = Outbox::collecting();
    let mut stage = Parse::new(&columns, 7, OnBadRow::Skip).checking_key_spaces();
    let rows = Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
    block_on(stage.on_batch(rows, &cx, &mut out))?;
    let rejected =
        cx.ledger().snapshot().rejected.into_iter().map(|(reason, rows)| (reason.to_string(), rows)).collect();
    Ok((collected.take().pop().unwrap(), rejected))
}

fn one_slot(text: &str, columns: Vec<(&str, ArrayRef)>) -> Vec<u64> {
    match parse(text, columns).unwrap().0.slots.pop().unwrap() {
        SlotKeys::One(keys) => keys,
        many => panic!("{many:?}"),
    }
}

fn floats(values: Vec<Option<f64>>) -> ArrayRef {
    Arc::new(Float64Array::from(values))
}

fn ints(values: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

#[test]
fn null_and_nan_are_missing_where_the_job_says_what_stands_for_them() {
    let x = || vec![("x", floats(vec![Some(4.0), None, Some(f64::NAN), Some(f64::INFINITY)]))];
    let (batch, bad) = parse("dense = [{ column = 'x', fill = -1.5 }]", x()).unwrap();
    assert_eq!((batch.dense.as_slice(), bad), (&[4.0, -1.5, -1.5][..], vec![("dense value is not finite".into(), 1)]));
    let (batch, _) = parse("dense = [{ column = 'x', indicator = true }]", x()).unwrap();
    assert_eq!((batch.dense_column(0), batch.dense_column(1)), (&[4.0, 0.0, 0.0][..], &[0.0, 1.0, 1.0][..]));
    let (batch, bad) = parse("dense = [{ column = 'x', clip = { max = 3 } }]", x()).unwrap();
    assert_eq!(batch.dense, [3.0, 0.0, 3.0], "a limit takes infinity away, and does not make NaN a number");
    assert_eq!(bad, [("dense value is not finite".into(), 1)]);
    let counts = || vec![("x", ints(vec![Some(9), None, Some(-3)]))];
    let (batch, _) = parse("dense = [{ column = 'x', fill = 99, indicator = true }]", counts()).unwrap();
    let log = |x: f64| x.ln_1p() as f32;
    assert_eq!(
        batch.dense_column(0),
        [log(9.0), log(99.0), -log(3.0)],
        "the filled value is transformed like any other"
    );
    assert_eq!(batch.dense_column(1), [0.0, 1.0, 0.0]);
    let absent: ArrayRef = Arc::new(NullArray::new(2));
    let (batch, _) =
        parse("dense = [{ column = 'x', fill = 2, transform = 'none', indicator = true }]", vec![("x", absent)])
            .unwrap();
    assert_eq!(batch.dense, [2.0, 2.0, 1.0, 1.0]);
}

#[test]
fn logarithms_limits_and_scales_apply_in_this_order() {
    let x = || vec![("x", floats(vec![Some(0.0), Some(1.0), Some(8.0), None, Some(1e9)]))];
    let (batch, bad) = parse("dense = [{ column = 'x', transform = 'log' }]", x()).unwrap();
    assert_eq!(bad, [("dense value has no logarithm".into(), 1)]);
    assert_eq!(batch.dense, [0.0, 8_f64.ln() as f32, 0.0, 1e9_f64.ln() as f32]);
    let text = "dense = [{ column = 'x', transform = 'log', clip = { min = 1, max = 64 }, scale = 'SCALE' }]\n\
        statistics = { x = { mean = 2, std = 0.5, min = 1, max = 5, transform = 'log', clip = { min = 1, max = 64 } } }";
    let scaled = |kind: &str| parse(&text.replace("SCALE", kind), x()).unwrap().0.dense;
    let z = |x: f64| ((x.ln() - 2.0) / 0.5) as f32;
    assert_eq!(scaled("z_score"), [z(1.0), z(1.0), z(8.0), 0.0, z(64.0)], "missing: the mean");
    let limited = text.replace("'SCALE'", "'z_score', limit = 1.5");
    let (batch, bad) = parse(&limited, x()).unwrap();
    assert_eq!((batch.dense, bad.len()), (vec![-1.5, -1.5, z(8.0), 0.0, 1.5], 0), "the last of all");
    let infinite = vec![("x", floats(vec![Some(f64::INFINITY), Some(1e300)]))];
    let text = "dense = [{ column = 'x', scale = 'z_score', limit = 1.5 }]\nstatistics = { x = { mean = 3, std = 1, min = 3, max = 3 } }";
    let (batch, bad) = parse(text, infinite).unwrap();
    assert_eq!((batch.dense, bad.len()), (vec![1.5], 1), "infinity stays a bad value");
    let unit = |x: f64| ((x.ln() - 1.0) * 0.25) as f32;
    assert_eq!(scaled("min_max"), [unit(1.0), unit(1.0), unit(8.0), 0.0, unit(64.0)]);
    let constant =
        "dense = [{ column = 'x', scale = 'SCALE' }]\nstatistics = { x = { mean = 3, std = 0, min = 3, max = 3 } }";
    for kind in ["z_score", "min_max"] {
        assert_eq!(parse(&constant.replace("SCALE", kind), x()).unwrap().0.dense, [0.0; 5]);
    }
}

#[test]
fn hours_and_days_of_the_week_are_those_of_utc_in_every_type() {
    let seconds = [1_795_143_845_i64, -1, 0]; // Friday 20 November 2026 03:04:05, Wednesday 23:59:59, Thursday
    let text: ArrayRef = Arc::new(StringArray::from(vec!["2026-11-20 03:04:05", "1969-12-31T23:59:59", "1970-01-01"]));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(TimestampSecondArray::from(seconds.to_vec())),
        Arc::new(TimestampMillisecondArray::from_iter_values(seconds.map(|s| s * 1000))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(seconds.map(|s| s * 1_000_000)).with_timezone("+05:00")),
        Arc::new(TimestampNanosecondArray::from_iter_values(seconds.map(|s| s * 1_000_000_000))),
        Arc::new(StringArray::from(vec!["2026-11-20T03:04:05Z", "1970-01-01T01:59:59+02:00", "1970-01-01 00:00:00"])),
        text,
    ];
    let expected = |kind: &str, values: [i64; 3]| {
        let hours = one_slot("slots = [{ column = 't', kind = 'int' }]", vec![("t", ints(values.map(Some).to_vec()))]);
        (kind.to_owned(), hours)
    };
    for array in arrays {
        let kind = array.data_type().clone();
        for (part, keys) in [expected("hour", [3, 23, 0]), expected("weekday", [4, 2, 3])] {
            let slot = format!("slots = [{{ column = 't', kind = '{part}' }}]");
            assert_eq!(one_slot(&slot, vec![("t", array.clone())]), keys, "{kind} {part}");
        }
        let dense = "dense = [{ column = 't', transform = 'hour' }, { column = 't', transform = 'weekday' }]";
        assert_eq!(parse(dense, vec![("t", array)]).unwrap().0.dense, [3.0, 23.0, 0.0, 4.0, 2.0, 3.0], "{kind}");
    }
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(-1), None]));
    let (batch, _) =
        parse("dense = [{ column = 't', transform = 'weekday', indicator = true }]", vec![("t", days.clone())])
            .unwrap();
    assert_eq!(batch.dense, [2.0, 0.0, 0.0, 1.0]);
    let said = parse("dense = [{ column = 't', transform = 'hour' }]", vec![("t", days)]).unwrap_err().to_string();
    assert!(said.contains("`t` is Date32, expected timestamps"), "{said}");
    let said =
        parse("slots = [{ column = 't', kind = 'hour' }]", vec![("t", ints(vec![Some(3)]))]).unwrap_err().to_string();
    assert!(said.contains("`t` is Int64, expected timestamps"), "{said}");
}

#[test]
fn text_that_is_no_moment_makes_a_bad_row() {
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("2026-11-20"), Some("yesterday"), None]));
    for columns in ["slots = [{ column = 't', kind = 'weekday' }]", "dense = [{ column = 't', transform = 'hour' }]"] {
        let (batch, bad) = parse(columns, vec![("t", text.clone())]).unwrap();
        assert_eq!((batch.labels.len(), bad), (2, vec![("text is no date or timestamp".into(), 1)]), "{columns}");
    }
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![Some(vec![Some(1)])]);
    let said = parse("dense = [{ column = 't', fill = 1 }]", vec![("t", Arc::new(list))]).unwrap_err().to_string();
    assert!(said.contains("`t` is List") && said.contains("dense feature"), "{said}");
}

#[test]
fn buckets_are_so_many_keys_and_a_missing_value_has_its_own() {
    let values: Vec<Option<i64>> = (0..2000).map(Some).chain([None]).collect();
    let keys = one_slot("slots = [{ column = 'x', buckets = 32 }]", vec![("x", ints(values.clone()))]);
    let (missing, others) = keys.split_last().unwrap();
    let mut counts = std::collections::HashMap::new();
    others.iter().for_each(|key| *counts.entry(*key).or_insert(0) += 1);
    assert_eq!(counts.len(), 32);
    assert!(counts.values().all(|&rows| (20..120).contains(&rows)), "{counts:?}");
    assert_eq!(*missing, *one_slot("slots = ['x']", vec![("x", ints(values))]).last().unwrap());
    assert!(!counts.contains_key(missing));
    let words: ArrayRef =
        Arc::new(vec![Some("a"), Some("b"), Some("a")].into_iter().collect::<DictionaryArray<Int32Type>>());
    let keys = one_slot("slots = [{ column = 'x', buckets = 1000000 }]", vec![("x", words)]);
    assert!(keys[0] == keys[2] && keys[0] != keys[1]);
}

#[test]
fn a_cross_has_a_key_for_each_combination_in_its_order() {
    let a = || ("a", ints(vec![Some(1), Some(1), Some(2), Some(2), None, Some(1)]));
    let b = || ("b", ints(vec![Some(1), Some(2), Some(1), Some(2), Some(1), Some(1)]));
    let cross = |columns: &str| {
        one_slot(&format!("slots = ['a', 'b']\ncrosses = [{{ columns = [{columns}] }}]"), vec![a(), b()])
    };
    let keys = cross("'a', 'b'");
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 5, "a missing value crosses, too");
    assert_eq!(keys[0], keys[5]);
    assert_ne!(cross("'b', 'a'")[1], keys[1]);
    let buckets = one_slot("slots = ['a', 'b']\ncrosses = [{ columns = ['a', 'b'], buckets = 2 }]", vec![a(), b()]);
    assert!(buckets.iter().collect::<HashSet<_>>().len() <= 2);

    let list = |rows: Vec<Vec<i64>>| -> ArrayRef {
        let rows = rows.into_iter().map(|row| Some(row.into_iter().map(Some)));
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
    };
    let three = "slots = ['a', 'b', 'c']\ncrosses = [{ columns = ['a', 'b', 'c'] }]";
    let c = || ("c", list(vec![vec![5, 6], vec![], vec![5], vec![6], vec![7], vec![5]]));
    let mut batch = parse(three, vec![a(), b(), c()]).unwrap().0;
    let SlotKeys::Many { offsets, keys } = batch.slots.pop().unwrap() else { panic!() };
    assert_eq!(offsets, [0, 2, 2, 3, 4, 5, 6]);
    assert!(keys[0] == keys[5] && keys[0] != keys[1]);
    let scalar = || ("c", ints(vec![Some(5), Some(5), Some(5), Some(6), Some(7), Some(5)]));
    let one = one_slot(three, vec![a(), b(), scalar()]);
    assert_eq!((one[0], one[3]), (keys[0], keys[3]), "a list of one value is that value");
}

#[test]
fn a_row_of_too_many_combinations_is_a_bad_row() {
    let list = |sizes: [i64; 2]| -> ArrayRef {
        let rows = sizes.map(|size| Some((0..size).map(Some)));
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
    };
    let text = "slots = ['a', 'b']\ncrosses = [{ columns = ['a', 'b'] }]";
    let (batch, bad) = parse(text, vec![("a", list([64, 65])), ("b", list([64, 64]))]).unwrap();
    assert_eq!((batch.labels.len(), bad), (1, vec![("too many combinations in a cross".into(), 1)]));
    assert_eq!(batch.slots[2].keys(0, 1).len(), 4096);
}

#[test]
fn slots_without_a_kind_that_share_a_key_space_must_have_types_that_hash_alike() {
    let slots = "slots = [{ column = 'a', kind = 'hex' }, { column = 'b', key_space = 'a' }]";
    let a = || ("a", Arc::new(StringArray::from(vec!["ff"])) as ArrayRef);
    let keys = parse(slots, vec![a(), ("b", ints(vec![Some(255)]))]).unwrap().0.slots;
    assert_eq!(keys[0], keys[1]);
    let said = parse(slots, vec![a(), ("b", Arc::new(StringArray::from(vec!["ff"])))]).unwrap_err().to_string();
    assert!(said.contains("`a` (hex) and `b` (string)") && said.contains("key space `a`"), "{said}");
}

#[test]
fn infinity_has_a_logarithmic_bucket_and_nan_is_missing() {
    let x = floats(vec![Some(f64::INFINITY), Some(f64::NAN), None, Some(f64::NEG_INFINITY), Some(1e308)]);
    let keys = one_slot("slots = [{ column = 'x', kind = 'log_bucket' }]", vec![("x", x)]);
    assert_eq!(keys[1], keys[2]);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 4);
}

#[test]
fn unsigned_integers_beyond_those_with_a_sign_are_dense_values_and_no_missing_ones() {
    let x: ArrayRef = Arc::new(UInt64Array::from(vec![Some(7), None, Some(1 << 63), Some(u64::MAX)]));
    let (batch, _) = parse("dense = ['x', { column = 'x', transform = 'none' }]", vec![("x", x)]).unwrap();
    let large = [(1_u64 << 63) as f32, u64::MAX as f32];
    assert_eq!(batch.dense_column(1), [7.0, 0.0, large[0], large[1]]);
    let log = |x: f32| f64::from(x).ln_1p() as f32;
    assert_eq!(batch.dense_column(0), [log(7.0), 0.0, log(large[0]), log(large[1])]);
}

#[test]
fn a_list_that_is_cut_keeps_its_first_or_last_values_and_what_is_cut_off_is_not_looked_at() {
    let words = [Some(vec!["a", "b", "no hex"]), None, Some(vec![]), Some(vec!["no hex", "c", "d"]), Some(vec!["e"])];
    let list = || {
        let mut list = ListBuilder::new(StringBuilder::new());
        for words in words.clone() {
            list.append_option(words.map(|words| words.into_iter().map(Some).collect::<Vec<_>>()));
        }
        let list: ArrayRef = Arc::new(list.finish());
        vec![("x", list.slice(1, 4))]
    };
    let cut = |how: &str| {
        let (mut batch, bad) = parse(&format!("slots = [{{ column = 'x', kind = 'hex'{how} }}]"), list()).unwrap();
        let SlotKeys::Many { offsets, keys } = batch.slots.pop().unwrap() else { panic!() };
        (offsets, keys, bad)
    };
    let bad = vec![("category is not hexadecimal".into(), 1)];
    let (_, single, _) = cut(", last = 1");
    let (offsets, keys, none) = cut(", last = 2");
    assert_eq!((offsets, keys.len(), none), (vec![0, 0, 0, 2, 3], 3, vec![]));
    assert_eq!(single, keys[1..], "the last one is the last of the last two");
    let (offsets, rest, said) = cut(", last = 3");
    assert_eq!((offsets, &rest[..], said), (vec![0, 0, 0, 1], &keys[2..], bad.clone()));
    assert_eq!(cut(""), cut(", first = 3"), "a list that is no longer than the number is whole");
    let (offsets, first, said) = cut(", first = 1");
    assert_eq!((offsets, &first[..], said), (vec![0, 0, 0, 1], &keys[2..], bad));
}

/// A bug: of a column of `float`, 0.7 fell into the bucket below the boundary 0.7.
#[test]
fn numbers_of_32_bits_fall_into_the_buckets_of_the_same_numbers_of_64_bits() {
    let tenths: Vec<f64> = (0..=10).map(|i| f64::from(i) / 10.0).collect();
    let keys = |array: ArrayRef| {
        let slot = "slots = [{ column = 'x', kind = 'boundaries', boundaries = [0.1, 0.3, 0.5, 0.7, 0.9] }]";
        let SlotKeys::One(keys) = parse(slot, vec![("x", array)]).unwrap().0.slots.pop().unwrap() else { panic!() };
        keys
    };
    let floats = Float32Array::from_iter_values(tenths.iter().map(|&x| x as f32));
    assert_eq!(keys(Arc::new(floats)), keys(Arc::new(Float64Array::from(tenths))));
}

#[test]
fn lists_are_read_without_their_padding() {
    let parsed = |list: ArrayRef, how: &str| {
        let columns = format!("slots = [{{ column = 'x'{how} }}]");
        let (mut batch, bad) = parse(&columns, vec![("x", list)]).unwrap();
        let SlotKeys::Many { offsets, keys } = batch.slots.pop().unwrap() else { panic!() };
        (offsets, keys, bad)
    };
    let integers = |rows: &[Option<&[i64]>]| -> ArrayRef {
        let rows = rows.iter().map(|row| row.map(|row| row.iter().copied().map(Some)));
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
    };
    let strings = |rows: &[Option<&[&str]>]| -> ArrayRef {
        let mut list = ListBuilder::new(StringBuilder::new());
        rows.iter().for_each(|row| list.append_option(row.map(|row| row.iter().copied().map(Some))));
        Arc::new(list.finish())
    };
    let full: [Option<&[i64]>; 5] = [Some(&[9]), Some(&[0, 0, 7, 8]), None, Some(&[0, 0, 0, 0]), Some(&[5, 0, 6, 0])];
    let bare: [Option<&[i64]>; 5] = [Some(&[9]), Some(&[7, 8]), None, Some(&[]), Some(&[5, 6])];
    for how in ["", ", last = 1", ", first = 1", ", kind = 'int'", ", kind = 'hex'", ", buckets = 2"] {
        for padding in ["0", "'0'"] {
            let found = parsed(integers(&full).slice(1, 4), &format!("{how}, padding = {padding}"));
            assert_eq!(found, parsed(integers(&bare).slice(1, 4), how), "{how}");
        }
    }
    let full: [Option<&[&str]>; 3] = [Some(&["<pad>", "a"]), None, Some(&["b", "<pad>", "c"])];
    let bare: [Option<&[&str]>; 3] = [Some(&["a"]), None, Some(&["b", "c"])];
    assert_eq!(parsed(strings(&full), ", padding = '<pad>'"), parsed(strings(&bare), ""));
    let numbers = [Some(&["0", "12"][..])];
    assert_eq!(parsed(strings(&numbers), ", padding = 0").0, [0, 1]);
    let hex = |rows: &[Option<&[&str]>], how: &str| parsed(strings(rows), &format!(", kind = 'hex'{how}"));
    assert_eq!(hex(&[Some(&["00", "0F", "f"])], ", padding = '0'"), hex(&[Some(&["f", "f"])], ""));
    // A wrong value stands where it stands without the padding, and does not count where it is cut off.
    let wrong: [Option<&[&str]>; 2] = [Some(&["0", "a", "no hex"]), Some(&["0", "no hex", "0", "c"])];
    let bad = |rows| [("category is not hexadecimal".to_owned(), rows)];
    assert_eq!(hex(&wrong, ", padding = 0").2, bad(2));
    for (cut, good) in [("last = 1", "c"), ("first = 1", "a")] {
        let (offsets, keys, said) = hex(&wrong, &format!(", padding = 0, {cut}"));
        assert_eq!((offsets, said), (vec![0, 1], bad(1).to_vec()));
        assert_eq!(keys, hex(&[Some(&[good])], "").1);
    }
}

#[test]
fn a_row_with_several_values_where_one_is_expected_is_a_bad_row() {
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1)]),
        Some(vec![Some(1), Some(2)]),
        Some(vec![]),
        None,
    ]));
    let labels: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
    let batch = RecordBatch::try_from_iter_with_nullable([("label", labels, true), ("x", list, true)]).unwrap();
    let columns: Columns = toml::from_str("label = 'label'\ndense = []\nslots = ['x']").unwrap();
    let cx = StageCx::detached("parse");
    let (mut out, collected) = Outbox::collecting();
    let mut stage = Parse::new(&columns, 7, OnBadRow::Skip).one_value_in(vec![0]);
    let rows = Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
    block_on(stage.on_batch(rows.clone(), &cx, &mut out)).unwrap();
    assert_eq!(collected.take().pop().unwrap().labels.len(), 3);
    assert_eq!(cx.ledger().snapshot().rejected.into_values().collect::<Vec<_>>(), [1]);
    let mut strict = Parse::new(&columns, 7, OnBadRow::Fail).one_value_in(vec![0]);
    let said = block_on(strict.on_batch(rows, &cx, &mut out)).unwrap_err().to_string();
    assert!(
        said.contains("`x` has 2 values, expected one in a target of model.attention and in model.item_id"),
        "{said}"
    );
}

/// Rows of lists of numbers; `None` is a missing list.
fn vectors(rows: Vec<Option<Vec<Option<f32>>>>) -> ListArray {
    ListArray::from_iter_primitive::<Float32Type, _, _>(rows)
}

#[test]
fn a_list_of_numbers_is_as_many_inputs() {
    let rows =
        || vec![Some(vec![Some(1.0), Some(2.0)]), None, Some(vec![None, Some(9.0)]), Some(vec![Some(3.0), Some(4.0)])];
    let list: ArrayRef = Arc::new(vectors(rows()));
    let large =
        arrow::compute::cast(&list, &DataType::LargeList(Arc::new(Field::new_list_field(DataType::Float64, true))));
    let fixed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows(), 2);
    for lists in [list.clone(), large.unwrap(), Arc::new(fixed)] {
        let (batch, bad) = parse("dense = [{ column = 'v', length = 2 }]", vec![("v", lists.clone())]).unwrap();
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(
            (batch.dense_column(0), batch.dense_column(1)),
            (&[1.0, 0.0, 0.0, 3.0][..], &[2.0, 0.0, 9.0, 4.0][..])
        );
        let options = "dense = [{ column = 'v', length = 2, indicator = true, fill = -1, clip = { max = 3 } }, 'x']";
        let (batch, _) = parse(options, vec![("v", lists), ("x", floats(vec![Some(0.5); 4]))]).unwrap();
        assert_eq!(
            (batch.dense_column(0), batch.dense_column(1)),
            (&[1.0, -1.0, -1.0, 3.0][..], &[2.0, -1.0, 3.0, 3.0][..])
        );
        assert_eq!((batch.dense_column(2), batch.dense_column(3)), (&[0.0, 1.0, 1.0, 0.0][..], &[0.5; 4][..]));
    }
    // The lists of a slice begin in the middle of their values.
    let (batch, _) = parse("dense = [{ column = 'v', length = 2 }]", vec![("v", list.slice(3, 1))]).unwrap();
    assert_eq!(batch.dense, [3.0, 4.0]);
    let none: ArrayRef = Arc::new(NullArray::new(2));
    let (batch, _) = parse("dense = [{ column = 'v', length = 3, indicator = true }]", vec![("v", none)]).unwrap();
    assert_eq!(batch.dense, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_list_of_another_length_or_with_a_number_that_is_not_finite_is_a_bad_row() {
    let v: ArrayRef = Arc::new(vectors(vec![
        Some(vec![Some(1.0)]),
        Some(vec![Some(1.0), Some(f32::NAN)]),
        Some(vec![]),
        Some(vec![Some(1.0), Some(2.0), Some(3.0)]),
        Some(vec![Some(5.0), Some(6.0)]),
    ]));
    let (batch, bad) = parse("dense = [{ column = 'v', length = 2 }]", vec![("v", v.clone())]).unwrap();
    assert_eq!(batch.dense, [5.0, 6.0]);
    assert_eq!(bad, [("dense value is not finite".into(), 1), ("dense vector of another length".into(), 3)]);
    let refused = |dense: &str, array: ArrayRef| parse(dense, vec![("v", array)]).unwrap_err().to_string();
    assert!(refused("dense = ['v']", v.clone()).contains("{ column = ..., length = ... }"));
    let numbers = refused("dense = [{ column = 'v', length = 2 }]", floats(vec![Some(1.0)]));
    assert!(numbers.contains("`v` is Float64, expected lists of numbers"), "{numbers}");
    let text: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Date32Type, _, _>([Some([Some(1), Some(2)])]));
    assert!(refused("dense = [{ column = 'v', length = 2 }]", text).contains("expected integers, floating-point"));
}

#[test]
fn slots_take_lists_and_binary_values_of_a_fixed_size() {
    let list = |fixed: bool| -> ArrayRef {
        let rows = [Some([Some(1), Some(2)]), None, Some([Some(3), Some(4)])];
        match fixed {
            true => Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(rows, 2)),
            false => Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows)),
        }
    };
    let keys = |array| parse("slots = ['s']", vec![("s", array)]).unwrap().0.slots.pop().unwrap();
    assert_eq!(keys(list(true)), keys(list(false)));
    let values = [b"ab", b"cd"];
    let fixed = FixedSizeBinaryArray::try_from_iter(values.into_iter()).unwrap();
    let binary = BinaryArray::from_iter_values(values);
    assert_eq!(keys(Arc::new(fixed)), keys(Arc::new(binary)));
}

/// Lists of numbers, by rows.
fn number_lists(rows: Vec<Option<Vec<Option<f64>>>>) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows))
}

fn integer_lists(rows: Vec<Option<Vec<Option<i64>>>>) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

/// Offsets, keys and weights of a slot, and the reasons of bad rows.
type Weighted = (Vec<u32>, Vec<u64>, Vec<f32>, Vec<(String, u64)>);

fn weighted(text: &str, columns: Vec<(&str, ArrayRef)>) -> Weighted {
    let (mut batch, bad) = parse(text, columns).unwrap();
    let SlotKeys::Weighted { offsets, keys, weights } = batch.slots.pop().unwrap() else { panic!() };
    (offsets, keys, weights, bad)
}

#[test]
fn values_have_the_weights_that_stand_at_their_places_and_lists_are_cut_together() {
    let some = |values: &[i64]| Some(values.iter().map(|&value| Some(value)).collect());
    let x = integer_lists(vec![some(&[9]), some(&[1, 2, 3]), None, Some(vec![]), some(&[2, 2, 1]), Some(vec![None])]);
    let numbers = |values: &[f64]| Some(values.iter().map(|&value| Some(value)).collect());
    let w = [numbers(&[7.0]), numbers(&[0.5, 0.0, 2.0]), None, None, numbers(&[1.0, 3.0, 4.0]), numbers(&[6.0])];
    let w = number_lists(w.into());
    let columns = || vec![("x", x.slice(1, 5)), ("w", w.slice(1, 5))];
    let plain = |cut: &str| {
        let (mut batch, _) = parse(&format!("slots = [{{ column = 'x'{cut} }}]"), columns()).unwrap();
        let SlotKeys::Many { offsets, keys } = batch.slots.pop().unwrap() else { panic!() };
        (offsets, keys)
    };
    for (cut, expected) in [
        ("", &[0.5, 0.0, 2.0, 1.0, 3.0, 4.0, 6.0][..]),
        (", first = 2", &[0.5, 0.0, 1.0, 3.0, 6.0]),
        (", last = 1", &[2.0, 4.0, 6.0]),
        (", buckets = 100", &[0.5, 0.0, 2.0, 1.0, 3.0, 4.0, 6.0]),
        (", kind = 'boundaries', boundaries = [2]", &[0.5, 0.0, 2.0, 1.0, 3.0, 4.0, 6.0]),
    ] {
        let (offsets, keys, weights, bad) =
            weighted(&format!("slots = [{{ column = 'x', weights = 'w'{cut} }}]"), columns());
        assert_eq!((offsets, keys), plain(cut), "{cut}");
        assert_eq!((&weights[..], bad), (expected, vec![]), "{cut}");
    }
    // Numbers of any type, in lists of any kind.
    let wide = arrow::compute::cast(&w, &DataType::LargeList(Arc::new(Field::new_list_field(DataType::Float32, true))))
        .unwrap();
    let slots = "slots = [{ column = 'x', weights = 'w' }]";
    assert_eq!(weighted(slots, vec![("x", x.clone()), ("w", wide)]), weighted(slots, vec![("x", x), ("w", w)]));
    let counts = integer_lists(vec![some(&[3, 0])]);
    assert_eq!(weighted(slots, vec![("x", integer_lists(vec![some(&[1, 2])])), ("w", counts)]).2, [3.0, 0.0]);
    // Values that are no lists, as in CSV.
    let single = vec![("x", ints(vec![Some(5), None])), ("w", floats(vec![Some(0.25), Some(2.0)]))];
    let (offsets, keys, weights, _) = weighted(slots, single);
    assert_eq!((offsets, keys.len(), weights), (vec![0, 1, 2], 2, vec![0.25, 2.0]));
    let none = vec![("x", integer_lists(vec![None, Some(vec![])])), ("w", Arc::new(NullArray::new(2)) as ArrayRef)];
    assert_eq!(weighted(slots, none), (vec![0, 0, 0], vec![], vec![], vec![]), "no value needs no weight");
}

#[test]
fn rows_whose_weights_do_not_fit_their_values_are_bad_rows() {
    const ANOTHER_NUMBER: &str = "weights of another number than values";
    const BAD_WEIGHT: &str = "weight of a value is not a number from 0 to 1e30";
    let two = || Some(vec![Some(1), Some(2)]);
    let found = |values: Option<Vec<Option<i64>>>, weights: Option<Vec<Option<f64>>>, cut: &str| {
        let columns = vec![
            ("x", integer_lists(vec![two(), values.clone(), two()])),
            ("w", number_lists(vec![Some(vec![Some(1.0), Some(0.5)]), weights, Some(vec![Some(3.0), Some(4.0)])])),
        ];
        let (offsets, _, weights, bad) =
            weighted(&format!("slots = [{{ column = 'x', weights = 'w'{cut} }}]"), columns);
        if cut.is_empty() {
            assert_eq!((offsets, weights), (vec![0, 2, 4], vec![1.0, 0.5, 3.0, 4.0]), "the other rows stay");
        }
        bad
    };
    let bad = |reason: &str| vec![(reason.to_owned(), 1)];
    assert_eq!(found(two(), None, ""), bad(ANOTHER_NUMBER));
    assert_eq!(found(two(), Some(vec![Some(1.0)]), ""), bad(ANOTHER_NUMBER));
    assert_eq!(found(two(), Some(vec![Some(1.0); 3]), ""), bad(ANOTHER_NUMBER));
    assert_eq!(found(None, Some(vec![Some(1.0)]), ""), bad(ANOTHER_NUMBER));
    assert_eq!(found(two(), Some(vec![Some(1.0); 3]), ", last = 1"), bad(ANOTHER_NUMBER), "not which is whose");
    for wrong in [None, Some(f64::NAN), Some(f64::INFINITY), Some(-0.5), Some(1e300)] {
        assert_eq!(found(two(), Some(vec![Some(1.0), wrong]), ""), bad(BAD_WEIGHT), "{wrong:?}");
        assert_eq!(found(two(), Some(vec![Some(1.0), wrong]), ", last = 1"), bad(BAD_WEIGHT), "{wrong:?}");
        assert_eq!(found(two(), Some(vec![Some(1.0), wrong]), ", first = 1"), vec![], "{wrong:?} does not count");
    }
    let slots = "slots = [{ column = 'x', weights = 'w' }]";
    let (mut batch, said) =
        parse(slots, vec![("x", ints(vec![Some(1), Some(2)])), ("w", floats(vec![None, Some(2.0)]))]).unwrap();
    assert_eq!((batch.rows, said), (1, bad(BAD_WEIGHT)));
    assert!(matches!(batch.slots.pop(), Some(SlotKeys::Weighted { weights, .. }) if weights == [2.0]));
    let absent: ArrayRef = Arc::new(NullArray::new(1));
    assert_eq!(parse(slots, vec![("x", ints(vec![Some(1)])), ("w", absent)]).unwrap().1, bad(BAD_WEIGHT));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    let said = parse(slots, vec![("x", ints(vec![Some(1)])), ("w", texts)]).unwrap_err().to_string();
    assert!(said.contains("column `w` is Utf8, expected numbers, for the weights of the values of a slot"), "{said}");
    let said = parse(slots, vec![("x", ints(vec![Some(1)]))]).unwrap_err().to_string();
    assert!(said.contains("no column `w`"), "{said}");
}
