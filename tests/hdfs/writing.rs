//! Forebay writes rows and models to HDFS whole or not at all.

use std::path::Path;
use std::time::Duration;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use forebay::Model;
use forebay::actors::{Source, StageCx};
use forebay::connectors::convert::{ParquetOptions, TextOptions, block_on, to_criteo_text, to_parquet};
use forebay::connectors::staged::{Folder, StagedFolder};
use forebay::connectors::{CriteoSource, ParquetSource, ReadOptions, Stores, Synthetic, SyntheticSource};
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use super::cluster::{Cluster, pattern};
use super::common::{self, Background};

const ROWS: u64 = 6000;

fn synthetic() -> SyntheticSource {
    let rows = Synthetic { rows: ROWS, seed: 5, cap: 500, ..Synthetic::default() };
    SyntheticSource::new(rows, ReadOptions::default())
}

fn cx() -> StageCx {
    StageCx::detached("t")
}

fn small() -> ParquetOptions {
    ParquetOptions { group_rows: 1024, file_groups: 2, ..ParquetOptions::default() }
}

/// All rows at a path or URL.
fn rows(path: &str) -> RecordBatch {
    let mut source = ParquetSource::new(path, ReadOptions::default());
    block_on(async {
        source.open(&cx()).await?;
        let mut all = Vec::new();
        while let Some(rows) = source.next(&cx()).await? {
            all.push(rows.batch);
        }
        Ok(concat_batches(&all[0].schema(), &all).unwrap())
    })
    .unwrap()
}

/// A bug: for the ten minutes in which a NameNode takes a dead DataNode for alive, most files could not be written.
#[test]
fn files_are_written_beside_a_dead_datanode_that_the_namenode_takes_for_alive() {
    let cluster = Cluster::start(&["--dead-after", "600", "--block-size", "8388608"]);
    let (store, folder) = Stores::default().open(&cluster.at("/dead")).unwrap();
    let part = |byte: u8| vec![byte; 8 << 20];
    let written = async {
        let long = folder.clone().join("long");
        let mut upload = store.put_multipart(&long).await?;
        upload.put_part(part(0).into()).await?;
        cluster.kill_datanode(2);
        // Each avoids the dead one of three DataNodes by chance in one of three cases.
        for number in 0..6 {
            let path = folder.clone().join(format!("short-{number}"));
            store.put(&path, vec![number; 100_000].into()).await?;
            assert_eq!(store.get(&path).await?.bytes().await?, vec![number; 100_000]);
        }
        for byte in 1..4 {
            upload.put_part(part(byte).into()).await?;
        }
        upload.complete().await?;
        store.get(&long).await?.bytes().await
    };
    let written = tokio::runtime::Runtime::new().unwrap().block_on(written).unwrap();
    assert!(written == [part(0), part(1), part(2), part(3)].concat(), "{} bytes", written.len());
    assert_eq!(names(&cluster, "/dead").len(), 7, "nothing hidden stays");
}

