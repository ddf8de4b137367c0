//! Synthetic rows and text to Parquet and back, and what inspection says of them.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date64Array, ListArray, Time32SecondArray, TimestampSecondArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Date32Type, Field, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use forebay_actors::StageCx;
use forebay_connectors::convert::{
    ConvertProgress, Encoding, ParquetOptions, ParquetWriter, TextOptions, to_criteo_text, to_parquet,
};
use forebay_connectors::inspect::{InspectOptions, inspect};
use forebay_connectors::{Categories, CriteoSource, OnBadRow, ParquetSource, ReadOptions, Synthetic, SyntheticSource};

use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::{all, bytes_of, cx};

const ROWS: u64 = 9_000;

fn synthetic(batch_rows: usize, decode_threads: usize) -> SyntheticSource {
    let options = ReadOptions { batch_rows, decode_threads, ..ReadOptions::default() };
    SyntheticSource::new(Synthetic { rows: ROWS, seed: 3, ..Synthetic::default() }, options)
}

#[tokio::test]
async fn rows_survive_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let expected = all(synthetic(1000, 2)).await;
    for (number, (encoding, file_groups)) in [(Encoding::Dictionary, 1), (Encoding::Plain, 8)].into_iter().enumerate() {
        let folder = dir.path().join(format!("parquet-{number}"));
        let options = ParquetOptions { encoding, group_rows: 2048, file_groups, ..ParquetOptions::default() };
        let mut progress = ConvertProgress::default();
        let written = to_parquet(&mut synthetic(777, 1), &cx(), &folder, &options, |p| progress = p).await.unwrap();
        assert_eq!(written.rows, ROWS);
        assert_eq!(written.files, if file_groups == 1 { 5 } else { 1 });
        assert_eq!((progress.rows, progress.bytes), (written.rows, written.bytes));
        assert_eq!(written.bytes, bytes_of(&folder).iter().map(|(_, b)| b.len() as u64).sum::<u64>());
        let back = all(ParquetSource::new(folder, ReadOptions::default())).await;
        assert_eq!(back, expected);
    }
    let text = dir.path().join("text");
    let written =
        to_criteo_text(&mut synthetic(777, 2), &cx(), &text, &TextOptions { file_rows: 4000, replace: false }, |_| ())
            .await
            .unwrap();
    assert_eq!((written.files, written.rows), (3, ROWS));
    assert_eq!(all(CriteoSource::new(&text, ReadOptions::default())).await, expected);
    let hex = dir.path().join("hex");
    let options = ParquetOptions { categories: Categories::Hex, fill_nulls: true, ..ParquetOptions::default() };
    to_parquet(&mut CriteoSource::new(&text, ReadOptions::default()), &cx(), &hex, &options, |_| ()).await.unwrap();
    let source = ParquetSource::new(hex, ReadOptions::default()).dictionaries(false);
    let back = all(source).await;
    assert!(back.columns().iter().all(|c| c.null_count() == 0));
    let direct = Synthetic { rows: ROWS, seed: 3, categories: Categories::Hex, ..Synthetic::default() };
    let direct = all(SyntheticSource::new(direct, ReadOptions::default())).await;
    for (column, filled) in direct.columns().iter().zip(back.columns()).skip(14) {
        let (column, filled) =
            (arrow::array::AsArray::as_string::<i32>(column), arrow::array::AsArray::as_string::<i32>(filled));
        assert!(column.iter().zip(filled).all(|(a, b)| a.unwrap_or("") == b.unwrap()));
    }
}

