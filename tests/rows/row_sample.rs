//! What a sample of the rows decides: scales of dense features for which a job sets neither a transform nor a scale, and the bias of a new
//! model.
//! Every process and every later run has the same.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use forebay::pipelines::{Columns, Scale, Transform};

use super::common;

/// Random numbers from 0 to 1 (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Writes rows of CSV with raw numbers: ages from 18 to 80, incomes of thousands, numbers of visits, most of them small and a few large,
/// and shares. `inflation` multiplies the incomes.
fn rows(path: &Path, rows: usize, seed: u64, inflation: f64) -> PathBuf {
    let (mut random, mut text) = (Random(seed), "label,age,income,visits,share,user\n".to_owned());
    for _ in 0..rows {
        let [age, income, visits, share, user] = [(); 5].map(|()| random.next());
        let visits = (1.0 / (visits + 0.001)).floor();
        let user = (user * 300.0).floor();
        let logit = 4.0 * (age - 0.5) + 3.0 * (income - 0.5) + 0.5 * (visits.ln_1p() - 1.0) + share - 0.5
            + (user % 5.0 - 2.0) / 2.0;
        let label = u8::from(random.next() < 1.0 / (1.0 + (-logit).exp()));
        let (age, income) = (18.0 + 62.0 * age, 90_000.0 * income * inflation);
        writeln!(text, "{label},{age:.1},{income:.0},{visits},{share:.3},u{user}").unwrap();
    }
    fs::write(path, text).unwrap();
    path.to_owned()
}

/// A job over these rows that saves its model as `name`, with more lines.
fn job(dir: &Path, name: &str, dense: &str, more: &str) -> PathBuf {
    let (train, model) = (dir.join("rows.csv"), dir.join(name));
    let file = dir.join(format!("{name}.toml"));
    let text = format!(
        "seed = 3\n[data]\ntrain = {train:?}\n[columns]\ndense = [{dense}]\nslots = [\"user\"]\n[model]\nembedding_dim = 4\n\
         hidden = [16]\n[train]\nbatch_rows = 128\nthreads = 1\nstaleness = 0\n[output]\nmodel = {model:?}\n{more}"
    );
    fs::write(&file, text).unwrap();
    file
}

const OPEN: &str = "'age', 'income', 'visits', 'share'";
const RAW: &str = "{ column = 'age', transform = 'none' }, { column = 'income', transform = 'none' }, \
                   { column = 'visits', transform = 'none' }, { column = 'share', transform = 'none' }";

/// The columns in the manifest of a model.
fn columns(model: &Path) -> Columns {
    let manifest: serde_json::Value = common::read_json(model.join("manifest.json"));
    serde_json::from_value(manifest["job"]["columns"].clone()).unwrap()
}

/// What each dense feature of a model has.
fn scales(model: &Path) -> Vec<(String, Transform, Option<Scale>)> {
    columns(model).dense.into_iter().map(|dense| (dense.column, dense.transform, dense.scale)).collect()
}

fn trained(job: &Path, more: &[&str]) -> String {
    common::exits(0, common::run(&[&["train", job.to_str().unwrap()][..], more].concat()), &[])
}

/// The AUC of a model on rows, as `eval` says it.
fn auc(model: &Path, rows: &Path) -> f64 {
    let [model, rows] = [model, rows].map(|path| path.to_str().unwrap());
    let output = common::forebay(&["eval", "--model", model, "--data", rows, "--json"]).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sets = said.as_array().map_or(&said, |sets| &sets[0]);
    sets["auc"].as_f64().unwrap_or_else(|| panic!("no AUC in {said}"))
}

#[test]
fn raw_numbers_get_what_they_need_and_the_model_carries_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    rows(&dir.join("rows.csv"), 12_000, 1, 1.0);
    let test = rows(&dir.join("test.csv"), 4_000, 2, 1.0);
    let said = trained(&job(dir, "open", OPEN, ""), &[]);
    let decided = "by a sample of the rows, dense features get scale = \"z_score\" for `age`, `income`, and transform = \"log1p\" for `visits`";
    assert!(said.contains(decided) && !said.contains("dense features are large"), "{said}");
    let found = scales(&dir.join("open"));
    let expected = [
        ("age", Transform::Auto, Some(Scale::ZScore)),
        ("income", Transform::Auto, Some(Scale::ZScore)),
        ("visits", Transform::Log1p, None),
        ("share", Transform::Auto, None),
    ];
    assert_eq!(found, expected.map(|(name, transform, scale)| (name.to_owned(), transform, scale)));

    let raw = trained(&job(dir, "raw", RAW, ""), &[]);
    assert!(!raw.contains("by a sample of the rows") && raw.contains("dense features are large"), "{raw}");
    let [open, raw] = ["open", "raw"].map(|model| auc(&dir.join(model), &test));
    assert!(open > 0.8 && open > raw + 0.05, "{open} {raw}");

    // The same job with what was decided written out is the same model.
    let Columns { dense, statistics, .. } = columns(&dir.join("open"));
    let toml = |value: toml::Value| value.to_string();
    let dense = toml(toml::Value::try_from(&dense).unwrap());
    let statistics = toml(toml::Value::try_from(&statistics).unwrap());
    let written =
        job(dir, "written", dense.trim_matches(['[', ']']), &format!("[columns.statistics]\n{}", lines(&statistics)));
    let said = trained(&written, &[]);
    assert!(!said.contains("by a sample of the rows"), "{said}");
    let version = |name| forebay::Model::load(dir.join(name), 1).unwrap().version().unwrap();
    assert_eq!(version("open"), version("written"));
}

