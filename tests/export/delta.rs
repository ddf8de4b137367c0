//! Deltas: an old model and a delta make the new one, by `--apply` and in a server that goes on answering.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::Model;
use forebay::connectors::staged::Folder;
use forebay::pipelines::{Context, Followed, Follower, ServingModel};

use crate::common;
use crate::rows::{LINEAR_ONLY, TABLES, TWO_TOWERS, job, model, predict, rows};
use crate::server::{Server, json_rows};

pub(crate) fn export(model: &Path, more: &[&str], to: &Path) -> (Option<i32>, String) {
    let arguments = ["export", "--model", model.to_str().unwrap(), "--to", to.to_str().unwrap()];
    common::run(&[&arguments[..], more].concat())
}

pub(crate) fn delta(old: &Path, new: &Path, to: &Path) -> String {
    delta_with(old, new, &[], to)
}

pub(crate) fn delta_with(old: &Path, new: &Path, more: &[&str], to: &Path) -> String {
    common::exits(0, export(new, &[&["--delta-from", old.to_str().unwrap()], more].concat(), to), &[])
}

/// A model of the rows `first..first + n`, in `dir/name`.
pub(crate) fn trained(dir: &Path, name: &str, first: u64, n: u64, settings: &[&str]) -> PathBuf {
    let settings = [&["model.kind=wide_deep"], settings].concat();
    let folder = dir.join(name);
    common::train(job(&rows(dir, first, n), &settings)).model.save(&folder).unwrap();
    folder
}

/// Three models, each trained on from the one before; and a folder with the deltas between them, `1` and `2`.
fn three_days(dir: &Path) -> (Vec<PathBuf>, PathBuf) {
    let (mut days, deltas) = (vec![model(dir, "wide_deep", &[])], dir.join("deltas"));
    fs::create_dir(&deltas).unwrap();
    for at in 1..3 {
        let from = format!("train.from={}", days[at - 1].display());
        days.push(trained(dir, &format!("day-{at}"), 10_000 * at as u64, 40, &[&from, "data.epochs=1"]));
        delta(&days[at - 1], &days[at], &deltas.join(at.to_string()));
    }
    (days, deltas)
}

fn version(folder: &Path) -> String {
    Model::load(folder, 1).unwrap().version().unwrap().to_string()
}

/// Puts a copy of the folder `of` in the place `at`.
fn replace(at: &Path, of: &Path) {
    if at.exists() {
        fs::remove_dir_all(at).unwrap();
    }
    assert!(Command::new("cp").arg("-r").args([of, at]).status().unwrap().success());
}

/// The newer model that a look finds, if any.
fn look(follower: &mut Follower, current: &ServingModel) -> Option<ServingModel> {
    match follower.look(current) {
        Followed::Nothing => None,
        Followed::Newer(model) => Some(*model),
        Followed::Broken(fault) => panic!("{fault}"),
    }
}

fn version_and_deltas(model: &ServingModel) -> (String, u32) {
    (model.version().to_string(), model.deltas())
}

/// All rows of a model, as bits.
fn table(model: &Model) -> BTreeMap<u64, Vec<u32>> {
    let mut rows = BTreeMap::new();
    for shard in 0..model.table.shards() {
        let mut from = 0;
        let mut next = || {
            let page = futures::executor::block_on(model.table.export(shard, from, usize::MAX)).unwrap();
            from += page.keys.len();
            (!page.keys.is_empty()).then_some(page)
        };
        for page in std::iter::from_fn(&mut next) {
            for (key, row) in page.keys.iter().zip(page.weights.chunks(model.table.row_dim())) {
                rows.insert(*key, row.iter().map(|v| v.to_bits()).collect());
            }
        }
    }
    rows
}

#[test]
fn the_old_model_and_the_delta_make_the_new_one() {
    old_and_delta_make_new(&[]);
}

/// The counts of items are parts of rows.
#[test]
fn the_old_towers_and_the_delta_make_the_new_ones() {
    old_and_delta_make_new(&[&["model.kind=two_towers"], TWO_TOWERS[2]].concat());
}

