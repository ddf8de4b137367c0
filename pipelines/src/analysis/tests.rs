//! Verdicts on meters whose limit is known by construction.

use forebay_actors::{Capacity, CoreSeconds, LinkReport, Machine, ProcessWait, Report, WaitKind, WaitReport};

use super::*;
use crate::metrics::process_report::LOST_READERS;

const WALL: Duration = Duration::from_secs(100);

/// A stage with shares of the run in percent: busy, then what it waited for.
fn stage(name: &str, busy: u64, waits: &[(&str, WaitKind, u64)]) -> StageReport {
    let mut stage = StageReport {
        name: name.into(),
        replicas: 1,
        items_in: 1_000,
        rows_in: 100_000,
        busy: Duration::from_secs(busy),
        ..StageReport::default()
    };
    for &(what, kind, share) in waits {
        let total = Duration::from_secs(share);
        stage.waits.insert(what.into(), WaitReport { count: 1, total, kind });
        *match kind {
            WaitKind::Waiting => &mut stage.waiting,
            WaitKind::Starved => &mut stage.starved,
            WaitKind::Blocked => &mut stage.blocked,
        } += total;
    }
    stage.over(WALL)
}

const SHARDS_10: &[(&str, WaitKind, u64)] = &[("shards", WaitKind::Waiting, 10)];

/// A run in one process in which every stage is 10% occupied.
fn stages() -> Vec<StageReport> {
    vec![
        stage("read", 1, &[("decode", WaitKind::Waiting, 9)]),
        stage("parse", 10, &[]),
        stage("batch", 10, &[]),
        stage("lookup", 1, SHARDS_10),
        stage("train", 10, &[]),
        stage("push", 1, SHARDS_10),
    ]
}

fn process(name: &str, stages: Vec<StageReport>, services: Vec<StageReport>) -> ProcessReport {
    let machine = Machine { host: name.into(), cores: 8, cpu: WALL, ..Machine::default() };
    let links =
        stages.windows(2).map(|ends| LinkReport::new(&ends[0].name, &ends[1].name, Capacity::items(8))).collect();
    let (verdict, ledger) = (Verdict::Finished, Default::default());
    let report = Report {
        name: "t".into(),
        verdict,
        wall: WALL,
        machine,
        stages,
        links,
        services,
        ledger,
        adjustments: Vec::new(),
    };
    ProcessReport { process: name.into(), report }
}

fn with(changed: StageReport) -> ProcessReport {
    let mut stages = stages();
    let at = stages.iter().position(|stage| stage.name == changed.name).unwrap();
    stages[at] = changed;
    process("train", stages, vec![shard("ps0-embedding", 20)])
}

fn shard(name: &str, busy: u64) -> StageReport {
    StageReport { rows_held: Some(1000), ..stage(name, busy, &[]) }
}

fn analysis(processes: &[ProcessReport]) -> Analysis {
    analysis_of(processes, "")
}

fn analysis_of(processes: &[ProcessReport], job: &str) -> Analysis {
    // The same advice on every machine that runs this test.
    let cores = "pipeline.cores=2".to_owned();
    let read = |settings: &[String]| Job::from_toml(job, settings).unwrap();
    let analysis = Analysis::new(&processes.iter().collect::<Vec<_>>(), &read(std::slice::from_ref(&cores)), None);
    if let Some(Change { field, value, .. }) = &analysis.change {
        let changed = read(&[cores, format!("{field}={value}")]).check();
        assert!(changed.is_ok(), "{field} = {value} is advised and refused: {changed:?}");
    }
    analysis
}

fn change(analysis: &Analysis) -> Option<(&str, &str)> {
    analysis.change.as_ref().map(|change| (change.field.as_str(), change.value.as_str()))
}

/// A source that waits for the store, which has given it so many bytes.
fn at_store(bytes_fetched: u64) -> StageReport {
    StageReport { bytes_fetched, ..stage("read", 8, &[("store", WaitKind::Waiting, 90)]) }
}

/// A bug: on a slow disk, twice the read-ahead was advised without end.
#[test]
fn more_read_ahead_is_not_advised_if_the_store_gives_less_in_a_second() {
    let slow = analysis(&[with(at_store(2_000_000_000))]);
    assert_eq!(change(&slow), None, "{slow}");
    let said = "read is 98% occupied and waits for the store; the store gives 20.0 MB a second, and more data.read_ahead would hardly help";
    assert!(slow.to_string().ends_with(said), "{slow}");
    // Fewer bytes than the read-ahead holds.
    let mut short = with(at_store(60 << 20));
    short.report.wall = Duration::from_millis(500);
    assert_eq!(change(&analysis(&[short])), None);
}

#[test]
fn a_limit_that_a_change_does_not_move_is_the_limit_still() {
    let fast = analysis_of(&[with(at_store(100 << 30))], "data.read_ahead = '64MiB'");
    assert_eq!(fast.store_rate, None);
    let said = "data.read_ahead = \"128MiB\" would make it about 1.8 times as fast, with the limit still at read";
    assert!(fast.to_string().ends_with(said), "{fast}");
    let grows = analysis(&[with(at_store(100 << 30))]);
    assert_eq!(change(&grows), None, "the source fetches more ahead by itself: {grows}");
}

