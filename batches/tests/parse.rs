//! The parse stage: every Arrow type a column may have, and every way a row may be bad.

use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::*;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Lineage, Outbox, Stage, StageCx};
use forebay_batches::Parse;
use forebay_batches::{ExampleBatch, SlotKeys};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_job::{Columns, DenseColumn, Slot, SlotKind, Transform};
use futures::executor::block_on;

fn columns(dense: &[&str], slots: &[(&str, SlotKind)]) -> Columns {
    Columns {
        label: "label".into(),
        dense: dense.iter().map(|c| DenseColumn::from((*c).to_owned())).collect(),
        slots: slots
            .iter()
            .map(|&(column, kind)| Slot { kind, key_space: Some("space".into()), ..Slot::from(column.to_owned()) })
            .collect(),
        ..Columns::default()
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

fn parse_with(
    columns: Columns,
    on_bad_row: OnBadRow,
    batches: Vec<RecordBatch>,
) -> Result<(Vec<ExampleBatch>, StageCx), Fault> {
    parse_by(Parse::new(&columns, 0, on_bad_row), batches)
}

fn parse_by(mut stage: Parse, batches: Vec<RecordBatch>) -> Result<(Vec<ExampleBatch>, StageCx), Fault> {
    let (cx, (mut out, collected)) = (StageCx::detached("parse"), Outbox::collecting());
    block_on(async {
        stage.open(&cx).await?;
        for batch in batches {
            stage.on_batch(rows(batch, Lineage::default()), &cx, &mut out).await?;
        }
        stage.finish(&cx, &mut out).await
    })?;
    Ok((collected.take(), cx))
}

fn rows(batch: RecordBatch, lineage: Lineage) -> Rows {
    Rows { batch, lineage, window: WindowMark::default(), rejected: 0, places: None }
}

/// The columns of a job's `label` alone.
fn label_columns(label: &str) -> Columns {
    let label = toml::from_str::<Columns>(&format!("label = {label}")).unwrap().label;
    Columns { label, ..columns(&[], &[]) }
}

fn one(columns: Columns, batch: RecordBatch) -> Result<ExampleBatch, Fault> {
    parse_with(columns, OnBadRow::Fail, vec![batch]).map(|(mut batches, _)| batches.pop().unwrap())
}

fn labels(n: usize) -> ArrayRef {
    Arc::new(Int32Array::from(vec![1; n]))
}

fn slot(kind: SlotKind, array: ArrayRef) -> Result<SlotKeys, Fault> {
    let batch = batch(vec![("label", labels(array.len())), ("c", array)]);
    one(columns(&[], &[("c", kind)]), batch).map(|b| b.slots[0].clone())
}

#[test]
fn integers_of_every_width_give_the_same_keys() {
    let expected = slot(SlotKind::Auto, Arc::new(Int64Array::from(vec![3, 0, 120]))).unwrap();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int8Array::from(vec![3, 0, 120])),
        Arc::new(UInt8Array::from(vec![3, 0, 120])),
        Arc::new(Int16Array::from(vec![3, 0, 120])),
        Arc::new(Int32Array::from(vec![3, 0, 120])),
        Arc::new(UInt32Array::from(vec![3, 0, 120])),
        Arc::new(UInt64Array::from(vec![3, 0, 120])),
    ];
    for array in arrays {
        let kind = array.data_type().clone();
        assert_eq!(slot(SlotKind::Int, array).unwrap(), expected, "{kind}");
    }
}

#[test]
fn strings_of_every_kind_give_the_same_keys() {
    let text = ["ab", "", "ab", "ü"];
    let expected = slot(SlotKind::Auto, Arc::new(StringArray::from(text.to_vec()))).unwrap();
    let SlotKeys::One(keys) = &expected else { panic!("{expected:?}") };
    assert_eq!(keys[0], keys[2]);
    assert_ne!(keys[0], keys[1]);
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(LargeStringArray::from(text.to_vec())),
        Arc::new(StringViewArray::from(text.to_vec())),
        Arc::new(text.into_iter().collect::<DictionaryArray<Int32Type>>()),
        Arc::new(text.into_iter().collect::<DictionaryArray<UInt16Type>>()),
    ];
    for array in arrays {
        let kind = array.data_type().clone();
        assert_eq!(slot(SlotKind::String, array).unwrap(), expected, "{kind}");
    }
}

