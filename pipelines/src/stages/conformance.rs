//! The stages, sinks and sources of this crate follow the rules of `forebay_actors::testsuite`. `tests/layering` looks for their names
//! here.

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Int32Array, Int64Array, RecordBatch};
use async_trait::async_trait;
use forebay_actors::testsuite::{check_sink, check_source, check_stage};
use forebay_actors::{Batch, Fault, Host, Lineage, Outbox, Stage, StageCx};
use forebay_batches::wire::columns;
use forebay_batches::wire::metadata::Header;
use forebay_batches::{
    Assemble, BatchId, Cut, DeviceBatch, ExampleBatch, GradBatch, Part, ReadyBatch, TrainBatch, missing_keys,
};
use forebay_connectors::{
    Lease, Leases, LocalLeases, OnBadRow, ReadOptions, Rows, Synthetic, SyntheticSource, WindowMark,
};
use forebay_job::Job;
use forebay_models::testsuite::SoftwareDevice;
use forebay_models::transfer::{QueuedStep, UploadedBatch};
use forebay_models::{DenseModel, NamedTensor, NativeModel, TowerSide};
use forebay_ps::{PushId, TableClient, start_table};
use futures::executor::block_on;
use futures::future::{BoxFuture, ready};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

use super::participation::Participation;
use super::*;
use crate::Staleness;
use crate::cluster::batches::lease_progress::LeaseProgress;
use crate::cluster::batches::receive_queue::{Credits, Order, ReceiveQueue};
use crate::cluster::batches::send_queue::SendQueue;
use crate::cluster::lease_client::LostLeases;
use crate::cluster::{RunPhase, RunStatus};
use crate::dense_model::dense_store::DenseStore;
use crate::dense_model::job_model::JobModel;
use crate::extension::drop_rows::DropRows;
use crate::extension::noted_leases::NotedLeases;
use crate::extension::own_rows::OwnRows;
use crate::extension::registry::Registry;
use crate::extension::source_progress::{SourceProgress, Watched};
use crate::metrics::progress::Progress;
use crate::sampling::statistics::Measure;

/// Two slots of one key space; the label of every ninth row is no label.
fn rows() -> Vec<Rows> {
    let batch = |from: i64, n: i64| {
        let ids = from..from + n;
        let label = |i: i64| if i % 9 == 4 { 7 } else { (i % 2) as i32 };
        RecordBatch::try_from_iter([
            ("label", Arc::new(Int32Array::from_iter_values(ids.clone().map(label))) as ArrayRef),
            ("x", Arc::new(Float32Array::from_iter_values(ids.clone().map(|i| i as f32 / 50.0)))),
            ("a", Arc::new(Int64Array::from_iter_values(ids.clone().map(|i| i % 17)))),
            ("b", Arc::new(Int64Array::from_iter_values(ids.map(|i| i % 5)))),
        ])
        .unwrap()
    };
    let one = |seq: u64| Rows {
        batch: batch(seq as i64 * 23, 23),
        lineage: Lineage { seq, row: seq * 23, ..Lineage::default() },
        window: WindowMark { window: seq / 3, closes: seq % 3 == 2, ..WindowMark::default() },
        rejected: 0,
        places: None,
    };
    (0..6).map(one).collect()
}

fn job() -> Job {
    let toml = r#"
        [data]
        train = "rows"
        [columns]
        label = "label"
        dense = ["x"]
        slots = ["a", "b"]
        [model]
        kind = "wide_deep"
        embedding_dim = 4
        hidden = [8]
    "#;
    Job::from_toml(toml, &[]).unwrap()
}

/// What a stage sends for these batches.
fn through<S: Stage>(mut stage: S, inputs: Vec<S::In>) -> Vec<S::Out>
where
    S::Out: Batch,
{
    let cx = StageCx::detached("test");
    let (mut out, collected) = Outbox::collecting();
    block_on(async {
        stage.open(&cx).await?;
        for batch in inputs {
            stage.on_batch(batch, &cx, &mut out).await?;
        }
        stage.finish(&cx, &mut out).await
    })
    .unwrap();
    collected.take()
}

fn parse() -> Parse {
    Parse::new(&job().columns, 0, OnBadRow::Skip)
}

fn examples() -> Vec<ExampleBatch> {
    through(parse(), rows())
}

fn plan(window: usize, mark_window_ends: bool) -> BatchPlan {
    let key_spaces = job().columns.key_spaces();
    let missing = missing_keys(&job().columns, job().seed);
    BatchPlan { rows: 16, window, seed: 7, drop_last: false, mark_window_ends, key_spaces, missing }
}

fn batches() -> Vec<TrainBatch> {
    through(Batcher::new(plan(0, false)), examples())
}

