//! Replicated stages: order, sharing of work and scaling, all without losing a row.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{Count, Double, Keep, Numbers, end, until};
use forebay_actors::{
    BarrierNumber, Batch, Fault, Lineage, Outbox, Place, Replicas, Report, Running, Stage, StageCx, Topology,
};
use proptest::prelude::*;
use tokio::sync::Semaphore;

/// Sends each batch in `pieces` parts, after a delay that depends on the batch. With 0 parts, it holds the rows back
/// until `finish`.
struct Cut {
    delays: Vec<u16>,
    pieces: Vec<u8>,
    held: Vec<u64>,
}

impl Cut {
    async fn send(values: Vec<u64>, seq: u64, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        out.send(Numbers { lineage: Lineage { seq, ..Lineage::default() }, values }).await
    }
}

impl Stage for Cut {
    type In = Numbers;
    type Out = Numbers;
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        let seq = batch.lineage.seq;
        match self.delays[seq as usize % self.delays.len()] {
            0 => {}
            n => tokio::time::sleep(Duration::from_micros(u64::from(n))).await,
        }
        let pieces = usize::from(self.pieces[seq as usize % self.pieces.len()]);
        if pieces == 0 {
            self.held.extend(batch.values);
            return Ok(());
        }
        for part in batch.values.chunks(batch.rows().div_ceil(pieces)) {
            Self::send(part.to_vec(), seq, out).await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }
    async fn finish(&mut self, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        Self::send(std::mem::take(&mut self.held), u64::MAX, out).await
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn ordered_replicas_keep_the_order_and_lose_nothing(
        replicas in 1usize..5,
        capacity in 1usize..4,
        delays in prop::collection::vec(0u16..400, 1..20),
        pieces in prop::collection::vec(0u8..4, 1..10),
        ordered: bool,
    ) {
        let keep = Keep::default();
        let sink = keep.clone();
        let (d, p) = (delays, pieces.clone());
        let kind = if ordered { Replicas::ordered(replicas) } else { Replicas::unordered(replicas) };
        Topology::new("order")
            .source("count", Place::Shared, || Count::new(50, 6))
            .link(capacity)
            .replicated("cut", Place::Shared, kind, move |_| Cut { delays: d.clone(), pieces: p.clone(), held: vec![] })
            .link(capacity)
            .sink("keep", Place::Shared, move || sink)
            .run()
            .unwrap();
        let mut all = keep.values();
        if ordered {
            // Rows that were not held back arrive as from one replica.
            let batches = keep.batches.lock().unwrap();
            let sent: Vec<u64> =
                batches.iter().filter(|b| b.lineage.seq != u64::MAX).flat_map(|b| b.values.clone()).collect();
            let expected: Vec<u64> =
                (0..50u64).filter(|seq| pieces[*seq as usize % pieces.len()] > 0).flat_map(|seq| seq * 6..seq * 6 + 6).collect();
            prop_assert_eq!(sent, expected);
            let finished = batches.iter().position(|b| b.lineage.seq == u64::MAX).unwrap();
            prop_assert_eq!(batches.len() - finished, replicas, "what was held back comes last, once per replica");
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..300).collect::<Vec<u64>>());
    }
}

/// Counts its batches in `counts[mine]`; replica 0 waits for the gate, and the others wait until it does.
struct Share {
    mine: usize,
    counts: Arc<Vec<AtomicUsize>>,
    gate: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

impl Stage for Share {
    type In = Numbers;
    type Out = Numbers;
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        assert_eq!(cx.replica(), self.mine);
        Ok(())
    }
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        if self.mine == 0 {
            self.held.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
        } else {
            // On a busy machine they could handle all batches before replica 0 has opened.
            drop(self.held.acquire().await.unwrap());
        }
        self.counts[self.mine].fetch_add(1, SeqCst);
        out.send(batch).await
    }
}

/// The counts of so many replicas of [`Share`], the gate of replica 0, and a closure that makes them.
fn shares(replicas: usize) -> (Arc<Vec<AtomicUsize>>, Arc<Semaphore>, impl Fn(usize) -> Share + Send + Sync + 'static) {
    let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..replicas).map(|_| AtomicUsize::new(0)).collect());
    let (gate, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (c, g) = (Arc::clone(&counts), Arc::clone(&gate));
    let make = move |mine| Share { mine, counts: Arc::clone(&c), gate: Arc::clone(&g), held: Arc::clone(&held) };
    (counts, gate, make)
}