/// The entries of an inline table, one a line.
fn lines(table: &str) -> String {
    let table: toml::Table = toml::from_str(&format!("x = {table}")).unwrap();
    let entries = table["x"].as_table().unwrap().iter();
    entries.map(|(name, value)| format!("{name} = {value}\n")).collect()
}

#[test]
fn every_process_of_a_cluster_has_what_the_first_trainer_decides() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    rows(&dir.join("rows.csv"), 6_000, 1, 1.0);
    let alone = common::version_after("train", &job(dir, "alone", OPEN, ""), &[], &dir.join("alone"));
    for (name, settings) in [
        ("apart", &["placement.readers=2", "placement.ps=2"][..]),
        ("own", &["placement.readers=0", "placement.ps=1", "placement.dense=ps"]),
    ] {
        let version = common::version_after("launch", &job(dir, name, OPEN, ""), settings, &dir.join(name));
        assert_eq!(scales(&dir.join(name)), scales(&dir.join("alone")));
        // Without readers, text is cut into other batches.
        assert!(name == "own" || version == alone, "{version} {alone}");
    }
    let several = ["placement.readers=1", "placement.ps=1", "placement.trainers=2"];
    common::version_after("launch", &job(dir, "several", OPEN, ""), &several, &dir.join("several"));
    assert_eq!(columns(&dir.join("several")), columns(&dir.join("alone")));
}

#[test]
fn a_run_goes_on_with_the_scales_of_the_model_or_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let all = rows(&dir.join("rows.csv"), 3_000, 1, 1.0);
    trained(&job(dir, "first", OPEN, ""), &[]);
    trained(&job(dir, "raw", RAW, ""), &[]);
    // Later rows would decide otherwise.
    rows(&all, 3_000, 7, 50.0);
    trained(&job(dir, "new", OPEN, ""), &[]);
    assert_ne!(columns(&dir.join("new")).statistics, columns(&dir.join("first")).statistics);
    for (name, from) in [("second", "first"), ("of_raw", "raw")] {
        let model = format!("train.from={}", dir.join(from).display());
        let said = trained(&job(dir, name, OPEN, ""), &["--set", &model]);
        assert!(!said.contains("by a sample of the rows"), "{said}");
        assert_eq!(columns(&dir.join(name)), columns(&dir.join(from)));
        let apart = format!("{name}_apart");
        let settings = [model.as_str(), "placement.readers=1", "placement.ps=1"];
        let version = common::version_after("launch", &job(dir, &apart, OPEN, ""), &settings, &dir.join(&apart));
        assert_eq!(version, forebay::Model::load(dir.join(name), 1).unwrap().version().unwrap().to_string());
    }
    // What the job says itself must be what the model has.
    let model = format!("train.from={}", dir.join("first").display());
    let file = job(dir, "other", RAW, "");
    let arguments = ["train", file.to_str().unwrap(), "--set", &model];
    common::exits(2, common::run(&arguments), &["cannot continue from the model", "columns.dense"]);

    // A checkpoint has the scales, too; one of raw numbers goes on with raw numbers.
    for (name, dense) in [("kept", OPEN), ("kept_raw", RAW)] {
        let checkpoints = format!("[checkpoint]\nto = {:?}\nrows = 1000\n", dir.join(format!("{name}-checkpoints")));
        // Long enough for a checkpoint.
        trained(&job(dir, name, dense, &checkpoints), &["--set", "data.epochs=20"]);
        let before = columns(&dir.join(name));
        let said = trained(&job(dir, name, OPEN, &checkpoints), &["--resume", "--set", "data.epochs=21"]);
        assert!(said.contains("continues from checkpoint") && !said.contains("by a sample of the rows"), "{said}");
        assert_eq!(columns(&dir.join(name)), before);
    }
}

