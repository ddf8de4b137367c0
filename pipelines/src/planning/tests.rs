//! Plans from a made-up report, whose costs are round numbers.

use std::time::Duration;

use forebay_actors::{LedgerReport, Machine, Report, StageReport, Verdict};
use forebay_job::{FeatureScale, Job, Transform};
use serde_json::{Value, json};

use super::*;
use crate::extension::registry::Registry;

const ROWS: u64 = 1_000_000;
const BATCHES: u64 = 1000;

/// A job of `lr`, with one weight and two floats of state a row, staleness 8.
const JOB: &str = "[columns]\nlabel = 'label'\ndense = ['I1..I13']\nslots = [{ column = 'C1..C26' }]\n\
                   [model]\nkind = 'lr'\n[train]\nbatch_rows = 1000\nstaleness = 8\n";

/// A job of `wide_deep`, with slots in two tables.
const TWO_TABLES: &str = "[columns]\nlabel = 'label'\ndense = ['I1..I13']\n\
                          slots = ['C1..C24', { column = 'C25..C26', table = 'wide' }]\n\
                          [model]\nkind = 'wide_deep'\nembedding_dim = 4\n[tables.wide]\nembedding_dim = 15\n\
                          [train]\nbatch_rows = 1000\nstaleness = 8\n";

fn job(settings: &[&str]) -> Job {
    Job::with_settings(JOB, settings).unwrap()
}

/// Makes a report of a run whose rows of data have ten keys each. A row of data takes 40 bytes of table rows and 80 bytes of keys on links,
/// and 10 µs of CPU time: 4 in the reader, 1 in the shards and 5 in the trainer, where the stage `train` is busy for 4.
fn report() -> Value {
    let stage = |name: &str, bytes: [u64; 2], busy: u64| StageReport {
        name: name.into(),
        items_in: BATCHES,
        rows_in: ROWS,
        bytes_in: bytes[0] * ROWS,
        bytes_out: bytes[1] * ROWS,
        busy: Duration::from_micros(busy * ROWS / 10),
        replicas: 1,
        ..StageReport::default()
    };
    let batch = 4 + 52 + 26 * 4 + 80;
    let threads = [("parse", 4.0), ("ps0-embedding", 1.0), ("train", 5.0)];
    let threads = threads.map(|(name, cpu)| (name.to_owned(), cpu));
    let cpu = Duration::from_secs(10);
    let machine = Machine { host: "h".into(), cores: 4, cpu, threads: threads.into(), ..Machine::default() };
    let report = Report {
        name: "train".into(),
        verdict: Verdict::Finished,
        wall: Duration::from_secs(9),
        machine,
        stages: vec![
            StageReport { bytes_fetched: 50 * ROWS, ..stage("read", [0, 160], 1) },
            stage("parse", [160, 200], 10),
            stage("batch", [200, batch], 20),
            stage("lookup", [batch, batch + 40], 4),
            stage("train", [batch + 40, 120], 40),
            stage("push", [120, 0], 4),
        ],
        links: Vec::new(),
        services: vec![StageReport { rows_held: Some(100_000), ..stage("ps0-embedding", [0, 0], 10) }],
        ledger: LedgerReport { read: ROWS, delivered: ROWS, ..LedgerReport::default() },
        adjustments: Vec::new(),
    };
    let mut json = json!(report);
    json["version"] = json!(1);
    json["settings"] = json!(job(&[]));
    json["progress"] = json!({ "rows": ROWS });
    // The square root of the rows, times 100.
    let rows: Vec<u64> = (0..=20).map(|n| n * ROWS / 20).collect();
    let table_rows: Vec<u64> = rows.iter().map(|&rows| (100.0 * (rows as f64).sqrt()) as u64).collect();
    let seconds: Vec<f64> = (0..=20).map(|n| 0.5 * f64::from(n)).collect();
    json["history"] = json!({ "seconds": seconds, "rows": rows, "table_rows": table_rows });
    // The run is faster than its bounds, so it says nothing about the part of them that a run reaches.
    json["wall"] = json!(3.9);
    json["saved"] = json!({ "seconds": 2.0, "bytes": 1_000_000_000 });
    json
}

