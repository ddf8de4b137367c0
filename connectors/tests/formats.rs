//! The format of files whose names do not tell it, and the errors about files of another format than they are read in.

use std::fs;
use std::path::Path;

use forebay_connectors::{
    CsvOptions, FileColumn, FileFormat, FileSource, Format, Input, OnBadRow, ReadOptions, ValueKind, format_of,
};

use super::why_refused;

const CRITEO: &str = "1\t5\t\t3\t-1\t5\t6\t7\t8\t9\t10\t11\t12\t13\t68fd1e64\t\t3\t4\t5\t6\t7\t8\t9\ta\tb\tc\td\te\tf\t10\t11\t12\t13\t14\t15\t16\t17\t18\t19\tff\n";
const JSON: &str = "{\"label\": 1, \"C1\": \"a\"}\n";

#[tokio::test]
async fn the_first_bytes_tell_the_format_that_a_name_does_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, alone, beside_csv) in [
        ("part-0", b"PAR1\x15\x04".as_slice(), Format::Parquet, Format::Parquet),
        ("rows.txt", b"PAR1\x15\x04", Format::Parquet, Format::Parquet),
        ("part-0", b"PARE\x15\x04", Format::Parquet, Format::Parquet),
        ("part-0", b"ARROW1\0\0", Format::Arrow, Format::Arrow),
        ("part-0", JSON.as_bytes(), Format::JsonLines, Format::JsonLines),
        ("rows.txt", b"\xef\xbb\xbf\n {}", Format::JsonLines, Format::JsonLines),
        ("part-0", CRITEO.as_bytes(), Format::Criteo, Format::Csv),
        ("rows.txt", b"label,C1\n1,a\n", Format::Criteo, Format::Csv),
        ("part-0", b"\0\0\0", Format::Parquet, Format::Csv),
        ("x.csv", b"PAR1\x15\x04", Format::Csv, Format::Csv),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let input = Input::from(path.as_path());
        assert_eq!(format_of(&input, None).await.unwrap(), alone, "{name} {bytes:?}");
        assert_eq!(format_of(&input, Some(Format::Csv)).await.unwrap(), beside_csv, "{name} {bytes:?}");
        fs::remove_file(path).unwrap();
    }
    let packed = dir.path().join("part-0.zst");
    fs::write(&packed, zstd::encode_all(JSON.as_bytes(), 1).unwrap()).unwrap();
    assert_eq!(format_of(&Input::from(packed.as_path()), None).await.unwrap(), Format::JsonLines);
    fs::write(dir.path().join("x.parquet"), "PAR1").unwrap();
    let said = format_of(&Input::from(dir.path()), None).await.unwrap_err().to_string();
    assert!(said.contains("part-0.zst` is JSON lines") && said.contains("x.parquet` is Parquet"), "{said}");
}

fn source(path: &Path, format: Format) -> FileSource {
    let format = FileFormat { format, csv: CsvOptions::default(), on_bad_row: OnBadRow::Skip };
    let columns = ["label", "C1"].map(|name| FileColumn::new(name, ValueKind::Text));
    FileSource::new(path.into(), ReadOptions::default(), format, columns.into())
}

/// A bug: the error did not say that the file is of another format than the job says.
#[tokio::test]
async fn a_file_that_is_read_in_another_format_is_refused_with_the_setting_to_write() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text, read_as, words) in [
        (
            "a.csv",
            "label,C1\n1,a\n",
            Format::Parquet,
            "a.csv` is CSV by its name, but is read as Parquet: set data.format to \"csv\"",
        ),
        ("a.csv", "label,C1\n1,a\n", Format::Criteo, "is CSV by its name, but is read as Criteo text"),
        ("a.csv", "label,C1\n1,a\n", Format::JsonLines, "is CSV by its name, but is read as JSON lines"),
        (
            "a.jsonl",
            JSON,
            Format::Parquet,
            "is JSON lines by its first bytes, but is read as Parquet: set data.format to \"json_lines\"",
        ),
        ("a.txt", JSON, Format::Criteo, "is JSON lines by its first bytes, but is read as Criteo text"),
        ("a.txt", JSON, Format::Csv, "is JSON lines by its first bytes, but is read as CSV"),
        ("a.csv", "PAR1\u{15}\u{4}", Format::Csv, "a.csv` is Parquet by its first bytes, but is read as CSV"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let said = why_refused(source(&path, read_as)).await;
        assert!(said.contains(words) && said.contains("data.eval_format"), "no {words:?} in: {said}");
    }
    // A file of the right format has its own error alone.
    let path = dir.path().join("a.csv");
    fs::write(&path, "label,C2\n1,a\n").unwrap();
    let said = why_refused(source(&path, Format::Csv)).await;
    assert!(said.contains("no column `C1`") && !said.contains("is read as"), "{said}");
}

#[tokio::test]
async fn the_hint_about_a_missing_column_follows_its_error() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text, format) in
        [("a.csv", "label,C2\n1,a\n", Format::Csv), ("a.jsonl", "{\"label\": 1}\n", Format::JsonLines)]
    {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let hinting = source(&path, format).hinting(|column| Some(format!("look for {column}")));
        let said = why_refused(hinting).await;
        assert!(said.contains("no column `C1`") && said.ends_with("; look for C1"), "{said}");
    }
}