/// A bug: such a feature was at its limit in all rows of all later runs.
#[test]
fn a_feature_without_two_values_gets_a_scale_when_it_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let all = rows(&dir.join("rows.csv"), 3_000, 1, 1.0);
    let text = fs::read_to_string(&all).unwrap();
    let mut lines = text.lines();
    let mut before = format!("{}\n", lines.next().unwrap());
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        writeln!(before, "{},18.0,,{},{},{}", fields[0], fields[3], fields[4], fields[5]).unwrap();
    }
    fs::write(&all, before).unwrap();
    trained(&job(dir, "before", OPEN, ""), &[]);
    let empty = columns(&dir.join("before")).statistics.unwrap()["income"];
    assert_eq!((empty.mean, empty.min, empty.max), (0.0, 0.0, 0.0));
    let model = format!("train.from={}", dir.join("before").display());
    trained(&job(dir, "still", OPEN, ""), &["--set", &model]);
    assert_eq!(columns(&dir.join("still")), columns(&dir.join("before")));

    fs::write(&all, text).unwrap();
    let said = trained(&job(dir, "after", OPEN, ""), &["--set", &model]);
    assert!(said.contains("features get scale = \"z_score\" for `age`, `income`"), "{said}");
    let found = columns(&dir.join("after"));
    trained(&job(dir, "new", OPEN, ""), &[]);
    let new = columns(&dir.join("new")).statistics.unwrap();
    let statistics = found.statistics.as_ref().unwrap();
    assert_eq!(["age", "income"].map(|name| statistics[name]), ["age", "income"].map(|name| new[name]));
    let settings = [model.as_str(), "placement.readers=1", "placement.ps=1"];
    let version = common::version_after("launch", &job(dir, "apart", OPEN, ""), &settings, &dir.join("apart"));
    assert_eq!(version, forebay::Model::load(dir.join("after"), 1).unwrap().version().unwrap().to_string());
    // The next day keeps what this one decided, also if its rows would decide otherwise.
    rows(&all, 3_000, 7, 50.0);
    let model = format!("train.from={}", dir.join("after").display());
    trained(&job(dir, "later", OPEN, ""), &["--set", &model]);
    assert_eq!(columns(&dir.join("later")), found);
    let [old, new, delta, merged] = ["before", "after", "delta", "merged"].map(|name| dir.join(name));
    let [old, new, delta, merged] = [&old, &new, &delta, &merged].map(|path| path.to_str().unwrap());
    common::exits(0, common::run(&["export", "--model", new, "--delta-from", old, "--to", delta]), &[]);
    common::exits(0, common::run(&["export", "--model", old, "--apply", delta, "--to", merged]), &[]);
    let [merged, new] = [merged, new].map(|model| forebay::Model::load(model, 1).unwrap().version().unwrap());
    assert_eq!(merged, new);
}

#[test]
fn a_delta_has_the_scales_of_the_new_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let path = rows(&dir.join("rows.csv"), 2_000, 1, 1.0);
    trained(&job(dir, "raw", RAW, ""), &[]);
    trained(&job(dir, "monday", OPEN, ""), &[]);
    rows(&path, 2_000, 2, 3.0);
    trained(&job(dir, "tuesday", OPEN, ""), &[]);
    let to = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for (from, until) in [("monday", "tuesday"), ("tuesday", "raw"), ("raw", "monday")] {
        let [old, new, delta, merged] = [from, until, &format!("{from}-{until}"), &format!("merged-{until}")].map(to);
        common::exits(0, common::run(&["export", "--model", &new, "--delta-from", &old, "--to", &delta]), &[]);
        common::exits(0, common::run(&["export", "--model", &old, "--apply", &delta, "--to", &merged]), &[]);
        let manifest: serde_json::Value = common::read_json(Path::new(&delta).join("manifest.json"));
        assert_eq!(manifest["version"], 3, "{manifest}");
        let [found, expected] = [&merged, &new].map(|model| forebay::Model::load(model, 1).unwrap().version().unwrap());
        assert_eq!(found, expected, "{from} to {until}");
        assert_eq!(scales(Path::new(&merged)), scales(Path::new(&new)));
    }
}

#[test]
fn statistics_of_the_job_decide_without_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    rows(&dir.join("rows.csv"), 1_000, 1, 1.0);
    let statistics = "[columns.statistics]\nage = { mean = 50, std = 20, min = 0, max = 100, transform = \"none\" }\n\
                      share = { mean = 0.5, std = 0.3, min = 0, max = 1, transform = \"none\" }\n";
    trained(&job(dir, "model", "'age', 'share'", statistics), &[]);
    let found = columns(&dir.join("model"));
    let expected = [Some(Scale::ZScore), None];
    assert_eq!(found.dense.iter().map(|dense| dense.scale).collect::<Vec<_>>(), expected);
    assert_eq!((found.dense[0].limit, found.statistics.unwrap()["age"].mean), (Some(10.0), 50.0));
}

