//! Integers that are times, from files to scores: integers of Parquet, CSV and JSON lines have the scores of timestamps, in training,
//! evaluation, prediction and requests. Errors name the field that is missing or wrong.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Float32Type};
use forebay::pipelines::{
    Context, DenseStatistics, ExportParts, RequestRows, Scores, ScoringThreads, ServingModel, column_statistics,
};
use forebay::{Job, Model};
use forebay_base::mix64;
use futures::executor::block_on;
use serde_json::{Value, json};

use super::common;

const ROWS: u64 = 1200;

/// A row. Times are seconds since 1970.
struct Row {
    label: i32,
    time: i64,
    since: Option<i64>,
    item: i64,
}

/// Clicks are more frequent late in the day of clocks at +05:30.
fn row(number: u64) -> Row {
    let of = |stream: u64, below: u64| (mix64(number ^ mix64(stream)) % below) as i64;
    let time = 1_790_000_000 + of(1, 30 * 86_400);
    let hour = (time + 19_800).div_euclid(3600).rem_euclid(24);
    let since = (of(3, 7) != 0).then(|| time - of(4, 40 * 86_400));
    Row { label: i32::from(of(2, 24) < hour), time, since, item: of(5, 20) }
}

/// How a file has the times of rows.
#[derive(Clone, Copy, Debug)]
enum Times {
    Timestamps,
    Integers(i64),
    Numbers(i64),
}

/// How often a unit is in a second.
fn per_second(unit: &str) -> i64 {
    match unit {
        "s" => 1,
        "ms" => 1000,
        "us" => 1_000_000,
        "ns" => 1_000_000_000,
        other => panic!("{other}"),
    }
}

/// Writes the rows as Parquet; `since` has seconds where it has integers.
fn parquet(dir: &Path, times: Times) -> PathBuf {
    let rows: Vec<Row> = (0..ROWS).map(row).collect();
    let times_of = |seconds: Vec<Option<i64>>, times: Times| -> ArrayRef {
        let in_unit = |unit: i64| seconds.iter().map(move |second| second.map(|second| second * unit));
        match times {
            Times::Timestamps => Arc::new(in_unit(1000).collect::<TimestampMillisecondArray>().with_timezone("UTC")),
            Times::Integers(unit) => Arc::new(in_unit(unit).collect::<Int64Array>()),
            Times::Numbers(unit) => {
                Arc::new(in_unit(unit).map(|value| value.map(|value| value as f64)).collect::<Float64Array>())
            }
        }
    };
    let of_since = if let Times::Timestamps = times { times } else { Times::Integers(1) };
    let columns: [(&str, ArrayRef); 4] = [
        ("label", Arc::new(rows.iter().map(|row| Some(row.label)).collect::<Int32Array>())),
        ("time", times_of(rows.iter().map(|row| Some(row.time)).collect(), times)),
        ("since", times_of(rows.iter().map(|row| row.since).collect(), of_since)),
        ("item", Arc::new(rows.iter().map(|row| Some(row.item)).collect::<Int64Array>())),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let path = dir.join(format!("{times:?}.parquet").replace(['(', ')'], "-"));
    common::write_parquet(&path, &RecordBatch::try_from_iter_with_nullable(columns).unwrap());
    path
}

fn csv(dir: &Path, unit: &str) -> PathBuf {
    let mut text = "item,since,time,label\n".to_owned();
    for Row { label, time, since, item } in (0..ROWS).map(row) {
        let since = since.map_or_else(String::new, |since| since.to_string());
        writeln!(text, "{item},{since},{},{label}", time * per_second(unit)).unwrap();
    }
    let path = dir.join(format!("{unit}.csv"));
    fs::write(&path, text).unwrap();
    path
}

/// A row as an object of JSON, with integers.
fn object(row: &Row, unit: &str) -> Value {
    json!({ "label": row.label, "time": row.time * per_second(unit), "since": row.since, "item": row.item })
}

fn json_lines(dir: &Path, unit: &str) -> PathBuf {
    let path = dir.join(format!("{unit}.jsonl"));
    fs::write(&path, (0..ROWS).map(|number| format!("{}\n", object(&row(number), unit))).collect::<String>()).unwrap();
    path
}

/// A job over the rows, whose integers have this unit in `time`.
fn job(data: &Path, unit: &str, settings: &[&str]) -> Job {
    let dense = format!(
        "columns.dense=[{{ column = 'time', transform = 'hour', unit = '{unit}', utc_offset = '+05:30', indicator = true }}, \
         {{ column = 'since', transform = 'age_days', at = 'time', unit = 's', at_unit = '{unit}', clip = {{ max = 30 }}, indicator = true }}]"
    );
    let slots = format!(
        "columns.slots=[{{ column = 'time', kind = 'weekday', unit = '{unit}', utc_offset = '-08:00' }}, \
         {{ column = 'time', kind = 'hour', unit = '{unit}', key_space = 'hour' }}, {{ column = 'item', kind = 'int' }}]"
    );
    let fixed = [dense.as_str(), slots.as_str(), "model.kind=fm", "data.shuffle=false", "data.shuffle_rows=0"];
    common::job(data, &[&fixed[..], settings].concat())
}

fn scores(model: &Model, data: &Path) -> Vec<f32> {
    let batches = model.predict(data.to_str().unwrap(), &[]).unwrap().map(Result::unwrap);
    batches.flat_map(|batch| batch["score"].as_primitive::<Float32Type>().values().to_vec()).collect()
}

/// What a server of the model answers.
fn served(model: &Model, rows: RequestRows) -> Scores {
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path().join("model")).unwrap();
    let served = ServingModel::load(dir.path().join("model"), &[], &Context::default()).unwrap();
    block_on(ScoringThreads::start(served, 1).unwrap().score(rows)).unwrap()
}

