//! The model folder: reads back as it was, refuses damage by name, and is never half there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay::actors::{Domain, Fault};
use forebay::connectors::staged::Folder;
use forebay::{Model, Training};
use futures::TryStreamExt;
use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use rustix::fs::{CWD, RenameFlags};
use serde_json::Value;

use super::common;

fn files(dir: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

#[test]
fn a_saved_model_evaluates_the_same_with_any_number_of_shards() {
    let dir = tempfile::tempdir().unwrap();
    let (data, test) = (common::parquet(dir.path(), 0, 5000), common::parquet(dir.path(), 5000, 2000));
    let test = test.to_str().unwrap();
    for storage in ["f32", "f16"] {
        let storage = format!("table.storage={storage}");
        let trained = common::train(common::job(&data, &["table.shards=3", &storage]));
        let before = trained.model.evaluate(test).unwrap().0;
        let folder = dir.path().join("model");
        trained.model.save(&folder).unwrap();
        for shards in [1, 2] {
            let after = Model::load(&folder, shards).unwrap().evaluate(test).unwrap().0;
            assert_eq!(after, before, "{storage}, {shards} shards");
        }
        assert_eq!(before.rows, 2000);
        assert!(before.auc.unwrap() > 0.55, "{before}");
    }
}

/// A bug: a boundary read back one bit higher, and the rows at it had the bucket of smaller values.
#[test]
fn a_saved_model_has_its_boundaries_to_the_last_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, folder) = (dir.path().join("rows.jsonl"), dir.path().join("model"));
    let boundary = 0.010506151518672291_f64;
    let line = |i: usize| match i % 2 {
        0 => format!("{{\"label\": 0, \"x\": {}}}\n", boundary.next_down()),
        _ => format!("{{\"label\": 1, \"x\": {boundary}}}\n"),
    };
    fs::write(&rows, (0..2000).map(line).collect::<String>()).unwrap();
    let slots = format!("columns.slots=[{{ column = 'x', kind = 'boundaries', boundaries = [{boundary}] }}]");
    let job = common::job(&rows, &["model.kind=lr", "columns.dense=[]", &slots]);
    let trained = common::train(job);
    let rows = rows.to_str().unwrap();
    let before = trained.model.evaluate(rows).unwrap().0;
    trained.model.save(&folder).unwrap();
    let after = Model::load(&folder, 1).unwrap().evaluate(rows).unwrap().0;
    assert_eq!((before.auc, after), (Some(1.0), before));
}

#[test]
fn every_damaged_or_missing_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 2000);
    let folder = dir.path().join("model");
    common::train(common::job(&data, &["table.shards=2"])).model.save(&folder).unwrap();
    let mut all = Vec::new();
    files(&folder, &mut all);
    assert_eq!(all.len(), 4, "{all:?}");
    for path in all {
        let whole = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x40;
        for damaged in [&whole[..whole.len() / 2], &flipped, &[][..]] {
            fs::write(&path, damaged).unwrap();
            let error = Model::load(&folder, 1).err().map(|e| e.to_string());
            // A flipped bit inside the manifest may fall into a number: it must then fail by what it says of a file.
            assert!(error.as_ref().is_some_and(|e| e.contains(name) || name == "manifest.json"), "{name}: {error:?}");
        }
        fs::remove_file(&path).unwrap();
        let error = Model::load(&folder, 1).err().unwrap().to_string();
        assert!(error.contains(name), "{name}: {error}");
        fs::write(&path, whole).unwrap();
    }
    Model::load(&folder, 1).unwrap();
}

/// A run saves its model to the folder that another program loads.
#[test]
fn a_folder_that_is_replaced_while_it_is_read_gives_one_of_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 2000);
    let models = ["seed=1", "seed=2"].map(|seed| common::train(common::job(&data, &[seed])).model);
    let versions = models.each_ref().map(|model| model.version().unwrap());
    let folders = ["a", "b"].map(|name| dir.path().join(name));
    models.iter().zip(&folders).for_each(|(model, folder)| drop(model.save(folder).unwrap()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                rustix::fs::renameat_with(CWD, &folders[0], CWD, &folders[1], RenameFlags::EXCHANGE).unwrap();
                std::thread::yield_now();
            }
        });
        let loaded = (0..200).map(|_| Model::load(&folders[0], 1).and_then(|model| model.version()));
        let loaded: Vec<_> = loaded.collect();
        over.store(true, Ordering::SeqCst);
        loaded.into_iter().for_each(|version| assert!(versions.contains(&version.unwrap())));
    });
    // The older model is removed when the newer one has its place.
    over.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let saves = scope.spawn(|| {
            let result = (0..100).try_for_each(|at| models[at % 2].save(&folders[0]).map(drop));
            over.store(true, Ordering::SeqCst);
            result.unwrap();
        });
        while !over.load(Ordering::SeqCst) {
            match Model::load(&folders[0], 1).and_then(|model| model.version()) {
                Ok(version) => assert!(versions.contains(&version)),
                // Where a save is much faster than a load.
                Err(fault) => assert!(fault.to_string().contains("was replaced 10 times"), "{fault}"),
            }
        }
        saves.join().unwrap();
    });
}