/// The table of the model, which lives as long as the test program.
fn table() -> TableClient {
    static TABLE: OnceLock<(Host, TableClient)> = OnceLock::new();
    let start = || {
        let host = Host::start("host").unwrap();
        let config = JobModel::of(&job(), &Registry::default()).unwrap().table_config(&job());
        let table = start_table(&host, config, 2).unwrap();
        (host, table)
    };
    TABLE.get_or_init(start).1.clone()
}

fn looked_up() -> Vec<ReadyBatch> {
    through(Lookup::read_only(&table()), batches())
}

fn to_predict() -> Vec<ReadyBatch> {
    let examples = through(parse().for_prediction(vec!["a".into()]), rows());
    through(Lookup::read_only(&table()), through(Batcher::new(plan(0, false)), examples))
}

fn maker() -> ModelMaker {
    JobModel::of(&job(), &Registry::default()).unwrap().maker()
}

fn scorer() -> Scorer {
    Scorer::new(maker(), 0.0)
}

fn train() -> Train {
    Train::new("model", maker(), Progress::default())
}

fn gradients() -> Vec<GradBatch> {
    through(train(), looked_up())
}

#[test]
fn stages_of_rows() {
    let odd = |batch: &RecordBatch| Ok((0..batch.num_rows()).map(|i| Some(i % 2 == 1)).collect::<BooleanArray>());
    check_stage(move || DropRows::new(odd), rows);
    check_stage(parse, rows);
}

#[test]
fn batch() {
    for (window, mark_window_ends) in [(0, false), (32, false), (0, true), (64, true)] {
        check_stage(move || Batcher::new(plan(window, mark_window_ends)), examples);
    }
    check_stage(|| Batcher::new(BatchPlan { drop_last: true, ..plan(0, false) }), examples);
}

#[test]
fn the_halves_of_batch() {
    for plan in [plan(0, false), plan(32, true), BatchPlan { drop_last: true, ..plan(0, false) }] {
        let cut = move || -> Cut { Batcher::new(plan.clone()).split().0 };
        check_stage(cut.clone(), examples);
        let parts = move || -> Vec<Part> { through(cut(), examples()) };
        check_stage(|| Assemble::new(&self::plan(0, true)), parts);
    }
}

#[test]
fn lookup_and_train() {
    check_stage(|| Lookup::read_only(&table()), batches);
    check_stage(|| Lookup::for_training(&table(), &Staleness::new(20)), batches);
    // With an exact order or look-ahead the stage does not stand alone: it waits for what `push` does. `order/exact_order.rs` and
    // `tests/checkpoint` test them together.
    check_stage(train, looked_up);
}

/// The model of the job on a device of software.
fn device() -> SoftwareDevice {
    let spec = JobModel::of(&job(), &Registry::default()).unwrap().spec.unwrap();
    SoftwareDevice(NativeModel::new(spec, job().dense_optimizer(), 1, 1).unwrap())
}

fn upload() -> Upload {
    let (promise, promised) = oneshot::channel();
    assert!(promise.send(device().uploader().unwrap().unwrap()).is_ok());
    Upload::new(promised)
}

fn train_on_device() -> TrainOnDevice {
    let (upload, _) = oneshot::channel();
    TrainOnDevice::new("model", Box::new(|| Ok(Box::new(device()))), upload)
}

#[test]
fn transfers() {
    let uploaded = || -> Vec<DeviceBatch<UploadedBatch>> { through(upload(), looked_up()) };
    let queued = move || -> Vec<DeviceBatch<Box<dyn QueuedStep>>> { through(train_on_device(), uploaded()) };
    check_stage(upload, looked_up);
    check_stage(train_on_device, uploaded);
    check_stage(|| Download::new(Progress::default()), queued);
}

/// A sink for this many trainers in step, which report at once that a batch is done.
fn ship(trainers: u32) -> Ship<TrainBatch> {
    static TRAINERS: OnceLock<Runtime> = OnceLock::new();
    let runtime = TRAINERS.get_or_init(|| Runtime::new().unwrap());
    let (send_queue, progress) = (Arc::new(SendQueue::new(trainers as usize, 2)), Arc::new(LeaseProgress::default()));
    progress.add(&Lease { epoch: 0, windows: 0..100, term: 0 });
    for trainer in 0..trainers as usize {
        let (send_queue, progress) = (Arc::clone(&send_queue), Arc::clone(&progress));
        runtime.spawn(async move {
            loop {
                let (Header { id, .. }, ..) = send_queue.next(trainer, 0, |_| true).await;
                progress.batch_done(id);
                send_queue.batch_done(id);
            }
        });
    }
    let (_, status) = watch::channel(RunStatus::gathering());
    Ship::new(send_queue, progress, LostLeases(status), trainers, Default::default())
}

#[test]
fn ship_to_trainers() {
    for trainers in [1, 3] {
        check_sink(move || ship(trainers), || through(Batcher::new(plan(32, true)), examples()));
    }
}

/// Dense parameters that no push changes.
struct Constant;