fn profile() -> RunProfile {
    RunProfile::from_json(&report().to_string()).unwrap()
}

fn options(given: &[&str], machines: &[&str]) -> PlanOptions {
    let mut options = PlanOptions::default();
    given.iter().for_each(|given| options.assume(given).unwrap());
    machines.iter().for_each(|machine| options.set_machine(machine).unwrap());
    options
}

fn planned(settings: &[&str], given: &[&str], machines: &[&str]) -> RunPlan {
    plan(&job(settings), &Registry::default(), &profile(), &options(given, machines)).unwrap()
}

fn refused(settings: &[&str], given: &[&str], machines: &[&str]) -> String {
    plan(&job(settings), &Registry::default(), &profile(), &options(given, machines)).unwrap_err().to_string()
}

fn bound(plan: &RunPlan, name: &str) -> f64 {
    plan.bounds.iter().find(|bound| bound.name == name).unwrap_or_else(|| panic!("{name}: {:?}", plan.bounds)).rate
}

/// Whether two figures are the same but for rounding.
fn same(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-6
}

#[test]
fn one_process_is_as_fast_as_its_stages_and_its_cores() {
    let plan = planned(&[], &[], &[]);
    assert_eq!(plan.machines, Machines::ONE);
    assert!(same(bound(&plan, "CPU of the trainers"), 4.0 / 10e-6), "{plan}");
    assert!(same(bound(&plan, "compute of the trainers (train)"), 1.0 / 4e-6), "{plan}");
    assert!(same(plan.rows_per_second, 1.0 / 4e-6), "{plan}");
    assert!(same(plan.roles[0].busy, 10.0 / 4.0 / 4.0), "{plan}");
    // Faster compute moves the limit to the cores.
    assert!(same(planned(&[], &["compute_speed=10"], &["cores=3"]).rows_per_second, 3.0 / 10e-6));
}

#[test]
fn a_run_that_its_cores_or_its_compute_limited_is_predicted_again() {
    let slower = |seconds: f64, settings: &[&str], given: &[&str]| {
        let mut report = report();
        report["wall"] = json!(seconds);
        let profile = RunProfile::from_json(&report.to_string()).unwrap();
        plan(&job(settings), &Registry::default(), &profile, &options(given, &[])).unwrap()
    };
    // A million rows could be computed in 4 s.
    assert!(same(slower(5.0, &[], &[]).rows_per_second, 0.2e6));
    assert!(same(slower(5.0, &[], &["attained=1"]).rows_per_second, 0.25e6));
    assert!(same(slower(5.0, &[], &["compute_speed=2"]).rows_per_second, 0.32e6), "the cores are the limit then");

    // With one batch under way, and a look-up that always waited for the ticket, the time of a batch is the time between two batches, not
    // the sum of its parts.
    let sequential = |ticket: f64| {
        let mut report = report();
        report["wall"] = json!(4.5);
        report["settings"]["train"]["staleness"] = json!(0);
        report["stages"][3]["wall"] = json!(4.5);
        let wait = json!({ "count": 1000, "total": ticket, "kind": "blocked" });
        report["stages"][3]["waits"] = json!({ "ticket": wait });
        let profile = RunProfile::from_json(&report.to_string()).unwrap();
        plan(&job(&["train.staleness=0"]), &Registry::default(), &profile, &options(&[], &[])).unwrap().rows_per_second
    };
    assert!(same(sequential(4.0), 1e6 / 4.5));
    assert!(same(sequential(1.0), 1e6 / 5.8), "{}", sequential(1.0));
}

