//! Pipelines whose limit is known: the analysis names it. Real stages wait, compute and call shards, and that is what their meters must
//! show. How long it took depends on the machine, so the analysis gets the same reports with times that are set by hand.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{
    Batch, Fault, Host, Lineage, Outbox, Place, Report, Service, Sink, Source, Stage, StageCx, StageReport, Topology,
    WaitKind,
};
use forebay_connectors::{DataPlan, Lease, Leases, LocalLeases, ReadOptions, Synthetic, SyntheticSource};
use forebay_pipelines::{Certainty, Job, LimitKind, ProcessReport, RunReport};

const BATCHES: u64 = 40;

/// How long a slow stand-in takes for a batch.
const TIME: Duration = Duration::from_millis(4);

/// The wall time of the runs that are analysed.
const WALL: Duration = Duration::from_secs(10);

/// What a stand-in does for each batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    Nothing,
    /// It awaits something else.
    Waits,
    /// It computes.
    Spins,
}

impl Takes {
    async fn time(self) {
        match self {
            Self::Nothing => {}
            Self::Waits => tokio::time::sleep(TIME).await,
            Self::Spins => {
                let begin = std::time::Instant::now();
                while begin.elapsed() < TIME {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

#[derive(Clone, Default)]
struct Number(Lineage);

impl Batch for Number {
    fn rows(&self) -> usize {
        1
    }
    fn bytes(&self) -> usize {
        8
    }
    fn lineage(&self) -> &Lineage {
        &self.0
    }
}

struct StandIn(Takes, u64);

impl Source for StandIn {
    type Out = Number;
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Number>, Fault> {
        self.0.time().await;
        self.1 += 1;
        Ok((self.1 <= BATCHES).then(|| Number(Lineage { seq: self.1, ..Lineage::default() })))
    }
}

impl Stage for StandIn {
    type In = Number;
    type Out = Number;
    async fn on_batch(&mut self, batch: Number, _cx: &StageCx, out: &mut Outbox<Number>) -> Result<(), Fault> {
        self.0.time().await;
        out.send(batch).await
    }
}

impl Sink for StandIn {
    type In = Number;
    async fn write(&mut self, _batch: Number, _cx: &StageCx) -> Result<(), Fault> {
        self.0.time().await;
        Ok(())
    }
}

const STAGES: [&str; 6] = ["read", "parse", "batch", "lookup", "train", "push"];

/// Runs a training whose stages are stand-ins. The stage `slow` takes time, the other stages take none.
fn run(slow: &str, takes: Takes) -> Report {
    let [read, parse, batch, lookup, train, push] =
        STAGES.map(|name| StandIn(if name == slow { takes } else { Takes::Nothing }, 0));
    Topology::new("train")
        .source("read", Place::Own, move || read)
        .link(2)
        .stage("parse", Place::Own, move || parse)
        .link(2)
        .stage("batch", Place::Own, move || batch)
        .link(2)
        .stage("lookup", Place::Own, move || lookup)
        .link(2)
        .stage("train", Place::Own, move || train)
        .link(2)
        .sink("push", Place::Own, move || push)
        .run()
        .unwrap()
}

/// The analysis of the run, if its stages and services had taken no time, and it had one machine with cores to spare for itself; `set`
/// sets the times of some.
fn analysed(mut report: Report, set: impl Fn(&mut StageReport)) -> RunReport {
    (report.wall, report.machine.cpu) = (WALL, Duration::ZERO);
    // More cores than the stand-ins could use, whatever this machine has: they are not the limit.
    (report.machine.cores, report.machine.core_seconds) = (64, None);
    for stage in report.stages.iter_mut().chain(&mut report.services) {
        stage.waits.values_mut().for_each(|wait| wait.total = Duration::ZERO);
        (stage.busy, stage.waiting) = (Duration::ZERO, Duration::ZERO);
        (stage.starved, stage.blocked) = (Duration::ZERO, Duration::ZERO);
        set(stage);
        *stage = stage.clone().over(WALL);
    }
    let own = ProcessReport { process: "train".into(), report };
    RunReport::new(own, Vec::new(), &Job::from_toml("", &["pipeline.cores=2".into()]).unwrap(), None)
}

#[test]
fn each_stage_in_turn_is_named_whether_it_waits_or_computes() {
    for name in STAGES {
        for (takes, kind) in [(Takes::Waits, LimitKind::Wait), (Takes::Spins, LimitKind::Stage)] {
            let report = run(name, takes);
            let stage = report.stages.iter().find(|stage| stage.name == name).unwrap();
            let counted = if takes == Takes::Waits { stage.waiting } else { stage.busy };
            assert!(counted >= TIME, "{takes:?} counts as something else: {report}");
            let report = analysed(report, |stage| {
                if stage.name == name {
                    *(if takes == Takes::Waits { &mut stage.waiting } else { &mut stage.busy }) = WALL;
                }
            });
            let limit = report.analysis.limit.as_ref().unwrap();
            assert_eq!((limit.name.as_str(), limit.kind), (name, kind), "{takes:?}: {report}");
            assert_eq!(report.analysis.certainty, Certainty::Sure, "{report}");
        }
    }
}

#[test]
fn the_report_adds_up_and_survives_json() {
    let report = analysed(run("parse", Takes::Waits), |stage| {
        if stage.name == "parse" {
            stage.waiting = WALL;
        }
    });
    let text = serde_json::to_string(&report).unwrap();
    let back: RunReport = serde_json::from_str(&text).unwrap();
    assert_eq!((back.to_string(), back.stages.len()), (report.to_string(), STAGES.len()));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["analysis"]["limit"]["name"], "parse");
    assert_eq!(json["stages"][1]["name"], "parse", "the fields of the report stay where they were");
}

/// A shard that answers after a while.
struct SlowShard(Takes);

impl Service for SlowShard {
    type Call = ();
    type Reply = ();
    async fn call(&mut self, (): ()) -> Result<(), Fault> {
        self.0.time().await;
        Ok(())
    }
}

/// Awaits a reply of each shard.
struct Asks(Vec<forebay_actors::Client<(), ()>>);

impl Stage for Asks {
    type In = Number;
    type Out = Number;
    async fn on_batch(&mut self, batch: Number, cx: &StageCx, out: &mut Outbox<Number>) -> Result<(), Fault> {
        let calls = futures::future::try_join_all(self.0.iter().map(|shard| shard.call(())));
        cx.meter().waiting_on("shards", calls).await?;
        out.send(batch).await
    }
}

#[test]
fn a_slow_shard_among_others_is_named_and_not_the_stage_that_waits_for_it() {
    let host = Host::start("ps").unwrap();
    let shards: Vec<_> = [Takes::Nothing, Takes::Spins, Takes::Nothing]
        .into_iter()
        .enumerate()
        .map(|(i, takes)| host.serve(&format!("ps{i}-embedding"), Place::Own, 8, move || SlowShard(takes)))
        .collect();
    let report = Topology::new("train")
        .attach(&host)
        .source("read", Place::Own, || StandIn(Takes::Nothing, 0))
        .stage("lookup", Place::Own, move || Asks(shards))
        .sink("train", Place::Own, || StandIn(Takes::Nothing, 0))
        .run()
        .unwrap();
    let waits = report.stages[1].waits["shards"];
    // A batch whose calls are answered before the stage looks for the replies has no wait: its thread may have had no core.
    assert!(waits.kind == WaitKind::Waiting && (1..=BATCHES).contains(&waits.count), "{report}");
    assert!(report.services[1].busy >= TIME, "{report}");
    let report = analysed(report, |stage| match stage.name.as_str() {
        "ps1-embedding" => stage.busy = WALL,
        "lookup" => {
            stage.waiting = WALL;
            stage.waits.get_mut("shards").unwrap().total = WALL;
        }
        _ => {}
    });
    let limit = report.analysis.limit.as_ref().unwrap();
    assert_eq!((limit.kind, limit.name.as_str()), (LimitKind::Shard, "ps1-embedding"), "{report}");
    assert!(limit.skew.is_some(), "{report}");
    host.stop().unwrap();
}

/// Leases that take a while.
#[derive(Debug)]
struct LateLeases(LocalLeases);

#[async_trait::async_trait]
impl Leases for LateLeases {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        tokio::time::sleep(TIME).await;
        self.0.next(data).await
    }
}

/// Takes rows in.
struct Take;

impl Sink for Take {
    type In = forebay_connectors::Rows;
    async fn write(&mut self, _rows: Self::In, _cx: &StageCx) -> Result<(), Fault> {
        Ok(())
    }
}

#[test]
fn a_source_that_waits_for_leases_is_starved_and_the_leases_are_the_limit() {
    let options = ReadOptions { window_rows: 100, batch_rows: 100, ..ReadOptions::default() };
    // 30 batches: a run of fewer than 20 gets no verdict.
    let what = Synthetic { rows: 3_000, ..Synthetic::default() };
    let leases = Arc::new(LateLeases(LocalLeases::new(1)));
    let report = Topology::new("read")
        .source("read", Place::Own, move || SyntheticSource::new(what, options).leasing(leases))
        .sink("take", Place::Own, || Take)
        .run()
        .unwrap();
    let read = &report.stages[0];
    let lease = read.waits["lease"];
    assert!(lease.kind == WaitKind::Starved && lease.count > 0 && read.starved >= lease.total, "{report}");
    let report = analysed(report, |stage| {
        if stage.name == "read" {
            stage.starved = WALL;
            stage.waits.get_mut("lease").unwrap().total = WALL;
        }
    });
    let limit = report.analysis.limit.as_ref().unwrap();
    assert_eq!((limit.kind, limit.name.as_str()), (LimitKind::Lease, "leases"), "{report}");
    assert_ne!(report.analysis.certainty, Certainty::Unclear, "{report}");
}