#[test]
fn hex_strings_and_the_integers_they_stand_for_are_one_key_and_empty_is_missing() {
    let integers = slot(SlotKind::Hex, Arc::new(UInt32Array::from(vec![Some(0x68fd_1e64), None, Some(255)]))).unwrap();
    let strings = slot(SlotKind::Hex, Arc::new(StringArray::from(vec!["68fd1e64", "", "000000FF"]))).unwrap();
    let nulls = slot(SlotKind::Hex, Arc::new(StringArray::from(vec![Some("68fd1e64"), None, Some("ff")]))).unwrap();
    assert_eq!(integers, strings);
    assert_eq!(integers, nulls);
    let dictionary: DictionaryArray<Int32Type> = ["68fd1e64", "", "ff"].into_iter().collect();
    assert_eq!(slot(SlotKind::Hex, Arc::new(dictionary)).unwrap(), integers);
}

#[test]
fn a_dictionary_that_changes_between_batches_is_hashed_anew() {
    let make = |words: [&str; 2]| {
        let dictionary: DictionaryArray<Int32Type> = words.into_iter().collect();
        batch(vec![("label", labels(2)), ("c", Arc::new(dictionary))])
    };
    let columns = columns(&[], &[("c", SlotKind::String)]);
    let same = make(["a", "b"]);
    let (batches, _) =
        parse_with(columns, OnBadRow::Fail, vec![same.clone(), same, make(["b", "c"]), make(["a", "b"])]).unwrap();
    assert_eq!(batches[0].slots, batches[1].slots);
    assert_eq!(batches[0].slots, batches[3].slots);
    assert_eq!(batches[0].slots[0].keys(1, 2), batches[2].slots[0].keys(0, 1));
}

#[test]
fn lists_are_multi_valued_also_when_sliced_or_null() {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(9)]),
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![]),
        Some(vec![Some(1)]),
    ]);
    let sliced: ArrayRef = Arc::new(list.slice(1, 4));
    let SlotKeys::Many { offsets, keys } = slot(SlotKind::Int, sliced.clone()).unwrap() else { panic!() };
    assert_eq!(offsets, [0, 2, 2, 2, 3]);
    assert_eq!(keys[0], keys[2]);
    let scalar = slot(SlotKind::Int, Arc::new(Int32Array::from(vec![1]))).unwrap();
    assert_eq!(scalar.keys(0, 1), &keys[..1]);
    let large =
        arrow::compute::cast(&sliced, &DataType::LargeList(Arc::new(Field::new_list_field(DataType::Int32, true))));
    assert_eq!(slot(SlotKind::Int, large.unwrap()).unwrap(), SlotKeys::Many { offsets, keys });
}

#[test]
fn lists_of_a_slice_without_nulls_begin_at_its_first_value() {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(
        [vec![9, 8], vec![1, 2], vec![], vec![3]].map(|list| Some(list.into_iter().map(Some).collect::<Vec<_>>())),
    );
    let SlotKeys::Many { offsets, keys } = slot(SlotKind::Int, Arc::new(list.slice(1, 3))).unwrap() else { panic!() };
    assert_eq!(offsets, [0, 2, 2, 3]);
    assert_eq!(SlotKeys::One(keys), slot(SlotKind::Int, Arc::new(Int32Array::from(vec![1, 2, 3]))).unwrap());
}

/// 64 values are hashed together, with 64 bits that say which of them are there.
#[test]
fn missing_integers_of_a_slice_have_the_key_of_a_missing_value() {
    let values: Vec<Option<u32>> = (0..300).map(|i| (i % 3 > 0 && i % 7 > 0).then_some(i)).collect();
    let keys = slot(SlotKind::Int, Arc::new(UInt32Array::from(values.clone()).slice(5, 290))).unwrap();
    for (row, value) in values[5..295].iter().enumerate() {
        let alone = slot(SlotKind::Int, Arc::new(UInt32Array::from(vec![*value]))).unwrap();
        assert_eq!(keys.keys(row, row + 1), alone.keys(0, 1), "row {row}");
    }
}

#[test]
fn dense_columns_of_every_number_and_their_transforms() {
    let rows = batch(vec![
        ("label", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("i32", Arc::new(Int32Array::from(vec![Some(7), None, Some(-7)]))),
        ("u8", Arc::new(UInt8Array::from(vec![0, 1, 255]))),
        ("f64", Arc::new(Float64Array::from(vec![Some(0.5), None, Some(-2.0)]))),
        ("c", Arc::new(Int32Array::from(vec![1, 2, 3]))),
    ]);
    let batch = one(columns(&["i32", "u8", "f64"], &[("c", SlotKind::Auto)]), rows).unwrap();
    let log = |x: f64| x.ln_1p() as f32;
    assert_eq!(batch.labels, [1.0, 0.0, 1.0]);
    assert_eq!(batch.dense_column(0)[..2], [log(7.0), 0.0]);
    assert!((batch.dense_column(0)[2] + log(7.0)).abs() < 1e-6);
    assert_eq!(batch.dense_column(1), [0.0, log(1.0), log(255.0)]);
    assert_eq!(batch.dense_column(2), [0.5, 0.0, -2.0]);
}

fn spoiled() -> RecordBatch {
    batch(vec![
        ("label", Arc::new(Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(0.0), Some(1.0), Some(0.0)]))),
        ("d", Arc::new(Float32Array::from(vec![0.0, 0.0, 0.0, f32::NAN, f32::INFINITY, 1.0]))),
        ("c", Arc::new(StringArray::from(vec!["a", "b", "c", "d", "e", "xyz"]))),
    ])
}

