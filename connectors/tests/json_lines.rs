//! The source of JSON lines: ranges, values, lists, and rows that are not right.

use std::fs;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use forebay_connectors::inspect::{InspectOptions, inspect};
use forebay_connectors::{FileColumn, JsonLinesSource, OnBadRow, ReadOptions, ValueKind};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::text::{COLUMNS, check_500_rows, check_bad_line, check_folder_above, options, write_six_ways};
use super::{all, cx, joined, read, why_refused};

/// Two files of `rows` rows each: an id, a label and a list of words; every row whose id is 3 mod 7 is bad.
pub(super) fn folder(rows: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let line = |id: usize| match id % 7 {
        3 => format!("{{\"row\": {id}, \"label\": \"yes\"}}\n"),
        _ => format!("{{\"words\": [\"w {}\", null], \"label\": {}, \"row\": {id}}}\n", id % 5, id % 2),
    };
    for (file, rows) in [0..rows, rows..2 * rows].into_iter().enumerate() {
        fs::write(dir.path().join(format!("{file}.jsonl")), rows.map(line).collect::<String>()).unwrap();
    }
    dir
}

/// The ids, labels and words of [`folder`], without its bad rows.
pub(super) fn source(path: &Path, options: ReadOptions) -> JsonLinesSource {
    JsonLinesSource::json_lines(path, options).on_bad_row(OnBadRow::Skip).columns([
        FileColumn::new("row", ValueKind::Integer),
        FileColumn::new("label", ValueKind::Number),
        FileColumn::new("words", ValueKind::Text),
    ])
}

fn typed(path: &Path) -> JsonLinesSource {
    JsonLinesSource::json_lines(path, options()).columns(COLUMNS.map(|(name, kind)| FileColumn::new(name, kind)))
}

#[tokio::test]
async fn plain_packed_and_windows_files_hold_the_same_rows_whatever_the_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let line = |i: usize| {
        format!("{{\"i\":{i}, \"n\" : {i}.5,\"more\":{{\"i\":[1,{{}}]}},\"h\":\"{i:x}\",\"t\":\"a \\\"{i}\\\"\"}}\n")
    };
    let text: String = (0..500).map(line).collect();
    let names = ["a.jsonl", "b.ndjson", "c.json", "d.jsonl", "e.jsonl.zst", "f.json.gz"];
    for path in write_six_ways(dir.path(), names, &text, "{\"i\":7") {
        for range_bytes in [1, 100, 5000, 4 << 20] {
            let batch = all(typed(&path).range_bytes(range_bytes)).await;
            check_500_rows(&batch, "a \"7\"", &format!("{} {range_bytes}", path.display()));
        }
    }
}

#[tokio::test]
async fn values_are_what_the_columns_want_and_null_empty_and_absent_ones_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let lines = [
        r#"{"n": 1.5, "i": 2, "h": "1f", "t": "é\n"}"#,
        r#"{"n": null, "i": null, "h": null, "t": null}"#,
        r#"{"n": "", "i": "", "h": "", "t": ""}"#,
        r#"{}"#,
        r#"{"n": "-1e3", "i": "-7", "h": 10, "t": 12.50}"#,
        r#"{"n": true, "i": false, "h": "ffffffffffffffff", "t": true}"#,
        r#"{"n": -0, "i": -0, "h": -0, "t": -0}"#,
        r#"{"n": "False", "i": "true", "h": "a", "t": "true"}"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let batch = all(typed(&path)).await;
    let types: Vec<&DataType> = batch.columns().iter().map(|column| column.data_type()).collect();
    assert_eq!(types, [&DataType::Float64, &DataType::Int64, &DataType::UInt64, &DataType::Utf8]);
    let numbers: Vec<_> = batch.column(0).as_primitive::<Float64Type>().iter().collect();
    assert_eq!(numbers, [Some(1.5), None, None, None, Some(-1000.0), Some(1.0), Some(-0.0), Some(0.0)]);
    let integers: Vec<_> = batch.column(1).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(integers, [Some(2), None, None, None, Some(-7), Some(0), Some(0), Some(1)]);
    let hex: Vec<_> = batch.column(2).as_primitive::<UInt64Type>().iter().collect();
    // Without quotes it is the integer that digits stand for, as in a request to a server.
    assert_eq!(hex, [Some(0x1f), None, None, None, Some(10), Some(u64::MAX), Some(0), Some(10)]);
    let text: Vec<_> = batch.column(3).as_string::<i32>().iter().collect();
    assert_eq!(text, [Some("é\n"), None, Some(""), None, Some("12.50"), Some("true"), Some("-0"), Some("true")]);
}