#[async_trait]
impl DenseStore for Constant {
    async fn pull(&self, _: Option<u64>) -> Result<Arc<Vec<f32>>, Fault> {
        Ok(Arc::new(vec![0.5; 8]))
    }
    async fn optimizer(&self, _: &[NamedTensor]) -> Result<Vec<NamedTensor>, Fault> {
        Ok(Vec::new())
    }
    async fn begin_push(
        &self,
        _: PushId,
        _: u64,
        _: u64,
        _: Vec<f32>,
    ) -> Result<BoxFuture<'static, Result<(), Fault>>, Fault> {
        Ok(Box::pin(ready(Ok(()))))
    }
    async fn reduce_lr(&self, _: &forebay_base::LrReductions) -> Result<(), Fault> {
        Ok(())
    }

    async fn acknowledge_before(&self, _: u64) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn refresh() {
    check_stage(|| Refresh::new(Arc::new(Constant), Participation::default()), looked_up);
}

#[test]
fn sinks() {
    check_sink(|| Push::new(&table()), gradients);
    check_sink(|| Evaluate::new(scorer()), looked_up);
    let (scores, mut scored) = mpsc::channel(1);
    std::thread::spawn(move || while scored.blocking_recv().is_some() {});
    check_sink(move || Predict::new(scorer(), scores.clone()), to_predict);
}

#[test]
fn embed() {
    let toml = r#"
        [columns]
        label = "label"
        dense = []
        slots = ["a", "b"]
        [model]
        kind = "two_towers"
        user = { slots = ["a"] }
        item = { slots = ["b"] }
        embedding_dim = 4
        hidden = []
        vector_dim = 4
    "#;
    let job = Job::from_toml(toml, &[]).unwrap();
    let model = JobModel::of(&job, &Registry::default()).unwrap();
    let spec = model.spec.clone().unwrap();
    let host = Host::start("host").unwrap();
    let table = start_table(&host, model.table_config(&job), 1).unwrap();
    let items = job.for_tower(&spec, TowerSide::Item);
    let inputs = move || {
        let parse = Parse::new(&items.columns, 0, OnBadRow::Skip).for_prediction(vec!["b".into()]);
        let plan = BatchPlan { key_spaces: items.columns.key_spaces(), ..plan(0, false) };
        through(Lookup::read_only(&table), through(Batcher::new(plan), through(parse, rows())))
    };
    let (vectors, mut taken) = mpsc::channel(1);
    std::thread::spawn(move || while taken.blocking_recv().is_some() {});
    let make = move || Embed::new(model.maker(), &spec, TowerSide::Item, vectors.clone());
    check_sink(make, inputs);
    host.stop().unwrap();
}

#[test]
fn measure() {
    let columns = Job::from_toml(
        "columns = { label = 'label', dense = [{ column = 'x', indicator = true }], slots = ['a'] }",
        &[],
    );
    let columns = columns.unwrap().columns;
    let parse = move || Parse::new(&columns, 0, OnBadRow::Skip).for_statistics(1);
    check_sink(|| Measure::of(1, 0), move || through(parse(), rows()));
}

/// A queue with all batches, in a run that is finished.
fn received() -> Receive<TrainBatch> {
    let queue = ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, Credits { batches: 1000, bytes: 1 << 30 });
    let (replies, _) = mpsc::unbounded_channel();
    let channel = queue.open("reader 0", replies).unwrap();
    for batch in through(Batcher::new(plan(32, true)), examples()) {
        let Lineage { split, row, .. } = batch.lineage;
        let (id, term, closes) = (BatchId::of(&batch), batch.window.term, batch.closes);
        let header = Header { id, term, split, row, closes, done_before: 0, urgent: false, labels: 1, other_rows: 0 };
        let columns = columns::write(batch, None, Default::default()).unwrap();
        let bytes = columns::bytes(&columns);
        queue.put(channel, header, columns, bytes).unwrap();
    }
    // The last status stays when its sender is gone.
    let (_, status) = watch::channel(RunStatus { phase: RunPhase::Finished, ..RunStatus::gathering() });
    Receive::new(Arc::new(queue), status, &Participation::default())
}

#[test]
fn sources() {
    check_source(received);
    let options = ReadOptions { batch_rows: 30, ..ReadOptions::default() };
    check_source(move || {
        let source = SyntheticSource::new(Synthetic { rows: 500, ..Synthetic::default() }, options.clone());
        Watched { source, progress: SourceProgress::default(), own: None }
    });
    check_source(|| {
        let options = ReadOptions { batch_rows: 30, window_rows: 100, ..ReadOptions::default() };
        let leases = Arc::new(NotedLeases::new("clicks", Arc::new(LocalLeases::new(2)), options.window_rows));
        let source = SyntheticSource::new(Synthetic { rows: 500, ..Synthetic::default() }, options);
        let source = source.leasing(Arc::clone(&leases) as Arc<dyn Leases>);
        let own = OwnRows::named("clicks", Some(leases));
        Watched { source, progress: SourceProgress::default(), own: Some(own) }
    });
}
