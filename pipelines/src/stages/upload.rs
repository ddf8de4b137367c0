//! `upload`: packs a batch and starts its copy to the device.
//!
//! Comes in: [`ReadyBatch`]es, in order. Goes out: the same, with the device's side. Works on its thread while it packs; waits
//! for the model to be there, before the first batch.

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_models::transfer;
use tokio::sync::oneshot;

use crate::fault::model_fault;
use crate::flow::{DeviceBatch, ReadyBatch};

/// The stage.
pub struct Upload {
    /// From the stage that makes the model, on a thread of its own.
    promised: Option<oneshot::Receiver<Box<dyn transfer::BatchUpload>>>,
    upload: Option<Box<dyn transfer::BatchUpload>>,
}

impl Upload {
    /// With what [`Launch`](super::Launch) will send.
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

    async fn on_batch(&mut self, batch: ReadyBatch, _cx: &StageCx, out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        if let Some(promised) = self.promised.take() {
            match promised.await {
                Ok(upload) => self.upload = Some(upload),
                // The model could not be made: that fault is the cause, and this stage is dropped where it stands.
                Err(_) => std::future::pending().await,
            }
        }
        let upload = self.upload.as_mut().expect("taken before the first batch");
        let device = if batch.train.labels.is_empty() {
            None
        } else {
            let params = batch.dense.as_deref().map(Vec::as_slice);
            Some(upload.upload(&batch.dense_batch(), params).map_err(model_fault)?)
        };
        out.send(DeviceBatch { batch, device }).await
    }
}
