//! Whole pipelines without faults: every row arrives, and every bound holds.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::{Count, Double, Keep, Numbers, end, until};
use forebay_actors::{
    Batch, Capacity, Domain, Fault, FaultKind, Lineage, Outbox, Place, Replicas, Report, Sink, Source, Stage, StageCx,
    Topology, Verdict,
};
use proptest::prelude::*;

#[test]
fn three_stages_deliver_every_row_in_order() {
    let keep = Keep::default();
    let sink = keep.clone();
    let pipeline = Topology::new("three")
        .source("count", Place::Shared, || Count::new(100, 7))
        .link(4)
        .stage("double", Place::Own, || Double { delay: None })
        .link(Capacity::items(3).bytes(100))
        .sink("keep", Place::Shared, move || sink);
    let outcome = end(pipeline.start().unwrap());
    outcome.result.unwrap();
    assert_eq!(keep.values(), (0..700).map(|v| v * 2).collect::<Vec<u64>>());
    let report = outcome.report;
    assert_eq!(report.verdict, Verdict::Finished);
    assert_eq!((report.ledger.read, report.ledger.delivered), (700, 700));
    assert_eq!(report.links.iter().map(|l| (l.items, l.rows, l.bytes)).collect::<Vec<_>>(), [(100, 700, 5600); 2]);
    assert!(report.links[0].high_water <= 4 && report.links[1].high_water <= 3);
    let back: Report = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(back.ledger, report.ledger);
    let text = report.to_string();
    for part in ["three: finished", "count [counts to 100]", "double [doubles]", "busy", "700 rows read = 700"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn no_batches_at_all() {
    let keep = Keep::default();
    let sink = keep.clone();
    let report = Topology::new("empty")
        .source("count", Place::Own, || Count::new(0, 7))
        .replicated("double", Place::Own, Replicas::ordered(3), |_| Double { delay: None })
        .sink("keep", Place::Own, move || sink)
        .run()
        .unwrap();
    assert_eq!((report.ledger.read, keep.values().len()), (0, 0));
    report.to_string();
}

#[test]
fn links_of_one_and_items_above_the_byte_budget() {
    let keep = Keep::default();
    let sink = keep.clone();
    let report = Topology::new("tight")
        .source("count", Place::Own, || Count::new(200, 1000))
        .link(Capacity::items(1).bytes(10))
        .stage("double", Place::Own, || Double { delay: None })
        .link(1)
        .sink("keep", Place::Own, move || sink)
        .run()
        .unwrap();
    assert_eq!(report.ledger.delivered, 200_000);
    assert_eq!(keep.seqs(), (0..200).collect::<Vec<u64>>());
    assert!(report.links.iter().all(|link| link.high_water == 1));
}

/// Not `Send`: it must be made on the thread where it runs.
struct Local {
    seen: Rc<std::cell::Cell<u64>>,
}

impl Stage for Local {
    type In = Numbers;
    type Out = Numbers;
    fn describe(&self) -> String {
        format!("saw {}", self.seen.get())
    }
    async fn on_batch(&mut self, batch: Numbers, _cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
        let seen = Rc::clone(&self.seen);
        tokio::task::yield_now().await;
        seen.set(seen.get() + 1);
        out.send(batch).await
    }
}

#[test]
fn a_stage_need_not_be_send_and_its_last_word_is_in_the_report() {
    let report = Topology::new("local")
        .source("count", Place::Shared, || Count::new(10, 1))
        .stage("local", Place::Shared, || Local { seen: Rc::default() })
        .sink("keep", Place::Shared, Keep::default)
        .run()
        .unwrap();
    assert_eq!(report.stages[1].describe, "saw 10");
}

#[test]
fn threads_carry_the_names_of_their_stages() {
    struct Where(Arc<std::sync::Mutex<Vec<String>>>);
    impl Sink for Where {
        type In = Numbers;
        async fn write(&mut self, _: Numbers, _cx: &StageCx) -> Result<(), Fault> {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            self.0.lock().unwrap().push(name.trim().to_owned());
            Ok(())
        }
    }
    let words = Arc::default();
    let sink = Where(Arc::clone(&words));
    Topology::new("names")
        .source("count", Place::Shared, || Count::new(1, 1))
        .sink("my sink", Place::Own, move || sink)
        .run()
        .unwrap();
    assert_eq!(*words.lock().unwrap(), ["my sink"]);
}

/// A batch that counts how many are alive.
struct Live {
    lineage: Lineage,
    alive: Arc<AtomicUsize>,
}

impl Live {
    fn new(seq: u64, alive: &Arc<AtomicUsize>, most: &Arc<AtomicUsize>) -> Self {
        most.fetch_max(alive.fetch_add(1, SeqCst) + 1, SeqCst);
        let lineage = Lineage { seq, ..Lineage::default() };
        Self { lineage, alive: Arc::clone(alive) }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
    }
}

impl Batch for Live {
    fn rows(&self) -> usize {
        1
    }
    fn bytes(&self) -> usize {
        1
    }
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

struct Births {
    next: u64,
    batches: u64,
    alive: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Source for Births {
    type Out = Live;
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Live>, Fault> {
        self.next += 1;
        Ok((self.next <= self.batches).then(|| Live::new(self.next - 1, &self.alive, &self.most)))
    }
}

/// Pauses for the times in `pauses`.
struct Uneven {
    pauses: Vec<u8>,
    next: usize,
}

impl Uneven {
    async fn pause(&mut self) {
        self.next += 1;
        match self.pauses[self.next % self.pauses.len()] {
            0 => {}
            1 => tokio::task::yield_now().await,
            n => tokio::time::sleep(Duration::from_micros(u64::from(n) * 20)).await,
        }
    }
}

impl Stage for Uneven {
    type In = Live;
    type Out = Live;
    async fn on_batch(&mut self, batch: Live, _cx: &StageCx, out: &mut Outbox<Live>) -> Result<(), Fault> {
        self.pause().await;
        out.send(batch).await
    }
}

struct Graves(Uneven);

impl Sink for Graves {
    type In = Live;
    async fn write(&mut self, batch: Live, _cx: &StageCx) -> Result<(), Fault> {
        self.0.pause().await;
        drop(batch);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// At most one batch in the source, in each stage or replica and in the sink, and full links.
    #[test]
    fn never_more_under_way_than_the_capacities_allow(
        capacities in prop::array::uniform3(1usize..5),
        replicas in 1usize..4,
        pauses in prop::collection::vec(0u8..8, 1..20),
        slow in prop::collection::vec(0u8..8, 1..20),
    ) {
        let (alive, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let source = Births { next: 0, batches: 60, alive: Arc::clone(&alive), most: Arc::clone(&most) };
        let [first, second, third] = capacities;
        let (a, b) = (pauses.clone(), pauses);
        let report = Topology::new("bounds")
            .source("births", Place::Own, move || source)
            .link(first)
            .stage("uneven", Place::Shared, move || Uneven { pauses: a, next: 0 })
            .link(second)
            .replicated("replicas", Place::Shared, Replicas::ordered(replicas), move |i| Uneven { pauses: b.clone(), next: i })
            .link(third)
            .sink("graves", Place::Own, move || Graves(Uneven { pauses: slow, next: 0 }))
            .run()
            .unwrap();
        prop_assert_eq!(report.ledger.delivered, 60);
        prop_assert_eq!(alive.load(SeqCst), 0);
        let allowed = 1 + first + 1 + second + replicas + third + 1;
        prop_assert!(most.load(SeqCst) <= allowed, "{} under way, {} allowed", most.load(SeqCst), allowed);
        for (link, capacity) in report.links.iter().zip(capacities) {
            prop_assert!(link.high_water <= capacity as u64);
            prop_assert_eq!(link.depth, 0);
        }
    }
}

#[test]
fn busy_waiting_starved_blocked_and_idle_are_all_of_the_runs_wall_time() {
    let started = std::time::Instant::now();
    let slow = Some(Duration::from_millis(2));
    let report = Topology::new("meters")
        .source("count", Place::Own, || Count::new(100, 1))
        .link(2)
        .stage("double", Place::Own, || Double { delay: None })
        .link(2)
        .stage("slow", Place::Own, move || Double { delay: slow })
        // Room for all batches, so that `slow` is not blocked whenever the thread of `keep` has no core for a while.
        .link(100)
        .sink("keep", Place::Own, Keep::default)
        .run()
        .unwrap();
    for stage in &report.stages {
        let times = stage.busy + stage.waiting + stage.starved + stage.blocked + stage.idle;
        assert_eq!((times, stage.wall), (report.wall, report.wall), "{}", stage.name);
        assert!(stage.wall <= started.elapsed());
        assert_eq!(stage.rows_in, 100);
    }
    let [source, double, slow, keep] = &report.stages[..] else { panic!("four stages") };
    // A stage that awaits its timer waits, and is not busy. A hundred sleeps of 2 ms are 200 ms at least; the system may have taken the
    // thread's core away at the beginning of some, before they counted as waiting.
    assert!(slow.waiting >= Duration::from_millis(100));
    assert!([source.blocked, double.blocked, double.starved, keep.starved].iter().all(|time| !time.is_zero()));
    assert_eq!((keep.blocked, source.starved), (Duration::ZERO, Duration::ZERO));
    assert!(report.links[0].blocked_sends > 0 && report.links[2].blocked_sends == 0);
}

#[test]
fn no_time_of_a_stage_falls_from_one_report_to_the_next() {
    let delay = Some(Duration::from_millis(1));
    let running = Topology::new("meters")
        .source("count", Place::Own, || Count::new(100, 1))
        .replicated("slow", Place::Own, Replicas::ordered(2), move |_| Double { delay })
        .sink("keep", Place::Own, Keep::default)
        .start()
        .unwrap();
    let times = |report: &Report| -> Vec<[Duration; 6]> {
        let times = |stage: &forebay_actors::StageReport| {
            [stage.busy, stage.waiting, stage.starved, stage.blocked, stage.idle, stage.wall]
        };
        report.stages.iter().map(times).collect()
    };
    let (control, mut last) = (running.control(), times(&running.snapshot()));
    loop {
        let now = times(&control.snapshot());
        // A report of a run that has ended is of the moment of its end, a little before the last one.
        if control.ended() {
            break;
        }
        let falls = now.iter().flatten().zip(last.iter().flatten()).any(|(now, last)| now < last);
        assert!(!falls, "{now:?} after {last:?}");
        last = now;
    }
    end(running).result.unwrap();
}

#[test]
fn a_lost_row_is_a_fault_with_the_numbers() {
    struct Thief;
    impl Stage for Thief {
        type In = Numbers;
        type Out = Numbers;
        async fn on_batch(
            &mut self,
            mut batch: Numbers,
            _cx: &StageCx,
            out: &mut Outbox<Numbers>,
        ) -> Result<(), Fault> {
            batch.values.pop();
            out.send(batch).await
        }
    }
    let outcome = end(Topology::new("theft")
        .source("count", Place::Shared, || Count::new(10, 5))
        .stage("thief", Place::Shared, || Thief)
        .sink("keep", Place::Shared, Keep::default)
        .start()
        .unwrap());
    let fault = outcome.result.unwrap_err();
    assert_eq!((fault.domain, fault.kind), (Domain::Internal, FaultKind::LedgerMismatch));
    assert!(fault.to_string().contains("50 rows read, but 40 delivered and 0 rejected"), "{fault}");
    assert!(fault.to_string().ends_with("rows in and out differ at `thief` (50 in, 40 out)"), "{fault}");
    assert!(outcome.report.to_string().contains("failed"));
}

#[test]
fn rejected_rows_are_accounted_for() {
    struct Sieve;
    impl Stage for Sieve {
        type In = Numbers;
        type Out = Numbers;
        async fn on_batch(&mut self, mut batch: Numbers, cx: &StageCx, out: &mut Outbox<Numbers>) -> Result<(), Fault> {
            let before = batch.rows();
            batch.values.retain(|v| v % 3 != 0);
            cx.ledger().reject("divisible by three", (before - batch.rows()) as u64);
            out.send(batch).await
        }
    }
    let report = Topology::new("sieve")
        .source("count", Place::Shared, || Count::new(10, 9))
        .stage("sieve", Place::Shared, || Sieve)
        .sink("keep", Place::Shared, Keep::default)
        .run()
        .unwrap();
    assert_eq!(report.ledger.rejected["divisible by three"], 30);
    assert!(report.to_string().contains("30 rejected (divisible by three)"));
}

#[test]
fn a_run_can_be_awaited_on_any_executor() {
    let keep = Keep::default();
    let sink = keep.clone();
    let running = Topology::new("awaited")
        .source("count", Place::Shared, || Count::new(10, 1))
        .sink("keep", Place::Shared, move || sink)
        .start()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(running.outcome()).result.unwrap();
    assert_eq!(keep.seqs(), (0..10).collect::<Vec<u64>>());
}

#[test]
fn waiting_works_inside_executors() {
    let pipeline = || {
        Topology::new("nested").source("count", Place::Shared, || Count::new(10, 1)).sink(
            "keep",
            Place::Shared,
            Keep::default,
        )
    };
    futures::executor::block_on(async { pipeline().run().unwrap() });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { pipeline().run().unwrap() });
}

#[test]
fn plans_show_every_capacity_and_names_are_unique() {
    let host = forebay_actors::Host::start("host").unwrap();
    let pipeline = Topology::new("plan")
        .attach(&host)
        .source("count", Place::Shared, || Count::new(1, 1))
        .link(Capacity::items(8).bytes(64 << 20))
        .replicated("double", Place::Own, Replicas::ordered(3), |_| Double { delay: None })
        .link(2)
        .sink("keep", Place::Shared, Keep::default);
    let text = pipeline.plan().to_string();
    for part in ["8 items, 64.0 MiB", "double: stage × 3 ordered, own", "2 items", "keep: sink, shared"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = serde_json::to_string(pipeline.plan()).unwrap();
    assert_eq!(&serde_json::from_str::<forebay_actors::Plan>(&json).unwrap(), pipeline.plan());
    let twice = Topology::new("twice").source("count", Place::Shared, || Count::new(1, 1)).sink(
        "count",
        Place::Shared,
        Keep::default,
    );
    assert!(twice.run().unwrap_err().to_string().contains("two stages are called `count`"));
}

#[test]
fn no_thread_is_left_behind() {
    // Names that no other test uses.
    let run = |i: usize| {
        Topology::new(&format!("leak{i}"))
            .source("leak-source", Place::Own, || Count::new(10, 1))
            .replicated("leak-stage", Place::Own, Replicas::unordered(2), |_| Double { delay: None })
            .sink("leak-sink", Place::Own, Keep::default)
            .run()
            .unwrap()
    };
    for i in 0..3 {
        run(i);
    }
    // A thread that was joined stays in the list for a moment.
    until("no thread of the runs is left", || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut names = threads.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
        !names.any(|name| name.starts_with("leak-"))
    });
}
