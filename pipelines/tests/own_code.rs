//! Stages, a source and a model of a program's own: in training, in evaluation, in the model folder.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, Float64Array, Int32Array};
use arrow::compute::cast;
use arrow::compute::kernels::cmp::gt;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Batch, Fault, Outbox, Stage, StageCx};
use forebay_connectors::StreamSource;
use forebay_models::{
    DenseBatch, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, NativeModel, RowPart, StepOutput,
};
use forebay_pipelines::flow::{ExampleBatch, TrainBatch};
use forebay_pipelines::model_folder::Manifest;
use forebay_pipelines::{Context, Job, Model, OwnModel, Registry, Training};

const ROWS: i32 = 1000;

/// Rows 0 to 999: `n` is the row's number, every third row is missing its `n`, the label is 1 for the even ones.
fn rows() -> impl Iterator<Item = Result<RecordBatch, arrow::error::ArrowError>> {
    (0..ROWS).step_by(100).map(|from| {
        let rows = from..from + 100;
        let numbers = Int32Array::from_iter(rows.clone().map(|i| (i % 3 != 0).then_some(i)));
        RecordBatch::try_from_iter([
            ("label", Arc::new(Int32Array::from_iter_values(rows.clone().map(|i| 1 - i % 2))) as ArrayRef),
            ("n", Arc::new(numbers) as _),
            ("c", Arc::new(Int32Array::from_iter_values(rows.map(|i| i % 7))) as _),
        ])
    })
}

fn source() -> StreamSource<impl futures::Stream<Item = Result<RecordBatch, arrow::error::ArrowError>>> {
    StreamSource::new("rows", futures::stream::iter(rows()))
}

fn job(more: &[&str]) -> Job {
    let text = "columns = { label = 'label', dense = ['n'], slots = ['c'] }\nmodel.kind = 'lr'\ntrain.batch_rows = 64\n\
                data.shuffle_rows = 0";
    Job::with_settings(text, more).unwrap()
}

fn registry() -> Registry {
    Registry::default()
        .drop_rows("small_n", |rows| gt(&rows["n"], &Int32Array::new_scalar(499)))
        .source("numbers", |_| source())
        .own_model("tiny", |_| tiny())
}

fn tiny() -> OwnModel {
    let spec = ModelSpec::ctr_dnn(1, 1, 4, &[8]);
    OwnModel::new(spec.parts(), move || -> Result<_, ModelError> {
        NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 3, 1)
    })
}

/// A model that implements nothing but what it must, and counts its steps.
struct Plain(NativeModel, Arc<AtomicUsize>);

impl DenseModel for Plain {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.train(batch, out)
    }
    fn gradients(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        grads: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.0.gradients(batch, out, grads)
    }
    fn flat_len(&self) -> usize {
        self.0.flat_len()
    }
    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError> {
        self.0.read_flat(values)
    }
    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError> {
        self.0.set_flat(values)
    }
    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        self.0.predict(batch, logits)
    }
    fn parameters(&self) -> Vec<NamedTensor> {
        self.0.parameters()
    }
    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        self.0.load(tensors)
    }
    fn optimizer(&self) -> Vec<NamedTensor> {
        self.0.optimizer()
    }
    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        self.0.load_optimizer(tensors)
    }
    fn parts(&self) -> Vec<RowPart> {
        self.0.parts()
    }
}

/// Rows whose `n` is above 499; a missing `n` is not.
fn large() -> u64 {
    (500..ROWS).filter(|i| i % 3 != 0).count() as u64
}

/// Keeps the rows with label 1.
struct Clicks;

impl Stage for Clicks {
    type In = ExampleBatch;
    type Out = ExampleBatch;
    async fn on_batch(
        &mut self,
        batch: ExampleBatch,
        cx: &StageCx,
        out: &mut Outbox<ExampleBatch>,
    ) -> Result<(), Fault> {
        out.send(batch.retain_rows(cx, "no click", |row| row.label() == 1.0)).await
    }
}

/// Counts batches.
#[derive(Default)]
struct CountBatches(u64);

impl Stage for CountBatches {
    type In = TrainBatch;
    type Out = TrainBatch;
    async fn on_batch(&mut self, batch: TrainBatch, _cx: &StageCx, out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        self.0 += 1;
        assert!(batch.rows() <= 64);
        out.send(batch).await
    }
    async fn finish(&mut self, cx: &StageCx, _out: &mut Outbox<TrainBatch>) -> Result<(), Fault> {
        cx.leave(self.0);
        Ok(())
    }
}

#[test]
fn a_filter_over_raw_rows_is_counted_and_filters_evaluation_too() {
    let context = Context::new(registry());
    let job = job(&["pipeline.after_read=['small_n']"]);
    let training = Training::builder(job).context(&context).source(source).build().unwrap();
    assert!(training.plan().to_string().contains("small_n"), "{}", training.plan());
    let trained = training.run().unwrap();
    assert_eq!(trained.report.ledger.rejected["small_n"], large());
    assert_eq!(trained.progress.rows, ROWS as u64 - large());
    let (evaluation, report) = trained.model.evaluate_source(source).unwrap();
    assert_eq!(evaluation.rows, ROWS as u64 - large());
    assert_eq!(report.ledger.rejected["small_n"], large());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model").display().to_string();
    trained.model.save(path.as_str()).unwrap();
    let said = Model::load(path.as_str(), 1).err().unwrap().to_string();
    assert!(said.contains("pipeline.after_read") && said.contains("`small_n`"), "{said}");
    let back = Model::load_with(path.as_str(), 1, &context).unwrap();
    assert_eq!(back.evaluate_source(source).unwrap().0, evaluation);
}