#[test]
fn each_stage_in_turn_is_named_with_the_field_that_gives_it_more() {
    let cases = [
        (stage("read", 8, &[("decode", WaitKind::Waiting, 90)]), "input", Some(("data.decode_threads", "2"))),
        (at_store(100 << 30), "input", Some(("data.read_ahead", "\"128MiB\""))),
        (stage("parse", 98, &[]), "input", Some(("pipeline.parse_replicas", "2"))),
        (stage("batch", 98, &[]), "input", Some(("pipeline.batch_replicas", "2"))),
        (stage("lookup", 8, &[("shards", WaitKind::Waiting, 90)]), "table", Some(("train.staleness", "4"))),
        (stage("train", 98, &[]), "compute", None),
        (stage("push", 98, &[]), "table", None),
    ];
    for (limiting, bound, expected) in cases {
        let name = limiting.name.clone();
        let analysis =
            analysis_of(&[with(limiting)], "train.threads = 8\ndata.decode_threads = 1\ndata.read_ahead = '64MiB'");
        let limit = analysis.limit.as_ref().unwrap();
        assert_eq!((limit.name.as_str(), limit.bound(), analysis.certainty), (&*name, Some(bound), Certainty::Sure));
        assert_eq!(change(&analysis), expected, "{analysis}");
        assert!(limit.share > 0.97, "{analysis}");
    }
}

#[test]
fn the_words_say_stall_limit_change_and_gain() {
    let mut run = with(stage("parse", 98, &[]));
    run.report.stages[0] = stage("read", 1, &[("decode", WaitKind::Waiting, 57)]);
    run.report.stages[4] = stage("train", 38, &[("", WaitKind::Starved, 60)]);
    let text = analysis(&[run]).to_string();
    let expected = "input-bound 62%: parse is 98% busy in 1 replica; pipeline.parse_replicas = 2 would move the limit to read, \
                    about 1.7 times as fast";
    assert_eq!(text, expected);
}

#[test]
fn a_run_that_just_began_has_no_verdict() {
    let mut run = with(stage("parse", 98, &[]));
    run.report.verdict = Verdict::Running;
    run.report.wall = Duration::from_millis(999);
    assert_eq!(analysis(&[run.clone()]).to_string(), "starting");
    run.report.wall = STARTING;
    assert!(!analysis(&[run]).starting);
}

#[test]
fn few_batches_and_idle_stages_are_unclear_and_change_nothing() {
    let few = StageReport { items_in: 5, ..stage("parse", 98, &[]) };
    for unclear in [few, stage("parse", 40, &[])] {
        let analysis = analysis(&[with(unclear)]);
        assert_eq!((analysis.certainty, change(&analysis)), (Certainty::Unclear, None), "{analysis}");
    }
    assert!(analysis(&[process("train", Vec::new(), Vec::new())]).limit.is_none());
}

/// A bug: a run of three steps was told its limit and the change that helps, because the limit is no stage.
#[test]
fn limits_between_stages_are_unclear_after_few_batches() {
    let few = |process: &mut ProcessReport, steps: u64| {
        process.report.stages.iter_mut().for_each(|stage| stage.items_in = steps);
    };
    let in_turn = |steps: u64| {
        let mut run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 48)]));
        few(&mut run, steps);
        analysis(&[run])
    };
    let (unclear, likely) = (in_turn(19), in_turn(20));
    assert_eq!((unclear.certainty, change(&unclear)), (Certainty::Unclear, None), "{unclear}");
    let said = "no clear limit: look-up, compute and push take turns 73% of the time; dense compute stalls 90%";
    assert_eq!((unclear.to_string().as_str(), unclear.short().as_str()), (said, "no clear limit"));
    assert_eq!(
        (likely.certainty, change(&likely).map(|(field, _)| field)),
        (Certainty::Likely, Some("train.staleness"))
    );
    // The batches of all trainers count, and not those that a reader has ready.
    let mut run = vec![trainer(stage("receive", 1, &[("readers", WaitKind::Starved, 67)]))];
    run.extend((0..2).map(|rank| reader(rank, stage("parse", 10, &[]))));
    few(&mut run[0], 3);
    let leases = analysis(&run);
    assert_eq!((leases.limit.as_ref().unwrap().kind, leases.certainty), (LimitKind::Lease, Certainty::Unclear));
    let said = "no clear limit: read waits for leases 67% of the time in 2 replicas";
    assert!(leases.to_string().starts_with(said), "{leases}");
}

#[test]
fn two_stages_that_are_nearly_as_occupied_are_not_sure() {
    let mut run = with(stage("parse", 98, &[]));
    run.report.stages[2] = stage("batch", 95, &[]);
    let analysis = analysis(&[run]);
    assert_eq!((analysis.certainty, change(&analysis)), (Certainty::Likely, None), "{analysis}");
}

#[test]
fn no_change_is_advised_that_the_cores_cannot_give() {
    let mut run = with(stage("parse", 98, &[]));
    run.report.machine = Machine { host: "h".into(), cores: 2, cpu: WALL * 2, ..Machine::default() };
    let used_up = analysis(&[run.clone()]);
    assert_eq!(used_up.short(), "cores 100%");
    assert_eq!(used_up.limit.as_ref().unwrap().kind, LimitKind::Cores);
    assert_eq!(used_up.to_string(), "the 2 cores of this machine are the limit: 100% used; dense compute stalls 90%");
    // Some are free: the gain is what they give, and there are never more replicas than cores.
    run.report.machine.cpu = WALL * 3 / 2;
    let some = analysis(&[run.clone()]).change.unwrap();
    assert_eq!((some.value.as_str(), some.then.as_str()), ("2", "the machine's cores"));
    assert!((some.gain - 4.0 / 3.0).abs() < 1e-9);
    // A slow store needs no core.
    run.report.stages[0] = stage("read", 1, &[("store", WaitKind::Waiting, 99)]);
    run.report.machine.cpu = WALL * 19 / 10;
    assert_eq!(analysis(&[run]).limit.unwrap().waits_for.as_deref(), Some("store"));
}