#[tokio::test]
async fn a_column_is_one_of_lists_in_all_files_if_it_is_in_the_first_lines_of_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.jsonl"), "{\"t\": \"x\", \"n\": 1}\n{\"n\": 2}\n").unwrap();
    fs::write(dir.path().join("b.jsonl"), "{\"t\": [\"y\", null, \"z\"], \"n\": 3}\n{\"t\": [], \"n\": 4}\n").unwrap();
    let columns = [("t", ValueKind::Text), ("n", ValueKind::Number)].map(|(name, kind)| FileColumn::new(name, kind));
    let batch = all(JsonLinesSource::json_lines(dir.path(), options()).columns(columns)).await;
    let lists = batch.column(0).as_list::<i32>();
    let of_row = |list: ArrayRef| list.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect();
    let rows: Vec<Option<Vec<Option<String>>>> = lists.iter().map(|list| list.map(of_row)).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [Some(vec![text("x")]), None, Some(vec![text("y"), None, text("z")]), Some(vec![])]);
}

#[tokio::test]
async fn a_column_that_begins_with_nulls_is_one_of_lists_if_the_job_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let nulls = "{\"t\": null, \"u\": \"x\"}\n".repeat(4000);
    fs::write(dir.path().join("a.jsonl"), nulls + "{\"t\": [\"a\", \"b\"]}\n").unwrap();
    let source = |list| {
        let columns = ["t", "u"].map(|name| FileColumn::new(name, ValueKind::Text).list(list));
        JsonLinesSource::json_lines(dir.path(), options()).columns(columns)
    };
    let said = why_refused(source(false)).await;
    assert!(said.contains("`t`") && said.contains("4001"), "{said}");
    let batch = all(source(true)).await;
    let lists = batch.column(0).as_list::<i32>();
    assert!(lists.is_null(3999));
    let last: Vec<_> = lists.value(4000).as_string::<i32>().iter().flatten().map(str::to_owned).collect();
    assert_eq!(last, ["a", "b"]);
    // What is there decides.
    assert_eq!(*batch.column(1).data_type(), DataType::Utf8);
}

#[tokio::test]
async fn without_columns_nested_values_are_left_out_and_a_late_key_is_a_bad_row_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let first = "{\"n\": 1, \"o\": {\"x\": 1}, \"lo\": [{\"x\": 1}], \"ll\": [[1], [2]], \"l\": [\"[\", \"b\"]}\n";
    let filler = "{\"n\": 2}\n".repeat(8000);
    fs::write(&path, format!("{first}{filler}{{\"n\": 3, \"late\": null}}\n{{\"n\": 4, \"late\": 5, \"o\": 7}}\n"))
        .unwrap();
    let batch = all(JsonLinesSource::json_lines(&path, options())).await;
    let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!((names, batch.num_rows()), (vec!["l", "n"], 8003));
    let strict = || {
        JsonLinesSource::json_lines(&path, options())
            .columns([FileColumn::new("n", ValueKind::Integer)])
            .new_keys_are_bad()
    };
    let said = why_refused(strict()).await;
    assert!(said.contains("a key that the first lines lack: found `late`") && said.contains("line 8003"), "{said}");
    let cx = cx();
    let rows = joined(&read(&mut strict().on_bad_row(OnBadRow::Skip), &cx).await.unwrap());
    assert_eq!((rows.num_rows(), cx.ledger().snapshot().rejected["a key that the first lines lack"]), (8002, 1));
}

