//! `forebay data convert` of text without types: the types of its columns, and values that do not fit.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;

use super::common::{self, read_rows, run};

fn convert(rows: &Path, out: &Path, more: &[&str]) -> (Option<i32>, String) {
    let arguments = ["data", "convert", rows.to_str().unwrap(), "--out", out.to_str().unwrap()];
    run(&[&arguments[..], more].concat())
}

fn types(rows: &RecordBatch) -> Vec<(String, DataType)> {
    rows.schema_ref().fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

/// The files of the UserBehavior data set, for instance, have no header.
#[test]
fn csv_without_a_header_is_refused_and_inspect_warns() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("UserBehavior.csv"), dir.path().join("out"));
    fs::write(&rows, "837575,2520377,4145813,pv,1511657927\n1,2268318,2520377,buy,1511544070\n").unwrap();
    let said = common::exits(2, convert(&rows, &out, &[]), &[]);
    for words in ["UserBehavior.csv` has the number 837575", "write the names in front of the rows", "--job"] {
        assert!(said.contains(words), "no `{words}` in: {said}");
    }
    assert!(!out.exists());
    common::exits(0, run(&["data", "inspect", rows.to_str().unwrap()]), &["has the number 837575", "1 row,"]);
    // Numbers may be names all the same, such as the years of a pivoted table.
    let job = dir.path().join("job.toml");
    fs::write(&job, "[columns]\nlabel = \"1511657927\"\ndense = [\"837575\"]\nslots = [\"pv\"]\n").unwrap();
    common::exits(0, convert(&rows, &out, &["--job", job.to_str().unwrap()]), &[]);
}

/// A bug: nothing said that `y` is missing in the output.
#[test]
fn columns_that_the_first_file_lacks_are_left_out_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows"), dir.path().join("out"));
    fs::create_dir(&rows).unwrap();
    fs::write(rows.join("a.csv"), "label,x\n0,1\n").unwrap();
    fs::write(rows.join("b.csv"), "x,y,label\n1,2,1\n").unwrap();
    let warning = ["left out are columns that the first file lacks: y; `", "b.csv`, for instance, has `y`"];
    common::exits(0, convert(&rows, &out, &[]), &warning);
    fs::remove_file(rows.join("b.csv")).unwrap();
    let said = common::exits(0, convert(&rows, &out, &["--replace"]), &[]);
    assert!(!said.contains("left out"), "{said}");
}

/// A bug: both commands refused such files without a word about what to do.
#[test]
fn columns_that_only_some_files_have_are_inspected_and_converted_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("csv");
    fs::create_dir(&csv).unwrap();
    fs::write(csv.join("a.csv"), "label,x\n0,1\n1,2\n").unwrap();
    fs::write(csv.join("b.csv"), "y,label\n2,1\n").unwrap();
    let parquet = dir.path().join("parquet");
    fs::create_dir(&parquet).unwrap();
    for name in ["a", "b"] {
        let typed = dir.path().join(name);
        common::exits(0, convert(&csv.join(format!("{name}.csv")), &typed, &[]), &[]);
        common::write_parquet(&parquet.join(format!("{name}.parquet")), &read_rows(&typed));
    }
    let arrow = dir.path().join("arrow");
    fs::create_dir(&arrow).unwrap();
    for name in ["a", "b"] {
        let rows = read_rows(&dir.path().join(name));
        let file = fs::File::create(arrow.join(format!("{name}.arrow"))).unwrap();
        let mut writer = arrow::ipc::writer::FileWriter::try_new(file, rows.schema_ref()).unwrap();
        writer.write(&rows).unwrap();
        writer.finish().unwrap();
    }
    for rows in [&csv, &parquet, &arrow] {
        let some = ["only some files have: x, y; `", "columns.optional names them"];
        let said = common::exits(0, run(&["data", "inspect", rows.to_str().unwrap()]), &some);
        let line = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("x ").contains(" 33.33%") && line("y ").contains(" 66.67%"), "{said}");
        let out = rows.with_extension("out");
        common::exits(2, convert(rows, &out, &[]), &["no column `x`", "--all-columns"]);
        common::exits(0, convert(rows, &out, &["--all-columns"]), &some);
        let written = cast(&read_rows(&out)["x"], &DataType::Int64).unwrap();
        let expected = [Some(1), Some(2), None];
        assert_eq!(written.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), expected);
        let written = cast(&read_rows(&out)["y"], &DataType::Int64).unwrap();
        assert_eq!(written.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [None, None, Some(2)]);
    }
    // A file with another delimiter, for instance, is not one of the same rows.
    fs::write(csv.join("b.csv"), "y;label\n2;1\n").unwrap();
    for outcome in
        [run(&["data", "inspect", csv.to_str().unwrap()]), convert(&csv, &dir.path().join("no"), &["--all-columns"])]
    {
        common::exits(2, outcome, &["no column `label`", "no column in common"]);
    }
}