#[test]
fn the_old_tables_and_the_delta_make_the_new_ones() {
    old_and_delta_make_new(&TABLES);
    old_and_delta_make_new(&[&["model.kind=wide_deep"], &LINEAR_ONLY[..]].concat());
}

fn old_and_delta_make_new(settings: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    // The second has keys that the first has not, and the other way round.
    let old = trained(dir.path(), "old", 0, 250, settings);
    let new = trained(dir.path(), "new", 2000, 250, &[settings, &["table.shards=3"]].concat());
    let (to, merged) = (dir.path().join("delta"), dir.path().join("merged"));
    let said = delta(&old, &new, &to);
    let (before, after) = (Model::load(&old, 1).unwrap(), Model::load(&new, 1).unwrap());
    let (rows_before, rows_after) = (table(&before), table(&after));
    let removed = rows_before.keys().filter(|key| !rows_after.contains_key(key)).count();
    assert!(removed > 3 && rows_after.keys().any(|key| !rows_before.contains_key(key)), "{removed}");
    assert!(said.contains(&format!(" {removed} removed")), "{said}");

    common::exits(0, export(&old, &["--apply", to.to_str().unwrap()], &merged), &[]);
    let back = Model::load(&merged, 1).unwrap();
    assert!(table(&back) == rows_after);
    assert_eq!(back.version().unwrap(), after.version().unwrap());
    assert_ne!(before.version().unwrap(), after.version().unwrap());
    let data = rows(dir.path(), 5000, 300);
    assert_eq!(predict(&merged, &data, &dir.path().join("a")), predict(&new, &data, &dir.path().join("b")));

    // It applies to the old model alone, and only if it is whole.
    let (code, said) = export(&new, &["--apply", to.to_str().unwrap()], &dir.path().join("wrong"));
    assert!(code == Some(2) && said.contains("the delta leads from version"), "{said}");
    for file in ["changed.parquet", "removed.parquet", "dense.safetensors"] {
        let path = to.join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (code, said) = export(&old, &["--apply", to.to_str().unwrap()], &dir.path().join("wrong"));
        assert!(code == Some(2) && said.contains(file) && said.contains("is damaged"), "{said}");
        fs::write(&path, whole).unwrap();
    }
    let manifest = fs::read_to_string(to.join("manifest.json")).unwrap();
    fs::write(to.join("manifest.json"), manifest.replacen("\"rows\": ", "\"rows\": 1", 1)).unwrap();
    let (code, said) = export(&old, &["--apply", to.to_str().unwrap()], &dir.path().join("wrong"));
    assert!(code == Some(2) && said.contains("manifest.json is damaged: its checksum is"), "{said}");
    // A manifest that was changed on purpose has no checksum, like manifests of earlier programs.
    let manifest = format!("{}\n}}", manifest.split_once(",\n  \"checksum\"").unwrap().0);
    let (from, to_version) = (before.version().unwrap().to_string(), after.version().unwrap().to_string());
    fs::write(to.join("manifest.json"), manifest.replace(&to_version, &from.replace(|c: char| c != '0', "1"))).unwrap();
    let (code, said) = export(&old, &["--apply", to.to_str().unwrap()], &dir.path().join("wrong"));
    assert!(code == Some(2) && said.contains("but its manifest says"), "{said}");
    assert!(!dir.path().join("wrong").exists());
}

#[test]
fn models_of_two_structures_have_no_delta() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) =
        (trained(dir.path(), "old", 0, 500, &[]), trained(dir.path(), "new", 0, 500, &["model.hidden=[7]"]));
    let (code, said) = export(&new, &["--delta-from", old.to_str().unwrap()], &dir.path().join("delta"));
    assert!(code == Some(2) && said.contains("model.hidden is [24, 12] there and [7] here"), "{said}");
    let to = dir.path().join("same");
    let said = delta(&old, &old, &to);
    assert!(said.contains(" 0 rows of") && said.contains(" 0 removed"), "{said}");
}

