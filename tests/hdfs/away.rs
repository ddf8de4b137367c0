//! The NameNode cannot be reached while a checkpoint or the finished model is written: the run says so, waits, goes on, and its model
//! equals the model of a run whose store was always there.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::Cluster;
use super::common::{self, Background};

const ROWS: u64 = 20_000;

/// How the NameNode cannot be reached.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// It accepts connections and answers nothing.
    Stalled,
    Killed,
}

impl Away {
    fn begin(self, cluster: &Cluster) {
        match self {
            Self::Stalled => cluster.stall_namenode(1),
            Self::Killed => cluster.kill_namenode(1),
        }
    }

    fn end(self, cluster: &Cluster) {
        match self {
            Self::Stalled => cluster.resume_namenode(1),
            Self::Killed => cluster.start_namenode(1),
        }
    }
}

/// A job over local rows whose model goes to `model`.
fn train(rows: &Path, model: &str, more: &[&str]) -> Command {
    let (rows, model) = (format!("data.train={}", rows.display()), format!("output.model={model}"));
    let small = ["seed=9", "model.kind=lr", "train.batch_rows=64", "train.threads=1", &rows, &model];
    let mut command = common::forebay(&["train"]);
    command.args(small.iter().chain(more).flat_map(|setting| ["--set", setting]));
    command
}

/// All bits of a model except its manifest, which has times.
fn contents(model: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = ["dense.safetensors", "tables/embedding/shard-0000.parquet"];
    files.iter().map(|file| (file.into(), std::fs::read(model.join(file)).unwrap())).collect()
}

/// Compares a model in HDFS with the model of an undisturbed run of this many epochs.
fn compare(cluster: &Cluster, dir: &Path, model: &str, rows: &Path, epochs: u64) {
    let (copy, calm) = (dir.join("copy"), dir.join("calm"));
    cluster.fs(&["-get", model, copy.to_str().unwrap()]);
    let epochs = format!("data.epochs={epochs}");
    common::exits(0, common::ended(&mut train(rows, calm.to_str().unwrap(), &[&epochs])), &[]);
    assert!(contents(&copy) == contents(&calm), "the models differ");
}

/// The rows that the whole lines of progress say.
pub(crate) fn progress(said: &str) -> Vec<u64> {
    let lines = said.split_inclusive('\n').filter(|line| line.contains("INFO training;") && line.ends_with('\n'));
    let rows_of = |line: &str| {
        let rows = line.split_once("rows=").unwrap_or_else(|| panic!("no rows in {line}")).1;
        rows.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    lines.map(rows_of).collect()
}

/// The training does not wait for the store: while it cannot be reached, rows are trained on.
fn a_checkpoint_waits(away: Away, folder: &str) {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let (rows, model) = (common::parquet(dir.path(), 0, ROWS), cluster.at(&format!("{folder}/model")));
    let to = format!("checkpoint.to={}", cluster.at(&format!("{folder}/checkpoints")));
    let more = [to.as_str(), "checkpoint.every=1s", "output.retry_for=10min"];
    let mut run = Background::start(&mut train(&rows, &model, &[&more[..], &["data.epochs=100000"]].concat()));
    run.wait_for("INFO checkpoint ", 2);
    away.begin(&cluster);
    let lines = progress(&run.output()).len();
    common::until("three more lines of progress", || {
        assert!(run.is_running(), "{}", run.output());
        progress(&run.output()).len() >= lines + 3
    });
    let said = run.output();
    assert!(progress(&said)[lines..].is_sorted_by(|a, b| a < b), "the training stood still: {said}");
    // A line every ten seconds: several checkpoints would be due between the last two of these.
    let last = said.match_indices("INFO training;").nth(lines + 1).unwrap().0;
    assert!(!said[last..].contains("INFO checkpoint "), "the store was not away: {said}");
    run.wait_for("NameNode", 1);
    away.end(&cluster);
    let made = run.output().matches("INFO checkpoint ").count();
    run.wait_for("INFO checkpoint ", made + 2);
    run.signal("-TERM");
    let said = common::exits(5, run.wait(), &[]);
    // It ends within the epoch that it is in.
    let stopped = said.split_once("stopped after ").unwrap().1;
    let trained: u64 = stopped.split(' ').next().unwrap().replace(',', "").parse().unwrap();
    let epochs = trained.div_ceil(ROWS);
    let resumed =
        train(&rows, &model, &[&more[..], &[&format!("data.epochs={epochs}")]].concat()).arg("--resume").output();
    common::exits(0, common::code_and_output(&resumed.unwrap()), &[]);
    compare(&cluster, dir.path(), &format!("{folder}/model"), &rows, epochs);
}

#[test]
fn training_goes_on_while_a_checkpoint_waits_for_a_stalled_namenode() {
    a_checkpoint_waits(Away::Stalled, "/away/stalled");
}

#[test]
fn training_goes_on_while_a_checkpoint_waits_for_a_namenode_that_restarts() {
    a_checkpoint_waits(Away::Killed, "/away/killed");
}

/// The NameNode goes away after the first checkpoint, which lies on the local disk, and comes back when the run waits for it.
fn the_model_waits(away: Away, folder: &str) {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let rows = common::parquet(dir.path(), 0, ROWS);
    // A fast machine may end the run before the NameNode cannot be reached: then a longer one.
    for epochs in [4, 16, 64, 256, 1024] {
        let model = format!("{folder}/model-{epochs}");
        let to = format!("checkpoint.to={}", dir.path().join(format!("checkpoints-{epochs}")).display());
        let length = format!("data.epochs={epochs}");
        let more = [to.as_str(), "checkpoint.rows=2000", "output.retry_for=10min", &length];
        let mut run = Background::start(&mut train(&rows, &cluster.at(&model), &more));
        common::until("there is a checkpoint, or the run is over", || {
            run.output().contains("INFO checkpoint ") || !run.is_running()
        });
        away.begin(&cluster);
        // What it says then is no part of the report, which follows the model.
        common::until("it misses the NameNode, or is over", || run.output().contains("NameNode") || !run.is_running());
        away.end(&cluster);
        let said = common::exits(0, run.wait(), &[]);
        if said.contains("NameNode") {
            return compare(&cluster, dir.path(), &model, &rows, epochs);
        }
        cluster.mend();
    }
    panic!("each run was over before the NameNode could not be reached");
}

#[test]
fn a_finished_model_waits_for_a_stalled_namenode() {
    the_model_waits(Away::Stalled, "/away/model-stalled");
}

#[test]
fn a_finished_model_waits_for_a_namenode_that_restarts() {
    the_model_waits(Away::Killed, "/away/model-killed");
}