/// The fields of the Ali-CCP data set, for instance, have numbers as names. A bug: such a file was taken for one without a header.
#[test]
fn a_header_with_numbers_is_a_header_if_a_column_of_numbers_has_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.csv"), dir.path().join("out"));
    fs::write(&rows, "click,101,121\n0,7,8\n1,7,9\n").unwrap();
    let (_, said) = run(&["data", "inspect", rows.to_str().unwrap()]);
    assert!(said.contains("2 rows") && !said.contains("has the number"), "{said}");
    common::exits(0, convert(&rows, &out, &[]), &["integers: click, 101, 121"]);
    // A value that may stand in a row is no name.
    for value in ["", "true", "NaN", "0.5"] {
        fs::write(&rows, format!("{value},5,pv\n1,6,pv\n0,7,pv\n")).unwrap();
        common::exits(2, convert(&rows, &dir.path().join("none"), &[]), &["has the number"]);
    }
    // The name of a folder column says nothing about the first line.
    let day = dir.path().join("days/day=1");
    fs::create_dir_all(&day).unwrap();
    fs::write(day.join("rows.csv"), "0,5,pv\n1,6,pv\n").unwrap();
    let (_, said) = run(&["data", "inspect", dir.path().join("days").to_str().unwrap()]);
    assert!(said.contains("has the number"), "{said}");
}

#[test]
fn a_header_with_another_delimiter_is_not_taken_for_one_column() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("ratings.csv"), dir.path().join("out"));
    fs::write(&rows, "click;age\n1;33\n").unwrap();
    common::exits(2, convert(&rows, &out, &[]), &["has ';' and no ','", "--delimiter ';'"]);
    assert!(!out.exists());
    common::exits(0, run(&["data", "inspect", rows.to_str().unwrap()]), &["has ';' and no ','"]);
    let folder = rows.with_file_name("day=1");
    fs::create_dir(&folder).unwrap();
    fs::copy(&rows, folder.join("rows.csv")).unwrap();
    let whole = folder.parent().unwrap().join("day=*");
    common::exits(0, run(&["data", "inspect", whole.to_str().unwrap()]), &["has ';' and no ','"]);
    fs::remove_dir_all(&folder).unwrap();
    let (code, said) = convert(&rows, &out, &["--delimiter", ","]);
    assert_eq!(code, Some(0), "`--delimiter ,` makes the header one column: {said}");
    // Criteo text, for instance: no name of a column has tabs, and its first row would be lost.
    for (line, other) in [("1\t5\t68fd1e64", "\\t"), ("click;age;city", ";")] {
        let (rows, out) = (dir.path().join("rows.txt"), dir.path().join("no"));
        fs::write(&rows, format!("{line}\n{line}\n")).unwrap();
        let (code, said) = convert(&rows, &out, &["--delimiter", ","]);
        let words = format!("has '{other}' and no ',': give --delimiter '{other}', or --job");
        assert!(code == Some(2) && said.contains(&words) && !out.exists(), "{said}");
    }
}

