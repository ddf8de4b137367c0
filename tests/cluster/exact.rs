//! With `staleness = 0` and with `staleness = { exactly = k }` any number of machines trains the same model as one process, to the
//! bit.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::hosts::Hosts;
use super::jobs::{job, one_process, rows};
use super::processes::{Ledger, Run, in_time, over_too_soon, rows_read};

const ROWS: u64 = 12_000;

/// The rows of the other tests as CSV, in several files.
fn csv(folder: &Path) {
    for (number, file) in std::fs::read_dir(rows(ROWS)).unwrap().map(|entry| entry.unwrap().path()).enumerate() {
        if file.extension().is_some_and(|ending| ending == "parquet") {
            let rows = ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap();
            let to = File::create(folder.join(format!("part-{number}.csv"))).unwrap();
            let mut to = arrow::csv::Writer::new(to);
            rows.for_each(|batch| to.write(&batch.unwrap()).unwrap());
        }
    }
}

#[test]
fn weighted_rows_of_csv_give_the_same_model_with_any_number_of_readers() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let folder = tempfile::tempdir().unwrap();
    csv(folder.path());
    let train = format!("data.train={}", folder.path().display());
    let model = |readers: usize, more: &[&str]| {
        let readers_of = format!("placement.readers={readers}");
        let all = [&["placement.ps=2", &readers_of, &train][..], more].concat();
        let processes = &["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"][..3 + readers];
        let (run, logs) = finished(&hosts, processes, &job(ROWS, &all));
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.rejected, ledger.again), (ROWS, 0, 0), "{}", logs[0]);
        run.model()
    };
    let weighted = model(2, &["columns.weight=I2"]);
    assert_eq!(weighted.difference(&model(1, &["columns.weight=I2"])), None);
    assert!(weighted.difference(&model(1, &[])).is_some(), "the weights count");
}

const HOSTS: [&str; 6] = ["ps0", "ps1", "trainer0", "trainer1", "reader0", "reader1"];

/// Runs these processes, each on its host. Returns the run and the processes' output.
fn finished(hosts: &Arc<Hosts>, processes: &[&str], settings: &[String]) -> (Run, Vec<String>) {
    in_time(|_| {
        let mut run = Run::on_hosts(hosts, &HOSTS, "ps0", settings);
        run.start(processes);
        let logs = run.end_well(processes);
        (run, logs)
    })
}

/// Tables of three widths, with rules of their own.
const TABLES: [&str; 2] = [
    "columns.slots=['C1..C9', { column = 'C10..C20', table = 'small' }, { column = 'C21..C26', table = 'wide' }]",
    "tables={ small = { embedding_dim = 2, embedding_optimizer = { kind = 'adagrad', l2 = 0.01 }, admission = { count = 2 }, eviction = \
     { unseen_rows = 1000 } }, wide = { embedding_dim = 9, embedding_optimizer = { kind = 'adamw', weight_decay = 0.1 }, storage = 'f16' } }",
];

/// Slots that only the linear part reads.
const LINEAR_ONLY: [&str; 2] = [
    "columns.slots=[{ column = 'C1..C9', table = 'linear' }, 'C10..C26']",
    "tables={ linear = { embedding_dim = 0 } }",
];

