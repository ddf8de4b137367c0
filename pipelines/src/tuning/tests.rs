//! The tuner against simulated runs: stages with known costs, a known number of cores, and every setting tried for comparison.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_actors::{
    Batch, Control, Fault, Lineage, Machine, Outbox, Place, Replicas, Report, Sink, Source, Stage, StageCx,
    StageReport, Topology, TunedKnob,
};
use forebay_base::MemoryBudget;
use proptest::prelude::*;

use super::observation::{MeterReader, Observation, StageLoad};
use super::tuner::Tuner;
use super::tuning_thread::TuningThread;

/// A run whose stages overlap perfectly, unless `turns`.
#[derive(Clone, Debug)]
struct Simulated {
    /// Seconds of a replica per row, of the stages that can be scaled.
    scalable: Vec<f64>,
    /// Seconds per row of the others, each in one replica.
    fixed: Vec<f64>,
    /// The part of the others' time that they use a core.
    computes: f64,
    cores: usize,
    /// One more replica costs every replica this share more time per row, because they compete for a resource.
    contention: f64,
    /// With one replica, the last scalable stage and the others take turns.
    turns: bool,
    /// Measured rates are off by at most this share.
    noise: f64,
    /// Bytes of a replica of each scalable stage, and of all together at most.
    bytes: [f64; 2],
    memory: f64,
}

/// Memory without a limit.
const NO_LIMIT: f64 = f64::INFINITY;

impl Simulated {
    fn cost(&self, stage: usize, replicas: &[usize]) -> f64 {
        self.scalable[stage] * (1.0 + self.contention * (replicas[stage] - 1) as f64)
    }

    fn rate(&self, replicas: &[usize]) -> f64 {
        let scalable = (0..replicas.len()).map(|stage| self.cost(stage, replicas) / replicas[stage] as f64);
        let slowest = scalable.chain(self.fixed.iter().copied()).fold(0.0, f64::max);
        let last = replicas.len() - 1;
        let turn = if self.turns && replicas[last] == 1 {
            self.cost(last, replicas) + self.fixed.iter().copied().fold(0.0, f64::max)
        } else {
            0.0
        };
        1.0 / slowest.max(turn)
    }

    /// Cores that this setting uses.
    fn cores_used(&self, replicas: &[usize]) -> f64 {
        let others: f64 = self.fixed.iter().sum::<f64>() * self.computes * self.rate(replicas);
        replicas.iter().sum::<usize>() as f64 + others
    }

    /// Bytes of all replicas.
    fn bytes_used(&self, replicas: &[usize]) -> f64 {
        replicas.iter().zip(&self.bytes).map(|(&n, bytes)| n as f64 * bytes).sum()
    }

    fn allows(&self, replicas: &[usize]) -> bool {
        replicas.iter().all(|&n| n == 1) || self.cores_used(replicas) <= self.cores as f64 + 1e-6
    }

    /// The highest rate of all settings within the cores.
    fn best(&self) -> f64 {
        let mut settings: Vec<Vec<usize>> = vec![Vec::new()];
        for _ in &self.scalable {
            let longer = |s: Vec<usize>| (1..=self.cores).map(move |n| [&s[..], &[n]].concat());
            settings = settings.into_iter().flat_map(longer).collect();
        }
        settings.iter().filter(|s| self.allows(s)).map(|s| self.rate(s)).fold(0.0, f64::max)
    }

    fn observe(&self, replicas: &[usize], number: u64) -> Observation {
        // Between -1 and 1, without a pattern that matters.
        let off = ((number * 7919) % 201) as f64 / 100.0 - 1.0;
        let rate = self.rate(replicas) * (1.0 + self.noise * off);
        let load = |stage: usize| {
            let useful = rate * self.cost(stage, replicas);
            let (name, replica_bytes) = (format!("s{stage}"), self.bytes[stage]);
            StageLoad { name, replicas: replicas[stage], useful, busy: useful, replica_bytes }
        };
        let scalable: Vec<StageLoad> = (0..replicas.len()).map(load).collect();
        let others: f64 = self.fixed.iter().sum::<f64>() * self.computes * rate;
        let cpu = others + scalable.iter().map(|stage| stage.busy).sum::<f64>();
        let others_occupied = self.fixed.iter().map(|cost| (cost * rate).min(1.0)).fold(0.0, f64::max);
        let starved_behind = 1.0 - self.fixed.first().map_or(0.0, |cost| (cost * rate).min(1.0));
        let free_bytes = self.memory - self.bytes_used(replicas);
        let (seconds, rows, paused, compute) = (1.0, rate, 0.0, None);
        Observation { seconds, rows, cpu, scalable, others_occupied, starved_behind, paused, free_bytes, compute }
    }
}

