//! Stores for tests of writing: with folders that are renamed, as in HDFS, and with faults.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use async_trait::async_trait;
use forebay_connectors::staged::Folder;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};

/// What a store has, and how long it works.
#[derive(Debug)]
pub(crate) struct TestStore {
    inner: Arc<dyn ObjectStore>,
    /// Where it lies, if it has folders.
    folders: Option<PathBuf>,
    /// Parts that it takes, uploads that it completes, renames that it does, before one of each fails.
    pub(crate) parts: Arc<AtomicI64>,
    pub(crate) completes: Arc<AtomicI64>,
    pub(crate) renames: AtomicI64,
    /// Renames that it does before the answer to one is lost, which was done.
    pub(crate) heard_renames: AtomicI64,
}

fn fail_after(left: &AtomicI64) -> Result<()> {
    if left.fetch_sub(1, SeqCst) == 0 {
        return Err(Error::Generic { store: "test", source: "the line was cut".into() });
    }
    Ok(())
}

impl TestStore {
    fn new(inner: Arc<dyn ObjectStore>, folders: Option<PathBuf>) -> Arc<Self> {
        let never = || AtomicI64::new(-1);
        let (parts, completes) = (never().into(), never().into());
        Arc::new(Self { inner, folders, parts, completes, renames: never(), heard_renames: never() })
    }

    /// Objects in memory.
    pub(crate) fn memory() -> Arc<Self> {
        Self::new(Arc::new(InMemory::new()), None)
    }

    /// Objects in files below `root`.
    pub(crate) fn files(root: &std::path::Path) -> Arc<Self> {
        Self::new(Arc::new(LocalFileSystem::new_with_prefix(root).unwrap()), None)
    }

    /// Files below `root` in folders that are renamed, and deleted with all below them.
    pub(crate) fn folders(root: &std::path::Path) -> Arc<Self> {
        Self::new(Arc::new(LocalFileSystem::new_with_prefix(root).unwrap()), Some(root.to_owned()))
    }

    pub(crate) fn folder(self: &Arc<Self>, path: &str) -> Folder {
        let store: Arc<dyn ObjectStore> = Arc::clone(self) as _;
        match self.folders {
            Some(_) => Folder::in_renaming_store(store, path.into()),
            None => Folder::in_store(store, path.into()),
        }
    }

    /// All that is there, folders included, sorted.
    pub(crate) async fn all(&self) -> Vec<String> {
        fn walk(at: &std::path::Path, root: &std::path::Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, found);
                }
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
        let mut found = Vec::new();
        match &self.folders {
            Some(root) => walk(root, root, &mut found),
            None => found = self.inner.list(None).map(|meta| meta.unwrap().location.to_string()).collect().await,
        }
        found.sort();
        found
    }
}

impl fmt::Display for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("test")
    }
}

#[derive(Debug)]
struct TestUpload {
    inner: Box<dyn MultipartUpload>,
    parts: Arc<AtomicI64>,
    completes: Arc<AtomicI64>,
}

#[async_trait]
impl MultipartUpload for TestUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match fail_after(&self.parts) {
            Ok(()) => self.inner.put_part(data),
            Err(e) => futures::future::ready(Err(e)).boxed(),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        fail_after(&self.completes)?;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for TestStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        let (parts, completes) = (Arc::clone(&self.parts), Arc::clone(&self.completes));
        Ok(Box::new(TestUpload { inner, parts, completes }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, folders) = (Arc::clone(&self.inner), self.folders.clone());
        let delete = move |location: Result<Path>| {
            let (inner, folders) = (Arc::clone(&inner), folders.clone());
            async move {
                let location = location?;
                match folders.map(|root| root.join(location.as_ref())).filter(|path| path.is_dir()) {
                    Some(folder) => std::fs::remove_dir_all(folder)
                        .map_err(|e| Error::Generic { store: "test", source: Box::new(e) })?,
                    None => object_store::ObjectStoreExt::delete(&*inner, &location).await?,
                }
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, _: RenameOptions) -> Result<()> {
        fail_after(&self.renames)?;
        let root = self.folders.as_ref().expect("only a store with folders is asked to rename");
        std::fs::rename(root.join(from.as_ref()), root.join(to.as_ref()))
            .map_err(|e| Error::Generic { store: "test", source: Box::new(e) })?;
        fail_after(&self.heard_renames)
    }
}