/// As Hive and R write missing values. A bug: nothing told such a column from one of text.
#[test]
fn inspect_says_which_text_among_numbers_may_be_a_missing_value() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, json) = (dir.path().join("rows.csv"), dir.path().join("rows.jsonl"));
    fs::write(&csv, "label,x,c\n0,1,a\n1,\\N,b\n1,2.5,a\n").unwrap();
    let words =
        "x: 1 value is `\\N`, and all others numbers: if it means a missing value, set data.csv.nulls to [\"\\\\N\"]";
    let said = common::exits(0, run(&["data", "inspect", csv.to_str().unwrap()]), &[words]);
    assert!(!said.contains("c: "), "{said}");
    fs::write(&json, "{\"label\":0,\"x\":\"NA\"}\n{\"label\":1,\"x\":2}\n").unwrap();
    common::exits(0, run(&["data", "inspect", json.to_str().unwrap()]), &["x: 1 value is `NA`", "write null"]);
}

/// A bug: the work was done, and then the folder could not be put in its place, or the next run read the bad rows.
/// A bug: a column of numbers with `nan` became text without a word, and could not be trained on; `inspect` called it a column of numbers.
#[test]
fn nan_is_a_number_and_one_text_among_numbers_makes_text_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.csv"), dir.path().join("out"));
    fs::write(&rows, "click,age,income\n1,31,NA\n0,nan,2.5\n1,NaN,3\n0,44,NA\n").unwrap();
    let warning = "income: 2 values are `NA`, and all others numbers: if it means a missing value, give --null \"NA\"";
    let said = common::exits(0, convert(&rows, &out, &[]), &[warning]);
    assert_eq!(types(&read_rows(&out))[1..], [("age".into(), DataType::Float64), ("income".into(), DataType::Utf8)]);
    let age = read_rows(&out).column(1).as_primitive::<Float64Type>().clone();
    assert!(age.value(0) == 31.0 && age.value(1).is_nan() && age.null_count() == 0, "{said}");
    let said = common::exits(0, convert(&rows, &out, &["--replace", "--text", "income"]), &[]);
    assert!(!said.contains("all others numbers"), "{said}");
    let said = common::exits(0, convert(&rows, &out, &["--replace", "--null", "NA", "--null", "nan"]), &[]);
    let [age, income] = [1, 2].map(|at| read_rows(&out).column(at).clone());
    assert_eq!((age.null_count(), income.null_count()), (1, 2), "{said}");
    assert_eq!(income.as_primitive::<Float64Type>().value(1), 2.5);
    let parquet = out.display().to_string();
    common::exits(2, run(&["data", "inspect", &parquet, "--null", "NA"]), &["--null is for CSV", "leave out --null"]);
    common::exits(0, run(&["data", "inspect", rows.to_str().unwrap(), "--null", "NA"]), &["income"]);
}

/// A bug: it was called a Parquet file with a corrupt footer.
#[test]
fn orc_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.orc");
    fs::write(&rows, [&b"ORC"[..], &[7; 60], b"ORC", &[23]].concat()).unwrap();
    let said = ["rows.orc` is ORC, which Forebay does not read: convert it to Parquet"];
    common::exits(2, run(&["data", "inspect", rows.to_str().unwrap()]), &said);
}

#[test]
fn bad_rows_in_the_folder_of_the_output_or_among_the_rows_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows"), dir.path().join("out"));
    fs::create_dir(&rows).unwrap();
    fs::write(rows.join("a.csv"), "click,age\n1,33\n").unwrap();
    for (bad, words) in [
        (out.clone(), "the folder of the output"),
        (out.join("bad"), "the folder of the output"),
        (rows.clone(), "would take the bad rows for rows"),
    ] {
        common::exits(2, convert(&rows, &out, &["--on-bad-row", bad.to_str().unwrap()]), &["--on-bad-row is", words]);
        assert!(!out.exists() && fs::read_dir(&rows).unwrap().count() == 1);
    }
    let (code, said) = convert(&rows.join("a.csv"), &out, &["--on-bad-row", rows.to_str().unwrap()]);
    assert_eq!(code, Some(0), "a file is read alone: {said}");
}