#[test]
fn work_goes_to_the_replica_that_is_free() {
    let (counts, gate, make) = shares(3);
    let running = Topology::new("share")
        .source("count", Place::Own, || Count::new(100, 1))
        .link(2)
        .replicated("share", Place::Shared, Replicas::unordered(3), make)
        .link(2)
        .sink("keep", Place::Own, Keep::default)
        .start()
        .unwrap();
    // While replica 0 holds one batch, the others handle all the rest: no batch queues behind it.
    until("replicas 1 and 2 have handled 99 batches", || counts[1].load(SeqCst) + counts[2].load(SeqCst) >= 99);
    assert_eq!(counts[0].load(SeqCst), 0);
    gate.add_permits(1);
    let report = end(running).report;
    assert_eq!((counts[0].load(SeqCst), report.ledger.delivered), (1, 100));
    assert_eq!(report.stages[1].replicas, 3);
}

/// Drains a run, which must end well, and checks that each row that was read came once.
fn drained(running: Running, keep: &Keep) -> Report {
    running.drain();
    let outcome = end(running);
    outcome.result.unwrap();
    let mut all = keep.values();
    all.sort_unstable();
    assert_eq!(all, (0..outcome.report.ledger.read).collect::<Vec<u64>>());
    outcome.report
}

#[test]
fn scaling_up_and_down_under_load_loses_nothing() {
    for replicas in [Replicas::ordered(1), Replicas::unordered(1)] {
        let keep = Keep::default();
        let sink = keep.clone();
        let running = Topology::new("scale")
            .source("count", Place::Own, || Count::endless(3))
            .link(2)
            .replicated("cut", Place::Shared, replicas, |_| Cut {
                delays: vec![0, 300, 50, 0, 1000],
                pieces: vec![1, 2, 0, 1],
                held: vec![],
            })
            .link(2)
            .sink("keep", Place::Own, move || sink)
            .start()
            .unwrap();
        let passes = |more: usize| {
            let enough = running.snapshot().ledger.delivered + more as u64;
            until("more rows are delivered", || running.snapshot().ledger.delivered >= enough);
        };
        for target in [4, 1, 6, 2, 3] {
            passes(60);
            running.scale("cut", target).unwrap();
            passes(60);
            until("the stage has its replicas", || running.snapshot().stages[1].replicas == target);
        }
        let report = drained(running, &keep);
        if replicas == Replicas::ordered(1) {
            let at_once: Vec<u64> = keep.seqs().into_iter().filter(|seq| *seq != u64::MAX).collect();
            assert!(at_once.is_sorted(), "in order through all changes");
        }
        let (read, meters) = (report.ledger.read, &report.stages[1]);
        assert_eq!((meters.rows_in, meters.rows_out), (read, read), "replicas that left are still counted");
    }
}

/// Stands in for a stage that computes for a while, on as many cores as it has replicas.
struct Sleeper;

impl Stage for Sleeper {
    type In = Numbers;
    type Out = Numbers;
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        std::thread::sleep(Duration::from_millis(5));
        out.send(batch).await
    }
}

#[test]
fn a_stage_grows_to_64_replicas_and_back_again_and_again_in_order_on_threads_of_its_own() {
    let keep = Keep::default();
    let sink = keep.clone();
    let running = Topology::new("grow")
        .source("count", Place::Own, || Count::endless(2))
        .link(8)
        .replicated("sleep", Place::Own, Replicas::ordered(1), |_| Sleeper)
        .link(8)
        .sink("keep", Place::Own, move || sink)
        .start()
        .unwrap();
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let names = names.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.starts_with("sleep.")).count()
    };
    for target in [64, 1, 64, 7, 64, 2] {
        let enough = running.snapshot().ledger.delivered + 300;
        running.scale("sleep", target).unwrap();
        until("the stage has its replicas, and 300 more rows are delivered", || {
            let report = running.snapshot();
            report.ledger.delivered >= enough && report.stages[1].replicas == target
        });
        assert!(threads() <= 64, "a replica that comes again has the thread that it had, not one more");
    }
    drained(running, &keep);
    assert!(keep.values().is_sorted(), "in order");
}

#[test]
fn barriers_and_changes_of_the_replicas_do_not_disturb_each_other() {
    let keep = Keep::default();
    let sink = keep.clone();
    let running = Topology::new("both")
        .source("count", Place::Own, || Count::endless(3))
        .link(2)
        .replicated("cut", Place::Own, Replicas::ordered(2), |_| Cut {
            delays: vec![0, 200, 50],
            pieces: vec![1, 2],
            held: vec![],
        })
        .link(2)
        .sink("keep", Place::Own, move || sink)
        .start()
        .unwrap();
    let mut passed = None;
    for round in 0..200_usize {
        running.scale("cut", 1 + (round * 5) % 9).unwrap();
        let barriers = [running.barrier_at("cut"), running.barrier_at("cut")];
        running.scale("cut", 1 + (round * 7) % 4).unwrap();
        for barrier in barriers {
            let number = futures::executor::block_on(barrier).unwrap();
            assert!(passed.is_none_or(|before| before < number), "barriers pass in order");
            passed = Some(number);
        }
    }
    drained(running, &keep);
}