#[test]
fn the_model_is_the_same_wherever_rows_are_looked_up_and_dense_parameters_are() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    for placement in [
        &["placement.readers=2"][..],
        &["placement.readers=2", "placement.dense=ps"],
        &["placement.readers=1", "placement.lookup_at=reader"],
        &["placement.readers=1", "placement.lookup_at=reader", "placement.dense=ps", "placement.streams=2"],
        &["placement.readers=0", "placement.dense=ps"],
        &["placement.readers=2", "table.shards=3", "table.admission.count=2", "table.eviction.unseen_rows=1000"],
        &[
            "placement.readers=2",
            "placement.dense=ps",
            "model.dropout=0.2",
            "model.activation=prelu",
            "model.norm=layer",
        ],
        &["placement.readers=2", TABLES[0], TABLES[1]],
        &["placement.readers=2", "columns.weight=I2", "table.storage=int8"],
        &["placement.readers=1", "placement.lookup_at=reader", LINEAR_ONLY[0], LINEAR_ONLY[1]],
        &[
            "placement.readers=1",
            "placement.lookup_at=reader",
            "placement.dense=ps",
            "table.shards=3",
            TABLES[0],
            TABLES[1],
        ],
        &[
            "placement.readers=2",
            "placement.dense=ps",
            "model.kind=mmoe",
            "columns.label=['label', { column = 'I2', positive = '>= 3', name = 'many' }]",
        ],
    ] {
        let settings = job(ROWS, &[&["placement.ps=2"], placement].concat());
        let readers = placement[0].rsplit('=').next().unwrap().parse::<usize>().unwrap();
        let processes = &["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"][..3 + readers];
        let (run, logs) = finished(&hosts, processes, &settings);
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.rejected, ledger.again), (ROWS, 0, 0), "{}", logs[0]);
        assert_eq!(ledger.windows.0, ledger.windows.1, "{}", logs[0]);
        if readers > 0 {
            assert_eq!(logs[3..].iter().map(|log| rows_read(log)).sum::<u64>(), ROWS);
        }
        for log in &logs[1..3] {
            assert!(log.contains("table `embedding`: ") && !log.contains("push ids held"), "{log}");
        }
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{placement:?}");
    }
    // The comparison must be able to fail.
    let other = one_process(&job(ROWS, &["seed=10"]));
    assert!(one_process(&job(ROWS, &[])).0.difference(&other.0).unwrap().contains("dense parameters differ"));
}

/// A ps on a machine with other cores takes over: it has another number of shards.
#[test]
fn ps_with_different_numbers_of_shards_give_the_model_of_one_process() {
    in_time(|_| {
        let folder = tempfile::tempdir().unwrap();
        let to = format!("checkpoint.to={}", folder.path().display());
        let more = ["placement.readers=1", "placement.ps=2", "table.admission.count=2", "checkpoint.rows=8000", &to];
        let mut settings = job(100_000, &more);
        settings.retain(|setting| !setting.starts_with("table.shards"));
        let mut run = Run::local(&settings);
        run.start(&["trainer 0", "reader 0"]);
        run.start_with("ps 0", &["--set", "pipeline.cores=6"]);
        run.start_with("ps 1", &["--set", "pipeline.cores=2"]);
        run.until_said_times("trainer 0", "INFO checkpoint ", 2);
        run.kill("ps 1");
        run.resume_with("ps 1@again", &["--set", "pipeline.cores=8"]);
        let logs = run.end_well(&["trainer 0", "ps 0", "ps 1@again", "reader 0"]);
        if !logs[2].contains("of checkpoint ") {
            over_too_soon(&logs[2]);
        }
        assert_eq!(Ledger::of(&logs[0]).rows, 100_000, "{}", logs[0]);
        assert!(logs[1].contains(" in 3 shards") && logs[2].contains(" in 4 shards"), "{} {}", logs[1], logs[2]);
        settings.retain(|setting| !setting.starts_with("checkpoint."));
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{}", logs[0]);
    });
}

#[test]
fn synchronous_trainers_drop_the_same_units_on_every_run() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let placement = ["placement.readers=2", "placement.ps=1", "placement.trainers=2", "train.sync=true"];
    let model = |more: &str| {
        let processes = ["trainer 0", "trainer 1", "ps 0", "reader 0", "reader 1"];
        finished(&hosts, &processes, &job(ROWS, &[&placement[..], &["train.batch_rows=128", more]].concat())).0.model()
    };
    let dropped = model("model.dropout=0.3");
    assert_eq!(model("model.dropout=0.3").difference(&dropped), None);
    assert!(model("model.dropout=0").difference(&dropped).is_some(), "the comparison can fail");
}