/// Two cores in a run of 100 s: seconds of CPU time of the process, of idle cores and of others, and seconds of waits for a core.
fn on_two_cores(cpu: u64, idle: u64, others: u64, waited: u64) -> Machine {
    let [idle, others, waited] = [idle, others, waited].map(|seconds| seconds as f64);
    let core_seconds = Some(CoreSeconds { idle, others, waited });
    Machine { host: "h".into(), cores: 2, cpu: Duration::from_secs(cpu), core_seconds, ..Machine::default() }
}

/// A bug: a reader that was lost after a second, in which it had used both cores, made the cores the limit of the whole run.
#[test]
fn the_cores_that_a_lost_process_used_count_as_a_part_of_the_run() {
    let mut run =
        vec![trainer(stage("receive", 1, &[])), reader(0, stage("parse", 97, &[])), reader(1, stage("parse", 1, &[]))];
    for (process, cpu) in run.iter_mut().zip([10, 20, 2]) {
        process.report.machine = on_two_cores(cpu, 100, 0, 0);
    }
    run[2].report.wall = Duration::from_secs(1);
    let processes: Vec<_> = run.iter().collect();
    let machines = super::load::machines(&processes);
    assert_eq!(machines.len(), 1);
    assert!((machines[0].share - 0.16).abs() < 1e-9, "{machines:?}");
    let found = analysis(&run).limit.unwrap();
    assert_eq!((found.kind, found.name.as_str()), (LimitKind::Stage, "parse"), "{found:?}");
}

/// A bug: cores that other programs use were said to be free, and waits for a core counted as work that a change divides.
#[test]
fn no_gain_needs_more_than_the_idle_cores_and_what_others_give_way_to() {
    let gain = |machine: Machine, job: &str| {
        let mut run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 74)]));
        run.report.machine = machine;
        analysis_of(&[run], job).change.map(|change| ((change.gain * 1e3).round() / 1e3, change.then))
    };
    let cores = |gain: f64| Some((gain, "the machine's cores".to_owned()));
    // The job uses one core of two, and the other one is idle.
    assert_eq!(gain(on_two_cores(100, 100, 0, 0), ""), cores(2.0));
    assert_eq!(gain(on_two_cores(100, 100, 0, 0), "placement.ps = 1"), cores(1.429));
    // All that is idle is used, and others have nothing that could give way.
    assert_eq!(gain(on_two_cores(160, 40, 0, 80), ""), cores(1.25));
    // Beside two programs that never wait for anything, 1.6 threads of the run are ready on average: they do not ask for two cores yet.
    assert_eq!(gain(on_two_cores(89, 0, 111, 71), ""), cores(1.25));
    assert_eq!(gain(on_two_cores(40, 0, 160, 160), ""), None, "two are ready, and get no more than this");
    // The others give way to a run that asks for little.
    assert!(gain(on_two_cores(4, 0, 196, 4), "").unwrap().0 > 3.0);
    // A system that does not tell.
    let unknown = Machine { core_seconds: None, ..on_two_cores(50, 0, 0, 0) };
    assert!(gain(unknown, "").unwrap().0 > 3.0);
}

#[test]
fn what_look_up_compute_and_push_do_not_take_in_turn_takes_as_long_as_before() {
    let mut run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 8), ("ticket", WaitKind::Blocked, 50)]));
    run.report.stages[1] = stage("parse", 20, &[]);
    let found = analysis(&[run]).change.unwrap();
    // 60% of the time in turn, now five batches at once.
    assert_eq!((found.field.as_str(), found.value.as_str()), ("train.staleness", "4"));
    assert!((found.gain - 1.0 / (0.4 + 0.6 / 5.0)).abs() < 1e-9, "{found:?}");
}

#[test]
fn the_sentence_says_who_used_the_cores_that_threads_waited_for() {
    let of = |machine: Machine| {
        let mut run = with(stage("parse", 98, &[]));
        run.report.machine = machine;
        analysis(&[run])
    };
    let others = of(on_two_cores(90, 20, 90, 110));
    let said = "; threads waited for a core 55% of the time that they had work: other programs used 45% of the 2 cores of this machine";
    assert!(others.to_string().ends_with(said), "{others}");
    assert_eq!(others.certainty, Certainty::Likely, "parse may only have waited for a core");
    let own = of(on_two_cores(170, 10, 20, 110));
    let said = "; threads waited for a core 39% of the time that they had work: the run itself used 85% of the 2 cores of this machine";
    assert!(own.to_string().ends_with(said), "{own}");
    for calm in [on_two_cores(90, 90, 20, 110), on_two_cores(90, 20, 90, 9)] {
        let calm = of(calm);
        assert!(calm.cores.is_none() && calm.certainty == Certainty::Sure, "{calm}");
    }
    // Processes of one host are no others to each other.
    let mut run = vec![trainer(stage("receive", 1, &[])), reader(0, stage("parse", 97, &[]))];
    run[0].report.machine = on_two_cores(60, 20, 120, 80);
    run[1].report.machine = on_two_cores(110, 20, 70, 60);
    let found = analysis(&run);
    assert!(found.to_string().contains("the run itself used 85% of the 2 cores of this machine"), "{found}");
}

