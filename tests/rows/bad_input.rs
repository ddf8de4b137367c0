//! Wrong input of a user gives a clear error and the exit code 2, or a counted rejection.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Float32Array, Int32Array};
use arrow::record_batch::RecordBatch;

use super::common::{self, run};

/// Runs `train` on `data`, which must be refused as the user's fault with all of `words` in the message.
#[track_caller]
fn refused(data: &Path, settings: &[&str], words: &[&str]) {
    let train = format!("data.train={}", data.display());
    let mut args = vec!["train", "--set", &train, "--set", "model.kind=lr", "--set", "train.batch_rows=64"];
    for setting in settings {
        args.extend(["--set", *setting]);
    }
    common::exits(2, run(&args), words);
}

/// Trains an `lr` on `data`, which must succeed. Returns its output.
fn trained(data: &Path, settings: &[&str]) -> String {
    let train = format!("data.train={}", data.display());
    let mut args = vec!["train", "--set", &train, "--set", "model.kind=lr"];
    for setting in settings {
        args.extend(["--set", *setting]);
    }
    common::exits(0, run(&args), &[])
}

const GOOD: &str = "1\t5\t\t3\t-1\t5\t6\t7\t8\t9\t10\t11\t12\t13\t68fd1e64\t\t3\t4\t5\t6\t7\t8\t9\ta\tb\tc\td\te\tf\t10\t11\t12\t13\t14\t15\t16\t17\t18\t19\tffffffff\n";

fn rows_with(dir: &Path, bad: &[u8]) -> std::path::PathBuf {
    let path = dir.join("rows.txt");
    fs::write(&path, [GOOD.as_bytes(), GOOD.as_bytes(), bad, GOOD.as_bytes()].concat()).unwrap();
    path
}

#[test]
fn missing_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    refused(&dir.path().join("nowhere.parquet"), &[], &["nowhere.parquet"]);
    refused(dir.path(), &[], &[dir.path().to_str().unwrap()]);
    fs::write(dir.path().join("empty.parquet"), "").unwrap();
    refused(&dir.path().join("empty.parquet"), &[], &["empty"]);
    common::exits(2, run(&["train"]), &["data.train"]);
}

#[test]
fn slots_with_options_that_mean_nothing_are_refused() {
    let nowhere = Path::new("nowhere.parquet");
    for (options, words) in [
        ("first = 0", ["`C1`", "first is 0"]),
        ("last = 0", ["`C1`", "last is 0"]),
        ("first = 3, last = 3", ["`C1`", "exclude each other"]),
        ("pooling = 'average'", ["unknown value `average`", "`mean`"]),
    ] {
        refused(nowhere, &[&format!("columns.slots=[{{ column = 'C1', {options} }}]")], &words);
    }
    let own = ["model.kind=own", "model.name=x", "columns.slots=[{ column = 'C1', pooling = 'max' }]"];
    refused(nowhere, &own, &["`C1` has a pooling", "own"]);
}

#[test]
fn a_truncated_or_corrupt_parquet_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = common::parquet(dir.path(), 0, 3000);
    let file = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).min().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused(&folder, &[], &[name]);
    // Damage a page: the middle of the file is data, and the footer stays whole.
    let mut corrupt = whole.clone();
    for byte in &mut corrupt[whole.len() / 3..whole.len() / 3 + 3000] {
        *byte ^= 0x5a;
    }
    fs::write(&file, &corrupt).unwrap();
    let (code, text) = run(&["train", "--set", &format!("data.train={}", folder.display()), "--set", "model.kind=lr"]);
    assert!(matches!(code, Some(2 | 3)) && text.contains(name), "{code:?} {text}");
    fs::write(&file, "this is no Parquet file at all, whatever its name says").unwrap();
    refused(&folder, &[], &[name]);
}

