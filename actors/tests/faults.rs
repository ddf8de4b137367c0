//! Stages that fail on purpose: the run ends with the right root cause, and never hangs.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Count, Double, Keep, Numbers, end, until};
use forebay_actors::{
    BarrierNumber, Domain, Fault, FaultKind, Outbox, Phase, Place, Replicas, Sink, Source, Stage, StageCx, Topology,
    Verdict,
};

/// The phase to fail in, and whether with a panic; `None` never fails.
#[derive(Clone, Copy, Debug)]
struct Bomb(Option<(Phase, bool)>);

impl Bomb {
    fn at(self, phase: Phase) -> Result<(), Fault> {
        match self.0 {
            Some((when, true)) if when == phase => panic!("boom"),
            Some((when, false)) if when == phase => Err(Fault::external("boom").retryable()),
            _ => Ok(()),
        }
    }

    /// Fails at batch 5, when everything upstream is full.
    fn on_batch(self, seq: u64) -> Result<(), Fault> {
        if seq == 5 { self.at(Phase::Batch) } else { Ok(()) }
    }
}

struct BombSource(Bomb, Count);

impl Source for BombSource {
    type Out = Numbers;
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.0.at(Phase::Open)?;
        self.1.open(cx).await
    }
    async fn next(&mut self, cx: &StageCx) -> Result<Option<Numbers>, Fault> {
        self.0.on_batch(self.1.next)?;
        self.1.next(cx).await
    }
}

struct BombStage(Bomb);

impl Stage for BombStage {
    type In = Numbers;
    type Out = Numbers;
    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.0.at(Phase::Open)
    }
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        self.0.on_batch(batch.lineage.seq)?;
        out.send(batch).await
    }
    async fn on_barrier(
        &mut self,
        _barrier: BarrierNumber,
        _cx: &StageCx,
        _out: &mut Outbox<Numbers>,
    ) -> Result<(), Fault> {
        self.0.at(Phase::Barrier)
    }
    async fn finish(&mut self, _cx: &StageCx, _out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        self.0.at(Phase::Finish)
    }
}

struct BombSink(Bomb);

impl Sink for BombSink {
    type In = Numbers;
    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.0.at(Phase::Open)
    }
    async fn write(&mut self, batch: Numbers, _cx: &StageCx) -> Result<(), Fault> {
        self.0.on_batch(batch.lineage.seq)
    }
    async fn on_barrier(&mut self, _barrier: BarrierNumber, _cx: &StageCx) -> Result<(), Fault> {
        self.0.at(Phase::Barrier)
    }
    async fn finish(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.0.at(Phase::Finish)
    }
}

#[test]
fn every_fault_in_every_place_ends_the_run_with_its_root_cause() {
    let stages = ["source", "first", "ordered", "unordered", "sink"];
    for culprit in stages {
        for phase in [Phase::Open, Phase::Batch, Phase::Barrier, Phase::Finish] {
            if culprit == "source" && matches!(phase, Phase::Barrier | Phase::Finish) {
                continue;
            }
            for panics in [false, true] {
                let bomb = move |name: &str| Bomb((name == culprit).then_some((phase, panics)));
                // With links of one, everything above the culprit is blocked. The source is endless unless the end is
                // tested.
                let batches = if phase == Phase::Finish { 20 } else { u64::MAX };
                let topology = Topology::new("broken");
                let source = bomb("source");
                let flow =
                    topology.source("source", Place::Own, move || BombSource(source, Count::new(batches, 3))).link(1);
                let first = bomb("first");
                let flow = flow.stage("first", Place::Shared, move || BombStage(first)).link(1);
                let ordered = bomb("ordered");
                let flow = flow
                    .replicated("ordered", Place::Shared, Replicas::ordered(2), move |_| BombStage(ordered))
                    .link(1);
                let unordered = bomb("unordered");
                let flow = flow
                    .replicated("unordered", Place::Own, Replicas::unordered(2), move |_| BombStage(unordered))
                    .link(1);
                let sink = bomb("sink");
                let running = flow.sink("sink", Place::Own, move || BombSink(sink)).start().unwrap();
                let barrier = (phase == Phase::Barrier).then(|| running.barrier_at("first"));
                let what = format!("{culprit} {phase:?} panics: {panics}");
                let outcome = end(running);
                let fault = outcome.result.expect_err(&what);
                assert_eq!(fault.stage.as_deref(), Some(culprit), "{what}: {fault}");
                assert_eq!(fault.phase, Some(phase), "{what}: {fault}");
                assert!(fault.to_string().contains("boom"), "{what}: {fault}");
                assert_eq!(fault.kind, if panics { FaultKind::Panic } else { FaultKind::Other }, "{what}");
                assert_eq!(fault.domain, if panics { Domain::Internal } else { Domain::External }, "{what}");
                assert_eq!(fault.retryable, !panics, "{what}");
                if phase == Phase::Batch && culprit != "source" {
                    assert_eq!(fault.lineage.as_ref().map(|l| l.seq), Some(5), "{what}: {fault}");
                }
                assert!(matches!(outcome.report.verdict, Verdict::Failed { .. }), "{what}");
                if let Some(barrier) = barrier {
                    assert!(futures::executor::block_on(barrier).is_err(), "{what}: it did not pass");
                }
            }
        }
    }
}

