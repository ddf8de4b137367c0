//! A program's own parts that break their contract, or are named wrongly: each is a fault that says what to do.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use arrow::compute::kernels::cmp::gt;
use arrow::error::ArrowError;
use forebay_actors::{Domain, Fault, FaultKind, Outbox, Source, Stage, StageCx};
use forebay_connectors::{Rows, StreamSource};
use forebay_models::{
    DenseBatch, DenseModel, DenseOptimizer, ModelError, ModelSpec, NamedTensor, NativeModel, RowPart, StepOutput,
};
use forebay_pipelines::{Context, FailedTraining, Job, Model, OwnModel, Registry, Training, TrainingBuilder};

fn rows(from: i32, n: i32) -> RecordBatch {
    let column = |of: fn(i32) -> i32| -> ArrayRef { Arc::new(Int32Array::from_iter_values((from..from + n).map(of))) };
    let columns = [("label", column(|i| i % 2)), ("n", column(|i| i % 13)), ("c", column(|i| i % 7))];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn source() -> StreamSource<impl futures::Stream<Item = Result<RecordBatch, ArrowError>>> {
    StreamSource::new("rows", futures::stream::iter((0..10).map(|part| Ok(rows(part * 100, 100)))))
}

fn training(more: &[&str]) -> TrainingBuilder {
    let text = "columns = { label = 'label', dense = ['n'], slots = ['c'] }\nmodel.kind = 'lr'\ntrain.batch_rows = 64";
    Training::builder(Job::with_settings(text, more).unwrap()).source(source)
}

/// Sends every batch on.
struct Pass;

impl Stage for Pass {
    type In = Rows;
    type Out = Rows;

    async fn on_batch(&mut self, rows: Rows, _cx: &StageCx, out: &mut Outbox<Rows>) -> Result<(), Fault> {
        out.send(rows).await
    }
}

/// A bug: the run took the windows of its source for windows of a cluster, left out rows of those that it did not close, and succeeded.
#[test]
fn a_job_of_several_processes_is_refused_and_a_graph_of_it_can_be_described() {
    let apart = ["placement.readers=2", "placement.ps=1"];
    let fault = training(&apart).build().unwrap_err();
    assert_eq!((fault.domain, fault.kind), (Domain::User, FaultKind::InvalidJob));
    assert!(fault.to_string().contains("forebay launch"), "{fault}");
    training(&apart).describe().unwrap();
}

/// A bug: a wrong name was ignored.
#[test]
fn training_only_of_a_stage_that_is_not_there_is_refused_and_may_come_before_its_stage() {
    let fault = training(&[]).after_read("sample", || Pass).training_only("sampel").build().unwrap_err();
    assert_eq!(fault.kind, FaultKind::InvalidJob);
    assert!(fault.to_string().contains("`sampel`") && fault.to_string().contains("did you mean `sample`?"), "{fault}");
    let trained = training(&[]).training_only("sample").after_read("sample", || Pass).run().unwrap();
    assert!(trained.model.job.pipeline.after_read[0].training_only);
}

/// A bug: the context replaced what had been added before.
#[test]
fn a_context_adds_to_the_parts_of_the_builder() {
    let context = Context::new(Registry::default().after_read("other", |_| Pass));
    let builder = training(&["pipeline.after_read=['other']"]).after_read("sample", || Pass).context(&context);
    let trained = builder.run().unwrap();
    assert!(trained.report.stage("sample").is_some() && trained.report.stage("other").is_some());
}

/// A bug: a stock program refused the model, though it does not need the stage.
#[test]
fn a_model_loads_without_the_stages_that_are_for_training_only() {
    let trained = training(&[]).after_read("sample", || Pass).training_only("sample").run().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("model");
    trained.save(to.as_path()).unwrap();
    assert_eq!(Model::load(to.as_path(), 1).unwrap().evaluate_source(source).unwrap().0.rows, 1000);
}

/// A bug: the record of a run over a stream said three epochs, and the stream had one pass.
#[test]
fn a_stream_is_one_epoch_whatever_the_job_says() {
    assert_eq!(training(&["data.epochs=3"]).run().unwrap().training.epochs, 1);
}

/// A bug: the documented filter panicked if its column was not read, and the fault was one of Forebay.
#[test]
fn a_filter_of_a_column_that_is_not_there_is_a_user_fault_that_lists_the_columns() {
    let registry = Registry::default().drop_rows("large", |rows| gt(&rows["x"], &Int32Array::new_scalar(5)));
    let fault = training(&["pipeline.after_read=['large']"]).context(&Context::new(registry)).run().unwrap_err();
    assert_eq!(fault.domain, Domain::User);
    let said = fault.to_string();
    assert!(said.contains("`large`") && said.contains("label, n, c") && said.contains("columns.extra"), "{said}");
}

/// A bug: the caller waited for the whole interval after the end of the run.
#[test]
fn waiting_with_an_interval_ends_with_the_run_and_its_error_is_a_fault() {
    let run = || -> Result<u64, Fault> {
        let running = training(&[]).build()?.start()?;
        let begun = Instant::now();
        let trained = running.wait_with(Duration::from_secs(3600), |_| ())?;
        assert!(begun.elapsed() < Duration::from_secs(1800));
        Ok(trained.training.rows)
    };
    assert_eq!(run().unwrap(), 1000);
    let is_error = |failed: Box<FailedTraining>| -> Box<dyn std::error::Error> { failed };
    struct Fails;
    impl Source for Fails {
        type Out = Rows;
        async fn next(&mut self, _cx: &StageCx) -> Result<Option<Rows>, Fault> {
            Err(Fault::external("the broker cannot be reached"))
        }
    }
    let failed = training(&[]).source(|| Fails).build().unwrap().start().unwrap().wait().unwrap_err();
    assert!(is_error(failed).to_string().starts_with("the broker cannot be reached"));
}

/// A bug: a source that blocks in `next` held up the stages on the shared thread.
#[test]
fn an_own_source_has_a_thread_of_its_own() {
    let trained = training(&[]).run().unwrap();
    assert_eq!(trained.report.stage("read").unwrap().place, "own");
}

#[test]
fn a_source_without_rows_and_a_missing_column_have_their_kinds() {
    let empty = || StreamSource::new("none", futures::stream::empty::<Result<RecordBatch, ArrowError>>());
    let fault = training(&[]).source(empty).run().unwrap_err();
    assert_eq!(fault.kind, FaultKind::NotFound);
    assert!(fault.to_string().contains("the source read none"), "{fault}");
    let other = || {
        let batch = rows(0, 10).project(&[0, 1]).unwrap();
        StreamSource::new("rows", futures::stream::iter([Ok::<_, ArrowError>(batch)]))
    };
    assert_eq!(training(&[]).source(other).run().unwrap_err().kind, FaultKind::MissingColumn);
    assert_eq!(Job::from_toml("train.batch_row = 3", &[]).unwrap_err().kind, FaultKind::InvalidJob);
    assert_eq!(training(&["train.batch_rows=0"]).run().unwrap_err().kind, FaultKind::InvalidJob);
    let folder = tempfile::tempdir().unwrap();
    let no_model = Model::load(folder.path().join("none"), 1).unwrap_err();
    assert_eq!((no_model.domain, no_model.kind), (Domain::User, FaultKind::NotFound));
}

/// How an own model breaks its contract.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Loss,
    Logits,
    Predictions,
    RowGrads,
    Parts,
    Names,
}

