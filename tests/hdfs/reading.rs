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

/// What is left out may be unreadable: another user's writer has it.
#[test]
fn a_folder_that_is_left_out_need_not_be_readable() {
    let cluster = Cluster::shared();
    let (rows, half) = (file(0, ROWS), b"half");
    put(&cluster, &[("/reading/beside/part-0.parquet", &rows), ("/reading/beside/_temporary/0/part-1.parquet", half)]);
    let inspected = || {
        let mut command = common::forebay(&["data", "inspect", &cluster.at("/reading/beside")]);
        common::ended(command.env("HADOOP_USER_NAME", "eve"))
    };
    cluster.fs(&["-chmod", "700", "/reading/beside/_temporary"]);
    common::exits(0, inspected(), &["1,000 rows"]);
    // A folder that is not left out must be.
    put(&cluster, &[("/reading/beside/day=1/part-1.parquet", &rows)]);
    cluster.fs(&["-chmod", "700", "/reading/beside/day=1"]);
    common::exits(2, inspected(), &["permission denied", "day=1"]);
}

#[test]
fn any_name_that_hdfs_takes_is_read_and_written() {
    let cluster = Cluster::shared();
    let rows = file(0, ROWS);
    for name in ["a b", "100%", "%20", "#1", "{a,b}", "[x]", "d\u{e4}ten", "\u{884c}", "a~b"] {
        let from = format!("/reading/names/{name}/{name}.parquet");
        put(&cluster, &[(&from, &rows)]);
        whole(&cluster, &from, ROWS);
        let (from, to) = (cluster.at(&from), cluster.at(&format!("/reading/names/{name}/to {name}")));
        for replace in [None, Some("--replace")] {
            let convert: Vec<&str> = ["data", "convert", &from, "--out", &to].into_iter().chain(replace).collect();
            common::exits(0, common::run(&convert), &["1,000 rows"]);
        }
        whole(&cluster, &format!("/reading/names/{name}/to {name}"), ROWS);
    }
}

#[test]
fn rows_in_a_snapshot_are_read_and_nothing_is_written_there() {
    let cluster = Cluster::shared();
    put(&cluster, &[("/reading/snapped/part-0.parquet", &file(0, ROWS))]);
    cluster.admin(&["-allowSnapshot", "/reading/snapped"]);
    cluster.fs(&["-createSnapshot", "/reading/snapped", "s1"]);
    cluster.fs(&["-rm", "-skipTrash", "/reading/snapped/part-0.parquet"]);
    whole(&cluster, "/reading/snapped/.snapshot/s1", ROWS);
    let out = cluster.at("/reading/snapped/.snapshot/s1/out");
    common::exits(2, common::run(&["data", "synth", "--rows", "100", "--out", &out]), &["snapshot"]);
}

/// A bug: only the rows of the fallback were read.
#[test]
fn a_folder_above_links_of_a_mount_table_has_their_rows_too() {
    let (cluster, conf) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let rows = [0, 1, 2].map(|n| file((n * ROWS) as i64, ROWS));
    put(
        &cluster,
        &[
            ("/reading/mounts/fallback/data/a.parquet", &rows[0]),
            ("/reading/mounts/one/a.parquet", &rows[1]),
            ("/reading/mounts/two/b.parquet", &rows[2]),
        ],
    );
    let property = |name: &str, path: &str| {
        let url = cluster.at(&format!("/reading/mounts/{path}"));
        format!("<property><name>fs.viewfs.mounttable.t.{name}</name><value>{url}</value></property>")
    };
    // The second link leads to a file.
    let links = [
        property("linkFallback", "fallback"),
        property("link./data/day1", "one"),
        property("link./data/day2.parquet", "two/b.parquet"),
        property("link./only/here", "one"),
    ];
    let text = format!("<configuration>{}</configuration>", links.concat());
    std::fs::write(conf.path().join("core-site.xml"), text).unwrap();
    let said = |args: &[&str]| common::ended(common::forebay(args).env("HADOOP_CONF_DIR", conf.path()));
    for (path, expected) in [
        ("/data", "3,000 rows"),
        ("/data/*.parquet", "2,000 rows"),
        ("/data/day*", "2,000 rows"),
        ("/only", "1,000 rows"),
        ("/", "4,000 rows"),
    ] {
        common::exits(0, said(&["data", "inspect", &format!("viewfs://t{path}")]), &[expected]);
    }
    common::exits(2, said(&["data", "synth", "--rows", "10", "--out", "viewfs://t/data"]), &["holds files already"]);
}