/// The scores for rows of JSON, all of them good.
fn served_json(model: &Model, unit: &str, of_since: i64) -> Vec<f32> {
    let rows = (0..ROWS).map(row).map(|row| {
        let mut object = object(&row, unit);
        object.as_object_mut().unwrap().remove("label");
        object["since"] = json!(row.since.map(|since| since * of_since));
        object
    });
    let body = json!({ "rows": rows.collect::<Vec<_>>() }).to_string();
    let scores = served(model, RequestRows::Json(body.into()));
    assert!(scores.bad_rows.is_empty(), "{:?}", scores.bad_rows);
    scores.scores[0].1.iter().map(|score| score.unwrap()).collect()
}

#[test]
fn integers_of_every_unit_and_format_have_the_bits_of_timestamps() {
    let dir = tempfile::tempdir().unwrap();
    let stamps = parquet(dir.path(), Times::Timestamps);
    for unit in ["s", "ms", "us", "ns"] {
        let of_stamps = common::train(job(&stamps, unit, &[]));
        let expected = scores(&of_stamps.model, &stamps);
        assert!(expected.iter().any(|score| (score - expected[0]).abs() > 0.01), "the scores hardly differ");
        let (evaluation, _) = of_stamps.model.evaluate(stamps.to_str().unwrap()).unwrap();
        let integers = parquet(dir.path(), Times::Integers(per_second(unit)));
        let numbers = parquet(dir.path(), Times::Numbers(per_second(unit)));
        for data in [integers, numbers, csv(dir.path(), unit), json_lines(dir.path(), unit)] {
            assert!(scores(&of_stamps.model, &data) == expected, "{data:?}");
            let (of_data, _) = of_stamps.model.evaluate(data.to_str().unwrap()).unwrap();
            assert_eq!(of_data.auc, evaluation.auc, "{data:?}");
            let trained = common::train(job(&data, unit, &[]));
            assert!(common::bits(&trained) == common::bits(&of_stamps), "{data:?}");
            assert!(scores(&trained.model, &stamps) == expected, "{data:?}");
        }
    }
}

#[test]
fn an_offset_and_a_unit_change_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let data = parquet(dir.path(), Times::Integers(1000));
    let bits = |slots: &str| common::bits(&common::train(job(&data, "ms", &[slots, "columns.dense=[]"])));
    let of = |options: &str| bits(&format!("columns.slots=[{{ column = 'time', kind = 'hour', {options} }}]"));
    let utc = of("unit = 'ms'");
    assert!(of("unit = 'ms', utc_offset = '+00:00'") == utc);
    assert!(of("unit = 'ms', utc_offset = '+01:00'") != utc);
    assert!(of("unit = 'us'") != utc);
}

