//! The Parquet source: columns, order, budgets, and files that are not what they should be.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Date32Array, Date64Array, DictionaryArray, FixedSizeBinaryArray,
    Float32Array, Int8Array, Int32Array, Int64Array, ListArray, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Date32Type, Field, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Domain, Phase, Source};
use forebay_connectors::inspect::{InspectOptions, inspect};
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{Input, ParquetSource, ReadOptions};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::file::metadata::{KeyValue, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use super::{cx, joined, read, shape};

/// `row` counts through; `label`, `word` (strings, some missing), `items` (lists) are made from it.
pub(crate) fn rows(from: i64, n: usize) -> RecordBatch {
    let ids = from..from + n as i64;
    let word = |i: i64| (i % 5 != 0).then(|| format!("w{}", i % 97));
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(
        ids.clone().map(|i| (i % 7 != 0).then(|| (0..i % 4).map(|k| Some((i + k) as i32)).collect::<Vec<_>>())),
    );
    RecordBatch::try_from_iter([
        ("label", Arc::new(Int32Array::from_iter_values(ids.clone().map(|i| (i % 3 == 0) as i32))) as ArrayRef),
        ("row", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("word", Arc::new(ids.map(word).collect::<StringArray>())),
        ("items", Arc::new(list)),
    ])
    .unwrap()
}

pub(crate) fn write(path: &Path, batch: &RecordBatch, group_rows: usize) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Three files with 4 + 3 + 1 row groups of 100 rows.
pub(crate) fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &rows(0, 400), 100);
    write(&dir.path().join("b.parquet"), &rows(400, 300), 100);
    write(&dir.path().join("c.parquet"), &rows(700, 50), 100);
    dir
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    batch.column_by_name("row").unwrap().as_primitive::<Int64Type>().values().to_vec()
}

fn options() -> ReadOptions {
    ReadOptions { batch_rows: 30, ..ReadOptions::default() }
}

#[tokio::test]
async fn columns_come_by_name_in_the_order_asked_for_and_strings_as_dictionaries() {
    let dir = folder();
    let mut source = ParquetSource::new(dir.path(), options()).columns(["items", "row", "word"]);
    let all = joined(&read(&mut source, &cx()).await.unwrap());
    let names: Vec<_> = all.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["items", "row", "word"]);
    assert_eq!(ids(&all), (0..750).collect::<Vec<_>>());
    let expected = rows(0, 750);
    assert_eq!(all.column(0), expected.column(3));
    assert!(matches!(all.column(2).data_type(), DataType::Dictionary(..)));
    assert_eq!(&arrow::compute::cast(all.column(2), &DataType::Utf8).unwrap(), expected.column(2));
    let mut plain = ParquetSource::new(dir.path(), options()).dictionaries(false);
    assert_eq!(joined(&read(&mut plain, &cx()).await.unwrap()), expected);
    assert_eq!(plain.rows(), 750);
    assert!(plain.describe().contains("3 files, 8 row groups, 750 rows"), "{}", plain.describe());
}

/// A bug: binary columns were decoded value by value, and took more than twice the time of strings.
#[tokio::test]
async fn binary_values_come_as_dictionaries_too() {
    let dir = tempfile::tempdir().unwrap();
    let values: BinaryArray = (0..90).map(|i| if i % 7 == 0 { None } else { Some([b'a' + i % 5, 0xff]) }).collect();
    let kinds = [DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
    let values = kinds.map(|kind| arrow::compute::cast(&values, &kind).unwrap());
    for (i, array) in values.iter().enumerate() {
        let rows = RecordBatch::try_from_iter([("bytes", Arc::clone(array))]).unwrap();
        write(&dir.path().join(format!("{i}.parquet")), &rows, 40);
    }
    let all = joined(&read(&mut ParquetSource::new(dir.path(), options()), &cx()).await.unwrap());
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
    assert_eq!(*all.column(0).data_type(), dictionary);
    let plain = arrow::compute::cast(all.column(0), &DataType::Binary).unwrap();
    assert_eq!([plain.slice(0, 90), plain.slice(90, 90), plain.slice(180, 90)], [0; 3].map(|_| values[0].slice(0, 90)));
    let mut plain = ParquetSource::new(dir.path().join("1.parquet"), options()).dictionaries(false);
    assert_eq!(joined(&read(&mut plain, &cx()).await.unwrap()).column(0), &values[1]);
}

#[tokio::test]
async fn the_order_does_not_depend_on_threads_and_budgets() {
    let dir = folder();
    let shuffled = ReadOptions { shuffle: true, seed: 5, epochs: 2, ..options() };
    let mut first = None;
    for (decode_threads, read_ahead_bytes, decode_ahead_bytes) in
        [(1, 1, 1), (1, 64 << 20, 64 << 20), (3, 10_000, 4_000), (4, 64 << 20, 1), (4, 1, 64 << 20)]
    {
        let options = ReadOptions { decode_threads, read_ahead_bytes, decode_ahead_bytes, ..shuffled.clone() };
        let all = shape(&read(&mut ParquetSource::new(dir.path(), options), &cx()).await.unwrap());
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all);
    }
}