#[test]
fn inspect_says_how_to_read_a_header_and_tabs_under_a_name_of_criteo_text_and_which_files_are_not_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.tsv");
    fs::write(&rows, "click\tage\n1\t33\n0\t34\n").unwrap();
    common::exits(
        2,
        run(&["data", "inspect", rows.to_str().unwrap()]),
        &["--format csv with the same --delimiter, '\\t' for tabs"],
    );
    for name in ["rows.csv.zip", "rows.tar.gz", "rows.tar"] {
        let packed = dir.path().join(name);
        fs::write(&packed, "PK").unwrap();
        let (code, said) = run(&["data", "inspect", packed.to_str().unwrap()]);
        let ending = &name[name.find(".t").or(name.find(".z")).unwrap()..];
        assert!(code == Some(2) && said.contains(&format!("text packed as `{ending}` is not supported")), "{said}");
    }
}

/// The names of MovieLens and of other sets tell no format, or Criteo text.
#[test]
fn a_delimiter_an_option_or_a_job_make_text_of_any_name_csv() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job.toml");
    let columns =
        "[columns]\nlabel = { column = \"rating\", positive = \">= 4\" }\ndense = []\nslots = [\"user\", \"item\"]\n";
    fs::write(&job, format!("[data]\nformat = \"csv\"\ncsv = {{ delimiter = \"\\t\" }}\n{columns}")).unwrap();
    for (number, name) in ["r.tsv", "u.data", "r.dat", "r.tab", "ratings", "r.txt"].into_iter().enumerate() {
        let rows = dir.path().join(name);
        fs::write(&rows, "user\titem\trating\n196\t242\t3\n186\t302\t5\n").unwrap();
        let with: [&[&str]; 3] =
            [&["--delimiter", "\\t"], &["--format", "csv", "--delimiter", "\\t"], &["--job", job.to_str().unwrap()]];
        for (way, more) in with.into_iter().enumerate() {
            let out = dir.path().join(format!("out-{number}-{way}"));
            let (code, said) = convert(&rows, &out, more);
            assert_eq!(code, Some(0), "{name} {more:?}: {said}");
            assert_eq!((read_rows(&out).num_rows(), read_rows(&out).num_columns()), (2, 3), "{name} {more:?}");
        }
        let (code, said) = run(&["data", "inspect", rows.to_str().unwrap(), "--delimiter", "\\t"]);
        assert!(code == Some(0) && said.contains("csv, 1 file, 2 rows") && said.contains("rating"), "{name}: {said}");
    }
    let out = dir.path().join("out");
    common::exits(2, convert(&dir.path().join("r.tsv"), &out, &[]), &["--format csv", "'\\t' for tabs"]);
    let lines = dir.path().join("rows.jsonl");
    fs::write(&lines, "{\"a\": 1}\n").unwrap();
    common::exits(2, convert(&lines, &out, &["--delimiter", ";"]), &["--delimiter is for CSV", "JSON lines"]);
    fs::rename(&lines, dir.path().join("rows.log")).unwrap();
    common::exits(0, convert(&dir.path().join("rows.log"), &out, &["--format", "json_lines"]), &[]);
}

