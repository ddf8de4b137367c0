//! Files that Spark wrote to HDFS, compared with what Spark reads from them. Needs `scripts/setup-spark` and Java 17.

use std::path::Path;
use std::process::Command;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use forebay::actors::{Source, StageCx};
use forebay::connectors::{Categories, CriteoSource, Input, ParquetSource, ReadOptions, Rows};
use parquet::basic::Type;
use parquet::column::page::Page;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};

use super::cluster::{self, Cluster, Lease};

/// What Spark wrote and what it read back.
struct Spark {
    cluster: Lease,
    truth: Value,
}

impl Spark {
    fn write() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(root.join(".spark/version").exists(), "Spark is missing: run `make setup` or `scripts/setup-spark`");
        let cluster = Cluster::shared();
        let ran = Command::new("python3")
            .arg(root.join("scripts/spark_rows.py"))
            .arg(cluster.at("/spark"))
            .env("PYTHONPATH", root.join(".spark"))
            .output()
            .expect("python3 is on the path");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "Spark failed (is Java 17 on the path?): {said}");
        let truth = serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("no JSON: {e}: {said}"));
        Self { cluster, truth }
    }

    fn path(&self, folder: &str) -> String {
        self.cluster.at(&format!("/spark/{folder}"))
    }

    fn columns(&self) -> Vec<String> {
        self.truth["columns"].as_array().unwrap().iter().map(|c| c.as_str().unwrap().to_owned()).collect()
    }

    /// The rows that Spark read back from a folder, sorted by their first column, `id`.
    fn rows(&self, folder: &str) -> Vec<Value> {
        self.truth["rows"][folder].as_array().unwrap().clone()
    }
}

/// All rows of a source, as one batch.
async fn table(mut source: impl Source<Out = Rows>) -> RecordBatch {
    let cx = StageCx::detached("t");
    source.open(&cx).await.unwrap();
    let mut all = Vec::new();
    while let Some(rows) = source.next(&cx).await.unwrap() {
        all.push(rows.batch);
    }
    concat_batches(&all[0].schema(), &all).unwrap()
}

/// Rows in the form of `spark_rows.py`, sorted by the first column.
fn rows(batch: &RecordBatch) -> Vec<Value> {
    let columns: Vec<Vec<Value>> = batch.columns().iter().map(values).collect();
    let mut rows: Vec<Value> =
        (0..batch.num_rows()).map(|row| columns.iter().map(|column| column[row].clone()).collect()).collect();
    rows.sort_by_key(|row| row[0].as_i64());
    rows
}

fn values(array: &ArrayRef) -> Vec<Value> {
    let as_type = |kind: &DataType| cast(array, kind).unwrap();
    match array.data_type() {
        DataType::Boolean => array.as_boolean().iter().map(|v| json!(v)).collect(),
        DataType::Float32 | DataType::Float64 => {
            as_type(&DataType::Float64).as_primitive::<Float64Type>().iter().map(|v| json!(v)).collect()
        }
        DataType::Timestamp(unit, zone) => {
            assert_eq!(zone.as_deref(), Some("UTC"));
            let to_micros = if *unit == TimeUnit::Millisecond { 1000 } else { 1 };
            assert!(matches!(unit, TimeUnit::Millisecond | TimeUnit::Microsecond));
            let moments = as_type(&DataType::Int64);
            moments.as_primitive::<Int64Type>().iter().map(|v| json!(v.map(|v| v * to_micros))).collect()
        }
        DataType::Date32 => values(&as_type(&DataType::Int32)),
        kind if kind.is_integer() => {
            as_type(&DataType::Int64).as_primitive::<Int64Type>().iter().map(|v| json!(v)).collect()
        }
        DataType::Utf8 | DataType::Dictionary(..) | DataType::Binary => {
            as_type(&DataType::Utf8).as_string::<i32>().iter().map(|v| json!(v)).collect()
        }
        DataType::List(_) => {
            array.as_list::<i32>().iter().map(|list| list.map_or(Value::Null, |list| values(&list).into())).collect()
        }
        other => panic!("no feature is {other}"),
    }
}

/// The codec of a folder's files, and whether they have data pages of v2, dictionary pages and INT96 columns.
async fn form(spark: &Spark, folder: &str) -> (String, bool, bool, bool) {
    let client = spark.cluster.client();
    let files = client.list_status(&format!("/spark/{folder}/day=2026-11-18"), false).await.unwrap();
    let file = files.iter().find(|f| f.path.ends_with(".parquet")).unwrap();
    let reader = SerializedFileReader::new(Bytes::from(cluster::read(&client, &file.path).await.unwrap())).unwrap();
    let group = reader.get_row_group(0).unwrap();
    let columns = group.metadata().columns();
    let codec = columns[0].compression().to_string();
    let int96 = columns.iter().any(|c| c.column_type() == Type::INT96);
    let (mut v2, mut dictionary) = (false, false);
    for column in 0..columns.len() {
        let mut pages = group.get_column_page_reader(column).unwrap();
        while let Some(page) = pages.get_next_page().unwrap() {
            v2 |= matches!(page, Page::DataPageV2 { .. });
            dictionary |= matches!(page, Page::DictionaryPage { .. });
        }
    }
    (codec, v2, dictionary, int96)
}