#[test]
fn an_error_of_the_schema_names_the_found_and_the_expected_columns() {
    let dir = tempfile::tempdir().unwrap();
    let folder = common::parquet(dir.path(), 0, 1000);
    refused(&folder, &["columns.label=click"], &["click", "label"]);
    refused(&folder, &["columns.slots=[\"C1\", \"C27\"]"], &["C27", "C26"]);
    refused(&folder, &["columns.slots=[{ column = \"C1\", kind = \"string\" }]"], &["C1", "UInt32", "strings"]);
}

#[test]
fn a_bad_text_row_fails_the_run_with_file_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let line = |from: &str, to: &str| GOOD.replacen(from, to, 1).into_bytes();
    let few = b"1\t2\t3\n".to_vec();
    let many = line("\n", "\textra\n");
    let integer = line("\t5\t", "\tfive\t");
    let hex = line("68fd1e64", "68fd1e6x");
    let mut utf8 = GOOD.as_bytes().to_vec();
    let at = GOOD.find("68fd1e64").unwrap();
    utf8[at] = 0xff;
    let label = line("1\t", "2\t");
    for (bad, words) in [
        (&few, &["rows.txt", "40"][..]),
        (&many, &["rows.txt", "40"]),
        (&integer, &["rows.txt", "I1", "five"]),
        (&hex, &["rows.txt", "C1"]),
        (&utf8, &["rows.txt", "C1"]),
        (&label, &["rows.txt", "label", "0 or 1"]),
    ] {
        let path = rows_with(dir.path(), bad);
        refused(&path, &[], words);
        let text = trained(&path, &["data.on_bad_row=skip"]);
        assert!(text.contains("trained on 3 rows"), "{text}");
        let bad_rows = dir.path().join("bad_rows");
        trained(&path, &[&format!("data.on_bad_row={{ write_to = {:?} }}", bad_rows.to_str().unwrap())]);
        let written: u64 = fs::read_dir(&bad_rows).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(written > 0, "no bad row was written");
        fs::remove_dir_all(bad_rows).unwrap();
    }
}

/// A Parquet file with the columns `label`, `x` (dense) and `c`.
fn three_columns(path: &Path, dense: Vec<f32>) {
    let n = dense.len();
    let batch = RecordBatch::try_from_iter([
        ("label", Arc::new(Int32Array::from_iter_values((0..n as i32).map(|i| i % 2))) as _),
        ("x", Arc::new(Float32Array::from(dense)) as _),
        ("c", Arc::new(Int32Array::from_iter_values(0..n as i32)) as _),
    ])
    .unwrap();
    common::write_parquet(path, &batch);
}

const THREE_COLUMNS: [&str; 2] = ["columns.dense=[\"x\"]", "columns.slots=[\"c\"]"];

#[test]
fn a_dense_value_that_is_not_finite_is_a_bad_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    three_columns(&path, vec![0.5, f32::NAN, 1.0, f32::INFINITY, 2.0]);
    refused(&path, &THREE_COLUMNS, &["`x`", "NaN", "row 1"]);
    let text = trained(&path, &[&THREE_COLUMNS[..], &["data.on_bad_row=skip"]].concat());
    assert!(text.contains("trained on 3 rows") && text.contains("not finite"), "{text}");
}

