//! A file that is being written; until it is complete, it has a hidden name. If it is never complete, it is deleted.
//!
//! hdfs-native gives a file up when a call to the NameNode fails. Here, the file is then closed (the NameNode recovers its lease, and the
//! DataNodes agree on its last block), and a new writer appends the missing bytes. DataNodes have acknowledged whole blocks before the next
//! call to the NameNode, so only bytes of the part in hand can be missing, and no others are kept in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_base::Backoff;
use futures::FutureExt;
use hdfs_native::file::FileWriter;
use hdfs_native::{HdfsError, WriteOptions};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::cluster::Cluster;
use super::connection::Connection;
use super::errors::from_hdfs;
use super::explain::short;
use super::retry::{Repeat, lacks_ticket, may_pass};
use super::silence::{ANSWER_WITHIN, Heard, warn_while_silent};

/// The pause between questions whether a file is closed.
const CLOSED_EVERY: Duration = Duration::from_secs(1);

/// Bytes that are handed over at once. Each such piece that the DataNodes take shows that they are not silent.
const PIECE: usize = 256 << 10;

/// A part, and where its result goes.
type Part = (PutPayload, oneshot::Sender<Result<()>>);

#[derive(Debug)]
pub(super) struct Upload {
    place: String,
    /// Whether the file replaces one of its name. If not, an existing file is an error at the end, [`Error::AlreadyExists`].
    replace: bool,
    /// Where parts go, and the task that writes them and returns their bytes. `None` once it has ended.
    running: Option<(mpsc::UnboundedSender<Part>, AbortOnDropHandle<Result<u64>>)>,
    /// Below `running`, so that a drop ends the task first.
    hidden: HiddenFile,
}

impl Upload {
    /// Makes the file under its hidden name, `.NAME.tmp.N`. To be called on the IO runtime.
    pub(super) async fn begin(cluster: Arc<Cluster>, path: &Path, replace: bool) -> Result<Self> {
        let (place, name) = (format!("/{path}"), path.filename().unwrap_or_default());
        let folder = place.strip_suffix(name).unwrap_or("/");
        let at = format!("{folder}.{name}.tmp.{}", forebay_base::random_seed());
        let mut hidden = HiddenFile { cluster: Arc::clone(&cluster), path: at.clone(), gone: false };
        let create = |connection: Arc<Connection>| {
            let at = at.clone();
            async move {
                // An earlier call may have made the file, if its answer was lost.
                let options = WriteOptions::default().overwrite(true);
                connection.client.create(&at, options).await.map_err(from_hdfs)
            }
        };
        let created = cluster.call(&place, Repeat::UntilAnswered, create).await;
        // A user who may not make the file may not delete it either.
        let writer = created.inspect_err(|_| hidden.gone = true)?;
        let mut file = GrowingFile { cluster, place: place.clone(), hidden: at, writer: Some(writer), bytes: 0 };
        let (parts, mut received) = mpsc::unbounded_channel::<Part>();
        let task = tokio::spawn(async move {
            while let Some((part, done)) = received.recv().await {
                let written = file.advance(Some(Bytes::from(part))).await;
                let failed = written.is_err();
                // The caller that put the part may have stopped waiting.
                let _ = done.send(written);
                if failed {
                    return Err(ended());
                }
            }
            file.advance(None).await?;
            Ok(file.bytes)
        });
        Ok(Self { place, replace, running: Some((parts, AbortOnDropHandle::new(task))), hidden })
    }

    /// Waits until the file has all its bytes, and gives it its name.
    async fn finish(&mut self) -> Result<()> {
        let (parts, task) = self.running.take().ok_or_else(ended)?;
        drop(parts);
        let bytes = task.await??;
        let (cluster, hidden) = (Arc::clone(&self.hidden.cluster), self.hidden.path.clone());
        let (io, place, replace) = (cluster.shared.io.clone(), self.place.clone(), self.replace);
        io.run(async move { rename(&cluster, &hidden, &place, replace, bytes).await }).await??;
        self.hidden.gone = true;
        Ok(())
    }
}

/// The file under its hidden name. If the file is not gone at the drop, because a future was cancelled or a call failed, a task deletes the
/// file. A process that ends before the task leaves it.
#[derive(Debug)]
struct HiddenFile {
    cluster: Arc<Cluster>,
    path: String,
    /// The file has got its name, or was deleted.
    gone: bool,
}

