//! Rows and jobs for tests with real processes, and the models that one process trains from them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tempfile::TempDir;

use super::bits::Bits;

/// A model, and the output of its training.
type Trained = Arc<(Bits, String)>;

/// Files that this test binary makes once.
struct Made {
    folder: TempDir,
    rows: Mutex<HashMap<u64, PathBuf>>,
    models: Mutex<HashMap<Vec<String>, Trained>>,
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| Made { folder: TempDir::new().unwrap(), rows: Mutex::default(), models: Mutex::default() })
}

/// Makes rows as Parquet, with `forebay data synth`: many small row groups, plain, because a quarter of the time of these tests would go
/// into making a zstd context for each of their columns.
pub(crate) fn rows(rows: u64) -> PathBuf {
    let mut all = made().rows.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = all.entry(rows).or_insert_with(|| {
        let folder = made().folder.path().join(format!("rows-{rows}"));
        let number = rows.to_string();
        let files = ["--group-rows", "1024", "--encoding", "plain", "--threads", "1"];
        let args = ["data", "synth", "--rows", &number, "--out"];
        said(Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).arg(&folder).args(files));
        folder
    });
    folder.clone()
}

/// Makes rows as text with a bad line in the middle. Returns the name of the file, too.
pub(crate) fn bad_text(rows: u64) -> (PathBuf, &'static str) {
    let folder = TempDir::new_in(made().folder.path()).unwrap().keep().join("text");
    let number = rows.to_string();
    let args = ["data", "synth", "--rows", &number, "--format", "criteo", "--out"];
    said(Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).arg(&folder));
    let file = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[rows as usize / 2] = "1\t2\t3";
    let bad = folder.parent().unwrap().join("bad");
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("bad.txt"), lines.join("\n") + "\n").unwrap();
    (bad, "bad.txt")
}

/// Settings of a small Wide & Deep job over `rows` rows, and `more` settings.
pub(crate) fn job(count: u64, more: &[&str]) -> Vec<String> {
    let mut settings = vec![
        format!("data.train={}", rows(count).display()),
        "seed=9".to_owned(),
        "data.shuffle_rows=1024".to_owned(),
        "data.read_rows=512".to_owned(),
        "model.embedding_dim=4".to_owned(),
        "model.hidden=[16]".to_owned(),
        "table.shards=2".to_owned(),
        "train.batch_rows=256".to_owned(),
        "train.threads=1".to_owned(),
    ];
    settings.extend(more.iter().map(|setting| (*setting).to_owned()));
    settings
}

/// Trains a job with any placement in one process. Returns the model and the output.
pub(crate) fn one_process(settings: &[String]) -> Trained {
    let settings: Vec<String> = settings.iter().filter(|s| !s.starts_with("placement.")).cloned().collect();
    let mut all = made().models.lock().unwrap_or_else(PoisonError::into_inner);
    let number = all.len();
    let model = all.entry(settings.clone()).or_insert_with(|| {
        let folder = made().folder.path().join(format!("model-{number}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["train", "--set"]).arg(format!("output.model={}", folder.display()));
        let log = said(command.args(settings.iter().flat_map(|setting| ["--set", setting])));
        Arc::new((Bits::read(&folder), log))
    });
    Arc::clone(model)
}

/// Runs a command that must succeed, and returns its output.
fn said(command: &mut Command) -> String {
    let output = command.env_remove("FOREBAY_LOG").output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}