/// A bug: the time that shards waited for a core counted as work, and a run that they limited was planned as if it had reached their limit.
#[test]
fn a_run_that_its_shards_limited_is_predicted_again() {
    // Of 10 s of CPU time, the shards took `shards`; they were busy for 5 s, and the run took 10.
    let plan_of = |shards: f64, settings: &[&str], given: &[&str]| {
        let mut report = report();
        report["wall"] = json!(10.0);
        report["services"][0]["busy"] = json!(5.0);
        report["machine"]["threads"] = json!({ "parse": 1.0, "ps0-embedding": shards, "train": 9.0 - shards });
        let profile = RunProfile::from_json(&report.to_string()).unwrap();
        plan(&job(settings), &Registry::default(), &profile, &options(given, &[])).unwrap()
    };
    let waited = plan_of(1.0, &["table.shards=1"], &["rows=5e6"]);
    assert!(same(waited.rows_per_second, 1e6 / 10.0), "{waited}");
    assert_eq!(waited.bounds[0].name, "compute of the trainers (train)", "shards that wait for a core are not busy");
    let worked = plan_of(5.0, &["table.shards=1"], &["rows=5e6"]);
    assert!(same(worked.rows_per_second, 1e6 / 10.0), "{worked}");
    assert_eq!(worked.bounds[0].name, "shards");
    let said = "a run reaches 50% of the rows/s that its cores, its compute and its shards allow, as in the measured run: 100,000 of 200,000 \
                rows/s (shards)";
    assert!(worked.to_string().contains(said), "{worked}");
    // Two shards move the limit to the compute: 4 µs a row.
    assert!(same(plan_of(5.0, &["table.shards=2"], &[]).rows_per_second, 0.5 / 4e-6));
    let given = plan_of(5.0, &[], &["attained=1"]).to_string();
    assert!(given.contains("as given; in the measured run, it was 50%: 100,000 of 200,000 rows/s (shards)"), "{given}");
}

#[test]
fn the_time_of_a_batch_is_corrected_by_the_measured_run_but_not_a_round_trip() {
    let mut report = report();
    report["wall"] = json!(11.6);
    report["settings"]["train"]["staleness"] = json!(0);
    let profile = RunProfile::from_json(&report.to_string()).unwrap();
    let of = |settings: &[&str], given: &[&str], machines: &[&str]| {
        plan(&job(settings), &Registry::default(), &profile, &options(given, machines)).unwrap()
    };
    // A batch takes 5.8 ms, and the run had one in 11.6 ms.
    assert!(same(of(&["train.staleness=0"], &[], &[]).rows_per_second, 1e6 / 11.6));
    let far = ["train.staleness=0", "train.look_ahead=0", "placement.ps=1", "table.shards=1"];
    let far = of(&far, &["round_trip=1s"], &["network=1000Gbit"]);
    assert!((far.rows_per_second - 1000.0 / 2.0116).abs() < 0.1, "{far}");
}

#[test]
fn the_plan_says_what_it_would_be_for_a_measured_cluster() {
    let mut report = report();
    report["wall"] = json!(10.0);
    report["settings"] = json!(job(&["placement.readers=1", "placement.ps=1"]));
    let trainer = {
        let mut own = report.clone();
        own["process"] = json!("trainer 0");
        own
    };
    report["processes"] = json!([trainer]);
    let plan = planned_from(&report, &[]);
    let said = "a run reaches 100% of the rows/s that its cores, its compute and its shards allow; the measured run reached 40%: 100,000 of \
                250,000 rows/s (compute of the trainers (train)), so the plan may be 2.5 times too high";
    assert!(plan.to_string().contains(said), "{plan}");
}

/// A bug: the deadline was out of reach for any number of machines.
#[test]
fn a_deadline_is_met_with_several_shards_in_each_ps() {
    let given = ["rows=1e11", "deadline=5h", "keys=1e6"];
    let ps = |shards: &str| planned(&[shards], &given, &["cores=16"]).machines.ps;
    let fewest = [1, 2, 4, 512].map(|shards| ps(&format!("table.shards={shards}")));
    assert!(fewest[0] > 2 && fewest.is_sorted_by(|more, fewer| more >= fewer), "{fewest:?}");
    assert_eq!(ps("table.shards=auto"), ps("table.shards=8"), "half of the cores");
}