/// The names in a folder, hidden ones included, sorted.
fn names(cluster: &Cluster, folder: &str) -> Vec<String> {
    let client = cluster.client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listed = runtime.block_on(client.list_status(folder, false));
    let mut names: Vec<_> =
        listed.unwrap_or_default().iter().map(|s| s.path.rsplit('/').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn parquet_is_cut_into_other_row_groups() {
    let cluster = Cluster::shared();
    let (from, to) = (cluster.at("/writing/groups/from"), cluster.at("/writing/groups/to"));
    block_on(to_parquet(&mut synthetic(), &cx(), &from, &small(), |_| ())).unwrap();
    let (code, text) = common::run(&["data", "convert", &from, "--out", &to, "--group-rows", "4000"]);
    assert!(code == Some(0) && text.contains("6,000 rows, 1 file"), "{text}");
    let (_, text) = common::run(&["data", "inspect", &to]);
    assert!(text.contains("1 file, 2 row groups, 6,000 rows"), "{text}");
    assert_eq!(rows(&to), rows(&from));
}

#[test]
fn rows_go_to_hdfs_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::shared();
    let text = cluster.at("/writing/rows/text");
    let options = TextOptions { file_rows: 2500, replace: false };
    assert_eq!(block_on(to_criteo_text(&mut synthetic(), &cx(), &text, &options, |_| ())).unwrap().files, 3);
    let there = cluster.at("/writing/rows/parquet");
    let convert = |from: &str, to: &str, options: &ParquetOptions| {
        let mut source = CriteoSource::new(from, ReadOptions::default());
        block_on(to_parquet(&mut source, &cx(), to, options, |_| ()))
    };
    assert_eq!(convert(&text, &there, &small()).unwrap().rows, ROWS);
    let parts = ["_SUCCESS", "part-00000.parquet", "part-00001.parquet", "part-00002.parquet"];
    assert_eq!(names(&cluster, "/writing/rows/parquet"), parts);
    assert_eq!(names(&cluster, "/writing/rows"), ["parquet", "text"], "nothing hidden stays");

    let here = dir.path().join("parquet");
    convert(&text, here.to_str().unwrap(), &small()).unwrap();
    let expected = rows(here.to_str().unwrap());
    assert_eq!(expected.num_rows() as u64, ROWS);
    assert_eq!(rows(&there), expected);
    common::exits(0, common::run(&["data", "inspect", &there]), &["6,000 rows"]);

    // An existing folder is replaced only on request, and then as a whole.
    let refused = convert(&text, &there, &small()).unwrap_err().to_string();
    assert!(refused.contains("holds files already") && refused.contains(&there), "{refused}");
    convert(&text, &there, &ParquetOptions { replace: true, ..ParquetOptions::default() }).unwrap();
    assert_eq!(names(&cluster, "/writing/rows/parquet"), ["_SUCCESS", "part-00000.parquet"]);
    assert_eq!(names(&cluster, "/writing/rows"), ["parquet", "text"], "the old one is gone");
    assert_eq!(rows(&there), expected);
}

#[test]
fn a_model_saved_to_hdfs_evaluates_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (data, test) = (common::parquet(dir.path(), 0, 3000), common::parquet(dir.path(), 3000, 1000));
    let test = test.to_str().unwrap();
    let cluster = Cluster::shared();
    let folder = cluster.at("/writing/models/model");
    let trained = common::train(common::job(&data, &["table.shards=2"])).model;
    let before = trained.evaluate(test).unwrap().0;
    // The second save replaces the first.
    for _ in 0..2 {
        trained.save(&folder).unwrap();
        assert_eq!(Model::load(&folder, 1).unwrap().evaluate(test).unwrap().0, before);
        assert_eq!(names(&cluster, "/writing/models"), ["model"]);
    }
    assert_eq!(names(&cluster, "/writing/models/model"), ["dense.safetensors", "manifest.json", "tables"]);
    common::exits(0, common::run(&["eval", "--model", &folder, "--data", test]), &[&before.to_string()]);
    // As a process leaves it that is killed while it replaces the model.
    let old = "/writing/models/.model.replaced-1-18ebb46b072e7df2";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(cluster.client().rename("/writing/models/model", old, false)).unwrap();
    let (code, said) = common::run(&["eval", "--model", &folder, "--data", test]);
    assert!(code == Some(2) && said.contains(&format!("`hdfs dfs -mv {} {folder}`", cluster.at(old))), "{said}");
    trained.save(&folder).unwrap();
    assert_eq!(names(&cluster, "/writing/models"), ["model"]);
    // Scores go there, too, and are read from there as rows.
    let scores = cluster.at("/writing/scores");
    let predict = ["predict", "--model", &folder, "--data", test, "--keep", "label", "--out", &scores];
    common::exits(0, common::run(&predict), &["1,000 rows"]);
    assert_eq!(names(&cluster, "/writing/scores"), ["_SUCCESS", "part-00000.parquet"]);
    common::exits(2, common::run(&predict), &["holds files already"]);
    common::exits(0, common::run(&["data", "inspect", &scores]), &["score"]);

    // A folder that is not a model is never replaced, and the job is refused before anything runs.
    let (train, output) =
        (format!("data.train={}", data.display()), format!("output.model={}", cluster.at("/writing/models")));
    let (code, said) = common::run(&["train", "--set", &train, "--set", &output]);
    assert!(code == Some(2) && said.contains("not a model") && !said.contains("rows/s"), "{said}");
    let (code, said) = common::run(&["eval", "--model", &cluster.at("/writing/nowhere"), "--data", test]);
    assert!(code == Some(2) && said.contains("manifest.json"), "{said}");
}

