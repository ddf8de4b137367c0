//! The forward pass of the sinks that score rows: `evaluate` and `predict`. It blocks its thread.

use forebay_actors::Fault;
use forebay_batches::ReadyBatch;
use forebay_models::DenseModel;

use super::train::ModelMaker;
use crate::fault::model_fault;
use crate::metrics::unknown_values::UnknownValues;

/// A model that scores batches, for [`Evaluate`](super::Evaluate) and [`Predict`](super::Predict).
pub struct Scorer {
    maker: Option<ModelMaker>,
    model: Option<Box<dyn DenseModel>>,
    /// Added to each logit.
    correction: f32,
    logits: Vec<f32>,
    unknown: UnknownValues,
    /// The model's name in faults.
    name: String,
}

impl Scorer {
    /// Scores with the model that `maker` makes. Adds `correction` to each logit; see
    /// [`DataOptions::logit_correction`](forebay_job::DataOptions::logit_correction).
    pub fn new(maker: ModelMaker, correction: f32) -> Self {
        let unknown = UnknownValues::default();
        Self { maker: Some(maker), model: None, correction, logits: Vec::new(), unknown, name: "the model".into() }
    }

    /// Calls the model `name` in faults.
    pub(crate) fn of(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Warns of slots whose values the model does not know.
    pub(crate) fn looking_for(self, unknown: UnknownValues) -> Self {
        Self { unknown, ..self }
    }

    /// Warns of slots whose values the model did not know. Called once, after the last batch.
    pub(super) fn warn_of_unknown_values(&self) {
        if let Some(warning) = self.unknown.warning() {
            tracing::warn!("{warning}");
        }
    }

    /// Makes the model. Called once, on the thread that uses it.
    pub(super) fn open(&mut self) -> Result<(), Fault> {
        let maker = self.maker.take().expect("a sink is opened once");
        self.model = Some(maker().map_err(model_fault)?);
        Ok(())
    }

    /// The vectors of users and of items of a batch, `[n x vector_dim]` each, by a model of two towers.
    pub(super) fn vectors(&mut self, batch: &ReadyBatch, vectors: &mut [Vec<f32>; 2]) -> Result<(), Fault> {
        let model = self.model.as_mut().expect("opened before the first batch");
        model.embed_both(&batch.dense_batch(), vectors).map_err(model_fault)
    }

    /// The logits of a batch, `[n]`.
    pub(super) fn logits(&mut self, batch: &ReadyBatch) -> Result<&[f32], Fault> {
        self.unknown.add(batch);
        let model = self.model.as_mut().expect("opened before the first batch");
        let batch = batch.dense_batch();
        let predicted = model.predict(&batch, &mut self.logits);
        predicted.and_then(|()| batch.check_logits(&self.logits, &self.name)).map_err(model_fault)?;
        self.logits.iter_mut().for_each(|logit| *logit += self.correction);
        Ok(&self.logits)
    }
}
