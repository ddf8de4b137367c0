//! Two NameNodes behind one name, `hdfs://forebay`: a fail-over costs time, and nothing else.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use forebay::actors::Report;

use crate::cluster::{Lease, Shared, pattern, read, write};
use crate::common;

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

/// Whole reads of one file by a thread of their own, the file opened anew each time.
struct Reads {
    done: AtomicU32,
    stop: AtomicBool,
}

impl Reads {
    async fn run(&self, client: &hdfs_native::Client, path: &str, bytes: &[u8]) {
        write(client, path, bytes).await;
        while !self.stop.load(Ordering::Relaxed) {
            assert!(read(client, path).await.expect("reads go on") == bytes);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Tells the reading thread to end when the test does, also by a panic.
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
        // A read that began after this call has ended.
        let one_more = || {
            let enough = reads.done.load(Ordering::Relaxed) + 2;
            while reads.done.load(Ordering::Relaxed) < enough {
                assert!(!reading.is_finished(), "a read failed: see above");
                thread::park_timeout(Duration::from_millis(10));
            }
        };
        one_more();
        cluster.failover(2);
        one_more();
        // Nobody is active until somebody decides: reads wait.
        cluster.kill_namenode(2);
        cluster.failover(1);
        one_more();
        drop(stop);
    });
}

/// A program that must not outlive a test that failed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines that a program writes to its standard error.
struct Log(Lines<BufReader<ChildStderr>>);

impl Log {
    fn of(child: &mut Child) -> Self {
        Self(BufReader::new(child.stderr.take().unwrap()).lines())
    }

    /// The next line with these words.
    fn wait_for(&mut self, words: &str) -> String {
        let mut seen = String::new();
        for line in self.0.by_ref().map(Result::unwrap) {
            if line.contains(words) {
                return line;
            }
            seen += &line;
            seen.push('\n');
        }
        panic!("it ended before it said `{words}`:\n{seen}")
    }
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
        .env("HADOOP_CONF_DIR", cluster.conf_dir())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut training = Running(command.spawn().unwrap());
    let mut log = Log::of(&mut training.0);
    log.wait_for("push");
    cluster.kill_namenode(1);
    cluster.failover(2);
    // Whoever comes now finds the new one, though the old one is named first.
    let (code, said) = common::said(
        &common::forebay(&["data", "inspect", "--json", &cluster.at("/ha-rows")])
            .env("HADOOP_CONF_DIR", cluster.conf_dir())
            .output()
            .unwrap(),
    );
    assert!(code == Some(0) && said.contains("\"rows\":4000"), "{said}");
    // Every ten seconds it says how far it is: it still does, and it ends as any other.
    log.wait_for("training");
    assert!(Command::new("kill").args(["-INT", &training.0.id().to_string()]).status().unwrap().success());
    let rest: Vec<_> = log.0.map(Result::unwrap).collect();
    assert!(training.0.wait().unwrap().success(), "{rest:?}");
    let report: Report = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert!(report.ledger.delivered > 4000, "{report}");
    assert_eq!(report.ledger.read, report.ledger.delivered);
}