#[test]
fn a_run_that_is_killed_while_its_stages_grow_ends_with_its_fault() {
    for round in 0..20 {
        let running = Topology::new("killed")
            .source("count", Place::Own, || Count::endless(1))
            .link(2)
            .replicated("doze", Place::Own, Replicas::ordered(1), |_| Sleeper)
            .link(2)
            .sink("keep", Place::Own, Keep::default)
            .start()
            .unwrap();
        until("some rows are delivered", || running.snapshot().ledger.delivered >= round % 4);
        running.scale("doze", 16).unwrap();
        std::thread::sleep(Duration::from_millis(round));
        running.scale("doze", 1 + round as usize % 16).unwrap();
        running.kill(Fault::user("on purpose"));
        assert!(end(running).result.unwrap_err().to_string().contains("on purpose"));
    }
}

#[test]
fn a_slow_replica_does_not_keep_another_from_being_spawned() {
    let (counts, gate, make) = shares(2);
    let running = Topology::new("hire")
        .source("count", Place::Own, || Count::new(10, 1))
        .link(1)
        .replicated("share", Place::Own, Replicas::unordered(1), make)
        .sink("keep", Place::Own, Keep::default)
        .start()
        .unwrap();
    until("replica 0 has a batch", || running.snapshot().stages[1].items_in > 0);
    running.scale("share", 2).unwrap();
    until("replica 1 has handled 9 batches", || counts[1].load(SeqCst) >= 9);
    gate.add_permits(1);
    end(running).result.unwrap();
}

#[test]
fn what_cannot_be_scaled_says_so() {
    let running = Topology::new("scale")
        .source("count", Place::Shared, || Count::endless(1))
        .stage("double", Place::Shared, || Double { delay: None })
        .replicated("many", Place::Shared, Replicas::ordered(0), |_| Double { delay: None })
        .sink("keep", Place::Shared, Keep::default)
        .start()
        .unwrap();
    assert!(running.scale("many", 0).unwrap_err().to_string().contains("at least one"));
    assert!(running.scale("double", 2).unwrap_err().to_string().contains("not replicated"));
    let text = running.scale("nobody", 2).unwrap_err().to_string();
    assert!(text.contains("count, double, many, keep"), "{text}");
    running.drain();
    end(running).result.unwrap();
}

/// Sends an extra, empty batch at each barrier.
struct Stamp;

impl Stage for Stamp {
    type In = Numbers;
    type Out = Numbers;
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        if batch.lineage.seq.is_multiple_of(3) {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        out.send(batch).await
    }
    async fn on_barrier(
        &mut self,
        barrier: BarrierNumber,
        _cx: &StageCx,
        out: &mut Outbox<Numbers>,
    ) -> Result<(), Fault> {
        let lineage = Lineage { epoch: barrier.0 as u32, seq: u64::MAX, ..Lineage::default() };
        out.send(Numbers { lineage, values: vec![] }).await
    }
}

#[test]
fn barriers_pass_between_batches_through_replicas_too() {
    for replicas in [Replicas::ordered(3), Replicas::unordered(3)] {
        let keep = Keep::default();
        let sink = keep.clone();
        let running = Topology::new("barriers")
            .source("count", Place::Own, || Count::endless(1))
            .link(3)
            .replicated("stamp", Place::Shared, replicas, |_| Stamp)
            .link(2)
            .sink("keep", Place::Own, move || sink)
            .start()
            .unwrap();
        let barriers: Vec<_> = (0..20)
            .map(|_| {
                std::thread::sleep(Duration::from_micros(500));
                running.barrier_at("stamp")
            })
            .collect();
        let passed: Vec<_> = barriers.into_iter().map(|b| futures::executor::block_on(b).unwrap()).collect();
        running.drain();
        end(running).result.unwrap();
        let batches = keep.batches.lock().unwrap();
        for barrier in passed {
            let epoch = barrier.0 as u32;
            let marks: Vec<usize> = (0..batches.len()).filter(|i| batches[*i].lineage.epoch == epoch).collect();
            assert_eq!(marks.len(), 3, "each replica once");
            assert_eq!(marks[2] - marks[0], 2, "nothing between them");
            let numbers = |batches: &[Numbers]| {
                batches.iter().filter(|b| b.rows() > 0).map(|b| b.lineage.seq).collect::<Vec<_>>()
            };
            let before = numbers(&batches[..marks[0]]).len() as u64;
            assert!(numbers(&batches[..marks[0]]).iter().all(|seq| *seq < before), "before it, the first batches");
            assert!(numbers(&batches[marks[2]..]).iter().all(|seq| *seq >= before), "after it, the others");
        }
    }
}
