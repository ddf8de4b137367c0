//! `train`, where transfers stand apart: puts each step in the device's queue.
//!
//! Comes in: batches on their way to the device, in order. Goes out: the same, their steps launched. Does not wait for the
//! device (but for a queue of it that is full); makes the model, on the thread that it stays on.

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_models::DenseModel;
use forebay_models::transfer::{self, QueuedStep, UploadedBatch};
use tokio::sync::oneshot;

use super::train::ModelMaker;
use crate::fault::model_fault;
use crate::flow::DeviceBatch;

/// The stage.
pub struct Launch {
    maker: Option<ModelMaker>,
    /// To [`Upload`](super::Upload).
    upload: Option<oneshot::Sender<Box<dyn transfer::BatchUpload>>>,
    model: Option<Box<dyn DenseModel>>,
    describe: String,
}

impl Launch {
    /// Trains what `maker` makes, sends its uploading part to `upload`, and leaves the parameters in
    /// the run's results as [`Train`](super::Train) does.
    pub fn new(
        describe: impl Into<String>,
        maker: ModelMaker,
        upload: oneshot::Sender<Box<dyn transfer::BatchUpload>>,
    ) -> Self {
        Self { maker: Some(maker), upload: Some(upload), model: None, describe: describe.into() }
    }
}

impl Stage for Launch {
    type In = DeviceBatch<UploadedBatch>;
    type Out = DeviceBatch<Box<dyn QueuedStep>>;

    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let maker = self.maker.take().expect("a stage is opened once");
        let mut model = maker().map_err(model_fault)?;
        let Some(upload) = model.uploader().map_err(model_fault)? else {
            return Err(Fault::user(
                "train.transfers is \"apart\", but the model computes where its batches are: set it to \"inline\"",
            ));
        };
        // A receiver that is gone has been dropped by a run that ends.
        let _ = self.upload.take().expect("a stage is opened once").send(upload);
        self.model = Some(model);
        Ok(())
    }

    async fn on_batch(&mut self, batch: Self::In, _cx: &StageCx, out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        let DeviceBatch { batch, device } = batch;
        let model = self.model.as_mut().expect("opened before the first batch");
        let device = device.map(|uploaded| model.launch(uploaded)).transpose().map_err(model_fault)?;
        out.send(DeviceBatch { batch, device }).await
    }

    async fn finish(&mut self, cx: &StageCx, _out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        // Comes after all steps on the device's side, and is of use only if `download` finds them all finite.
        let model = self.model.as_ref().expect("opened before it finishes");
        cx.leave(model.parameters());
        Ok(())
    }
}
