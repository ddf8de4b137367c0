//! Errors for paths on HDFS that cannot be read or written: they say what is wrong and what to do.

use super::cluster::{Cluster, write};
use super::rows::file;
use crate::common;

/// Runs the program as a user, with a timeout of 2 s for NameNodes.
fn said(user: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = common::forebay(args);
    command.env("HADOOP_USER_NAME", user).env("FOREBAY_HDFS_TIMEOUT", "2").env_remove("HADOOP_CONF_DIR");
    common::ended(&mut command)
}

fn says(user: &str, args: &[&str], code: i32, parts: &[&str]) {
    let expected = |found: Option<i32>, text: &str| found == Some(code) && parts.iter().all(|part| text.contains(part));
    let (mut found, mut text) = said(user, args);
    // A NameNode on a busy machine may be silent for longer than the timeout: then the test asks again.
    for _ in 0..20 {
        if expected(found, &text) || !text.contains("no answer within") {
            break;
        }
        (found, text) = said(user, args);
    }
    assert!(expected(found, &text), "{found:?}, expected {code} and {parts:?}: {text}");
}

#[test]
fn each_mistake_has_its_own_message() {
    let cluster = Cluster::shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(write(&cluster.client(), "/messages/rows.parquet", &file(0, 1000)));
    let url = cluster.at("/messages/rows.parquet");
    says("root", &["data", "inspect", &url], 0, &["1,000 rows"]);

    says(
        "root",
        &["data", "inspect", &cluster.at("/messages/none")],
        2,
        &["nothing at", "/messages/none", "check the path"],
    );

    runtime.block_on(cluster.client().set_permission("/messages/rows.parquet", 0o600)).unwrap();
    says("eve", &["data", "inspect", &url], 2, &["permission denied", "user=eve", "HADOOP_USER_NAME"]);

    // A port that is closed, the port of the NameNode's web pages, and the data port of a DataNode.
    let state = std::fs::read_to_string(cluster.conf_dir().with_file_name("cluster.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    says(
        "root",
        &["data", "inspect", "hdfs://127.0.0.1:1/x"],
        3,
        &["hdfs://127.0.0.1:1/", "no NameNode answers", "check that it runs"],
    );
    for (node, port) in [("namenode1", "http"), ("datanode1", "data")] {
        let wrong = format!("hdfs://127.0.0.1:{}/x", state["ports"][node][port]);
        says("root", &["data", "inspect", &wrong], 3, &[wrong.trim_end_matches('x'), "RPC port"]);
    }

    says("root", &["data", "inspect", "hdfs://nowhere/x"], 2, &["name service `nowhere`", "HADOOP_CONF_DIR"]);

    cluster.enter_safe_mode();
    let out = cluster.at("/messages/out");
    says("root", &["data", "synth", "--rows", "100", "--out", &out], 3, &["safe mode", "-safemode leave"]);
}