#[test]
fn missing_values_of_all_numbers_booleans_and_texts_can_be_filled() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("rows.csv");
    fs::write(&csv, "i,f,s\n1,1.5,a\n,,\n").unwrap();
    let ones: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    use DataType::{
        Boolean, Date32, Float32, Float64, Int8, Int16, Int32, Int64, LargeUtf8, UInt8, UInt16, UInt32, UInt64, Utf8,
    };
    let kinds =
        [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64, Boolean, Utf8, LargeUtf8, Date32];
    let columns = kinds.iter().map(|kind| (kind.to_string(), cast(&ones, kind).unwrap()));
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let typed = dir.path().join("rows.parquet");
    common::write_parquet(&typed, &rows);
    for (rows, out) in [(&csv, "of-csv"), (&typed, "of-parquet")] {
        let out = dir.path().join(out);
        common::exits(0, convert(rows, &out, &["--fill-nulls"]), &[]);
        let found = read_rows(&out);
        for (field, column) in found.schema_ref().fields().iter().zip(found.columns()) {
            if *field.data_type() == Date32 {
                assert_eq!(column.null_count(), 1);
                continue;
            }
            assert!(!field.is_nullable() && column.null_count() == 0, "{field}");
            let text = cast(&column.slice(1, 1), &Utf8).unwrap();
            let text = text.as_string::<i32>().value(0);
            assert!(["0", "0.0", "false", ""].contains(&text), "{field}: {text}");
        }
    }
    // Only columns of unsigned 32-bit integers can be written as hexadecimal strings.
    let (code, said) = convert(&csv, &dir.path().join("hex"), &["--categories", "hex"]);
    assert!(code == Some(2) && said.contains("unsigned 32-bit") && said.contains("leave it out"), "{said}");
    common::exits(0, convert(&typed, &dir.path().join("hex"), &["--categories", "hex"]), &[]);
}

#[test]
fn partition_columns_that_are_not_written_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows");
    for day in ["day=1/hour=2", "day=2/hour=2"] {
        fs::create_dir_all(rows.join(day)).unwrap();
        fs::write(rows.join(day).join("a.csv"), "click,item\n1,7\n").unwrap();
    }
    common::exits(0, convert(&rows, &dir.path().join("out"), &[]), &["partition columns day, hour"]);
    let job = dir.path().join("job.toml");
    fs::write(&job, "[columns]\nlabel = \"click\"\ndense = []\nslots = [\"item\", \"hour\"]\n").unwrap();
    let (code, said) = convert(&rows, &dir.path().join("of-job"), &["--job", job.to_str().unwrap()]);
    assert!(code == Some(0) && !said.contains("partition columns"), "{said}");
    assert!(read_rows(&dir.path().join("of-job")).column_by_name("hour").is_some());
}

#[test]
fn booleans_of_text_are_numbers_in_both_commands() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("rows.jsonl", "{\"label\":true,\"x\":1}\n{\"label\":false,\"x\":2}\n"),
        ("rows.csv", "label,x\nTrue,1\nFalse,2\n"),
    ] {
        let (rows, out) = (dir.path().join(name), dir.path().join(format!("out of {name}")));
        fs::write(&rows, text).unwrap();
        common::exits(0, convert(&rows, &out, &[]), &["integers: label, x"]);
        assert_eq!(read_rows(&out)["label"].as_primitive::<Int64Type>().values()[..], [1, 0]);
        let said = common::exits(0, run(&["data", "inspect", rows.to_str().unwrap()]), &["positive rate 0.5000"]);
        let label = said.lines().find(|line| line.starts_with("label")).unwrap();
        assert!(label.contains("number"), "{said}");
    }
}