#[test]
fn rows_that_a_run_refuses_are_refused_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let path = rows(&dir.join("rows.csv"), 1_000, 1, 1.0);
    let run = |dense: &str| common::run(&["train", job(dir, "model", dense, "").to_str().unwrap()]);
    common::exits(2, run("'age', 'incom'"), &["incom"]);
    common::exits(2, run("'user'"), &["column `user`"]);
    // A bad row decides nothing.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen('\n', "\n1,1e999,5,3,0.5,u1\n", 1)).unwrap();
    common::exits(2, run("'age'"), &["column `age` is inf", "line 2"]);
    let skip = ["--set", "data.on_bad_row=skip"];
    trained(&job(dir, "model", "'age'", ""), &skip);
    let mean = columns(&dir.join("model")).statistics.unwrap()["age"].mean;
    assert!((45.0..55.0).contains(&mean), "{mean}");
}

/// Writes rows of CSV: two of a hundred labels are positive.
fn rare(path: &Path, rows: usize, seed: u64) -> PathBuf {
    let (mut random, mut text) = (Random(seed), "label,x,user\n".to_owned());
    for _ in 0..rows {
        let [x, user, chance] = [(); 3].map(|()| random.next());
        let logit = -4.5 + 2.0 * x;
        let label = u8::from(chance < 1.0 / (1.0 + (-logit).exp()));
        writeln!(text, "{label},{x:.3},u{}", (user * 500.0).floor()).unwrap();
    }
    fs::write(path, text).unwrap();
    path.to_owned()
}

#[test]
fn a_new_model_begins_at_the_log_odds_of_rare_labels() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    rare(&dir.join("rows.csv"), 9_000, 1);
    let test = rare(&dir.join("test.csv"), 4_000, 2);
    for kind in ["lr", "ctr_dnn"] {
        let entropy = |name: &str, settings: &[&str]| {
            let (kind, model) = (format!("model.kind={kind}"), dir.join(name));
            let settings = [&[kind.as_str()], settings].concat();
            let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
            let said = trained(&job(dir, name, "'x'", ""), &settings);
            let begins = said.contains("the bias of the model begins at -3.");
            assert_eq!(begins, name == "open", "{said}");
            let [model, rows] = [&model, &test].map(|path| path.to_str().unwrap());
            let output = common::forebay(&["eval", "--model", model, "--data", rows, "--json"]).output().unwrap();
            let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let sets = said.as_array().map_or(&said, |sets| &sets[0]);
            sets["normalized_entropy"].as_f64().unwrap_or_else(|| panic!("no entropy in {said}"))
        };
        let [open, zero] = [entropy("open", &[]), entropy("zero", &["train.initial_bias=0"])];
        assert!(open < 1.0 && zero > open + 0.02, "{kind}: {open} {zero}");
    }
}

#[test]
fn every_placement_and_a_run_that_is_resumed_begin_with_the_same_bias() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    rare(&dir.join("rows.csv"), 5_000, 1);
    let version = |command: &str, name: &str, settings: &[&str]| {
        common::version_after(command, &job(dir, name, "'x'", ""), settings, &dir.join(name))
    };
    let alone = version("train", "alone", &[]);
    assert_eq!(version("launch", "apart", &["placement.readers=1", "placement.ps=2"]), alone);
    assert_eq!(version("launch", "at_ps", &["placement.readers=1", "placement.ps=2", "placement.dense=ps"]), alone);
    assert_ne!(version("train", "zero", &["train.initial_bias=0"]), alone);

    // Long enough for a checkpoint.
    let long = version("train", "long", &["data.epochs=21"]);
    for (name, command, settings) in [
        ("resumed", "train", &[][..]),
        ("resumed_at_ps", "launch", &["placement.readers=1", "placement.ps=2", "placement.dense=ps"]),
    ] {
        let to = format!("checkpoint.to={}", dir.join(format!("{name}-checkpoints")).display());
        let with = |more: &[&'static str]| [&[to.as_str(), "checkpoint.rows=2000"], settings, more].concat();
        version(command, name, &with(&["data.epochs=20"]));
        let file = job(dir, name, "'x'", "");
        let more = with(&["data.epochs=21"]);
        let more: Vec<&str> = more.iter().flat_map(|setting| ["--set", setting]).collect();
        let arguments = [&[command, file.to_str().unwrap(), "--resume"][..], &more].concat();
        let said = common::exits(0, common::run(&arguments), &[]);
        assert!(!said.contains("the bias of the model begins"), "{said}");
        let found = forebay::Model::load(dir.join(name), 1).unwrap().version().unwrap().to_string();
        assert_eq!(found, long, "{name}");
    }
}
