//! Whole and damaged files on HDFS behave as on a local disk.

use std::time::Duration;

use super::cluster::{Cluster, write};
use super::common;
use super::rows::{file, run};

const ROWS: usize = 1000;

/// Writes files: (path, content).
fn put(cluster: &Cluster, files: &[(&str, &[u8])]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (path, bytes) in files {
        runtime.block_on(write(&cluster.client(), path, bytes));
    }
}

/// Reads all rows at a path through a pipeline; they must be the ids `0..rows`.
fn whole(cluster: &Cluster, path: &str, rows: usize) {
    run(&cluster.at(path), Duration::ZERO, 0, |_| ()).is_whole(rows);
}

#[test]
fn folders_globs_and_folders_that_are_columns() {
    let cluster = Cluster::shared();
    let (one, two) = (file(0, ROWS), file(ROWS as i64, ROWS));
    put(
        &cluster,
        &[
            ("/reading/rows/day=2026-11-19/part-0.parquet", &one),
            ("/reading/rows/day=2026-11-20/part-0.parquet", &two),
            ("/reading/rows/day=2026-11-20/_SUCCESS", b""),
            ("/reading/rows/day=2026-11-20/empty", b""),
            ("/reading/rows/_temporary/0/part-1.parquet", b"half"),
            ("/reading/rows/.hidden/part-2.parquet", b"half"),
        ],
    );
    whole(&cluster, "/reading/rows", 2 * ROWS);
    whole(&cluster, "/reading/rows/*/part-?.parquet", 2 * ROWS);
    whole(&cluster, "/reading/**/day=2026-11-19/*", ROWS);
    whole(&cluster, "/reading/rows/day=2026-11-19/part-0.parquet", ROWS);
    let selected = |filter: &str| common::run(&["data", "inspect", &cluster.at("/reading/rows"), "--where", filter]);
    common::exits(0, selected("day >= '2026-11-20'"), &["1 file,", "1,000 rows"]);
    common::exits(2, selected("day = '2026-12-01'"), &["2026-11-20"]);
}

#[test]
fn damaged_files_are_named() {
    let cluster = Cluster::shared();
    let good = file(0, 50_000);
    let mut corrupt = good.clone();
    corrupt[good.len() / 3..good.len() / 3 + 3000].iter_mut().for_each(|byte| *byte ^= 0x5a);
    let text = "1\tx\n";
    put(
        &cluster,
        &[
            ("/reading/cut/a.parquet", &good),
            ("/reading/cut/cut.parquet", &good[..good.len() / 2]),
            ("/reading/other/other.parquet", b"this is no Parquet file at all, whatever its name says"),
            ("/reading/text/rows.txt", text.as_bytes()),
            ("/reading/nothing/empty.parquet", b""),
            ("/reading/corrupt/corrupt.parquet", &corrupt),
        ],
    );
    let refused = |path: &str, code: i32, words: &[&str]| {
        common::exits(code, common::run(&["data", "inspect", &cluster.at(path)]), words);
    };
    refused("/reading/cut", 2, &["cut.parquet", "is not a whole Parquet file"]);
    refused("/reading/other", 2, &["other.parquet", "is not a whole Parquet file"]);
    refused("/reading/nothing/empty.parquet", 2, &["empty.parquet` is an empty file"]);
    refused("/reading/nothing", 2, &["/reading/nothing"]);
    // HDFS has valid checksums for these bytes. Only a damaged page header can be noticed.
    let (code, said) = common::run(&["data", "inspect", &cluster.at("/reading/corrupt")]);
    assert!(code == Some(0) || said.contains("corrupt.parquet"), "{said}");
    let train = format!("data.train={}", cluster.at("/reading/cut/a.parquet"));
    let (code, said) = common::run(&["train", "--set", &train, "--set", "model.kind=lr"]);
    assert!(code == Some(2) && said.contains("a.parquet` has no column `label`"), "{said}");
    let train = format!("data.train={}", cluster.at("/reading/text"));
    let (code, said) = common::run(&["train", "--set", &train, "--set", "model.kind=lr"]);
    assert!(code == Some(2) && said.contains("rows.txt`, line 1") && said.contains("expected 40 fields"), "{said}");
}