#[test]
fn a_cpu_quota_that_is_used_up_is_named_and_not_the_stage_that_it_slows_down() {
    let with_quota = |cores: usize, quota: f64, used: f64| {
        let mut run = with(stage("parse", 98, &[]));
        let (cpu, cpu_quota) = (WALL.mul_f64(used), Some(quota));
        run.report.machine = Machine { host: "h".into(), cores, cpu, cpu_quota, ..Machine::default() };
        analysis(&[run])
    };
    let half = with_quota(1, 0.5, 0.49);
    assert_eq!((half.limit.as_ref().unwrap().kind, half.certainty), (LimitKind::Cores, Certainty::Sure));
    assert_eq!(half.to_string(), "the CPU quota (0.5 cores) is used up: 98% used; dense compute stalls 90%");
    assert!(with_quota(1, 1.0, 0.96).to_string().starts_with("the CPU quota (1 core) is used up: 96% used"));
    assert!(with_quota(1, 4.0 / 3.0, 1.28).to_string().starts_with("the CPU quota (1.33 cores) is used up: 96% used"));
    // One core of a quota of 1.9 is not all of it.
    let free = with_quota(1, 1.9, 1.0);
    assert_eq!(free.limit.as_ref().unwrap().name, "parse", "{free}");
    // What is left of a quota is also what a change can gain.
    let some = with_quota(2, 2.5, 2.0).change.unwrap();
    assert_eq!((some.field.as_str(), some.then.as_str()), ("pipeline.parse_replicas", "the CPU quota"));
    assert!((some.gain - 1.25).abs() < 1e-9);
}

#[test]
fn no_change_is_advised_beyond_the_cores_that_the_job_pins() {
    let run = [with(stage("train", 98, &[]))];
    let one = analysis_of(&run, "train.threads = 1");
    assert_eq!(change(&one), Some(("train.threads", "2")), "the machine has 8, and the job of these tests 2: {one}");
    // A bug: a step was said to get faster by as much as it has more threads.
    assert!(one.to_string().contains("at most "), "{one}");
    assert_eq!(change(&analysis_of(&run, "train.threads = 2")), None);
}

#[test]
fn one_compressed_file_needs_no_more_threads_that_decode() {
    let run = [with(stage("read", 8, &[("decode", WaitKind::Waiting, 90)]))];
    for (rows, advised) in [("a.csv.gz", None), ("*.csv.gz", Some("2")), ("rows", Some("2"))] {
        let analysis = analysis_of(&run, &format!("data.decode_threads = 1\ndata.train = '{rows}'"));
        assert_eq!(change(&analysis).map(|(_, value)| value), advised, "{rows}: {analysis}");
    }
}

#[test]
fn a_busy_shard_is_the_limit_of_those_that_wait_for_it_and_skew_is_said() {
    let mut run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 95)]));
    run.report.services = vec![shard("ps0-embedding", 90), shard("ps1-embedding", 85)];
    let even = analysis_of(&[run.clone()], "table.shards = 2");
    assert_eq!(change(&even), None, "two shards use both cores");
    let mut one = run.clone();
    one.report.services.pop();
    let one = analysis_of(&[one], "table.shards = 1");
    assert_eq!(change(&one), Some(("table.shards", "2")));
    let limit = even.limit.as_ref().unwrap();
    assert_eq!((limit.kind, limit.name.as_str(), limit.bound()), (LimitKind::Shard, "ps0-embedding", Some("table")));
    assert_eq!(even.certainty, Certainty::Sure);
    // The machine of the ps decides whether there are cores for more, and the shards of this ps count.
    let (mut trainer, mut ps) = (run.clone(), process("ps 0", Vec::new(), run.report.services.clone()));
    trainer.report.services.clear();
    let advice = |trainer: &ProcessReport, ps: &ProcessReport| {
        change(&analysis_of(&[trainer.clone(), ps.clone()], "placement.ps = 1"))
            .map(|(field, value)| format!("{field}={value}"))
    };
    (trainer.report.machine.cores, ps.report.machine.cores) = (2, 16);
    ps.report.services.extend((2..4).map(|i| shard(&format!("ps{i}-embedding"), 80)));
    assert_eq!(advice(&trainer, &ps).as_deref(), Some("table.shards=8"));
    ps.report.machine.cores = 4;
    assert_eq!(advice(&trainer, &ps), None);
    // The dense parameters in a ps are one.
    (ps.report.machine.cores, ps.report.services) = (16, vec![shard("ps0-embedding", 10), stage("ps0-dense", 95, &[])]);
    assert_eq!(advice(&trainer, &ps), None);
    run.report.services[1] = shard("ps1-embedding", 5);
    let skewed = analysis_of(&[run], "table.shards = 2");
    assert!(skewed.to_string().contains("the mean of all shards is 48%"), "{skewed}");
    assert_eq!(change(&skewed), None, "more shards do not help one hot key");
}

#[test]
fn stages_that_take_turns_are_limited_by_the_staleness() {
    let run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 74)]));
    let analysis = analysis(&[run]);
    assert_eq!(analysis.limit.as_ref().unwrap().kind, LimitKind::Staleness);
    assert_eq!(
        (change(&analysis), analysis.certainty),
        (Some(("train.staleness", "3")), Certainty::Sure),
        "{analysis}"
    );
    assert!(analysis.to_string().ends_with("the model is then another: compare the AUC"), "{analysis}");
}

#[test]
fn where_rows_can_be_asked_for_ahead_the_advice_leaves_the_model_as_it_is() {
    let run = [with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 74)]))];
    for (tickets, job, advice) in [
        (1, "placement.ps = 1", ("train.look_ahead", "3")),
        (9, "placement.ps = 1", ("train.look_ahead", "35")),
        (2, "placement.ps = 1\ntrain.staleness = 1", ("train.staleness", "7")),
    ] {
        let mut run = run.clone();
        run[0].report.stages[3].replicas = tickets;
        let analysis = analysis_of(&run, job);
        assert_eq!(change(&analysis), Some(advice), "{analysis}");
        let another = analysis.to_string().ends_with("the model is then another: compare the AUC");
        assert_eq!(another, advice.0 == "train.staleness", "{analysis}");
    }
}