struct Broken(NativeModel, Breaks);

impl DenseModel for Broken {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        self.0.train(batch, out)?;
        match self.1 {
            Breaks::Loss => out.loss = f64::NAN,
            Breaks::Logits => drop(out.logits.pop()),
            Breaks::RowGrads => drop(out.row_grads.pop()),
            _ => {}
        }
        Ok(())
    }
    fn gradients(&mut self, b: &DenseBatch<'_>, out: &mut StepOutput, grads: &mut Vec<f32>) -> Result<(), ModelError> {
        self.0.gradients(b, out, grads)
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
        self.0.predict(batch, logits)?;
        if self.1 == Breaks::Predictions {
            logits.pop();
        }
        Ok(())
    }
    fn parameters(&self) -> Vec<NamedTensor> {
        let mut parameters = self.0.parameters();
        if self.1 == Breaks::Names {
            parameters[1].name = parameters[0].name.clone();
        }
        parameters
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
        match self.1 {
            Breaks::Parts => vec![RowPart::new("weight", 1)],
            _ => self.0.parts(),
        }
    }
}

fn broken(breaks: Breaks, dim: usize) -> OwnModel {
    let spec = ModelSpec::ctr_dnn(1, 1, dim, &[8]);
    OwnModel::new(spec.parts(), move || -> Result<_, ModelError> {
        Ok(Broken(NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 3, 1)?, breaks))
    })
}