#[tokio::test]
async fn a_row_group_that_many_threads_decode_comes_as_from_one() {
    let dir = tempfile::tempdir().unwrap();
    let all = rows(0, 300_000);
    let of = |columns: &'static [&'static str], path: &Path, decode_threads, read_ahead_bytes| {
        let options = ReadOptions { decode_threads, read_ahead_bytes, batch_rows: 1000, ..ReadOptions::default() };
        ParquetSource::new(path, options).columns(columns.iter().copied())
    };
    for (name, index) in [("with", true), ("without", false)] {
        let path = dir.path().join(format!("{name}.parquet"));
        // Only an index says which rows the pages of `items` hold.
        let properties = WriterProperties::builder()
            .set_offset_index_disabled(!index)
            .set_statistics_enabled(if index { EnabledStatistics::Page } else { EnabledStatistics::None });
        let properties = properties.set_max_row_group_row_count(Some(all.num_rows())).build();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), all.schema(), Some(properties)).unwrap();
        writer.write(&all).unwrap();
        writer.close().unwrap();
        for columns in [&["row", "word"][..], &["row", "items"]] {
            let one = read(&mut of(columns, &path, 1, 64 << 20), &cx()).await.unwrap();
            let cx = cx();
            let many = read(&mut of(columns, &path, 4, 64 << 20), &cx).await.unwrap();
            assert_eq!(shape(&one), shape(&many), "{name} {columns:?}");
            assert_eq!(ids(&joined(&many)), (0..300_000).collect::<Vec<_>>());
            // The budget is smaller than the row group, but its pieces wait for nothing.
            assert_eq!(shape(&read(&mut of(columns, &path, 4, 1), &cx).await.unwrap()), shape(&one));
        }
    }
}

#[tokio::test]
async fn a_shuffle_brings_every_split_once_per_epoch_and_depends_on_the_seed() {
    let dir = folder();
    let order = async |seed| {
        let options = ReadOptions { shuffle: true, seed, epochs: 3, ..options() };
        let all = read(&mut ParquetSource::new(dir.path(), options), &cx()).await.unwrap();
        let epoch =
            |e| -> Vec<i64> { all.iter().filter(|r| r.lineage.epoch == e).flat_map(|r| ids(&r.batch)).collect() };
        [epoch(0), epoch(1), epoch(2)]
    };
    let epochs = order(1).await;
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..750).collect::<Vec<_>>());
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[0], (0..750).collect::<Vec<_>>());
    assert_eq!(order(1).await, epochs);
    assert_ne!(order(2).await, epochs);
}

