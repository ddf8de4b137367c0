//! The job files in `examples/` plan and train as they are: on rows of the form that they name, with their own columns.

use std::fs;
use std::path::{Path, PathBuf};

use forebay::Job;
use forebay::connectors::criteo::{COLUMNS, column_name};

use super::common;

/// The job files in a folder.
fn jobs(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut jobs: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    jobs.sort();
    jobs
}

/// Rows with the header of Criteo_x4: `Label,I1,..,I13,C1,..,C26`.
fn criteo_x4(dir: &Path, first: u64, rows: u64) -> PathBuf {
    let text = common::text(dir, first, rows);
    let mut lines = String::new();
    for file in fs::read_dir(&text).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|ending| ending == "txt") {
            lines += &fs::read_to_string(&file).unwrap().replace('\t', ",");
        }
    }
    let header: Vec<String> = (0..COLUMNS).map(column_name).collect();
    let path = dir.join(format!("{first}.csv"));
    fs::write(&path, format!("{}\n{lines}", header.join(",").replacen("label", "Label", 1))).unwrap();
    path
}

/// Runs a command on a job file with settings; returns what the program said.
fn run(command: &str, job: &Path, settings: &[String]) -> String {
    let mut arguments = vec![command, job.to_str().unwrap()];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let (code, said) = common::run(&arguments);
    assert_eq!(code, Some(0), "{}: {said}", job.display());
    said
}

#[test]
fn every_job_file_of_criteo_plans() {
    let dir = tempfile::tempdir().unwrap();
    let rows = common::parquet(dir.path(), 0, 100);
    let jobs = jobs("examples");
    assert_eq!(jobs.len(), 5);
    let others = ["two_labels.toml", "two_towers.toml"];
    for job in jobs.into_iter().filter(|job| !others.iter().any(|other| job.ends_with(other))) {
        run("plan", &job, &[format!("data.train={}", rows.display())]);
    }
}

#[test]
fn the_job_of_two_labels_trains_on_rows_of_data_synth() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (rows, model) = (path("rows"), path("model"));
    let synth = ["data", "synth", "--rows", "3000", "--labels", "2", "--out", &rows];
    common::exits(0, common::run(&synth), &[]);
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_labels.toml");
    for kind in ["mmoe", "shared_bottom", "esmm"] {
        let settings = [
            format!("data.train={rows}"),
            format!("data.eval={rows}"),
            format!("output.model={model}-{kind}"),
            format!("model.kind={kind}"),
            "model.hidden=[16]".to_owned(),
        ];
        let said = run("train", &job, &settings);
        assert!(said.contains("click: 3,000 rows") && said.contains("buy: 3,000 rows"), "{said}");
    }
    let (code, said) = common::run(&[&synth[..], &["--format", "criteo", "--replace"]].concat());
    assert!(code == Some(2) && said.contains("--labels 2 needs --format parquet"), "{said}");
}

#[test]
fn the_job_of_two_towers_trains_on_rows_of_data_synth() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (rows, model, vectors) = (path("rows"), path("model"), path("vectors"));
    common::exits(0, common::run(&["data", "synth", "--rows", "3000", "--history", "20", "--out", &rows]), &[]);
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_towers.toml");
    let settings = [format!("data.train={rows}"), format!("data.eval={rows}"), format!("output.model={model}")];
    let said = run("plan", &job, &settings);
    assert!(said.contains("table.embedding_optimizer, by default: adam with lr = 0.03"), "{said}");
    let said = run("train", &job, &settings);
    assert!(said.contains("trained on 3,000 rows") || said.contains("trained on 3000 rows"), "{said}");
    let ran = common::run(&["embed", "--model", &model, "--data", &rows, "--tower", "user", "--out", &vectors]);
    common::exits(0, ran, &["3,000 rows"]);
}

#[test]
fn every_bars_job_plans_trains_and_evaluates_on_rows_like_criteo_x4() {
    let dir = tempfile::tempdir().unwrap();
    let (train, eval) = (criteo_x4(dir.path(), 0, 600), criteo_x4(dir.path(), 600, 200));
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bars/README.md")).unwrap();
    let jobs = jobs("examples/bars");
    assert_eq!(jobs.len(), 7);
    for job in jobs {
        let name = job.file_stem().unwrap().to_str().unwrap();
        let first = fs::read_to_string(&job).unwrap().lines().next().unwrap().to_owned();
        let (_, published) = first.split_once("Published AUC: ").unwrap();
        let row = page.lines().find(|line| line.contains(&format!("({name}.toml)"))).unwrap();
        assert!(row.contains(published), "{published} in {row}");

        let model = dir.path().join(name);
        let mut settings = vec![
            format!("data.train={}", train.display()),
            format!("data.eval={}", eval.display()),
            format!("output.model={}", model.display()),
        ];
        let kind = if name == "dnn" { "ctr_dnn" } else { name };
        assert_eq!(Job::load(&job, &[]).unwrap().model.kind.to_string(), kind);
        let plan = run("plan", &job, &settings);
        assert!(
            plan.contains("multiplies learning rates by 0.1 after 1 evaluation without a better AUC; stops after 2"),
            "{plan}"
        );
        // The 50 heads of FinalMLP divide the widths of its towers.
        settings.extend(["model.hidden=[50]".into(), "data.epochs=1".into()]);
        let said = run("train", &job, &settings);
        assert!(said.contains("trained on 600 rows") && said.to_lowercase().contains("auc"), "{said}");
        assert!(model.is_dir(), "{name}");
    }
}
