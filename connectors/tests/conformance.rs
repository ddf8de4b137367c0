//! Every source follows the rules of `forebay_actors::testsuite`: `next` is cancel safe, batches are numbered, rows are counted.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_actors::Source;
use forebay_actors::testsuite::check_source;
use forebay_connectors::{
    ArrowSource, CriteoSource, FileColumn, FileFormat, FileSource, Format, LocalLeases, OnBadRow, ParquetSource,
    ReadOptions, StreamSource, Synthetic, SyntheticSource, ValueKind,
};
use tempfile::TempDir;

fn options() -> [ReadOptions; 2] {
    let options = ReadOptions { batch_rows: 30, epochs: 2, ..ReadOptions::default() };
    [ReadOptions { shuffle: true, seed: 5, decode_threads: 3, ..options.clone() }, options]
}

/// Checks the sources that `make` makes of a folder and of each of the options.
fn check<S: Source>(
    folder: &TempDir,
    options: [ReadOptions; 2],
    make: impl Fn(&Path, ReadOptions) -> S + Clone + Send + 'static,
) {
    for options in options {
        let (path, make) = (folder.path().to_owned(), make.clone());
        check_source(move || make(&path, options.clone()));
    }
}

#[test]
fn parquet() {
    check(&super::parquet::folder(), options(), |path, options| ParquetSource::new(path, options));
}

#[test]
fn arrow_ipc() {
    check(&super::arrow_ipc::folder(), options(), |path, options| ArrowSource::new(path, options));
}

#[test]
fn criteo_text_with_bad_rows() {
    let dir = tempfile::tempdir().unwrap();
    for file in 0..2 {
        let mut text = String::new();
        for row in 0..120 {
            match row % 11 {
                3 => text.push_str("nonsense\n"),
                7 => text.push_str("7\n"),
                _ => writeln!(text, "{}\t{row}{}{}", row % 2, "\t".repeat(12), "\t0badf00d".repeat(26)).unwrap(),
            }
        }
        std::fs::write(dir.path().join(format!("{file}.txt")), text).unwrap();
    }
    check(&dir, options(), |path, options| {
        CriteoSource::new(path, options).on_bad_row(OnBadRow::Skip).range_bytes(2500)
    });
}

#[test]
fn json_lines_with_bad_rows() {
    let dir = super::json_lines::folder(120);
    check(&dir, options(), |path, options| super::json_lines::source(path, options).range_bytes(300));
}

#[test]
fn csv_with_bad_rows() {
    let dir = super::csv::folder(120);
    check(&dir, options(), |path, options| super::csv::source(path, options).range_bytes(300));
}

#[test]
fn synthetic() {
    for options in options() {
        let what = Synthetic { rows: 500, ..Synthetic::default() };
        check_source(move || SyntheticSource::new(what.clone(), options.clone()));
    }
}

/// In a cluster a source reads the windows of its leases: here two at a time, all of them.
fn leases() -> Arc<LocalLeases> {
    Arc::new(LocalLeases::new(2))
}

fn in_windows() -> [ReadOptions; 2] {
    options().map(|options| ReadOptions { window_rows: 70, ..options })
}

#[test]
fn parquet_and_arrow_ipc_with_leases() {
    let (parquet, arrow) = (super::parquet::folder(), super::arrow_ipc::folder());
    check(&parquet, in_windows(), |path, options| ParquetSource::new(path, options).leasing(leases()));
    check(&arrow, in_windows(), |path, options| ArrowSource::new(path, options).leasing(leases()));
}

#[test]
fn text_with_leases() {
    let dir = super::json_lines::folder(120);
    check(&dir, in_windows(), |path, options| {
        super::json_lines::source(path, options).range_bytes(300).leasing(leases())
    });
}

#[test]
fn synthetic_with_leases() {
    for options in in_windows() {
        let what = Synthetic { rows: 500, ..Synthetic::default() };
        check_source(move || SyntheticSource::new(what.clone(), options.clone()).leasing(leases()));
    }
}

#[test]
fn files_of_a_format_that_is_known_only_when_they_are_read() {
    let dir = super::parquet::folder();
    check(&dir, options(), |path, options| {
        let format = FileFormat { format: Format::Parquet, csv: Default::default(), on_bad_row: OnBadRow::Fail };
        FileSource::new(path.into(), options, format, vec![FileColumn::new("row", ValueKind::Integer)])
    });
}

#[test]
fn stream() {
    check_source(|| {
        let batches = (0..9).map(|i| Ok::<_, io::Error>(super::parquet::rows(i * 10, 10)));
        StreamSource::new("query", futures::stream::iter(batches))
    });
}
