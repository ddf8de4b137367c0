//! A Hadoop cluster for the tests, by `scripts/hdfs`: started on first use, held by one test at a time, and repaired
//! before the next test takes it. Every call blocks until the script has ended.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Deserialize;

/// NameNode(s) and DataNodes in a folder of their own. Dropping it stops them and removes the folder.
pub(crate) struct Cluster {
    dir: PathBuf,
    url: String,
    broken: AtomicBool,
}

/// A block of a file, and the files on this disk that hold its replicas.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what the script says, whether or not a test asks")]
pub(crate) struct Block {
    pub(crate) block: String,
    pub(crate) bytes: u64,
    pub(crate) replicas: Vec<Replica>,
}

/// One copy of a block. Writing other bytes into `file` makes its checksum wrong.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what the script says, whether or not a test asks")]
pub(crate) struct Replica {
    pub(crate) datanode: u32,
    pub(crate) file: PathBuf,
}

/// The right of one test to use a cluster. Only one lease exists, over all clusters, so that tests do not share the
/// cores.
///
/// A test may hold it across an await: each test has a runtime and a thread of its own.
pub(crate) struct Lease {
    cluster: MutexGuard<'static, Cluster>,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Lease {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// A cluster that is started once and leased to one test at a time.
pub(crate) struct Shared {
    options: &'static [&'static str],
    cluster: OnceLock<Mutex<Cluster>>,
}

impl Shared {
    /// The options of the cluster, which starts on the first [`take`](Self::take).
    pub(crate) const fn new(options: &'static [&'static str]) -> Self {
        Self { options, cluster: OnceLock::new() }
    }

    /// Waits until no other test has it. Mends what an earlier test broke.
    pub(crate) fn take(&'static self) -> Lease {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = self.cluster.get_or_init(|| Mutex::new(Cluster::start(self.options)));
        // A test that failed poisons the lock. `broken` says whether the cluster needs mending.
        let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
        if cluster.broken.load(Ordering::Relaxed) {
            cluster.mend();
        }
        Lease { cluster, _turn }
    }
}

#[allow(dead_code, reason = "each test module uses some of it")]
impl Cluster {
    /// The cluster that most tests share: one NameNode, three DataNodes, replication 2, blocks of 1 MiB.
    pub(crate) fn shared() -> Lease {
        static SHARED: Shared = Shared::new(&[]);
        SHARED.take()
    }

    /// Starts a cluster of the test's own, with `options` of `scripts/hdfs up`.
    pub(crate) fn start(options: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // One at a time: on two cores, two that start at once take longer than both in turn.
        static STARTING: Mutex<()> = Mutex::new(());
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hdfs-{process}-{number}"));
        let mut cluster = Self { dir, url: String::new(), broken: AtomicBool::new(false) };
        let owner = process.to_string();
        let up = [&["--owner", owner.as_str()][..], options].concat();
        cluster.url = cluster.script("up", &up).trim().to_owned();
        cluster
    }

    /// `hdfs://host:port`, or `hdfs://forebay` with two NameNodes. A path follows with its own `/`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// `{url}{path}`
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// For `HADOOP_CONF_DIR`.
    pub(crate) fn conf_dir(&self) -> PathBuf {
        self.dir.join("conf")
    }

    /// The realm's files of a secure cluster: `krb5.conf`, `reader.keytab`, ...
    pub(crate) fn krb5_dir(&self) -> PathBuf {
        self.dir.join("krb5")
    }

    /// A client over plain `hdfs-native`: the tests' own way in, beside the one they test.
    pub(crate) fn client(&self) -> hdfs_native::Client {
        let conf = self.conf_dir();
        hdfs_native::ClientBuilder::new().with_url(&self.url).with_config_dir(conf.to_str().unwrap()).build().unwrap()
    }

    /// `kill -9`. The NameNode counts it as dead 11 s later.
    pub(crate) fn kill_datanode(&self, number: u32) {
        self.breaking("kill-datanode", &[&number.to_string()]);
    }

    /// Starts one that is down; does not wait until it has registered ([`Self::mend`] does).
    pub(crate) fn start_datanode(&self, number: u32) {
        self.breaking("start-datanode", &[&number.to_string()]);
    }

    /// Freezes it: the kernel accepts its connections, and it never answers.
    pub(crate) fn stall_datanode(&self, number: u32) {
        self.breaking("stall-datanode", &[&number.to_string()]);
    }

    /// Lets a frozen one continue.
    pub(crate) fn resume_datanode(&self, number: u32) {
        self.breaking("resume-datanode", &[&number.to_string()]);
    }

    /// `kill -9`
    pub(crate) fn kill_namenode(&self, number: u32) {
        self.breaking("kill-namenode", &[&number.to_string()]);
    }

    /// Starts one that is down. It answers some 4 s later.
    pub(crate) fn start_namenode(&self, number: u32) {
        self.breaking("start-namenode", &[&number.to_string()]);
    }

    /// Freezes it: the kernel accepts its connections, and it never answers.
    pub(crate) fn stall_namenode(&self, number: u32) {
        self.breaking("stall-namenode", &[&number.to_string()]);
    }

    /// Lets a frozen one continue.
    pub(crate) fn resume_namenode(&self, number: u32) {
        self.breaking("resume-namenode", &[&number.to_string()]);
    }

