//! The CSV source: headers, ranges, values, and rows that are not right.

use std::fs;
use std::path::Path;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use forebay_connectors::inspect::{InspectOptions, inspect};
use forebay_connectors::{
    CsvOptions, CsvSource, FileColumn, Integers, JsonLinesSource, OnBadRow, ReadOptions, ValueKind,
};
use proptest::prelude::*;
use tempfile::TempDir;

use super::text::{COLUMNS, check_500_rows, check_bad_line, check_folder_above, gzipped, options, write_six_ways};
use super::{all, cx, read, why_refused};

/// Two files of `rows` rows each: an id, a label and a word; every row whose id is 3 mod 7 is bad. The second file has its columns
/// in another order.
pub(super) fn folder(rows: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let label = |id: usize| if id % 7 == 3 { "yes".to_owned() } else { (id % 2).to_string() };
    let first: String = (0..rows).map(|id| format!("{id},{},word {}\n", label(id), id % 5)).collect();
    let second: String = (rows..2 * rows).map(|id| format!("\"w, {}\",{},{id}\n", id % 5, label(id))).collect();
    fs::write(dir.path().join("0.csv"), format!("row,label,word\n{first}")).unwrap();
    fs::write(dir.path().join("1.csv"), format!("word,label,row\r\n{second}")).unwrap();
    dir
}

/// The ids, labels and words of [`folder`], without its bad rows.
pub(super) fn source(path: &Path, options: ReadOptions) -> CsvSource {
    CsvSource::csv(path, options).on_bad_row(OnBadRow::Skip).columns([
        FileColumn::new("row", ValueKind::Integer),
        FileColumn::new("label", ValueKind::Number),
        FileColumn::new("word", ValueKind::Text),
    ])
}

fn typed(path: &Path) -> CsvSource {
    CsvSource::csv(path, options()).columns(COLUMNS.map(|(name, kind)| FileColumn::new(name, kind)))
}

#[tokio::test]
async fn plain_packed_and_windows_files_hold_the_same_rows_whatever_the_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..500).map(|i| format!("x{i},{i}.5,{i},{i:x},\"a, \"\"{i}\"\"\"\n")).collect();
    let text = format!("id,n,i,h,t\n{text}");
    let names = ["a.csv", "b.csv", "c.csv", "d.csv", "e.csv.zst", "f.csv.gz"];
    let comma = write_six_ways(dir.path(), names, &text, "x7").map(|path| (path, ','));
    let tabs = dir.path().join("g.tsv");
    fs::write(&tabs, text.replace(',', "\t").replace("\"a\t", "\"a,")).unwrap();
    for (path, delimiter) in comma.into_iter().chain([(tabs, '\t')]) {
        for range_bytes in [1, 100, 5000, 4 << 20] {
            let written = CsvOptions { delimiter, ..CsvOptions::default() };
            let batch = all(typed(&path).written(written).range_bytes(range_bytes)).await;
            check_500_rows(&batch, "a, \"7\"", &format!("{} {range_bytes}", path.display()));
        }
    }
}

#[tokio::test]
async fn a_line_that_is_too_long_is_a_bad_row_wherever_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |rows: usize| -> String { (0..rows).map(|i| format!("1.5,{i},a,short\n")).collect() };
    let long = |bytes: usize| format!("1.5,7,a,{}\n", "y".repeat(bytes));
    let (before, far) = (lines(1000), lines(200_000));
    for (name, text, rows) in [
        ("near.csv", [&before, &long(5 << 19), &before].map(String::as_str).concat(), 2000),
        ("far.csv", [&far, &long(5 << 19), &before].map(String::as_str).concat(), 201_000),
        ("last.csv", [&before, long(2 << 20).trim_end()].map(str::to_owned).concat(), 1000),
        // As long as a line may be.
        ("longest.csv", [&before, &long((1 << 20) - 8), &before].map(String::as_str).concat(), 2001),
        ("longer.csv", [&before, &long((1 << 20) - 7), &before].map(String::as_str).concat(), 2000),
    ] {
        let text = format!("n,i,h,t\n{text}");
        fs::write(dir.path().join(name), &text).unwrap();
        let packed = format!("{name}.zst");
        fs::write(dir.path().join(&packed), zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
        for name in [name, &packed] {
            let found = all(typed(&dir.path().join(name)).on_bad_row(OnBadRow::Skip)).await;
            assert_eq!(found.num_rows(), rows, "{name}");
        }
    }
    // A bug: the number belonged to the next line.
    for name in ["near.csv", "near.csv.zst", "last.csv", "last.csv.zst", "longer.csv"] {
        let said = why_refused(typed(&dir.path().join(name))).await;
        assert!(said.contains(&format!("{name}`, line 1002 (byte ")), "{said}");
    }
}

