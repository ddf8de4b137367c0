//! What can happen to a cluster while it is read: each row still comes once, or the run says what happened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::connectors::store;
use object_store::ObjectStore;

use super::cluster::{Block, Cluster};
use super::rows::{run, write_files};

const ROWS: usize = 1_600_000;
const NO_PAUSE: Duration = Duration::ZERO;

/// Four files of 6.4 MB, each in 7 blocks of 1 MiB or in 2 of 4 MiB.
fn rows(cluster: &Cluster, folder: &str, block: u64) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(write_files(cluster, folder, 4, ROWS / 4, block));
    cluster.at(folder)
}

#[test]
fn a_killed_datanode_costs_no_row() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/killed", 1 << 20);
    let run = run(&url, NO_PAUSE, ROWS / 4, |go_on| {
        // Frozen first, so that reads are under way on it when it dies.
        cluster.stall_datanode(2);
        go_on.send(()).unwrap();
        cluster.kill_datanode(2);
    });
    run.is_whole(ROWS);
}

#[test]
fn when_all_replicas_are_gone_the_fault_names_file_block_and_nodes() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/gone", 1 << 20);
    let run = run(&url, NO_PAUSE, ROWS / 4, |_| (1..=3).for_each(|node| cluster.kill_datanode(node)));
    let said = run.fault();
    let file = format!("{url}/part-");
    for part in
        [file.as_str(), "no replica of the block that holds bytes", "127.0.0.1:", "hdfs fsck /faults/gone/part-"]
    {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
    assert_eq!(run.report.ledger.read, run.ids.len() as u64, "what came before is accounted for");
}

#[test]
fn a_stalled_datanode_is_overtaken() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/stalled", 4 << 20);
    // 100 batches: 12 s of work, as a training step would be.
    let work = Duration::from_millis(120);
    let timed = |then: &dyn Fn()| {
        let start = Instant::now();
        run(&url, work, ROWS / 10, |_| then()).is_whole(ROWS);
        start.elapsed()
    };
    let calm = timed(&|| ());
    let stalled = timed(&|| cluster.stall_datanode(1));
    // The one promise that is a time: without overtaking it is minutes.
    assert!(stalled < calm.mul_f64(1.3), "{stalled:?} with a stalled DataNode, {calm:?} without");
}

#[test]
fn a_namenode_that_restarts_is_waited_for() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/restart", 1 << 20);
    let run = run(&url, NO_PAUSE, ROWS / 4, |go_on| {
        // Without DataNodes, what is left to read needs locations that only the NameNode knows.
        cluster.kill_namenode(1);
        (1..=3).for_each(|node| cluster.kill_datanode(node));
        go_on.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        cluster.mend();
    });
    run.is_whole(ROWS);
}

#[test]
fn a_file_that_is_deleted_under_way_is_a_fault_that_says_so() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/deleted", 1 << 20);
    let blocks = cluster.block_files("/faults/deleted/part-3.parquet");
    let run = run(&url, NO_PAUSE, ROWS / 4, |_| {
        cluster.fs(&["-rm", "-skipTrash", "/faults/deleted/part-3.parquet"]);
        until_deleted(&blocks);
    });
    let said = run.fault();
    assert!(said.contains("part-3.parquet") && said.contains("it is not there (any more)"), "{said}");
    assert_eq!(run.ids.len(), ROWS / 4 * 3, "all rows of the files before it came");
}

#[test]
fn a_file_that_is_replaced_under_way_is_a_fault_that_says_so() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/replaced", 1 << 20);
    let blocks = cluster.block_files("/faults/replaced/part-3.parquet");
    let run = run(&url, NO_PAUSE, ROWS / 4, |_| {
        cluster.fs(&["-cp", "-f", "/faults/replaced/part-0.parquet", "/faults/replaced/part-3.parquet"]);
        until_deleted(&blocks);
    });
    let said = run.fault();
    assert!(said.contains("part-3.parquet") && said.contains("replaced or changed after it was listed"), "{said}");
    assert_eq!(run.ids.len(), ROWS / 4 * 3);
}

#[test]
fn a_corrupt_replica_is_read_around_and_two_are_a_fault() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/corrupt", 1 << 20);
    let spoil = |replica: usize| {
        for part in 0..4 {
            for block in cluster.block_files(&format!("/faults/corrupt/part-{part}.parquet")) {
                let file = &block.replicas[replica].file;
                let mut bytes = std::fs::read(file).unwrap();
                bytes.iter_mut().skip(1000).step_by(4096).for_each(|byte| *byte ^= 0x55);
                std::fs::write(file, bytes).unwrap();
            }
        }
    };
    spoil(0);
    run(&url, NO_PAUSE, 0, |_| ()).is_whole(ROWS);
    spoil(1);
    let said = run(&url, NO_PAUSE, 0, |_| ()).fault();
    assert!(said.contains("no replica of the block") || said.contains("checksum"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_store_serves_all_who_ask_for_a_cluster() {
    let cluster = Cluster::shared();
    let (one, path) = store::open(&cluster.at("/faults/one")).unwrap();
    let (other, _) = store::open(&cluster.at("/elsewhere/")).unwrap();
    one.put_opts(&path, "1".into(), Default::default()).await.unwrap();
    let read: Arc<dyn ObjectStore> = other;
    assert_eq!(read.get_opts(&path, Default::default()).await.unwrap().bytes().await.unwrap(), "1");
}

/// Until the DataNodes have deleted the blocks of a file: readers may read on until then.
fn until_deleted(blocks: &[Block]) {
    let since = Instant::now();
    while blocks.iter().flat_map(|block| &block.replicas).any(|replica| replica.file.exists()) {
        assert!(since.elapsed() < Duration::from_secs(60), "the DataNodes kept the blocks for a minute");
        std::thread::sleep(Duration::from_millis(100));
    }
}