/// A pipeline whose sink never takes a batch: everything above it fills up.
fn clogged() -> forebay_actors::Running {
    struct Clog;
    impl Sink for Clog {
        type In = Numbers;
        async fn write(&mut self, _: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            std::future::pending().await
        }
    }
    let running = Topology::new("clogged")
        .source("count", Place::Own, || Count::endless(3))
        .link(1)
        .stage("double", Place::Shared, || Double { delay: None })
        .link(1)
        .replicated("many", Place::Shared, Replicas::ordered(2), |_| Double { delay: None })
        .link(1)
        .sink("clog", Place::Own, || Clog)
        .start()
        .unwrap();
    until("every link holds a batch", || running.snapshot().links.iter().all(|link| link.depth > 0));
    running
}

#[test]
fn a_kill_from_outside_ends_a_clogged_run() {
    let running = clogged();
    let control = running.control();
    assert!(!control.killed());
    running.kill(Fault::user("enough"));
    assert!(control.killed());
    running.kill(Fault::user("too late to matter"));
    assert_eq!(end(running).result.unwrap_err().message(), "enough");
}

#[test]
fn a_dropped_handle_ends_the_run() {
    let running = clogged();
    let control = running.control();
    drop(running);
    until("the run has ended", || control.ended());
    let verdict = control.snapshot().verdict;
    assert!(
        matches!(&verdict, Verdict::Failed { message, .. } if message.contains("handle of the run was dropped")),
        "{verdict:?}"
    );
    assert!(control.scale("many", 3).is_ok(), "asking an ended run is harmless");
}

#[test]
fn a_stage_that_blocks_its_thread_is_left_behind() {
    struct Block(std::sync::mpsc::Receiver<()>);
    impl Sink for Block {
        type In = Numbers;
        async fn write(&mut self, _: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            let _ = self.0.recv();
            Ok(())
        }
    }
    let (release, gate) = std::sync::mpsc::channel();
    let running = Topology::new("stuck")
        .grace(Duration::from_millis(50))
        .source("count", Place::Own, || Count::endless(1))
        .sink("block", Place::Own, move || Block(gate))
        .start()
        .unwrap();
    until("the sink has a batch", || running.snapshot().stages[1].items_in > 0);
    running.kill(Fault::user("enough"));
    assert_eq!(end(running).result.unwrap_err().message(), "enough");
    drop(release);
}

#[test]
fn a_stage_that_cannot_be_made_or_dropped_is_a_fault() {
    let made = Topology::new("unmade")
        .source("count", Place::Own, || Count::endless(1))
        .stage("bad", Place::Own, || -> Double { panic!("no such device") })
        .sink("keep", Place::Own, Keep::default);
    let fault = end(made.start().unwrap()).result.unwrap_err();
    assert!(fault.to_string().contains("panicked: no such device (stage `bad`, opening)"), "{fault}");

    struct Sticky;
    impl Sink for Sticky {
        type In = Numbers;
        async fn write(&mut self, _: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            Ok(())
        }
    }
    impl Drop for Sticky {
        fn drop(&mut self) {
            panic!("will not go");
        }
    }
    let dropped =
        Topology::new("undropped")
            .source("count", Place::Own, || Count::new(3, 1))
            .sink("sticky", Place::Own, || Sticky);
    let fault = end(dropped.start().unwrap()).result.unwrap_err();
    assert!(fault.to_string().contains("will not go") && fault.stage.as_deref() == Some("sticky"), "{fault}");
}