/// The filter of `examples/own_program.rs` and docs/in-rust.md.
#[test]
fn a_filter_that_casts_takes_floating_point_keeps_missing_values_and_drops_nan() {
    let rows = RecordBatch::try_from_iter([
        ("label", Arc::new(Int32Array::from(vec![0, 1, 0, 1])) as ArrayRef),
        ("n", Arc::new(Float64Array::from(vec![Some(499.0), Some(499.5), None, Some(f64::NAN)])) as _),
        ("c", Arc::new(Int32Array::from(vec![1, 2, 3, 4])) as _),
    ]);
    let registry = Registry::default()
        .drop_rows("large_n", |rows| gt(&cast(&rows["n"], &DataType::Float64)?, &Float64Array::new_scalar(499.0)));
    let training = Training::builder(job(&["pipeline.after_read=['large_n']"])).context(&Context::new(registry));
    let trained = training.source(|| StreamSource::new("rows", futures::stream::iter([rows]))).run().unwrap();
    assert_eq!(trained.report.ledger.rejected["large_n"], 2, "499.5 and NaN");
    assert_eq!(trained.progress.rows, 2, "499 and the missing value");
}

#[test]
fn a_stage_for_training_only_leaves_evaluation_alone() {
    let trained =
        Training::builder(job(&[])).source(source).after_parse("clicks", || Clicks).training_only("clicks").run();
    let trained = trained.unwrap();
    assert_eq!(trained.report.ledger.rejected["no click"], ROWS as u64 / 2);
    assert_eq!(trained.model.evaluate_source(source).unwrap().0.rows, ROWS as u64);
    assert_eq!(Job::from_toml(&trained.model.job.to_toml(), &[]).unwrap(), trained.model.job);
}

#[test]
fn the_program_takes_what_its_stages_left() {
    let mut shown = 0;
    let builder = Training::builder(job(&[])).source(source).after_batch("count", CountBatches::default);
    let running = builder.build().unwrap().start().unwrap();
    let trained = running.wait_with(std::time::Duration::from_millis(1), |_| shown += 1).map_err(|e| e.fault).unwrap();
    assert_eq!(trained.results.take::<u64>("count"), Some(ROWS.cast_unsigned().div_ceil(64).into()));
    assert_eq!(trained.results.take::<u64>("count"), None);
}

#[test]
fn an_own_source_and_an_own_model_combine_and_the_folder_names_the_model() {
    let context = Context::new(registry());
    let job = job(&["data.source=numbers", "model.kind=own", "model.name=tiny"]);
    let trained = Training::builder(job).context(&context).run().unwrap();
    assert_eq!(trained.progress.rows, ROWS as u64);
    let (evaluation, _) = trained.model.evaluate("anything").unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model").display().to_string();
    trained.model.save(path.as_str()).unwrap();
    let manifest = Manifest::read(path.as_str()).unwrap();
    assert_eq!((manifest.job.model.name.as_deref(), manifest.spec), (Some("tiny"), None));
    let context = Context::new(Registry::default().source("numbers", |_| source()));
    let said = Model::load_with(path.as_str(), 1, &context).err().unwrap().to_string();
    assert!(said.contains("`tiny`") && said.contains("model.name"), "{said}");
    let context = Context::new(registry());
    assert_eq!(Model::load_with(path.as_str(), 2, &context).unwrap().evaluate("anything").unwrap().0, evaluation);
}

#[test]
fn a_custom_model_that_cannot_reduce_its_learning_rate_is_refused_before_the_first_batch() {
    let steps = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&steps);
    let registry = registry().own_model("plain", move |_| {
        let (spec, counted) = (ModelSpec::ctr_dnn(1, 1, 4, &[8]), Arc::clone(&counted));
        OwnModel::new(spec.parts(), move || -> Result<_, ModelError> {
            Ok(Plain(NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 3, 1)?, Arc::clone(&counted)))
        })
    });
    let context = Context::new(registry);
    let own = ["model={ kind = 'own', name = 'plain' }", "data.source=numbers", "data.eval=rows"];
    let train = |more: &[&str]| {
        let settings = [&own[..], &["evaluation.every={ rows = 200 }"], more].concat();
        Training::builder(job(&settings)).context(&context).run()
    };
    let fault = train(&["evaluation.reduce_lr_on_plateau={}"]).err().unwrap();
    let said = fault.to_string();
    assert!(said.contains("this model cannot reduce its learning rate: leave reduce_lr_on_plateau out"), "{said}");
    assert_eq!((fault.stage.as_deref(), steps.load(Ordering::SeqCst)), (Some("train"), 0), "{said}");
    let trained = train(&[]).unwrap();
    assert_eq!(steps.load(Ordering::SeqCst) as u64, trained.progress.steps);
}

#[test]
fn names_that_the_program_does_not_have_are_refused_before_the_first_row() {
    for (setting, field, near) in [
        ("pipeline.after_read=['smal_n']", "pipeline.after_read", "did you mean `small_n`?"),
        ("pipeline.after_batch=['small_n']", "pipeline.after_batch", "run the program that registers it"),
        ("data.source=number", "data.source", "did you mean `numbers`?"),
        ("model={ kind = 'own', name = 'attention' }", "model.name", "it has tiny"),
        ("model.kind=own", "model.name", "must be set together"),
    ] {
        let builder = Training::builder(job(&[setting])).context(&Context::new(registry())).source(source);
        let said = builder.build().err().unwrap().to_string();
        assert!(said.contains(field) && said.contains(near), "{setting}: {said}");
    }
    let apart = job(&["data.source=numbers", "placement.readers=1", "placement.ps=1"]);
    let said = Training::builder(apart).context(&Context::new(registry())).describe().err().unwrap().to_string();
    assert!(said.contains("leased_source"), "{said}");
}