#[tokio::test]
async fn a_missing_value_is_null_in_every_kind_of_column() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "n,i,h,t\n1,2,3,4\n,,,\nNA,NA,NA,NA\n\"\",\"\",\"\",\"\"\n-1e3,-7,ffffffffffffffff,é\n").unwrap();
    let written = CsvOptions { nulls: vec!["NA".into()], ..CsvOptions::default() };
    let batch = all(typed(&path).written(written)).await;
    let types: Vec<&DataType> = batch.columns().iter().map(|column| column.data_type()).collect();
    assert_eq!(types, [&DataType::Float64, &DataType::Int64, &DataType::UInt64, &DataType::Utf8]);
    for column in batch.columns() {
        let null: Vec<bool> = (0..5).map(|row| column.is_null(row)).collect();
        assert_eq!(null, [false, true, true, true, false]);
    }
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().value(4), -1000.0);
    assert_eq!(batch.column(2).as_primitive::<UInt64Type>().value(4), u64::MAX);
    assert_eq!(batch.column(3).as_string::<i32>().value(4), "é");
}

#[tokio::test]
async fn spaces_around_a_number_are_not_part_of_it_and_those_of_text_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "n,i,h,t\n 1.5,2 , ff , x \n\t-3\t,\" 7\",1,\" \"\n  , , ,\n").unwrap();
    let batch = all(typed(&path)).await;
    let numbers: Vec<Option<f64>> = batch.column(0).as_primitive::<Float64Type>().iter().collect();
    assert_eq!(numbers, [Some(1.5), Some(-3.0), None]);
    let integers: Vec<Option<i64>> = batch.column(1).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(integers, [Some(2), Some(7), None]);
    let hex: Vec<Option<u64>> = batch.column(2).as_primitive::<UInt64Type>().iter().collect();
    assert_eq!(hex, [Some(255), Some(1), None]);
    let texts: Vec<Option<&str>> = batch.column(3).as_string::<i32>().iter().collect();
    assert_eq!(texts, [Some(" x "), Some(" "), None]);
    fs::write(&path, "n,i,h,t\n1 2,3,4,5\n").unwrap();
    let said = why_refused(typed(&path)).await;
    assert!(said.contains("not a number: found `1 2`"), "{said}");
    // Inspecting and converting see the same numbers.
    fs::write(&path, "n,i\n 1.5, 2\n,3 \n  ,4\n").unwrap();
    let found = inspect(&path, InspectOptions::default()).await.unwrap();
    let ranges: Vec<_> = found.columns.iter().map(|c| (c.kind.as_str(), c.min, c.max)).collect();
    assert_eq!(ranges, [("number", Some(1.5), Some(1.5)), ("number", Some(2.0), Some(4.0))]);
    assert!((found.columns[0].missing - 2.0 / 3.0).abs() < 1e-9, "{found}");
}

/// As pandas, polars, DuckDB, pyarrow and `forebay predict` write booleans.
#[tokio::test]
async fn true_and_false_in_any_case_are_1_and_0_in_numbers_and_integers_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "n,i,h,t\ntrue,True,1,true\nfalse, FALSE ,2,False\n\"True\",2,3,TRUE\n").unwrap();
    let batch = all(typed(&path)).await;
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().values()[..], [1.0, 0.0, 1.0]);
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values()[..], [1, 0, 2]);
    let texts: Vec<Option<&str>> = batch.column(3).as_string::<i32>().iter().collect();
    assert_eq!(texts, [Some("true"), Some("False"), Some("TRUE")]);
    for integers in [Integers::Wrapping, Integers::AsWritten] {
        let columns = [FileColumn::new("i", ValueKind::Integer).integers(integers)];
        let batch = all(CsvSource::csv(&path, options()).columns(columns)).await;
        assert_eq!(batch.column(0).as_primitive::<Int64Type>().values()[..], [1, 0, 2], "{integers:?}");
    }
    for (row, reason) in [("1,2,true,4", "not a hex category"), ("truely,2,3,4", "not a number: found `truely`")] {
        fs::write(&path, format!("n,i,h,t\n{row}\n")).unwrap();
        let said = why_refused(typed(&path)).await;
        assert!(said.contains(reason), "{said}");
    }
}