/// A tuner with the run that it tunes.
struct Tuned {
    tuner: Tuner,
    replicas: Vec<usize>,
    intervals: u64,
}

impl Tuned {
    fn new(run: &Simulated) -> Self {
        Self { tuner: Tuner::new(run.cores), replicas: vec![1; run.scalable.len()], intervals: 0 }
    }

    /// Runs on for so many intervals. Returns in how many of them the replicas changed.
    fn go_on(&mut self, run: &Simulated, intervals: u64) -> usize {
        let mut changes = 0;
        for _ in 0..intervals {
            self.intervals += 1;
            let seen = run.observe(&self.replicas, self.intervals);
            if let Some(replicas) = self.tuner.observe(Duration::from_secs(self.intervals), &seen) {
                assert!(replicas != self.replicas && replicas.iter().all(|&n| n > 0), "{replicas:?}");
                self.replicas = replicas;
                changes += 1;
            }
        }
        changes
    }
}

/// Within so many intervals of a second it must be near the best.
const SOON: u64 = 30;

fn simulated() -> impl Strategy<Value = Simulated> {
    let cost = || (0..1000_u32).prop_map(|x| 1e-6 * 10_f64.powf(f64::from(x) / 400.0));
    let (scalable, fixed) = (prop::collection::vec(cost(), 2), prop::collection::vec(cost(), 1..4));
    (scalable, fixed, 0.0..=1.0, 3..=64_usize).prop_map(|(scalable, fixed, computes, cores)| {
        // The others are no faster than a core each.
        let fixed = fixed.into_iter().map(|cost| cost / 4.0).collect();
        Simulated { scalable, fixed, computes, cores, noise: 0.01, ..two_stages() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn from_one_of_everything_it_comes_near_the_best_within_the_cores_and_stays(run in simulated()) {
        let mut tuned = Tuned::new(&run);
        for _ in 0..SOON {
            tuned.go_on(&run, 1);
            prop_assert!(run.cores_used(&tuned.replicas) <= run.cores as f64 * 1.02 || tuned.replicas == [1, 1]);
        }
        let (found, best) = (run.rate(&tuned.replicas), run.best());
        prop_assert!(found >= 0.95 * best, "{found} with {:?}, best {best}", tuned.replicas);
        // Later it may only take away what is idle, once.
        prop_assert!(tuned.go_on(&run, 200) <= 4, "{:?}", tuned.tuner.trials.adjustments());
        prop_assert!(run.rate(&tuned.replicas) >= 0.95 * best, "{:?}", tuned.replicas);
        prop_assert_eq!(tuned.go_on(&run, 200), 0);
    }

    /// A replica may need any amount of memory, also more than there is.
    #[test]
    fn the_replicas_never_need_more_than_the_memory_and_use_what_there_is(
        run in simulated(), bytes in prop::array::uniform2(1.0..100.0_f64), memory in 50.0..2000.0_f64,
    ) {
        let bounded = Simulated { bytes, memory, ..run.clone() };
        let mut tuned = Tuned::new(&bounded);
        for _ in 0..SOON {
            tuned.go_on(&bounded, 1);
            prop_assert!(bounded.bytes_used(&tuned.replicas) <= memory || tuned.replicas == [1, 1], "{:?}", tuned.replicas);
        }
        // Memory for all that the cores allow is no bound.
        let mut plenty = Tuned::new(&Simulated { memory: 1e9, ..bounded.clone() });
        plenty.go_on(&Simulated { memory: 1e9, ..bounded.clone() }, SOON);
        let mut free = Tuned::new(&run);
        free.go_on(&run, SOON);
        prop_assert_eq!(plenty.replicas, free.replicas);
    }

    #[test]
    fn it_follows_a_run_whose_costs_change(run in simulated(), scalable in simulated(), fixed in simulated()) {
        let mut tuned = Tuned::new(&run);
        tuned.go_on(&run, SOON);
        // Stages with other costs, then other stages around them.
        for run in [Simulated { scalable: scalable.scalable, ..run.clone() }, Simulated { fixed: fixed.fixed, ..run }] {
            tuned.go_on(&run, 2 * SOON);
            let (found, best) = (run.rate(&tuned.replicas), run.best());
            prop_assert!(found >= 0.95 * best || run.cores_used(&tuned.replicas) > 0.9 * run.cores as f64,
                "{found} with {:?}, best {best}", tuned.replicas);
            tuned.go_on(&run, 200);
            prop_assert_eq!(tuned.go_on(&run, 100), 0);
        }
    }

    /// Replicas that compete for a resource.
    #[test]
    fn it_goes_back_if_replicas_do_not_help(run in simulated(), contention in 0.7..3.0_f64) {
        let run = Simulated { contention, noise: 0.0, ..run };
        let mut tuned = Tuned::new(&run);
        let alone = run.rate(&[1, 1]);
        tuned.go_on(&run, 60);
        prop_assert!(run.rate(&tuned.replicas) >= 0.97 * alone, "{:?}", tuned.tuner.trials.adjustments());
        prop_assert_eq!(tuned.go_on(&run, 200), 0, "{:?}", tuned.tuner.trials.adjustments());
    }
}

#[test]
fn a_replica_of_batch_is_expected_to_need_its_window_and_the_batches_made_of_it() {
    let host = forebay_actors::Host::start("t").unwrap();
    let stage = |name: &str, at: u64| StageReport {
        name: name.into(),
        replicas: 1,
        items_in: 10 * at,
        rows_in: 1000 * at,
        bytes_in: 50_000 * at,
        rows_out: 1000 * at,
        bytes_out: 30_000 * at,
        ..StageReport::default()
    };
    let report = |at: u64| {
        let machine = Machine { resident_bytes: 600, ..Machine::default() };
        Report {
            wall: Duration::from_secs(at),
            machine,
            stages: vec![stage("batch", at), stage("train", at)],
            ..host.meters().report()
        }
    };
    let seen = |budget| {
        let mut meters = MeterReader::new(vec!["batch".into()], MemoryBudget::new(budget));
        assert!(meters.read(&report(1)).is_none());
        meters.read(&report(2)).unwrap()
    };
    let budget = seen(Some(1000));
    // Windows of 100 rows of 50 bytes, batches of 30 bytes a row.
    assert_eq!((budget.scalable[0].replica_bytes, budget.free_bytes), (2.0 * (5000.0 + 3000.0), 400.0));
    assert_eq!(seen(Some(100)).free_bytes, 0.0, "it has more than it may");
    let machine = seen(None).free_bytes;
    assert!(machine > 0.0 && machine.is_finite(), "{machine}");
}

/// Two stages on many cores. The one behind them does four million rows a second.
fn two_stages() -> Simulated {
    Simulated {
        scalable: vec![3e-6, 1e-6],
        fixed: vec![2.5e-7],
        computes: 0.0,
        cores: 64,
        contention: 0.0,
        turns: false,
        noise: 0.0,
        bytes: [1.0; 2],
        memory: NO_LIMIT,
    }
}

#[test]
fn the_stages_get_their_replicas_in_one_step_and_the_report_says_why() {
    let run = two_stages();
    let mut tuned = Tuned::new(&run);
    assert_eq!(tuned.go_on(&run, 2), 1);
    assert_eq!(tuned.replicas, [14, 5], "a tenth more than four million rows per second");
    tuned.go_on(&run, 5);
    assert_eq!(tuned.tuner.trials.adjustments().len(), 1);
    assert_eq!(
        tuned.tuner.trials.adjustments()[0].to_string(),
        "s0 1 → 14, s1 1 → 5 replicas after 2 s: s0 100% busy, s1 33% busy; throughput 333 k → 4.00 M rows/s"
    );
}

#[test]
fn a_store_that_becomes_slow_in_the_middle_takes_replicas_away_and_gives_them_back_and_the_report_says_why() {
    let fast = two_stages();
    let slow = Simulated { fixed: vec![2.5e-6], ..fast.clone() };
    let mut tuned = Tuned::new(&fast);
    tuned.go_on(&fast, SOON);
    assert_eq!(tuned.replicas, [14, 5]);
    tuned.go_on(&slow, SOON);
    assert_eq!(tuned.replicas, [2, 1]);
    assert_eq!(slow.rate(&tuned.replicas), slow.best());
    assert_eq!(tuned.go_on(&slow, 200), 0, "it has settled");
    tuned.go_on(&fast, SOON);
    assert_eq!(fast.rate(&tuned.replicas), fast.best());
    assert_eq!(tuned.go_on(&fast, 200), 0, "it has settled again");
    let made: Vec<String> = tuned.tuner.trials.adjustments().iter().map(ToString::to_string).collect();
    let [_, less, more] = &made[..] else { panic!("{made:#?}") };
    assert!(
        less.starts_with("s0 14 → 2, s1 5 → 1 replicas after 40 s: s0 9% busy, s1 8% busy; throughput 400 k"),
        "{less}"
    );
    assert!(more.starts_with("s0 2 → 14, s1 1 → 5 replicas after 261 s: s0 100% busy"), "{more}");
}

#[test]
fn a_stage_that_takes_turns_with_the_next_gets_another_replica() {
    let run = Simulated {
        scalable: vec![1e-7, 1e-6],
        fixed: vec![1e-6],
        computes: 0.5,
        cores: 8,
        turns: true,
        ..two_stages()
    };
    let mut tuned = Tuned::new(&run);
    tuned.go_on(&run, SOON);
    assert_eq!(tuned.replicas, [1, 2]);
    assert_eq!(tuned.go_on(&run, 200), 0);
    assert_eq!(run.rate(&tuned.replicas), run.best());
}

#[test]
fn a_run_that_waits_for_something_behind_its_batches_gets_no_replica() {
    let starved = |share| {
        let (mut tuner, load) = (Tuner::new(16), |name: &str| StageLoad {
            name: name.into(),
            replicas: 1,
            useful: 0.5,
            busy: 0.5,
            replica_bytes: 1.0,
        });
        let seen = Observation {
            seconds: 1.0,
            rows: 1e6,
            cpu: 2.0,
            scalable: vec![load("parse"), load("batch")],
            others_occupied: 0.6,
            starved_behind: share,
            paused: 0.0,
            free_bytes: NO_LIMIT,
            compute: None,
        };
        (0..8).find_map(|second| tuner.observe(Duration::from_secs(second), &seen))
    };
    // With staleness 0 the look-up waits for a ticket: its next batch is there.
    assert_eq!(starved(0.01), None);
    assert!(starved(0.3).is_some(), "its input comes in bursts");
}

#[test]
fn an_interval_in_which_a_checkpoint_or_an_evaluation_held_the_run_up_says_nothing() {
    let run = two_stages();
    let mut tuned = Tuned::new(&run);
    tuned.go_on(&run, 2);
    assert_eq!(tuned.replicas, [14, 5]);
    // Half of the rows in most of the intervals after the change: it would be rolled back.
    for second in 3..9 {
        let whole = run.observe(&tuned.replicas, second);
        let paused = Observation { rows: whole.rows * 0.05, paused: 0.95, ..whole };
        assert_eq!(tuned.tuner.observe(Duration::from_secs(second), &paused), None);
    }
    assert_eq!(tuned.go_on(&run, 5), 0);
    let [adjustment] = tuned.tuner.trials.adjustments() else { panic!("{:?}", tuned.tuner.trials.adjustments()) };
    assert!(
        !adjustment.rolled_back && adjustment.rows_per_second_after.is_some_and(|rate| rate > 3.9e6),
        "{adjustment}"
    );
    // A run that pauses in every interval is tuned all the same.
    let mut tuner = Tuner::new(64);
    let paused = Observation { paused: 0.5, ..run.observe(&[1, 1], 1) };
    assert!((0..40).any(|second| tuner.observe(Duration::from_secs(second), &paused).is_some()));
}

#[test]
fn an_attempt_that_made_it_slower_is_undone_and_a_smaller_one_made() {
    // Two replicas are the best: four times two would be slower than one.
    let run = Simulated { scalable: vec![1e-6, 1e-8], fixed: vec![1e-8], computes: 0.0, cores: 32, ..two_stages() };
    let mut tuned = Tuned::new(&run);
    for _ in 0..60 {
        let contention = if tuned.replicas[0] > 8 { 2.0 } else { 0.0 };
        tuned.go_on(&Simulated { contention, ..run.clone() }, 1);
    }
    assert!(tuned.tuner.trials.adjustments()[0].rolled_back, "{:?}", tuned.tuner.trials.adjustments());
    assert!((4..=8).contains(&tuned.replicas[0]), "{:?}", tuned.tuner.trials.adjustments());
}

#[test]
fn within_two_cores_nothing_changes() {
    let run = Simulated { scalable: vec![1e-6, 1e-6], fixed: vec![1e-7], computes: 1.0, cores: 2, ..two_stages() };
    assert_eq!(Tuned::new(&run).go_on(&run, 100), 0);
}

/// Ten rows with a number.
struct Numbered(Lineage);

impl Batch for Numbered {
    fn rows(&self) -> usize {
        10
    }
    fn bytes(&self) -> usize {
        80
    }
    fn lineage(&self) -> &Lineage {
        &self.0
    }
}

struct Numbers(u64);

impl Source for Numbers {
    type Out = Numbered;
    async fn next(&mut self, cx: &StageCx) -> Result<Option<Numbered>, Fault> {
        if self.0 == 0 {
            cx.adjust(TunedKnob::ReadAhead, (64_000_000, 128_000_000), "read waits for its store", 0.0);
            cx.adjusted(TunedKnob::ReadAhead, 10.0, true);
        }
        self.0 += 1;
        Ok(Some(Numbered(Lineage { seq: self.0, ..Lineage::default() })))
    }
}

/// Stands in for a stage that computes: it sleeps on its thread, so that one machine has the stages of 64 cores.
struct Computes(Duration);

impl Stage for Computes {
    type In = Numbered;
    type Out = Numbered;
    #[allow(clippy::disallowed_methods, reason = "the thread is the core that it stands for")]
    async fn on_batch(&mut self, batch: Numbered, _cx: &StageCx, out: &mut Outbox<Numbered>) -> Result<(), Fault> {
        std::thread::sleep(self.0);
        out.send(batch).await
    }
}

struct Ends(Arc<Mutex<Vec<u64>>>);

impl Sink for Ends {
    type In = Numbered;
    async fn write(&mut self, batch: Numbered, _cx: &StageCx) -> Result<(), Fault> {
        self.0.lock().unwrap().push(batch.0.seq);
        Ok(())
    }
}

/// Waits for a report.
#[allow(clippy::disallowed_methods, reason = "a test blocks its own thread")]
fn until(run: &Control, holds: impl Fn(&Report) -> bool) -> Report {
    let begun = Instant::now();
    loop {
        let report = run.snapshot();
        if holds(&report) {
            return report;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "the run has not grown: {report}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_with_stages_for_64_cores_grows_from_one_of_everything_in_order_and_loses_no_row() {
    let seen = Arc::<Mutex<Vec<u64>>>::default();
    let ends = Arc::clone(&seen);
    let computes = |millis| move |_replica| Computes(Duration::from_millis(millis));
    let running = Topology::new("train")
        .source("read", Place::Own, || Numbers(0))
        .link(8)
        .replicated("parse", Place::Own, Replicas::ordered(1), computes(20))
        .link(8)
        .replicated("batch", Place::Own, Replicas::ordered(1), computes(10))
        .link(4)
        .stage("train", Place::Own, || Computes(Duration::from_millis(1)))
        .link(2)
        .sink("push", Place::Shared, move || Ends(ends))
        .start()
        .unwrap();
    let stages = vec!["parse".to_owned(), "batch".to_owned()];
    let tuning =
        TuningThread::start(running.control(), (stages, None), 64, MemoryBudget::new(None), Duration::from_millis(200));
    // 20 and 10 would do, if sleeping took no longer than asked for, and train no time of its own.
    let report = until(&running, |report| {
        let is_kept = report.adjustments.iter().any(|made| made.rows_per_second_after.is_some() && !made.rolled_back);
        is_kept && report.stages[1].replicas > 4 && report.stages[2].replicas > 1
    });
    assert!(report.stages[1].replicas + report.stages[2].replicas <= 64, "{report}");
    assert!(report.to_string().contains("parse 1 → "), "{report}");
    let of_source = "read 64.0 MB → 128.0 MB of read-ahead after 0 s: read waits for its store; throughput 0 → 10 rows/s: rolled back";
    assert!(report.to_string().contains(of_source), "{report}");
    drop(tuning);
    running.drain();
    let outcome = running.wait();
    outcome.result.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(*seen, (1..=seen.len() as u64).collect::<Vec<_>>());
    assert_eq!(outcome.report.ledger.read, 10 * seen.len() as u64);
}

/// The milliseconds that a batch takes: in the store, in a replica of `parse` and of `batch`, at the shard, in dense compute.
#[derive(Clone, Copy, Debug)]
struct Costs {
    store: u64,
    parse: u64,
    batch: u64,
    shard: u64,
    train: u64,
}

/// A source that waits for its store.
struct Stored {
    numbers: Numbers,
    store: Duration,
}

impl Source for Stored {
    type Out = Numbered;
    async fn next(&mut self, cx: &StageCx) -> Result<Option<Numbered>, Fault> {
        tokio::time::sleep(self.store).await;
        self.numbers.next(cx).await
    }
}

/// Runs with these replicas of `parse` and `batch`, which are tuned if `tuned`. Returns the batches per second after `settled`, for
/// `measured`, and the report.
#[allow(clippy::disallowed_methods, reason = "a test blocks its own thread")]
fn batches_per_second(
    costs: Costs,
    [parse, batch]: [usize; 2],
    tuned: bool,
    settled: Duration,
    measured: Duration,
) -> (f64, Report) {
    let ms = Duration::from_millis;
    let ends = Arc::<Mutex<Vec<u64>>>::default();
    let running = Topology::new("train")
        .source("read", Place::Own, move || Stored { numbers: Numbers(0), store: ms(costs.store) })
        .link(8)
        .replicated("parse", Place::Own, Replicas::ordered(parse), move |_| Computes(ms(costs.parse)))
        .link(8)
        .replicated("batch", Place::Own, Replicas::ordered(batch), move |_| Computes(ms(costs.batch)))
        .link(4)
        .stage("lookup", Place::Own, move || Computes(ms(costs.shard)))
        .link(2)
        .stage("train", Place::Own, move || Computes(ms(costs.train)))
        .link(2)
        .sink("push", Place::Shared, move || Ends(ends))
        .start()
        .unwrap();
    let stages = vec!["parse".to_owned(), "batch".to_owned()];
    let tuning = tuned.then(|| {
        TuningThread::start(running.control(), (stages, None), 64, MemoryBudget::new(None), Duration::from_secs(1))
    });
    let done = || running.control().snapshot().stages.last().unwrap().items_in;
    std::thread::sleep(settled);
    let (begun, before) = (Instant::now(), done());
    std::thread::sleep(measured);
    let rate = (done() - before) as f64 / begun.elapsed().as_secs_f64();
    drop(tuning);
    running.drain();
    let outcome = running.wait();
    outcome.result.unwrap();
    (rate, outcome.report)
}

/// How near the tuner comes to the best of a sweep, for the table in `docs/autotune.md`.
#[test]
#[ignore = "a measurement of four minutes"]
fn how_near_the_tuner_comes_to_the_best_of_a_sweep() {
    let secs = Duration::from_secs_f64;
    let shapes = [
        ("parse", Costs { store: 0, parse: 40, batch: 10, shard: 1, train: 1 }),
        ("latency of the store", Costs { store: 5, parse: 20, batch: 10, shard: 1, train: 1 }),
        ("table", Costs { store: 0, parse: 30, batch: 30, shard: 5, train: 2 }),
        ("device", Costs { store: 0, parse: 60, batch: 20, shard: 2, train: 5 }),
    ];
    for (limit, costs) in shapes {
        let counts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48];
        let settings = counts.iter().flat_map(|&parse| counts.map(|batch| [parse, batch]));
        let swept = settings.filter(|[parse, batch]| parse + batch < 62);
        // The number of batches a second that a sweep allows at most, to leave out settings that cannot be the best.
        let bound = |[parse, batch]: [usize; 2]| {
            let each =
                [(costs.parse, parse), (costs.batch, batch), (costs.store, 1), (costs.shard, 1), (costs.train, 1)];
            each.into_iter().map(|(ms, n)| n as f64 * 1000.0 / ms.max(1) as f64).fold(f64::INFINITY, f64::min)
        };
        let mut swept: Vec<[usize; 2]> = swept.collect();
        swept.sort_by(|&a, &b| bound(b).total_cmp(&bound(a)).then_with(|| (a[0] + a[1]).cmp(&(b[0] + b[1]))));
        let found = swept
            .iter()
            .take(12)
            .map(|&setting| (batches_per_second(costs, setting, false, secs(1.0), secs(2.0)).0, setting));
        let (best, of) = found.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        let from_one = batches_per_second(costs, [1, 1], false, secs(1.0), secs(2.0)).0;
        let (tuned, report) = batches_per_second(costs, [1, 1], true, secs(30.0), secs(10.0));
        println!(
            "{limit}: {costs:?}: one of each {from_one:.0}, best of the sweep {best:.0} with {of:?}, tuned {tuned:.0} ({:.2})",
            tuned / best
        );
        report.adjustments.iter().for_each(|made| println!("    {made}"));
    }
}