#[test]
fn the_advice_to_trainers_that_step_together_is_one_that_the_job_allows() {
    let run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 74)]));
    let job = "placement = { readers = 1, ps = 1, trainers = 2 }\ntrain.sync = true";
    let analysis = analysis_of(&[run], job);
    assert_eq!(change(&analysis), Some(("train.staleness", "{ exactly = 3 }")), "{analysis}");
    assert!(analysis.to_string().ends_with("the model is then another: compare the AUC"), "{analysis}");
}

#[test]
fn a_link_that_holds_both_ends_up_is_the_limit() {
    let mut run = with(stage("parse", 30, &[("", WaitKind::Blocked, 65)]));
    run.report.stages[2] = stage("batch", 30, &[("", WaitKind::Starved, 65)]);
    let analysis = analysis(&[run]);
    assert_eq!(analysis.limit.as_ref().unwrap().name, "parse to batch");
    assert_eq!(change(&analysis), Some(("pipeline.links.batch", "32")), "{analysis}");
}

#[test]
fn look_ahead_is_advised_to_those_that_have_cores_for_it() {
    let advice = |used: Duration, tickets: usize, job: &str| {
        let mut run = with(stage("lookup", 2, &[("shards", WaitKind::Waiting, 23), ("ticket", WaitKind::Blocked, 74)]));
        run.report.stages[3].replicas = tickets;
        run.report.machine = Machine { host: "h".into(), cores: 2, cpu: used, ..Machine::default() };
        analysis_of(&[run], job).change.map(|change| (change.field, change.gain))
    };
    let ahead = |gain: f64| Some(("train.look_ahead".to_owned(), gain));
    assert_eq!(advice(WALL * 3 / 2, 1, "placement.ps = 1"), None, "a row would take 1.4 times as much CPU time");
    assert_eq!(advice(WALL, 1, "placement.ps = 1"), ahead(2.0 / 1.4));
    assert_eq!(advice(WALL, 9, "placement.ps = 1"), ahead(2.0), "the run looks ahead already");
    let staleness = advice(WALL, 2, "placement.ps = 1\ntrain.staleness = 1");
    assert_eq!(staleness, Some(("train.staleness".to_owned(), 2.0)));
}

/// A run whose look-up is blocked for `waits`, and whose other stages are 10% occupied.
fn held_up(waits: &[(&str, u64)]) -> ProcessReport {
    let waits: Vec<_> = waits.iter().map(|&(what, share)| (what, WaitKind::Blocked, share)).collect();
    let mut run = with(stage("lookup", 2, &waits));
    run.report.stages[4] = stage("train", 2, &[("", WaitKind::Starved, 97)]);
    run
}

#[test]
fn evaluations_that_take_most_of_the_time_are_the_limit_with_no_advice_about_links() {
    let mut run = held_up(&[("evaluation", 88), ("", 1)]);
    // An evaluation also pulls rows, and uses the cores.
    run.report.services = vec![shard("ps0-embedding", 95)];
    run.report.machine = Machine { host: "h".into(), cores: 2, cpu: WALL * 2, ..Machine::default() };
    let found = analysis(&[run]);
    let limit = found.limit.as_ref().unwrap();
    assert_eq!(
        (limit.kind, limit.name.as_str(), limit.bound()),
        (LimitKind::Evaluation, "evaluation", Some("evaluation"))
    );
    assert_eq!((found.certainty, change(&found)), (Certainty::Sure, None));
    let expected = "evaluation-bound 98%: evaluations take 88% of the time; evaluate less often with evaluation.every, or on fewer rows \
                    with data.eval";
    assert_eq!(found.to_string(), expected);
    assert_eq!(found.short(), "evaluation 88%");
    let some = analysis(&[held_up(&[("evaluation", 40), ("ticket", 25)])]);
    assert_eq!(
        (some.limit.as_ref().unwrap().kind, some.certainty),
        (LimitKind::Evaluation, Certainty::Likely),
        "{some}"
    );
}

#[test]
fn what_takes_longer_than_evaluations_is_the_limit() {
    let mut run = held_up(&[("evaluation", 40)]);
    run.report.stages[1] = stage("parse", 96, &[]);
    assert_eq!(analysis(&[run]).limit.unwrap().name, "parse");
    let in_turn = analysis(&[held_up(&[("evaluation", 40), ("ticket", 50)])]);
    assert_eq!(in_turn.limit.as_ref().unwrap().kind, LimitKind::Staleness, "{in_turn}");
}

#[test]
fn no_change_makes_the_pauses_of_a_run_shorter() {
    for pause in ["evaluation", "checkpoint"] {
        let mut run = held_up(&[(pause, 43), ("ticket", 50)]);
        run.report.stages[4] = stage("train", 41, &[]);
        let found = analysis(&[run]);
        let advised = found.change.as_ref().unwrap();
        assert_eq!((advised.field.as_str(), advised.then.as_str()), ("train.staleness", pause), "{found}");
        assert!((advised.gain - 1.0 / 0.84).abs() < 1e-9, "{found}");
    }
}

#[test]
fn a_look_up_that_a_pause_holds_up_makes_no_link_the_limit() {
    for waits in [[("evaluation", 35), ("", 15)], [("checkpoint", 80), ("", 15)]] {
        let mut run = held_up(&waits);
        run.report.stages[1] = stage("parse", 36, &[]);
        let found = analysis(&[run]);
        let limit = found.limit.as_ref().unwrap();
        assert_eq!((limit.name.as_str(), change(&found)), ("parse", None), "{found}");
    }
}