#[test]
fn csv_has_the_types_of_its_first_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.csv"), dir.path().join("out"));
    let mut text = "click;zip;price;city;id;empty\n1;07001;2.5;Oslo;12;\n0;10115;;;;\n".to_owned();
    fs::write(&rows, &text).unwrap();
    let ran = convert(&rows, &out, &["--delimiter", ";", "--text", "id"]);
    common::exits(0, ran, &["integers: click", "numbers: price", "text: zip, city, id, empty"]);
    let found = read_rows(&out);
    let kinds: Vec<DataType> = types(&found).into_iter().map(|(_, kind)| kind).collect();
    use DataType::{Float64, Int64, Utf8};
    assert_eq!(kinds, [Int64, Utf8, Float64, Utf8, Utf8, Utf8]);
    assert_eq!(found["click"].as_primitive::<Int64Type>().values()[..], [1, 0]);
    assert_eq!(found["price"].as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(2.5), None]);
    let zips = found["zip"].as_string::<i32>();
    assert_eq!((zips.value(0), found["city"].null_count()), ("07001", 1));

    // Spaces around a number are not part of it.
    fs::write(&rows, "a;b;c\n 1; 2.5 ;x \n2 ;;  y\n   ;3;z\n").unwrap();
    let spaced = dir.path().join("spaced");
    common::exits(0, convert(&rows, &spaced, &["--delimiter", ";"]), &["integers: a", "numbers: b"]);
    let found = read_rows(&spaced);
    assert_eq!(found["a"].as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1), Some(2), None]);
    assert_eq!(found["b"].as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(2.5), None, Some(3.0)]);
    assert_eq!(found["c"].as_string::<i32>().value(1), "  y");
    fs::write(&rows, &text).unwrap();

    // A value behind the rows by which types were told.
    (0..10_000).for_each(|i| text += &format!("{};1;1;x;{i};\n", i % 2));
    fs::write(&rows, format!("{text}1;1;cheap;x;5;\n")).unwrap();
    let out = dir.path().join("other");
    let said = common::exits(2, convert(&rows, &out, &["--delimiter", ";"]), &[]);
    for word in ["rows.csv", "line 10004", "`cheap`", "(price)", "--text"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    assert!(!out.exists());
    let (code, said) = convert(&rows, &out, &["--delimiter", ";", "--on-bad-row", "skip"]);
    assert!(code == Some(0) && said.contains("left out 1 row: not a number"), "{said}");
    // Other types would not help against these.
    let (code, said) = convert(&rows, &spaced, &["--delimiter", ";", "--on-bad-row", "skip"]);
    assert!(code == Some(2) && said.contains("holds files already") && !said.contains("--text"), "{said}");
    let wide = dir.path().join("wide.csv");
    fs::write(&wide, "a;b\n1;2\n1;2;3\n").unwrap();
    let (code, said) = convert(&wide, &dir.path().join("no"), &["--delimiter", ";"]);
    assert!(code == Some(2) && said.contains("too many fields") && !said.contains("--text"), "{said}");
    let (code, said) = convert(&rows, &dir.path().join("no"), &["--delimiter", ";", "--text", "pric"]);
    assert!(code == Some(2) && said.contains("`pric`, which is not a column, did you mean `price`?"), "{said}");
}

#[test]
fn json_lines_keep_lists_and_truths_are_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, out) = (dir.path().join("rows.jsonl"), dir.path().join("out"));
    let text = "{\"click\": true, \"items\": [5, 7], \"score\": 0.5, \"device\": {\"os\": 1}}\n{\"click\": false, \"items\": []}\n";
    fs::write(&rows, text).unwrap();
    common::exits(0, convert(&rows, &out, &[]), &[]);
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
    common::exits(0, run(&["train", job.to_str().unwrap()]), &[]);
    let parquet = dir.path().join("parquet");
    common::exits(0, convert(&rows, &parquet, &["--job", job.to_str().unwrap()]), &[]);
    use DataType::{Float64, Int64, UInt64, Utf8};
    let kinds: Vec<DataType> = types(&read_rows(&parquet)).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [Float64, Float64, Utf8, UInt64, Int64]);
    let scores = |data: &Path| {
        let out = dir.path().join(format!("scores-{}", data.extension().is_some()));
        let (model, data) = (model.to_str().unwrap(), data.to_str().unwrap());
        common::exits(0, run(&["predict", "--model", model, "--data", data, "--out", out.to_str().unwrap()]), &[]);
        read_rows(&out)["score"].as_primitive::<Float32Type>().clone()
    };
    assert_eq!(scores(&parquet), scores(&rows));
    let (code, said) = convert(&rows, &dir.path().join("no"), &["--job", job.to_str().unwrap(), "--text", "word"]);
    assert!(code == Some(2) && said.contains("--job"), "{said}");
}

