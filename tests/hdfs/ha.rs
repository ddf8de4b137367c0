//! Two NameNodes behind one name, `hdfs://forebay`: a failover costs time and nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use forebay::actors::Report;

use crate::away::progress;
use crate::cluster::{Lease, Shared, pattern, read, write};
use crate::common::{self, Background};

/// Two NameNodes, two DataNodes. Number 1 is active at first.
fn cluster() -> Lease {
    static HA: Shared = Shared::new(&["--ha", "--datanodes", "2"]);
    let cluster = HA.take();
    cluster.failover(1);
    cluster
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Reads one file again and again on a thread of its own, and opens it each time.
struct Reads {
    done: AtomicU32,
    stop: AtomicBool,
}

impl Reads {
    async fn run(&self, client: &hdfs_native::Client, path: &str, bytes: &[u8]) {
        write(client, path, bytes).await;
        while !self.stop.load(Ordering::Relaxed) {
            match read(client, path).await {
                Ok(found) => assert!(found == bytes),
                // A NameNode that was just started waits for the DataNodes to report their blocks; this client does not wait for it.
                Err(e) if e.to_string().contains("RetriableException") => continue,
                Err(e) => panic!("reads go on: {e}"),
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Ends the reading thread with the test, also after a panic.
struct StopOnDrop<'a>(&'a Reads);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn reads_go_on_while_the_namenodes_change_roles_and_one_dies() {
    let cluster = cluster();
    let (client, bytes) = (cluster.client(), pattern(3 << 20));
    let reads = Reads { done: AtomicU32::new(0), stop: AtomicBool::new(false) };
    thread::scope(|scope| {
        let reading = scope.spawn(|| block_on(reads.run(&client, "/ha/file", &bytes)));
        let stop = StopOnDrop(&reads);
        // Waits for the end of a read that began after this call.
        let one_more = || {
            let enough = reads.done.load(Ordering::Relaxed) + 2;
            common::until("one more read", || {
                assert!(!reading.is_finished(), "a read failed: see above");
                reads.done.load(Ordering::Relaxed) >= enough
            });
        };
        one_more();
        cluster.failover(2);
        one_more();
        // No NameNode is active until the failover: reads wait.
        cluster.kill_namenode(2);
        cluster.failover(1);
        one_more();
        drop(stop);
    });
}

#[test]
fn a_training_goes_on_when_the_active_namenode_dies() {
    let (cluster, local) = (cluster(), tempfile::tempdir().unwrap());
    let rows = common::parquet(local.path(), 0, 4000);
    cluster.fs(&["-put", "-f", rows.to_str().unwrap(), "/ha-rows"]);

    let report = local.path().join("report.json");
    let mut command = common::forebay(&["train", "--report", report.to_str().unwrap()]);
    command
        .args(["--set", &format!("data.train={}", cluster.at("/ha-rows")), "--set", "data.epochs=100000"])
        .args(["--set", "model.kind=lr"])
        .env("HADOOP_CONF_DIR", cluster.conf_dir());
    let mut training = Background::start(&mut command);
    training.wait_for("push", 1);
    cluster.kill_namenode(1);
    cluster.failover(2);
    // A new process finds the active NameNode, though the settings name the dead one first.
    let (code, said) = common::ended(
        common::forebay(&["data", "inspect", "--json", &cluster.at("/ha-rows")])
            .env("HADOOP_CONF_DIR", cluster.conf_dir()),
    );
    assert!(code == Some(0) && said.contains("\"rows\":4000"), "{said}");
    // It prints its progress every ten seconds. It still does, it begins epoch after epoch, and it drains like any other.
    let lines = progress(&training.output()).len();
    common::until("it goes on", || {
        assert!(training.is_running(), "{}", training.output());
        let rows = progress(&training.output());
        rows.len() > lines && rows.last() > Some(&4000)
    });
    training.signal("-INT");
    common::exits(5, training.wait(), &[]);
    let report: Report = common::read_json(report);
    assert!(report.ledger.delivered > 4000, "{report}");
    assert_eq!(report.ledger.read, report.ledger.delivered);
}

/// A bug: the NameNode that the settings name first was the only one asked, so no command began while it was frozen.
#[test]
fn a_command_begins_while_the_first_namenode_is_frozen() {
    let (cluster, local) = (cluster(), tempfile::tempdir().unwrap());
    let rows = common::parquet(local.path(), 0, 2000);
    cluster.fs(&["-put", "-f", rows.to_str().unwrap(), "/ha-frozen"]);
    cluster.failover(2);
    cluster.stall_namenode(1);
    let mut inspect = common::forebay(&["data", "inspect", &cluster.at("/ha-frozen")]);
    common::exits(0, common::ended(inspect.env("HADOOP_CONF_DIR", cluster.conf_dir())), &["2,000 rows"]);
}

/// A bug: URLs were compared as text, so a command replaced its own input.
#[test]
fn a_folder_is_the_same_one_by_each_name_of_its_cluster() {
    let (cluster, local) = (cluster(), tempfile::tempdir().unwrap());
    let rows = common::parquet(local.path(), 0, 2000);
    cluster.fs(&["-mkdir", "-p", "/ha-names"]);
    cluster.fs(&["-put", "-f", rows.to_str().unwrap(), "/ha-names/rows"]);
    let state = std::fs::read_to_string(cluster.conf_dir().with_file_name("cluster.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let address = format!("hdfs://127.0.0.1:{}/ha-names/rows", state["ports"]["namenode1"]["rpc"]);
    let run = |args: &[&str]| {
        let output = common::forebay(args).env("HADOOP_CONF_DIR", cluster.conf_dir()).output();
        common::code_and_output(&output.unwrap())
    };
    let names = [cluster.at("/ha-names/rows"), "hdfs:///ha-names/rows".to_owned(), address];
    for (i, name) in names.iter().enumerate() {
        let other = &names[(i + 1) % names.len()];
        let (code, said) = run(&["data", "convert", name, "--out", other, "--replace"]);
        assert!(code == Some(2) && said.contains("would be replaced"), "{name} {other}: {said}");
        let twice = format!("data.train=[\"{name}\", \"{other}\"]");
        let (code, said) = run(&["train", "--set", &twice, "--set", "model.kind=lr"]);
        assert!(code == Some(2) && said.contains("are one file, by two names"), "{name} {other}: {said}");
        common::exits(0, run(&["data", "inspect", name]), &["2,000 rows"]);
    }
}
