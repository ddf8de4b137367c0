//! A server whose deltas lie in HDFS: it applies them, refuses a damaged one, and goes on with its version while the NameNode cannot be
//! reached.

use std::path::{Path, PathBuf};

use forebay::Model;

use super::cluster::Cluster;
use super::common;
use super::server::{Server, json_rows};

/// Trains models of rows of their own, so that deltas lead from each to the next. Their rows are in `parquet-0`, `parquet-1000`, ...
fn days(dir: &Path) -> Vec<PathBuf> {
    let day = |number: u64| {
        let (rows, folder) = (common::parquet(dir, number * 1000, 1000), dir.join(format!("day-{number}")));
        common::train(common::job(&rows, &["model.kind=lr"])).model.save(&folder).unwrap();
        folder
    };
    (0..3).map(day).collect()
}

/// Writes the delta from an older model to a newer one.
fn delta([old, new]: [&Path; 2], to: &str) {
    let [old, new] = [old, new].map(|model| model.to_str().unwrap());
    common::exits(0, common::run(&["export", "--model", new, "--delta-from", old, "--to", to]), &["wrote ", to]);
}

#[test]
fn a_server_applies_deltas_of_hdfs_and_goes_on_while_the_namenode_is_away() {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let days = days(dir.path());
    let versions: Vec<String> =
        days.iter().map(|day| Model::load(day, 1).unwrap().version().unwrap().to_string()).collect();
    let deltas = cluster.at("/deltas/served");
    let arguments = ["serve", "--model", days[0].to_str().unwrap(), "--deltas", &deltas];
    let mut command = common::forebay(&[&arguments[..], &["--listen", "127.0.0.1:0", "--watch", "0.05"]].concat());
    let mut server = Server::of(command.env("FOREBAY_HDFS_TIMEOUT", "10"));
    assert_eq!(server.model()["version"], versions[0]);
    server.process.wait_for("holds no deltas yet", 1);
    let rows = json_rows(&server, &dir.path().join("parquet-0/part-00000.parquet"));

    delta([&days[0], &days[1]], &format!("{deltas}/1"));
    common::until("the delta is applied", || server.model()["version"] == versions[1]);
    // A damaged one, and a folder that is no delta.
    let bad = dir.path().join("bad");
    delta([&days[1], &days[2]], bad.to_str().unwrap());
    let file = bad.join("changed.parquet");
    std::fs::write(&file, &std::fs::read(&file).unwrap()[1..]).unwrap();
    cluster.fs(&["-mkdir", "-p", "/deltas/served/other"]);
    cluster.fs(&["-put", bad.to_str().unwrap(), "/deltas/served/bad"]);
    server.process.wait_for("/deltas/served/bad/changed.parquet is damaged", 1);
    cluster.fs(&["-rm", "-r", "-skipTrash", "/deltas/served/bad"]);
    assert_eq!(server.scores(&rows[..9]).0, versions[1]);

    cluster.kill_namenode(1);
    server.process.wait_for("stays: cannot list ", 1);
    assert_eq!(server.scores(&rows[..9]).0, versions[1]);
    cluster.mend();
    let second = format!("{deltas}/2");
    delta([&days[1], &days[2]], &second);
    common::until("the next delta is applied", || server.model()["version"] == versions[2]);
    assert_eq!(server.scores(&rows[..9]).0, versions[2]);
    let said = server.process.output();
    assert_eq!(said.matches("cannot list ").count(), 1, "{said}");
    assert!(said.contains("/deltas/served` can be read now") && said.contains("the NameNode answers again"), "{said}");
    // It was asked every five seconds at least, and may refuse connections again while it starts.
    assert!((1..=2).contains(&said.matches("the NameNode cannot be reached").count()), "{said}");

    let merged = dir.path().join("merged");
    let apply = ["export", "--model", days[1].to_str().unwrap(), "--apply", &second];
    common::exits(0, common::run(&[&apply[..], &["--to", merged.to_str().unwrap()]].concat()), &[&versions[2]]);
    assert_eq!(Model::load(&merged, 1).unwrap().version().unwrap().to_string(), versions[2]);
}