/// A reader in which every stage is 10% occupied, but `read` waits for its leases.
fn reader(rank: usize, parse: StageReport) -> ProcessReport {
    let stages = vec![
        stage("read", 1, &[("decode", WaitKind::Waiting, 9), ("lease", WaitKind::Starved, 90)]),
        parse,
        stage("batch", 10, &[]),
        stage("ship", 1, &[]),
    ];
    process(&format!("reader {rank}"), stages, Vec::new())
}

fn trainer(receive: StageReport) -> ProcessReport {
    let stages = vec![receive, stage("lookup", 1, SHARDS_10), stage("train", 10, &[]), stage("push", 1, SHARDS_10)];
    process("trainer 0", stages, Vec::new())
}

#[test]
fn a_reader_that_waits_for_leases_or_trainers_is_no_limit() {
    let mut readers: Vec<_> = (0..2).map(|rank| reader(rank, stage("parse", 10, &[]))).collect();
    readers.insert(0, trainer(stage("receive", 1, &[])));
    readers[0].report.stages[2] = stage("train", 97, &[]);
    let analysis = analysis(&readers);
    let limit = analysis.limit.unwrap();
    assert_eq!((limit.name.as_str(), limit.process.as_deref()), ("train", Some("trainer 0")));
}

#[test]
fn leases_that_do_not_come_are_the_limit_if_trainers_have_no_batches_and_no_stage_is_occupied() {
    let mut run = vec![trainer(stage("receive", 1, &[("readers", WaitKind::Starved, 90)]))];
    run.extend((0..2).map(|rank| reader(rank, stage("parse", 10, &[]))));
    let found = analysis(&run);
    let limit = found.limit.as_ref().unwrap();
    assert_eq!((limit.kind, limit.name.as_str(), limit.replicas), (LimitKind::Lease, "leases", 2));
    assert_eq!((found.certainty, change(&found)), (Certainty::Sure, None), "{found}");
    assert_eq!(found.to_string(), "input-bound 90%: read waits for leases 90% of the time in 2 replicas");
    // A stage that is occupied for as long is the limit.
    run[1] = reader(0, stage("parse", 84, &[]));
    assert_eq!(analysis(&run).limit.unwrap().name, "parse");
}

#[test]
fn readers_that_have_read_all_rows_are_no_limit() {
    let mut run = vec![trainer(stage("receive", 1, &[("readers", WaitKind::Starved, 20)]))];
    run[0].report.stages[2] = stage("train", 65, &[]);
    run.extend((0..2).map(|rank| reader(rank, stage("parse", 10, &[]))));
    let found = analysis(&run);
    assert_eq!(found.limit.as_ref().unwrap().name, "train", "{found}");
}

#[test]
fn a_slow_reader_among_four_is_named() {
    // In the order of the data, the others wait for it.
    let mut run = vec![trainer(stage("receive", 1, &[("readers", WaitKind::Starved, 80)]))];
    run.extend((0..4).map(|rank| reader(rank, stage("parse", if rank == 2 { 97 } else { 20 }, &[]))));
    let waits = analysis(&run);
    assert_eq!(waits.limit.as_ref().unwrap().process.as_deref(), Some("reader 2"));
    assert!(waits.to_string().contains("of reader 2; reader 2 does 1031 rows/s where the others do 5000"), "{waits}");
    // In any order, it does less in the same time.
    for rank in 0..4 {
        let parse = StageReport { rows_in: if rank == 2 { 10_000 } else { 100_000 }, ..stage("parse", 97, &[]) };
        run[1 + rank] = reader(rank, parse);
    }
    let less = analysis(&run);
    assert_eq!(less.limit.as_ref().unwrap().process.as_deref(), Some("reader 2"));
    assert!(less.to_string().contains("reader 2 does 103 rows/s where the others do 1031"), "{less}");
}

#[test]
fn the_slow_trainer_that_all_steps_wait_for_is_named_and_not_the_ps() {
    let mut run = vec![trainer(stage("receive", 1, &[])); 2];
    for (rank, (train, waits)) in [(4, 94), (80, 10)].into_iter().enumerate() {
        run[rank].process = format!("trainer {rank}");
        let stages = &mut run[rank].report.stages;
        stages[1] = stage("lookup", 1, &[("shards", WaitKind::Waiting, 1)]);
        stages[2] = stage("train", train, &[]);
        stages[3] = stage("push", 1, &[("shards", WaitKind::Waiting, waits)]);
    }
    run.push(process("ps 0", Vec::new(), vec![shard("ps0-embedding", 2)]));
    let placement = "placement = { readers = 1, ps = 1, trainers = 2 }\n";
    let sync = format!("{placement}train.sync = true");
    let found = analysis_of(&run, &sync);
    let expected = "compute-bound 58%: train is 80% busy in 1 replica of trainer 1; trainer 1 does 1111 rows/s where the others do 16667";
    assert_eq!((found.to_string().as_str(), change(&found)), (expected, None));
    // It has more to do than the others wait, and look-up, compute and push of a trainer always alternate.
    let mut busier = run.clone();
    for (rank, (train, waits, ticket)) in [(20, 78, 97), (81, 14, 94)].into_iter().enumerate() {
        let stages = &mut busier[rank].report.stages;
        stages[1] = stage("lookup", 1, &[("shards", WaitKind::Waiting, 1), ("ticket", WaitKind::Blocked, ticket)]);
        stages[2] = stage("train", train, &[]);
        stages[3] = stage("push", 1, &[("shards", WaitKind::Waiting, waits)]);
    }
    let found = analysis_of(&busier, &sync);
    assert!(found.to_string().contains("train is 81% busy in 1 replica of trainer 1; trainer 1 does"), "{found}");
    // With ps so far away, pushes may wait for the distance.
    let mut far = run.clone();
    for trainer in &mut far[..2] {
        trainer.report.stages[1].by_process = [wait_for("ps 0", 1, Duration::from_secs(20))].into();
    }
    assert_ne!(analysis_of(&far, &sync).limit.unwrap().name, "train");
    // With a slow ps, the trainer whose replies come last begins its step last.
    let mut late = run.clone();
    late[1].report.stages[1].by_process =
        [wait_for("ps 0", 1, Duration::ZERO), wait_for("ps 1", 40, Duration::ZERO)].into();
    let found = analysis_of(&late, &sync).to_string();
    assert!(found.contains("ps 1 takes 400.0 ms to reply where the others take 10.0"), "{found}");
    // Without steps of all trainers, and with shards that have work, pushes wait for the ps.
    assert_eq!(analysis_of(&run, placement).limit.unwrap().name, "push");
    run[2].report.services[0] = shard("ps0-embedding", 60);
    assert_eq!(analysis_of(&run, &sync).limit.unwrap().kind, LimitKind::Shard);
}

