//! Outputs on a disk that knows only the plain rename, as NFS, CIFS and many FUSE: a folder that is replaced is not exchanged for the new
//! one. Two renames replace it, and a process may be killed between them.

use std::fs;
use std::path::Path;

use forebay::Model;
use forebay::connectors::staged::{Folder, StagedFolder};

use super::common;
use super::failing_disk::{Fails, run, runner};
use super::writes::{ROWS, copy, made, names};

/// Nothing fails but what such a disk does not know.
const PLAIN: Fails = Fails { kinds: "x", first: 0, and_later: false };

fn rows_of(model: &Path) -> u64 {
    Model::load(model, 1).unwrap().training.unwrap().rows
}

/// A bug: the third improvement of `keep = "best"`, every second training and every export in the place of another failed.
#[test]
fn models_and_exports_are_replaced_where_folders_are_not_exchanged() {
    let Some(runner) = runner() else { return };
    let (made, folder) = (made(), tempfile::tempdir().unwrap());
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let model = disk.join("model");
    let (place, eval) = (format!("output.model={}", model.display()), format!("data.eval={}", made.rows().display()));
    // On the rows of the training the logloss falls with every epoch.
    let best = ["evaluation.every={ epochs = 1 }", "evaluation.metric=logloss", "evaluation.keep=best", &eval, &place];
    for (epochs, replaced) in [(5, 1), (6, 2)] {
        let mut train = made.train(epochs, &best);
        let ended = run(runner, &disk, Some(PLAIN), train.current_dir(folder.path()));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        // The third improvement has replaced a best model, and the second training the model of the first.
        assert!(ended.calls >= replaced, "{} exchanges were tried: {}", ended.calls, ended.text);
        assert_eq!(Model::load(&model, 1).unwrap().job.data.epochs as u64, epochs, "{}", ended.text);
        assert_eq!(names(&disk), ["model"], "{}", ended.text);
    }
    for (epochs, replaced) in [(1, 0), (2, 1)] {
        let (model, to) = (made.model(epochs).display().to_string(), disk.join("export").display().to_string());
        let export = common::forebay(&["export", "--model", &model, "--to", &to, "--replace"]);
        let ended = run(runner, &disk, Some(PLAIN), &export);
        assert_eq!((ended.code, ended.calls), (Some(0), replaced), "{}", ended.text);
        assert_eq!(names(&disk), ["export", "model"], "{}", ended.text);
    }
}

#[test]
fn checkpoints_are_made_where_every_rename_replaces() {
    let Some(runner) = runner() else { return };
    // A run of a fast machine may be over before its first checkpoint.
    let made_one = (0..20).any(|_| {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("disk/checkpoints");
        let place = format!("checkpoint.to={}", to.display());
        let mut train = made().train(100, &["checkpoint.rows=10000", &place]);
        let ended = run(runner, &folder.path().join("disk"), Some(PLAIN), train.current_dir(folder.path()));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        assert!(!ended.text.contains("a checkpoint failed"), "{}", ended.text);
        if ended.calls == 0 {
            return false;
        }
        let verified = common::run(&["checkpoint", "verify", to.to_str().unwrap()]);
        common::exits(0, verified, &[]);
        assert!(!names(&to).iter().any(|name| name.starts_with('.')), "{:?}", names(&to));
        true
    });
    assert!(made_one, "no run has made a checkpoint");
}

#[test]
fn a_kill_between_the_two_renames_leaves_the_old_model_which_the_next_writer_puts_back() {
    let Some(runner) = runner() else { return };
    let (made, mut between) = (made(), 0);
    // The rename that finds the old model in its way, the exchange, and the two renames instead of it.
    for first in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let (disk, model) = (folder.path().join("disk"), folder.path().join("disk/model"));
        fs::create_dir(&disk).unwrap();
        copy(&made.model(1), &model);
        let place = format!("output.model={}", model.display());
        let mut train = made.train(2, &[&place]);
        let killed = Fails { kinds: "xnk", first, and_later: false };
        let ended = run(runner, &disk, Some(killed), train.current_dir(folder.path()));
        assert_eq!((ended.code, ended.calls), (Some(128 + 9), first), "{}", ended.text);
        if !model.exists() {
            between += 1;
            let names = names(&disk);
            let old = names.iter().find(|name| name.starts_with(".model.replaced-")).unwrap();
            assert_eq!(rows_of(&disk.join(old)), ROWS);
            let (at, rows) = (model.display().to_string(), made.rows().display().to_string());
            let advice = format!("mv -T {} {at}", disk.join(old).display());
            common::exits(2, common::run(&["eval", "--model", &at, "--data", &rows]), &[&advice]);
            // As the next training does before its first row.
            StagedFolder::probe(&Folder::from(&model), true).unwrap();
        }
        assert_eq!(rows_of(&model), ROWS, "killed at call {first}");
        common::exits(0, common::ended(train.current_dir(folder.path())), &[]);
        assert_eq!(rows_of(&model), 2 * ROWS);
        assert_eq!(names(&disk), ["model"]);
    }
    assert_eq!(between, 1, "killed between the two renames");
}
