//! A name service or a NameNode, and the files that this process reads there.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use forebay_actors::{Fault, IoRuntime};
use hdfs_native::WriteOptions;
use hdfs_native::file::FileReader;
use object_store::path::Path;
use object_store::{Error, ObjectMeta};
use tokio::sync::Semaphore;

use super::buffers::Buffers;
use super::connection::Connection;
use super::explain::{Asked, explain};
use super::pace::Pace;
use super::settings::{Settings, cannot_open};
use super::silence::ANSWER_WITHIN;

/// Reads under way. Each holds a connection to a DataNode; reads that overtake others need some of them.
const READS: usize = 96;

/// Reads that overtake others. A cluster that is slow all over must not get many times the work.
const OVERTAKES: usize = 24;

/// A NameNode that has not answered for this long, and never did before, is taken for none.
const FIRST_ANSWER: Duration = Duration::from_secs(8);

/// The state that all clusters of a process share.
pub(crate) struct Shared {
    pub(super) io: IoRuntime,
    pub(super) reads: Semaphore,
    pub(super) overtakes: Arc<Semaphore>,
    pub(super) buffers: Buffers,
}

impl Shared {
    pub(crate) fn new(io: IoRuntime) -> Self {
        Self {
            io,
            reads: Semaphore::new(READS),
            overtakes: Arc::new(Semaphore::new(OVERTAKES)),
            buffers: Buffers::default(),
        }
    }
}

/// A file and where its blocks lie.
pub(super) struct LocatedFile {
    pub(super) meta: ObjectMeta,
    /// Whether a DataNode that sends nothing for two seconds is left.
    pub(super) quick: bool,
    pub(super) reader: Arc<FileReader>,
}

pub(super) struct Cluster {
    root: String,
    settings: Settings,
    /// The NameNodes of a name service, as errors name them.
    namenodes: Vec<String>,
    pub(super) shared: Arc<Shared>,
    connection: Mutex<Arc<Connection>>,
    /// Files that are being read, by path.
    pub(super) files: DashMap<Path, Arc<LocatedFile>>,
    pub(super) pace: Pace,
    /// How often it has connected anew.
    reconnects: AtomicUsize,
    /// Whether a NameNode ever answered.
    answered: AtomicBool,
    /// Whether the log says that none answers.
    away: AtomicBool,
}

impl Cluster {
    pub(super) fn new(root: &str, shared: Arc<Shared>) -> Result<Self, Fault> {
        let settings = Settings::from_env()?;
        let mut namenodes = Vec::new();
        for (id, address) in settings.hadoop.namenodes(root) {
            match address {
                Some(address) => namenodes.push(format!("{id} at {address}")),
                None => tracing::warn!(
                    store = root,
                    "dfs.ha.namenodes names the NameNode `{id}`, which is not asked: dfs.namenode.rpc-address has no address for it"
                ),
            }
        }
        let connection = Connection::new(root, &settings, &shared.io, &[]).map_err(|e| cannot_open(root, e))?;
        Ok(Self {
            root: root.to_owned(),
            settings,
            namenodes,
            shared,
            connection: Mutex::new(Arc::new(connection)),
            files: DashMap::new(),
            pace: Pace::default(),
            reconnects: AtomicUsize::new(0),
            answered: AtomicBool::new(false),
            away: AtomicBool::new(false),
        })
    }

    /// `hdfs://host:8020/`.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes new connections, that begin with the next NameNode of each name service: the first one may be silent for good.
    pub(super) fn reconnect(&self) {
        // All services: the URL may name none, or a mount table with several.
        let rotated = self.settings.hadoop.rotated(1 + self.reconnects.fetch_add(1, Ordering::Relaxed));
        let rotated: Vec<_> = rotated.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        match Connection::new(&self.root, &self.settings, &self.shared.io, &rotated) {
            Ok(new) => *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(new),
            Err(e) => tracing::warn!(store = %self.root, error = %e, "cannot reconnect"),
        }
    }

    /// How new files are written.
    pub(super) fn write_options(&self) -> WriteOptions {
        let Settings { replication, block_bytes, .. } = self.settings;
        WriteOptions { replication, block_size: block_bytes, ..WriteOptions::default() }
    }

    /// How long to wait for a NameNode: a wrong address shows soon, a restart does not end a run. Before the first answer, each NameNode of
    /// a name service is tried.
    pub(super) fn timeout(&self) -> Duration {
        let timeout = self.settings.timeout;
        match self.has_answered() {
            true => timeout,
            // And the pauses between the tries.
            false => timeout.min(FIRST_ANSWER * self.namenodes.len().max(1) as u32 + Duration::from_secs(1)),
        }
    }

    /// How long one try waits for an answer.
    pub(super) fn answer_within(&self) -> Duration {
        let within = if self.has_answered() { ANSWER_WITHIN } else { FIRST_ANSWER };
        within.min(self.timeout())
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    pub(super) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) && self.away.swap(false, Ordering::Relaxed) {
            tracing::info!(store = %self.root, "the NameNode answers again");
        }
    }

    /// Notes that no NameNode answers. Returns whether one did before.
    pub(super) fn set_away(&self) -> bool {
        !self.away.swap(true, Ordering::Relaxed)
    }

    /// Explains the error of a call. `waited`: the call was repeated until the timeout.
    pub(super) fn explain(&self, path: &str, error: Error, waited: bool) -> Error {
        let answered = self.has_answered();
        explain(&Asked { root: &self.root, namenodes: &self.namenodes, path, answered, waited }, error)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}
