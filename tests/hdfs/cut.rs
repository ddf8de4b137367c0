//! Lines to the NameNode that lose single calls, or are slow: what was asked for is done once, and nothing is given up.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::cluster::Cluster;
use super::common;

/// The part of each rename's first try that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Nothing,
    Request,
    Answer,
}

/// A line to the NameNode: a port of its own. Its threads end with the program.
struct Line {
    address: SocketAddr,
    /// Renames that were asked for. Every second one gets through.
    renames: Arc<AtomicU32>,
}

impl Line {
    /// Each packet to the NameNode takes `delay`.
    fn start(cluster: &Cluster, lost: Lost, delay: Duration) -> Self {
        let namenode = cluster.url().strip_prefix("hdfs://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, renames) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&renames);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&namenode).unwrap());
                let (requests, answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (renames, ends) = (Arc::clone(&counted), Arc::new(AtomicBool::new(false)));
                let end = Arc::clone(&ends);
                thread::spawn(move || {
                    pass(requests, server, |packet| {
                        thread::sleep(delay);
                        let is_rename = packet.windows(7).any(|word| word == b"rename2");
                        if lost == Lost::Nothing || !is_rename || renames.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                            return true;
                        }
                        ends.store(true, Ordering::SeqCst);
                        lost == Lost::Answer
                    });
                });
                thread::spawn(move || pass(answers, client, |_| !end.load(Ordering::SeqCst)));
            }
        });
        Self { address, renames }
    }

    fn at(&self, path: &str) -> String {
        format!("hdfs://{}{path}", self.address)
    }
}

/// Passes packets on until one side ends, or `goes_on` says no of a packet; then both sides end.
fn pass(mut from: TcpStream, mut to: TcpStream, mut goes_on: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match from.read(&mut buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        if read == 0 || !goes_on(&buffer[..read]) || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may have ended already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    common::ended(common::forebay(args).env_remove("HADOOP_CONF_DIR"))
}

/// A bug: one cut connection in the moment of the last rename, and all that was written was removed.
#[test]
fn a_rename_whose_request_or_answer_is_lost_is_done_once() {
    let cluster = Cluster::shared();
    for lost in [Lost::Request, Lost::Answer] {
        let line = Line::start(&cluster, lost, Duration::ZERO);
        let parent = format!("/cut/{lost:?}");
        let nothing: &[&str] = &[];
        for more in [nothing, &["--replace"]] {
            let out = line.at(&format!("{parent}/rows"));
            let (code, said) = run(&[&["data", "synth", "--rows", "2000", "--out", &out][..], more].concat());
            assert_eq!(code, Some(0), "{lost:?} {more:?}: {said}");
            let (_, said) = run(&["data", "inspect", &cluster.at(&format!("{parent}/rows"))]);
            assert!(said.contains("2,000 rows"), "{lost:?} {more:?}: {said}");
            assert!(!cluster.fs(&["-ls", &parent]).contains("/.rows."), "{lost:?} {more:?}: a hidden folder stays");
        }
        assert!(line.renames.load(Ordering::SeqCst) >= 8, "{lost:?}: no rename was lost");
    }
}

/// A bug: the checkpoint was given up, or said to have failed though it was there.
#[test]
fn a_checkpoint_whose_manifest_is_asked_for_twice_is_made() {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let (rows, model) = (common::parquet(dir.path(), 0, 4000), dir.path().join("model"));
    for lost in [Lost::Request, Lost::Answer] {
        let line = Line::start(&cluster, lost, Duration::ZERO);
        let folder = format!("/cut/checkpoints-{lost:?}");
        let settings = [
            format!("data.train={}", rows.display()),
            format!("output.model={}", model.display()),
            format!("checkpoint.to={}", line.at(&folder)),
            "checkpoint.rows=1000".to_owned(),
            // Long enough for checkpoints while it trains.
            "data.epochs=40".to_owned(),
            "model.kind=lr".to_owned(),
            "train.batch_rows=500".to_owned(),
        ];
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let (code, said) = run(&std::iter::once("train").chain(set).collect::<Vec<_>>());
        assert!(code == Some(0) && said.contains("INFO checkpoint "), "{lost:?}: {said}");
        assert!(!said.contains("a checkpoint failed"), "{lost:?}: {said}");
        let (code, said) = run(&["checkpoint", "verify", &cluster.at(&folder)]);
        assert_eq!(code, Some(0), "{lost:?}: {said}");
    }
}

/// A bug: there was one deadline for all folders, so a command could not even start.
#[test]
fn folders_that_take_long_to_list_together_are_listed() {
    let cluster = Cluster::shared();
    let line = Line::start(&cluster, Lost::Nothing, Duration::from_millis(20));
    common::exits(0, run(&["data", "synth", "--rows", "1000", "--out", &cluster.at("/cut/many/last")]), &[]);
    let client = cluster.client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // One in the other, so that they are listed one after the other.
    let folders: String = (0..500).map(|_| "/a").collect();
    runtime.block_on(client.mkdirs(&format!("/cut/many{folders}"), 0o755, true)).unwrap();
    common::exits(0, run(&["data", "inspect", &line.at("/cut/many")]), &["1,000 rows"]);
}
