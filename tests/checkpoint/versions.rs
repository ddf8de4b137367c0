//! A checkpoint of each version of the format, as an earlier program wrote it, is read for as long as the version is supported:
//! `version-1/` to `version-5/`.
//!
//! Each was made by `forebay train job.toml --set data.epochs=2000` over the rows that the test makes, killed after checkpoint 4. The
//! manifest names two layers of the table; `position.data`, which depends on how the files are written, and the checksum are left out.
//! None has the running metrics of later programs. Never write them again: a change that cannot read them needs another version.

use std::path::Path;

use tempfile::TempDir;

use super::bits::Bits;
use super::common;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoint");

/// Rows of an epoch.
const ROWS: u64 = 6_000;

/// The checkpoint of a version.
struct Fixture {
    version: u32,
    /// Rows that it has trained on.
    at: &'static str,
    /// Epochs of the run that continues from it.
    epochs: u64,
}

fn forebay(folder: &Path, args: &[&str]) -> String {
    let said = common::forebay(args).current_dir(folder).output().unwrap();
    common::exits(0, common::code_and_output(&said), &[])
}

impl Fixture {
    fn path(&self) -> String {
        format!("{FIXTURES}/version-{}", self.version)
    }

    /// A folder with the rows and the job. Its paths are relative, so the manifest fits anywhere.
    fn folder(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        let rows = ROWS.to_string();
        forebay(folder.path(), &["data", "synth", "--rows", &rows, "--group-rows", "1000", "--out", "rows"]);
        forebay(folder.path(), &["data", "synth", "--rows", "500", "--first-row", &rows, "--out", "test"]);
        std::fs::copy(format!("{}/job.toml", self.path()), folder.path().join("job.toml")).unwrap();
        folder
    }

    /// Continues from it to the model of an undisturbed run.
    fn goes_on(&self) {
        let Self { version, at, epochs } = self;
        let (resumed, undisturbed) = (self.folder(), self.folder());
        std::fs::create_dir(resumed.path().join("checkpoints")).unwrap();
        for file in std::fs::read_dir(format!("{}/checkpoints", self.path())).unwrap().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), resumed.path().join("checkpoints").join(file.file_name())).unwrap();
        }
        let manifest = std::fs::read_to_string(resumed.path().join("checkpoints/checkpoint-000004.json")).unwrap();
        assert!(manifest.contains(&format!("\"version\": {version},")), "{manifest}");
        let listed = forebay(resumed.path(), &["checkpoint", "verify", "checkpoints"]);
        assert!(
            listed.contains(&format!("checkpoint 4: {at} rows trained on")) && listed.contains("whole"),
            "{listed}"
        );
        let set = format!("data.epochs={epochs}");
        let said = forebay(resumed.path(), &["train", "job.toml", "--resume", "--set", &set]);
        assert!(said.contains("continues from checkpoint 4"), "{said}");
        let all = forebay::actors::commas(epochs * ROWS);
        assert!(said.contains(&format!("trained on {all} rows")), "{said}");
        forebay(undisturbed.path(), &["train", "job.toml", "--set", &set]);
        let read = |folder: &TempDir| Bits::read(&folder.path().join("model"));
        // Another kind of machine may have written it, whose sums differ in their last bits.
        let distance = read(&resumed).distance(&read(&undisturbed));
        assert!(distance < 1e-4, "the models differ by {distance}");
    }
}

#[test]
fn a_checkpoint_of_version_1_goes_on_to_the_model_of_an_undisturbed_run() {
    Fixture { version: 1, at: "44,176", epochs: 8 }.goes_on();
}

#[test]
fn one_of_version_2_with_rows_that_come_and_go() {
    Fixture { version: 2, at: "56,880", epochs: 10 }.goes_on();
}

#[test]
fn one_of_version_3_with_gradients_that_are_kept() {
    Fixture { version: 3, at: "39,712", epochs: 7 }.goes_on();
}

#[test]
fn one_of_version_4_with_evaluations() {
    Fixture { version: 4, at: "8,368", epochs: 3 }.goes_on();
}

#[test]
fn one_of_version_5_with_tables_of_some_slots() {
    Fixture { version: 5, at: "17,120", epochs: 4 }.goes_on();
}