    /// Makes NameNode `to` the active one, whether or not the other is alive.
    pub(crate) fn failover(&self, to: u32) {
        self.breaking("failover", &[&to.to_string()]);
    }

    /// No writes until [`Self::mend`].
    pub(crate) fn enter_safe_mode(&self) {
        self.breaking("safemode", &["enter"]);
    }

    /// Undoes all of the above and waits until every node is well.
    pub(crate) fn mend(&self) {
        self.script("mend", &[]);
        self.broken.store(false, Ordering::Relaxed);
    }

    /// Hadoop's own shell (`-put`, `-chmod`, ...), as the superuser; what it prints. A JVM: 1 to 2 s of CPU.
    pub(crate) fn fs(&self, arguments: &[&str]) -> String {
        self.script("fs", arguments)
    }

    /// Hadoop's `dfsadmin`; what it prints. A JVM: 1 to 2 s of CPU.
    pub(crate) fn admin(&self, arguments: &[&str]) -> String {
        self.script("admin", arguments)
    }

    /// Where the blocks of a file lie, in the file's order. Not on a secure cluster.
    pub(crate) fn block_files(&self, path: &str) -> Vec<Block> {
        serde_json::from_str(&self.script("block-files", &[path])).unwrap()
    }

    /// The blocks that are being written, and the DataNodes that have at least `bytes` bytes of each, by number.
    pub(crate) fn blocks_being_written(&self, bytes: u64) -> BTreeMap<String, Vec<u32>> {
        let entries =
            |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut blocks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for number in 1..=9 {
            let pools = entries(self.dir.join(format!("datanode{number}/current")));
            for file in pools.flat_map(|pool| entries(pool.join("current/rbw"))) {
                // The checksums of a block are in a file `.meta`.
                if file.extension().is_none() && file.metadata().is_ok_and(|file| file.len() >= bytes) {
                    let name = file.file_name().unwrap().to_string_lossy().into_owned();
                    blocks.entry(name).or_default().push(number);
                }
            }
        }
        blocks
    }

    fn breaking(&self, command: &str, arguments: &[&str]) {
        self.broken.store(true, Ordering::Relaxed);
        self.script(command, arguments);
    }

    fn script(&self, command: &str, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/hdfs"))
            .arg(command)
            .arg(&self.dir)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("scripts/hdfs runs: it needs python3");
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "scripts/hdfs {command} {arguments:?} failed:\n{stdout}{stderr}");
        stdout.into_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Not `script`: a panic here, in a test that panics already, would abort. The watcher tries again.
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/hdfs");
        let _ = Command::new(script).arg("down").arg(&self.dir).arg("--remove").output();
    }
}

/// Bytes that differ in every block.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64)
        .flat_map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(bytes)
        .collect()
}

/// Writes a file in blocks of the cluster's size; replaces an existing one.
pub(crate) async fn write(client: &hdfs_native::Client, path: &str, bytes: &[u8]) {
    write_in_blocks(client, path, bytes, None).await;
}

/// The same, in blocks of `block` bytes if that is given.
pub(crate) async fn write_in_blocks(client: &hdfs_native::Client, path: &str, bytes: &[u8], block: Option<u64>) {
    let mut options = hdfs_native::WriteOptions::default().overwrite(true);
    options.block_size = block;
    let mut writer = client.create(path, options).await.unwrap();
    writer.write_bytes(bytes::Bytes::copy_from_slice(bytes)).await.unwrap();
    writer.close().await.unwrap();
}

/// A whole file.
pub(crate) async fn read(client: &hdfs_native::Client, path: &str) -> hdfs_native::Result<Vec<u8>> {
    let reader = client.read(path).await?;
    Ok(reader.read_range(0, reader.file_length()).await?.to_vec())
}

#[tokio::test]
async fn a_file_is_readable_without_any_one_datanode() {
    let cluster = Cluster::shared();
    let client = cluster.client();
    let bytes = pattern(5_500_000);
    write(&client, "/cluster/file", &bytes).await;
    assert!(read(&client, "/cluster/file").await.unwrap() == bytes);

    let blocks = cluster.block_files("/cluster/file");
    assert_eq!(blocks.iter().map(|b| b.bytes).sum::<u64>(), bytes.len() as u64);
    assert_eq!(blocks.len(), 6, "a small block size, so that files span blocks");
    assert!(blocks.iter().all(|b| b.replicas.len() == 2), "{blocks:?}");
    let on_disk = std::fs::read(&blocks[0].replicas[0].file).unwrap();
    assert!(on_disk[..] == bytes[..1 << 20], "the first block's file holds the first bytes");

    let first = blocks[0].replicas[0].datanode;
    cluster.kill_datanode(first);
    assert!(read(&client, "/cluster/file").await.unwrap() == bytes, "read from the other replicas");
    cluster.mend();
    assert!(read(&cluster.client(), "/cluster/file").await.unwrap() == bytes);
}

#[tokio::test]
async fn a_cluster_is_mended_before_the_next_test_takes_it() {
    let cluster = Cluster::shared();
    cluster.stall_datanode(1);
    cluster.kill_datanode(2);
    cluster.enter_safe_mode();
    drop(cluster);

    let cluster = Cluster::shared();
    write(&cluster.client(), "/cluster/mended", b"whole again").await;
    assert_eq!(read(&cluster.client(), "/cluster/mended").await.unwrap(), b"whole again");
}
