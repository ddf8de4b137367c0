//! Two trainers in step over shards of this process: each look-up sees the rounds that it must see and no other, with pulls right behind
//! the pushes.

use std::sync::Arc;

use forebay_actors::{Fault, Host, Outbox, Sink, Stage, StageCx};
use forebay_batches::{BatchId, GradBatch, ReadyBatch, Staleness, TrainBatch};
use forebay_job::Job;
use forebay_ps::{Init, Optimizer, PartConfig, PushId, Round, TableClient, TableConfig, Trainer, start_table};
use tokio::sync::{mpsc, watch};

use super::participation::{Membership, Participation};
use super::rounds_end::RoundsEnd;
use super::{Lookup, Push};
use crate::cluster::{RunPhase, RunStatus};
use crate::order::batch_record::BatchRecord;
use crate::order::exact_order::ExactOrder;
use crate::order::step_order::StepOrder;

const STEPS: u64 = 12;

/// Rows that one of the trainers sees, step by step.
type Seen = Vec<Vec<f32>>;

struct NoRecord;

impl BatchRecord for NoRecord {
    fn batch_started(&self, _: &TrainBatch) {}
    fn batch_done(&self, _: BatchId) {}
}

fn with_table<T>(test: impl AsyncFnOnce(&[TableClient; 2]) -> T) -> T {
    let adagrad = Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 };
    let part = PartConfig::new("embedding", 2, adagrad, Init::Uniform { scale: 0.5 });
    let host = Host::start("ps").unwrap();
    let table = start_table(&host, TableConfig::new("ads", 3, vec![part]), 2).unwrap();
    let tables = [0, 1].map(|rank| table.clone().of_trainer(Trainer { rank, incarnation: 1 }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let done = runtime.block_on(test(&tables));
    drop((table, tables));
    host.stop().unwrap();
    done
}

/// The trainers share some keys, and have none in some steps.
fn keys(rank: u32, step: u64) -> Vec<u64> {
    (0..(step + u64::from(rank)) % 4).map(|i| (step * 3 + i * 5) % 7).collect()
}

fn samples(rank: u32, step: u64) -> usize {
    usize::from(!keys(rank, step).is_empty()) * (1 + rank as usize)
}

/// They depend on the rows that a batch sees.
fn grads(rows: &[f32]) -> Vec<f32> {
    rows.iter().enumerate().map(|(i, weight)| weight - 0.3 + i as f32 / 10.0).collect()
}

/// One call at a time: before the look-up of a step, the pushes of the step `k + 1` before it.
async fn slow_reference(tables: &[TableClient; 2], k: u64) -> [Seen; 2] {
    let mut seen: [Seen; 2] = Default::default();
    for step in 1..=STEPS {
        if let Some(due) = step.checked_sub(k + 1).filter(|due| *due > 0) {
            let push = async |rank: u32| {
                let rows = &seen[rank as usize][due as usize - 1];
                let round = Round { trainers: 2, rows: samples(rank, due) as u64 };
                let id = PushId { series: due, index: rank };
                tables[rank as usize].push_round(id, round, &keys(rank, due), &grads(rows), due).await
            };
            futures::try_join!(push(0), push(1)).unwrap();
        }
        for rank in 0..2 {
            let mut rows = Vec::new();
            tables[rank as usize].pull(&keys(rank, step), &mut rows).await.unwrap();
            seen[rank as usize].push(rows);
        }
    }
    seen
}

/// The stages of a trainer, over these steps.
async fn train(
    table: &TableClient,
    rank: u32,
    (staleness, steps): (&str, u64),
    rounds_end: Option<RoundsEnd>,
) -> Result<Seen, Fault> {
    let in_step = ["placement.trainers=2", "placement.ps=1", "placement.readers=1", "train.sync=true", staleness];
    let job = Job::with_settings("", &in_step)?;
    let (exact, step_order) = (ExactOrder::of(&job, rank), StepOrder::of(&job));
    let membership = Membership {
        batches: Arc::new(NoRecord),
        dense: None,
        round: job.round(),
        rounds_end,
        steps: (0, Default::default()),
    };
    let participation = Participation::member(membership);
    let lookup = Lookup::for_training(table, &Staleness::new(job.train.staleness.batches));
    let lookup = lookup.participation(participation.clone()).in_order(exact.clone()).in_step(step_order.clone());
    let push = Push::new(table).participation(participation).in_order(exact).in_step(step_order);
    let (cx, (sender, mut ready)) = (StageCx::detached("test"), mpsc::unbounded_channel::<ReadyBatch>());
    let looks_up = async {
        let (mut lookup, sender, (mut out, collected)) = (lookup, sender, Outbox::collecting());
        for step in 1..=steps {
            let (unique, rows) = (keys(rank, step), samples(rank, step));
            let batch = TrainBatch { unique, rows, index: step as u32, ..TrainBatch::default() };
            lookup.on_batch(batch, &cx, &mut out).await?;
            collected.take().into_iter().for_each(|batch| drop(sender.send(batch)));
        }
        Ok::<_, Fault>(())
    };
    let pushes = async {
        let (mut push, mut seen) = (push, Seen::new());
        while let Some(ReadyBatch { train, rows, ticket, .. }) = ready.recv().await {
            let (id, step) = (BatchId::of(&train), seen.len() as u64 + 1);
            let id = BatchId { index: 2 * id.index + rank, ..id };
            let TrainBatch { lineage, unique, rows: samples, .. } = train;
            let row_grads = grads(&rows);
            seen.push(rows);
            push.write(GradBatch { lineage, id, step, samples, unique, row_grads, dense_grads: None, ticket }, &cx)
                .await?;
        }
        push.finish(&cx).await?;
        Ok::<_, Fault>(seen)
    };
    futures::future::try_join(looks_up, pushes).await.map(|((), seen)| seen)
}

#[test]
fn trainers_in_step_see_what_one_call_at_a_time_shows() {
    for (staleness, k) in
        [("train.staleness=0", 0), ("train.staleness={ exactly = 0 }", 0), ("train.staleness={ exactly = 2 }", 2)]
    {
        let wanted = with_table(async |tables| slow_reference(tables, k).await);
        let seen = with_table(async |[first, second]| {
            let trainer = |table, rank| train(table, rank, (staleness, STEPS), None);
            let (first, second) = futures::try_join!(trainer(first, 0), trainer(second, 1)).unwrap();
            [first, second]
        });
        assert!(seen == wanted, "{staleness}: {seen:?}, expected {wanted:?}");
    }
}

#[test]
fn a_look_up_behind_a_round_that_can_never_be_complete_is_given_up() {
    for staleness in ["train.staleness=0", "train.staleness={ exactly = 0 }"] {
        let (_status, receiver) = watch::channel(RunStatus {
            phase: RunPhase::Finished,
            returned_leases: 1,
            windows_total: 9,
            ..RunStatus::gathering()
        });
        let seen = with_table(async |[first, second]| {
            // The other trainer has no batch for the fourth step.
            let trainer =
                |table, rank, steps| train(table, rank, (staleness, steps), Some(RoundsEnd::new(receiver.clone())));
            futures::try_join!(trainer(first, 0, STEPS), trainer(second, 1, 3)).unwrap()
        });
        assert_eq!((seen.0.len(), seen.1.len()), (STEPS as usize, 3), "{staleness}");
    }
}