#[test]
fn bad_rows_are_counted_by_reason_and_the_rest_goes_on() {
    let columns = columns(&["d"], &[("c", SlotKind::Hex)]);
    let (batches, cx) = parse_with(columns, OnBadRow::Skip, vec![spoiled()]).unwrap();
    assert_eq!(batches.len(), 1);
    assert_eq!((batches[0].labels.as_slice(), batches[0].dense.as_slice()), (&[1.0][..], &[0.0][..]));
    let rejected = cx.ledger().snapshot().rejected;
    assert_eq!((rejected["label is neither 0 nor 1"], rejected["label is missing"]), (1, 1));
    assert_eq!(rejected["dense value is not finite"], 2);
    assert_eq!(rejected["category is not hexadecimal"], 1);
}

#[test]
fn bad_rows_are_written_aside_with_their_reason_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let columns = columns(&["d"], &[("c", SlotKind::Hex)]);
    parse_with(columns, OnBadRow::WriteTo(dir.path().join("bad")), vec![spoiled()]).unwrap();
    let file = std::fs::read_to_string(dir.path().join("bad/parse-0.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    assert_eq!((&lines[4]["row"], &lines[4]["values"]["c"]), (&5.into(), &"xyz".into()));
    assert!(lines[1]["values"]["label"].is_null());
}

/// A bug: a full disk under the file ended the run.
#[test]
fn bad_rows_that_a_full_disk_does_not_take_are_counted_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("parse-0.jsonl")).unwrap();
    let columns = columns(&["d"], &[("c", SlotKind::Hex)]);
    let on_bad_row = OnBadRow::WriteTo(dir.path().to_owned());
    let (batches, cx) = parse_with(columns, on_bad_row, vec![spoiled(), spoiled()]).unwrap();
    assert_eq!(batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), [1, 1]);
    let ledger = cx.ledger().snapshot();
    assert_eq!((ledger.rejected_total(), ledger.unwritten), (10, 10));
}

/// A timestamp that no date is ended the run with a fault of the file.
#[test]
fn a_value_without_a_text_is_written_as_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batch(vec![
        ("label", Arc::new(Int32Array::from(vec![0, 2]))),
        ("c", Arc::new(TimestampSecondArray::from(vec![0, i64::MAX]))),
    ]);
    let columns = columns(&[], &[("c", SlotKind::Auto)]);
    parse_with(columns, OnBadRow::WriteTo(dir.path().to_owned()), vec![rows]).unwrap();
    let line: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("parse-0.jsonl")).unwrap()).unwrap();
    assert_eq!(line["values"]["label"], "2");
    assert!(line["values"]["c"].as_str().unwrap().contains("9223372036854775807"), "{line}");
}

#[test]
fn a_file_of_bad_rows_that_cannot_be_opened_is_refused_before_the_first_row() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("parse-0.jsonl")).unwrap();
    let columns = columns(&[], &[("c", SlotKind::Auto)]);
    let fault = parse_with(columns, OnBadRow::WriteTo(dir.path().to_owned()), Vec::new()).err().unwrap().to_string();
    assert!(fault.contains("cannot write bad rows to") && fault.contains("parse-0.jsonl"), "{fault}");
}

#[test]
fn the_first_bad_row_fails_the_run_and_says_where() {
    let columns = columns(&["d"], &[("c", SlotKind::Hex)]);
    let error = parse_with(columns, OnBadRow::Fail, vec![spoiled()]).unwrap_err().to_string();
    assert!(error.contains("row 1") && error.contains("`label` is 2") && error.contains("on_bad_row"), "{error}");
}

#[test]
fn a_bad_value_in_a_dictionary_spoils_the_rows_that_use_it_only() {
    let dictionary: DictionaryArray<Int32Type> = ["a", "zz", "a"].into_iter().collect();
    let rows = batch(vec![("label", labels(3)), ("c", Arc::new(dictionary))]);
    let (batches, cx) = parse_with(columns(&[], &[("c", SlotKind::Hex)]), OnBadRow::Skip, vec![rows]).unwrap();
    assert_eq!(batches[0].labels.len(), 2);
    assert_eq!(cx.ledger().snapshot().rejected["category is not hexadecimal"], 1);
}

