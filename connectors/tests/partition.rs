//! Folders that are columns, in front of both sources, and files whose columns do not lie alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::Source;
use forebay_connectors::{CriteoSource, Input, ParquetSource, ReadOptions};

use super::parquet::{rows, write};
use super::{all, cx, joined, read, why_refused};

fn options() -> ReadOptions {
    ReadOptions { batch_rows: 30, ..ReadOptions::default() }
}

/// 50 rows in each of `day=2026-11-18/hour=03`, `day=2026-11-19/hour=10` and `day=.../hour=` missing.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (i, at) in
        ["day=2026-11-18/hour=03", "day=2026-11-19/hour=10", "day=2026-11-20/hour=__HIVE_DEFAULT_PARTITION__"]
            .iter()
            .enumerate()
    {
        file(dir.path(), at, &rows(50 * i as i64, 50));
    }
    dir
}

fn file(root: &Path, at: &str, batch: &RecordBatch) -> PathBuf {
    let path = root.join(at).join("part-0.parquet");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    write(&path, batch, 40);
    path
}

fn texts(array: &ArrayRef) -> Vec<Option<String>> {
    let text = cast(array, &DataType::Utf8).unwrap();
    text.as_string::<i32>().iter().map(|v| v.map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_folder_is_a_column_if_it_is_asked_for() {
    let dir = folder();
    let batch = all(ParquetSource::new(dir.path(), options()).columns(["hour", "row", "day"])).await;
    let ids: Vec<i64> = batch.column(1).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids, (0..150).collect::<Vec<_>>());
    let hours: Vec<_> = batch.column(0).as_primitive::<Int64Type>().iter().collect();
    let expected = [[Some(3); 50], [Some(10); 50], [None; 50]].concat();
    assert_eq!(hours, expected);
    assert!(matches!(batch.column(2).data_type(), DataType::Dictionary(..)));
    let days = texts(batch.column(2));
    assert!((0..150).all(|i| days[i].as_deref() == Some(["2026-11-18", "2026-11-19", "2026-11-20"][i / 50])));

    let plain = all(ParquetSource::new(dir.path(), options()).columns(["day"]).dictionaries(false)).await;
    assert_eq!((plain.num_rows(), plain.column(0).data_type()), (150, &DataType::Utf8));
    assert_eq!(texts(plain.column(0)), days);
    let schema = all(ParquetSource::new(dir.path(), options())).await.schema();
    assert_eq!(
        schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(),
        ["label", "row", "word", "items"]
    );
}

#[tokio::test]
async fn one_value_that_is_no_integer_makes_all_of_them_text_and_a_folder_counts_before_the_file() {
    let dir = folder();
    file(dir.path(), "day=2026-11-21/hour=night", &rows(150, 50));
    let batch = all(ParquetSource::new(dir.path(), options()).columns(["hour"])).await;
    let hours = texts(batch.column(0));
    let at = |i: usize| hours[i].as_deref();
    assert_eq!((at(0), at(50), at(100), at(150)), (Some("03"), Some("10"), None, Some("night")));
    let other = tempfile::tempdir().unwrap();
    file(other.path(), "row=7", &rows(0, 50));
    let batch = all(ParquetSource::new(other.path(), options()).columns(["row", "label"])).await;
    assert!(batch.column(0).as_primitive::<Int64Type>().values().iter().all(|&row| row == 7));
}

#[tokio::test]
async fn files_in_folders_that_are_not_selected_are_never_read() {
    let dir = folder();
    std::fs::write(file(dir.path(), "day=2026-11-17/hour=00", &rows(0, 1)), "no Parquet file").unwrap();
    assert!(why_refused(ParquetSource::new(dir.path(), options())).await.contains("day=2026-11-17"));
    let input = Input::from(dir.path()).filtered(&"day >= '2026-11-18' and hour < 6".parse().unwrap());
    let mut source = ParquetSource::new(input, options());
    assert_eq!(
        joined(&read(&mut source, &cx()).await.unwrap()),
        all(ParquetSource::new(dir.path().join("day=2026-11-18"), options())).await
    );
    let said = source.describe();
    assert!(said.contains("where day >= '2026-11-18' and hour < 6: 1 file,"), "{said}");
}

#[tokio::test]
async fn a_missing_column_names_the_file_its_folders_and_the_nearest_name() {
    let dir = folder();
    let said = why_refused(ParquetSource::new(dir.path(), options()).columns(["row", "Word"])).await;
    for part in
        ["part-0.parquet` has no column `Word`, did you mean `word`?", "it has label, row", "and its folders day, hour"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = why_refused(ParquetSource::new(dir.path(), options()).columns(["row", "HOUR"])).await;
    assert!(said.contains("did you mean `hour`?"), "{said}");
    // A file beside the folders lacks what the folders say.
    write(&dir.path().join("z.parquet"), &rows(0, 10), 10);
    let said = why_refused(ParquetSource::new(dir.path(), options()).columns(["row", "hour"])).await;
    assert!(said.contains("z.parquet` has no column `hour`"), "{said}");
}

#[tokio::test]
async fn columns_are_found_by_name_wherever_they_stand_and_lists_whatever_their_items_are_called() {
    let dir = tempfile::tempdir().unwrap();
    let first = rows(0, 100);
    file(dir.path(), "a", &first);
    // Other order, columns more, items that cannot be null under another name.
    let items = first.column(3).as_list::<i32>();
    let element = Arc::new(Field::new("element", DataType::Int32, false));
    let renamed = ListArray::new(element, items.offsets().clone(), items.values().clone(), items.nulls().cloned());
    let more: ArrayRef = Arc::new(StringArray::from(vec!["x"; 100]));
    let nested: ArrayRef = Arc::new(arrow::array::StructArray::from(vec![(
        Arc::new(Field::new("at", DataType::Int32, false)),
        Arc::new(Int32Array::from(vec![1; 100])) as ArrayRef,
    )]));
    let second = RecordBatch::try_from_iter([
        ("more", more),
        ("items", Arc::new(renamed) as ArrayRef),
        ("pair", nested),
        ("word", Arc::clone(first.column(2))),
        ("row", Arc::clone(first.column(1))),
        ("label", Arc::clone(first.column(0))),
    ])
    .unwrap();
    file(dir.path(), "b", &second);
    let batch = all(ParquetSource::new(dir.path(), options()).columns(["row", "items", "label"])).await;
    for column in 0..3 {
        assert_eq!(batch.column(column).slice(0, 100).as_ref(), batch.column(column).slice(100, 100).as_ref());
    }
    assert_eq!(batch.column(1).slice(100, 100).as_ref(), first.column(3).as_ref());

    let text: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    file(dir.path(), "c", &RecordBatch::try_from_iter([("label", text)]).unwrap());
    let said = why_refused(ParquetSource::new(dir.path(), options()).columns(["label"]).dictionaries(false)).await;
    for part in ["`label` has strings in `", "c/part-0.parquet` but integers (Int32) in `", "write one of them again"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[tokio::test]
async fn text_in_folders_is_selected_too_and_other_packings_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let line = |i: usize| format!("1{}{}\n", format!("\t{i}").repeat(13), format!("\t{i:x}").repeat(26));
    for day in 18..21 {
        let at = dir.path().join(format!("day=2026-11-{day}"));
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("part-0.txt"), (0..day).map(line).collect::<String>()).unwrap();
    }
    let input = |filter: &str| Input::from(dir.path()).filtered(&filter.parse().unwrap());
    let source = CriteoSource::new(input("day in ('2026-11-18', '2026-11-20')"), options());
    assert_eq!(all(source).await.num_rows(), 18 + 20);
    std::fs::write(dir.path().join("day=2026-11-19/part-1.txt.bz2"), "BZh9").unwrap();
    let said = why_refused(CriteoSource::new(input("day = '2026-11-19'"), options())).await;
    assert!(said.contains("part-1.txt.bz2`: text packed as `.bz2` is not supported"), "{said}");
}

#[tokio::test]
async fn numbers_of_several_widths_are_read_in_the_widest_and_optional_columns_are_null_where_they_lack() {
    let dir = tempfile::tempdir().unwrap();
    let columns = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        file(dir.path(), name, &RecordBatch::try_from_iter(columns).unwrap());
    };
    columns(
        "a",
        vec![("i", Arc::new(Int32Array::from(vec![1, -2]))), ("f", Arc::new(Float32Array::from(vec![0.5, 1.5])))],
    );
    columns(
        "b",
        vec![
            ("f", Arc::new(Float64Array::from(vec![1e300, 2.0]))),
            ("word", Arc::new(StringArray::from(vec!["x", "y"]))),
            ("i", Arc::new(Int64Array::from(vec![1 << 40, 3]))),
        ],
    );
    let source = || ParquetSource::new(dir.path(), options()).columns(["i", "f", "word", "none"]).dictionaries(false);
    let optional = || source().optional(["word".to_owned(), "none".to_owned()]);
    let batch = all(optional()).await;
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[1, -2, 1 << 40, 3]);
    assert_eq!(batch.column(1).as_primitive::<Float64Type>().values(), &[0.5, 1.5, 1e300, 2.0]);
    let words: Vec<_> = batch.column(2).as_string::<i32>().iter().collect();
    assert_eq!(words, [None, None, Some("x"), Some("y")]);
    assert_eq!((batch.column(3).data_type(), batch.column(3).len()), (&DataType::Null, 4));
    assert!(why_refused(source()).await.contains("has no column `word`"));
}
