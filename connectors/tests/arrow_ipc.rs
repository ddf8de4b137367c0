//! The source of Arrow IPC files: both formats, compression, types, dictionaries, and files that are not what they should be.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Float32Array, Int8Array, Int32Array, Int64Array, ListArray, MapBuilder,
    RunArray, StringArray, StringDictionaryBuilder, UnionArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, UInt8Type};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{DictionaryHandling, FileWriter, IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use forebay_actors::{Domain, Source};
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{ArrowSource, Input, ReadOptions, Stores};
use proptest::prelude::*;

use super::parquet::rows;
use super::{all, cx, joined, read, shape};

const CODECS: [Option<CompressionType>; 3] = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];

fn written(codec: Option<CompressionType>) -> IpcWriteOptions {
    IpcWriteOptions::default().try_with_compression(codec).unwrap()
}

/// Writes the rows in record batches of `batch_rows`; in the stream format if the name ends in `.arrows`.
pub(super) fn write(path: &Path, rows: &RecordBatch, batch_rows: usize, codec: Option<CompressionType>) {
    let file = File::create(path).unwrap();
    let pieces =
        (0..rows.num_rows()).step_by(batch_rows).map(|at| rows.slice(at, batch_rows.min(rows.num_rows() - at)));
    if path.extension().is_some_and(|ending| ending == "arrows") {
        let mut writer = StreamWriter::try_new_with_options(file, &rows.schema(), written(codec)).unwrap();
        pieces.for_each(|piece| writer.write(&piece).unwrap());
        writer.finish().unwrap();
    } else {
        let mut writer = FileWriter::try_new_with_options(file, &rows.schema(), written(codec)).unwrap();
        pieces.for_each(|piece| writer.write(&piece).unwrap());
        writer.finish().unwrap();
    }
}

/// Three files with 4 + 3 + 1 record batches, in both formats.
pub(super) fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.arrow"), &rows(0, 400), 100, None);
    write(&dir.path().join("b.arrows"), &rows(400, 300), 100, Some(CompressionType::ZSTD));
    write(&dir.path().join("c.feather"), &rows(700, 50), 100, Some(CompressionType::LZ4_FRAME));
    dir
}

fn options() -> ReadOptions {
    ReadOptions { batch_rows: 30, ..ReadOptions::default() }
}

async fn refused(source: ArrowSource) -> forebay_actors::Fault {
    let mut source = source;
    let fault = read(&mut source, &cx()).await.expect_err("it must not be read");
    assert_eq!(fault.domain, Domain::User, "{fault}");
    fault
}

#[tokio::test]
async fn both_formats_and_all_codecs_hold_the_same_rows() {
    let expected = rows(0, 750);
    for codec in CODECS {
        for name in ["x.arrow", "x.arrows"] {
            let dir = tempfile::tempdir().unwrap();
            write(&dir.path().join(name), &expected, 200, codec);
            assert_eq!(all(ArrowSource::new(dir.path(), options())).await, expected, "{name} {codec:?}");
            let some = all(ArrowSource::new(dir.path(), options()).columns(["items", "row"])).await;
            assert_eq!(some, expected.project(&[3, 1]).unwrap(), "{name} {codec:?}");
        }
    }
    let dir = folder();
    let mut source = ArrowSource::new(dir.path(), options());
    assert_eq!(joined(&read(&mut source, &cx()).await.unwrap()), expected);
    assert!(source.describe().contains("3 files, 8 record batches, 750 rows"), "{}", source.describe());
}

#[tokio::test]
async fn the_order_does_not_depend_on_threads_and_budgets() {
    let dir = folder();
    let shuffled = ReadOptions { shuffle: true, seed: 5, epochs: 2, ..options() };
    let mut first = None;
    for (decode_threads, read_ahead_bytes, decode_ahead_bytes) in
        [(1, 1, 1), (1, 64 << 20, 64 << 20), (3, 10_000, 4_000), (4, 1, 64 << 20)]
    {
        let options = ReadOptions { decode_threads, read_ahead_bytes, decode_ahead_bytes, ..shuffled.clone() };
        let all = shape(&read(&mut ArrowSource::new(dir.path(), options), &cx()).await.unwrap());
        assert_eq!(first.get_or_insert_with(|| all.clone()), &all);
    }
}