/// Waits of this many seconds for this process, a hundred times.
fn wait_for(process: &str, secs: u64, round_trip: Duration) -> (String, ProcessWait) {
    (process.to_owned(), ProcessWait { count: 100, total: Duration::from_secs(secs), round_trip })
}

#[test]
fn a_reader_that_trainers_wait_for_is_named_with_what_it_does_meanwhile() {
    let mut receive = stage("receive", 1, &[("readers", WaitKind::Starved, 80)]);
    receive.by_process = [("reader 1", 5), ("reader 2", 75)].map(|(r, s)| wait_for(r, s, Duration::ZERO)).into();
    let mut run = vec![trainer(receive)];
    run.extend((0..4).map(|rank| reader(rank, stage("parse", if rank == 2 { 55 } else { 10 }, &[]))));
    let found = analysis(&run);
    let expected =
        "input-bound 90%: parse is 80% busy in 1 replica of reader 2; the other readers are in time (likely)";
    assert_eq!(found.to_string(), expected);
    assert_eq!(change(&found), None);
    run[3] = reader(2, stage("parse", 10, &[]));
    let found = analysis(&run);
    let expected = "input-bound 90%: trainers wait 80% of the time for batches of reader 2; its stages are idle meanwhile, so its \
                    network or its machine is slow (likely)";
    assert_eq!(found.to_string(), expected);
    assert_eq!(change(&found), None);
    // A lost one, whose lease has to run out: the others fill their links meanwhile.
    let mut lost = run.clone();
    lost[0].report.stages[0].by_process = [wait_for(LOST_READERS, 80, Duration::ZERO)].into();
    for reader in &mut lost[1..] {
        reader.report.stages[3] = stage("ship", 1, &[("trainer", WaitKind::Blocked, 90)]);
    }
    let found = analysis(&lost);
    let expected = "input-bound 90%: trainers wait 80% of the time until leases of lost readers run out (likely)";
    assert_eq!((found.to_string().as_str(), change(&found)), (expected, None));
    // Waits for all readers alike say nothing about one of them.
    run[0].report.stages[0].by_process =
        (0..4).map(|rank| wait_for(&format!("reader {rank}"), 20, Duration::ZERO)).collect();
    assert_eq!(analysis(&run).limit.unwrap().process, None);
}

/// Three readers whose links are full, and a trainer that waits in shares of the run for tickets, and for `reader 0`, so often.
fn three_readers(ticket: u64, readers: u64, waits: u64) -> Vec<ProcessReport> {
    let mut receive = stage("receive", 1, &[("readers", WaitKind::Starved, readers)]);
    let wait = ProcessWait { count: waits, total: Duration::from_secs(readers), round_trip: Duration::ZERO };
    receive.by_process = [("reader 0".to_owned(), wait)].into();
    let mut run = vec![trainer(receive)];
    run[0].report.stages[1] =
        stage("lookup", 1, &[("shards", WaitKind::Waiting, 13), ("ticket", WaitKind::Blocked, ticket)]);
    for rank in 0..3 {
        let mut reader = reader(rank, stage("parse", 10, &[]));
        reader.report.stages[3] = stage("ship", 2, &[("trainer", WaitKind::Blocked, 88)]);
        run.push(reader);
    }
    run
}

const THREE_READERS: &str = "placement = { readers = 3, ps = 1 }";

#[test]
fn a_reader_that_stood_still_is_named_although_its_link_was_full_then() {
    let stood_still = "trainers wait 57% of the time for batches of reader 0; its stages are idle meanwhile, so its network or its \
                       machine is slow (likely)";
    let full = "trainers wait 57% of the time for batches of reader 0 (likely)";
    // Its `ship` took a thousand batches. Tickets are awaited for less of the time.
    for (ticket, waits, words, advised) in [
        (0, 5, stood_still, None),
        (30, 5, stood_still, None),
        (30, 99, stood_still, None),
        (30, 100, full, Some(("placement.compress", "\"lz4\""))),
        (30, 900, full, Some(("placement.compress", "\"lz4\""))),
    ] {
        let found = analysis_of(&three_readers(ticket, 57, waits), THREE_READERS);
        assert!(found.to_string().contains(words), "{ticket}, {waits}: {found}");
        assert_eq!(change(&found), advised, "{ticket}, {waits}");
        assert_eq!(found.limit.as_ref().unwrap().bound(), Some("input"));
    }
    // It still stands still, so its meters are old, and what it did before is a small part of the run.
    let (mut run, old) = (three_readers(0, 57, 5), Duration::from_secs(20));
    run[1].report.wall = old;
    run[1].report.stages[1] = stage("parse", 8, &[]).over(old);
    let found = analysis_of(&run, THREE_READERS);
    assert!(found.to_string().contains(stood_still), "{found}");
}

