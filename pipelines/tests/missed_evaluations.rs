//! Evaluations during a training that a fault prevents: they cost no training, and none that is missed counts as one.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int32Array};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, FaultKind, Source, StageCx};
use forebay_connectors::{Rows, StreamSource};
use forebay_pipelines::{Context, EvaluationHistory, Job, Registry, Trained, Training};

/// 1000 rows; the label is 1 for the even ones.
fn rows() -> impl Iterator<Item = Result<RecordBatch, ArrowError>> {
    (0..1000).step_by(100).map(|from| {
        let rows = from..from + 100;
        RecordBatch::try_from_iter([
            ("label", Arc::new(Int32Array::from_iter_values(rows.clone().map(|i| 1 - i % 2))) as ArrayRef),
            ("c", Arc::new(Int32Array::from_iter_values(rows.map(|i| i % 7))) as _),
        ])
    })
}

fn source() -> StreamSource<impl futures::Stream<Item = Result<RecordBatch, ArrowError>>> {
    StreamSource::new("rows", futures::stream::iter(rows()))
}

/// A source of rows that cannot be opened if there is a fault.
struct MayFail<S> {
    rows: S,
    fault: Option<Fault>,
}

impl<S: Source<Out = Rows>> Source for MayFail<S> {
    type Out = Rows;

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None => self.rows.open(cx).await,
        }
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        self.rows.next(cx).await
    }
}

/// A training that evaluates after 256, 448, 640 and 832 of its 1000 rows. `fails` says what happens at a try to evaluate, counted from 0.
/// Returns the training, and the number of tries.
fn training(
    more: &[&str],
    fails: impl Fn(usize) -> Option<Fault> + Send + Sync + 'static,
) -> (Training, Arc<AtomicUsize>) {
    let tries = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&tries);
    let registry = Registry::default().source("may_fail", move |_| {
        let fault = fails(counted.fetch_add(1, Ordering::SeqCst));
        MayFail { rows: source(), fault }
    });
    let text = "columns = { label = 'label', dense = [], slots = ['c'] }\nmodel.kind = 'lr'\ntrain.batch_rows = 64\n\
                data = { shuffle_rows = 0, eval = 'rows', source = 'may_fail' }\nevaluation.every = { rows = 200 }";
    let job = Job::with_settings(text, more).unwrap();
    let training = Training::builder(job).context(&Context::new(registry)).source(source).build().unwrap();
    (training, tries)
}

fn away() -> Fault {
    Fault::external("the store cannot be reached")
}

fn history(trained: &Trained) -> EvaluationHistory {
    trained.evaluations().unwrap()
}

fn rows_of(trained: &Trained) -> Vec<u64> {
    history(trained).points.iter().map(|point| point.rows).collect()
}

/// A bug: the training ended at the first fault.
#[test]
fn an_evaluation_is_tried_again_after_a_fault_that_passes_and_all_is_as_without_the_fault() {
    let (calm, tries) = training(&[], |_| None);
    let calm = calm.run().unwrap();
    assert_eq!((rows_of(&calm), tries.load(Ordering::SeqCst)), (vec![256, 448, 640, 832], 4));
    let (faulty, tries) = training(&["output.retry_for=10min"], |at| (at == 1).then(away));
    let faulty = faulty.run().unwrap();
    assert_eq!((history(&faulty), tries.load(Ordering::SeqCst)), (history(&calm), 5));
    assert_eq!(faulty.model.dense, calm.model.dense);
}

#[test]
fn a_missed_evaluation_is_left_out_and_the_next_one_comes_when_it_is_due() {
    let (calm, _) = training(&[], |_| None);
    let calm = calm.run().unwrap();
    for missed in 0..4 {
        let (faulty, tries) = training(&["output.retry_for=0s"], move |at| (at == missed).then(away));
        let faulty = faulty.run().unwrap();
        let mut points = history(&calm).points;
        points.remove(missed);
        assert_eq!((history(&faulty).points, tries.load(Ordering::SeqCst)), (points, 4), "{missed}");
        assert_eq!((faulty.training.rows, &faulty.model.dense), (1000, &calm.model.dense));
    }
}

#[test]
fn a_missed_evaluation_is_none_without_an_improvement() {
    // No AUC is better by so much: the training stops after the second evaluation that follows the first.
    let stops = ["evaluation.patience=2", "evaluation.min_delta=9", "evaluation.keep=last", "output.retry_for=0s"];
    let stopped = |missed: Option<usize>| {
        let (training, _) = training(&stops, move |at| (Some(at) == missed).then(away));
        let trained = training.run().unwrap();
        assert!(history(&trained).stopped_early);
        (rows_of(&trained), trained.training.rows)
    };
    assert_eq!(stopped(None), (vec![256, 448, 640], 640));
    assert_eq!(stopped(Some(1)), (vec![256, 640, 832], 832));
    assert_eq!(stopped(Some(0)), (vec![448, 640, 832], 832));
}

#[test]
fn a_fault_that_lasts_is_waited_for_once() {
    let (training, tries) = training(&["output.retry_for=1s"], |at| (at > 0).then(away));
    let trained = training.run().unwrap();
    assert_eq!((rows_of(&trained), trained.training.rows), (vec![256], 1000));
    // One good one, two or three of the first that is missed, and one of each later one.
    let tries = tries.load(Ordering::SeqCst);
    assert!((4..=6).contains(&tries), "{tries}");
}

#[test]
fn rows_that_cannot_be_scored_end_the_run_at_first_and_are_missed_once_they_were_scored() {
    let wrong = || Fault::user("there is nothing at `rows`");
    let (at_first, _) = training(&["output.retry_for=0s"], move |_| Some(wrong()));
    let fault = at_first.run().err().unwrap().to_string();
    assert!(fault.contains("the rows of data.eval cannot be scored: there is nothing at `rows`"), "{fault}");
    let (later, _) = training(&["output.retry_for=0s"], move |at| (at == 2).then(wrong));
    assert_eq!(rows_of(&later.run().unwrap()), [256, 448, 832]);
    let (gone, _) = training(&["output.retry_for=0s"], move |at| (at == 0).then(|| wrong().kind(FaultKind::NotFound)));
    assert_eq!(rows_of(&gone.run().unwrap()), [448, 640, 832]);
    let (defect, _) = training(&["output.retry_for=0s"], |at| (at == 2).then(|| Fault::internal("a defect")));
    assert!(defect.run().err().unwrap().to_string().contains("a defect"));
}

/// Without an end of the tries, the run would go on for an hour.
#[test]
fn a_run_that_is_asked_to_shut_down_tries_no_more() {
    let (training, tries) = training(&["output.retry_for=1h"], |at| (at > 0).then(away));
    let ended = training.start().unwrap().wait_with(Duration::from_millis(5), |running| {
        if tries.load(Ordering::SeqCst) > 1 {
            running.drain();
        }
    });
    assert_eq!(rows_of(&ended.map_err(|failed| failed.fault).unwrap()), [256]);
}