#[tokio::test]
async fn only_the_buffers_of_the_wanted_columns_are_read() {
    let dir = tempfile::tempdir().unwrap();
    // Columns of 2.4 MB each: farther from each other than ranges that are read as one.
    let wide: ArrayRef = Arc::new(arrow::array::Int64Array::from_iter_values(0..300_000));
    let batch = RecordBatch::try_from_iter(["a", "b", "c", "d"].map(|name| (name, Arc::clone(&wide)))).unwrap();
    write(&dir.path().join("a.arrow"), &batch, 300_000, None);
    let (store, path) = Stores::default().open(&dir.path().to_string_lossy()).unwrap();
    let slow = ThrottledStore::new(store, Duration::ZERO, None);
    let counts = slow.counts();
    let source = ArrowSource::new(Input::in_store(Arc::new(slow), path), ReadOptions::default()).columns(["d", "b"]);
    assert_eq!(all(source).await, batch.project(&[3, 1]).unwrap());
    assert!(counts.bytes() < 5_000_000, "{} bytes of 9,600,000", counts.bytes());
}

/// The same texts and lists in the ways in which Arrow writes them.
#[tokio::test]
async fn texts_lists_and_dictionaries_of_all_kinds_are_read_together() {
    let plain = rows(0, 40).project(&[2, 3]).unwrap();
    let list = |item| DataType::LargeList(Arc::new(Field::new("element", item, true)));
    let dictionary = |index, values| DataType::Dictionary(Box::new(index), Box::new(values));
    let ways = [
        (DataType::Utf8, plain.column(1).data_type().clone()),
        (DataType::LargeUtf8, list(DataType::Int64)),
        (DataType::Utf8View, list(DataType::Int8)),
        (dictionary(DataType::UInt8, DataType::LargeUtf8), list(DataType::Int32)),
        (dictionary(DataType::Int32, DataType::Utf8), plain.column(1).data_type().clone()),
        (dictionary(DataType::UInt32, DataType::Utf8View), list(DataType::Int16)),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (number, (text, lists)) in ways.iter().enumerate() {
        let columns = [cast(plain.column(0), text).unwrap(), cast(plain.column(1), lists).unwrap()];
        let [word, items] = columns;
        let batch = RecordBatch::try_from_iter([("word", word), ("items", items)]).unwrap();
        write(&dir.path().join(format!("{number}.arrow")), &batch, 20, CODECS[number % 3]);
        let path = dir.path().join(format!("{number}.arrow"));
        let kept = all(ArrowSource::new(&*path, options())).await;
        assert_eq!(matches!(kept.column(0).data_type(), DataType::Dictionary(..)), number > 2, "{number}");
    }
    let all = all(ArrowSource::new(dir.path(), options())).await;
    assert_eq!(all.column(0).data_type(), &DataType::Utf8);
    for number in 0..ways.len() {
        assert_eq!(&all.column(0).slice(number * 40, 40), plain.column(0), "{number}");
        let items = cast(&all.column(1).slice(number * 40, 40), plain.column(1).data_type()).unwrap();
        assert_eq!(&items, plain.column(1), "{number}");
    }
}

#[tokio::test]
async fn runs_are_the_values_that_they_stand_for() {
    let dir = tempfile::tempdir().unwrap();
    let runs: RunArray<Int32Type> = [Some("a"), Some("a"), None, Some("b")].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("word", Arc::new(runs) as ArrayRef)]).unwrap();
    write(&dir.path().join("a.arrow"), &batch, 4, None);
    let word = all(ArrowSource::new(dir.path(), ReadOptions::default())).await;
    let expected: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("a"), None, Some("b")]));
    assert_eq!(word.column(0), &expected);
}