/// A bug: the time of a batch in the measured run was computed with the shards of the planned run.
#[test]
fn the_measured_run_has_its_own_shards() {
    let mut report = report();
    report["wall"] = json!(4.5);
    report["settings"]["train"]["staleness"] = json!(0);
    report["stages"][3]["wall"] = json!(4.5);
    report["stages"][3]["waits"] = json!({ "ticket": { "count": 1000, "total": 4.0, "kind": "blocked" } });
    let profile = RunProfile::from_json(&report.to_string()).unwrap();
    let rate = |shards: &str| {
        let job = job(&["train.staleness=0", "placement.ps=2", "placement.trainers=4", shards]);
        plan(&job, &Registry::default(), &profile, &options(&[], &["cores=16"])).unwrap().rows_per_second
    };
    let [auto, one, eight] = ["auto", "1", "8"].map(|shards| rate(&format!("table.shards={shards}")));
    assert!(same(auto, eight) && eight > one, "{auto} {one} {eight}");
}

/// A bug: a job was refused its own report.
#[test]
fn a_report_has_the_scales_that_a_sample_of_the_rows_decided() {
    let mut report = report();
    let mut settings = job(&[]);
    let scale = FeatureScale { transform: Transform::Log1p, ..FeatureScale::default() };
    settings.set_open_scales(&[("I1".to_owned(), scale)].into()).unwrap();
    report["settings"] = json!(settings);
    planned_from(&report, &[]);
    let profile = RunProfile::from_json(&report.to_string()).unwrap();
    let other = job(&["columns.dense=[{ column = 'I1', transform = 'none' }, 'I2..I13']"]);
    let fault = plan(&other, &Registry::default(), &profile, &options(&[], &[])).unwrap_err();
    assert!(fault.to_string().contains("columns.dense"), "{fault}");
}

/// The plan of the same job from this report.
fn planned_from(report: &Value, given: &[&str]) -> RunPlan {
    let profile = RunProfile::from_json(&report.to_string()).unwrap();
    plan(&job(&[]), &Registry::default(), &profile, &options(given, &[])).unwrap()
}

#[test]
fn the_rows_of_all_trainers_share_what_the_run_cost() {
    let mut report = report();
    let trainer = |name: &str, rows: u64, cpu: f64| {
        let mut own = report.clone();
        own["process"] = json!(name);
        own["stages"][4]["rows_in"] = json!(rows);
        own["machine"]["cpu"] = json!(cpu);
        own
    };
    let processes = [trainer("trainer 0", 400_000, 10.0), trainer("trainer 1", 600_000, 0.0)];
    let of_one = planned_from(&report, &["rows=1e10"]);
    report["processes"] = json!(processes);
    // The first trainer counts its own rows.
    report["progress"]["rows"] = json!(400_000);
    let rows: Vec<u64> = (0..=20).map(|n| n * 400_000 / 20).collect();
    report["history"]["rows"] = json!(rows);
    assert_eq!(planned_from(&report, &["rows=1e10"]), of_one);
    assert_eq!(planned_from(&report, &[]).rows, 1e6);
}

#[test]
fn rows_before_a_run_was_resumed_have_keys_but_no_cost() {
    let whole = report();
    let mut resumed = whole.clone();
    let rows: Vec<u64> = (0..=20).map(|n| 2 * ROWS + n * ROWS / 20).collect();
    resumed["progress"]["rows"] = json!(3 * ROWS);
    resumed["history"]["rows"] = json!(rows);
    let (found, expected) =
        (planned_from(&resumed, &["rows=1e10", "keys=1e6"]), planned_from(&whole, &["rows=1e10", "keys=1e6"]));
    assert_eq!(found.bounds, expected.bounds);
    assert!(same(found.hours, expected.hours), "{found}");
    assert_eq!(planned_from(&resumed, &[]).rows, 3e6);
    let grown = planned_from(&resumed, &["rows=1e10"]).to_string();
    assert!(grown.contains("100,000 keys after 3.000 M rows"), "{grown}");
}