#[test]
fn no_change_of_trainers_gains_more_than_the_time_that_readers_leave() {
    // Of eight batches under way, each takes as long as before, and waits for readers between them do, too.
    let others = 1.0 / (0.26 + 0.74 / 8.0);
    for (ticket, readers, gain, then) in
        [(60, 25, others, "receive"), (60, 50, 2.0, "receive"), (84, 5, 8.0 / 1.4, "the machine's cores")]
    {
        let found = analysis_of(&three_readers(ticket, readers, 5), THREE_READERS);
        let advised = found.change.as_ref().unwrap();
        assert_eq!((advised.field.as_str(), advised.then.as_str()), ("train.look_ahead", then), "{found}");
        assert!((advised.gain - gain).abs() < 1e-9, "{found}");
    }
}

#[test]
fn more_batches_under_way_are_advised_for_a_long_way_and_more_ps_for_late_replies() {
    let of = |round_trip| {
        let mut lookup = stage("lookup", 0, &[("shards", WaitKind::Waiting, 50), ("ticket", WaitKind::Blocked, 40)]);
        lookup.replicas = 9;
        lookup.by_process = [wait_for("ps 0", 50, round_trip), wait_for("ps 1", 45, round_trip)].into();
        let mut run = vec![trainer(stage("receive", 1, &[]))];
        run[0].report.stages[1] = lookup;
        analysis_of(&run, "placement = { readers = 1, ps = 2 }\ntrain.look_ahead = 8")
    };
    let far = of(Duration::from_millis(400));
    assert_eq!(far.limit.as_ref().unwrap().kind, LimitKind::Staleness, "{far}");
    assert_eq!(change(&far).unwrap().0, "train.look_ahead", "{far}");
    let late = of(Duration::from_millis(1));
    assert_eq!(late.limit.as_ref().unwrap().waits_for.as_deref(), Some("shards"), "{late}");
    assert_eq!(change(&late), Some(("placement.ps", "3")), "{late}");
    // Three ps instead of two.
    assert!(late.change.as_ref().unwrap().gain <= 1.5, "{late}");
}

/// A bug: a third ps was advised for processes of one machine whose cores were full, again and again.
#[test]
fn no_more_ps_are_advised_to_processes_that_wait_for_the_cores_of_one_machine() {
    let of = |ps_waited: u64, idle: u64, host: &str| {
        let mut lookup = stage("lookup", 0, &[("shards", WaitKind::Waiting, 50), ("ticket", WaitKind::Blocked, 40)]);
        lookup.replicas = 9;
        let near = Duration::from_millis(1);
        lookup.by_process = [wait_for("ps 0", 50, near), wait_for("ps 1", 45, near)].into();
        let mut run = vec![trainer(stage("receive", 1, &[]))];
        run[0].report.stages[1] = lookup;
        run[0].report.machine = on_two_cores(40, idle, 160 - idle, 10);
        for (name, waited) in [("ps 0", 2), ("ps 1", ps_waited)] {
            let mut ps = process(name, Vec::new(), vec![shard("ps0-embedding", 15)]);
            ps.report.machine = Machine { host: host.into(), ..on_two_cores(15, idle, 185 - idle, waited) };
            run.push(ps);
        }
        let found = analysis_of(&run, "placement = { readers = 1, ps = 2 }\ntrain.look_ahead = 8");
        change(&found).map(|(field, value)| format!("{field}={value}"))
    };
    assert_eq!(of(60, 2, "h"), None);
    let advised = Some("placement.ps=3".to_owned());
    assert_eq!(of(60, 2, "other"), advised, "the ps have machines of their own");
    assert_eq!(of(60, 80, "h"), advised, "there are idle cores");
    assert_eq!(of(8, 2, "h"), advised, "ps that seldom wait for a core are late for another reason");
}

#[test]
fn the_line_between_readers_and_trainers_is_a_limit() {
    let mut run =
        vec![trainer(stage("receive", 2, &[("readers", WaitKind::Starved, 95)])), reader(0, stage("parse", 10, &[]))];
    run[1].report.stages[3] = stage("ship", 2, &[("trainer", WaitKind::Blocked, 95)]);
    let analysis = analysis_of(&run, "placement = { readers = 1, ps = 1 }");
    assert_eq!(analysis.limit.as_ref().unwrap().name, "ship to receive");
    assert_eq!(change(&analysis), Some(("placement.compress", "\"lz4\"")), "{analysis}");
}

#[test]
fn processes_of_one_host_share_its_cores() {
    let mut run = vec![trainer(stage("receive", 1, &[])), reader(0, stage("parse", 97, &[]))];
    for process in &mut run {
        process.report.machine = Machine { host: "h".into(), cores: 2, cpu: WALL, ..Machine::default() };
    }
    let used_up = analysis(&run);
    assert_eq!(used_up.limit.as_ref().unwrap().kind, LimitKind::Cores);
    assert!(used_up.to_string().starts_with("the 2 cores of this machine are the limit: 100% used;"), "{used_up}");
    run[1].report.machine.host = "other".into();
    let mut elsewhere = run.clone();
    elsewhere[1].report.machine.cpu = WALL * 2;
    let elsewhere = analysis(&elsewhere);
    assert!(elsewhere.to_string().starts_with("the 2 cores of other are the limit: 100% used;"), "{elsewhere}");
    assert_eq!(analysis(&run).limit.unwrap().name, "parse");
}