/// A bug: such files were called damaged.
#[tokio::test]
async fn dictionaries_are_found_wherever_they_stand() {
    let words: ArrayRef = Arc::new(["a", "b", "a"].into_iter().collect::<DictionaryArray<Int8Type>>());
    let dictionary = StringDictionaryBuilder::<Int8Type>::new;
    let mut map = MapBuilder::new(None, dictionary(), dictionary());
    for word in ["k", "l", "k"] {
        map.keys().append_value(word);
        map.values().append_value("v");
        map.append(true).unwrap();
    }
    let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![1, 3]), &words.slice(0, 2)).unwrap();
    let field = |name: &str, kind: &DataType| Arc::new(Field::new(name, kind.clone(), true));
    let fields = [(0_i8, field("word", words.data_type())), (1, field("number", &DataType::Int32))];
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![7, 8, 9]));
    let either = UnionArray::try_new(
        fields.into_iter().collect(),
        vec![0_i8, 1, 0].into(),
        None,
        vec![Arc::clone(&words), numbers],
    );
    let lists =
        ListArray::new(field("item", words.data_type()), OffsetBuffer::from_lengths([2, 1]), Arc::clone(&words), None);
    let lists = DictionaryArray::<Int8Type>::try_new(Int8Array::from(vec![1, 0, 1]), Arc::new(lists));
    let batch = RecordBatch::try_from_iter([
        ("map", Arc::new(map.finish()) as ArrayRef),
        ("runs", Arc::new(runs)),
        ("either", Arc::new(either.unwrap())),
        ("lists", Arc::new(lists.unwrap())),
        ("word", words),
    ])
    .unwrap();
    for name in ["a.arrow", "a.arrows"] {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join(name), &batch, 3, None);
        let found = all(ArrowSource::new(dir.path(), ReadOptions::default())).await;
        for (column, field) in batch.schema().fields().iter().enumerate() {
            let texts = |of: &RecordBatch| -> Vec<String> {
                (0..3).map(|row| array_value_to_string(of.column(column), row).unwrap()).collect()
            };
            assert_eq!(texts(&found), texts(&batch), "{name}: {field}");
        }
    }
}

/// The batches of a stream whose dictionaries grow, or are replaced, are read in any order.
#[tokio::test]
async fn dictionaries_of_a_stream_grow_or_are_replaced() {
    let words = |from: usize| (from..from + 50).map(|i| format!("w{}", i / 2)).collect::<Vec<_>>();
    for (handling, step) in [(DictionaryHandling::Delta, 0), (DictionaryHandling::Resend, 100)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.arrows");
        let field = Field::new_dictionary("word", DataType::UInt8, DataType::Utf8, true);
        let schema = arrow::datatypes::Schema::new(vec![field]);
        let options = IpcWriteOptions::default().with_dictionary_handling(handling);
        let mut writer = StreamWriter::try_new_with_options(File::create(&path).unwrap(), &schema, options).unwrap();
        let mut expected = Vec::new();
        for batch in 0..4_usize {
            let texts = words(batch * step);
            // With deltas, each batch has the values of those before and some more.
            let values: Vec<String> = (0..if step == 0 { 26 + batch } else { 25 })
                .map(|i| if step == 0 { format!("w{i}") } else { format!("w{}", i + batch * step / 2) })
                .collect();
            let keys = texts.iter().map(|text| values.iter().position(|value| value == text).unwrap() as u8);
            let array = DictionaryArray::<UInt8Type>::try_new(keys.collect(), Arc::new(StringArray::from(values)));
            let batch = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(array.unwrap())]).unwrap();
            writer.write(&batch).unwrap();
            expected.extend(texts);
        }
        writer.finish().unwrap();
        for (shuffle, epochs) in [(false, 1), (true, 3)] {
            let options = ReadOptions { shuffle, epochs, seed: 3, ..ReadOptions::default() };
            let read = read(&mut ArrowSource::new(&*path, options), &cx()).await.unwrap();
            for epoch in 0..epochs as u32 {
                let of_epoch = read.iter().filter(|rows| rows.lineage.epoch == epoch);
                let mut found: Vec<String> = of_epoch
                    .flat_map(|rows| {
                        let text = cast(rows.batch.column(0), &DataType::Utf8).unwrap();
                        text.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect::<Vec<_>>()
                    })
                    .collect();
                if shuffle {
                    found.sort();
                    expected.sort();
                }
                assert_eq!(found, expected);
            }
        }
    }
}