#[tokio::test]
async fn fetched_bytes_never_exceed_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &rows(0, 60_000), 3_000);
    let text = dir.path().to_string_lossy();
    // How many splits are held at most, by a consumer that takes so many milliseconds for a batch.
    let held = async |budget: u64, takes: u64| {
        let (store, path) = forebay_connectors::Stores::default().open(&text).unwrap();
        let slow = ThrottledStore::new(store, Duration::from_millis(1), Some(400_000_000));
        let counts = slow.counts();
        let options =
            ReadOptions { read_ahead_bytes: budget as usize, decode_ahead_bytes: 1, ..ReadOptions::default() };
        let mut source = ParquetSource::new(Input::in_store(Arc::new(slow), path), options).dictionaries(false);
        source.open(&cx()).await.unwrap();
        let footer = counts.bytes();
        let mut peak = 0;
        let mut read = 0;
        while let Some(rows) = source.next(&cx()).await.unwrap() {
            read += rows.batch.num_rows();
            tokio::time::sleep(Duration::from_millis(takes)).await;
            peak = peak.max(counts.live());
        }
        assert_eq!(read, 60_000);
        let split = (counts.bytes() - footer) / 20;
        assert!(split > 20_000, "{split}");
        let most = budget.max(split + split / 4);
        assert!(counts.peak() <= most.max(footer), "{} of {most} bytes", counts.peak());
        assert_eq!(counts.live(), 0);
        (peak / split).max(1)
    };
    for (budget, splits_held) in [(200_000, 3..12), (1, 1..2)] {
        // A slow consumer: the source fetches as much as it may. On a busy machine that needs one that is slower.
        let mut found = 0;
        for takes in [2, 4, 8, 16, 32, 64] {
            found = held(budget, takes).await;
            assert!(found < splits_held.end, "{found} splits within {budget}");
            if splits_held.contains(&found) {
                break;
            }
        }
        assert!(splits_held.contains(&found), "{found} splits within {budget}");
    }
}

#[tokio::test]
async fn a_dropped_next_loses_nothing() {
    let dir = folder();
    let mut source = ParquetSource::new(dir.path(), options());
    source.open(&cx()).await.unwrap();
    let (mut seen, cx) = (Vec::new(), cx());
    for polls in (0..4).cycle() {
        let rows = {
            let mut next = std::pin::pin!(source.next(&cx));
            let mut got = None;
            for _ in 0..=polls {
                if let std::task::Poll::Ready(rows) = futures::poll!(next.as_mut()) {
                    got = Some(rows.unwrap());
                    break;
                }
                tokio::task::yield_now().await;
            }
            got
        };
        match rows {
            Some(Some(rows)) => seen.extend(ids(&rows.batch)),
            Some(None) => break,
            None => {}
        }
    }
    assert_eq!(seen, (0..750).collect::<Vec<_>>());
}

async fn refused(source: ParquetSource) -> forebay_actors::Fault {
    let mut source = source;
    read(&mut source, &cx()).await.expect_err("it must not be read")
}

#[tokio::test]
async fn what_is_missing_empty_or_of_another_kind_is_named() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let said = refused(ParquetSource::new(at("nope.parquet"), options())).await;
    assert!(said.to_string().contains("nope.parquet") && said.domain == Domain::User, "{said}");
    std::fs::create_dir(at("empty")).unwrap();
    assert!(refused(ParquetSource::new(at("empty"), options())).await.to_string().contains("holds no data"));
    let said = refused(ParquetSource::new(dir.path(), options()).columns(["label", "C1"])).await.to_string();
    for part in ["a.parquet", "no column `C1`", "expected label, C1", "it has label, row, word, items"] {
        assert!(said.contains(part), "{said}");
    }
    let user: ArrayRef = Arc::new(StructArray::from(vec![(
        Arc::new(Field::new("age", DataType::Int64, true)),
        Arc::new(Int64Array::from(vec![7])) as ArrayRef,
    )]));
    write(&at("nested.parquet"), &RecordBatch::try_from_iter([("user", user)]).unwrap(), 10);
    let said = refused(ParquetSource::new(at("nested.parquet"), options()).columns(["user.age"])).await.to_string();
    assert!(said.contains("no column `user.age`: `user` is a struct, whose fields are not read"), "{said}");
    std::fs::remove_file(at("nested.parquet")).unwrap();
    write(&at("none.parquet"), &rows(0, 0), 10);
    let said = refused(ParquetSource::new(at("none.parquet"), options())).await.to_string();
    assert!(said.contains("holds no rows: 1 Parquet file without one"), "{said}");
    std::fs::write(at("text.parquet"), "label\tI1\n".repeat(100)).unwrap();
    let said = refused(ParquetSource::new(at("text.parquet"), options())).await;
    assert!(
        said.to_string().contains("text.parquet` is not a whole Parquet file") && said.domain == Domain::User,
        "{said}"
    );
    let mut encrypted = std::fs::read(at("a.parquet")).unwrap();
    let magic = encrypted.len() - 4;
    encrypted[magic..].copy_from_slice(b"PARE");
    std::fs::write(at("text.parquet"), encrypted).unwrap();
    let said = refused(ParquetSource::new(at("text.parquet"), options())).await.to_string();
    assert!(said.contains("text.parquet` is encrypted"), "{said}");
    let other: ArrayRef = Arc::new(Float32Array::from(vec![1.0]));
    write(&at("d.parquet"), &RecordBatch::try_from_iter([("row", other)]).unwrap(), 10);
    let said = refused(
        ParquetSource::new(Input::all([at("a.parquet").into(), at("d.parquet").into()]), options()).columns(["row"]),
    )
    .await
    .to_string();
    assert!(
        said.contains("column `row` has numbers (Float32) in `") && said.contains("but integers (Int64) in `"),
        "{said}"
    );
}

