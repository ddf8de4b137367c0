//! Separate transfers: the stages `upload`, `train` and `download` give the same model, the same row counts and the
//! same faults as `train` alone. The device is a software device over the native backend, and CPU tensors of libtorch
//! with feature `torch`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{bits, run};
use forebay::actors::{StageReport, WaitKind};
use forebay::models::testsuite::SoftwareDevice;
use forebay::models::{DenseModel, ModelError, NativeModel};
use forebay::pipelines::job::{Backend, Transfers};
use forebay::pipelines::{ModelFactory, OwnModel, Trained};
use forebay::{Fault, Job, Training};

fn native(job: &Job) -> NativeModel {
    let spec = job.model.spec(job.columns.slots.len(), job.columns.dense.len(), &[1.0]);
    NativeModel::new(spec, job.dense_optimizer(), job.seed, 1).unwrap()
}

/// The job with separate transfers and a model of our own. The backend `torch` only says that there is a device.
fn own(mut job: Job, factory: ModelFactory) -> Training {
    (job.train.backend, job.train.transfers) = (Backend::Torch, Some(Transfers::Apart));
    let parts = native(&job).parts();
    Training::builder(job).model("own", OwnModel { parts, factory }).build().unwrap()
}

fn software(job: Job) -> Training {
    let made = job.clone();
    own(job, Arc::new(move || Ok(Box::new(SoftwareDevice(native(&made))))))
}

fn stages(training: &Training) -> Vec<(String, usize)> {
    let plan = training.plan();
    let capacities = std::iter::once(0).chain(plan.links.iter().map(|link| link.max_items()));
    plan.stages.iter().map(|stage| stage.name.clone()).zip(capacities).collect()
}

/// Every batch went through every stage, and the device computed.
fn well_done(trained: &Trained, staleness: u64, rows: u64) {
    let report = &trained.report;
    assert_eq!((report.ledger.read, report.ledger.delivered), (rows, rows));
    let at = |name: &str| report.stages.iter().find(|stage| stage.name == name).unwrap();
    for name in ["upload", "train", "download"] {
        assert_eq!((at(name).rows_in, at(name).items_out), (rows, at("lookup").items_out), "{name}");
    }
    assert_eq!(at("download").waits["device"].count, trained.progress.steps);
    assert!(trained.progress.device_seconds > 0.0);
    assert!(trained.staleness_observed <= staleness);
    assert_eq!(trained.staleness_observed > 0, staleness > 0);
}

#[test]
fn the_plan_shows_the_stages_and_the_model_is_the_same_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let training = software(common::job(&data, &[]));
    let expected =
        [("read", 0), ("parse", 8), ("batch", 8), ("lookup", 4), ("upload", 2), ("train", 1), ("download", 1)];
    let expected = expected.into_iter().chain([("push", 2)]).map(|(name, room)| (name.to_owned(), room));
    assert_eq!(stages(&training), expected.collect::<Vec<_>>());
    let trained = training.run().unwrap();
    well_done(&trained, 0, 4000);
    assert!(bits(&trained) == bits(&common::train(common::job(&data, &[]))));
}

#[test]
fn with_staleness_the_row_counts_agree_and_the_bound_holds() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 6000);
    for k in [1, 3, 8] {
        let trained = software(common::job(&data, &[&format!("train.staleness={k}")])).run().unwrap();
        well_done(&trained, k, 6000);
    }
}

#[test]
fn a_number_that_is_not_finite_ends_the_run_with_the_error_of_the_inline_step() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let wild = ["train.optimizer={ kind = \"sgd\", lr = 1e38 }"];
    let whole = Training::new(common::job(&data, &wild)).unwrap().run().err().unwrap();
    for staleness in ["train.staleness=0", "train.staleness=4"] {
        let fault = software(common::job(&data, &[wild[0], staleness])).run().err().unwrap();
        assert_eq!(fault.stage.as_deref(), Some("download"));
        assert!(fault.to_string().contains("not finite"), "{fault}");
        if staleness.ends_with('0') {
            assert_eq!(fault.to_string(), whole.to_string().replace("`train`", "`download`"));
        }
    }
}

const STAGES: [&str; 8] = ["read", "parse", "batch", "lookup", "upload", "train", "download", "push"];