impl HiddenFile {
    /// Asks once to delete the file. Without an answer this is an error: then a drop asks again.
    async fn delete(&mut self) -> Result<()> {
        let (cluster, path) = (Arc::clone(&self.cluster), self.path.clone());
        let io = cluster.shared.io.clone();
        let delete = async move {
            let connection = cluster.connection();
            tokio::time::timeout(ANSWER_WITHIN, connection.client.delete(&path, false)).await
        };
        let silent = |_| Error::Generic { store: "hdfs", source: "no answer to the deletion of a hidden file".into() };
        let deleted = io.run(delete).await?.map_err(silent)?;
        deleted.map_err(|e| self.cluster.explain(&self.path, from_hdfs(e), false))?;
        self.gone = true;
        Ok(())
    }
}

impl Drop for HiddenFile {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let (cluster, path) = (Arc::clone(&self.cluster), std::mem::take(&mut self.path));
        self.cluster.shared.io.spawn(async move {
            let delete = |connection: Arc<Connection>| {
                let path = path.clone();
                async move { connection.client.delete(&path, false).await.map_err(from_hdfs) }
            };
            if let Err(e) = cluster.call(&path, Repeat::Always, delete).await {
                tracing::warn!(path = %path, error = %e, "a hidden file that was not finished stays behind");
            }
        });
    }
}

fn ended() -> Error {
    Error::Generic { store: "hdfs", source: "a part of the file could not be written, or it has been ended".into() }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (done, written) = oneshot::channel();
        if let Some((parts, _)) = &self.running {
            // A task that has ended drops `done`.
            let _ = parts.send((data, done));
        }
        async move { written.await.unwrap_or_else(|_| Err(ended())) }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let finished = self.finish().await;
        if finished.is_err()
            && let Err(e) = self.hidden.delete().await
        {
            tracing::debug!(path = %self.hidden.path, error = %e, "cannot delete a hidden file at once");
        }
        finished.map(|()| PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        let (_parts, task) = self.running.take().ok_or_else(ended)?;
        task.abort();
        // The end of the task drops the writer.
        let _ = task.await;
        self.hidden.delete().await
    }
}

/// Gives a file of this many bytes its name.
async fn rename(cluster: &Cluster, hidden: &str, place: &str, replace: bool, bytes: u64) -> Result<()> {
    let rename = |connection: Arc<Connection>| {
        let (hidden, place) = (hidden.to_owned(), place.to_owned());
        async move {
            let renamed = connection.client.rename(&hidden, &place, replace).await.map_err(from_hdfs);
            if !matches!(renamed, Err(Error::NotFound { .. })) {
                return renamed;
            }
            // An earlier call may have renamed the file, if its answer was lost.
            let there = connection.client.get_file_info(&place).await.map_err(from_hdfs)?;
            if there.length as u64 == bytes { Ok(()) } else { renamed }
        }
    };
    cluster.call(place, Repeat::UntilAnswered, rename).await
}

/// The file under its hidden name.
struct GrowingFile {
    cluster: Arc<Cluster>,
    place: String,
    hidden: String,
    /// `None`: the file is closed.
    writer: Option<FileWriter>,
    /// Bytes of the parts that were written.
    bytes: u64,
}

impl GrowingFile {
    /// Writes the next part, or closes the file. Waits for a NameNode that is away.
    async fn advance(&mut self, part: Option<Bytes>) -> Result<()> {
        let (cluster, place, since) = (Arc::clone(&self.cluster), self.place.clone(), Instant::now());
        let mut backoff = Backoff::equal_jitter(Duration::from_millis(100), Duration::from_secs(5));
        let len = part.as_ref().map_or(0, |part| part.len() as u64);
        let mut missing = part.clone();
        loop {
            let heard = Heard::default();
            let step = self.step(missing, &heard);
            let Err(error) = warn_while_silent(cluster.root(), &place, &heard, step).await else {
                self.bytes += len;
                return Ok(());
            };
            let wait = backoff.next_wait();
            let goes_on = may_go_on(&error);
            if !goes_on || since.elapsed() + wait > cluster.timeout() {
                return Err(cluster.explain(&place, from_hdfs(error), goes_on));
            }
            let waited = since.elapsed();
            tracing::warn!(store = cluster.root(), path = %place, ?waited, error = %short(&error), "a write was broken off, going on with it");
            sleep(wait).await;
            let there = close(&cluster, &place, &self.hidden, since).await?;
            missing = match there.checked_sub(self.bytes) {
                Some(n) if n <= len => part.as_ref().map(|part| part.slice(n as usize..)),
                // Bytes of earlier parts are lost.
                _ => return Err(cluster.explain(&place, from_hdfs(error), false)),
            };
        }
    }