#[tokio::test]
async fn bad_rows_are_named_with_file_line_and_column_or_counted_by_reason() {
    let dir = tempfile::tempdir().unwrap();
    let bad: [(&[u8], &str, &str); 11] = [
        (b"1,2,3", "too few fields", "found 3 fields, expected 4"),
        (b"1,2,3,4,5", "too many fields", "found 5 fields, expected 4"),
        (b"one,2,3,4", "not a number", "column 1 (n): not a number: found `one`"),
        (b"1,2.5,3,4", "not an integer", "column 2 (i): not an integer: found `2.5`"),
        (b"\"1,5\",2,3,4", "not a number", "found `1,5`, expected nothing or a number without a comma"),
        (b"\"1,500.25\",2,3,4", "not a number", "a number without a comma: its fraction begins with a point"),
        (b"1,2,xyz,4", "not a hex category", "column 3 (h)"),
        (b"1,2,3,\xff", "invalid UTF-8", "column 4 (t)"),
        (b"1,2,3,\"4", "quoted field has no end", "fields with line ends are not read"),
        (b"1,2,\"3\"x,4", "text after a quoted field", "a quote in a field is written twice"),
        (b"1,\"2,3,4", "quoted field has no end", "column 2 (i)"),
    ];
    let path = dir.path().join("a.csv");
    let good = |rows: std::ops::Range<usize>| rows.map(|i| format!("{i},{i},{i},{i}\n")).collect::<String>();
    for (line, reason, said) in bad {
        let text = [b"n,i,h,t\n", good(0..30).as_bytes(), line, b"\n", good(30..60).as_bytes()].concat();
        fs::write(&path, &text).unwrap();
        for range_bytes in [40, 4 << 20] {
            let source = |policy| typed(&path).range_bytes(range_bytes).on_bad_row(policy);
            check_bad_line(source, &dir.path().join("rejected"), line, reason, ["a.csv`, line 32", said]).await;
        }
    }
}

