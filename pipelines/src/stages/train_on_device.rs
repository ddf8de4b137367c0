//! `train` with `train.transfers = "apart"`: makes the model on its own thread, and puts each step into the device's queue.
//! It waits for the device only if that queue is full.

use forebay_actors::{BarrierNumber, Fault, Outbox, Stage, StageCx};
use forebay_batches::DeviceBatch;
use forebay_models::DenseModel;
use forebay_models::transfer::{self, QueuedStep, UploadedBatch};
use tokio::sync::oneshot;

use super::state_output::StateOutput;
use super::train::ModelMaker;
use crate::fault::model_fault;

/// The `train` stage between `upload` and `download`.
pub struct TrainOnDevice {
    maker: Option<ModelMaker>,
    /// Sends the uploading part of the model to [`Upload`](super::Upload).
    upload: Option<oneshot::Sender<Box<dyn transfer::BatchUpload>>>,
    model: Option<Box<dyn DenseModel>>,
    describe: String,
    state_output: StateOutput,
}

impl TrainOnDevice {
    /// Trains the model that `maker` makes, sends its uploading part to `upload`, and leaves the parameters in the run's
    /// results as [`Train`](super::Train) does.
    pub fn new(
        describe: impl Into<String>,
        maker: ModelMaker,
        upload: oneshot::Sender<Box<dyn transfer::BatchUpload>>,
    ) -> Self {
        Self {
            maker: Some(maker),
            upload: Some(upload),
            model: None,
            describe: describe.into(),
            state_output: StateOutput::default(),
        }
    }

    /// Puts the state of the model into `state_output`.
    pub(crate) fn with_state_output(mut self, state_output: StateOutput) -> Self {
        self.state_output = state_output;
        self
    }
}

impl Stage for TrainOnDevice {
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
        // The send fails only if the run is ending and has dropped the receiver.
        let _ = self.upload.take().expect("a stage is opened once").send(upload);
        self.state_output.reduce_lr(model.as_mut()).map_err(model_fault)?;
        self.model = Some(model);
        self.state_output.check(self.model.as_deref())
    }

    async fn on_batch(&mut self, batch: Self::In, _cx: &StageCx, out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        let DeviceBatch { batch, device } = batch;
        let model = self.model.as_mut().expect("opened before the first batch");
        self.state_output.reduce_lr(model.as_mut()).map_err(model_fault)?;
        let device = device.map(|uploaded| model.launch(uploaded)).transpose().map_err(model_fault)?;
        out.send(DeviceBatch { batch, device }).await
    }

    async fn on_barrier(
        &mut self,
        barrier: BarrierNumber,
        _cx: &StageCx,
        _out: &mut Outbox<Self::Out>,
    ) -> Result<(), Fault> {
        // The device reads the parameters after the steps in its queue: the steps of all batches before the barrier.
        self.state_output.at_barrier(self.model.as_deref(), barrier)
    }

    async fn finish(&mut self, cx: &StageCx, _out: &mut Outbox<Self::Out>) -> Result<(), Fault> {
        // The device reads the parameters after all steps. They are used only if `download` found every step finite.
        let model = self.model.as_ref().expect("opened before it finishes");
        self.state_output.leave(model.as_ref(), cx);
        Ok(())
    }
}
