//! What the tests of CSV and of JSON lines share: columns of four kinds, and checks that hold for both formats.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::Source;
use forebay_connectors::{OnBadRow, ReadOptions, Rows, ValueKind};

use super::{all, cx, joined, read, why_refused};

pub(super) const COLUMNS: [(&str, ValueKind); 4] =
    [("n", ValueKind::Number), ("i", ValueKind::Integer), ("h", ValueKind::Hex), ("t", ValueKind::Text)];

pub(super) fn options() -> ReadOptions {
    ReadOptions { batch_rows: 64, ..ReadOptions::default() }
}

pub(super) fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

/// Writes a text into six files: unchanged; with the line ends of Windows; without the last line end; behind a byte order mark, with an
/// empty line before each line that begins with `seventh`; packed by zstd; packed by gzip.
pub(super) fn write_six_ways(folder: &Path, names: [&str; 6], text: &str, seventh: &str) -> [PathBuf; 6] {
    let paths = names.map(|name| folder.join(name));
    let empty_lines = text.replace(&format!("\n{seventh}"), &format!("\n\n{seventh}"));
    let texts: [Vec<u8>; 6] = [
        text.into(),
        text.replace('\n', "\r\n").into(),
        text.trim_end().into(),
        format!("\u{feff}{empty_lines}").into(),
        zstd::encode_all(text.as_bytes(), 3).unwrap(),
        gzipped(text.as_bytes()),
    ];
    for (path, text) in paths.iter().zip(texts) {
        fs::write(path, text).unwrap();
    }
    paths
}

/// Checks a batch of [`COLUMNS`] with 500 rows: row i has i + .5, i, i in hexadecimal digits, and a text.
pub(super) fn check_500_rows(batch: &RecordBatch, text_of_row_7: &str, what: &str) {
    let expected: Vec<i64> = (0..500).collect();
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &expected[..], "{what}");
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().value(499), 499.5);
    assert_eq!(batch.column(2).as_primitive::<UInt64Type>().value(255), 255);
    assert_eq!(batch.column(3).as_string::<i32>().value(7), text_of_row_7);
}

/// Checks a source of 60 good rows with a bad line among them. Its fault has `reason` and `parts`. If bad rows are written to the folder
/// `rejected`, the good rows come, the bad one is counted by its reason, and the file there has its line.
pub(super) async fn check_bad_line<S: Source<Out = Rows>>(
    source: impl Fn(OnBadRow) -> S,
    rejected: &Path,
    line: &[u8],
    reason: &str,
    parts: [&str; 2],
) {
    let fault = why_refused(source(OnBadRow::Fail)).await;
    for part in [parts[0], reason, parts[1]] {
        assert!(fault.contains(part), "{part}: {fault}");
    }
    let cx = cx();
    let batch = joined(&read(&mut source(OnBadRow::WriteTo(rejected.to_owned())), &cx).await.unwrap());
    let expected: Vec<i64> = (0..60).collect();
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &expected[..], "{fault}");
    assert_eq!(cx.ledger().snapshot().rejected[reason], 1);
    let written = fs::read(rejected.join("rejected.tsv")).unwrap();
    assert!(written.windows(line.len()).any(|there| there == line));
    assert_eq!(cx.ledger().snapshot().unwritten, 0);
    // A bug: a full disk under that file ended the run.
    let full = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", full.path().join("rejected.tsv")).unwrap();
    let cx = self::cx();
    let batch = joined(&read(&mut source(OnBadRow::WriteTo(full.path().to_owned())), &cx).await.unwrap());
    let ledger = cx.ledger().snapshot();
    assert_eq!((batch.num_rows(), ledger.rejected[reason], ledger.unwritten), (60, 1, 1));
}

/// Checks that a folder `i=18` or `i=19` above a file is a column. The `text` of each file has two rows, whose `n` is 1 and 4.
pub(super) async fn check_folder_above<S: Source<Out = Rows>>(name: &str, text: &str, source: impl Fn(&Path) -> S) {
    let dir = tempfile::tempdir().unwrap();
    for day in [18, 19] {
        let at = dir.path().join(format!("i={day}"));
        fs::create_dir(&at).unwrap();
        fs::write(at.join(name), text).unwrap();
    }
    let batch = all(source(dir.path())).await;
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &[18, 18, 19, 19]);
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().values(), &[1.0, 4.0, 1.0, 4.0]);
}
