//! Ranges of a file: read around DataNodes that are lost, ahead of those that stall, and from one version of the file.
//!
//! Comes in: a file as it was listed, and a range. Goes out: its bytes, checked against HDFS's own checksums. Awaits.
//!
//! hdfs-native goes to the next replica when a DataNode refuses, breaks off or sends a wrong checksum. On top of that:
//!
//! - The block locations of a file are asked for once (with all its blocks), not once a range.
//! - When all replicas of a block failed, the locations are asked for anew, after growing pauses: replicas move.
//! - A DataNode that sends nothing for two seconds is left, and not asked again for that file.
//! - A read to which nothing comes for much longer than to others, or that takes much longer, is overtaken by others: the
//!   first to succeed counts (hedged requests; Dean and Barroso, The Tail at Scale, 2013).
//! - The version of the file is compared whenever its locations are asked for: rows of two versions are never mixed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use hdfs_native::file::FileReader;
use hdfs_native::{Client, HdfsError};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, Result};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::buffer::Buffer;
use super::connect::{Cluster, Link};
use super::patience::{Pauses, Repeat, from_hdfs};
use super::trouble;

/// How often the locations of a block are asked for before a read of it is given up: about 15 s in all.
const ROUNDS: u32 = 6;

/// Rounds that leave a DataNode that sends nothing for two seconds; later ones wait as long as the cluster's settings say.
const IMPATIENT: u32 = 3;

/// Most reads at once that overtake one read, and that overtake others in the process: a cluster that is slow all over must
/// not get many times the work.
const OVERTAKERS: usize = 5;
static OVERTAKES: Semaphore = Semaphore::const_new(24);

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

    /// One read, and others that overtake it if nothing comes, or far too slowly: the first that succeeds counts.
    async fn hedged(self: &Arc<Self>, file: &Arc<OpenFile>, range: &Range<u64>) -> hdfs_native::Result<Bytes> {
        let since = Instant::now();
        let (len, silence) = (range.end - range.start, self.pace.silence());
        let came = Arc::new(AtomicU64::new(0));
        let (mut seen, mut next) = (0, since + silence);
        let mut first =
            AbortOnDropHandle::new(tokio::spawn(read(Arc::clone(&file.reader), range.clone(), came.clone())));
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
                        // The slow one goes on for a moment, to learn which DataNode is silent: all reads of the file
                        // will pass it by.
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
                    if let (true, Ok(permit)) = (silent || slow, OVERTAKES.try_acquire()) {
                        tracing::debug!(file = %file.meta.location, ?range, silent, "overtaking a read");
                        let (link, file, range, came) = (self.link(), Arc::clone(file), range.clone(), Arc::clone(&came));
                        overtakers.push(AbortOnDropHandle::new(tokio::spawn(async move {
                            let _permit = permit;
                            // The NameNode gives the replicas in another order, as a rule.
                            let reader = locate(&link.impatient, &link, &file.meta).await.map_err(into_hdfs)?;
                            read(Arc::new(reader), range, came).await
                        })));
                    }
                }
            }
        };
        self.pace.record(len, &read);
        Ok(read.bytes)
    }
}

/// What one attempt brought, and how.
struct Read {
    bytes: Bytes,
    took: Duration,
    /// The longest time in which nothing came.
    silence: Duration,
}

/// One attempt. Counts the bytes that come.
async fn read(reader: Arc<FileReader>, range: Range<u64>, came: Arc<AtomicU64>) -> hdfs_native::Result<Read> {
    let since = Instant::now();
    let (mut last, mut silence) = (since, Duration::ZERO);
    let len = (range.end - range.start) as usize;
    let mut buffer = Buffer::new(len);
    let mut packets = pin!(reader.read_range_stream(range.start as usize, len));
    let mut at = 0;
    while let Some(packet) = packets.try_next().await? {
        let room = buffer.as_mut().get_mut(at..at + packet.len());
        room.ok_or_else(|| HdfsError::DataTransferError("more bytes came than asked for".into()))?
            .copy_from_slice(&packet);
        at += packet.len();
        came.fetch_add(packet.len() as u64, Ordering::Relaxed);
        let now = Instant::now();
        silence = silence.max(now - last);
        last = now;
    }
    if at < len {
        return Err(HdfsError::DataTransferError(format!("{at} bytes came where {len} were asked for")));
    }
    Ok(Read { bytes: buffer.freeze(), took: since.elapsed(), silence })
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

/// How reads go, on average: the longest silence of a read, and seconds a byte, where each read counts one MiB more for
/// its latency.
#[derive(Debug, Default)]
pub(super) struct Pace {
    silence: Average,
    per_byte: Average,
}

/// An average in which old values fade; 0 as long as there is none.
#[derive(Debug, Default)]
struct Average(AtomicU64);

impl Average {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, value: f64) {
        let before = self.get();
        // Two who add at once may lose one value of many.
        let after = if before == 0.0 { value } else { before + (value - before) / 16.0 };
        self.0.store(after.to_bits(), Ordering::Relaxed);
    }
}

impl Pace {
    const LATENCY: f64 = 1048576.0;

    fn record(&self, bytes: u64, read: &Read) {
        self.silence.add(read.silence.as_secs_f64());
        self.per_byte.add(read.took.as_secs_f64() / (bytes as f64 + Self::LATENCY));
    }

    /// A silence that means that a DataNode has stalled: eight times the average, within 0.1 and 5 s; 1 s at first.
    fn silence(&self) -> Duration {
        match self.silence.get() {
            0.0 => Duration::from_secs(1),
            average => Duration::from_secs_f64((8.0 * average).clamp(0.1, 5.0)),
        }
    }

    /// A time that means that a DataNode is ill, though it sends: eight times the average, at least 3 s.
    fn slow(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64((8.0 * self.per_byte.get() * (bytes as f64 + Self::LATENCY)).clamp(3.0, 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_follows_the_pace_within_bounds() {
        let pace = Pace::default();
        assert_eq!(pace.silence(), Duration::from_secs(1));
        let read = |took, silence| Read { bytes: Bytes::new(), took, silence };
        for _ in 0..200 {
            pace.record(1 << 20, &read(Duration::from_millis(200), Duration::from_millis(20)));
        }
        assert_eq!(pace.silence().as_millis(), 160);
        assert_eq!(pace.slow(1 << 20).as_millis(), 3000);
        assert_eq!(pace.slow(7 << 20).as_millis(), 6400);
        for _ in 0..200 {
            pace.record(1 << 20, &read(Duration::from_micros(200), Duration::from_micros(20)));
        }
        assert_eq!((pace.silence(), pace.slow(1)), (Duration::from_millis(100), Duration::from_secs(3)));
    }
}