#[tokio::test]
async fn a_header_that_does_not_fit_is_refused_with_file_and_nearest_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    let long = "x".repeat((1 << 20) + 5);
    for (text, words) in [
        ("n,i,H,t\n1,2,3,4\n", &["a.csv` has no column `h`", "did you mean `H`?", "n, i, H, t"][..]),
        ("n,i,h1..h3,t\n1,2,3,4\n", &["no column `h`", "`h1..h3` stands for a range of columns"]),
        ("n,i,h,t,n\n", &["`n` twice, as columns 1 and 5: rename one of them"]),
        ("n;i;h;t\n1;2;3;4\n", &["has ';' and no ','", "data.csv.delimiter"]),
        ("1,2,3,4\n5,6,7,8\n", &["first line has numbers", "(echo user,item,label; cat rows.csv) > named.csv"]),
        ("1 3:1 7:1\n0 5:1\n", &["expected columns: Forebay does not read `label index:value ...`"]),
        ("\nn,i,h,t\n", &["first line is empty"]),
        ("n,\"i,h,t\n1,2,3,4\n", &["line 1: the header cannot be read: quoted field has no end"]),
        (&long, &["more than 1048576 bytes, so it is not a header"]),
        ("n,i,h,t\n", &["holds no rows"]),
        ("n,i,h,t", &["holds no rows"]),
    ] {
        fs::write(&path, text).unwrap();
        let said = why_refused(typed(&path)).await;
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    // A bug: the error named no delimiter, or gave a header with another delimiter.
    for (text, words) in [
        (
            "n;i;h\n1;2,5;3\n",
            &["found 2 fields, expected 1, as the header has: the header is `n;i;h`, with ';' and no ','"][..],
        ),
        ("# a comment\nn,i,h\n1,2,3\n", &["the first line is `# a comment`, expected the names of columns"]),
    ] {
        fs::write(&path, text).unwrap();
        let said = why_refused(CsvSource::csv(&path, options()).on_bad_row(OnBadRow::Skip)).await;
        words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    }
    fs::write(&path, "1\t1\t7\n").unwrap();
    let tabs = CsvOptions { delimiter: '\t', ..CsvOptions::default() };
    let said = why_refused(CsvSource::csv(&path, options()).written(tabs)).await;
    assert!(said.contains("(printf 'user\\titem\\tlabel\\n'; cat rows.csv) > named.csv"), "{said}");
    // Without columns all are read, so that equal numbers are the first that is noticed.
    fs::write(&path, "1,1,2520377,pv,1\n").unwrap();
    let said = why_refused(CsvSource::csv(&path, options())).await;
    assert!(said.contains("`1` twice, as columns 1 and 2: the first line has numbers, expected a header"), "{said}");
    fs::write(&path, b"PAR1\xff\xfe\n").unwrap();
    assert!(why_refused(typed(&path)).await.contains("not UTF-8"));
    fs::write(&path, b"PAR1\x15\x04\xff\n").unwrap();
    assert!(why_refused(typed(&path)).await.contains("so the file is not CSV"));
    fs::write(&path, b"n,i,h,stra\xdfe,t\n1,2,3,4,5\n").unwrap();
    let said = why_refused(typed(&path)).await;
    let words =
        "byte 10 is 0xdf, in `n,i,h,stra\\xdfe,t`: convert the file, for instance with `iconv -f LATIN1 -t UTF-8 ";
    assert!(said.contains(words) && said.contains("a.csv > utf8.csv`"), "{said}");
    let utf16: Vec<u8> = "\u{feff}n,i,h,t\n1,2,3,4\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(&path, utf16).unwrap();
    assert!(why_refused(typed(&path)).await.contains("iconv -f UTF-16 -t UTF-8"));
    let utf32: Vec<u8> = "\u{feff}n,i,h,t\n1,2,3,4\n".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    fs::write(&path, utf32).unwrap();
    assert!(why_refused(typed(&path)).await.contains("iconv -f UTF-32 -t UTF-8"));
    // Without a byte order mark the names have bytes that a terminal does not show.
    for (big_endian, from) in [(false, "UTF-16LE"), (true, "UTF-16BE")] {
        let bytes = |unit: u16| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
        fs::write(&path, "n,i,h,t\n1,2,3,4\n".encode_utf16().flat_map(bytes).collect::<Vec<u8>>()).unwrap();
        let said = why_refused(typed(&path)).await;
        assert!(said.contains(&format!("iconv -f {from} -t UTF-8")), "{said}");
    }
    fs::write(dir.path().join("b.csv.gz"), "plain").unwrap();
    assert!(why_refused(typed(&dir.path().join("b.csv.gz"))).await.contains("cannot decompress"));
    for delimiter in ['"', '\n', 'é'] {
        fs::write(&path, "n,i,h,t\n1,2,3,4\n").unwrap();
        let written = CsvOptions { delimiter, ..CsvOptions::default() };
        assert!(why_refused(typed(&path).written(written)).await.contains("expected one ASCII character"));
    }
}