#[test]
fn a_batch_of_bad_rows_only_tells_how_many_they_were() {
    let rows = batch(vec![("label", Arc::new(Int32Array::from(vec![5, 6]))), ("c", labels(2))]);
    let (batches, _) = parse_with(columns(&[], &[("c", SlotKind::Int)]), OnBadRow::Skip, vec![rows]).unwrap();
    assert_eq!((batches.len(), batches[0].labels.len(), batches[0].rejected), (1, 0, 2));
}

#[test]
fn wrong_types_and_missing_columns_name_what_is_there_and_what_was_expected() {
    let rows = || batch(vec![("label", labels(1)), ("c", Arc::new(StringArray::from(vec!["x"])))]);
    let error = |columns| one(columns, rows()).unwrap_err().to_string();
    let e = error(columns(&[], &[("c", SlotKind::Int)]));
    assert!(e.contains("column `c` is Utf8, expected integers"), "{e}");
    let e = error(columns(&["c"], &[("label", SlotKind::Int)]));
    assert!(e.contains("column `c` is Utf8") && e.contains("dense"), "{e}");
    let e = error(columns(&["nowhere"], &[("c", SlotKind::String)]));
    assert!(e.contains("no column `nowhere`: the rows have label, c"), "{e}");
    let mut wrong_label = columns(&[], &[("c", SlotKind::String)]);
    wrong_label.label = "c".into();
    let e = error(wrong_label);
    assert!(e.contains("column `c` is Utf8, expected a number or a boolean"), "{e}");
    assert!(e.contains(r#"label = { column = "c", positive = ["..."] }"#), "{e}");
}

#[test]
fn what_spark_writes_gives_the_same_keys_in_every_unit() {
    let ints = |values: Vec<Option<i64>>| slot(SlotKind::Int, Arc::new(Int64Array::from(values))).unwrap();
    let moments: Vec<(ArrayRef, Vec<Option<i64>>)> = vec![
        (Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)])), vec![Some(-1), None, Some(20_000)]),
        (Arc::new(Date64Array::from(vec![-1, 0, 86_400_000])), vec![Some(-1), Some(0), Some(1)]),
        (Arc::new(TimestampSecondArray::from(vec![-1, 2])), vec![Some(-1_000_000), Some(2_000_000)]),
        (Arc::new(TimestampMillisecondArray::from(vec![-1, 2])), vec![Some(-1000), Some(2000)]),
        (Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None])), vec![Some(-1), None]),
        (Arc::new(TimestampMicrosecondArray::from(vec![7]).with_timezone("UTC")), vec![Some(7)]),
        (Arc::new(TimestampNanosecondArray::from(vec![-1, 1999])), vec![Some(-1), Some(1)]),
        (Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])), vec![Some(1), None, Some(0)]),
    ];
    for (array, expected) in moments {
        let kind = array.data_type().clone();
        assert_eq!(slot(SlotKind::Auto, array).unwrap(), ints(expected), "{kind}");
    }
    let text = slot(SlotKind::String, Arc::new(StringArray::from(vec![Some("ab"), None, Some("")]))).unwrap();
    let binary: BinaryArray = vec![Some(&b"ab"[..]), None, Some(&b""[..])].into();
    // The reader makes dictionaries of the binary values of Parquet.
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
    for to in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView, dictionary.clone()] {
        let array = arrow::compute::cast(&binary, &to).unwrap();
        assert_eq!(slot(SlotKind::Auto, array).unwrap(), text, "{to}");
    }
    let hex = slot(SlotKind::Hex, Arc::new(BinaryArray::from(vec![&b"ff"[..]]))).unwrap();
    assert_eq!(hex, slot(SlotKind::Hex, Arc::new(Int32Array::from(vec![255]))).unwrap());
    let stray: ArrayRef = Arc::new(BinaryArray::from(vec![&b"f\xff"[..]]));
    for to in [DataType::Binary, dictionary] {
        let stray = arrow::compute::cast(&stray, &to).unwrap();
        let stray = slot(SlotKind::Hex, stray).unwrap_err().to_string();
        assert!(stray.contains("is \"f\u{fffd}\", expected up to 16 hexadecimal digits"), "{stray}");
    }
}

#[test]
fn booleans_are_dense_features_as_they_are() {
    let flag = BooleanArray::from(vec![Some(true), None, Some(false)]);
    let rows = batch(vec![("label", labels(3)), ("flag", Arc::new(flag)), ("c", labels(3))]);
    assert_eq!(one(columns(&["flag"], &[("c", SlotKind::Int)]), rows).unwrap().dense, [1.0, 0.0, 0.0]);
}