/// The parts of a stage's time add up to the time of its replicas.
fn whole(stage: &StageReport) {
    let parts = stage.busy + stage.waiting + stage.starved + stage.blocked + stage.idle;
    let (parts, wall) = (parts.as_micros() as i64, stage.wall.as_micros() as i64);
    assert!((parts - wall).abs() <= 10, "{}: {parts} of {wall} µs", stage.name);
}

#[test]
fn the_report_has_every_stage_once_with_all_batches_and_all_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let trained = software(common::job(&data, &["train.staleness=2"])).run().unwrap();
    let report = &trained.report;
    let names: Vec<&str> = report.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, STAGES);
    report.stages.iter().for_each(whole);
    let steps = trained.progress.steps;
    for stage in &report.stages[4..] {
        assert_eq!((stage.items_in, stage.rows_in), (steps, 4000), "{}", stage.name);
    }
    let links: Vec<(&str, &str)> = report.links.iter().map(|link| (link.from.as_str(), link.to.as_str())).collect();
    assert_eq!(links, STAGES.iter().copied().zip(STAGES[1..].iter().copied()).collect::<Vec<_>>());
    let wall = report.wall.as_secs_f64();
    let stall = report.analysis.stall_share.unwrap();
    assert!((stall - (1.0 - trained.progress.device_seconds / wall).max(0.0)).abs() < 1e-6, "{stall}");
    let loads: Vec<&str> = report.analysis.loads.iter().map(|load| load.stage.as_str()).collect();
    for name in STAGES {
        assert_eq!(loads.iter().filter(|load| **load == name).count(), 1, "{name}: {loads:?}");
    }
}

/// A bug: the time in which `train` made the model counted as work of `upload`.
#[test]
fn a_model_that_takes_long_to_make_is_no_work_of_the_stage_that_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let job = common::job(&common::parquet(dir.path(), 0, 4000), &[]);
    let waits = |long: Duration| {
        let made = job.clone();
        let slow: ModelFactory = Arc::new(move || {
            std::thread::sleep(long);
            Ok(Box::new(SoftwareDevice(native(&made))))
        });
        let trained = own(job.clone(), slow).run().unwrap();
        let upload = trained.report.stages.iter().find(|stage| stage.name == "upload").unwrap();
        whole(upload);
        // An upload whose model is there has not waited.
        let Some(wait) = upload.waits.get("model") else { return false };
        assert_eq!((wait.count, wait.kind), (1, WaitKind::Blocked));
        // The first batch may have come some time after the model was begun.
        assert!(upload.blocked >= wait.total, "{upload:?}");
        wait.total > Duration::from_millis(1)
    };
    // On a busy machine the first batch may come after the model.
    let waited = [700, 5000, 30_000].into_iter().any(|long| waits(Duration::from_millis(long)));
    assert!(waited, "no first batch came before its model");
}

fn refusal(factory: impl FnOnce(&Job) -> ModelFactory) -> Fault {
    let dir = tempfile::tempdir().unwrap();
    let job = common::job(&common::parquet(dir.path(), 0, 1000), &[]);
    let factory = factory(&job);
    own(job, factory).run().err().unwrap()
}

#[test]
fn a_model_that_cannot_be_made_or_has_no_device_is_the_only_cause() {
    let fault = refusal(|_| Arc::new(|| Err(ModelError::Setting("no such device".into()))));
    assert_eq!(fault.stage.as_deref(), Some("train"));
    assert!(fault.to_string().contains("no such device"), "{fault}");
    let fault = refusal(|job| {
        let made = job.clone();
        Arc::new(move || Ok(Box::new(native(&made))))
    });
    assert_eq!(fault.stage.as_deref(), Some("train"));
    assert!(fault.to_string().contains("set it to \"inline\""), "{fault}");
}

#[test]
fn separate_transfers_with_the_native_backend_are_refused() {
    let ran = run(&["plan", "--set", "data.train=rows", "--set", "train.transfers=apart"]);
    common::exits(2, ran, &["train.transfers", "native"]);
    let ran = run(&["plan", "--set", "data.train=rows", "--set", "train.transfers=sideways"]);
    common::exits(2, ran, &["apart", "inline"]);
}