/// A bug: the run ended with the fault that a file of the model is damaged.
#[test]
fn a_model_that_is_replaced_while_a_training_begins_with_it_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let days = [0, 2000].map(|first| common::parquet(dir.path(), first, 2000));
    let models = days.each_ref().map(|day| common::train(common::job(day, &["model.kind=lr"])).model);
    let folder = dir.path().join("model");
    models[0].save(&folder).unwrap();
    let from = format!("train.from={}", folder.display());
    let begin = || Training::new(common::job(&days[0], &["model.kind=lr", &from])).err();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let saves = scope.spawn(|| {
            let result = (0..100).try_for_each(|at| models[at % 2].save(&folder).map(drop));
            over.store(true, Ordering::SeqCst);
            result.unwrap();
        });
        while !over.load(Ordering::SeqCst) {
            // Where a save is much faster than a beginning.
            let fits =
                |fault: &Fault| fault.domain == Domain::External && fault.to_string().contains("was replaced 10 times");
            begin().iter().for_each(|fault| assert!(fits(fault), "{fault}"));
        }
        saves.join().unwrap();
    });
    let dense = folder.join("dense.safetensors");
    let mut bytes = fs::read(&dense).unwrap();
    *bytes.last_mut().unwrap() ^= 0x40;
    fs::write(&dense, bytes).unwrap();
    let fault = begin().unwrap();
    assert!(fault.domain == Domain::User && fault.to_string().contains("is damaged"), "{fault}");
}

/// A bug: in a chroot without `/proc`, every model folder was called none.
#[test]
fn a_model_is_read_where_no_proc_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let (data, folder) = (common::parquet(dir.path(), 0, 2000), dir.path().join("model"));
    common::train(common::job(&data, &["model.kind=lr"])).model.save(&folder).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", r#"mount -t tmpfs none /proc && exec "$0" "$@""#, program]).args(arguments);
        command.output()
    };
    if !run("true", &[]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this process cannot hide /proc from another one");
        return;
    }
    let arguments = ["eval", "--model", folder.to_str().unwrap(), "--data", data.to_str().unwrap()];
    common::exits(0, common::code_and_output(&run(env!("CARGO_BIN_EXE_forebay"), &arguments).unwrap()), &["AUC"]);
}

#[test]
fn a_manifest_whose_job_has_more_columns_than_its_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 500);
    let folder = dir.path().join("model");
    common::train(common::job(&data, &["model.kind=lr"])).model.save(&folder).unwrap();
    let path = folder.join("manifest.json");
    let whole: Value = common::read_json(&path);
    for (field, column, words) in [
        ("slots", None, "its model has 26 slots and 13 dense features, and its job 27 and 13"),
        ("dense", None, "its model has 26 slots and 13 dense features, and its job 26 and 14"),
        ("slots", Some("C99"), "its model has 26 slots and 13 dense features, and its job 27 and 13"),
    ] {
        let mut manifest = whole.clone();
        // One that another program writes has no checksum of its own.
        manifest.as_object_mut().unwrap().remove("checksum");
        let columns = manifest["job"]["columns"][field].as_array_mut().unwrap();
        let mut more = columns[0].clone();
        if let Some(name) = column {
            match more.get_mut("column") {
                Some(found) => *found = name.into(),
                None => more = name.into(),
            }
        }
        columns.push(more);
        fs::write(&path, manifest.to_string()).unwrap();
        let said = Model::load(&folder, 1).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said.contains("manifest.json") && said.contains(words), "{field}: {said}");
        let served = common::run(&["serve", "--listen", "127.0.0.1:0", "--model", folder.to_str().unwrap()]);
        assert!(served.0 == Some(2) && served.1.contains(words), "{field}: {served:?}");
    }
}

/// A model folder in a store without folders.
fn in_memory(store: &Arc<InMemory>) -> Folder {
    Folder::in_store(Arc::clone(store) as Arc<dyn ObjectStore>, "some/model".into())
}

#[test]
fn a_model_is_the_same_in_every_store() {
    let dir = tempfile::tempdir().unwrap();
    let (data, test) = (common::parquet(dir.path(), 0, 3000), common::parquet(dir.path(), 3000, 1000));
    let test = test.to_str().unwrap();
    let trained = common::train(common::job(&data, &["table.shards=2"])).model;
    let before = trained.evaluate(test).unwrap().0;
    let store = Arc::new(InMemory::new());
    let url = format!("file://{}/model", dir.path().display());
    for folder in [in_memory(&store), Folder::from(&url)] {
        // The second save replaces the first.
        for _ in 0..2 {
            trained.save(folder.clone()).unwrap();
            let back = Model::load(folder.clone(), 3).unwrap();
            assert_eq!(back.evaluate(test).unwrap().0, before, "{folder}");
        }
    }
    // To the byte, the manifest included.
    let stored: Vec<_> = block_on(store.list(None).map_ok(|meta| meta.location).try_collect()).unwrap();
    assert_eq!(stored.len(), 4, "{stored:?}");
    for path in stored {
        let bytes = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        let local = dir.path().join("model").join(path.as_ref().strip_prefix("some/model/").unwrap());
        assert!(fs::read(local).unwrap() == bytes, "{path}");
    }
    // And within a runtime, which the program does not have but its users may.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let back = runtime.block_on(async { Model::load(in_memory(&store), 1) }).unwrap();
    assert_eq!(back.evaluate(test).unwrap().0, before);
}