/// A bug: the file was called damaged.
#[tokio::test]
async fn a_column_that_is_encrypted_under_a_plain_footer_is_named_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &rows(0, 100), 100);
    let footer = ParquetMetaDataReader::new().parse_and_finish(&File::open(&path).unwrap()).unwrap();
    let (start, length) = footer.row_group(0).column(1).byte_range();
    // In place of the header of a page and the page, a writer puts a length and so many encrypted bytes.
    let module = |length: u64| [&(length as u32).to_le_bytes()[..], &vec![0x5a_u8; length as usize]].concat();
    let mut bytes = std::fs::read(&path).unwrap();
    let chunk = &mut bytes[start as usize..(start + length) as usize];
    chunk.copy_from_slice(&[module(42), module(length - 50)].concat());
    std::fs::write(&path, bytes).unwrap();
    let said = refused(ParquetSource::new(&path, options())).await;
    assert!(said.to_string().contains("column `row` of `") && said.domain == Domain::User, "{said}");
    assert!(said.to_string().contains("a.parquet` is encrypted"), "{said}");
    let mut source = ParquetSource::new(&path, options()).columns(["label"]);
    assert_eq!(joined(&read(&mut source, &cx()).await.unwrap()).num_rows(), 100);
}

/// The Arrow schema that polars 2.1 leaves in a footer for `label` of Int64 and `big` of Int128.
const INTEGERS_OF_128_BITS: &str = "/////6oAAAAEAAAA8v///xQAAAAEAAEAAAAKAAsACAAKAAQA+P///wwAAAAIAAgAAAAEAAIAAAA0AAAABAAAA\
    MD///8gAAAAEAAAAAgAAAABAgAAAAAAALj///+AAAAAAQAAAAMAAABiaWcA7P///zgAAAAgAAAAGAAAAAECAAAQABIABAAQABEACAAAAAwAAAAAAPT///9AA\
    AAAAQAAAAgACQAEAAgABQAAAGxhYmVsAA==";

/// A bug: the whole file was called cut short.
#[tokio::test]
async fn a_type_of_the_writer_that_is_not_known_leaves_the_columns_of_the_file_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let label: ArrayRef = Arc::new(Int64Array::from(vec![0, 1]));
    let big: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[1u8; 16], [2u8; 16]].iter()).unwrap());
    let batch = RecordBatch::try_from_iter([("label", label), ("big", big)]).unwrap();
    let schema = KeyValue::new("ARROW:schema".to_owned(), INTEGERS_OF_128_BITS.to_owned());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![schema])).build();
    let written = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(File::create(&path).unwrap(), batch.schema(), written).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let all = joined(&read(&mut ParquetSource::new(&path, options()), &cx()).await.unwrap());
    assert_eq!((&all["label"], &all["big"]), (&batch["label"], &batch["big"]));
    let mut source = ParquetSource::new(&path, options()).columns(["label"]);
    assert_eq!(&joined(&read(&mut source, &cx()).await.unwrap())["label"], &batch["label"]);
}