/// A bug: only the training refused them, when its stage opened.
#[test]
fn a_plan_refuses_settings_of_dense_compute_that_a_training_refuses() {
    let torch = ("train.backend=torch", "train.backend is \"torch\", but this program was built without libtorch");
    let settings = [
        ("train.clip_norm=0", "train.clip_norm is 0, expected a finite number above 0"),
        ("train.clip_norm=-1", "train.clip_norm is -1"),
        ("train.device=cuda:0", "train.device is \"cuda:0\", but train.backend is \"native\""),
    ];
    for (setting, words) in settings.into_iter().chain((!cfg!(feature = "torch")).then_some(torch)) {
        common::exits(2, run(&["plan", "--set", "data.train=rows", "--set", setting]), &[words]);
    }
}

#[cfg(feature = "torch")]
mod with_libtorch {
    use std::path::Path;

    use super::*;

    const TORCH: &str = "train.backend=torch";
    const APART: &str = "train.transfers=apart";

    #[test]
    fn cpu_tensors_give_the_same_model_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let inline = common::train(common::job(&data, &[TORCH]));
        let apart = common::train(common::job(&data, &[TORCH, APART]));
        well_done(&apart, 0, 4000);
        assert_eq!(inline.progress.logloss.to_bits(), apart.progress.logloss.to_bits());
        assert!(bits(&inline) == bits(&apart));
    }

    #[test]
    fn cpu_tensors_with_staleness() {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 6000);
        for k in [1, 4] {
            well_done(&common::train(common::job(&data, &[TORCH, APART, &format!("train.staleness={k}")])), k, 6000);
        }
    }

    #[test]
    fn a_number_that_is_not_finite_ends_the_run_with_the_error_of_the_inline_step() {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let wild = "train.optimizer={ kind = \"sgd\", lr = 1e38 }";
        let fault = |more: &[&str]| {
            let job = common::job(&data, &[&[TORCH, wild], more].concat());
            Training::new(job).unwrap().run().err().unwrap().to_string()
        };
        let inline = fault(&[]);
        assert!(inline.contains("not finite"), "{inline}");
        assert_eq!(fault(&[APART]), inline.replace("`train`", "`download`"));
        assert!(fault(&[APART, "train.staleness=4"]).contains("not finite"));
    }

    /// The dense parameters that a launch with one reader and one ps trains.
    fn launched(dir: &Path, data: &Path, name: &str, settings: &[&str]) -> (Vec<u8>, String) {
        let (folder, train) = (dir.join(name), format!("data.train={}", data.display()));
        let output = format!("output.model={}", folder.display());
        let placed = ["placement.readers=1", "placement.ps=1"];
        let small = ["model.hidden=[24, 12]", "model.embedding_dim=6", "train.batch_rows=256", "train.threads=1"];
        let mut args = vec!["launch"];
        for setting in [&[TORCH, &train, &output][..], &placed, &small, settings].concat() {
            args.extend(["--set", setting]);
        }
        let text = common::exits(0, run(&args), &[]);
        (std::fs::read(folder.join("dense.safetensors")).unwrap(), text)
    }

    /// Two synchronous trainers: the ps hold the dense parameters, each batch uploads them, and their gradients come
    /// back with it. A trainer with an empty batch takes part in the step.
    #[test]
    fn dense_parameters_of_the_ps_are_uploaded_with_the_batch() {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 3000);
        let model = |name: &str, more: &[&str]| {
            let settings = [&["placement.trainers=2", "train.sync=true"], more].concat();
            let (dense, text) = launched(dir.path(), &data, name, &settings);
            assert_eq!(text.contains("upload"), more == [APART], "{text}");
            dense
        };
        assert!(model("inline", &[]) == model("apart", &[APART]));
    }

    #[test]
    fn a_trainer_that_looks_ahead_trains_the_same_model_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 3000);
        let model = |ahead: u64| {
            let look_ahead = format!("train.look_ahead={ahead}");
            let (dense, text) = launched(dir.path(), &data, &look_ahead, &[APART, &look_ahead]);
            assert_eq!(text.contains("looked up to"), ahead > 0, "{text}");
            dense
        };
        assert!(model(0) == model(8));
    }
}
