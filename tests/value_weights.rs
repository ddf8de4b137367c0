//! Slots whose values have weights, from files to scores: the same bits in one process and in several and from every format, what the
//! weights mean, the backends, evaluation and prediction, bad rows, the example of the documentation.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int64Type};
use common::{bits, run};
use forebay::Job;
use forebay_base::mix64;

/// A row: its label, a single value with its weight, and lists of values and weights.
struct Row {
    label: i32,
    user: (i64, f64),
    items: Vec<(i64, f64)>,
}

/// Values and their weights.
type Lists = (Vec<i64>, Vec<f64>);

/// The probability of a click grows with the weights of even items.
fn row(number: u64) -> Row {
    let of = |stream: u64, below: u64| mix64(number ^ mix64(stream)) % below;
    let items: Vec<(i64, f64)> = (0..of(1, 6))
        .map(|i| (of(10 + i, 30) as i64, [0.0, 0.25, 0.5, 1.0, 2.0, 4.0][of(20 + i, 6) as usize]))
        .collect();
    let even: f64 = items.iter().map(|&(item, weight)| if item % 2 == 0 { weight } else { -weight }).sum();
    let label = i32::from((of(2, 1000) as f64) < 1000.0 / (1.0 + (-even).exp()));
    Row { label, user: (of(3, 20) as i64, of(4, 4) as f64 * 0.5), items }
}

/// Writes rows as Parquet.
fn parquet(dir: &Path, numbers: std::ops::Range<u64>) -> PathBuf {
    let rows: Vec<Row> = numbers.clone().map(row).collect();
    let items = rows.iter().map(|row| Some(row.items.iter().map(|item| Some(item.0)).collect::<Vec<_>>()));
    let weights = rows.iter().map(|row| Some(row.items.iter().map(|item| Some(item.1)).collect::<Vec<_>>()));
    let columns: [(&str, ArrayRef); 5] = [
        ("label", Arc::new(rows.iter().map(|row| Some(row.label)).collect::<Int32Array>())),
        ("user", Arc::new(rows.iter().map(|row| Some(row.user.0)).collect::<Int64Array>())),
        ("user_weight", Arc::new(rows.iter().map(|row| Some(row.user.1)).collect::<Float64Array>())),
        ("items", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(items))),
        ("weights", Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(weights))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = dir.join(format!("rows-{}.parquet", numbers.start));
    common::write_parquet(&path, &batch);
    path
}

fn json_lines(dir: &Path, numbers: std::ops::Range<u64>) -> PathBuf {
    let mut text = String::new();
    for Row { label, user, items } in numbers.map(row) {
        let (ids, weights): (Vec<i64>, Vec<f64>) = items.into_iter().unzip();
        let (of_user, user) = (user.1, user.0);
        writeln!(
            text,
            r#"{{"label": {label}, "user": {user}, "user_weight": {of_user}, "items": {ids:?}, "weights": {weights:?}}}"#
        )
        .unwrap();
    }
    let path = dir.join("rows.jsonl");
    fs::write(&path, text).unwrap();
    path
}

fn text(data: &Path, model: &Path) -> String {
    format!(
        "seed = 9\n[data]\ntrain = {data:?}\nshuffle_rows = 3000\n[columns]\nlabel = \"label\"\ndense = []\n\
         slots = [{{ column = \"user\", kind = \"int\", weights = \"user_weight\" }}, \
         {{ column = \"items\", kind = \"int\", weights = \"weights\" }}, \
         {{ column = \"items\", kind = \"int\", key_space = \"some\", weights = \"weights\", last = 3, buckets = 12, pooling = \"mean\" }}, \
         {{ column = \"items\", kind = \"int\", key_space = \"plain\", first = 2 }}]\n\
         [model]\nkind = \"deep_fm\"\nembedding_dim = 8\nhidden = [24, 12]\n\
         [train]\nbatch_rows = 256\nthreads = 1\n[output]\nmodel = {model:?}\n"
    )
}

