//! Faults of a cluster while it is read: each row still comes once, or the run ends with a fault that says what
//! happened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::connectors::Stores;
use object_store::ObjectStore;

use super::cluster::{Block, Cluster};
use super::common::until;
use super::rows::{Run, run, write_files};

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
        // It is frozen first, so that reads wait for it when it dies.
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
fn reads_from_a_stalled_datanode_are_overtaken() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    tracing_subscriber::fmt().with_env_filter("forebay_connectors=debug").with_writer(writer).init();
    let cluster = Cluster::shared();
    // With many blocks it is practically certain that some read asks the stalled DataNode first.
    let url = rows(&cluster, "/faults/stalled", 1 << 20);
    let before = std::fs::read_to_string(log.path()).unwrap().len();
    let longest_wait = with_a_training_step(&url, &|| cluster.stall_datanode(1)).longest_wait;
    let log = &std::fs::read_to_string(log.path()).unwrap()[before..];
    let count = |words: &str| log.matches(words).count();
    // The DataNode never answered, and no read of a block had to be given up and begun again.
    assert!(count("overtaking a read") > 0, "{log}");
    assert_eq!(count("a read failed"), 0, "{log}");
    // hdfs-native alone waits a minute for a DataNode that is silent. What was read ahead lasts for some seconds.
    assert!(longest_wait < Duration::from_secs(50), "{longest_wait:?}");
}

#[test]
#[ignore = "prints how much longer a run takes while a DataNode is stalled"]
fn how_long_a_stalled_datanode_holds_a_run_up() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/stalled", 4 << 20);
    let calm = with_a_training_step(&url, &|| ()).report.wall;
    let stalled = with_a_training_step(&url, &|| cluster.stall_datanode(1)).report.wall;
    println!("{calm:?} without, {stalled:?} with a stalled DataNode");
}

/// Reads all rows in 100 batches, 120 ms of work for each. `then` is called after a tenth of the rows.
fn with_a_training_step(url: &str, then: &dyn Fn()) -> Run {
    let run = run(url, Duration::from_millis(120), ROWS / 10, |_| then());
    run.is_whole(ROWS);
    run
}

#[test]
fn reads_wait_for_a_namenode_that_restarts() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/restart", 1 << 20);
    let run = run(&url, NO_PAUSE, ROWS / 4, |go_on| {
        // The DataNodes are gone, so the rest needs new locations, which only the NameNode knows.
        cluster.kill_namenode(1);
        (1..=3).for_each(|node| cluster.kill_datanode(node));
        go_on.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        cluster.mend();
    });
    run.is_whole(ROWS);
}

#[test]
fn a_file_that_is_deleted_during_a_run_is_a_fault_that_names_it() {
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
fn a_file_that_is_replaced_during_a_run_is_a_fault_that_names_it() {
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
fn one_corrupt_replica_is_avoided_and_two_are_a_fault() {
    let cluster = Cluster::shared();
    let url = rows(&cluster, "/faults/corrupt", 1 << 20);
    let blocks: Vec<Block> =
        (0..4).flat_map(|part| cluster.block_files(&format!("/faults/corrupt/part-{part}.parquet"))).collect();
    let spoil_replicas = |spoilt: fn(usize) -> usize| {
        for (i, block) in blocks.iter().enumerate() {
            let mut replicas: Vec<_> = block.replicas.iter().collect();
            replicas.sort_by_key(|replica| replica.datanode);
            spoil(&replicas[spoilt(i)].file);
        }
    };
    // Neighbouring blocks lose different replicas, so that each DataNode has bad blocks and good ones.
    spoil_replicas(|i| i % 2);
    for _ in 0..2 {
        run(&url, NO_PAUSE, 0, |_| ()).is_whole(ROWS);
    }
    spoil_replicas(|i| 1 - i % 2);
    let said = run(&url, NO_PAUSE, 0, |_| ()).fault();
    assert!(said.contains("no replica of the block") || said.contains("checksum"), "{said}");
}

/// Changes some bytes of a replica. Its checksums stay.
fn spoil(replica: &Path) {
    let mut bytes = std::fs::read(replica).unwrap();
    bytes.iter_mut().skip(1000).step_by(4096).for_each(|byte| *byte ^= 0x55);
    std::fs::write(replica, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_store_serves_all_paths_of_a_cluster() {
    let cluster = Cluster::shared();
    let stores = Stores::default();
    let (one, path) = stores.open(&cluster.at("/faults/one")).unwrap();
    let (other, _) = stores.open(&cluster.at("/elsewhere/")).unwrap();
    one.put_opts(&path, "1".into(), Default::default()).await.unwrap();
    let read: Arc<dyn ObjectStore> = other;
    assert_eq!(read.get_opts(&path, Default::default()).await.unwrap().bytes().await.unwrap(), "1");
}

/// Waits until the DataNodes have deleted the blocks of a file: readers may read on until then.
fn until_deleted(blocks: &[Block]) {
    let replicas = || blocks.iter().flat_map(|block| &block.replicas);
    until("the DataNodes have deleted the blocks", || !replicas().any(|replica| replica.file.exists()));
}