#[test]
fn a_server_applies_deltas_one_after_the_other_while_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["monday", "tuesday", "wednesday"];
    let mut days = vec![model(dir.path(), "wide_deep", &[])];
    for (at, name) in names.iter().enumerate().skip(1) {
        let from = format!("train.from={}", days[at - 1].display());
        days.push(trained(dir.path(), name, 10_000 * at as u64, 40, &[&from, "data.epochs=1"]));
    }
    let deltas = dir.path().join("deltas");
    fs::create_dir(&deltas).unwrap();
    let server = Server::start(&days[0], &["--deltas", deltas.to_str().unwrap()]);
    let (data, mut rows_before) = (rows(dir.path(), 4000, 150), 0);
    let asked = json_rows(&server, &data);
    for (at, day) in days.iter().enumerate() {
        if at > 0 {
            delta(&days[at - 1], day, &deltas.join(names[at]));
        }
        let version = Model::load(day, 1).unwrap().version().unwrap().to_string();
        common::until("the delta is applied", || server.model()["version"] == version);
        let expected = predict(day, &data, &dir.path().join("scores"));
        let (found, scores) = server.scores(&asked);
        assert_eq!((found, scores), (version, expected.into_iter().map(Some).collect()), "{}", day.display());
        let told = server.model();
        assert_eq!(told["deltas"], at);
        assert!(told["rows"].as_u64().unwrap() >= rows_before, "{told}");
        rows_before = told["rows"].as_u64().unwrap();
    }
    // One that is damaged, and one that leads back, change nothing; a server that starts anew applies all of them.
    delta(&days[2], &days[0], &deltas.join("back"));
    let (broken, elsewhere) = (deltas.join("broken"), dir.path().join("broken"));
    delta(&days[2], &trained(dir.path(), "x", 9000, 40, &[]), &elsewhere);
    let file = elsewhere.join("changed.parquet");
    fs::write(&file, &fs::read(&file).unwrap()[1..]).unwrap();
    fs::rename(&elsewhere, &broken).unwrap();
    common::until("the failure is counted", || server.metric("model_failures_total") >= 1.0);
    let version = server.model()["version"].clone();
    let mut server = server;
    server.process.wait_for("changed.parquet is damaged", 1);
    server.process.wait_for("back is left out: it leads back to version", 1);
    assert_eq!(server.model()["version"], version);
    drop(server);
    fs::remove_dir_all(&broken).unwrap();
    let again = Server::start(&days[0], &["--deltas", deltas.to_str().unwrap()]);
    assert_eq!((&again.model()["version"], &again.model()["deltas"]), (&version, &serde_json::json!(2)));
}

/// A bug: the server ended with an error, for instance if it was started again while a delta was copied.
#[test]
fn a_server_that_starts_beside_a_delta_that_is_not_whole_serves_the_version_before_until_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (days, deltas) = three_days(dir.path());
    let file = deltas.join("2/changed.parquet");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let mut server = Server::start(&days[0], &["--deltas", deltas.to_str().unwrap()]);
    assert_eq!(server.model()["version"], version(&days[1]));
    server.process.wait_for("changed.parquet is damaged", 1);
    fs::write(&file, &whole).unwrap();
    let newest = version(&days[2]);
    common::until("the delta is applied", || server.model()["version"] == newest);
}

/// A bug: two damaged deltas were told in turns, forever, and one also when no version that it leads on from was served any more.
#[test]
fn a_damaged_delta_is_told_once_and_forgotten_with_the_version_that_it_leads_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let ((days, deltas), whole) = (three_days(dir.path()), dir.path().join("whole"));
    fs::rename(deltas.join("1"), &whole).unwrap();
    for name in ["a", "b"] {
        replace(&deltas.join(name), &whole);
        fs::write(deltas.join(name).join("changed.parquet"), "damaged").unwrap();
    }
    let mut follower = Follower::new(days[0].to_str().unwrap(), Some(Folder::from(&deltas)), &[], &Context::default());
    let faults = |follower: &mut Follower, current: &ServingModel| -> Vec<String> {
        let told = (0..40).filter_map(|_| match follower.look(current) {
            Followed::Nothing => None,
            Followed::Newer(model) => panic!("{}", model.version()),
            Followed::Broken(fault) => Some(fault.to_string()),
        });
        told.collect()
    };
    let first = follower.load().unwrap();
    let mut told = faults(&mut follower, &first);
    told.sort();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("deltas/a is not applied") && told[1].contains("deltas/b is not applied"), "{told:?}");

    // Damaged in another way, it is told again.
    fs::remove_file(deltas.join("a/changed.parquet")).unwrap();
    let told = faults(&mut follower, &first);
    assert!(told.len() == 1 && told[0].contains("deltas/a is not applied"), "{told:?}");

    fs::rename(&whole, deltas.join("1")).unwrap();
    let second = (0..40).find_map(|_| look(&mut follower, &first)).unwrap();
    let third = look(&mut follower, &second).unwrap();
    assert_eq!(version_and_deltas(&third), (version(&days[2]), 2));
    assert_eq!(faults(&mut follower, &third), Vec::<String>::new());
}