#[test]
fn an_evaluation_counts_the_rows_that_it_leaves_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let [rows, model, report] = ["rows.csv", "model", "report"].map(path);
    fs::write(&rows, "label,c,x\n1,a,1\n0,b,2\n1,a,1\n0,b,nan\n0,b,oops\n0,b,nan\n").unwrap();
    let paths = [format!("data.train={rows}"), format!("data.eval={rows}"), format!("output.model={model}")];
    let options =
        ["model.kind=lr", "data.on_bad_row=skip", "data.epochs=2", "evaluation.every={ epochs = 1 }"].into_iter();
    let settings = options.chain(THREE_COLUMNS).chain(paths.iter().map(String::as_str));
    let mut args = vec!["train", "--report", &report];
    args.extend(settings.flat_map(|setting| ["--set", setting]));
    let said = common::exits(0, run(&args), &[]);
    let lines = ["left out 2 rows: dense value is not finite", "left out 1 row: not a number"];
    for line in lines {
        assert!(said.contains(&format!("evaluated on {rows}: {line}\n")), "{said}");
    }
    let joined = format!("; {}", lines.join("; "));
    let during = said.lines().find(|line| line.contains("evaluation 1 after"));
    assert!(during.is_some_and(|line| line.contains(&joined)), "{said}");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let rejected = serde_json::json!({ "dense value is not finite": 2, "not a number": 1 });
    let written = json(&fs::read_to_string(Path::new(&report).join("report.json")).unwrap());
    let of_report = &written["evaluation"];
    assert_eq!(of_report["evaluation"]["rejected"], rejected);
    assert!(of_report["text"].as_str().unwrap().ends_with(&joined), "{of_report}");

    let eval = |data: &str, more: &[&str]| run(&[&["eval", "--model", &model, "--data", data][..], more].concat());
    common::exits(0, eval(&rows, &[]), &[&format!("\n{}\n", lines.join("\n"))]);
    assert_eq!(json(&eval(&rows, &["--json"]).1)["rejected"], rejected);
    let [good, bad] = ["good.csv", "bad.csv"].map(path);
    fs::write(&good, "label,c,x\n1,a,1\n0,b,2\n").unwrap();
    assert!(json(&eval(&good, &["--json"]).1).get("rejected").is_none(), "all rows were scored");
    fs::write(&bad, "label,c,x\n1,a,nan\n0,b,nan\n").unwrap();
    common::exits(2, eval(&bad, &[]), &[&format!("no rows to evaluate; {}", lines[0])]);
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_run_and_saves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    three_columns(&path, (0..2000).map(|i| i as f32).collect());
    let model = dir.path().join("model");
    let output = format!("output.model={}", model.display());
    let wild = "train.optimizer={ kind = \"sgd\", lr = 1e38 }";
    let raw = ["columns.dense=[{ column = \"x\", transform = \"none\" }]", "columns.slots=[\"c\"]"];
    refused(&path, &[&raw[..], &[wild, &output]].concat(), &["not finite", "`train`"]);
    assert!(!model.exists());
}

#[test]
fn files_without_rows_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.parquet");
    three_columns(&path, vec![]);
    refused(&path, &THREE_COLUMNS, &["no rows", "none.parquet"]);
    let text = dir.path().join("none.txt");
    fs::write(&text, "\n\n").unwrap();
    refused(&text, &[], &["no rows", "none.txt"]);
}

#[test]
fn a_run_that_leaves_out_all_rows_saves_no_model_over_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good.parquet"), dir.path().join("bad.parquet"));
    three_columns(&good, vec![0.5; 10]);
    three_columns(&bad, vec![f32::NAN; 10]);
    let place = dir.path().join("model");
    let model = format!("output.model={}", place.display());
    let settings = [&THREE_COLUMNS[..], &[&model, "data.on_bad_row=skip"]].concat();
    trained(&good, &settings);
    let manifest = fs::read(place.join("manifest.json")).unwrap();
    refused(&bad, &settings, &["no row was trained on", "10 rejected"]);
    assert_eq!(fs::read(place.join("manifest.json")).unwrap(), manifest);
}

#[test]
fn a_job_of_one_row_trains() {
    let dir = tempfile::tempdir().unwrap();
    // One row, one key set, and a batch larger than the data.
    let path = dir.path().join("one.txt");
    fs::write(&path, GOOD).unwrap();
    let text = trained(&path, &["train.batch_rows=4096", "columns.slots=[\"C1\"]", "columns.dense=[]"]);
    assert!(text.contains("trained on 1 row in"), "{text}");
    for kind in ["fm", "wide_deep", "deep_fm", "dcn_v2", "ctr_dnn", "final_mlp"] {
        trained(&path, &[&format!("model.kind={kind}"), "model.hidden=[3]"]);
    }
}