#[test]
fn requests_have_integers_of_the_unit_where_the_training_had_integers() {
    let dir = tempfile::tempdir().unwrap();
    let stamps = parquet(dir.path(), Times::Timestamps);
    for data in [csv(dir.path(), "ms"), json_lines(dir.path(), "ms"), parquet(dir.path(), Times::Integers(1000))] {
        let model = common::train(job(&data, "ms", &[])).model;
        let expected = scores(&model, &data);
        assert!(served_json(&model, "ms", 1) == expected, "{data:?}");
        // Flight has types: timestamps are what they are.
        for rows in [&stamps, &parquet(dir.path(), Times::Integers(1000))] {
            let found = served(&model, RequestRows::Arrow(common::read_file(rows)));
            let found: Vec<f32> = found.scores[0].1.iter().map(|score| score.unwrap()).collect();
            assert!(found == expected, "{data:?} and {rows:?}");
        }
        let folder = dir.path().join("model");
        fs::remove_dir_all(&folder).ok();
        model.save(&folder).unwrap();
        let schema = ServingModel::load(&folder, &[], &Context::default()).unwrap().schema();
        for column in ["time", "since"] {
            assert_eq!(schema.field_with_name(column).unwrap().data_type(), &DataType::Int64, "{data:?}");
        }
        let body = r#"{"shared": {"item": 1, "since": 5}, "rows": [{"time": 7}, {"time": 1790000000000000}]}"#;
        let answer = served(&model, RequestRows::Json(body.as_bytes().into()));
        assert!(answer.scores[0].1[0].is_some() && answer.scores[0].1[1].is_none());
        let bad = &answer.bad_rows[0];
        let words = "column `time` is 1790000000000000, expected milliseconds since 1970 in the years 1 to 9999";
        assert!(bad.row == 1 && bad.error.contains(words), "{}", bad.error);
    }
    // A model that was trained on timestamps has timestamps in JSON: microseconds.
    let model = common::train(job(&stamps, "ms", &[])).model;
    assert!(served_json(&model, "us", 1_000_000) == scores(&model, &stamps));
}

/// As pandas writes integers of a column with missing values, and `time.time()` of Python its seconds.
#[test]
fn numbers_with_fractions_are_times_in_every_format_and_in_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let of_integers = common::train(job(&csv(dir.path(), "s"), "s", &[]));
    let expected = common::bits(&of_integers);
    let rows: Vec<Row> = (0..ROWS).map(row).collect();
    let with_fraction = |(at, row): (usize, &Row)| row.time as f64 + [0.0, 0.25, 0.75][at % 3];
    let times: Vec<f64> = rows.iter().enumerate().map(with_fraction).collect();
    let since: Vec<Option<f64>> = rows.iter().map(|row| row.since.map(|since| since as f64 + 0.5)).collect();
    let (mut of_csv, mut of_json, mut asked) = ("item,since,time,label\n".to_owned(), String::new(), Vec::new());
    for (row, (time, since)) in rows.iter().zip(times.iter().zip(&since)) {
        let in_csv = since.map_or_else(String::new, |since| since.to_string());
        writeln!(of_csv, "{},{in_csv},{time:?},{}", row.item, row.label).unwrap();
        let mut object = json!({ "time": time, "since": since, "item": row.item });
        asked.push(object.clone());
        object["label"] = json!(row.label);
        writeln!(of_json, "{object}").unwrap();
    }
    fs::write(path("fractions.csv"), of_csv).unwrap();
    fs::write(path("fractions.jsonl"), of_json).unwrap();
    let columns: [(&str, ArrayRef); 4] = [
        ("label", Arc::new(rows.iter().map(|row| Some(row.label)).collect::<Int32Array>())),
        ("time", Arc::new(Float64Array::from(times))),
        ("since", Arc::new(Float64Array::from(since))),
        ("item", Arc::new(rows.iter().map(|row| Some(row.item)).collect::<Int64Array>())),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    common::write_parquet(&path("fractions.parquet"), &RecordBatch::try_from_iter_with_nullable(columns).unwrap());
    let body = json!({ "rows": asked }).to_string();
    for name in ["fractions.csv", "fractions.jsonl", "fractions.parquet"] {
        let data = path(name);
        let trained = common::train(job(&data, "s", &[]));
        assert!(common::bits(&trained) == expected, "{name}");
        let answer = served(&trained.model, RequestRows::Json(body.clone().into()));
        assert!(answer.bad_rows.is_empty(), "{name}: {:?}", answer.bad_rows);
        let found: Vec<f32> = answer.scores[0].1.iter().map(|score| score.unwrap()).collect();
        assert!(found == scores(&of_integers.model, &data), "{name}");
    }
    // A column that is written again is not rounded, and one that is more than a time has the integers of its other uses.
    let (model, data, out) = (path("model"), path("fractions.csv"), path("scores"));
    of_integers.model.save(&model).unwrap();
    let [model, data, out] = [&model, &data, &out].map(|path| path.to_str().unwrap());
    let predict = ["predict", "--model", model, "--data", data, "--out", out, "--keep", "time"];
    common::exits(2, common::run(&predict), &["line 2", "(time)", "the column is kept", "--keep"]);
    let slot = "columns.slots=[{ column = 'time', kind = 'hour', unit = 's' }, { column = 'time', kind = 'int', key_space = 't' }]";
    let setting = format!("data.train={data}");
    let train = ["train", "--set", &setting, "--set", slot, "--set", "columns.dense=[]", "--set", "model.kind=lr"];
    common::exits(2, common::run(&train), &["line 2", "(time)", "not an integer"]);
}