/// A bug: the keys that the first lines lack were left out without a word.
#[tokio::test]
async fn an_inspection_counts_the_rows_with_keys_that_the_first_lines_lack() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let first = "{\"n\": 2}\n".repeat(8000);
    let late = "{\"n\": 3, \"late\": null}\n{\"n\": 4, \"late\": 5}\n{\"late\": 6, \"o\": {\"x\": 7}}\n{\"n\": \n";
    fs::write(&path, format!("{first}{late}")).unwrap();
    let found = inspect(path.to_str().unwrap(), InspectOptions::default()).await.unwrap();
    assert_eq!((found.rows, found.rejected.values().sum::<u64>(), found.columns.len()), (8003, 1, 1));
    assert_eq!(found.rows_with_late_keys, 2);
    assert_eq!(json!(found.late_keys), json!({ "late": 2, "o": 1 }));
    let said = found.to_string();
    for words in ["first 64 KiB: 2: `late` (2), `o` (1);", "columns.optional", "data convert --text late"] {
        assert!(said.contains(words), "no {words:?} in: {said}");
    }
    let keys: String = (0..1200).map(|i| format!("{{\"n\": 1, \"k{i}\": 1}}\n")).collect();
    fs::write(&path, format!("{first}{keys}")).unwrap();
    let found = inspect(path.to_str().unwrap(), InspectOptions::default()).await.unwrap();
    assert_eq!((found.rows_with_late_keys, found.late_keys.len()), (1200, 1000));
    assert!(found.to_string().contains(" and 995 more;"), "{found}");
    fs::write(&path, first).unwrap();
    let found = inspect(path.to_str().unwrap(), InspectOptions::default()).await.unwrap();
    assert!(!found.to_string().contains("not shown") && found.late_keys.is_empty(), "{found}");
}

/// A bug: `inf` stood there, and nothing said that a training refuses the row.
#[tokio::test]
async fn an_inspection_counts_values_that_are_infinite_as_dense_features() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.jsonl", "{\"x\": 1e400, \"t\": \"1e400\"}\n{\"x\": -1e39, \"t\": \"a\"}\n{\"x\": 3e38}\n"),
        ("a.csv", "x,t\n1e400,1e400\n-1e39,a\n3e38,\n"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let found = inspect(path.to_str().unwrap(), InspectOptions::default()).await.unwrap();
        let of = |name: &str| found.columns.iter().find(|column| column.name == name).unwrap();
        assert_eq!((of("x").infinite, of("t").infinite), (2, 0), "{found}");
        let words = "x: 2 infinite values or beyond 3.4e38; in a dense feature such a value makes a bad row";
        assert!(found.to_string().contains(words), "{found}");
    }
}

#[tokio::test]
async fn a_file_without_a_usable_row_says_why_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    fs::write(&path, "{\"n\": 1,\n[1]\n{\"n\": \"x\", \"i\": 1, \"h\": 1, \"t\": 1}\n").unwrap();
    let said = why_refused(typed(&path).on_bad_row(OnBadRow::Skip)).await;
    for part in ["3 rows were rejected", "(2) because of this: not a JSON object", "byte 0 of", "a.jsonl`"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    fs::write(&path, "{\"n\": 1,\n[1]\n").unwrap();
    let said = why_refused(typed(&path).on_bad_row(OnBadRow::Skip)).await;
    assert!(said.contains("2 rows were rejected, all because of this: not a JSON object"), "{said}");
    // A bug: nothing said which column it was, and what is expected there.
    fs::write(&path, "{\"n\": {\"x\": 1}, \"i\": 1, \"h\": 1, \"t\": 1}\n".repeat(2)).unwrap();
    let said = why_refused(typed(&path).on_bad_row(OnBadRow::Skip)).await;
    assert!(
        said.contains("not one value; the first begins at byte 0 of") && said.contains("a.jsonl`: found"),
        "{said}"
    );
    assert!(said.contains("in `n`, expected"), "{said}");
    fs::write(&path, "{\"n\": 1,\n{\"n\": \"x\", \"i\": 1, \"h\": 1, \"t\": 1}\n").unwrap();
    let said = why_refused(typed(&path).on_bad_row(OnBadRow::Skip)).await;
    assert!(said.contains("2 rows were rejected, 1 of them because of this: "), "{said}");
}