/// The types come from the first 10,000 rows, so later rows are checked against them.
#[test]
fn nothing_that_comes_late_is_lost_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, json) = (dir.path().join("rows.csv"), dir.path().join("rows.jsonl"));
    let zips: String = (0..10_100).map(|i| format!("{},{}\n", i % 2, 10_000 + i)).collect();
    fs::write(&csv, format!("click,zip\n{zips}1,0123\n")).unwrap();
    let said = common::exits(2, convert(&csv, &dir.path().join("no"), &[]), &[]);
    for word in ["line 10102", "column 2 (zip)", "`0123`", "--text zip"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    let out = dir.path().join("zips");
    common::exits(0, convert(&csv, &out, &["--text", "zip"]), &[]);
    assert_eq!(read_rows(&out)["zip"].as_string::<i32>().value(10_100), "0123");

    // The key `lane` is near: a bug was that `--text late` was refused for it.
    let first: String = (0..10_100).map(|i| format!("{{\"click\": {}, \"lane\": {i}}}\n", i % 2)).collect();
    fs::write(&json, format!("{first}{{\"click\": 1, \"lane\": 1, \"late\": \"x\"}}\n")).unwrap();
    common::exits(2, convert(&json, &dir.path().join("no"), &[]), &["rows.jsonl", "`late`", "--text late"]);
    let (code, said) = convert(&json, &dir.path().join("skipped"), &["--on-bad-row", "skip"]);
    assert!(code == Some(0) && said.contains("left out 1 row: a key that the first lines lack"), "{said}");
    let out = dir.path().join("late");
    common::exits(
        0,
        convert(&json, &out, &["--text", "late"]),
        &["`late`, which is not in the first 10,000 rows, did you mean `lane`"],
    );
    let rows = read_rows(&out);
    assert_eq!((rows["late"].null_count(), rows["late"].as_string::<i32>().value(10_100)), (10_100, "x"));
}

#[test]
fn nested_values_of_json_are_left_out_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.jsonl");
    fs::write(&rows, "{\"click\": 1, \"visits\": [{\"x\": 1}], \"pairs\": [[1, 2]]}\n{\"click\": 0}\n").unwrap();
    let out = dir.path().join("out");
    common::exits(0, convert(&rows, &out, &[]), &["lists of lists: pairs, visits"]);
    assert_eq!((read_rows(&out).num_columns(), read_rows(&out).num_rows()), (1, 2));
    let (code, said) = run(&["data", "inspect", rows.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains("pairs, visits") && !said.contains("cannot be used"), "{said}");
}

#[test]
fn with_logs_in_json_the_results_are_json_too() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.csv");
    fs::write(&rows, "click,word\n1,a\n0,b,c\n").unwrap();
    let out = dir.path().join("out");
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = common::forebay(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (rows, out) = (rows.to_str().unwrap(), out.to_str().unwrap());
    let said = json(&["data", "convert", rows, "--out", out, "--on-bad-row", "skip", "--log-format", "json"]);
    assert_eq!((&said["written"]["rows"], &said["rejected"]["too many fields"]), (&1.into(), &1.into()), "{said}");
    assert_eq!(json(&["data", "inspect", rows, "--log-format", "json"])["rows"], 1);
    common::exits(2, run(&["data", "convert", rows, "--out", out, "--replace"]), &["by --on-bad-row of data convert"]);
    for format in ["parquet", "criteo"] {
        let out = format!("{out}-{format}");
        let said = json(&["data", "synth", "--rows", "9", "--out", &out, "--format", format, "--log-format", "json"]);
        assert_eq!((&said["written"]["rows"], &said["folder"]), (&9.into(), &out.into()), "{said}");
    }
}
