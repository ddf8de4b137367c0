//! A cluster as an `ObjectStore`.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::Fault;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use super::cluster::{Cluster, Shared};
use super::connection::Connection;
use super::retry::Repeat;
use super::upload::Upload;

/// A longer range is read as several of this size, four at a time.
const PIECE: u64 = 16 << 20;

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
            async move { connection.store.head(&wanted).await }
        })
        .await
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
            (false, Some(range)) => range
                .as_range(meta.size)
                .map_err(|e| object_store::Error::Generic { store: "hdfs", source: Box::new(e) })?,
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
        let (store, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let all = async move {
            let below = prefix.clone();
            let list = move |connection: Arc<Connection>| {
                let files = connection.store.list(Some(&below));
                async move { files.try_collect::<Vec<_>>().await }
            };
            store.call(&prefix, Repeat::Always, list).await
        };
        futures::stream::once(all).map_ok(|all| futures::stream::iter(all.into_iter().map(Ok))).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let below = prefix.clone();
        let list = move |connection: Arc<Connection>| {
            let below = below.clone();
            async move { connection.store.list_with_delimiter(Some(&below)).await }
        };
        self.call(&prefix, Repeat::Always, list).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let path = location.clone();
        let put = move |connection: Arc<Connection>| {
            let (path, payload, opts) = (path.clone(), payload.clone(), opts.clone());
            async move { connection.store.put_opts(&path, payload, opts).await }
        };
        self.call(location, Repeat::IfUntouched, put).await
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (cluster, path) = (Arc::clone(&self.0), location.clone());
        let io = cluster.shared.io.clone();
        let upload = io.run(async move { Upload::begin(cluster, &path).await }).await??;
        Ok(Box::new(upload))
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
        let (path, to) = (from.clone(), to.clone());
        let rename = move |connection: Arc<Connection>| {
            let (path, to, options) = (path.clone(), to.clone(), options.clone());
            async move { connection.store.rename_opts(&path, &to, options).await }
        };
        self.call(from, Repeat::IfUntouched, rename).await
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