/// A bug: a model with a NaN loss was trained to its end and saved; other mistakes were panics of Forebay, or wrong gradients.
#[test]
fn an_own_model_that_breaks_its_contract_is_a_fault_that_names_it() {
    let train = |breaks| training(&[]).model("mine", broken(breaks, 4)).run();
    for (breaks, kind, expected) in [
        (Breaks::Loss, FaultKind::NonFinite, "the loss of own model `mine` is NaN"),
        (Breaks::Logits, FaultKind::InvalidJob, "own model `mine` gave 63 logits for a batch of 64 rows, expected 64"),
        (Breaks::RowGrads, FaultKind::InvalidJob, "own model `mine` gave 27 gradients of rows, expected 28"),
        (Breaks::Parts, FaultKind::InvalidJob, "own model `mine`: DenseModel::parts returns [\"weight 1\"]"),
        (Breaks::Names, FaultKind::InvalidJob, "own model `mine`: two of its parameters have the name"),
    ] {
        let fault = train(breaks).unwrap_err();
        assert_eq!((fault.domain, fault.kind), (Domain::User, kind), "{fault}");
        assert!(fault.to_string().contains(expected), "{fault}");
    }
    let fault = train(Breaks::Predictions).unwrap().model.evaluate_source(source).unwrap_err();
    assert!(fault.to_string().contains("own model `mine` gave 999 logits"), "{fault}");
}

/// A bug: a model of other rows loaded, and its scores were of wrong numbers.
#[test]
fn a_folder_with_other_row_parts_than_its_own_model_does_not_load() {
    let trained = training(&[]).model("mine", broken(Breaks::Predictions, 4)).run().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("model");
    trained.save(to.as_path()).unwrap();
    let context = Context::new(Registry::default().own_model("mine", |_| broken(Breaks::Predictions, 5)));
    let said = Model::load_with(to.as_path(), 1, &context).unwrap_err().to_string();
    assert!(said.contains("its rows have the parts") && said.contains("embedding 4"), "{said}");
}

#[test]
fn rows_that_a_stage_lost_are_a_fault_that_names_the_stage() {
    struct Halves;
    impl Stage for Halves {
        type In = Rows;
        type Out = Rows;
        async fn on_batch(&mut self, mut rows: Rows, _cx: &StageCx, out: &mut Outbox<Rows>) -> Result<(), Fault> {
            rows.batch = rows.batch.slice(0, 50);
            out.send(rows).await
        }
    }
    let fault = training(&[]).after_read("halves", || Halves).run().unwrap_err();
    assert_eq!(fault.kind, FaultKind::LedgerMismatch);
    assert!(fault.to_string().ends_with("rows in and out differ at `halves` (1,000 in, 500 out)"), "{fault}");
}