#[tokio::test]
async fn a_column_that_a_file_has_twice_is_refused_if_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("twice.parquet");
    let fields = ["a", "b", "a"].map(|name| Field::new(name, DataType::Int64, true));
    let columns = (0..3).map(|i| Arc::new(Int64Array::from(vec![i])) as ArrayRef).collect();
    write(&path, &RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).unwrap(), 10);
    for columns in [&["a"][..], &["b", "a"]] {
        let source = ParquetSource::new(&path, options()).columns(columns.iter().copied());
        let said = refused(source).await.to_string();
        assert!(said.contains("twice.parquet` has the column `a` twice, as columns 1 and 3"), "{said}");
    }
    assert!(refused(ParquetSource::new(&path, options())).await.to_string().contains("`a` twice"));
    let mut source = ParquetSource::new(&path, options()).columns(["b"]);
    assert_eq!(joined(&read(&mut source, &cx()).await.unwrap()).column(0).as_primitive::<Int64Type>().values(), &[1]);
}

#[tokio::test]
async fn inspecting_counts_no_values_of_a_struct_and_keeps_large_integers_exact() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let id: ArrayRef = Arc::new(Int64Array::from(vec![7, (1_i64 << 53) + 1]));
    let user: ArrayRef =
        Arc::new(StructArray::from(vec![(Arc::new(Field::new("id", DataType::Int64, true)), Arc::clone(&id))]));
    write(&path, &RecordBatch::try_from_iter([("id", id), ("user", user)]).unwrap(), 10);
    let found = inspect(&path, InspectOptions::default()).await.unwrap();
    assert_eq!((found.columns[0].distinct, found.columns[1].distinct), (Some(2), None));
    let line = found.to_string().lines().next_back().unwrap().split_whitespace().rev().take(3).collect::<String>();
    assert_eq!(line, "---", "distinct, min and max of a struct: {found}");
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["columns"][0]["range"], serde_json::json!(["7", "9007199254740993"]));
    assert!(json["columns"][1]["distinct"].is_null(), "{json}");
}

/// As pandas writes a Categorical of integers and one of strings: the Parquet types are plain, and the Arrow schema says dictionary.
#[tokio::test]
async fn dictionaries_of_the_writer_are_read_as_their_values() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Int8Array::from(vec![Some(1), None, Some(0)]);
    let numbers: ArrayRef =
        Arc::new(DictionaryArray::<Int8Type>::new(keys.clone(), Arc::new(Int64Array::from(vec![7, 9]))));
    let words: ArrayRef =
        Arc::new(DictionaryArray::<Int8Type>::new(keys, Arc::new(StringArray::from(vec!["seven", "nine"]))));
    let plain: [ArrayRef; 2] = [
        Arc::new(Int64Array::from(vec![Some(9), None, Some(7)])),
        Arc::new(StringArray::from(vec![Some("nine"), None, Some("seven")])),
    ];
    let all = RecordBatch::try_from_iter([("n", numbers), ("w", words)]).unwrap();
    write(&dir.path().join("a.parquet"), &all, 10);
    write(
        &dir.path().join("b.parquet"),
        &RecordBatch::try_from_iter(["n", "w"].into_iter().zip(plain.clone())).unwrap(),
        10,
    );
    let batch = joined(&read(&mut ParquetSource::new(dir.path(), options()), &cx()).await.unwrap());
    assert_eq!(batch.column(0).data_type(), &DataType::Int64);
    let twice = [Some(9), None, Some(7), Some(9), None, Some(7)];
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), twice);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    assert_eq!(batch.column(1).data_type(), &dictionary);
    let mut source = ParquetSource::new(dir.path().join("a.parquet"), options()).dictionaries(false);
    let batch = joined(&read(&mut source, &cx()).await.unwrap());
    assert_eq!(batch.columns(), plain);
}