#[test]
fn types_that_cannot_be_features_say_what_to_do_and_disturb_nobody() {
    let decimal = Decimal128Array::from(vec![1, 0]).with_precision_and_scale(10, 2).unwrap();
    let pair = StructArray::from(vec![(Arc::new(Field::new("a", DataType::Int32, false)), labels(2))]);
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    map.append(true).unwrap();
    map.append(true).unwrap();
    let rows = batch(vec![
        ("label", labels(2)),
        ("amount", Arc::new(decimal)),
        ("pair", Arc::new(pair)),
        ("scores", Arc::new(map.finish())),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![1, 2]))),
        ("date", Arc::new(Date32Array::from(vec![1, 2]))),
        ("c", labels(2)),
    ]);
    let refused = |dense: &[&str], slots: &[(&str, SlotKind)], label: &str| {
        let columns = Columns { label: label.into(), ..columns(dense, slots) };
        one(columns, rows.clone()).unwrap_err().to_string()
    };
    let cast = "`amount` is Decimal128(10, 2), expected";
    for said in
        [refused(&[], &[("amount", SlotKind::Auto)], "label"), refused(&[], &[("amount", SlotKind::Int)], "label")]
    {
        assert!(said.contains(cast) && said.contains("cast it to bigint when it is written"), "{said}");
    }
    for (column, advice) in [("pair", "columns of their own"), ("scores", "list column")] {
        let said = refused(&[], &[(column, SlotKind::Auto)], "label");
        assert!(said.contains(&format!("`{column}` is")) && said.contains(advice), "{said}");
    }
    for column in ["at", "date"] {
        let said = refused(&[column], &[("c", SlotKind::Int)], "label");
        assert!(said.contains(&format!("`{column}` is")) && said.contains("make it a slot"), "{said}");
    }
    assert!(one(columns(&[], &[("c", SlotKind::Int)]), rows.clone()).is_ok());
}

#[test]
fn decimals_are_numbers() {
    let small = Decimal128Array::from(vec![Some(100), Some(0), None]).with_precision_and_scale(10, 2).unwrap();
    let large = cast(&small, &DataType::Decimal256(60, 4)).unwrap();
    for decimals in [Arc::new(small) as ArrayRef, large] {
        let rows = batch(vec![
            ("label", decimals.slice(0, 2)),
            ("amount", decimals.slice(0, 2)),
            ("scaled", decimals.slice(1, 2)),
            ("c", labels(2)),
        ]);
        let mut columns = columns(&["amount", "scaled"], &[("c", SlotKind::Int), ("amount", SlotKind::LogBucket)]);
        columns.dense[1].fill = Some(7.0);
        let parsed = one(columns, rows).unwrap();
        assert_eq!(parsed.labels, [1.0, 0.0]);
        assert_eq!((parsed.dense_column(0), parsed.dense_column(1)), (&[1.0, 0.0][..], &[0.0, 7.0][..]));
        let (found, bad) = labelled("{ column = 'label', positive = '> 0.5' }", decimals).unwrap();
        assert_eq!((found, bad), (vec![1.0, 0.0], vec![("label is missing".into(), 1)]));
    }
}