#[tokio::test]
async fn an_id_of_64_bits_without_a_sign_wraps_if_it_is_a_key_and_is_a_bad_row_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "i\n18446744073709551615\n9223372036854775808\n-1\n012\n").unwrap();
    let of = |integers| {
        CsvSource::csv(&path, options()).columns([FileColumn::new("i", ValueKind::Integer).integers(integers)])
    };
    let batch = all(of(Integers::Wrapping)).await;
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[-1, i64::MIN, -1, 12]);
    for integers in [Integers::Signed, Integers::AsWritten] {
        let said = why_refused(of(integers)).await;
        assert!(said.contains("line 2") && said.contains("`18446744073709551615`"), "{said}");
        let advice = said.contains("at most 9223372036854775807") && said.contains("leave it out of --keep");
        assert_eq!(advice, integers == Integers::Signed, "{said}");
    }
    let json = dir.path().join("a.jsonl");
    for value in ["18446744073709551615", "\"18446744073709551615\""] {
        fs::write(&json, format!("{{\"i\": {value}}}\n")).unwrap();
        let columns = [FileColumn::new("i", ValueKind::Integer)];
        let said = why_refused(JsonLinesSource::json_lines(&json, options()).columns(columns)).await;
        assert!(said.contains("null or an integer") && said.contains("leave it out of --keep"), "{said}");
    }
    fs::write(&path, "i\n12\n012\n").unwrap();
    assert_eq!(all(of(Integers::Signed)).await.num_rows(), 2);
    let said = why_refused(of(Integers::AsWritten)).await;
    assert!(said.contains("line 3") && said.contains("loses digits as a number: found `012`"), "{said}");
    // A bug: a number was rounded without a word.
    fs::write(&path, "i\n1.5\n9007199254740992\n9007199254740993\n").unwrap();
    let columns = [FileColumn::new("i", ValueKind::Number).integers(Integers::AsWritten)];
    let said = why_refused(CsvSource::csv(&path, options()).columns(columns)).await;
    assert!(said.contains("line 4") && said.contains("loses digits as a number: found `9007199254740993`"), "{said}");
    fs::write(&path, "i\n18446744073709551616\n").unwrap();
    assert!(why_refused(of(Integers::Wrapping)).await.contains("not an integer"));
}

/// A bug: all of the file was one header, and the fault said that the file has no usable row.
#[tokio::test]
async fn carriage_returns_alone_are_no_line_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "n,i,h,t\r1,2,3,x\r").unwrap();
    assert!(why_refused(typed(&path)).await.contains("its lines end with \\r alone, expected \\n or \\r\\n"));
}

/// A bug: the empty file had no header, and the whole folder was refused.
#[tokio::test]
async fn a_packed_file_of_nothing_has_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv.gz"), gzipped(b"")).unwrap();
    let alone = CsvSource::csv(dir.path(), options()).columns([FileColumn::new("i", ValueKind::Integer)]);
    assert!(why_refused(alone).await.contains("a.csv.gz` is an empty file: no rows to read"));
    fs::write(dir.path().join("b.csv.gz"), gzipped(b"i\n1\n2\n")).unwrap();
    fs::write(dir.path().join("c.csv.zst"), zstd::encode_all(&b""[..], 0).unwrap()).unwrap();
    let source = CsvSource::csv(dir.path(), options()).columns([FileColumn::new("i", ValueKind::Integer)]);
    assert_eq!(all(source).await.column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
}

#[tokio::test]
async fn a_folder_is_text_if_it_is_asked_for_as_text_whatever_its_values_are() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("t=18")).unwrap();
    fs::write(dir.path().join("t=18/part-0.csv"), "n\n1\n").unwrap();
    for (path, text) in
        [(dir.path().to_owned(), true), (dir.path().join("t=18"), true), (dir.path().join("t=18"), false)]
    {
        let columns = ["t", "n"].map(|name| FileColumn::new(name, ValueKind::Text).folder_text(text));
        let batch = all(CsvSource::csv(path, options()).columns(columns)).await;
        let expected = if text { DataType::Utf8 } else { DataType::Int64 };
        assert_eq!(batch.column(0).data_type(), &expected);
    }
}

#[tokio::test]
async fn a_folder_above_a_file_is_a_column() {
    check_folder_above("part-0.csv", "n,h,t\n1,2,3\n4,5,6\n", typed).await;
}

#[tokio::test]
async fn an_optional_column_is_null_in_the_files_that_lack_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), "n,i\n1,2\n").unwrap();
    fs::write(dir.path().join("b.csv"), "i,t,n\n3,x,4\n").unwrap();
    let columns = |optional| {
        let column = |(name, kind)| FileColumn::new(name, kind).optional(optional && name != "n");
        CsvSource::csv(dir.path(), options()).columns(COLUMNS.map(column))
    };
    let batch = all(columns(true)).await;
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().values(), &[1.0, 4.0]);
    let words: Vec<_> = batch.column(3).as_string::<i32>().iter().collect();
    assert_eq!(words, [None, Some("x")]);
    assert_eq!(batch.column(2).null_count(), 2);
    assert!(why_refused(columns(false)).await.contains("a.csv` has no column `h`"));
}