/// Both are DATE in Parquet; pandas and Arrow have two types for it.
#[tokio::test]
async fn dates_of_both_types_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let days: ArrayRef = Arc::new(Date32Array::from(vec![20_000]));
    let millis: ArrayRef = Arc::new(Date64Array::from(vec![20_001 * 86_400_000]));
    write(&dir.path().join("a.parquet"), &RecordBatch::try_from_iter([("day", days)]).unwrap(), 10);
    let batch = RecordBatch::try_from_iter([("day", millis)]).unwrap();
    let properties = WriterProperties::builder().set_coerce_types(true).build();
    let file = File::create(dir.path().join("b.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let batch = joined(&read(&mut ParquetSource::new(dir.path(), options()), &cx()).await.unwrap());
    assert_eq!(batch.column(0).as_primitive::<Date32Type>().values(), &[20_000, 20_001]);
}

/// In Parquet all kinds of lists and of strings are the same, and dictionaries are their values; polars writes the large ones.
#[tokio::test]
async fn lists_and_strings_of_all_kinds_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let plain = rows(0, 100);
    let texts =
        arrow::compute::cast(plain.column(3), &DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true))));
    let plain = RecordBatch::try_from_iter([
        ("items", Arc::clone(plain.column(3))),
        ("texts", texts.unwrap()),
        ("word", Arc::clone(plain.column(2))),
    ])
    .unwrap();
    let large = |name: &str, kind| {
        let list = DataType::LargeList(Arc::new(Field::new("element", kind, true)));
        arrow::compute::cast(&plain[name], &list).unwrap()
    };
    let columns = [
        ("items", large("items", DataType::Int64)),
        ("texts", large("texts", DataType::LargeUtf8)),
        ("word", arrow::compute::cast(&plain["word"], &DataType::LargeUtf8).unwrap()),
    ];
    write(&dir.path().join("a.parquet"), &plain, 100);
    write(&dir.path().join("b.parquet"), &RecordBatch::try_from_iter(columns).unwrap(), 100);
    let item = |kind| Arc::new(Field::new("element", kind, true));
    let category = || DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let write_as = |file: &str, items: DataType, texts: DataType| {
        let cast = |name: &str, kind: &DataType| arrow::compute::cast(&plain[name], kind).unwrap();
        let columns =
            [("items", cast("items", &items)), ("texts", cast("texts", &texts)), ("word", cast("word", &category()))];
        write(&dir.path().join(file), &RecordBatch::try_from_iter(columns).unwrap(), 100);
    };
    write_as("c.parquet", DataType::ListView(item(DataType::Int32)), DataType::List(item(category())));
    write_as("d.parquet", DataType::LargeListView(item(DataType::Int64)), DataType::LargeListView(item(category())));
    for dictionaries in [true, false] {
        let mut source = ParquetSource::new(dir.path(), options()).dictionaries(dictionaries);
        let all = joined(&read(&mut source, &cx()).await.unwrap());
        for name in ["items", "texts", "word"] {
            let found = arrow::compute::cast(&all[name], plain[name].data_type()).unwrap();
            assert_eq!(found.len(), 400);
            (0..4).for_each(|file| assert_eq!(&found.slice(100 * file, 100), &plain[name], "{name} of file {file}"));
        }
    }
}

/// Arrow has a type for vectors, and Parquet none, so other writers make lists of them.
#[tokio::test]
async fn lists_of_a_fixed_size_are_read_together_with_others() {
    fn lists(rows: &[&[f32]]) -> ArrayRef {
        let rows = rows.iter().map(|row| Some(row.iter().map(|value| Some(*value)).collect::<Vec<_>>()));
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
    }
    let dir = tempfile::tempdir().unwrap();
    let write_as = |name: &str, lists: &ArrayRef, kind: DataType| {
        let column = arrow::compute::cast(lists, &kind).unwrap();
        write(&dir.path().join(name), &RecordBatch::try_from_iter([("v", column)]).unwrap(), 100);
    };
    let item = |kind| Arc::new(Field::new_list_field(kind, true));
    let fixed = |n| DataType::FixedSizeList(item(DataType::Float32), n);
    write_as("a.parquet", &lists(&[&[1.0, 2.0], &[3.0, 4.0]]), fixed(2));
    let alone = joined(&read(&mut ParquetSource::new(dir.path(), options()), &cx()).await.unwrap());
    assert!(matches!(alone["v"].data_type(), DataType::FixedSizeList(_, 2)), "{}", alone["v"].data_type());
    write_as("b.parquet", &lists(&[&[5.0], &[]]), DataType::List(item(DataType::Float64)));
    write_as("c.parquet", &lists(&[&[6.0, 7.0, 8.0]]), fixed(3));
    let all = joined(&read(&mut ParquetSource::new(dir.path(), options()), &cx()).await.unwrap());
    let all = all["v"].as_list::<i32>();
    assert_eq!((0..5).map(|row| all.value_length(row)).collect::<Vec<_>>(), [2, 2, 1, 0, 3]);
    assert_eq!(all.values().as_primitive::<Float64Type>().values()[..], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
}

#[tokio::test]
async fn a_file_cut_anywhere_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.parquet");
    write(&path, &rows(0, 1000), 250);
    let whole = std::fs::read(&path).unwrap();
    for keep in [1, 7, 8, 11, 12, 100, whole.len() / 2, whole.len() - 9, whole.len() - 8, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        let said = refused(ParquetSource::new(&path, options())).await.to_string();
        assert!(said.contains("cut.parquet"), "{keep}: {said}");
    }
    // A footer that is whole but speaks of bytes that are gone.
    let mut shorter = whole[..4].to_vec();
    shorter.extend_from_slice(&whole[2000..]);
    std::fs::write(&path, &shorter).unwrap();
    let said = refused(ParquetSource::new(&path, options())).await.to_string();
    assert!(said.contains("cut.parquet"), "{said}");
}