/// A bug: with `skip` all of their lines were left out.
#[tokio::test]
async fn an_array_and_objects_of_several_lines_are_refused_whatever_happens_to_bad_rows() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("a.jsonl");
    fs::write(&good, "{\"n\": 1, \"i\": 1, \"h\": 1, \"t\": 1}\n").unwrap();
    for (text, words) in [
        ("[{\"n\": 1}, {\"n\": 2}]\n", "as one JSON array"),
        ("\u{feff}\n [\n{\"n\": 1}\n]\n", "jq -c '.[]'"),
        ("{\r\n  \"n\": 1\r\n}\r\n", "an object of several lines"),
    ] {
        fs::write(dir.path().join("b.jsonl"), text).unwrap();
        let said = why_refused(typed(dir.path()).on_bad_row(OnBadRow::Skip)).await;
        assert!(said.contains("b.jsonl`") && said.contains(words) && said.contains("one object per line"), "{said}");
    }
}

#[tokio::test]
async fn bad_rows_are_named_with_file_line_and_column_or_counted_by_reason() {
    let dir = tempfile::tempdir().unwrap();
    let bad: [(&[u8], &str, &str); 14] = [
        (b"1,2,3", "not a JSON object", "found `1,2,3` (the line is a number), expected a JSON object on each line"),
        (b"[{\"n\": 1},", "not a JSON object", "(the line is an array), expected a JSON object on each line"),
        (b"{\"n\": 1", "not a JSON object", "(EOF while parsing an object)"),
        (b"{\"n\": 1} {}", "not a JSON object", "(trailing characters)"),
        (
            b"{\"n\": \"one\", \"i\": 2, \"x\": {}}",
            "not a number",
            "found `\"one\"` in `n`, expected null or a number (text may",
        ),
        (b"{\"n\": 1, \"i\": 2.5}", "not an integer", "found `2.5` in `i`"),
        (b"{\"h\": \"xyz\"}", "not a hex category", "in `h`"),
        (b"{\"t\": \"\xff\"}", "not a JSON object", "(invalid unicode code point)"),
        (b"{\"t\": [1]}", "not one value", "found `[1]` in `t`, expected null or text"),
        (b"{\"i\": 1, \"i\": 1}", "a key twice", "in `i`"),
        (
            b"\xff\xfe{\0\"\0n\0\"\0:\0\x31\0}\0",
            "not a JSON object",
            "the file is UTF-16: convert it, for instance with `iconv -f UTF-16 -t UTF-8`",
        ),
        // As Python writes them.
        (b"{\"n\": NaN, \"i\": 2}", "not a JSON object", "(NaN is no JSON, write null)"),
        (b"{\"i\": 2, \"n\": -Infinity}", "not a JSON object", "(Infinity is no JSON, write null)"),
        (b"{\"other\": [1, Infinity]}", "not a JSON object", "(Infinity is no JSON, write null)"),
    ];
    let path = dir.path().join("a.jsonl");
    // The first lines of a file are more than those before the bad one, so that its lists are not known.
    let good = |rows: std::ops::Range<usize>| {
        rows.map(|i| format!("{{\"n\":{i},\"i\":{i},\"h\":\"{i}\",\"t\":\"{}\"}}\n", "x".repeat(3000)))
            .collect::<String>()
    };
    for (line, reason, said) in bad {
        let text = [good(0..30).as_bytes(), line, b"\n", good(30..60).as_bytes()].concat();
        fs::write(&path, &text).unwrap();
        for range_bytes in [400, 4 << 20] {
            let source = |policy| typed(&path).range_bytes(range_bytes).on_bad_row(policy);
            check_bad_line(source, &dir.path().join("rejected"), line, reason, ["a.jsonl`, line 31", said]).await;
        }
    }
}

#[tokio::test]
async fn a_name_that_no_file_has_is_refused_with_the_nearest_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.jsonl"), "{\"n\": 1, \"i\": 2, \"H\": 3}\n").unwrap();
    fs::write(dir.path().join("b.jsonl"), "{\"t\": \"x\"}\n").unwrap();
    let said = why_refused(typed(dir.path())).await;
    for words in ["no column `h` in the first lines of", "did you mean `H`?", "H, i, n, t"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let columns = COLUMNS.map(|(name, kind)| FileColumn::new(name, kind).optional(name == "h"));
    let batch = all(JsonLinesSource::json_lines(dir.path(), options()).columns(columns)).await;
    assert_eq!((batch.num_rows(), batch.column(2).null_count(), batch.column(3).null_count()), (2, 2, 1));
    fs::write(dir.path().join("a.jsonl"), "n,i\n1,2\n").unwrap();
    fs::remove_file(dir.path().join("b.jsonl")).unwrap();
    assert!(why_refused(typed(dir.path())).await.contains("line 1"), "no line is an object");
}

