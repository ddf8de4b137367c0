//! A cluster as an `ObjectStore`.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use forebay_actors::Fault;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use super::cluster::{Cluster, Shared};
use super::connection::Connection;
use super::errors::from_hdfs;
use super::retry::Repeat;
use super::silence::Heard;
use super::upload::Upload;

/// A longer range is read as several of this size, four at a time.
const PIECE: u64 = 16 << 20;

/// Folders that are listed at once.
const FOLDERS: usize = 16;

/// A name service or a NameNode. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HdfsStore(Arc<Cluster>);

impl HdfsStore {
    /// The store of a URL's root. Reads the cluster's settings and connects to nothing yet.
    pub(crate) fn open(root: &str, shared: Arc<Shared>) -> std::result::Result<Self, Fault> {
        Ok(Self(Arc::new(Cluster::new(root, shared)?)))
    }

    /// Calls the NameNode on the IO runtime; dropping the future stops it.
    async fn call<T, F>(
        &self,
        path: &Path,
        repeat: Repeat,
        call: impl Fn(Arc<Connection>) -> F + Send + Sync + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (cluster, path) = (Arc::clone(&self.0), format!("/{path}"));
        let io = cluster.shared.io.clone();
        io.run(async move { cluster.call(&path, repeat, call).await }).await?
    }

    async fn head(&self, path: &Path) -> Result<ObjectMeta> {
        let wanted = path.clone();
        self.call(path, Repeat::Always, move |connection| {
            let wanted = wanted.clone();
            async move { connection.head(&wanted).await }
        })
        .await
    }

    /// Removes a folder. Returns false if it is not there.
    ///
    /// # Errors
    /// The folder is not empty, or may not be removed.
    pub(crate) async fn remove_empty_folder(&self, folder: &Path) -> Result<bool> {
        let own = format!("/{folder}");
        self.call(folder, Repeat::Always, move |connection| {
            let own = own.clone();
            async move { connection.client.delete(&own, false).await.map_err(from_hdfs) }
        })
        .await
    }

    async fn begin(&self, path: &Path, replace: bool) -> Result<Upload> {
        let (cluster, path) = (Arc::clone(&self.0), path.clone());
        let io = cluster.shared.io.clone();
        // Not `run`: a creation that is cancelled may be done after the hidden file was deleted.
        io.spawn(async move { Upload::begin(cluster, &path, replace).await }).await?
    }

    /// The entries directly in a folder; none if the folder is missing.
    async fn list_folder(&self, folder: Path) -> Result<ListResult> {
        let cluster = Arc::clone(&self.0);
        let io = cluster.shared.io.clone();
        let listed = async move {
            let (name, heard) = (format!("/{folder}"), Arc::new(Heard::default()));
            let list = |connection: Arc<Connection>| {
                let (folder, heard) = (folder.clone(), Arc::clone(&heard));
                async move { connection.list(&folder, &heard).await }
            };
            cluster.call_with_answers(&name, Repeat::Always, &heard, list).await
        };
        io.run(listed).await?
    }
}

impl fmt::Display for HdfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.root())
    }
}

impl fmt::Debug for HdfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HdfsStore({})", self.0.root())
    }
}

#[async_trait]
impl ObjectStore for HdfsStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let known = options.if_match.as_deref().and_then(|e_tag| self.0.known(location, e_tag));
        let meta = match known {
            Some(meta) => meta,
            None => self.head(location).await?,
        };
        options.check_preconditions(&meta)?;
        let range = match (options.head, &options.range) {
            (true, _) => 0..0,
            (false, None) => 0..meta.size,
            (false, Some(range)) => {
                range.as_range(meta.size).map_err(|e| Error::Generic { store: "hdfs", source: Box::new(e) })?
            }
        };
        let (cluster, file) = (Arc::clone(&self.0), meta.clone());
        let pieces = futures::stream::iter(pieces(range.clone()))
            .map(move |piece| {
                let (cluster, file, io) = (Arc::clone(&cluster), file.clone(), cluster.shared.io.clone());
                async move { io.run(async move { cluster.read(&file, piece).await }).await? }
            })
            .buffered(4);
        Ok(GetResult {
            payload: GetResultPayload::Stream(pieces.boxed()),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, level) = (self.clone(), vec![prefix.cloned().unwrap_or_default()]);
        // Level by level: after an outage of the NameNode only the folders under way are listed again.
        let levels = futures::stream::try_unfold(level, move |level| {
            let store = store.clone();
            async move {
                if level.is_empty() {
                    return Ok::<_, Error>(None);
                }
                let lists = futures::stream::iter(level)
                    .map(|folder| {
                        let store = store.clone();
                        async move { store.list_folder(folder).await }
                    })
                    .buffer_unordered(FOLDERS)
                    .try_collect::<Vec<_>>()
                    .await?;
                let (mut files, mut below) = (Vec::<Result<ObjectMeta>>::new(), Vec::new());
                for list in lists {
                    files.extend(list.objects.into_iter().map(Ok));
                    below.extend(list.common_prefixes);
                }
                Ok(Some((futures::stream::iter(files), below)))
            }
        });
        levels.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_folder(prefix.cloned().unwrap_or_default()).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let replace = match opts.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => {
                return Err(Error::NotImplemented {
                    operation: "a conditional put".into(),
                    implementer: self.to_string(),
                });
            }
        };
        let mut upload = self.begin(location, replace).await?;
        let put = upload.put_part(payload).await;
        // If the bytes cannot be written, this deletes the file.
        let completed = upload.complete().await;
        put.and(completed)
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(self.begin(location, true).await?))
    }

    /// Deletes files, and folders with all below them.
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .and_then(move |location| {
                let (store, path) = (store.clone(), location.clone());
                async move {
                    let delete = move |connection: Arc<Connection>| {
                        let path = path.clone();
                        async move { connection.delete(&path).await }
                    };
                    store.call(&location, Repeat::Always, delete).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (path, to) = (from.clone(), to.clone());
        let copy = move |connection: Arc<Connection>| {
            let (path, to, options) = (path.clone(), to.clone(), options.clone());
            async move { connection.store.copy_opts(&path, &to, options).await }
        };
        self.call(from, Repeat::IfUntouched, copy).await
    }

    /// Renames a file, or a folder with all below it, in one step of the NameNode.
    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (path, to, asked) = (from.clone(), to.clone(), AtomicBool::new(false));
        let rename = move |connection: Arc<Connection>| {
            let (path, to, options) = (path.clone(), to.clone(), options.clone());
            let asked_before = asked.swap(true, Ordering::Relaxed);
            async move {
                let renamed = connection.store.rename_opts(&path, &to, options).await;
                // An earlier call may have renamed the file, if its answer was lost.
                match renamed.is_err() && asked_before && connection.has_moved(&path, &to).await? {
                    true => Ok(()),
                    false => renamed,
                }
            }
        };
        self.call(from, Repeat::UntilAnswered, rename).await
    }
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send {
    let end = range.end;
    range.step_by(PIECE as usize).map(move |start| start..(start + PIECE).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_range() {
        for range in [0..0, 5..6, 7..PIECE + 7, 1..3 * PIECE] {
            let pieces: Vec<_> = pieces(range.clone()).collect();
            assert!(pieces.iter().all(|p| !p.is_empty() && p.end - p.start <= PIECE));
            assert!(pieces.windows(2).all(|p| p[0].end == p[1].start));
            assert_eq!(pieces.iter().map(|p| p.end - p.start).sum::<u64>(), range.end - range.start);
        }
    }
}
