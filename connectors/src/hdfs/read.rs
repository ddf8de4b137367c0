//! Reads ranges of one version of a file, checked against HDFS's own checksums.
//!
//! hdfs-native goes to the next replica when a DataNode refuses, breaks off or sends a wrong checksum. On top of that:
//!
//! - The block locations of a file (all its blocks) are asked for once, not once a range.
//! - When all replicas of a block failed, the locations are asked for again, after growing pauses: replicas move.
//! - A corrupt block does not cost a DataNode's other blocks: hdfs-native asks a DataNode that failed once no more for a file, and each
//!   DataNode of a file may have one bad block. A read that got some bytes, and a read that is repeated, begin with all DataNodes.
//! - A DataNode that sends nothing for two seconds is left, and not asked again for that file.
//! - A read that gets nothing for much longer than others, or takes much longer, is overtaken by others: the first to
//!   succeed counts (hedged requests; Dean and Barroso, The Tail at Scale, 2013).
//! - The version of the file is compared whenever its locations are asked for: rows of two versions are never mixed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_actors::FaultKind;
use forebay_base::Backoff;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use hdfs_native::HdfsError;
use hdfs_native::file::FileReader;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::buffers::{Buffer, Buffers};
use super::cluster::{Cluster, LocatedFile};
use super::connection::Connection;
use super::errors::{from_hdfs, into_hdfs};
use super::explain;
use super::retry::Repeat;
use crate::store_error::Explained;

/// How often the locations of a block are asked for before a read of it is given up: about 15 s in all.
const ROUNDS: u32 = 6;

/// Rounds that leave a DataNode that sends nothing for two seconds; later ones wait as long as the cluster's settings say.
const QUICK_ROUNDS: u32 = 3;

/// Most reads at once that overtake one read.
const OVERTAKERS: usize = 5;

/// Block locations that are kept.
const FILES: usize = 4096;

impl Cluster {
    /// The version that is being read, if it is `e_tag`.
    pub(super) fn known(&self, path: &Path, e_tag: &str) -> Option<ObjectMeta> {
        let file = self.files.get(path)?;
        (file.meta.e_tag.as_deref() == Some(e_tag)).then(|| file.meta.clone())
    }

    /// Reads a range of the version of a file that `meta` names. The range lies within the file.
    pub(super) async fn read(self: &Arc<Self>, meta: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let _permit = self.shared.reads.acquire().await.expect("the semaphore is never closed");
        let mut backoff = Backoff::equal_jitter(Duration::from_millis(500), Duration::from_secs(8));
        let mut tried = BTreeSet::new();
        let mut round = 1;
        loop {
            let file = match round {
                1 => self.open_file(meta).await?,
                _ => Arc::new(self.locate(meta, round <= QUICK_ROUNDS).await?),
            };
            let error = match self.hedged(&file, &range).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            self.files.remove_if(&meta.location, |_, known| Arc::ptr_eq(known, &file));
            let nodes = explain::nodes(&error);
            tried.extend(nodes.iter().cloned());
            if round == ROUNDS {
                return Err(explain::lost(self.root(), meta, &range, &tried, error));
            }
            tracing::warn!(
                file = %meta.location, ?range, round, ?nodes, error = %explain::short(&error),
                "a read failed, asking for the replicas anew; `hdfs fsck` shows whether some are corrupt"
            );
            tokio::time::sleep(backoff.next_wait()).await;
            round += 1;
        }
    }

    /// The locations of a file, from an earlier read if there was one.
    async fn open_file(&self, meta: &ObjectMeta) -> Result<Arc<LocatedFile>> {
        let path = &meta.location;
        if let Some(file) = self.files.get(path)
            && file.meta.e_tag == meta.e_tag
        {
            return Ok(Arc::clone(&file));
        }
        let file = Arc::new(self.locate(meta, true).await?);
        if self.files.len() >= FILES {
            self.files.clear();
        }
        self.files.insert(path.clone(), Arc::clone(&file));
        Ok(file)
    }

    async fn locate(&self, meta: &ObjectMeta, quick: bool) -> Result<LocatedFile> {
        let locate = |connection: Arc<Connection>| async move { locate(&connection, quick, meta).await };
        self.call(&format!("/{}", meta.location), Repeat::Always, locate).await
    }