#[test]
fn ages_are_the_time_from_a_moment_to_that_of_another_column_or_to_a_given_one() {
    let day = 86_400_000_i64;
    let signup: ArrayRef = Arc::new(Date32Array::from(vec![Some(20_000), Some(20_000), None, Some(20_010)]));
    let event: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![
        Some(20_001 * day + day / 2),
        None,
        Some(20_001 * day),
        Some(20_000 * day),
    ]));
    let texts: ArrayRef =
        Arc::new(StringArray::from(vec!["2024-10-04 12:00:00", "2024-10-05", "2024-10-05T06:00:00", "2024-10-05"]));
    let label: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
    let rows = batch(vec![("label", label), ("signup", signup), ("event", event), ("text", texts)]);
    let ages = |dense: &str| {
        let columns: Columns = toml::from_str(&format!("dense = [{dense}]\nslots = []\nlabel = 'label'")).unwrap();
        one(columns, rows.clone()).map(|batch| batch.dense).map_err(|fault| fault.to_string())
    };
    let days = "{ column = 'signup', transform = 'age_days', at = 'event'";
    assert_eq!(ages(&format!("{days} }}")).unwrap(), [1.5, 0.0, 0.0, -10.0]);
    let options = format!("{days}, fill = 3, indicator = true, clip = {{ min = 0 }} }}");
    assert_eq!(ages(&options).unwrap(), [1.5, 3.0, 3.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    let hours = "{ column = 'text', transform = 'age_hours', at = '2024-10-05T12:00:00' }";
    assert_eq!(ages(hours).unwrap(), [24.0, 12.0, 6.0, 12.0]);
    let said = ages("{ column = 'signup', transform = 'age_days', at = 'label' }").unwrap_err();
    assert!(said.contains("column `label` is Int32, expected dates or timestamps"), "{said}");
    let said = ages("{ column = 'signup', transform = 'age_days', at = 'nowhere' }").unwrap_err();
    assert!(said.contains("no column `nowhere`"), "{said}");
}

#[test]
fn boundaries_cut_numbers_of_any_type_and_leave_strings() {
    let text = "slots = [{ column = 'x', kind = 'boundaries', boundaries = [-1, 2.5, 7] }]\ndense = []\nlabel = 'x'";
    let columns: Columns = toml::from_str(text).unwrap();
    let keys = |values: ArrayRef| {
        let label: ArrayRef = Arc::new(Int32Array::from(vec![1; values.len()]));
        let columns = Columns { label: "label".into(), ..columns.clone() };
        match one(columns, batch(vec![("label", label), ("x", values)])).map(|batch| batch.slots[0].clone()) {
            Ok(SlotKeys::One(keys)) => Ok(keys),
            Ok(_) => panic!("no lists"),
            Err(fault) => Err(fault.to_string()),
        }
    };
    let floats =
        keys(Arc::new(Float64Array::from(vec![Some(-1.5), Some(-1.0), Some(2.5), Some(7.0), Some(f64::INFINITY)])))
            .unwrap();
    assert_eq!(floats.iter().collect::<std::collections::HashSet<_>>().len(), 4, "both ends are open");
    assert_eq!(floats[3], floats[4]);
    let odd =
        keys(Arc::new(Float32Array::from(vec![Some(2.4), Some(f32::NAN), None, Some(f32::NEG_INFINITY)]))).unwrap();
    assert_eq!((odd[0], odd[1], odd[3]), (floats[1], odd[2], floats[0]), "NaN is missing");
    assert_eq!(keys(Arc::new(Int64Array::from(vec![-2, 0, 3, 7, 900]))).unwrap(), floats);
    assert!(keys(Arc::new(StringArray::from(vec!["1"]))).unwrap_err().contains("expected numbers"));
}

#[test]
fn log_buckets_take_numbers_and_leave_strings() {
    let keys =
        slot(SlotKind::LogBucket, Arc::new(Int32Array::from(vec![Some(100), Some(101), Some(5000), None]))).unwrap();
    let SlotKeys::One(keys) = keys else { panic!() };
    assert_eq!(keys[0], keys[1]);
    assert!(keys[2] != keys[0] && keys[3] != keys[0]);
    assert!(slot(SlotKind::LogBucket, Arc::new(StringArray::from(vec!["1"]))).is_err());
}

/// Labels, and the ledger's counts of bad rows.
type Labelled = (Vec<f32>, Vec<(String, u64)>);

/// Parses labels by the `label` of a job.
fn labelled(label: &str, array: ArrayRef) -> Result<Labelled, Fault> {
    let (batches, cx) = parse_with(label_columns(label), OnBadRow::Skip, vec![batch(vec![("label", array)])])?;
    let rejected = cx.ledger().snapshot().rejected;
    Ok((batches[0].labels.clone(), rejected.into_iter().map(|(reason, rows)| (reason.to_string(), rows)).collect()))
}

#[test]
fn several_labels_are_columns_and_a_row_without_one_of_them_is_bad() {
    let columns = label_columns("['label', { column = 'stars', positive = '>= 4' }, 'buy']");
    let ints = |values: Vec<Option<i32>>| Arc::new(Int32Array::from(values)) as ArrayRef;
    let rows = batch(vec![
        ("label", ints(vec![Some(1), Some(0), Some(1), Some(1)])),
        ("stars", ints(vec![Some(5), Some(4), None, Some(4)])),
        ("buy", ints(vec![Some(0), Some(1), Some(2), Some(1)])),
    ]);
    let (batches, cx) = parse_with(columns.clone(), OnBadRow::Skip, vec![rows.clone()]).unwrap();
    assert_eq!((batches[0].rows, &batches[0].labels[..]), (3, &[1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0][..]));
    assert_eq!(cx.ledger().snapshot().rejected.values().sum::<u64>(), 1, "a row is rejected once");
    // A conversion without a click counts as no conversion.
    let stage = Parse::new(&columns, 0, OnBadRow::Skip).conversions_after_clicks(true);
    assert_eq!(parse_by(stage, vec![rows]).unwrap().0[0].label_column(1), [1.0, 0.0, 1.0]);
}

/// The labels as text, as NaN is not equal to itself.
#[test]
fn a_label_that_is_masked_may_be_missing_if_another_one_is_there() {
    let columns = label_columns(
        "[{ column = 'label', mask_missing = true }, { column = 'stars', positive = '>= 4', mask_missing = true }, \
         { column = 'what', positive = ['buy'], mask_missing = true }]",
    );
    let rows = batch(vec![
        ("label", Arc::new(Float32Array::from(vec![Some(1.0), None, Some(f32::NAN), Some(2.0), None, None]))),
        ("stars", Arc::new(Int32Array::from(vec![None, Some(5), Some(1), Some(5), None, None]))),
        ("what", Arc::new(StringArray::from(vec![Some("buy"), None, Some("view"), None, None, Some("buy")]))),
    ]);
    let (batches, cx) = parse_with(columns.clone(), OnBadRow::Skip, vec![rows.clone()]).unwrap();
    let found: Vec<String> = (0..3).map(|label| format!("{:?}", batches[0].label_column(label))).collect();
    assert_eq!(found, ["[1.0, NaN, NaN, NaN]", "[NaN, 1.0, 0.0, NaN]", "[1.0, NaN, 0.0, 1.0]"]);
    let rejected = cx.ledger().snapshot().rejected;
    assert_eq!((rejected["label is neither 0 nor 1"], rejected["no label of several"]), (1, 1));
    let said = one(columns, rows.slice(4, 1)).unwrap_err().to_string();
    assert!(said.contains("none of the columns `label`, `stars`, `what` has a value"), "{said}");
    // One that must be there is a bad row without it.
    let one_must = label_columns("['label', { column = 'stars', positive = '>= 4', mask_missing = true }]");
    let said = one(one_must.clone(), rows.slice(1, 1)).unwrap_err().to_string();
    assert!(said.contains("column `label` has no value"), "{said}");
    assert_eq!(one(one_must, rows.slice(0, 1)).unwrap().labels[0], 1.0);
}

/// Without a click there is no conversion, known or not.
#[test]
fn a_conversion_is_unknown_only_where_a_click_may_be() {
    let columns = label_columns("[{ column = 'label', mask_missing = true }, { column = 'buy', mask_missing = true }]");
    let ints = |values: [Option<i32>; 7]| Arc::new(Int32Array::from(values.to_vec())) as ArrayRef;
    let rows = batch(vec![
        ("label", ints([Some(1), Some(0), Some(1), None, None, Some(1), None])),
        ("buy", ints([None, None, Some(1), Some(0), Some(1), Some(0), None])),
    ]);
    let stage = Parse::new(&columns, 0, OnBadRow::Skip).conversions_after_clicks(true);
    let (parsed, cx) = parse_by(stage, vec![rows]).unwrap();
    assert_eq!(format!("{:?}", parsed[0].label_column(0)), "[1.0, 0.0, 1.0, NaN, 1.0]");
    assert_eq!(format!("{:?}", parsed[0].label_column(1)), "[NaN, 0.0, 1.0, 0.0, 0.0]");
    // A buy counts only with a click, so a buy whose click is unknown is unknown, too.
    assert_eq!(cx.ledger().snapshot().rejected["no label of several"], 2);
}

#[test]
fn a_rule_makes_labels_of_numbers_and_texts_and_rows_without_a_value_are_bad() {
    let at_least = "{ column = 'label', positive = '>= 4' }";
    let numbers: ArrayRef = Arc::new(Float32Array::from(vec![Some(3.5), Some(4.0), None, Some(5.0), Some(f32::NAN)]));
    let (labels, bad) = labelled(at_least, numbers).unwrap();
    assert_eq!((labels, bad), (vec![0.0, 1.0, 1.0], vec![("label is missing".into(), 2)]));
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![1, 4, 5]));
    assert_eq!(labelled(at_least, integers.clone()).unwrap().0, [0.0, 1.0, 1.0]);
    let one_of = "{ column = 'label', positive = [1, 5] }";
    assert_eq!(labelled(one_of, integers.clone()).unwrap().0, [1.0, 0.0, 1.0]);

    let words = "{ column = 'label', positive = ['click', 'buy'] }";
    let texts = vec![Some("click"), Some("view"), None, Some("buy"), Some("")];
    for array in [
        Arc::new(StringArray::from(texts.clone())) as ArrayRef,
        Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>()),
    ] {
        let (labels, bad) = labelled(words, array).unwrap();
        assert_eq!((labels, bad), (vec![1.0, 0.0, 1.0, 0.0], vec![("label is missing".into(), 1)]));
    }
    let said = labelled(words, integers).unwrap_err().to_string();
    assert!(said.contains("`label` is Int64, expected text") && said.contains("click"), "{said}");
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"click"[..]]));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
    for array in [arrow::compute::cast(&bytes, &dictionary).unwrap(), bytes] {
        let said = labelled(words, array).unwrap_err().to_string();
        assert!(said.contains("`label` is Binary, expected text or numbers"), "{said}");
    }
    let texts = vec!["4"].into_iter().collect::<DictionaryArray<Int32Type>>();
    for array in [Arc::new(StringArray::from(vec!["4"])) as ArrayRef, Arc::new(texts)] {
        let said = labelled(at_least, array).unwrap_err().to_string();
        assert!(said.contains("`label` is Utf8, expected a number"), "{said}");
    }
}