#[test]
fn a_damaged_model_in_a_store_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 1000);
    let store = Arc::new(InMemory::new());
    common::train(common::job(&data, &[])).model.save(in_memory(&store)).unwrap();
    let all: Vec<_> = block_on(store.list(None).map_ok(|meta| meta.location).try_collect()).unwrap();
    assert_eq!(all.len(), 3, "{all:?}");
    for path in all {
        let whole = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        let name = path.filename().unwrap();
        let mut flipped = whole.to_vec();
        flipped[whole.len() / 2] ^= 0x40;
        for damaged in [whole[..whole.len() / 2].to_vec(), flipped, vec![]] {
            block_on(store.put(&path, damaged.into())).unwrap();
            let error = Model::load(in_memory(&store), 1).err().map(|e| e.to_string());
            assert!(error.as_ref().is_some_and(|e| e.contains(name) || name == "manifest.json"), "{name}: {error:?}");
        }
        block_on(store.delete(&path)).unwrap();
        let error = Model::load(in_memory(&store), 1).err().unwrap().to_string();
        assert!(error.contains(name), "{name}: {error}");
        block_on(store.put(&path, whole.into())).unwrap();
    }
    Model::load(in_memory(&store), 1).unwrap();
}

#[test]
fn nothing_but_a_model_is_ever_replaced_in_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let model = common::train(common::job(&common::parquet(dir.path(), 0, 1000), &[])).model;
    for path in ["some/model/letters", "some/model/tables/x", "some/model"] {
        let store = Arc::new(InMemory::new());
        block_on(store.put(&path.into(), "dear".into())).unwrap();
        let error = model.save(in_memory(&store)).err().unwrap().to_string();
        assert!(error.contains("not a model"), "{path}: {error}");
        let all: Vec<_> = block_on(store.list(None).map_ok(|meta| meta.location.to_string()).try_collect()).unwrap();
        assert_eq!(all, [path]);
    }
}

/// A folder that is no model.
fn home_with_letters(dir: &Path) -> PathBuf {
    let home = dir.join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letters"), "dear").unwrap();
    home
}

#[test]
fn nothing_but_a_model_is_ever_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 1000);
    let home = home_with_letters(dir.path());
    let output = format!("output.model={}", home.display());
    let train = format!("data.train={}", data.display());
    let text = common::exits(2, common::run(&["train", "--set", &train, "--set", &output]), &["not a model"]);
    assert!(!text.contains("rows/s"), "refused before anything ran: {text}");
    assert_eq!(fs::read_to_string(home.join("letters")).unwrap(), "dear");
}

/// A bug: every trainer tried the place when it was wired, also one that saves nothing, and the one that saves tried it again at its start.
#[test]
fn the_place_of_the_model_is_tried_when_the_training_starts_and_not_when_it_is_wired() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 1000);
    let output = format!("output.model={}", home_with_letters(dir.path()).display());
    let training = Training::new(common::job(&data, &[&output])).unwrap();
    let said = training.start().err().unwrap().to_string();
    assert!(said.contains("not a model"), "{said}");
}

/// Removes the folders that are not yet whole.
fn remove_staged(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_name().to_string_lossy().contains(".partial-") {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

#[test]
fn a_killed_process_leaves_the_old_model_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 3000);
    let (data, folder) = (data.to_str().unwrap(), dir.path().join("model"));
    let settings = ["--set", "model.hidden=[16]", "--set", "data.shuffle_rows=0"];
    let (train, output) = (format!("data.train={data}"), format!("output.model={}", folder.display()));
    let args = [&["train", "--set", &train, "--set", &output][..], &settings].concat();
    assert_eq!(common::run(&args).0, Some(0));
    let manifest = fs::read_to_string(folder.join("manifest.json")).unwrap();
    // Kill it at many moments around the save: once the staged folder holds a file, and a little later each time.
    for spin in 0..12_u32 {
        // What an earlier one left would be taken for its own. The last one leaves its folder.
        remove_staged(dir.path());
        let mut child = common::forebay(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + common::DEADLINE;
        while child.try_wait().unwrap().is_none() && !common::is_staged(dir.path()) {
            assert!(Instant::now() < deadline, "the training neither saves nor ends");
            std::thread::yield_now();
        }
        for _ in 0..spin * 20_000 {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        Model::load(&folder, 1).unwrap_or_else(|e| panic!("after {spin}: {e}"));
    }
    // The folders that the killed processes left do not hinder the next save.
    assert_eq!(common::run(&args).0, Some(0));
    assert_eq!(fs::read_to_string(folder.join("manifest.json")).unwrap(), manifest);
}