#[tokio::test]
async fn a_footer_with_text_that_is_none_is_damage_and_not_a_fault_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.parquet");
    write(&path, &rows(0, 100), 100);
    let whole = std::fs::read(&path).unwrap();
    let named: Vec<usize> = (0..whole.len() - 5).filter(|&at| whole[at..].starts_with(b"label")).collect();
    let mut refusals = 0;
    for at in named {
        let mut bytes = whole.clone();
        bytes[at] = 0xff;
        std::fs::write(&path, bytes).unwrap();
        // Not every name is needed to read the column.
        if let Err(fault) = read(&mut ParquetSource::new(&path, options()).columns(["label"]), &cx()).await {
            assert!(fault.domain == Domain::User && fault.to_string().contains("text.parquet"), "{fault}");
            refusals += 1;
        }
    }
    assert!(refusals > 0);
}

#[tokio::test]
async fn a_corrupt_page_is_a_fault_with_file_and_row_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.parquet");
    write(&path, &rows(0, 1000), 250);
    let mut bytes = std::fs::read(&path).unwrap();
    // The first page header of the first column chunk.
    bytes[4..24].fill(0xff);
    std::fs::write(&path, &bytes).unwrap();
    let said = refused(ParquetSource::new(&path, options())).await;
    assert_eq!(said.domain, Domain::User);
    let said = said.at("read", Phase::Batch, None).to_string();
    assert!(said.contains("bad.parquet`, row group 0") && said.ends_with("(stage `read`)"), "{said}");
}

#[test]
fn no_damaged_arrow_schema_makes_it_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    write(&path, &rows(0, 30), 100);
    let whole = std::fs::read(&path).unwrap();
    let schema = whole.windows(12).position(|name| name == b"ARROW:schema").unwrap() + 12;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for at in schema..whole.len() - 8 {
        for with in *b"Pz/" {
            let mut bytes = whole.clone();
            bytes[at] = with;
            std::fs::write(&path, &bytes).unwrap();
            let mut source = ParquetSource::new(&path, options());
            if let Err(fault) = runtime.block_on(read(&mut source, &cx())) {
                assert!(fault.domain != Domain::Internal && fault.to_string().contains("damaged.parquet"), "{fault}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_damage_makes_it_panic_or_hang(at in 0.0f64..1.0, with in prop::collection::vec(any::<u8>(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged.parquet");
        write(&path, &rows(0, 300), 100);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = (at * bytes.len() as f64) as usize;
        let end = bytes.len().min(at + with.len());
        bytes[at..end].copy_from_slice(&with[..end - at]);
        std::fs::write(&path, &bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = runtime.block_on(async {
            let mut source = ParquetSource::new(&path, options());
            let cx = cx();
            let read = read(&mut source, &cx);
            tokio::time::timeout(Duration::from_secs(60), read).await.expect("it hangs")
        });
        if let Err(fault) = read {
            prop_assert!(fault.to_string().contains("damaged.parquet"), "{}", fault);
            prop_assert!(fault.domain != Domain::Internal, "{}", fault);
        }
    }
}
