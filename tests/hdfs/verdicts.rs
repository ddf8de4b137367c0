//! What the report names as the limit of a run that reads from a slow cluster.

use forebay::pipelines::RunReport;

use super::cluster::Cluster;
use super::common;

/// One of three DataNodes takes several times as long for its third of the rows as the run takes for all that it does itself. With so many
/// blocks, it has some.
#[test]
fn a_run_that_reads_from_a_slow_datanode_waits_for_the_store() {
    let cluster = Cluster::start(&["--replication", "1", "--slow", "500000"]);
    let dir = tempfile::tempdir().unwrap();
    let (rows, report) = (dir.path().join("rows"), dir.path().join("report.json"));
    let synth = ["data", "synth", "--rows", "400000", "--group-rows", "16384", "--out", rows.to_str().unwrap()];
    common::exits(0, common::run(&synth), &[]);
    cluster.fs(&["-put", rows.to_str().unwrap(), "/rows"]);
    let train = format!("data.train={}", cluster.at("/rows"));
    let mut run = common::forebay(&["train", "--set", "model.kind=lr", "--set", &train, "--report"]);
    let said = common::exits(0, common::ended(run.arg(&report).env("HADOOP_CONF_DIR", cluster.conf_dir())), &[]);
    let report: RunReport = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let limit = report.analysis.limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.bound(), limit.waits_for.as_deref()),
        ("read", Some("input"), Some("store")),
        "{said}"
    );
    assert!(said.contains("input-bound"), "{said}");
}