#[tokio::test]
async fn a_folder_above_a_file_is_a_column() {
    let text = "{\"n\":1,\"h\":2,\"t\":3}\n{\"n\":4,\"h\":5,\"t\":6}\n";
    check_folder_above("part-0.json", text, typed).await;
}

#[tokio::test]
async fn inspecting_tells_numbers_from_text_and_counts_missing_values() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "{\"id\":\"u1\",\"of\":{\"x\":1},\"label\":1,\"age\":30}\n{\"id\":\"u2\",\"label\":0}\n{\"id\":\"u3\",\"label\":0,\"age\":41}\n{\n";
    fs::write(dir.path().join("a.jsonl"), lines).unwrap();
    let found = inspect(dir.path(), InspectOptions::default()).await.unwrap();
    assert_eq!((found.format.as_str(), found.rows, found.rejected["not a JSON object"]), ("json lines", 3, 1));
    let kinds: Vec<(&str, &str)> =
        found.columns.iter().map(|column| (column.name.as_str(), column.kind.as_str())).collect();
    assert_eq!(kinds, [("age", "number"), ("id", "text"), ("label", "number")]);
    assert!((found.columns[0].missing - 1.0 / 3.0).abs() < 1e-9);
}

#[tokio::test]
async fn an_empty_text_is_a_value_as_in_training() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "{\"t\":\"\",\"n\":\"\"}\n{\"t\":\"x\",\"n\":1}\n{\"n\":2}\n{\"t\":\"\",\"n\":null}\n";
    fs::write(dir.path().join("a.jsonl"), lines).unwrap();
    let found = inspect(dir.path(), InspectOptions::default()).await.unwrap();
    let columns: Vec<(&str, f64, Option<u64>)> =
        found.columns.iter().map(|c| (c.name.as_str(), c.missing, c.distinct)).collect();
    // In a column of numbers it is a missing value.
    assert_eq!(columns, [("n", 0.5, Some(2)), ("t", 0.25, Some(2))]);
}

/// Any value, down to some depth.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ab\"\\\\é\\n\\t{}\\[\\]:, ]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[nitx\"]{1,2}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Beside any other keys, in any order.
    #[test]
    fn texts_are_read_back_as_they_were_written(
        rows in prop::collection::vec((prop::option::of("[ab\"\\\\é\\n\\t{}]{0,8}"), prop::collection::btree_map("[nih\"é]{1,3}", values(), 0..5)), 1..30),
        range_bytes in 1u64..80,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut text = String::from("{\"word\": null}\n");
        for (word, others) in &rows {
            let mut object = json!(others);
            if let Some(word) = word {
                object["word"] = word.clone().into();
            }
            text.push_str(&object.to_string());
            text.push('\n');
        }
        fs::write(&path, text).unwrap();
        let columns = [FileColumn::new("word", ValueKind::Text)];
        let source = JsonLinesSource::json_lines(&path, options()).columns(columns).range_bytes(range_bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let batch = runtime.block_on(all(source));
        let found: Vec<Option<&str>> = batch.column(0).as_string::<i32>().iter().skip(1).collect();
        let expected: Vec<Option<&str>> = rows.iter().map(|(word, _)| word.as_deref()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_bytes_make_it_panic(text in prop::collection::vec(prop::sample::select(b"{}[]\"\"nit::1,,\n\n\r\xff-. ".to_vec()), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, [b"{\"n\":[1],\"i\":1,\"h\":1,\"t\":1}\n", &text[..]].concat()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut source = typed(&path).on_bad_row(OnBadRow::Skip).range_bytes(7);
        let cx = cx();
        if let Ok(rows) = runtime.block_on(read(&mut source, &cx)) {
            let lines = text.split(|&b| b == b'\n').filter(|line| !matches!(line, [] | [b'\r'])).count() + 1;
            let good: usize = rows.iter().map(|rows| rows.batch.num_rows()).sum();
            prop_assert_eq!(good + source.seen().1 as usize, lines);
        }
    }
}
