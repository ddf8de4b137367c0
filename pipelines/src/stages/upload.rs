//! `upload`: packs a batch and starts its copy to the device. Before the first batch it waits until `train` has made the model.

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_batches::{DeviceBatch, ReadyBatch};
use forebay_models::transfer;
use tokio::sync::oneshot;

use crate::fault::model_fault;

/// The `upload` stage.
pub struct Upload {
    /// Receives the uploading part from [`TrainOnDevice`](super::TrainOnDevice), which makes the model.
    promised: Option<oneshot::Receiver<Box<dyn transfer::BatchUpload>>>,
    upload: Option<Box<dyn transfer::BatchUpload>>,
}

impl Upload {
    /// Uploads with the part of the model that [`TrainOnDevice`](super::TrainOnDevice) sends.
    pub fn new(upload: oneshot::Receiver<Box<dyn transfer::BatchUpload>>) -> Self {
        Self { promised: Some(upload), upload: None }
    }
}

impl Stage for Upload {
    type In = ReadyBatch;
    type Out = DeviceBatch<transfer::UploadedBatch>;

    fn describe(&self) -> String {
        "to the device".into()
    }

    async fn on_batch(&mut self, batch: ReadyBatch, cx: &StageCx, out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        if let Some(promised) = self.promised.take() {
            match cx.meter().blocked_on("model", promised).await {
                Ok(upload) => self.upload = Some(upload),
                // Making the model failed. That fault ends the run, so this stage waits to be dropped.
                Err(_) => std::future::pending().await,
            }
        }
        let upload = self.upload.as_mut().expect("taken before the first batch");
        let device = if batch.train.rows == 0 {
            None
        } else {
            let params = batch.dense.as_deref().map(Vec::as_slice);
            Some(upload.upload(&batch.dense_batch(), params).map_err(model_fault)?)
        };
        out.send(DeviceBatch { batch, device }).await
    }
}