/// One test, since starting Spark takes most of the time.
#[tokio::test]
async fn files_of_spark_read_as_spark_reads_them() {
    let spark = Spark::write();
    every_type_in_every_form(&spark).await;
    forms_mix(&spark).await;
    folders_are_selected(&spark).await;
    escaped_and_missing_folder_names(&spark).await;
    packed_text(&spark).await;
}

async fn every_type_in_every_form(spark: &Spark) {
    for (folder, codec, v2, int96) in [
        ("snappy-int96", "SNAPPY", false, true),
        ("zstd-micros", "ZSTD", true, false),
        ("gzip-legacy", "GZIP", false, true),
        ("lz4-millis", "LZ4", false, false),
    ] {
        let (found, found_v2, dictionary, found_int96) = form(spark, folder).await;
        assert!(found.starts_with(codec) && dictionary, "{folder}: {found}");
        assert_eq!((found_v2, found_int96), (v2, int96), "{folder}");
        for dictionaries in [true, false] {
            let source = ParquetSource::new(spark.path(folder), ReadOptions::default())
                .columns(spark.columns())
                .dictionaries(dictionaries);
            let (found, expected) = (rows(&table(source).await), spark.rows(folder));
            assert_eq!(found.len(), 60);
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{folder}, columns {:?}", spark.columns());
            }
        }
        // All columns, also those whose types cannot be features.
        let all = table(ParquetSource::new(spark.path(folder), ReadOptions::default())).await;
        for column in ["amount", "wide", "pair", "scores"] {
            assert!(all.column_by_name(column).is_some(), "{folder}: {column}");
        }
    }
}

/// INT96 and TIMESTAMP_MICROS, lists of three levels and of two, v1 and v2: one folder may hold them all.
async fn forms_mix(spark: &Spark) {
    let folders = ["snappy-int96", "zstd-micros", "gzip-legacy"];
    let input = Input::all(folders.map(|folder| spark.path(folder).into()));
    let found = rows(&table(ParquetSource::new(input, ReadOptions::default()).columns(spark.columns())).await);
    let mut expected: Vec<Value> = folders.iter().flat_map(|folder| spark.rows(folder)).collect();
    expected.sort_by_key(|row| row[0].as_i64());
    assert_eq!(found, expected);
}

async fn folders_are_selected(spark: &Spark) {
    let input = Input::from(spark.path("zstd-micros")).filtered(&"day > '2026-11-18'".parse().unwrap());
    let found = rows(&table(ParquetSource::new(input, ReadOptions::default()).columns(spark.columns())).await);
    let day = spark.columns().len() - 1;
    let expected: Vec<Value> =
        spark.rows("zstd-micros").into_iter().filter(|row| row[day].as_str() > Some("2026-11-18")).collect();
    assert_eq!((found.len(), found), (40, expected));
}

async fn escaped_and_missing_folder_names(spark: &Spark) {
    let read = async |filter: &str| {
        let input = Input::from(spark.path("escaped")).filtered(&filter.parse().unwrap());
        rows(&table(ParquetSource::new(input, ReadOptions::default()).columns(["id", "place", "hour"])).await)
    };
    // `hour` is 00 to 03 or missing, so that it reads as a number.
    let truth: Vec<Value> = spark
        .rows("escaped")
        .into_iter()
        .map(|row| json!([row[0], row[1], row[2].as_str().map(|hour| hour.parse::<i64>().unwrap())]))
        .collect();
    assert_eq!(read("").await, truth);
    let places = ["a b", "x/y=z", "100%", "ü:?*"];
    for place in places {
        let expected: Vec<Value> = truth.iter().filter(|row| row[1] == place).cloned().collect();
        assert_eq!((expected.len(), read(&format!("place = '{place}'")).await), (12, expected));
    }
    let missing: Vec<Value> = truth.iter().filter(|row| row[1].is_null() && row[2].is_null()).cloned().collect();
    assert!(!missing.is_empty());
    assert_eq!(read("place is null and hour is null").await, missing);
}

async fn packed_text(spark: &Spark) {
    let input = Input::from(spark.path("text")).filtered(&"day = '2026-11-20'".parse().unwrap());
    let batch = table(CriteoSource::new(input, ReadOptions::default()).categories(Categories::Int)).await;
    let mut found: Vec<Value> = values(batch.column_by_name("I1").unwrap());
    found.sort_by_key(Value::as_i64);
    let expected: Vec<Value> =
        spark.rows("text").iter().filter(|row| row[1] == "2026-11-20").map(|row| row[0].clone()).collect();
    assert_eq!((found.len(), found), (20, expected));
}
