//! A file that is being written: hdfs-native writes it, errors say what to do.

use async_trait::async_trait;
use futures::FutureExt;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::explain::explain;

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) inner: Box<dyn MultipartUpload>,
    pub(super) root: String,
    pub(super) path: String,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (root, path) = (self.root.clone(), self.path.clone());
        self.inner.put_part(data).map(move |done| done.map_err(|e| explain(&root, &path, e))).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await.map_err(|e| explain(&self.root, &self.path, e))
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await.map_err(|e| explain(&self.root, &self.path, e))
    }
}