#[tokio::test]
async fn inspecting_tells_numbers_from_text_and_counts_missing_values() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), "id;label;age\nu1;1;30\nu2;0;\nu3;0;41\nu4;1;x;\n").unwrap();
    let csv = CsvOptions { delimiter: ';', ..CsvOptions::default() };
    let found = inspect(dir.path(), InspectOptions { csv, ..InspectOptions::default() }).await.unwrap();
    assert_eq!((found.format.as_str(), found.rows, found.rejected["too many fields"]), ("csv", 3, 1));
    let kinds: Vec<&str> = found.columns.iter().map(|column| column.kind.as_str()).collect();
    assert_eq!(kinds, ["text", "number", "number"]);
    assert_eq!((found.columns[2].min, found.columns[2].max), (Some(30.0), Some(41.0)));
    assert!((found.columns[2].missing - 1.0 / 3.0).abs() < 1e-9);
    assert!((found.positive_rate.unwrap() - 1.0 / 3.0).abs() < 1e-9);
}

/// pandas writes integers as `79.0` if a value is missing, and truth values as `True`: other keys than `79` and `true`, in files that
/// looked alike.
#[tokio::test]
async fn inspecting_says_which_numbers_and_truths_have_another_spelling_than_those_of_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), "label,item,new,x,city\n1,79,true,1.5,7.0\n0,80,false,2.0,Oslo\n").unwrap();
    fs::write(dir.path().join("b.csv"), "label,item,new,x,city\n1,79.0,True,1.0,7.0\n0,,,2.5,8\n").unwrap();
    let found = inspect(dir.path(), InspectOptions::default()).await.unwrap();
    let text = found.to_string();
    for line in [
        "item: 1 value is written as `79.0`, not as `79`: a slot without a kind takes both as text, with different keys",
        "new: 1 value is written as `True`, not as `true`: ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(found.columns.iter().filter(|column| column.other_spelling.is_some()).count(), 2, "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_text_that_is_written_with_quotes_is_read_back(
        rows in prop::collection::vec(prop::collection::vec("[ab,\"é;\\t ]{0,12}", 3), 1..30), range_bytes in 1u64..80
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
        let plain = |field: &String| !field.contains([',', '"']);
        let line = |row: &Vec<String>| {
            let fields: Vec<String> = row.iter().map(|f| if plain(f) { f.clone() } else { quoted(f) }).collect();
            fields.join(",") + "\n"
        };
        fs::write(&path, format!("a,b,c\n{}", rows.iter().map(line).collect::<String>())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let batch = runtime.block_on(all(CsvSource::csv(&path, options()).range_bytes(range_bytes)));
        prop_assert_eq!(batch.num_rows(), rows.len());
        for (r, row) in rows.iter().enumerate() {
            for (c, field) in row.iter().enumerate() {
                let column = batch.column(c).as_string::<i32>();
                prop_assert_eq!(column.is_valid(r).then(|| column.value(r)), Some(field.as_str()).filter(|f| !f.is_empty()));
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(text in prop::collection::vec(prop::sample::select(b"ab1,,\"\"\n\n\r\xff-.".to_vec()), 0..200), quotes: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        fs::write(&path, [b"n,i,h,t\n", &text[..]].concat()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let written = CsvOptions { quotes, ..CsvOptions::default() };
        let mut source = typed(&path).written(written).on_bad_row(OnBadRow::Skip).range_bytes(7);
        let cx = cx();
        if let Ok(rows) = runtime.block_on(read(&mut source, &cx)) {
            let lines = text.split(|&b| b == b'\n').filter(|line| !matches!(line, [] | [b'\r'])).count();
            let good: usize = rows.iter().map(|rows| rows.batch.num_rows()).sum();
            prop_assert_eq!(good + source.seen().1 as usize, lines);
        }
    }
}
