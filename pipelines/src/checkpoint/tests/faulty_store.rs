//! An object store in memory, as S3: at one of its calls something fails. A call is a put, a step of an upload (it begins, a part, it is
//! completed or given up), a get, a list or a delete.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFailure {
    /// It fails and has no effect; later ones do not fail.
    Error,
    /// The same, because another process has removed the file that was being written: HDFS has it under a hidden name.
    Gone,
    /// It has its effect, but its answer is lost.
    Unheard,
    /// It fails, and has its effect this many calls later: the store was only slow.
    Late(usize),
    /// It and all later ones fail without an effect: the process has died.
    Death,
    /// The same, but the call itself has its effect.
    DeathAfter,
}

/// A store whose `at`-th call fails, counted from 0. Clones share the objects.
#[derive(Clone, Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<InMemory>,
    calls: Arc<Mutex<Calls>>,
}

struct Calls {
    at: usize,
    failure: StoreFailure,
    passed: Vec<String>,
    /// An effect that comes late: before this call.
    late: Option<(usize, BoxFuture<'static, ()>)>,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at call {} of {}", self.failure, self.at, self.passed.len())
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory that fails")
    }
}

impl FaultyStore {
    pub(crate) fn new(at: usize, failure: StoreFailure) -> Self {
        let calls = Calls { at, failure, passed: Vec::new(), late: None };
        Self { inner: Arc::default(), calls: Arc::new(Mutex::new(calls)) }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls so far.
    pub(crate) fn passed(&self) -> Vec<String> {
        self.calls().passed.clone()
    }

    /// The call of this number fails.
    pub(crate) fn fails_at(&self, at: usize) {
        self.calls().at = at;
    }

    /// Calls fail no more, and a late effect happens now.
    pub(crate) fn heals(&self) {
        self.calls().at = usize::MAX;
        let late = self.calls().late.take();
        futures::executor::block_on(async {
            if let Some((_, effect)) = late {
                effect.await;
            }
        });
    }

    /// Makes a call with this effect, or makes it fail.
    async fn call<T: Send + 'static>(
        &self,
        what: String,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (number, at, failure, late) = {
            let mut calls = self.calls();
            let number = calls.passed.len();
            calls.passed.push(what.clone());
            let due = calls.late.as_ref().is_some_and(|(before, _)| *before <= number);
            (number, calls.at, calls.failure, if due { calls.late.take() } else { None })
        };
        if let Some((_, effect)) = late {
            effect.await;
        }
        let failed = || match failure {
            StoreFailure::Gone => object_store::Error::NotFound { path: what.clone(), source: "it is gone".into() },
            _ => object_store::Error::Generic { store: "test", source: format!("it fails: {what}").into() },
        };
        let dead = matches!(failure, StoreFailure::Death | StoreFailure::DeathAfter) && number > at && at != usize::MAX;
        if dead {
            return Err(failed());
        }
        if number != at {
            return effect.await;
        }
        match failure {
            StoreFailure::Error | StoreFailure::Gone | StoreFailure::Death => {}
            StoreFailure::Unheard | StoreFailure::DeathAfter => drop(effect.await),
            StoreFailure::Late(by) => {
                let effect: BoxFuture<'static, ()> = Box::pin(async move { drop(effect.await) });
                self.calls().late = Some((number + by, effect));
            }
        }
        Err(failed())
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let (inner, place) = (Arc::clone(&self.inner), at.clone());
        self.call(format!("put {at}"), async move { inner.put_opts(&place, payload, opts).await }).await
    }

    async fn put_multipart_opts(&self, at: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (inner, place) = (Arc::clone(&self.inner), at.clone());
        let begun = async move { inner.put_multipart_opts(&place, opts).await };
        let upload = self.call(format!("begin {at}"), begun).await?;
        Ok(Box::new(FaultyUpload { store: self.clone(), at: at.clone(), upload: Arc::new(upload.into()) }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let (inner, place) = (Arc::clone(&self.inner), at.clone());
        self.call(format!("get {at}"), async move { inner.get_opts(&place, options).await }).await
    }

    fn delete_stream(&self, places: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |place: Result<Path>| {
            let store = store.clone();
            async move {
                let (inner, at) = (Arc::clone(&store.inner), place?);
                let place = at.clone();
                store.call(format!("delete {at}"), async move { inner.delete(&place).await.map(|()| place) }).await
            }
        };
        Box::pin(places.then(delete))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (inner, prefix) = (Arc::clone(&self.inner), prefix.cloned());
        self.call("list".into(), async move { inner.list_with_delimiter(prefix.as_ref()).await }).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    store: FaultyStore,
    at: Path,
    upload: Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, upload, what) = (self.store.clone(), Arc::clone(&self.upload), format!("part {}", self.at));
        Box::pin(async move {
            let part = async move {
                let part = upload.lock().await.put_part(data);
                part.await
            };
            store.call(what, part).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let upload = Arc::clone(&self.upload);
        self.store.call(format!("complete {}", self.at), async move { upload.lock().await.complete().await }).await
    }

    async fn abort(&mut self) -> Result<()> {
        let upload = Arc::clone(&self.upload);
        self.store.call(format!("give up {}", self.at), async move { upload.lock().await.abort().await }).await
    }
}