#[test]
fn a_job_with_an_unknown_field_gets_the_nearest_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    fs::write(&path, "[train]\nbatch_row = 5\n").unwrap();
    common::exits(2, run(&["train", path.to_str().unwrap()]), &["job.toml", "line 2", "`batch_rows`"]);
    common::exits(2, run(&["train", "nowhere.toml"]), &["nowhere.toml"]);
}

#[test]
fn numbers_that_make_no_sense_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.txt");
    fs::write(&path, GOOD).unwrap();
    for (setting, word) in [
        ("train.batch_rows=0", "batch_rows"),
        ("table.shards=0", "shards"),
        ("pipeline.links.parse=0", "links.parse"),
        ("train.optimizer={ kind = \"adam\", lr = -1 }", "lr"),
        ("train.optimizer={ kind = \"adamw\", weight_decay = -1 }", "weight_decay"),
        ("train.optimizer={ kind = \"adam\", l2 = -1e-5 }", "l2 is -0.00001"),
        ("train.optimizer={ kind = \"adamw\", l2 = 0.1 }", "unknown field `l2`"),
        ("train.optimizer={ kind = \"sgd\", lr = \"fast\" }", "a number, or { peak = 0.001"),
        (
            "table.linear_optimizer={ kind = \"sgd\", lr = { peak = 1, decay = { kind = \"linear\", steps = 0 } } }",
            "lr.decay.steps is 0",
        ),
        ("train.clip_norm=0", "clip_norm is 0"),
        ("table.linear_optimizer={ kind = \"adagrad\", lr = -1.0 }", "lr"),
        ("table.linear_optimizer={ kind = \"adam\", l2 = -1.0 }", "l2 is -1"),
        ("table.linear_optimizer={ kind = \"adamw\", weight_decay = inf }", "weight_decay is inf"),
        ("table.linear_optimizer={ kind = \"adam\", weight_decay = 0.1 }", "unknown field `weight_decay`"),
        ("table.linear_optimizer={ kind = \"adamw\", l2 = 0.1 }", "unknown field `l2`"),
        ("model={ kind = \"custom\", hidden = [] }", "part"),
        ("model.norm=batch", "there is no batch normalization"),
        ("model.norm=lyer", "did you mean `layer`"),
        ("model={ kind = \"ctr_dnn\", dropout = 1 }", "model.dropout is 1"),
        ("model={ kind = \"ctr_dnn\", dropout = -0.1 }", "model.dropout is -0.1"),
        ("model={ kind = \"ctr_dnn\", dropout = nan }", "model.dropout is NaN"),
        ("model.activation=rleu", "did you mean `relu`"),
        ("model.activation=dice", "`prelu`"),
        ("train={ backend = \"native\", device = \"cuda:0\" }", "torch"),
    ] {
        refused(&path, &[setting], &[word]);
    }
    let settings =
        ["model={ kind = \"custom\", hidden = [], fm = true }", "train.optimizer={ kind = \"sgd\", l2 = 0.5 }"];
    refused(&path, &settings, &["train.optimizer.l2 is 0.5", "no dense parameters", "table.embedding_optimizer"]);
}

#[test]
fn an_evaluation_without_rows_or_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    common::exits(2, run(&["eval", "--model", dir.path().to_str().unwrap(), "--data", "x"]), &["manifest.json"]);
}

/// Runs the program with a limit of 64 KiB a file: its writes then fail as on a full disk.
fn with_a_full_disk(args: &[&str]) -> (Option<i32>, String) {
    let limited = r#"ulimit -f 64; exec "$0" "$@""#;
    let mut command = std::process::Command::new("bash");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_forebay")]).args(args);
    common::ended(&mut command)
}

