//! Every stage and sink of training and prediction follows the rules of `forebay_actors::testsuite`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Int32Array, Int64Array, RecordBatch};
use forebay_actors::testsuite::{check_sink, check_stage};
use forebay_actors::{Batch, Host, Lineage, Outbox, Stage, StageCx};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_pipelines::flow::{ExampleBatch, GradBatch, ReadyBatch, TrainBatch};
use forebay_pipelines::stages::{
    BatchPlan, Batcher, DropRows, Evaluate, Lookup, ModelMaker, Parse, Predict, Push, Train,
};
use forebay_pipelines::{Job, JobModel, Progress, Registry, Staleness};
use forebay_ps::{TableClient, start_table};
use futures::executor::block_on;

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
    BatchPlan { rows: 16, window, seed: 7, drop_last: false, mark_window_ends, key_spaces }
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
    let model = JobModel::of(&job(), &Registry::default()).unwrap();
    Box::new(move || (model.factory)())
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
fn lookup_and_train() {
    check_stage(|| Lookup::read_only(&table()), batches);
    check_stage(|| Lookup::for_training(&table(), &Staleness::new(20)), batches);
    check_stage(train, looked_up);
}

#[test]
fn sinks() {
    check_sink(|| Push::new(&table()), gradients);
    check_sink(|| Evaluate::new(maker(), 0.0), looked_up);
    let (scores, mut scored) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || while scored.blocking_recv().is_some() {});
    check_sink(move || Predict::new(maker(), 0.0, scores.clone()), to_predict);
}
