//! The Criteo text source: forms of files, ranges, and rows that are not right.

use std::fs;
use std::io::Write;
use std::path::Path;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int32Type, UInt32Type};
use forebay_connectors::{Categories, CriteoSource, OnBadRow, ReadOptions};

use super::{all, cx, joined, read};

/// A good row: I1 counts, C1 is its hex, I2 and C2 are missing.
fn good(row: usize) -> String {
    let integers: String = (1..=13)
        .map(|i| {
            if i == 1 {
                format!("\t{row}")
            } else if i == 2 {
                "\t".into()
            } else {
                format!("\t-{i}")
            }
        })
        .collect();
    let categories: String =
        (1..=26).map(|c| if c == 2 { "\t".into() } else { format!("\t{:08x}", row + c - 1) }).collect();
    format!("{}{integers}{categories}", row % 2)
}

fn text(rows: usize) -> String {
    (0..rows).map(|row| good(row) + "\n").collect()
}

fn options() -> ReadOptions {
    ReadOptions { batch_rows: 64, ..ReadOptions::default() }
}

async fn firsts(path: &Path, range_bytes: u64) -> Vec<i32> {
    let all = all(CriteoSource::new(path, options()).range_bytes(range_bytes)).await;
    assert!(all.column(2).null_count() == all.num_rows() && all.column(15).null_count() == all.num_rows());
    assert_eq!(all.column(14).as_primitive::<UInt32Type>().value(3), 3);
    all.column(1).as_primitive::<Int32Type>().values().to_vec()
}

#[tokio::test]
async fn plain_packed_and_windows_files_hold_the_same_rows_whatever_the_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let text = text(1000);
    fs::write(at("a.txt"), &text).unwrap();
    fs::write(at("b.txt"), text.replace('\n', "\r\n")).unwrap();
    fs::write(at("c.txt"), text.trim_end()).unwrap();
    fs::write(at("d.txt"), text.replace("\n1", "\n\n1") + "\n").unwrap();
    fs::write(at("e.zst"), zstd::encode_all(text.as_bytes(), 3).unwrap()).unwrap();
    // Several members, as gzip tools append them.
    let mut packed = Vec::new();
    for half in [&text[..text.len() / 3], &text[text.len() / 3..]] {
        let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::default());
        encoder.write_all(half.as_bytes()).unwrap();
        encoder.finish().unwrap();
    }
    fs::write(at("f.gz"), &packed).unwrap();
    let expected: Vec<i32> = (0..1000).collect();
    for name in ["a.txt", "b.txt", "c.txt", "d.txt", "e.zst", "f.gz"] {
        for range_bytes in [100, 5000, 4 << 20] {
            assert_eq!(firsts(&at(name), range_bytes).await, expected, "{name} {range_bytes}");
        }
    }
    let all = all(CriteoSource::new(at("a.txt"), options()).categories(Categories::Hex)).await;
    assert_eq!(all.column(14).as_string::<i32>().value(255), "000000ff");
    // A gzip file that was cut short, and a text file that is named as a zstd file.
    fs::write(at("g.gz"), &packed[..packed.len() / 2]).unwrap();
    fs::write(at("h.zst"), "plain").unwrap();
    for name in ["g.gz", "h.zst"] {
        let said = read(&mut CriteoSource::new(at(name), options()), &cx()).await.unwrap_err().to_string();
        assert!(said.contains("cannot decompress") && said.contains(name), "{said}");
    }
}

/// One of each kind of bad row among good ones, with the reason the ledger gives.
fn bad_rows() -> Vec<(Vec<u8>, &'static str)> {
    let change = |at: usize, to: &[u8]| {
        let row = good(5).into_bytes();
        let mut fields: Vec<&[u8]> = row.split(|&b| b == b'\t').collect();
        fields[at] = to;
        fields.join(&b'\t')
    };
    vec![
        (b"1\t2\t3".to_vec(), "too few fields"),
        ((good(5) + "\t1").into_bytes(), "too many fields"),
        (change(0, b"2"), "label is neither 0 nor 1"),
        (change(0, b""), "label is missing"),
        (change(7, b"1.5"), "not an integer"),
        (change(7, b"99999999999"), "not an integer"),
        (change(20, b"xyz"), "not a hex category"),
        (change(20, b"\xff\xfe"), "invalid UTF-8"),
        (vec![b'1'; 3 << 20], "line too long"),
    ]
}