#[test]
fn lines_carry_what_rows_are_made_of() {
    let plan = planned(
        &["placement.readers=2", "placement.ps=4"],
        &["headers=1"],
        &["reader:network=100Mbit", "ps:network=10Mbit"],
    );
    // Label, dense features, places in 2 bytes, keys.
    assert!(same(bound(&plan, "network out of the readers"), 2.0 * 12.5e6 / (4.0 + 52.0 + 52.0 + 80.0)), "{plan}");
    assert!(same(bound(&plan, "network into the ps"), 4.0 * 1.25e6 / (80.0 + 80.0 + 40.0)), "{plan}");
    assert!(same(bound(&plan, "network out of the ps"), 4.0 * 1.25e6 / 40.0), "{plan}");
    assert_eq!(plan.bounds[0].name, "network into the ps");
    let to_ps = plan.links.iter().find(|link| link.to == "ps").unwrap();
    assert!(same(to_ps.bytes_per_second, plan.rows_per_second * 200.0), "{plan}");
    let ps = plan.roles.iter().find(|role| role.role == "ps").unwrap();
    assert!(same(ps.network[0], 1.25e6), "a ps receives all that its line carries: {plan}");
}

#[test]
fn a_round_trip_costs_what_the_batches_under_way_do_not_hide() {
    let with = |staleness: usize, look_ahead: &str| {
        let staleness = format!("train.staleness={staleness}");
        let plan = planned(&["placement.ps=1", &staleness, look_ahead], &["round_trip=50ms"], &["network=1000Gbit"]);
        bound(&plan, "batches under way") / 1000.0
    };
    // Two round trips, 4 ms of compute and about 2 ms of all else.
    let alone = with(0, "train.look_ahead=0");
    assert!((alone - 1.0 / 0.106).abs() < 0.1, "{alone}");
    assert!(same(with(7, "train.look_ahead=\"auto\""), 8.0 * alone));
    let ahead = with(0, "train.look_ahead=7");
    assert!((ahead / (8.0 * alone) - 1.0).abs() < 0.01, "{ahead}");
}

#[test]
fn a_deadline_gives_the_fewest_machines_that_meet_it() {
    let given = ["rows=1e10", "deadline=1h", "keys=1e6", "headroom=1.1"];
    let plan = planned(&[], &given, &["network=10Gbit"]);
    let needed = plan.needed.unwrap() * 1.1;
    assert!(plan.rows_per_second >= needed && plan.hours < 1.0, "{plan}");
    let Machines { readers, ps, trainers } = plan.machines;
    assert!(trainers > 1 && ps > 0, "{plan}");
    for fewer in [
        Machines { readers: readers.saturating_sub(1), ..plan.machines },
        Machines { ps: ps - 1, ..plan.machines },
        Machines { trainers: trainers - 1, ..plan.machines },
    ] {
        if fewer == plan.machines || fewer.ps == 0 {
            continue;
        }
        let settings = [
            format!("placement.readers={}", fewer.readers),
            format!("placement.ps={}", fewer.ps),
            format!("placement.trainers={}", fewer.trainers),
        ];
        let slower = planned(&settings.each_ref().map(String::as_str), &["keys=1e6"], &["network=10Gbit"]);
        assert!(slower.rows_per_second < needed, "{fewer:?} are enough, too: {plan}");
    }
}

#[test]
fn money_decides_between_roles_and_is_added_up() {
    // The cores of the trainers limit, so readers that take work off them are worth their price, or not.
    let given = ["rows=1e10", "deadline=2h", "keys=1e6", "compute_speed=10"];
    let dear = planned(&[], &given, &["reader:price=100", "ps:price=1", "trainer:price=1"]);
    let cheap = planned(&[], &given, &["reader:price=0.01", "ps:price=1", "trainer:price=1"]);
    assert_eq!(dear.machines.readers, 0, "trainers read: {dear}");
    let speed = |plan: &RunPlan| plan.rows_per_second / plan.machines.trainers as f64;
    assert!(cheap.machines.readers > 0 && speed(&cheap) > speed(&dear), "{cheap}");
    let Machines { readers, ps, trainers } = cheap.machines;
    let an_hour = 0.01 * readers as f64 + ps as f64 + trainers as f64;
    assert!(same(cheap.money.unwrap(), an_hour * cheap.hours));
    assert_eq!(planned(&[], &given, &["ps:price=1"]).money, None, "the price of a trainer is not known");
}

