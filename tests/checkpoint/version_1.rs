//! A checkpoint of format version 1, as an earlier program wrote it, is read for as long as the format is supported: `version-1/`.
//!
//! It was made by `forebay train job.toml --set data.epochs=2000` over the rows that the test makes, killed after checkpoint 4. The
//! manifest names two layers of the table; `position.data`, which depends on the folder of the rows, is left out. Never write it again: a change that cannot read it needs another version.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::bits::Bits;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoint/version-1");

/// Rows of an epoch, and epochs: the checkpoint is at row 44,176.
const ROWS: u64 = 6_000;
const EPOCHS: u64 = 8;

fn forebay(folder: &Path, args: &[&str]) -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).current_dir(folder).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{args:?}: {text}");
    text
}

/// A folder with the rows and the job. Its paths are relative, so the manifest fits anywhere.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let rows = ROWS.to_string();
    forebay(folder.path(), &["data", "synth", "--rows", &rows, "--group-rows", "1000", "--out", "rows"]);
    std::fs::copy(format!("{FIXTURE}/job.toml"), folder.path().join("job.toml")).unwrap();
    folder
}

#[test]
fn a_checkpoint_of_version_1_goes_on_to_the_model_of_an_undisturbed_run() {
    let (resumed, undisturbed) = (folder(), folder());
    std::fs::create_dir(resumed.path().join("checkpoints")).unwrap();
    for file in std::fs::read_dir(format!("{FIXTURE}/checkpoints")).unwrap().map(|file| file.unwrap()) {
        std::fs::copy(file.path(), resumed.path().join("checkpoints").join(file.file_name())).unwrap();
    }
    let listed = forebay(resumed.path(), &["checkpoint", "verify", "checkpoints"]);
    assert!(listed.contains("checkpoint 4: 44,176 rows trained on") && listed.contains("whole"), "{listed}");
    let epochs = format!("data.epochs={EPOCHS}");
    let said = forebay(resumed.path(), &["train", "job.toml", "--resume", "--set", &epochs]);
    assert!(said.contains("goes on from checkpoint 4"), "{said}");
    assert!(said.contains("trained on 48,000 rows"), "{said}");
    forebay(undisturbed.path(), &["train", "job.toml", "--set", &epochs]);
    let read = |folder: &TempDir| Bits::read(&folder.path().join("model"));
    // Another kind of machine may have written it, whose sums differ in their last bits.
    let distance = read(&resumed).distance(&read(&undisturbed));
    assert!(distance < 1e-4, "the models differ by {distance}");
}