const WITHOUT: &str = "columns.slots=[{ column = 'user', kind = 'int' }, { column = 'items', kind = 'int' }, \
                       { column = 'items', kind = 'int', key_space = 'some', last = 3, buckets = 12, pooling = 'mean' }, \
                       { column = 'items', kind = 'int', key_space = 'plain', first = 2 }]";

#[test]
fn weights_have_the_same_bits_in_one_process_and_in_several_and_from_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (parquet(dir.path(), 0..4000), dir.path().join("model"));
    let text = text(&data, &model);
    let trained = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        bits(&common::train(Job::from_toml(&text, &settings).unwrap()))
    };
    let reference = trained(&[]);
    let replicas = ["pipeline.parse_replicas=3", "pipeline.batch_replicas=2", "data.read_rows=700", "table.shards=3"];
    for settings in [&replicas[..], &["train.threads=2"]] {
        assert!(trained(settings) == reference, "{settings:?}");
    }
    assert!(trained(&[WITHOUT]) != reference, "the weights count");
    let json = format!("data.train={}", json_lines(dir.path(), 0..4000).display());
    let of_parquet = trained(&["data.shuffle_rows=0"]);
    assert!(trained(&["data.shuffle_rows=0", &json]) == of_parquet, "JSON lines");

    let file = dir.path().join("job.toml");
    fs::write(&file, &text).unwrap();
    let version = |command, settings: &[&str]| common::version_after(command, &file, settings, &model);
    let alone = version("train", &[]);
    for settings in [
        &["placement.readers=1", "placement.ps=2"][..],
        &["placement.readers=1", "placement.ps=1", "placement.lookup_at=reader"],
    ] {
        assert_eq!(version("launch", settings), alone, "{settings:?}");
    }
}

/// A weight of 2 is the value twice in a sum, 0 is none; a mean of equal weights is the mean.
#[test]
fn the_scores_are_those_of_values_as_often_as_their_weights_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, line: &dyn Fn(&Row) -> Lists| {
        let mut text = String::new();
        for row in (0..1500).map(row) {
            let ((ids, weights), label) = (line(&row), row.label);
            writeln!(text, r#"{{"label": {label}, "items": {ids:?}, "weights": {weights:?}}}"#).unwrap();
        }
        fs::write(dir.path().join(name), text).unwrap();
    };
    let whole = |row: &Row| row.items.iter().map(|&(id, weight)| (id, weight.floor())).collect::<Vec<_>>();
    write("weighted.jsonl", &|row| whole(row).into_iter().unzip());
    write("repeated.jsonl", &|row| {
        whole(row).into_iter().flat_map(|(id, weight)| vec![(id, 1.0); weight as usize]).unzip()
    });
    for pooling in ["sum", "mean"] {
        let slots =
            format!("[{{ column = \"items\", kind = \"int\", weights = \"weights\", pooling = \"{pooling}\" }}]");
        let job = format!(
            "seed = 3\n[data]\ntrain = {:?}\nepochs = 3\n[columns]\nlabel = \"label\"\ndense = []\nslots = {slots}\n[model]\n\
             kind = \"fm\"\nembedding_dim = 4\n[train]\nbatch_rows = 128\nthreads = 1\n",
            path("weighted.jsonl")
        );
        let model = common::train(Job::from_toml(&job, &[]).unwrap()).model;
        let evaluated = |name: &str| model.evaluate(path(name).as_str()).unwrap().0;
        let (weighted, repeated) = (evaluated("weighted.jsonl"), evaluated("repeated.jsonl"));
        assert_eq!(weighted.rows, 1500);
        let [of_weights, of_repeats] = [&weighted, &repeated].map(|of| of.logloss().unwrap());
        assert!((of_weights - of_repeats).abs() < 1e-6, "{pooling}: {of_weights} {of_repeats}");
        assert!(weighted.auc.unwrap() > 0.65, "{pooling}: {:?}", weighted.auc);
    }
}

