//! A DataNode is frozen in the middle of writes: it keeps its connections and answers nothing. The writes go on with other DataNodes, and
//! what is read back is what was written.

use std::sync::Arc;
use std::time::Instant;

use forebay::connectors::Stores;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt as _};

use super::cluster::Cluster;
use super::common;

/// The bytes of a part.
const PART: usize = 8 << 20;

fn part(byte: u8) -> Vec<u8> {
    vec![byte; PART]
}

/// Writes parts of these bytes. Returns the open file.
async fn begin(store: &Arc<dyn ObjectStore>, path: &Path, bytes: u8) -> Box<dyn MultipartUpload> {
    let mut upload = store.put_multipart(path).await.unwrap();
    for byte in 0..bytes {
        upload.put_part(part(byte).into()).await.unwrap();
    }
    upload
}

/// A bug: hdfs-native sends to a DataNode without a time limit, and a long file waited forever. As in most clusters, a file is of one
/// block, and the NameNode takes a silent DataNode for alive for ten minutes.
#[test]
fn files_are_written_beside_a_datanode_that_is_frozen_in_the_middle() {
    let cluster = Cluster::start(&["--dead-after", "600", "--block-size", "134217728"]);
    let (store, folder) = Stores::default().open(&cluster.at("/frozen")).unwrap();
    let store: Arc<dyn ObjectStore> = store;
    // All bytes of the first file are still in memory, so it is written again from its first byte. What the second one lacks is appended
    // once the NameNode has closed it: a DataNode waits a minute for the frozen one, and does so for one file after the other.
    // Two files with two replicas each on three DataNodes: one DataNode has both.
    let files: Vec<_> =
        [1, 5].iter().enumerate().map(|(i, &parts)| (folder.clone().join(i.to_string()), parts)).collect();
    let written = async {
        let mut uploads = join_all(files.iter().map(|(path, parts)| begin(&store, path, *parts))).await;
        let whole = |blocks: &Vec<Vec<u32>>| blocks.len() == files.len() && blocks.iter().all(|nodes| nodes.len() == 2);
        let blocks = || cluster.blocks_being_written(1 << 20).into_values().collect::<Vec<_>>();
        common::until("each file has a block on two DataNodes", || whole(&blocks()));
        let blocks = blocks();
        let number_of = |node: &u32| blocks.iter().filter(|nodes| nodes.contains(node)).count();
        let frozen = (1..=3).max_by_key(number_of).unwrap();
        assert_eq!(number_of(&frozen), files.len());
        cluster.stall_datanode(frozen);
        let since = Instant::now();
        let rest = uploads.iter_mut().zip(&files).map(async |(upload, (path, parts))| {
            for byte in *parts..parts + 2 {
                upload.put_part(part(byte).into()).await.unwrap();
            }
            upload.complete().await.unwrap();
            println!("{path} is written after {:?}", since.elapsed());
        });
        join_all(rest).await;
        for (path, parts) in &files {
            let written = store.get(path).await.unwrap().bytes().await.unwrap();
            assert!(
                written == (0..parts + 2).map(part).collect::<Vec<_>>().concat(),
                "{path}: {} bytes",
                written.len()
            );
        }
    };
    tokio::runtime::Runtime::new().unwrap().block_on(written);
    assert_eq!(cluster.fs(&["-ls", "/frozen"]).matches("/frozen/").count(), files.len(), "nothing hidden stays");
}