#[test]
fn soft_labels_are_from_0_to_1() {
    let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.25), Some(1.5), None, Some(1.0), Some(f64::NAN)]));
    let (labels, bad) = labelled("{ column = 'label', soft = true }", values.clone()).unwrap();
    let bad_rows = |reason: &str, count| vec![("label is missing".to_owned(), 2), (reason.to_owned(), count)];
    assert_eq!((labels, bad), (vec![0.25, 1.0], bad_rows("label is not from 0 to 1", 1)));
    assert_eq!(labelled("'label'", values).unwrap().1, bad_rows("label is neither 0 nor 1", 2));
}

#[test]
fn weights_are_finite_and_at_least_0_or_the_row_is_bad() {
    let weights =
        vec![Some(0.0), Some(2.5), None, Some(-1.0), Some(f64::INFINITY), Some(f64::NAN), Some(1e300), Some(1.0)];
    let columns = Columns { weight: Some("w".into()), ..columns(&[], &[]) };
    let rows = batch(vec![("label", labels(8)), ("w", Arc::new(Float64Array::from(weights)))]);
    let (batches, cx) = parse_with(columns.clone(), OnBadRow::Skip, vec![rows]).unwrap();
    assert_eq!(batches[0].weights, [0.0, 2.5, 1.0]);
    let rejected = cx.ledger().snapshot().rejected;
    assert_eq!((rejected["weight is not a number of at least 0"], rejected["weight is above 3.4e38"]), (4, 1));
    let text = batch(vec![("label", labels(1)), ("w", Arc::new(StringArray::from(vec!["1"])))]);
    let said = one(columns, text).unwrap_err().to_string();
    assert!(said.contains("`w` is Utf8, expected a number of at least 0, for a weight"), "{said}");
}