/// The scores of `predict`, and the AUC by these and by `eval`.
#[test]
fn predictions_have_the_auc_of_the_evaluation_and_weights_are_worth_it() {
    let dir = tempfile::tempdir().unwrap();
    let (data, test, model) = (parquet(dir.path(), 0..6000), parquet(dir.path(), 6000..8000), dir.path().join("model"));
    let file = dir.path().join("job.toml");
    fs::write(&file, text(&data, &model)).unwrap();
    let trained = |settings: &[&str]| -> f64 {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        let (code, said) = run(&[&["train", file.to_str().unwrap(), "--set", "data.epochs=2"][..], &settings].concat());
        assert_eq!(code, Some(0), "{said}");
        let data = test.to_str().unwrap();
        let said = common::exits(0, run(&["eval", "--model", model.to_str().unwrap(), "--data", data, "--json"]), &[]);
        serde_json::from_str::<serde_json::Value>(said.trim()).unwrap()["auc"].as_f64().unwrap()
    };
    let without = trained(&[WITHOUT]);
    if cfg!(feature = "torch") {
        let (native, torch) = (trained(&[]), trained(&["train.backend=torch"]));
        assert!((native - torch).abs() < 0.003, "{native} {torch}");
    }
    let auc = trained(&[]);
    assert!(auc > without + 0.02, "{auc} with weights, {without} without");

    let out = dir.path().join("scores");
    let paths = [&model, &test, &out].map(|path| path.to_str().unwrap());
    common::exits(0, run(&["predict", "--model", paths[0], "--data", paths[1], "--out", paths[2]]), &[]);
    let scored = common::read_rows(&out);
    let scores = scored["score"].as_primitive::<Float32Type>().values();
    let rows = (6000..8000).zip(scores.iter()).map(|(number, &score)| (f64::from(row(number).label), f64::from(score)));
    let by_pairs = common::auc_by_pairs(&rows.collect::<Vec<_>>()).unwrap();
    assert!((by_pairs - auc).abs() < 1e-4, "{by_pairs} {auc}");
}

