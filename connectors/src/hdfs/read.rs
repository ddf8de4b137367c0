//! Ranges of a file: read around DataNodes that are lost, ahead of those that stall, and from one version of the file.
//!
//! Comes in: a file as it was listed, and a range. Goes out: its bytes, checked against HDFS's own checksums. Awaits.
//!
//! hdfs-native goes to the next replica when a DataNode refuses, breaks off or sends a wrong checksum. On top of that:
//!
//! - The block locations of a file are asked for once (with all its blocks), not once a range.
//! - When all replicas of a block failed, the locations are asked for anew, after growing pauses: replicas move.
//! - A DataNode that sends nothing for two seconds is left, and not asked again for that file.
//! - A read that takes much longer than reads of its size did is overtaken by others: the first to succeed counts (hedged
//!   requests; Dean and Barroso, The Tail at Scale, 2013).
//! - The version of the file is compared whenever its locations are asked for: rows of two versions are never mixed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hdfs_native::file::FileReader;
use hdfs_native::{Client, HdfsError};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, Result};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::connect::{Cluster, Link};
use super::patience::{Pauses, Repeat, from_hdfs};
use super::trouble;

/// How often the locations of a block are asked for before a read of it is given up: about 15 s in all.
const ROUNDS: u32 = 6;

/// Rounds that leave a DataNode that sends nothing for two seconds; later ones wait as long as the cluster's settings say.
const IMPATIENT: u32 = 3;

/// Most reads that overtake one read.
const OVERTAKERS: u32 = 5;

/// Block locations that are kept.
const FILES: usize = 4096;

/// Reads under way in the process: each holds a connection to a DataNode, and overtaking needs some to spare.
static READS: Semaphore = Semaphore::const_new(96);

/// A file and where its blocks lie.
pub(super) struct OpenFile {
    meta: ObjectMeta,
    reader: Arc<FileReader>,
}

impl Cluster {
    /// The version that is being read, if it is the one asked for.
    pub(super) fn known(&self, path: &Path, e_tag: &str) -> Option<ObjectMeta> {
        let file = self.files.get(path)?;
        (file.meta.e_tag.as_deref() == Some(e_tag)).then(|| file.meta.clone())
    }

    /// Reads a range of the version of a file that `meta` names. The range lies within the file.
    pub(super) async fn read(self: &Arc<Self>, meta: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let _permit = READS.acquire().await.expect("nobody closes the semaphore");
        let mut pauses = Pauses::new(Duration::from_millis(500), Duration::from_secs(8));
        let mut tried = BTreeSet::new();
        let mut round = 1;
        loop {
            let file = self.open_file(meta, round <= IMPATIENT).await?;
            let error = match self.hedged(&file, &range).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            self.files.remove(&meta.location);
            tried.extend(trouble::nodes(&error));
            if round == ROUNDS {
                return Err(trouble::lost(self.root(), meta, &range, &tried, error));
            }
            tracing::warn!(file = %meta.location, ?range, round, error = %trouble::short(&error), "a read failed, asking for the replicas anew");
            tokio::time::sleep(pauses.next()).await;
            round += 1;
        }
    }

    async fn open_file(&self, meta: &ObjectMeta, impatient: bool) -> Result<Arc<OpenFile>> {
        let path = &meta.location;
        if let Some(file) = self.files.get(path)
            && file.meta.e_tag == meta.e_tag
        {
            return Ok(Arc::clone(&file));
        }
        let name = format!("/{path}");
        let locate = |link: Arc<Link>| {
            let meta = meta.clone();
            async move { locate(if impatient { &link.impatient } else { &link.client }, &link, &meta).await }
        };
        let reader = self.call(&name, Repeat::Always, locate).await?;
        let file = Arc::new(OpenFile { meta: meta.clone(), reader: Arc::new(reader) });
        if self.files.len() >= FILES {
            self.files.clear();
        }
        self.files.insert(path.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// One read, and others that overtake it if it takes too long: the first that succeeds counts.
    async fn hedged(self: &Arc<Self>, file: &Arc<OpenFile>, range: &Range<u64>) -> hdfs_native::Result<Bytes> {
        let len = range.end - range.start;
        let patience = self.pace.patience(len);
        let mut next = Instant::now() + patience;
        let reader = Arc::clone(&file.reader);
        let mut first = AbortOnDropHandle::new(tokio::spawn(read(reader, range.clone())));
        let mut overtakers = FuturesUnordered::new();
        let mut started = 0;
        let mut failed = None;
        let (bytes, took) = loop {
            tokio::select! {
                done = &mut first, if failed.is_none() => match joined(done) {
                    Ok(done) => break done,
                    Err(error) if overtakers.is_empty() => return Err(error),
                    Err(error) => failed = Some(error),
                },
                Some(done) = overtakers.next() => match (joined(done), failed.take()) {
                    (Ok(done), None) => {
                        // The slow one goes on for a moment, to learn which DataNode is silent: all reads of the file
                        // will pass it by.
                        drop(first.detach());
                        break done;
                    }
                    (Ok(done), Some(_)) => break done,
                    (Err(_), None) => {}
                    (Err(_), Some(error)) if overtakers.is_empty() => return Err(error),
                    (Err(_), error) => failed = error,
                },
                () = tokio::time::sleep_until(next), if started < OVERTAKERS => {
                    tracing::debug!(file = %file.meta.location, ?range, ?patience, "a read is slow, overtaking it");
                    let (link, file, range) = (self.link(), Arc::clone(file), range.clone());
                    overtakers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                        // The NameNode gives the replicas in another order, as a rule.
                        let reader = locate(&link.impatient, &link, &file.meta).await.map_err(into_hdfs)?;
                        read(Arc::new(reader), range).await
                    })));
                    started += 1;
                    next += patience;
                }
            }
        };
        self.pace.took(len, took);
        Ok(bytes)
    }
}