/// A bug: the server went back to the version of the folder, and served all versions after it again.
#[test]
fn a_folder_that_is_rolled_forward_is_taken_with_the_deltas_that_lead_on_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let ((days, deltas), folder) = (three_days(dir.path()), dir.path().join("served"));
    replace(&folder, &days[0]);
    let mut follower = Follower::new(folder.to_str().unwrap(), Some(Folder::from(&deltas)), &[], &Context::default());
    let first = follower.load().unwrap();
    assert_eq!(version_and_deltas(&first), (version(&days[2]), 2));
    replace(&folder, &days[1]);
    let second = look(&mut follower, &first).unwrap();
    assert_eq!(version_and_deltas(&second), (version(&days[2]), 1));
    assert!(look(&mut follower, &second).is_none());
}

/// A bug: nothing happened, because the manifest was the same.
#[test]
fn a_folder_that_is_replaced_by_an_equal_one_leads_back_if_its_deltas_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let ((days, deltas), folder) = (three_days(dir.path()), dir.path().join("served"));
    replace(&folder, &days[0]);
    let mut follower = Follower::new(folder.to_str().unwrap(), Some(Folder::from(&deltas)), &[], &Context::default());
    let mut current = follower.load().unwrap();
    for left in [1, 0] {
        fs::remove_dir_all(deltas.join((left + 1).to_string())).unwrap();
        assert!(look(&mut follower, &current).is_none(), "the folder is the same");
        replace(&folder, &days[0]);
        current = look(&mut follower, &current).unwrap();
        assert_eq!(version_and_deltas(&current), (version(&days[left]), left as u32));
    }
    // The current model is the model of the folder.
    replace(&folder, &days[0]);
    assert!(look(&mut follower, &current).is_none());
    // The versions before do not count as passed.
    delta(&days[0], &days[2], &deltas.join("3"));
    assert_eq!(version_and_deltas(&look(&mut follower, &current).unwrap()), (version(&days[2]), 1));
}

#[test]
fn a_delta_leads_from_a_model_to_the_checkpoint_of_a_training_that_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let old = trained(dir.path(), "old", 0, 1000, &[]);
    let (checkpoints, file) = (dir.path().join("checkpoints"), dir.path().join("job.toml"));
    let setting = format!("checkpoint.to={}", checkpoints.display());
    let settings = ["model.kind=wide_deep", &setting, "checkpoint.rows=512", "data.epochs=100000"];
    fs::write(&file, job(&rows(dir.path(), 500, 1000), &settings).to_toml()).unwrap();
    let mut training = common::Background::start(&mut common::forebay(&["train", file.to_str().unwrap()]));
    training.wait_for("INFO checkpoint ", 2);
    drop(training);
    let loaded = Model::load_saved(checkpoints.to_str().unwrap(), 2, &Default::default()).unwrap();
    let (to, merged) = (dir.path().join("delta"), dir.path().join("merged"));
    delta(&old, &checkpoints, &to);
    assert_eq!(export(&old, &["--apply", to.to_str().unwrap()], &merged).0, Some(0));
    assert_eq!(Model::load(&merged, 1).unwrap().version().unwrap(), loaded.version().unwrap());
    assert_ne!(loaded.version().unwrap(), Model::load(&old, 1).unwrap().version().unwrap());
}