    /// Writes bytes, or closes the file. After an error the file may have some of the bytes, and has no writer.
    async fn step(&mut self, bytes: Option<Bytes>, heard: &Heard) -> hdfs_native::Result<()> {
        match (bytes, self.writer.take()) {
            (None, None) => Ok(()),
            (None, Some(mut writer)) => writer.close().await,
            (Some(bytes), writer) if bytes.is_empty() => {
                self.writer = writer;
                Ok(())
            }
            (Some(mut bytes), writer) => {
                let mut writer = match writer {
                    Some(writer) => writer,
                    None => self.cluster.connection().client.append(&self.hidden).await?,
                };
                while !bytes.is_empty() {
                    writer.write_bytes(bytes.split_to(bytes.len().min(PIECE))).await?;
                    heard.add();
                }
                self.writer = Some(writer);
                Ok(())
            }
        }
    }
}

/// Closes a file whose writer is gone, and returns its length.
async fn close(cluster: &Cluster, place: &str, hidden: &str, since: Instant) -> Result<u64> {
    let recover = |connection: Arc<Connection>| {
        let hidden = hidden.to_owned();
        async move {
            match connection.client.recover_lease(&hidden).await {
                // The last block is complete as soon as a DataNode has reported it.
                Err(HdfsError::AlreadyExists(_)) => Ok(false),
                closed => closed.map_err(from_hdfs),
            }
        }
    };
    while !cluster.call(place, Repeat::UntilAnswered, recover).await? {
        if since.elapsed() > cluster.timeout() {
            let late =
                HdfsError::OperationFailed("the file, whose writing was broken off, is not closed in time".into());
            return Err(cluster.explain(place, from_hdfs(late), true));
        }
        sleep(CLOSED_EVERY).await;
    }
    let length = |connection: Arc<Connection>| {
        let hidden = hidden.to_owned();
        async move {
            let found = connection.client.get_file_info(&hidden).await;
            found.map(|file| file.length as u64).map_err(from_hdfs)
        }
    };
    cluster.call(place, Repeat::Always, length).await
}

/// Whether the write can go on later: the NameNode is away, or waits for reports of its DataNodes (just after its start, or because they
/// are slow), or the Kerberos ticket of the file has expired.
fn may_go_on(error: &HdfsError) -> bool {
    let said = match error {
        HdfsError::RPCError(_, said) | HdfsError::FatalRPCError(_, said) | HdfsError::OperationFailed(said) => {
            said.as_str()
        }
        _ => "",
    };
    let waits = [
        "is not sufficiently replicated yet",
        "Not replicated yet",
        "There are 0 datanode(s) running",
        "complete file in time",
    ];
    may_pass(error, Repeat::UntilAnswered) || lacks_ticket(error) || waits.iter().any(|text| said.contains(text))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_write_goes_on_if_the_namenode_was_away_and_not_if_it_refused() {
        let rpc = |name: &str, said: &str| HdfsError::RPCError(format!("org.apache.hadoop.{name}"), said.into());
        for error in [
            HdfsError::IOError(ErrorKind::ConnectionAborted.into()),
            rpc("hdfs.server.namenode.SafeModeException", "Cannot complete file /a"),
            rpc("io.IOException", "append: lastBlock=blk_1 of src=/a is not sufficiently replicated yet."),
            rpc("hdfs.server.namenode.NotReplicatedYetException", "Not replicated yet: /a"),
            HdfsError::OperationFailed("Failed to complete file in time".into()),
            HdfsError::NoSASLMechanism,
        ] {
            assert!(may_go_on(&error), "{error}");
        }
        for error in [
            rpc("hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /q is exceeded"),
            rpc("security.AccessControlException", "Permission denied"),
            HdfsError::DataTransferError("all DataNodes failed".into()),
        ] {
            assert!(!may_go_on(&error), "{error}");
        }
    }
}
