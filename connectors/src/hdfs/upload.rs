//! A file that is being written; until it is complete, it has a hidden name. If it is never complete, it is deleted.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::cluster::Cluster;
use super::connection::Connection;
use super::errors::from_hdfs;
use super::growing_file::GrowingFile;
use super::retry::Repeat;
use super::silence::ANSWER_WITHIN;

/// A part, and where its result goes.
type PartAndReply = (PutPayload, oneshot::Sender<Result<()>>);

#[derive(Debug)]
pub(super) struct Upload {
    place: String,
    /// Whether the file replaces one of its name. If not, an existing file is an error at the end, [`Error::AlreadyExists`].
    replace: bool,
    /// Where parts go, and the task that writes them and returns their bytes. `None` once it has ended.
    running: Option<(mpsc::UnboundedSender<PartAndReply>, AbortOnDropHandle<Result<u64>>)>,
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
        // A user who may not make the file may not delete it either.
        let created = GrowingFile::create(cluster, &place, &at).await;
        let mut file = created.inspect_err(|_| hidden.gone = true)?;
        let (parts, mut received) = mpsc::unbounded_channel::<PartAndReply>();
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
            Ok(file.bytes())
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
