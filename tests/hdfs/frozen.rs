//! A DataNode is frozen in the middle of a write: it keeps its connections and answers nothing. The write goes on with other DataNodes,
//! and what is read back is what was written.

use std::time::Instant;

use forebay::connectors::Stores;
use object_store::{MultipartUpload as _, ObjectStoreExt as _};

use super::cluster::Cluster;
use super::common;

/// As most clusters are: files of one block, and a NameNode that takes a silent DataNode for alive for ten minutes.
fn cluster() -> Cluster {
    Cluster::start(&["--dead-after", "600", "--block-size", "134217728"])
}

/// Writes a file of `before` and `after` parts of 8 MiB, and freezes a DataNode of its block between them: the `which`-th by number.
async fn write_beside_frozen(cluster: &Cluster, which: usize, before: u8, after: u8) {
    let (store, folder) = Stores::default().open(&cluster.at("/frozen")).unwrap();
    let path = folder.join(format!("{which}-{before}-{after}"));
    let part = |byte: u8| vec![byte; 8 << 20];
    let mut upload = store.put_multipart(&path).await.unwrap();
    for byte in 0..before {
        upload.put_part(part(byte).into()).await.unwrap();
    }
    common::until("two DataNodes have a part of the block", || cluster.writing_datanodes(1 << 20).len() == 2);
    let frozen = cluster.writing_datanodes(1 << 20)[which];
    cluster.stall_datanode(frozen);
    let since = Instant::now();
    for byte in before..before + after {
        upload.put_part(part(byte).into()).await.unwrap();
    }
    upload.complete().await.unwrap();
    println!("{path}: {:?} after the DataNode was frozen", since.elapsed());
    let written = store.get(&path).await.unwrap().bytes().await.unwrap();
    assert!(written == (0..before + after).map(part).collect::<Vec<_>>().concat(), "{} bytes", written.len());
    cluster.resume_datanode(frozen);
}

#[test]
fn a_file_is_written_beside_a_datanode_that_is_frozen_in_the_middle() {
    let cluster = cluster();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // All bytes are still in memory: the file is begun anew.
    runtime.block_on(write_beside_frozen(&cluster, 0, 1, 1));
    // They are not: the missing ones are appended.
    for which in 0..2 {
        runtime.block_on(write_beside_frozen(&cluster, which, 6, 3));
    }
}