/// One attempt, and how long it took.
async fn read(reader: Arc<FileReader>, range: Range<u64>) -> hdfs_native::Result<(Bytes, Duration)> {
    let since = Instant::now();
    let bytes = reader.read_range(range.start as usize, (range.end - range.start) as usize).await?;
    Ok((bytes, since.elapsed()))
}

fn joined<T>(done: std::result::Result<hdfs_native::Result<T>, tokio::task::JoinError>) -> hdfs_native::Result<T> {
    done.unwrap_or_else(|e| Err(HdfsError::InternalError(format!("reading ended early: {e}"))))
}

/// Asks for the locations of all blocks, then whether the file is still the one that was listed.
async fn locate(client: &Client, link: &Link, meta: &ObjectMeta) -> Result<FileReader> {
    let reader = client.read(&format!("/{}", meta.location)).await.map_err(from_hdfs)?;
    let now = link.store.head(&meta.location).await?;
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
    Ok(reader)
}

fn into_hdfs(error: Error) -> HdfsError {
    match error {
        Error::Generic { source, .. } => match source.downcast() {
            Ok(error) => *error,
            Err(source) => HdfsError::OperationFailed(source.to_string()),
        },
        error => HdfsError::OperationFailed(error.to_string()),
    }
}

/// How long reads take: an average of seconds a byte, where each read counts one MiB more for its latency.
#[derive(Debug, Default)]
pub(super) struct Pace(AtomicU64);

impl Pace {
    const LATENCY: f64 = 1048576.0;

    /// Records a read.
    fn took(&self, bytes: u64, time: Duration) {
        let now = time.as_secs_f64() / (bytes as f64 + Self::LATENCY);
        let before = f64::from_bits(self.0.load(Ordering::Relaxed));
        // Two readers at once may lose one of their records: an average of many.
        let average = if before == 0.0 { now } else { before + (now - before) / 16.0 };
        self.0.store(average.to_bits(), Ordering::Relaxed);
    }

    /// How long a read may take before it is overtaken: four times the average, within 0.1 and 5 s; 1 s at first.
    fn patience(&self, bytes: u64) -> Duration {
        let average = f64::from_bits(self.0.load(Ordering::Relaxed));
        if average == 0.0 {
            return Duration::from_secs(1);
        }
        Duration::from_secs_f64((4.0 * average * (bytes as f64 + Self::LATENCY)).clamp(0.1, 5.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_pace_within_bounds() {
        let pace = Pace::default();
        assert_eq!(pace.patience(1), Duration::from_secs(1));
        // 1 MiB at 1 MiB/s with the latency's share: 2 s a MiB and a MiB.
        for _ in 0..200 {
            pace.took(1 << 20, Duration::from_millis(200));
        }
        assert_eq!(pace.patience(1 << 20).as_millis(), 800);
        assert_eq!(pace.patience(3 << 20).as_millis(), 1600);
        assert_eq!(pace.patience(1 << 40), Duration::from_secs(5));
        for _ in 0..200 {
            pace.took(1 << 20, Duration::from_micros(200));
        }
        assert_eq!(pace.patience(1 << 20), Duration::from_millis(100));
    }
}