#[tokio::test]
async fn bad_rows_are_counted_by_reason_and_written_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    for (i, (bad, _)) in bad_rows().iter().enumerate() {
        bytes.extend_from_slice((good(i) + "\n").as_bytes());
        bytes.extend_from_slice(bad);
        bytes.push(b'\n');
    }
    bytes.extend_from_slice((good(9) + "\n").as_bytes());
    let plain = dir.path().join("a.txt");
    let packed = dir.path().join("a.txt.gz");
    fs::write(&plain, &bytes).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(fs::File::create(&packed).unwrap(), flate2::Compression::fast());
    encoder.write_all(&bytes).unwrap();
    encoder.finish().unwrap();
    for (path, range_bytes, number) in [(&plain, 4 << 20, 0), (&plain, 300, 1), (&plain, 1 << 20, 2), (&packed, 1, 3)] {
        let rejected_folder = dir.path().join(format!("rejected-{number}"));
        for policy in [OnBadRow::Skip, OnBadRow::WriteTo(rejected_folder.clone())] {
            let cx = cx();
            let mut source = CriteoSource::new(path.as_path(), options()).range_bytes(range_bytes).on_bad_row(policy);
            let all = joined(&read(&mut source, &cx).await.unwrap());
            assert_eq!(all.column(1).as_primitive::<Int32Type>().values(), &(0..10).collect::<Vec<i32>>()[..]);
            assert_eq!(source.seen(), (10, 9));
            // In a pipeline, the shells count the good rows.
            cx.ledger().read(10);
            cx.ledger().delivered(10);
            cx.ledger().check().unwrap();
            let rejected = cx.ledger().snapshot().rejected;
            for (_, reason) in bad_rows() {
                let expected = bad_rows().iter().filter(|(_, r)| *r == reason).count() as u64;
                assert_eq!(rejected[reason], expected, "{reason}");
            }
        }
        let written = fs::read(rejected_folder.join("rejected.tsv")).unwrap();
        let lines: Vec<&[u8]> = written.split(|&b| b == b'\n').filter(|l| !l.is_empty()).collect();
        assert_eq!(lines.len(), 9);
        for (line, (bad, reason)) in lines.iter().zip(bad_rows()) {
            let fields: Vec<&[u8]> = line.splitn(4, |&b| b == b'\t').collect();
            assert_eq!(fields[0], path.to_string_lossy().as_bytes());
            let offset: usize = std::str::from_utf8(fields[1]).unwrap().parse().unwrap();
            assert_eq!(fields[2], reason.as_bytes());
            assert_eq!(fields[3], &bad[..bad.len().min(4096)]);
            assert!(bytes[offset..].starts_with(fields[3]));
        }
    }
}

#[tokio::test]
async fn fail_names_file_line_column_found_and_expected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.txt");
    let mut lines: Vec<String> = (0..500).map(good).collect();
    lines[321] = lines[321].replacen("\t-5\t", "\tfive\t", 1);
    fs::write(&path, lines.join("\n")).unwrap();
    let packed = dir.path().join("train.zst");
    fs::write(&packed, zstd::encode_all(lines.join("\n").as_bytes(), 1).unwrap()).unwrap();
    for (path, range_bytes) in [(&path, 700), (&path, 4 << 20), (&packed, 1)] {
        let mut source = CriteoSource::new(path.as_path(), options()).range_bytes(range_bytes);
        let said = read(&mut source, &cx()).await.unwrap_err().to_string();
        for part in
            [&*path.to_string_lossy(), "line 322", "column 6 (I5)", "not an integer", "found `five`", "expected"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[tokio::test]
async fn no_rows_at_all_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "nonsense\n".repeat(10_000)).unwrap();
    let cx = cx();
    let mut source = CriteoSource::new(dir.path(), options()).on_bad_row(OnBadRow::Skip);
    let said = read(&mut source, &cx).await.unwrap_err().to_string();
    assert!(said.contains("no usable row: 10,000 rows were rejected"), "{said}");
    fs::write(dir.path().join("a.txt"), "").unwrap();
    let said = read(&mut CriteoSource::new(dir.path().join("a.txt"), options()), &cx).await.unwrap_err().to_string();
    assert!(said.contains("empty file"), "{said}");
}
