//! `embed`: computes the vector of every row by one of two towers and sends it on, beside the columns that are kept. It blocks its
//! thread during a forward pass.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_actors::{Fault, FaultKind, Sink, StageCx};
use forebay_batches::{KeptRows, ReadyBatch};
use forebay_models::{DenseBatch, DenseModel, ModelSpec, TowerInputs, TowerSide};
use tokio::sync::mpsc;

use super::predict::PredictedRows;
use super::train::ModelMaker;
use crate::fault::model_fault;

/// The name of the column with the vectors.
pub(crate) const VECTOR: &str = "vector";

/// The `embed` sink.
pub(crate) struct Embed {
    maker: Option<ModelMaker>,
    model: Option<Box<dyn DenseModel>>,
    side: TowerSide,
    whole: WholeBatch,
    vectors: Vec<f32>,
    out: mpsc::Sender<RecordBatch>,
    counts: PredictedRows,
}

impl Embed {
    /// Computes vectors with one tower of the model that `maker` makes, of the structure `spec`. Its batches have the slots and dense
    /// features of this tower alone. Each batch that it sends has the kept columns and, last, `vector`: a list of floats, or null for a bad
    /// row. Leaves [`PredictedRows`] in the run's results.
    pub(crate) fn new(maker: ModelMaker, spec: &ModelSpec, side: TowerSide, out: mpsc::Sender<RecordBatch>) -> Self {
        let inputs = spec.two_towers.as_ref().map(|two| two.inputs(side).clone()).unwrap_or_default();
        let whole =
            WholeBatch { slots: spec.slots, dense: spec.dense, inputs, offsets: Vec::new(), values: Vec::new() };
        Self {
            maker: Some(maker),
            model: None,
            side,
            whole,
            vectors: Vec::new(),
            out,
            counts: PredictedRows::default(),
        }
    }
}

/// A batch of a tower's columns as the model takes it: the slots of the other tower have no values, its dense features are 0.
struct WholeBatch {
    /// Slots and dense features of the model.
    slots: usize,
    dense: usize,
    inputs: TowerInputs,
    offsets: Vec<u32>,
    values: Vec<f32>,
}

impl WholeBatch {
    fn of<'a>(&'a mut self, batch: DenseBatch<'a>) -> DenseBatch<'a> {
        let (own, own_dense) = (self.inputs.slots.len(), self.inputs.dense.len());
        let count = |bag: usize| batch.offsets.map_or(1, |offsets| offsets[bag + 1] - offsets[bag]);
        self.offsets.clear();
        self.offsets.push(0);
        self.values.clear();
        self.values.resize(batch.rows * self.dense, 0.0);
        let mut end = 0;
        for row in 0..batch.rows {
            let mut of_tower = 0;
            for slot in 0..self.slots {
                if self.inputs.slots.get(of_tower) == Some(&slot) {
                    end += count(row * own + of_tower);
                    of_tower += 1;
                }
                self.offsets.push(end);
            }
            for (at, &column) in self.inputs.dense.iter().enumerate() {
                self.values[row * self.dense + column] = batch.dense[row * own_dense + at];
            }
        }
        DenseBatch { dense: &self.values, offsets: Some(&self.offsets), ..batch }
    }
}

/// The kept columns and the vectors of these rows, `[n x dim]`.
fn with_vectors(rows: &KeptRows, vectors: &[f32]) -> Result<RecordBatch, Fault> {
    let (mut fields, mut values): (Vec<Field>, Vec<ArrayRef>) =
        rows.columns().map(|(field, column)| (field.clone(), Arc::clone(column))).unzip();
    let dim = (vectors.len() / rows.rows().max(1)) as i32;
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let good: NullBuffer = rows.reasons().iter().map(|reason| reason.is_none()).collect::<Vec<bool>>().into();
    let numbers = Arc::new(Float32Array::from(vectors.to_vec()));
    let failed = |e| Fault::internal("the vectors do not fit the kept columns").because(e);
    let lists = FixedSizeListArray::try_new(Arc::clone(&item), dim, numbers, Some(good)).map_err(failed)?;
    fields.push(Field::new(VECTOR, DataType::FixedSizeList(item, dim), true));
    values.push(Arc::new(lists));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), values).map_err(failed)
}

impl Sink for Embed {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        format!("the vector of every row, by the {} tower", self.side.name())
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let maker = self.maker.take().expect("a sink is opened once");
        self.model = Some(maker().map_err(model_fault)?);
        Ok(())
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        let model = self.model.as_mut().expect("opened before the first batch");
        let rows = batch.train.rows;
        model.embed(&self.whole.of(batch.dense_batch()), self.side, &mut self.vectors).map_err(model_fault)?;
        if batch.train.kept.iter().map(KeptRows::rows).sum::<usize>() != rows {
            return Err(Fault::user(
                "a stage of the program changed the rows, and did not pass on their `kept` columns",
            ));
        }
        let dim = self.vectors.len() / rows.max(1);
        let mut from = 0;
        for rows in &batch.train.kept {
            let to = from + rows.rows();
            self.counts.count(rows);
            let sent = self.out.send(with_vectors(rows, &self.vectors[from * dim..to * dim])?).await;
            from = to;
            if sent.is_err() {
                return Err(Fault::user("the rest of the vectors is not wanted").kind(FaultKind::Drained));
            }
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        cx.leave(std::mem::take(&mut self.counts));
        Ok(())
    }
}
