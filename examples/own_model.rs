//! A dense model of a user's own: attention between the slots (the idea of AutoInt, Song et al., CIKM 2019), as a tch module.
//! Its embeddings live in Forebay's table, its parameters are trained by Forebay's optimizer and saved with the model.
//!
//! `scripts/setup-libtorch && cargo run --release --example own_model --features torch`

use forebay::connectors::convert::{ParquetOptions, block_on, to_parquet};
use forebay::connectors::{ReadOptions, Synthetic, SyntheticSource};
use forebay::models::torch::tch::{TchError, Tensor, nn};
use forebay::models::torch::{Device, ModuleShape, TorchBatch, TorchModel, TorchModule};
use forebay::models::{DenseOptimizer, ModelError, Pooling, RowPart};
use forebay::pipelines::OwnModel;
use forebay::{Fault, Job, Training, actors::StageCx};

const SLOTS: usize = 26;
const DENSE: usize = 13;
const DIM: i64 = 16;

/// Each slot attends to all slots of its row. The results and the dense features go through one hidden layer.
struct Attention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    hidden: nn::Linear,
    out: nn::Linear,
}

impl Attention {
    fn new(root: &nn::Path<'_>) -> Attention {
        let linear = |name: &str, inputs, outputs| nn::linear(root / name, inputs, outputs, Default::default());
        Attention {
            query: linear("query", DIM, DIM),
            key: linear("key", DIM, DIM),
            value: linear("value", DIM, DIM),
            hidden: linear("hidden", SLOTS as i64 * DIM + DENSE as i64, 64),
            out: linear("out", 64, 1),
        }
    }
}

impl TorchModule for Attention {
    fn forward(&self, batch: &TorchBatch) -> Result<Tensor, TchError> {
        let slots = batch.pooled(Pooling::Sum)?; // [n, 26, 16]
        let scores = slots.apply(&self.query).matmul(&slots.apply(&self.key).transpose(1, 2)) / (DIM as f64).sqrt();
        let seen = scores.softmax(-1, None).matmul(&slots.apply(&self.value)) + slots;
        let x = Tensor::cat(&[&seen.flatten(1, 2), batch.dense()], 1);
        Ok(x.apply(&self.hidden).relu().apply(&self.out)) // [n, 1]
    }
}

fn attention() -> Result<TorchModel, ModelError> {
    let shape = ModuleShape { slots: SLOTS, dense: DENSE, parts: vec![RowPart::new("embedding", DIM as usize)] };
    TorchModel::from_module(shape, DenseOptimizer::adam(1e-3), 42, 1, Device::Cpu, |root| Ok(Attention::new(root)))
}

fn main() -> anyhow::Result<()> {
    forebay::models::init_cuda(); // before anything else, for `Device::Cuda(0)` above
    let rows = std::env::args().nth(1).map_or(Ok(100_000), |n| n.parse())?;

    // Rows to train on and others to test on, as Parquet in a temporary folder.
    let folder = tempfile::tempdir()?;
    let write = |name: &str, what: Synthetic| -> Result<String, Fault> {
        let path = folder.path().join(name);
        let mut source = SyntheticSource::new(what, ReadOptions::default());
        block_on(to_parquet(&mut source, &StageCx::detached(name), &path, &ParquetOptions::default(), |_| ()))?;
        Ok(path.display().to_string())
    };
    let train = write("train", Synthetic { rows, ..Default::default() })?;
    let test = write("test", Synthetic { rows: rows / 10, first: rows, ..Default::default() })?;

    let mut job = Job { seed: 42, ..Default::default() };
    job.data.train = Some(train.into());
    let parts = vec![RowPart::new("embedding", DIM as usize)];
    let trained = Training::builder(job).model("attention", OwnModel::new(parts, attention)).run()?;

    println!("{}", trained.report);
    let (evaluation, _) = trained.model.evaluate(&test)?;
    println!("rows that were not trained on: {evaluation}");
    Ok(())
}