#[test]
fn more_time_makes_a_run_no_dearer() {
    let given = |deadline| ["rows=1e10", "keys=1e6", "compute_speed=10", deadline];
    let money = |deadline| planned(&[], &given(deadline), &["price=1"]).money.unwrap();
    for (short, long) in [("deadline=2h", "deadline=4h"), ("deadline=4h", "deadline=40h")] {
        assert!(money(long) <= 1.02 * money(short), "{long}: {}, {short}: {}", money(long), money(short));
    }
}

#[test]
fn keys_grow_as_measured_and_decide_how_many_ps_hold_them() {
    let plan = planned(&[], &["rows=1e10"], &["memory=1000GB"]);
    assert!((plan.table.keys / (100.0 * 1e5) - 1.0).abs() < 1e-3, "{plan}");
    assert_eq!(planned(&["data.epochs=10000"], &["rows=1e10"], &[]).table.keys, 100_000.0, "passes over the same rows");
    assert_eq!(planned(&[], &["rows=1e10", "keys=5e6"], &[]).table.keys, 5e6);
    assert_eq!(planned(&["table.eviction.max_rows=70000"], &["rows=1e10"], &[]).table.keys, 70_000.0);
    // 1e9 keys of at least 64 bytes, on machines of 16 GB.
    let plan = planned(&["placement.readers=0"], &["rows=1e9", "keys=1e9", "deadline=100h"], &["memory=16GB"]);
    let bytes = plan.table.keys * plan.table.bytes_per_key;
    assert_eq!(plan.machines.ps, (bytes / (0.8 * 16e9)).ceil() as usize, "{plan}");
    assert!(same(plan.table.machine_bytes, bytes / plan.machines.ps as f64));
    assert!(same(plan.table.shard_bytes, bytes / plan.table.shards as f64));
    let fault = refused(&["placement.ps=1"], &["keys=1e9"], &["memory=16GB"]);
    assert!(fault.contains("placement.ps") && fault.contains("--machine memory="), "{fault}");
}

#[test]
fn the_memory_of_several_tables_is_the_sum_of_what_each_has() {
    let job = Job::from_toml(TWO_TABLES, &[]).unwrap();
    let measured = |tables: Value| {
        let mut report = report();
        report["settings"] = json!(job);
        report["tables"] = tables;
        let profile = RunProfile::from_json(&report.to_string()).unwrap();
        plan(&job, &Registry::default(), &profile, &options(&["rows=1e10", "keys=1e6"], &[])).unwrap()
    };
    let one = |name: &str, rows| json!({ "name": name, "row_dim": 5, "rows": rows, "pulls": 3 });
    let of = |embedding, wide| measured(json!([one("embedding", embedding), one("wide", wide)])).table;
    let (narrow, wide, mixed) = (of(1, 0), of(0, 1), of(300, 100));
    assert!(wide.bytes_per_key > 1.3 * narrow.bytes_per_key, "{wide:?} {narrow:?}");
    assert!(same(mixed.bytes_per_key, 0.75 * narrow.bytes_per_key + 0.25 * wide.bytes_per_key), "{mixed:?}");
    assert!(same(mixed.model_bytes, 0.75 * narrow.model_bytes + 0.25 * wide.model_bytes));
    assert!(same(mixed.checkpoint_bytes, 0.75 * narrow.checkpoint_bytes + 0.25 * wide.checkpoint_bytes));
    // A report of an older program does not list the tables separately.
    let old = measured(json!([]));
    assert!(same(old.table.bytes_per_key, (narrow.bytes_per_key + wide.bytes_per_key) / 2.0));
    assert!(old.to_string().contains("the tables have as many keys each"), "{old}");
}

