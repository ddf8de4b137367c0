//! A file that is being written: hdfs-native writes it, errors say what to do.

use async_trait::async_trait;
use futures::FutureExt;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::explain::explain;
use super::silence::warn_while_silent;

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) inner: Box<dyn MultipartUpload>,
    pub(super) root: String,
    pub(super) path: String,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (root, path, put) = (self.root.clone(), self.path.clone(), self.inner.put_part(data));
        let put = async move { warn_while_silent(&root, &path, put).await.map_err(|e| explain(&root, &path, e)) };
        put.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let complete = self.inner.complete();
        warn_while_silent(&self.root, &self.path, complete).await.map_err(|e| explain(&self.root, &self.path, e))
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await.map_err(|e| explain(&self.root, &self.path, e))
    }
}