#[tokio::test]
async fn batches_of_a_file_share_their_dictionary() {
    let dir = tempfile::tempdir().unwrap();
    let word = cast(rows(0, 300).column(2), &DataType::Dictionary(DataType::UInt8.into(), DataType::LargeUtf8.into()));
    let batch = RecordBatch::try_from_iter([("word", word.unwrap())]).unwrap();
    write(&dir.path().join("a.arrow"), &batch, 100, None);
    let read = read(&mut ArrowSource::new(dir.path(), options()), &cx()).await.unwrap();
    let values = |rows: &forebay_connectors::Rows| rows.batch.column(0).as_dictionary::<Int32Type>().values().to_data();
    assert!(read.len() > 9 && read.iter().all(|rows| values(rows).ptr_eq(&values(&read[0]))), "it is hashed once");
}

#[tokio::test]
async fn what_is_missing_empty_or_of_another_kind_is_named() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let said = refused(ArrowSource::new(dir.path(), options()).columns(["label", "wrod"])).await.to_string();
    for part in ["a.arrow", "no column `wrod`, did you mean `word`?", "it has label, row, word, items"] {
        assert!(said.contains(part), "{said}");
    }
    write(&at("none.arrow"), &rows(0, 0), 10, None);
    assert!(refused(ArrowSource::new(at("none.arrow"), options())).await.to_string().contains("holds no rows"));
    for (name, bytes, word) in [
        (
            "text.arrow",
            "label\tI1\n".repeat(100).into_bytes(),
            "not a whole Arrow IPC file (900 bytes): it does not begin",
        ),
        ("old.feather", b"FEA1 and more".to_vec(), "Feather version 1"),
        ("short.arrow", b"ARROW1\0\0".to_vec(), "not a whole Arrow IPC file (8 bytes)"),
        ("zeros.arrow", vec![0; 4096], "not a whole Arrow IPC file"),
    ] {
        std::fs::write(at(name), bytes).unwrap();
        let said = refused(ArrowSource::new(at(name), options())).await.to_string();
        assert!(said.contains(name) && said.contains(word), "{said}");
    }
    let other: ArrayRef = Arc::new(Float32Array::from(vec![1.0]));
    write(&at("d.arrow"), &RecordBatch::try_from_iter([("row", other)]).unwrap(), 10, None);
    let both = Input::all([at("a.arrow").into(), at("d.arrow").into()]);
    let said = refused(ArrowSource::new(both, options()).columns(["row"])).await.to_string();
    assert!(
        said.contains("column `row` has numbers (Float32) in `") && said.contains("but integers (Int64) in `"),
        "{said}"
    );
    let optional = ArrowSource::new(Input::all([at("a.arrow").into(), at("c.feather").into()]), options());
    let optional = all(optional.columns(["row", "C1"]).optional(["C1".to_owned()])).await;
    assert_eq!(optional.column(1).null_count() + optional.column(1).logical_null_count(), 450);
}

#[tokio::test]
async fn a_file_cut_anywhere_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["cut.arrow", "cut.arrows"] {
        let path = dir.path().join(name);
        write(&path, &rows(0, 100), 30, None);
        let whole = std::fs::read(&path).unwrap();
        for keep in (1..whole.len()).filter(|keep| keep % 7 == 0 || whole.len() - keep < 40) {
            std::fs::write(&path, &whole[..keep]).unwrap();
            // The marks at the end of a stream are two words; the second is its length, 0.
            let said = refused(ArrowSource::new(&*path, options())).await.to_string();
            assert!(said.contains(name), "{keep}: {said}");
        }
    }
}