#[test]
fn a_disk_that_fills_up_is_an_external_fault_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("rows");
    for format in ["parquet", "criteo"] {
        let args = ["data", "synth", "--rows", "20000", "--format", format, "--out", out.to_str().unwrap()];
        common::exits(3, with_a_full_disk(&args), &["rows"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{format}");
    }
    let data = common::parquet(dir.path(), 0, 3000);
    let (train, output) = (format!("data.train={}", data.display()), format!("output.model={}", out.display()));
    // By default it would wait five minutes for room: tests/outputs/rescue.rs has that.
    let at_once = ["--set", "output.retry_for=0s"];
    common::exits(3, with_a_full_disk(&[&["train", "--set", &train, "--set", &output][..], &at_once].concat()), &[]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the rows are left");
}

/// A bug: if not even a runtime could start, a panic with its backtrace came before the error.
#[test]
fn too_few_file_descriptors_are_an_external_fault_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let train = format!("data.train={}", common::parquet(dir.path(), 0, 100).display());
    let trained_with = |files: u32| {
        let limited = format!(r#"ulimit -n {files}; exec "$0" "$@""#);
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_forebay"), "train", "--set", &train]);
        common::ended(&mut command)
    };
    // With the first of these the program may not be loaded: a test may pass descriptors on.
    let ended: Vec<_> = (4..24).map(trained_with).filter(|(_, said)| said.contains("error: cannot ")).collect();
    assert!(ended.iter().any(|(_, said)| said.contains("Too many open files")), "{ended:?}");
    for (code, said) in ended {
        assert!(code == Some(3) && !said.contains("panicked"), "{code:?} {said}");
    }
}

/// A bug: the message was that the path is not there.
#[test]
fn a_working_directory_that_was_removed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let train = format!("data.train={}", common::parquet(dir.path(), 0, 100).display());
    for setting in ["data.train=rows.parquet", "output.model=model", "checkpoint.to=checkpoints"] {
        let gone = dir.path().join("gone");
        fs::create_dir(&gone).unwrap();
        let mut command = std::process::Command::new("bash");
        command.args(["-c", r#"cd "$0" && rmdir "$0" && exec "$@""#, gone.to_str().unwrap()]);
        command.args([env!("CARGO_BIN_EXE_forebay"), "train", "--set", &train, "--set", setting]);
        let path = setting.split_once('=').unwrap().1;
        let unresolved = format!("cannot resolve `{path}`: the working directory has been removed");
        common::exits(2, common::ended(&mut command), &[&unresolved]);
    }
}

#[test]
fn csv_says_what_it_is_when_it_is_read_as_another_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.txt");
    fs::write(&path, "label,I1,C1\n1,2,3\n").unwrap();
    refused(&path, &[], &["rows.txt", "the line has commas", "data.format to \"csv\""]);
    fs::write(&path, "label\tI1\tC1\n1\t2\t3\n").unwrap();
    refused(&path, &[], &["a header?", "data.csv.delimiter"]);
    let columns = ["columns.dense=[\"I1\"]", "columns.slots=[\"C1\"]"];
    refused(
        &path,
        &[&columns[..], &["data.format=csv"]].concat(),
        &["no column `label`", "data.csv.delimiter to '\\t'"],
    );
    trained(&path, &[&columns[..], &["data.format=csv", "data.csv.delimiter=\"\\t\""]].concat());
    trained(&path, &[&columns[..], &["data.format=csv", "data.csv.delimiter=\\t"]].concat());
    refused(&path, &["data.csv.delimiter=ab"], &["delimiter", "expected one character"]);
    refused(&path, &["data.format=csvv"], &["did you mean `csv`?"]);
    refused(&path, &["data.format=csv", "columns.slots=[\"I1\"]"], &["`I1`", "numbers", "text"]);
    fs::write(dir.path().join("more.parquet"), "x").unwrap();
    refused(dir.path(), &[], &["more.parquet` is Parquet", "rows.txt` is Criteo text"]);
    fs::write(&path, "label,I1,C1\n1,2,\"a\nb\"\n").unwrap();
    refused(
        &path,
        &[&columns[..], &["data.format=csv"]].concat(),
        &["rows.txt`, line 2", "column 3 (C1)", "quoted field"],
    );
}