#[test]
fn a_share_of_the_negatives_is_kept_the_same_whatever_the_batches_are() {
    let n = 4000_i32;
    let all = batch(vec![
        (
            "label",
            Arc::new(Int32Array::from_iter_values(
                (0..n).map(|row| if row % 50 == 7 { 5 } else { i32::from(row % 4 == 0) }),
            )),
        ),
        ("I1", Arc::new(Int32Array::from_iter_values(0..n))),
    ]);
    let kept = |cuts: &[usize], epoch: u32, seed: u64| {
        let mut columns = columns(&["I1"], &[]);
        columns.dense[0].transform = Transform::None;
        let cx = StageCx::detached("parse");
        let (mut out, collected) = Outbox::collecting();
        let mut stage = Parse::new(&columns, 0, OnBadRow::Skip).keep_negatives(0.25, seed);
        let mut from = 0;
        for &to in cuts {
            let lineage = Lineage { epoch, split: 3, row: from as u64, ..Lineage::default() };
            block_on(stage.on_batch(rows(all.slice(from, to - from), lineage), &cx, &mut out)).unwrap();
            from = to;
        }
        let batches = collected.take();
        let rejected: u32 = batches.iter().map(|batch| batch.rejected).sum();
        let rows: Vec<f32> = batches.iter().flat_map(|batch| batch.dense.clone()).collect();
        assert_eq!(rejected as usize + rows.len(), n as usize);
        rows
    };
    let whole = kept(&[4000], 0, 1);
    assert_eq!(kept(&[1, 700, 701, 3000, 4000], 0, 1), whole);
    let positives = (0..n).filter(|row| row % 4 == 0 && row % 50 != 7).count();
    let negatives = (0..n).filter(|row| row % 4 != 0 && row % 50 != 7).count();
    assert!((0..n).filter(|row| row % 4 == 0 && row % 50 != 7).all(|row| whole.contains(&(row as f32))));
    let share = (whole.len() - positives) as f64 / negatives as f64;
    assert!((share - 0.25).abs() < 0.03, "{share}");
    assert_ne!(kept(&[4000], 1, 1), whole, "each epoch has negatives of its own");
    assert_ne!(kept(&[4000], 0, 2), whole);
}