#[test]
fn statistics_of_integers_are_those_of_timestamps() {
    let dir = tempfile::tempdir().unwrap();
    let dense = "columns.dense=[{ column = 'time', transform = 'hour', unit = 'us', utc_offset = '+05:30', scale = 'z_score' }, \
                 { column = 'since', transform = 'age_hours', at = 'time', unit = 's', at_unit = 'us', scale = 'min_max' }]";
    let of = |data: &Path| column_statistics(&job(data, "us", &[dense]), &Context::default()).unwrap();
    let expected = of(&parquet(dir.path(), Times::Timestamps));
    assert_eq!((expected.dense["time"].min, expected.dense["time"].max), (0.0, 23.0));
    assert!(expected.dense["since"].missing.unwrap() > 0 && expected.dense["since"].max > 900.0);
    for data in [parquet(dir.path(), Times::Integers(1_000_000)), csv(dir.path(), "us"), json_lines(dir.path(), "us")] {
        let found = of(&data);
        for (column, expected) in &expected.dense {
            let found = found.dense[column];
            let of = |it: &DenseStatistics| (it.min, it.max, it.values, it.missing);
            assert_eq!(of(&found), of(expected), "{data:?} {column}");
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * b.abs();
            assert!(near(found.mean, expected.mean) && near(found.std, expected.std), "{found:?} {expected:?}");
        }
    }
}

#[test]
fn a_unit_that_is_missing_or_wrong_is_told_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |data: &Path, slot: &str, words: &[&str]| {
        let settings = [
            format!("data.train={}", data.display()),
            format!("columns.slots=[{{ column = 'time', {slot} }}]"),
            "columns.dense=[]".into(),
            "model.kind=lr".into(),
        ];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        common::exits(2, common::run(&["train"].into_iter().chain(settings).collect::<Vec<_>>()), words);
    };
    let integers = parquet(dir.path(), Times::Integers(1000));
    let of_column = ["-1000-.parquet", "`time` is Int64", "for the hour: set unit to \"s\", \"ms\", \"us\" or \"ns\""];
    refused(&integers, "kind = 'hour'", &of_column);
    for text in [csv(dir.path(), "ms"), json_lines(dir.path(), "ms")] {
        refused(&text, "kind = 'weekday'", &["line", "column `time` is \"17", "set unit to \"s\", \"ms\""]);
    }
    for data in [integers, csv(dir.path(), "ms"), json_lines(dir.path(), "ms")] {
        refused(&data, "kind = 'hour', unit = 's'", &["`time` is 17", "seconds since 1970 in the years 1 to 9999"]);
    }
    let text = dir.path().join("text.csv");
    fs::write(&text, "label,time\n1,2026-11-20 03:04:05\n").unwrap();
    refused(&text, "kind = 'hour', unit = 's'", &["line 2", "(time)", "found `2026-11-20 03:04:05`", "integer"]);
    refused(&text, "kind = 'hour', utc_offset = 'IST'", &["utc_offset is \"IST\"", "\"+05:30\""]);
    refused(&text, "kind = 'int', unit = 's'", &["columns.slots: `time`: unit is for kind = \"hour\""]);
    refused(&text, "kind = 'hour', unit = 'm'", &["unknown value `m`", "expected one of `s`, `ms`"]);
}

#[test]
fn processes_convert_and_other_programs_know_units() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (file, model, data) = (path("job.toml"), path("model"), csv(dir.path(), "s"));
    let output = format!("output.model={}", model.display());
    fs::write(&file, job(&data, "s", &[&output]).to_toml()).unwrap();
    let alone = common::version_after("train", &file, &[], &model);
    let settings = ["placement.readers=1", "placement.ps=1"];
    assert_eq!(common::version_after("launch", &file, &settings, &model), alone);
    // Programs and readers that do not know the fields would compute other hours.
    let manifest: Value = common::read_json(model.join("manifest.json"));
    assert_eq!((&manifest["version"], &manifest["training"]["types"]["time"]), (&json!(5), &json!("integer")));
    let exported = |model: &Model, name: &str| model.export(path(name), ExportParts::Tables, false).unwrap().version;
    assert_eq!(exported(&Model::load(&model, 1).unwrap(), "export"), 3);
    let plain = common::train(job(&data, "s", &["columns.dense=[]", "columns.slots=['item']"])).model;
    assert_eq!(exported(&plain, "plain"), 1);

    let [data, out, file] = [&data, &path("converted"), &file].map(|path| path.to_str().unwrap().to_owned());
    common::exits(0, common::run(&["data", "convert", &data, "--out", &out, "--job", &file]), &[]);
    let rows = common::read_rows(Path::new(&out));
    assert_eq!(["time", "since"].map(|name| rows[name].data_type().clone()), [DataType::Int64, DataType::Int64]);
    let model = Model::load(&model, 1).unwrap();
    assert!(scores(&model, Path::new(&out)) == scores(&model, Path::new(&data)));
}