#[test]
fn reports_that_lack_what_a_plan_needs_are_refused_by_name() {
    let refused = |spoil: &dyn Fn(&mut Value)| {
        let mut report = report();
        spoil(&mut report);
        RunProfile::from_json(&report.to_string()).unwrap_err().to_string()
    };
    let failed = json!({ "state": "failed", "domain": "user", "retryable": false, "message": "the disk is full" });
    for (fault, words) in [
        (RunProfile::from_json("no").unwrap_err().to_string(), ["not JSON", "--report"]),
        (RunProfile::from_json("{}").unwrap_err().to_string(), ["no stages", "--report"]),
        (refused(&|r| r["verdict"] = failed.clone()), ["failed", "the disk is full"]),
        (refused(&|r| drop(r.as_object_mut().unwrap().remove("version"))), ["no version", "again"]),
        (refused(&|r| r["version"] = json!(7)), ["version 7", "expected 1"]),
        (refused(&|r| drop(r.as_object_mut().unwrap().remove("settings"))), ["not whole", "settings"]),
        (refused(&|r| drop(r["stages"].as_array_mut().unwrap().pop())), ["no stage `push`", "training"]),
        (refused(&|r| r["stages"][4]["items_in"] = json!(3)), ["3 batches", "at least 20"]),
        (refused(&|r| r["services"] = json!([])), ["no `services`", "again"]),
        (refused(&|r| r["machine"]["cpu"] = json!(0.0)), ["machine.cpu", "too short"]),
        (refused(&|r| r["verdict"] = json!({ "state": "running" })), ["has not ended", "at the end"]),
    ] {
        assert!(words.iter().all(|word| fault.contains(word)), "{words:?}: {fault}");
    }
}

#[test]
fn jobs_that_cost_something_else_are_refused_by_the_field() {
    assert!(refused(&["train.batch_rows=500"], &[], &[]).contains("train.batch_rows is 1000 there and 500 here"));
    assert!(refused(&["model.kind=fm"], &[], &[]).contains("model.kind"));
    let fault = refused(&["placement.readers=1", "placement.ps=1", "placement.lookup_at=reader"], &[], &[]);
    assert!(fault.contains("placement.lookup_at") && fault.contains("\"trainer\""), "{fault}");
    let fault = refused(&[], &["deadline=1ms"], &[]);
    assert!(fault.contains("deadline") && fault.contains("save_speed"), "{fault}");
    let fault = refused(&[], &["rows=1e18", "keys=10", "deadline=1h"], &[]);
    assert!(
        fault.contains("even 1,024 readers, 1024 ps and 1,024 trainers") && fault.contains("the limit is"),
        "{fault}"
    );
    let fault = refused(&[], &["rows=1e15", "keys=1e15", "deadline=100000h"], &[]);
    assert!(fault.contains("does not fit into the memory of 1024 ps: give --keys"), "{fault}");
    // What does not change the cost of a row may differ.
    planned(&["data.train=elsewhere", "train.staleness=2", "placement.ps=2"], &[], &[]);
}

#[test]
fn evaluations_during_the_run_are_the_same_in_both_runs_and_are_assumed() {
    let every = ["data.eval=rows", "evaluation.every={ rows = 1000 }"];
    let fault = refused(&every, &[], &[]);
    assert!(fault.contains("evaluation.every.rows is not set there and 1000 here"), "{fault}");
    let mut report = report();
    report["settings"] = json!(job(&every));
    let profile = RunProfile::from_json(&report.to_string()).unwrap();
    let planned = |settings: &[&str]| plan(&job(settings), &Registry::default(), &profile, &PlanOptions::default());
    let assumed = planned(&every).unwrap().to_string();
    assert!(assumed.contains("evaluated every 1,000 rows as in the measured run"), "{assumed}");
    let fault = planned(&["placement.ps=1"]).unwrap_err().to_string();
    assert!(fault.contains("evaluation.every.rows is 1000 there and not set here"), "{fault}");
}

#[test]
fn every_assumption_says_what_changes_it() {
    let plan = planned(&["placement.readers=1", "placement.ps=2"], &["rows=1e10"], &[]);
    for name in ["round_trip", "headers", "network_cpu", "skew", "compute_speed", "store", "save_speed", "attained"] {
        let there = plan.assumptions.iter().any(|assumption| assumption.change == format!("--assume {name}="));
        assert!(there, "{name} is not in {plan}");
    }
    assert!(plan.assumptions.iter().any(|assumption| assumption.change == "--keys"), "{plan}");
    let json = json!(plan);
    assert_eq!(json["machines"], json!({ "readers": 1, "ps": 2, "trainers": 1 }));
    assert_eq!(json["bounds"][0]["rate"], json["rows_per_second"]);
}