/// A bug: files of polars with integers of 128 bits were called damaged, without the column.
#[tokio::test]
async fn a_column_of_an_unknown_type_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["big.arrow", "big.arrows"] {
        let path = dir.path().join(name);
        let big: ArrayRef = Arc::new(Int64Array::from(vec![7]));
        write(&path, &RecordBatch::try_from_iter([("big", big)]).unwrap(), 1, None);
        let whole = std::fs::read(&path).unwrap();
        // One of these is the number of bits in the schema that is read.
        let bits = (0..whole.len() - 4).filter(|&at| whole[at..at + 4] == 64_i32.to_le_bytes());
        let mut said = Vec::new();
        for at in bits {
            let mut bytes = whole.clone();
            bytes[at] = 128;
            std::fs::write(&path, &bytes).unwrap();
            said.extend(
                read(&mut ArrowSource::new(&*path, options()), &cx()).await.err().map(|fault| fault.to_string()),
            );
        }
        assert!(
            said.iter().any(|said| said.contains("column `big` has a type that Forebay does not know")),
            "{said:?}"
        );
    }
}

#[tokio::test]
async fn bytes_after_the_end_mark_of_a_stream_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("two.arrows");
    write(&path, &rows(0, 100), 30, None);
    let whole = std::fs::read(&path).unwrap();
    for more in [&whole[..], b"x"] {
        std::fs::write(&path, [&whole[..], more].concat()).unwrap();
        let fault = refused(ArrowSource::new(&*path, options())).await;
        let expected = format!("{} bytes after the end mark of its stream", more.len());
        assert!(fault.domain == Domain::User && fault.to_string().contains(&expected), "{fault}");
    }
}

#[tokio::test]
async fn lengths_of_a_footer_are_held_against_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.arrow");
    write(&path, &rows(0, 100), 30, None);
    let whole = std::fs::read(&path).unwrap();
    let footer = i32::from_le_bytes(whole[whole.len() - 10..whole.len() - 6].try_into().unwrap()) as usize;
    let footer = whole.len() - 10 - footer..whole.len() - 10;
    // Every word of the footer as a huge length, a place, a negative one.
    let mut refusals = 0;
    for at in footer.step_by(4) {
        for with in [i32::MAX, i32::MIN, -1, 1 << 24] {
            let mut bytes = whole.clone();
            bytes[at..(at + 4).min(whole.len() - 10)]
                .copy_from_slice(&with.to_le_bytes()[..(whole.len() - 10 - at).min(4)]);
            std::fs::write(&path, &bytes).unwrap();
            if let Err(fault) = read(&mut ArrowSource::new(&*path, options()), &cx()).await {
                assert!(fault.domain == Domain::User && fault.to_string().contains("huge.arrow"), "{fault}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 100, "{refusals}");
    let mut bytes = whole.clone();
    let end = bytes.len() - 10;
    bytes[end..end + 4].copy_from_slice(&i32::MAX.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    assert!(refused(ArrowSource::new(&*path, options())).await.to_string().contains("footer is longer than the file"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_damage_makes_it_panic_or_hang(
        at in 0.0f64..1.0, with in prop::collection::vec(any::<u8>(), 1..40), codec in 0_usize..3, stream: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(if stream { "damaged.arrows" } else { "damaged.arrow" });
        let word = cast(rows(0, 300).column(2), &DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()));
        let plain = rows(0, 300);
        let mut columns = plain.columns().to_vec();
        columns.push(word.unwrap());
        let names = ["label", "row", "word", "items", "known"];
        let batch = RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap();
        write(&path, &batch, 100, CODECS[codec]);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = (at * bytes.len() as f64) as usize;
        let end = bytes.len().min(at + with.len());
        bytes[at..end].copy_from_slice(&with[..end - at]);
        std::fs::write(&path, &bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = runtime.block_on(async {
            let mut source = ArrowSource::new(&*path, options());
            let cx = cx();
            let read = read(&mut source, &cx);
            tokio::time::timeout(Duration::from_secs(60), read).await.expect("it hangs")
        });
        if let Err(fault) = read {
            prop_assert!(fault.to_string().contains("damaged.arrow"), "{}", fault);
            prop_assert!(fault.domain == Domain::User, "{}", fault);
        }
    }
}
