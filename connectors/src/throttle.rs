//! A store in front of another one, slow in a known way, that counts the bytes in memory: for tests and benches. Each range waits a fixed
//! latency, then for one line of fixed bandwidth that all requests share.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub struct ThrottledStore {
    inner: Arc<dyn ObjectStore>,
    /// In nanoseconds.
    latency: AtomicU64,
    bytes_per_second: Option<u64>,
    /// When the line is free again.
    line: Mutex<Option<Instant>>,
    counts: Arc<Counts>,
}

/// The counts of a [`ThrottledStore`].
#[derive(Debug, Default)]
pub struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    live: AtomicU64,
    peak: AtomicU64,
}

impl Counts {
    /// Ranges asked for.
    pub fn requests(&self) -> u64 {
        self.requests.load(SeqCst)
    }

    /// Bytes delivered.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Bytes that are under way, or delivered and not yet dropped by the caller.
    pub fn live(&self) -> u64 {
        self.live.load(SeqCst)
    }

    /// The most that [`live`](Self::live) ever was.
    pub fn peak(&self) -> u64 {
        self.peak.load(SeqCst)
    }
}

/// Bytes that count as live until the last slice of them is dropped.
struct Live {
    bytes: Bytes,
    live: LiveBytes,
}

struct LiveBytes(Arc<Counts>, u64);

impl LiveBytes {
    fn new(counts: &Arc<Counts>, bytes: u64) -> Self {
        let live = counts.live.fetch_add(bytes, SeqCst) + bytes;
        counts.peak.fetch_max(live, SeqCst);
        Self(Arc::clone(counts), bytes)
    }
}

impl Drop for LiveBytes {
    fn drop(&mut self) {
        self.0.live.fetch_sub(self.1, SeqCst);
    }
}

impl AsRef<[u8]> for Live {
    fn as_ref(&self) -> &[u8] {
        debug_assert_eq!(self.live.1, self.bytes.len() as u64);
        &self.bytes
    }
}

impl ThrottledStore {
    /// `bytes_per_second` of `None` is no limit.
    pub fn new(inner: Arc<dyn ObjectStore>, latency: Duration, bytes_per_second: Option<u64>) -> Self {
        let store = Self {
            inner,
            latency: AtomicU64::default(),
            bytes_per_second,
            line: Mutex::new(None),
            counts: Arc::default(),
        };
        store.set_latency(latency);
        store
    }

    /// Changes the latency of the requests from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.latency.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), SeqCst);
    }

    /// The counts, also after the store was given away.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    async fn wait(&self, bytes: u64) {
        let mut until = Instant::now() + Duration::from_nanos(self.latency.load(SeqCst));
        if let Some(rate) = self.bytes_per_second {
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            until = line.map_or(until, |free| until.max(free)) + takes;
            *line = Some(until);
        }
        if until > Instant::now() {
            tokio::time::sleep_until(until).await;
        }
    }
}

impl fmt::Display for ThrottledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Throttled({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for ThrottledStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.inner.get_opts(location, options).await;
        }
        self.counts.requests.fetch_add(1, SeqCst);
        let result = self.inner.get_opts(location, options).await?;
        let Range { start, end } = result.range;
        let live = LiveBytes::new(&self.counts, end - start);
        self.wait(end - start).await;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let bytes = result.bytes().await?;
        self.counts.bytes.fetch_add(bytes.len() as u64, SeqCst);
        let bytes = Bytes::from_owner(Live { bytes, live });
        let payload = GetResultPayload::Stream(futures::stream::once(async move { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
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
}
