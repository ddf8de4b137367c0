//! A file that is being written: hdfs-native writes it, errors say what to do.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::cluster::Cluster;
use super::silence::warn_while_silent;

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) inner: Box<dyn MultipartUpload>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) path: String,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (cluster, path, put) = (Arc::clone(&self.cluster), self.path.clone(), self.inner.put_part(data));
        let put =
            async move { warn_while_silent(cluster.root(), &path, put).await.map_err(|e| cluster.explain(&path, e)) };
        put.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let complete = self.inner.complete();
        let root = self.cluster.root();
        warn_while_silent(root, &self.path, complete).await.map_err(|e| self.cluster.explain(&self.path, e))
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await.map_err(|e| self.cluster.explain(&self.path, e))
    }
}