/// The AUC of an evaluation.
fn auc(log: &str) -> f64 {
    let line = log.lines().find(|line| line.contains("evaluated on ")).unwrap_or_else(|| panic!("{log}"));
    let after = line.split_once("AUC ").unwrap_or_else(|| panic!("{line}")).1;
    let number: String = after.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn synchronous_trainers_equal_one_trainer_with_larger_batches() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let eval = format!("data.eval={}", rows(2 * ROWS).display());
    let placement = ["placement.readers=2", "placement.ps=2", "placement.trainers=2", "train.sync=true"];
    let settings = job(ROWS, &[&placement[..], &[&eval, "train.batch_rows=128"]].concat());
    let processes = ["trainer 0", "trainer 1", "ps 0", "ps 1", "reader 0", "reader 1"];
    let (run, logs) = finished(&hosts, &processes, &settings);
    assert_eq!(Ledger::of(&logs[0]).rows, ROWS, "{}", logs[0]);
    let model = run.model();
    drop(run);
    let (again, _) = finished(&hosts, &processes, &settings);
    assert_eq!(again.model().difference(&model), None, "the same on every run");

    let whole = one_process(&job(ROWS, &[&eval, "train.batch_rows=256"]));
    let distance = whole.0.distance(&model);
    assert!(distance < 1e-4, "dense parameters are {distance:e} away from those of one process with twice the batch");
    assert_eq!(whole.0.keys(), model.keys());
    let (ours, theirs) = (auc(&logs[0]), auc(&whole.1));
    assert!((ours - theirs).abs() < 5e-4 && ours > 0.6, "AUC {ours}, of one process {theirs}");
}

#[test]
fn exact_staleness_is_the_same_wherever_rows_and_dense_parameters_are() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    for (k, readers, placement) in [
        (0, 2, &["placement.readers=2", "placement.ps=2"][..]),
        (1, 2, &["placement.readers=2", "placement.ps=2", "table.shards=3"]),
        (2, 0, &["placement.readers=0", "placement.ps=2"]),
        (5, 2, &["placement.readers=2", "placement.ps=2", "placement.in_flight=2"]),
    ] {
        let exactly = format!("train.staleness={{ exactly = {k} }}");
        let settings = job(ROWS, &[&[exactly.as_str()], placement].concat());
        let processes = &["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"][..3 + readers];
        let (run, logs) = finished(&hosts, processes, &settings);
        assert_eq!(Ledger::of(&logs[0]).rows, ROWS, "{}", logs[0]);
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{placement:?}, k = {k}");
    }
    let bits = |k: &str| one_process(&job(ROWS, &[&format!("train.staleness={k}")]));
    assert_eq!(bits("{ exactly = 0 }").0.difference(&bits("0").0), None);
    assert!(bits("{ exactly = 2 }").0.difference(&bits("0").0).is_some());
}

/// The dense parameters are as stale as the rows, so the model differs from the model of one process.
#[test]
fn exact_staleness_in_the_ps_and_of_trainers_in_step_is_the_same_in_every_run() {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    let all = ["trainer 0", "trainer 1", "ps 0", "ps 1", "reader 0", "reader 1"];
    let alone = ["trainer 0", "ps 0", "reader 0"];
    let model = |processes: &[&str], settings: &[&str]| {
        let count = |role: &str| processes.iter().filter(|name| name.starts_with(role)).count();
        let placement = ["readers", "ps", "trainers"].map(|roles| {
            let role = roles.trim_end_matches("ers").trim_end_matches("er");
            format!("placement.{roles}={}", count(if roles == "ps" { "ps" } else { role }))
        });
        let placement: Vec<&str> = placement.iter().map(String::as_str).collect();
        let fixed = ["placement.dense=ps", "train.sync=true", "train.batch_rows=128"];
        let (run, logs) = finished(&hosts, processes, &job(ROWS, &[&placement, &fixed[..], settings].concat()));
        assert_eq!(Ledger::of(&logs[0]).rows, ROWS, "{}", logs[0]);
        run.model()
    };
    // The gradients of both trainers are merged before the rows of each table change.
    let tables = ["table.shards=3", TABLES[0], TABLES[1]];
    assert_eq!(model(&all, &TABLES).difference(&model(&all[..5], &tables)), None);
    for k in [0, 2, 5] {
        let exactly = format!("train.staleness={{ exactly = {k} }}");
        let in_step = model(&all, &[&exactly]);
        let other = ["trainer 0", "trainer 1", "ps 0", "reader 0"];
        assert_eq!(in_step.difference(&model(&other, &[&exactly, "table.shards=3"])), None, "k = {k}");
        let by_itself = model(&alone, &[&exactly]);
        let elsewhere = model(&["trainer 0", "ps 0", "ps 1"], &[&exactly, "table.shards=1"]);
        assert_eq!(by_itself.difference(&elsewhere), None, "k = {k}");
        assert_eq!(in_step.difference(&model(&all, &[])).is_none(), k == 0);
        assert_eq!(by_itself.difference(&model(&alone, &[])).is_none(), k == 0);
    }
}