    /// One read, and others that overtake it if nothing comes or if it is far too slow. The first that succeeds counts.
    async fn hedged(self: &Arc<Self>, file: &Arc<LocatedFile>, range: &Range<u64>) -> hdfs_native::Result<Bytes> {
        let since = Instant::now();
        let (len, silence) = (range.end - range.start, self.pace.silence());
        let came = Arc::new(AtomicU64::new(0));
        let (mut seen, mut next) = (0, since + silence);
        let attempt = {
            let (connection, shared) = (self.connection(), Arc::clone(&self.shared));
            let (file, range, came) = (Arc::clone(file), range.clone(), Arc::clone(&came));
            async move { read(&shared.buffers, &connection, &file, range, &came).await }
        };
        let mut first = AbortOnDropHandle::new(tokio::spawn(attempt));
        let mut overtakers = FuturesUnordered::new();
        let mut failed = None;
        let read = loop {
            tokio::select! {
                done = &mut first, if failed.is_none() => match joined(done) {
                    Ok(read) => break read,
                    Err(error) if overtakers.is_empty() => return Err(error),
                    Err(error) => failed = Some(error),
                },
                Some(done) = overtakers.next() => match (joined(done), failed.take()) {
                    (Ok(read), None) => {
                        // The slow read goes on for a moment, to learn which DataNode is silent: later reads of the file avoid it.
                        drop(first.detach());
                        break read;
                    }
                    (Ok(read), Some(_)) => break read,
                    (Err(_), None) => {}
                    (Err(_), Some(error)) if overtakers.is_empty() => return Err(error),
                    (Err(_), error) => failed = error,
                },
                () = tokio::time::sleep_until(next), if overtakers.len() < OVERTAKERS => {
                    next = Instant::now() + silence;
                    let silent = came.load(Ordering::Relaxed) == seen;
                    seen = came.load(Ordering::Relaxed);
                    let slow = overtakers.is_empty() && since.elapsed() > self.pace.slow(len);
                    if let (true, Ok(permit)) = (silent || slow, Arc::clone(&self.shared.overtakes).try_acquire_owned()) {
                        tracing::debug!(file = %file.meta.location, ?range, silent, "overtaking a read");
                        let (connection, shared) = (self.connection(), Arc::clone(&self.shared));
                        let (file, range, came) = (Arc::clone(file), range.clone(), Arc::clone(&came));
                        overtakers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                            let _permit = permit;
                            // The NameNode gives the replicas in another order, as a rule.
                            let file = locate(&connection, true, &file.meta).await.map_err(into_hdfs)?;
                            read(&shared.buffers, &connection, &file, range, &came).await
                        })));
                    }
                }
            }
        };
        self.pace.record(len, read.took, read.silence);
        Ok(read.bytes)
    }
}

/// The result of one attempt.
struct Read {
    bytes: Bytes,
    took: Duration,
    /// The longest time in which nothing came.
    silence: Duration,
}

/// One attempt. Counts the bytes that come.
async fn read(
    buffers: &Buffers,
    connection: &Connection,
    file: &LocatedFile,
    range: Range<u64>,
    came: &AtomicU64,
) -> hdfs_native::Result<Read> {
    let since = Instant::now();
    let len = (range.end - range.start) as usize;
    let mut filling = Filling { buffer: buffers.take(len), len, at: 0, last: since, silence: Duration::ZERO, came };
    let mut reader = Arc::clone(&file.reader);
    loop {
        let before = filling.at;
        match filling.read_on(&reader, range.start as usize).await {
            Ok(()) => break,
            // The next block may have a good replica on a DataNode that failed in this one.
            Err(_) if filling.at > before => {
                reader = locate(connection, file.quick, &file.meta).await.map_err(into_hdfs)?.reader;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Read { bytes: filling.buffer.freeze(), took: since.elapsed(), silence: filling.silence })
}

/// The bytes of an attempt that came so far.
struct Filling<'a> {
    buffer: Buffer,
    len: usize,
    at: usize,
    /// When bytes came last.
    last: Instant,
    silence: Duration,
    came: &'a AtomicU64,
}

impl Filling<'_> {
    /// Reads what has not come yet of a range that begins at `start`.
    async fn read_on(&mut self, reader: &FileReader, start: usize) -> hdfs_native::Result<()> {
        let mut packets = pin!(reader.read_range_stream(start + self.at, self.len - self.at));
        while let Some(packet) = packets.try_next().await? {
            let room = self.buffer.as_mut().get_mut(self.at..self.at + packet.len());
            room.ok_or_else(|| HdfsError::DataTransferError("more bytes came than asked for".into()))?
                .copy_from_slice(&packet);
            self.at += packet.len();
            self.came.fetch_add(packet.len() as u64, Ordering::Relaxed);
            let now = Instant::now();
            self.silence = self.silence.max(now - self.last);
            self.last = now;
        }
        match self.at {
            at if at < self.len => {
                Err(HdfsError::DataTransferError(format!("{at} bytes came where {} were asked for", self.len)))
            }
            _ => Ok(()),
        }
    }
}

fn joined<T>(done: std::result::Result<hdfs_native::Result<T>, tokio::task::JoinError>) -> hdfs_native::Result<T> {
    done.unwrap_or_else(|e| Err(HdfsError::InternalError(format!("reading ended early: {e}"))))
}

/// Asks for the locations of all blocks, then whether the file is still the one that was listed.
///
/// # Errors
///
/// `Precondition` if the file is another one now.
async fn locate(connection: &Connection, quick: bool, meta: &ObjectMeta) -> Result<LocatedFile> {
    let client = if quick { &connection.quick } else { &connection.client };
    let reader = client.read(&format!("/{}", meta.location)).await.map_err(from_hdfs)?;
    let now = connection.head(&meta.location).await?;
    // The NameNode counts the last block of a file that is being written in its length, but not among the readable blocks.
    if now.e_tag == meta.e_tag && (reader.file_length() as u64) < meta.size {
        let text = format!(
            "`/{}` is still being written, {} of its {} bytes can be read: wait until its writer has closed it; if the writer has died, \
             `hdfs debug recoverLease -path /{}` closes it",
            meta.location,
            reader.file_length(),
            meta.size,
            meta.location
        );
        let explained = Explained { text, users: true, kind: FaultKind::Other, waited: false, source: None };
        return Err(Error::Generic { store: "hdfs", source: Box::new(explained) });
    }
    if now.e_tag != meta.e_tag || reader.file_length() as u64 != meta.size {
        return Err(Error::Precondition {
            path: meta.location.to_string(),
            source: format!(
                "it had {} bytes and was written {}, now it has {} bytes and was written {}",
                meta.size, meta.last_modified, now.size, now.last_modified
            )
            .into(),
        });
    }
    Ok(LocatedFile { meta: meta.clone(), quick, reader: Arc::new(reader) })
}