#[test]
fn a_run_with_checkpoints_on_hdfs_is_killed_and_resumed_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows");
    common::exits(0, common::run(&["data", "synth", "--rows", "400000", "--out", rows.to_str().unwrap()]), &[]);
    let cluster = Cluster::shared();
    let model = dir.path().join("model");
    let settings = [
        format!("data.train={}", rows.display()),
        format!("output.model={}", model.display()),
        "model.embedding_dim=4".to_owned(),
        "model.hidden=[16]".to_owned(),
        "train.batch_rows=256".to_owned(),
        "train.threads=1".to_owned(),
    ];
    let checkpoints =
        [format!("checkpoint.to={}", cluster.at("/writing/checkpoints")), "checkpoint.rows=20000".to_owned()];
    let set = |settings: &[String]| settings.iter().flat_map(|s| ["--set".to_owned(), s.clone()]).collect::<Vec<_>>();
    let (calm, all) = (set(&settings), set(&[&settings[..], &checkpoints].concat()));
    let train = |args: &[String], epochs: u64, more: &[&'static str]| {
        let epochs = ["--set".to_owned(), format!("data.epochs={epochs}")];
        let args = args.iter().chain(&epochs).map(String::as_str).chain(more.iter().copied());
        std::iter::once("train").chain(args).map(str::to_owned).collect::<Vec<_>>()
    };
    let run =
        |args: Vec<String>| common::exits(0, common::run(&args.iter().map(String::as_str).collect::<Vec<_>>()), &[]);

    // Far more epochs than it has until it is killed, however busy the cluster is.
    let args = train(&all, 100_000, &[]);
    let mut killed = Background::start(&mut common::forebay(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    common::until("there are two checkpoints", || {
        assert!(killed.is_running(), "it ended before it was killed: {}", killed.output());
        let names = names(&cluster, "/writing/checkpoints");
        names.iter().any(|name| name.starts_with("checkpoint-") && name.as_str() >= "checkpoint-000002.json")
    });
    drop(killed);
    assert!(!model.exists());
    // The run that goes on ends with the epoch that the newest checkpoint is in.
    let listed = run(vec!["checkpoint".into(), "list".into(), cluster.at("/writing/checkpoints")]);
    let newest = listed.lines().rfind(|line| line.contains(" trained on; ")).unwrap();
    let rows = newest.split_once(": ").unwrap().1.split(' ').next().unwrap().replace(',', "");
    let epochs = rows.parse::<u64>().unwrap() / 400_000 + 1;
    let said = run(train(&all, epochs, &["--resume"]));
    assert!(said.contains("continues from checkpoint"), "{said}");
    let dense = std::fs::read(model.join("dense.safetensors")).unwrap();
    std::fs::remove_dir_all(&model).unwrap();
    run(train(&calm, epochs, &[]));
    assert!(std::fs::read(model.join("dense.safetensors")).unwrap() == dense, "{said}");
    run(vec!["checkpoint".into(), "verify".into(), cluster.at("/writing/checkpoints")]);
}

#[test]
fn a_writer_that_is_killed_leaves_no_visible_folder() {
    let cluster = Cluster::shared();
    let out = cluster.at("/writing/killed/rows");
    let args = ["data", "synth", "--group-rows", "4096", "--out", &out, "--rows"];
    let mut writer = Background::start(&mut common::forebay(&[&args[..], &["100000000"]].concat()));
    let staged = || {
        let names = names(&cluster, "/writing/killed");
        names
            .first()
            .map(|name| format!("/writing/killed/{name}"))
            .filter(|folder| self::names(&cluster, folder).iter().any(|file| file != "probe"))
    };
    common::until("the staged folder holds a file", || {
        assert!(writer.is_running(), "it ended before it was killed: {}", writer.output());
        staged().is_some()
    });
    drop(writer);
    let left = names(&cluster, "/writing/killed");
    assert!(left.iter().all(|name| name.starts_with(".rows.partial-")), "{left:?}");
    // The folder that it left does not hinder the next writer.
    common::exits(0, common::run(&[&args[..], &["5000"]].concat()), &[]);
    assert!(names(&cluster, "/writing/killed").contains(&"rows".to_owned()));
    // Once none of its files has changed for a day, the next writer removes it.
    let (client, runtime) = (cluster.client(), tokio::runtime::Runtime::new().unwrap());
    let hour = 3_600_000;
    for folder in &left {
        for file in runtime.block_on(client.list_status(&format!("/writing/killed/{folder}"), true)).unwrap() {
            let then = file.modification_time - 25 * hour;
            runtime.block_on(client.set_times(&file.path, then, then)).unwrap();
        }
    }
    common::exits(0, common::run(&[&args[..], &["5000", "--replace"]].concat()), &[]);
    assert_eq!(names(&cluster, "/writing/killed"), ["rows"]);
}

/// A bug: the write failed at its next block.
#[test]
fn a_write_goes_on_after_the_namenode_has_restarted() {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    // A fast machine may have written all before the NameNode cannot be reached: then more rows.
    for count in ["200000", "400000", "800000", "1600000"] {
        let out = cluster.at(&format!("/writing/restarted/{count}/rows"));
        let parent = format!("/writing/restarted/{count}");
        let synth = ["data", "synth", "--rows", count, "--out"];
        let mut writer = Background::start(&mut common::forebay(&[&synth[..], &[out.as_str()]].concat()));
        let under_way = || {
            let staged = names(&cluster, &parent);
            let files = staged.first().map(|name| names(&cluster, &format!("{parent}/{name}"))).unwrap_or_default();
            files.iter().any(|name| name.starts_with(".part-"))
        };
        common::until("a file is being written, or all is", || under_way() || !writer.is_running());
        cluster.kill_namenode(1);
        common::until("it misses the NameNode, or is over", || {
            writer.output().contains("NameNode") || writer.output().contains("going on with it") || !writer.is_running()
        });
        cluster.start_namenode(1);
        let said = common::exits(0, writer.wait(), &[]);
        cluster.mend();
        if !said.contains("going on with it") {
            continue;
        }
        assert_eq!(names(&cluster, &parent), ["rows"]);
        assert!(names(&cluster, &format!("{parent}/rows")).iter().all(|name| !name.starts_with('.')));
        let here = dir.path().join("rows");
        common::exits(0, common::run(&[&synth[..], &[here.to_str().unwrap()]].concat()), &[]);
        assert!(rows(&out) == rows(here.to_str().unwrap()), "the rows differ");
        return;
    }
    panic!("each write was over before the NameNode could not be reached");
}

#[test]
fn permissions_and_quotas_are_named_and_leave_no_files() {
    let cluster = Cluster::shared();
    let dir = |path: &Path| path.display().to_string();
    let root = Path::new("/writing/forbidden");
    cluster.fs(&["-mkdir", "-p", &dir(root)]);
    let synth = |out: &str| {
        let mut command = common::forebay(&["data", "synth", "--rows", "2000", "--out", out]);
        command.env("HADOOP_USER_NAME", "eve");
        common::ended(&mut command)
    };
    common::exits(2, synth(&cluster.at("/writing/forbidden/rows")), &["permission denied", "user=eve"]);
    assert_eq!(names(&cluster, "/writing/forbidden"), Vec::<String>::new());

    // The folder needs one name more than the quota allows.
    cluster.fs(&["-chmod", "777", &dir(root)]);
    cluster.admin(&["-setQuota", "2", &dir(root)]);
    let (code, said) = synth(&cluster.at("/writing/forbidden/rows"));
    cluster.admin(&["-clrQuota", &dir(root)]);
    assert!(code == Some(2) && said.contains("dfsadmin -setQuota"), "{said}");
    assert_eq!(names(&cluster, "/writing/forbidden"), Vec::<String>::new());
}

/// A bug: the folders above an output stayed behind if a quota stopped the probe, which had made them.
#[test]
fn a_probe_that_fails_removes_the_folders_that_it_made_and_no_others() {
    let cluster = Cluster::shared();
    let root = "/writing/probed";
    cluster.fs(&["-mkdir", "-p", &format!("{root}/there")]);
    // These two and two more: the staged folder is one too many.
    cluster.admin(&["-setQuota", "4", root]);
    let probe = |out: &str| StagedFolder::probe(&Folder::from(cluster.at(&format!("{root}/{out}"))), false);
    let failed = [probe("there/a/b/rows"), probe("c/d/rows")];
    cluster.admin(&["-clrQuota", root]);
    for fault in failed {
        let said = fault.unwrap_err().to_string();
        assert!(said.contains("dfsadmin -setQuota"), "{said}");
    }
    assert_eq!(names(&cluster, root), ["there"]);
    assert_eq!(names(&cluster, &format!("{root}/there")), Vec::<String>::new());
    probe("there/a/b/rows").unwrap();
}

/// A bug: each probe listed the folder above the one that an output is in, also where nothing can be missing.
#[test]
fn a_probe_beside_another_folder_does_not_look_for_the_folders_above() {
    let (cluster, dir) = (Cluster::shared(), tempfile::tempdir().unwrap());
    let train = format!("data.train={}", common::parquet(dir.path(), 0, 500).display());
    let root = "/writing/unlisted";
    cluster.fs(&["-mkdir", "-p", &format!("{root}/full/other"), &format!("{root}/empty")]);
    cluster.fs(&["-chmod", "777", &format!("{root}/full"), &format!("{root}/empty")]);
    cluster.fs(&["-chmod", "711", root]);
    let train_to = |folder: &str| {
        let output = format!("output.model={}", cluster.at(&format!("{root}/{folder}/model")));
        let settings = ["model.kind=lr", &train, &output].map(|setting| ["--set", setting]).concat();
        let arguments = [&["train", "--log", "info,forebay_connectors=debug"][..], &settings].concat();
        let mut command = common::forebay(&arguments);
        command.env("HADOOP_USER_NAME", "eve");
        common::exits(0, common::ended(&mut command), &["saved hdfs://"])
    };
    let looks = "cannot look for the folders above";
    let said = train_to("full");
    assert!(!said.contains(looks), "{said}");
    // An empty folder and one that is not there are told apart by a listing above them, which eve may not make.
    let said = train_to("empty");
    assert!(said.contains(looks), "{said}");
}

/// A bug: the hidden file of a write whose future was cancelled stayed forever.
#[test]
fn a_write_that_is_cancelled_or_fails_leaves_no_hidden_file() {
    let cluster = Cluster::shared();
    let stores = Stores::default();
    let (store, path) = stores.open(&cluster.at("/writing/cancelled/file")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let there = || names(&cluster, "/writing/cancelled");
    let write = || async {
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part(pattern(3 << 20).into()).await.unwrap();
        upload.complete().await.unwrap();
    };
    // At the creation, within the blocks, at the end: wherever it is by then.
    for millis in [0, 1, 2, 4, 8, 16, 32, 64, 128] {
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(millis), write()).await });
        common::until("the hidden file is deleted", || there().iter().all(|name| name == "file"));
    }
    let mut upload = runtime.block_on(store.put_multipart(&path)).unwrap();
    runtime.block_on(upload.put_part(pattern(3 << 20).into())).unwrap();
    assert!(there().iter().any(|name| name.starts_with(".file.tmp.")));
    drop(upload);
    common::until("the hidden file is deleted", || there().iter().all(|name| name == "file"));

    runtime.block_on(write());
    let new = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    let refused = runtime.block_on(store.put_opts(&path, "1".into(), new)).unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused}");
    assert_eq!(there(), ["file"]);
}