/// Other programs know these columns by the Parquet types alone.
#[tokio::test]
async fn moments_and_days_have_the_types_of_parquet_whatever_arrow_called_them() {
    let dir = tempfile::tempdir().unwrap();
    let seconds = || TimestampSecondArray::from(vec![Some(1_700_000_000), None]);
    let lists = ListArray::new(
        Arc::new(Field::new_list_field(seconds().data_type().clone(), true)),
        OffsetBuffer::from_lengths([1, 1]),
        Arc::new(seconds()),
        None,
    );
    let columns: [(&str, ArrayRef); 5] = [
        ("at", Arc::new(seconds())),
        ("zoned", Arc::new(seconds().with_timezone("Europe/Oslo"))),
        ("day", Arc::new(Date64Array::from(vec![Some(20_000 * 86_400_000), None]))),
        ("time", Arc::new(Time32SecondArray::from(vec![Some(3_600), None]))),
        ("all", Arc::new(lists)),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ParquetWriter::begin(&cx(), dir.path().join("out"), &ParquetOptions::default()).unwrap();
    writer.write(&rows).await.unwrap();
    writer.finish().await.unwrap();
    let part = dir.path().join("out/part-00000.parquet");
    let written = SerializedFileReader::new(File::open(&part).unwrap()).unwrap();
    let schema = written.metadata().file_metadata().schema_descr_ptr();
    let logical: Vec<_> = schema.columns().iter().map(|column| column.logical_type_ref().cloned()).collect();
    let millis = |utc| Some(LogicalType::timestamp(utc, TimeUnit::MILLIS));
    let expected = [
        millis(false),
        millis(true),
        Some(LogicalType::Date),
        Some(LogicalType::time(false, TimeUnit::MILLIS)),
        millis(false),
    ];
    assert_eq!(logical, expected);
    let back = all(ParquetSource::new(&part, ReadOptions::default())).await;
    assert_eq!(back["at"].as_primitive::<TimestampMillisecondType>().value(0), 1_700_000_000_000);
    assert_eq!(back["zoned"].as_primitive::<TimestampMillisecondType>().value(0), 1_700_000_000_000);
    assert_eq!(back["day"].as_primitive::<Date32Type>().value(0), 20_000);
    assert!(back.columns()[..4].iter().all(|column| column.null_count() == 1));
    // A moment that is too far away to be counted in milliseconds.
    let far = RecordBatch::try_from_iter([("far", Arc::new(TimestampSecondArray::from(vec![i64::MAX])) as ArrayRef)]);
    let mut writer = ParquetWriter::begin(&cx(), dir.path().join("far"), &ParquetOptions::default()).unwrap();
    writer.write(&far.unwrap()).await.unwrap();
    let said = writer.finish().await.unwrap_err().to_string();
    assert!(said.contains("column `far` cannot be written as Parquet"), "{said}");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_bytes_and_another_gives_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut folders = Vec::new();
    for (name, batch_rows, threads, seed) in [("a", 8192, 2, 3), ("b", 500, 1, 3), ("c", 8192, 2, 4)] {
        let folder = dir.path().join(name);
        let options = ReadOptions { batch_rows, decode_threads: threads, ..ReadOptions::default() };
        let mut source = SyntheticSource::new(Synthetic { rows: ROWS, seed, ..Synthetic::default() }, options);
        to_criteo_text(&mut source, &cx(), &folder, &TextOptions::default(), |_| ()).await.unwrap();
        folders.push(bytes_of(&folder));
    }
    assert_eq!(folders[0], folders[1]);
    assert_ne!(folders[0], folders[2]);
    // Written twice with the same batches, Parquet too is the same to the byte.
    for name in ["p", "q"] {
        to_parquet(&mut synthetic(8192, 2), &cx(), &dir.path().join(name), &ParquetOptions::default(), |_| ())
            .await
            .unwrap();
    }
    assert_eq!(bytes_of(&dir.path().join("p")), bytes_of(&dir.path().join("q")));
}

#[tokio::test]
async fn a_conversion_that_fails_leaves_nothing_and_an_old_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("bad.txt");
    std::fs::write(&text, "nonsense\n").unwrap();
    let out = dir.path().join("out");
    let done = to_parquet(
        &mut CriteoSource::new(&text, ReadOptions::default()),
        &cx(),
        &out,
        &ParquetOptions::default(),
        |_| (),
    )
    .await;
    assert!(done.unwrap_err().to_string().contains("line 1"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the text is there");
    to_parquet(&mut synthetic(1000, 2), &cx(), &out, &ParquetOptions::default(), |_| ()).await.unwrap();
    let before = bytes_of(&out);
    let options = ParquetOptions { replace: true, ..ParquetOptions::default() };
    to_parquet(&mut CriteoSource::new(&text, ReadOptions::default()), &cx(), &out, &options, |_| ()).await.unwrap_err();
    let said = to_parquet(&mut synthetic(1000, 2), &cx(), &out, &ParquetOptions::default(), |_| ()).await.unwrap_err();
    assert!(said.to_string().contains("holds files already"));
    assert_eq!(bytes_of(&out), before);
}

#[tokio::test]
async fn inspection_says_the_same_of_text_and_parquet() {
    let dir = tempfile::tempdir().unwrap();
    let (text, parquet) = (dir.path().join("text"), dir.path().join("parquet"));
    to_criteo_text(&mut synthetic(1000, 2), &cx(), &text, &TextOptions::default(), |_| ()).await.unwrap();
    let cx = StageCx::detached("t");
    to_parquet(
        &mut synthetic(1000, 2),
        &cx,
        &parquet,
        &ParquetOptions { group_rows: 4096, ..ParquetOptions::default() },
        |_| (),
    )
    .await
    .unwrap();
    cx.ledger().check().unwrap();
    let of_parquet = inspect(&parquet, InspectOptions::default()).await.unwrap();
    assert_eq!((of_parquet.row_groups, of_parquet.rows, &*of_parquet.format), (3, ROWS, "parquet"));
    let mut of_text = inspect(&text, InspectOptions::default()).await.unwrap();
    assert_eq!((of_text.rows, &*of_text.format), (ROWS, "criteo text"));
    assert_eq!((&of_text.columns, of_text.positive_rate), (&of_parquet.columns, of_parquet.positive_rate));
    assert!((0.22..0.29).contains(&of_text.positive_rate.unwrap()));
    let column = |name: &str| of_text.columns.iter().find(|c| c.name == name).unwrap();
    assert!((column("I12").missing - 0.7).abs() < 0.03 && column("I2").missing == 0.0);
    assert_eq!((column("label").distinct, column("label").min, column("label").max), (Some(2), Some(0.0), Some(1.0)));
    assert!((2..=3).contains(&column("C9").distinct.unwrap()) && column("C3").distinct.unwrap() > 1000);
    let table = of_parquet.to_string();
    assert!(
        table.contains("3 row groups, 9,000 rows") && table.contains("C26") && table.contains("positive rate 0.2"),
        "{table}"
    );
    // Rows that cannot be used are counted, not fatal.
    std::fs::write(text.join("z.txt"), "nonsense\n").unwrap();
    of_text = inspect(&text, InspectOptions::default()).await.unwrap();
    assert_eq!(of_text.rejected["too few fields"], 1);
    let mut source = CriteoSource::new(&text, ReadOptions::default()).on_bad_row(OnBadRow::Skip);
    let written = to_parquet(&mut source, &super::cx(), &dir.path().join("again"), &ParquetOptions::default(), |_| ())
        .await
        .unwrap();
    assert_eq!((written.rows, written.rejected), (ROWS, 1));
}