#[test]
fn a_bad_weight_is_told_with_its_file_and_line_or_left_out_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    let good = r#"{"label": 1, "user": 1, "user_weight": 1, "items": [1, 2], "weights": [0.5, 2]}"#;
    let bad = [
        (
            r#""items": [1, 2], "weights": [0.5]"#,
            "column `weights` has 1 value, expected 2: a weight for each value of `items`",
        ),
        (
            r#""items": [1, 2], "weights": [0.5, -1]"#,
            "column `weights` has -1 at place 1, expected a number from 0 to 1e30",
        ),
        (
            r#""items": [1, 2], "weights": [1e300, 1]"#,
            "column `weights` has 1e300 at place 0, expected a number from 0 to 1e30",
        ),
        (r#""items": [1, 2], "weights": [null, 1]"#, "column `weights` has no value at place 0"),
        (r#""items": [1, 2]"#, "column `weights` has 0 values, expected 2"),
    ];
    let job = text(&file, &dir.path().join("model"));
    let train = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        let path = dir.path().join("job.toml");
        fs::write(&path, &job).unwrap();
        run(&[&["train", path.to_str().unwrap()][..], &settings].concat())
    };
    let line = |lists: &str| format!(r#"{{"label": 0, "user": 1, "user_weight": 1, {lists}}}"#);
    for (lists, words) in bad {
        fs::write(&file, format!("{good}\n{}\n", line(lists))).unwrap();
        let (code, said) = train(&[]);
        assert!(
            code != Some(0) && said.contains(words) && said.contains("rows.jsonl") && said.contains("line 2"),
            "{said}"
        );
    }
    let lines: Vec<String> = bad.iter().map(|(lists, _)| line(lists)).collect();
    fs::write(&file, format!("{good}\n{}\n", lines.join("\n"))).unwrap();
    let job = Job::from_toml(&job, &["data.on_bad_row=\"skip\"".to_owned()]).unwrap();
    let trained = common::train(job);
    let ledger = &trained.report.ledger;
    let rejected = |reason: &str| ledger.rejected.get(reason).copied();
    assert_eq!(rejected("weights of another number than values"), Some(2), "{:?}", ledger.rejected);
    assert_eq!(rejected("weight of a value is not a number from 0 to 1e30"), Some(3), "{:?}", ledger.rejected);
}

/// CSV has no lists: a value has one weight.
#[test]
fn values_of_csv_have_a_weight_each() {
    let dir = tempfile::tempdir().unwrap();
    let mut csv = "label,user,w\n".to_owned();
    (0..500).map(row).for_each(|row| writeln!(csv, "{},{},{}", row.label, row.user.0, row.user.1).unwrap());
    let file = dir.path().join("rows.csv");
    fs::write(&file, csv).unwrap();
    let data = parquet(dir.path(), 0..500);
    let trained = |data: &Path, weights: &str| {
        let slots = format!("[{{ column = \"user\", kind = \"int\"{weights} }}]");
        let job = format!(
            "seed = 3\n[data]\ntrain = {data:?}\n[columns]\nlabel = \"label\"\ndense = []\nslots = {slots}\n[model]\nkind = \"lr\"\n"
        );
        bits(&common::train(Job::from_toml(&job, &[]).unwrap()))
    };
    let csv = trained(&file, ", weights = \"w\"");
    assert!(csv == trained(&data, ", weights = \"user_weight\""));
    assert!(csv != trained(&file, ""));
}

/// A file of JSON lines with nothing but nulls does not show whether a column has lists.
#[test]
fn a_line_alone_without_a_value_scores_as_beside_other_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let nulls = "{\"click\": 0, \"item\": null, \"w\": 1, \"tag\": null}\n";
    let lines = format!("{{\"click\": 1, \"item\": 5, \"w\": 2, \"tag\": 7}}\n{nulls}").repeat(40);
    fs::write(path("rows.jsonl"), lines).unwrap();
    fs::write(path("one.jsonl"), nulls).unwrap();
    fs::write(path("none.jsonl"), nulls.repeat(20)).unwrap();
    let job = format!(
        "[data]\ntrain = {:?}\n[columns]\nlabel = \"click\"\ndense = []\nslots = [{{ column = \"item\", kind = \"int\", weights = \
         \"w\" }}, {{ column = \"tag\", kind = \"int\", pooling = \"mean\" }}]\n[model]\nkind = \"lr\"\n[output]\nmodel = {:?}\n",
        path("rows.jsonl"),
        path("model")
    );
    fs::write(path("job.toml"), job).unwrap();
    common::exits(0, run(&["train", &path("job.toml")]), &[]);
    let last_score = |data: &str| {
        let mut predict = common::forebay(&["predict", "--model", &path("model"), "--data", &path(data), "--out", "-"]);
        let output = predict.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
    };
    assert_eq!(last_score("one.jsonl"), last_score("rows.jsonl"));
    // Without a model, the weights of single values show it.
    let settings = [format!("data.train={}", path("none.jsonl")), format!("output.model={}", path("none"))];
    common::exits(0, run(&["train", &path("job.toml"), "--set", &settings[0], "--set", &settings[1]]), &[]);
}

#[test]
fn the_example_of_the_page_runs() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/data.md")).unwrap();
    let section = page.split("## Weights of values\n").nth(1).unwrap();
    let block = |language: &str| {
        section.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rows.jsonl"), block("json")).unwrap();
    fs::write(dir.path().join("job.toml"), block("toml")).unwrap();
    for command in block("sh").lines() {
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        let output = common::forebay(&arguments).current_dir(dir.path()).output().unwrap();
        let (code, said) = common::code_and_output(&output);
        assert_eq!(code, Some(0), "{command}: {said}");
    }
    assert!(fs::read_dir(dir.path().join("scores")).unwrap().count() > 0);
}
