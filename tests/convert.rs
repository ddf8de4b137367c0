//! `forebay data convert` of text without types: what becomes of its columns, and of values that do not fit.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use common::{read_rows, run};

fn convert(rows: &Path, out: &Path, more: &[&str]) -> (Option<i32>, String) {
    let arguments = ["data", "convert", rows.to_str().unwrap(), "--out", out.to_str().unwrap()];
    run(&[&arguments[..], more].concat())
}

fn types(rows: &RecordBatch) -> Vec<(String, DataType)> {
    rows.schema_ref().fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

#[test]
fn csv_has_the_types_of_its_first_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.csv"), dir.path().join("out"));
    let mut text = "click;zip;price;city;id;empty\n1;07001;2.5;Oslo;12;\n0;10115;;;;\n".to_owned();
    fs::write(&rows, &text).unwrap();
    let (code, said) = convert(&rows, &out, &["--delimiter", ";", "--text", "id"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("integers: click")
            && said.contains("numbers: price")
            && said.contains("text: zip, city, id, empty"),
        "{said}"
    );
    let found = read_rows(&out);
    let kinds: Vec<DataType> = types(&found).into_iter().map(|(_, kind)| kind).collect();
    use DataType::{Float64, Int64, Utf8};
    assert_eq!(kinds, [Int64, Utf8, Float64, Utf8, Utf8, Utf8]);
    assert_eq!(found["click"].as_primitive::<Int64Type>().values()[..], [1, 0]);
    assert_eq!(found["price"].as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(2.5), None]);
    let zips = found["zip"].as_string::<i32>();
    assert_eq!((zips.value(0), found["city"].null_count()), ("07001", 1));

    // A value behind the rows by which types were told.
    (0..10_000).for_each(|i| text += &format!("{};1;1;x;{i};\n", i % 2));
    fs::write(&rows, format!("{text}1;1;cheap;x;5;\n")).unwrap();
    let out = dir.path().join("other");
    let (code, said) = convert(&rows, &out, &["--delimiter", ";"]);
    assert_eq!(code, Some(2), "{said}");
    for word in ["rows.csv", "line 10004", "`cheap`", "(price)", "--text"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    assert!(!out.exists());
    let (code, said) = convert(&rows, &out, &["--delimiter", ";", "--on-bad-row", "skip"]);
    assert!(code == Some(0) && said.contains("left out 1 rows: not a number"), "{said}");
    let (code, said) = convert(&rows, &dir.path().join("no"), &["--delimiter", ";", "--text", "pric"]);
    assert!(code == Some(2) && said.contains("`pric`, which is no column, did you mean `price`?"), "{said}");
}

#[test]
fn json_lines_keep_lists_and_truths_are_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.jsonl"), dir.path().join("out"));
    let text = "{\"click\": true, \"items\": [5, 7], \"score\": 0.5, \"device\": {\"os\": 1}}\n{\"click\": false, \"items\": []}\n";
    fs::write(&rows, text).unwrap();
    let (code, said) = convert(&rows, &out, &[]);
    assert_eq!(code, Some(0), "{said}");
    let found = read_rows(&out);
    assert_eq!(found["click"].as_primitive::<Int64Type>().values()[..], [1, 0]);
    let items = found["items"].as_list::<i32>();
    assert_eq!((items.value_length(0), items.values().data_type()), (2, &DataType::Int64));
    assert_eq!(types(&found).len(), 3, "objects are left out: {found:?}");
}

/// A model that was trained on text reads the Parquet files that were made of it with the same job.
#[test]
fn with_a_job_parquet_has_the_keys_of_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..600)
        .map(|i: u64| format!("{},{},{},{:x},{}\n", i % 2, i % 7, i as f64 / 3.0, i % 50 * 77, i % 30))
        .collect();
    let rows = dir.path().join("rows.csv");
    fs::write(&rows, format!("click,word,price,hash,item\n{text}")).unwrap();
    let job = dir.path().join("job.toml");
    let model = dir.path().join("model");
    fs::write(
        &job,
        format!(
            "[data]\ntrain = {rows:?}\n[columns]\nlabel = 'click'\ndense = ['price']\nslots = ['word', {{ column = 'hash', kind = \
             'hex' }}, {{ column = 'item', kind = 'int' }}]\n[model]\nkind = 'lr'\n[train]\nbatch_rows = 64\n[output]\nmodel = {model:?}\n"
        ),
    )
    .unwrap();
    let (code, said) = run(&["train", job.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    let parquet = dir.path().join("parquet");
    let (code, said) = convert(&rows, &parquet, &["--job", job.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    use DataType::{Float64, Int64, UInt64, Utf8};
    let kinds: Vec<DataType> = types(&read_rows(&parquet)).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [Float64, Float64, Utf8, UInt64, Int64]);
    let scores = |data: &Path| {
        let out = dir.path().join(format!("scores-{}", data.extension().is_some()));
        let (model, data) = (model.to_str().unwrap(), data.to_str().unwrap());
        let (code, said) = run(&["predict", "--model", model, "--data", data, "--out", out.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        read_rows(&out)["score"].as_primitive::<Float32Type>().clone()
    };
    assert_eq!(scores(&parquet), scores(&rows));
    let (code, said) = convert(&rows, &dir.path().join("no"), &["--job", job.to_str().unwrap(), "--text", "word"]);
    assert!(code == Some(2) && said.contains("--job"), "{said}");
}
