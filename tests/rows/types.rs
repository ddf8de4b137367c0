//! Rows whose columns have other types than in training: read as in training, or refused by the name of the column, never scored as
//! something else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type};
use forebay::models::TowerSide;
use forebay::pipelines::model_folder::Manifest;
use forebay::pipelines::{Context, RequestRows, ScoringThreads, ServingModel, Trained};
use forebay::{Model, Training};
use futures::executor::block_on;

use super::common;

const SLOTS: &str = "columns.slots=['C1..C4', { column = 'C5..C6', kind = 'int' }]";
const DENSE: &str =
    "columns.dense=['I1..I3', { column = 'I4', transform = 'none' }, { column = 'I5', scale = 'z_score' }]";
const SCALE: &str = "columns.statistics={ I5 = { mean = 2.0, std = 1.5, min = 0.0, max = 5.0 } }";

/// Rows of `data synth`, all of whose features are integers, with these columns of other types.
fn rows(dir: &Path, first: u64, types: &[(&str, DataType)]) -> PathBuf {
    let plain = dir.join(format!("parquet-{first}"));
    let rows = common::read_rows(&if plain.exists() { plain } else { common::parquet(dir, first, 4000) });
    let of = |name: &str| types.iter().find(|(stem, _)| name.starts_with(stem)).map(|(_, kind)| kind);
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        let through = |kind: &DataType| if *kind == DataType::Date32 { DataType::Int32 } else { kind.clone() };
        let as_type = |kind| cast(&cast(column, &through(kind)).unwrap(), kind).unwrap();
        let column = of(field.name()).map_or_else(|| Arc::clone(column), as_type);
        (field.name().clone(), column, true)
    });
    let rows = RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<_>>()).unwrap();
    let names: Vec<String> = types.iter().map(|(name, kind)| format!("{name}-{kind}")).collect();
    let path = dir.join(format!("rows-{first}-{}.parquet", names.join("-")));
    common::write_parquet(&path, &rows);
    path
}

/// The same rows as CSV.
fn csv(parquet: &Path) -> PathBuf {
    let path = parquet.with_extension("csv");
    let rows = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(File::open(parquet).unwrap());
    let mut writer = arrow::csv::Writer::new(File::create(&path).unwrap());
    rows.unwrap().build().unwrap().for_each(|batch| writer.write(&batch.unwrap()).unwrap());
    path
}

fn trained(data: &Path, settings: &[&str]) -> Trained {
    common::train(common::job(data, &[&[SLOTS, DENSE, SCALE, "model.kind=fm"], settings].concat()))
}

fn scores(model: &Model, data: &Path) -> Result<Vec<f32>, String> {
    let batches: Result<Vec<RecordBatch>, _> = model.predict(data.to_str().unwrap(), &[]).unwrap().collect();
    let batches = batches.map_err(|fault| fault.to_string())?;
    Ok(batches.iter().flat_map(|batch| batch["score"].as_primitive::<Float32Type>().values().to_vec()).collect())
}

/// The scores that a server gives for these rows.
fn served(model: &Model, rows: &RecordBatch) -> Result<Vec<f32>, String> {
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path().join("model")).unwrap();
    let served = ServingModel::load(dir.path().join("model"), &[], &Context::default()).unwrap();
    let scoring = ScoringThreads::start(served, 1).unwrap();
    let scores = block_on(scoring.score(RequestRows::Arrow(rows.clone()))).map_err(|fault| fault.to_string())?;
    Ok(scores.scores[0].1.iter().map(|score| score.unwrap()).collect())
}

/// To the bit, as is said of scores: the logarithm of a number does not depend on its type.
fn same(a: &[f32], b: &[f32]) -> bool {
    a == b
}

#[test]
fn numbers_of_any_type_are_read_as_in_training_and_other_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ints = rows(dir.path(), 0, &[]);
    let model = trained(&ints, &[]).model;
    let rows = |types: &[(&str, DataType)]| rows(dir.path(), 4000, types);
    let plain = rows(&[]);
    let expected = scores(&model, &plain).unwrap();
    for types in [
        &[("I", DataType::Int64)][..],
        &[("I", DataType::Float64)],
        &[("I", DataType::Float32), ("C", DataType::Int64)],
        &[("C6", DataType::UInt64)],
    ] {
        let found = scores(&model, &rows(types)).unwrap();
        assert!(same(&found, &expected), "{types:?}");
    }
    assert!(same(&scores(&model, &csv(&plain)).unwrap(), &expected), "CSV has numbers where integers were");
    let (auc, _) = model.evaluate(plain.to_str().unwrap()).unwrap();
    let (of_csv, _) = model.evaluate(csv(&plain).to_str().unwrap()).unwrap();
    assert!((auc.auc.unwrap() - of_csv.auc.unwrap()).abs() < 1e-4, "{:?} and {:?}", auc.auc, of_csv.auc);
    let strings = rows(&[("C3", DataType::Utf8)]);
    let refused = "column `C3` has strings in these rows, and the model was trained on integers";
    for said in [
        scores(&model, &strings).unwrap_err(),
        model.evaluate(strings.to_str().unwrap()).unwrap_err().to_string(),
        scores(&model, &rows(&[("C3", DataType::Binary)])).unwrap_err(),
    ] {
        assert!(said.contains(refused) && said.contains("write it as bigint"), "{said}");
    }
    // A server takes the same types, by the same code.
    for types in [
        &[][..],
        &[("I", DataType::Float64)],
        &[("I", DataType::Float32), ("C", DataType::Int64)],
        &[("C6", DataType::UInt64)],
    ] {
        let found = served(&model, &common::read_file(&rows(types))).unwrap();
        assert!(same(&found, &expected), "served: {types:?}");
    }
    let said = served(&model, &common::read_file(&strings)).unwrap_err();
    assert!(said.contains(refused), "{said}");
    // The other way round.
    let model =
        trained(&self::rows(dir.path(), 8000, &[("C", DataType::Utf8), ("I", DataType::Float64)]), &[SLOTS_OF_TEXT])
            .model;
    let text = rows(&[("C", DataType::Utf8), ("I", DataType::Float64)]);
    let expected = scores(&model, &text).unwrap();
    assert!(same(&scores(&model, &csv(&text)).unwrap(), &expected));
    assert!(
        same(&scores(&model, &rows(&[("C", DataType::LargeUtf8)])).unwrap(), &expected),
        "integers without a logarithm"
    );
    let said = scores(&model, &plain).unwrap_err();
    assert!(said.contains("column `C1` has integers in these rows, and the model was trained on strings"), "{said}");
}

const SLOTS_OF_TEXT: &str = "columns.slots=['C1..C4']";

/// A bug: a slot of the kind `int` made integers of the numbers of its column, whose logarithm was then trained on.
#[test]
fn a_dense_feature_of_text_that_is_also_a_slot_of_integers_has_no_transform() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, later) = (rows(dir.path(), 0, &[]), rows(dir.path(), 4000, &[]));
    let train = |data: &Path, transform: &str| {
        // Small numbers get no scale.
        let clip = "clip = { min = 0, max = 1 }";
        let dense = format!("columns.dense=[{{ column = 'I1..I3', transform = '{transform}', {clip} }}]");
        let slots = "columns.slots=[{ column = 'C1', kind = 'int' }, { column = 'I1..I2', kind = 'int' }]";
        let in_order = ["data.shuffle=false", "data.shuffle_rows=0"];
        common::train(common::job(data, &[&[dense.as_str(), slots][..], &in_order].concat()))
    };
    let (of_parquet, of_csv) = (train(&plain, "none"), train(&csv(&plain), "auto"));
    assert_eq!(common::bits(&of_csv), common::bits(&of_parquet));
    assert_ne!(common::bits(&of_csv), common::bits(&train(&csv(&plain), "log1p")));
    let types = &of_csv.training.types;
    assert_eq!([&types["I1"], &types["I3"]].map(ToString::to_string), ["integers of text", "numbers"]);
    let expected = scores(&of_parquet.model, &later).unwrap();
    for found in [
        scores(&of_csv.model, &later),
        scores(&of_csv.model, &csv(&later)),
        served(&of_csv.model, &common::read_file(&later)),
    ] {
        assert!(same(&found.unwrap(), &expected));
    }
    // A model that says that it had integers was trained on logarithms, in earlier versions also one of CSV.
    let logs = train(&plain, "auto").model;
    assert!(same(&scores(&logs, &csv(&later)).unwrap(), &scores(&logs, &later).unwrap()));
}

/// A bug: hexadecimal digits of text were said to be integers, so clients would have sent other values than the rows had.
#[test]
fn hexadecimal_digits_of_text_are_strings_in_the_manifest_and_to_clients() {
    let dir = tempfile::tempdir().unwrap();
    let (of_csv, of_json) = (dir.path().join("digits.csv"), dir.path().join("digits.jsonl"));
    fs::write(&of_csv, format!("label,C1\n{}", "0,0a\n1,ff\n".repeat(50))).unwrap();
    fs::write(&of_json, "{\"label\":0,\"C1\":[\"0a\",18]}\n{\"label\":1,\"C1\":[]}\n".repeat(50)).unwrap();
    for (data, written, kind) in [
        (of_csv, "text", DataType::Utf8),
        (of_json, "text", DataType::new_list(DataType::Utf8, true)),
        (rows(dir.path(), 0, &[]), "integer", DataType::Int64),
        (rows(dir.path(), 0, &[("C1", DataType::UInt64)]), "integer", DataType::Int64),
    ] {
        let settings = ["columns.slots=[{ column = 'C1', kind = 'hex' }]", "columns.dense=[]", "model.kind=lr"];
        let folder = data.with_extension("model");
        common::train(common::job(&data, &settings)).model.save(&folder).unwrap();
        let manifest: serde_json::Value = common::read_json(folder.join("manifest.json"));
        assert_eq!(manifest["training"]["types"]["C1"], written, "{data:?}");
        let served = ServingModel::load(folder, &[], &Context::default()).unwrap();
        assert_eq!(served.schema().field_with_name("C1").unwrap().data_type(), &kind, "{data:?}");
    }
}

#[test]
fn a_model_of_a_version_that_did_not_know_types_scores_as_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let plain = rows(dir.path(), 0, &[]);
    let folder = dir.path().join("model");
    trained(&plain, &[]).model.save(&folder).unwrap();
    let manifest = folder.join("manifest.json");
    let mut value: serde_json::Value = common::read_json(&manifest);
    let training = value["training"].as_object_mut().unwrap();
    assert_eq!(training.remove("types").unwrap()["I1"], "integer");
    fs::write(&manifest, value.to_string()).unwrap();
    let old = Model::load(folder.to_str().unwrap(), 1).unwrap();
    assert_eq!(scores(&old, &plain).unwrap().len(), 4000);
    assert_eq!(scores(&old, &rows(dir.path(), 0, &[("C3", DataType::Utf8)])).unwrap().len(), 4000);
}

#[test]
fn rows_of_the_evaluation_are_compared_with_those_of_the_training_before_a_batch_is_trained() {
    let dir = tempfile::tempdir().unwrap();
    let plain = rows(dir.path(), 0, &[]);
    let eval = |path: &Path| format!("data.eval={}", path.display());
    let train = |path: &Path| {
        let job = common::job(&plain, &[SLOTS, DENSE, SCALE, "model.kind=fm", &eval(path)]);
        Training::new(job).unwrap().run().map(drop).map_err(|fault| fault.to_string())
    };
    let said = train(&rows(dir.path(), 4000, &[("C2", DataType::Utf8)])).unwrap_err();
    let words = "nothing is trained, because the model could not be evaluated on data.eval: column `C2` has strings in \
                 these rows";
    assert!(said.contains(words), "{said}");
    train(&rows(dir.path(), 4000, &[("I", DataType::Float64)])).unwrap();
    train(&csv(&rows(dir.path(), 4000, &[]))).unwrap();
}

#[test]
fn evaluations_while_it_trains_read_csv_as_the_model_reads_parquet_and_the_best_model_has_its_types() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, eval) = (rows(dir.path(), 0, &[]), rows(dir.path(), 4000, &[]));
    let points = |eval: &Path| {
        let folder = dir.path().join(format!("model-{}", eval.extension().unwrap().display()));
        let settings = [
            format!("data.eval={}", eval.display()),
            format!("output.model={}", folder.display()),
            "evaluation={ every = { epochs = 1 }, keep = 'best' }".into(),
            "data.epochs=3".into(),
        ];
        let trained = trained(&plain, &settings.each_ref().map(String::as_str));
        trained.save(trained.model.job.output.model.as_deref().unwrap()).unwrap();
        let types = Manifest::read(folder.to_str().unwrap()).unwrap().training.unwrap().types;
        assert_eq!(types["C3"].to_string(), "integers");
        trained.evaluations().unwrap().points.iter().map(|point| point.auc.unwrap()).collect::<Vec<_>>()
    };
    let (of_parquet, of_csv) = (points(&eval), points(&csv(&eval)));
    assert_eq!(of_parquet.len(), 2);
    for (a, b) in of_parquet.iter().zip(&of_csv) {
        assert!((a - b).abs() < 1e-4, "{of_parquet:?} and {of_csv:?}");
    }
}

#[test]
fn a_run_continues_from_a_model_on_rows_of_the_same_meaning_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    trained(&rows(dir.path(), 0, &[]), &[]).model.save(&folder).unwrap();
    let from = format!("train.from={}", folder.display());
    let go_on = |types: &[(&str, DataType)]| {
        let job = common::job(&rows(dir.path(), 4000, types), &[SLOTS, DENSE, SCALE, "model.kind=fm", &from]);
        Training::new(job).unwrap().run().map_err(|fault| fault.to_string())
    };
    let training = go_on(&[("C", DataType::Int64), ("I1", DataType::Int64), ("I4", DataType::Float32)]);
    let training = training.unwrap().training;
    assert_eq!(training.types["I4"].to_string(), "numbers");
    for (types, words) in [
        (("I2", DataType::Float64), "column `I2` has numbers in these rows, and the model was trained on integers"),
        (("C5", DataType::Date32), "column `C5` has dates in these rows, and the model was trained on integers"),
        (("C1", DataType::Utf8), "column `C1` has strings"),
    ] {
        let said = go_on(&[types]).err().unwrap();
        assert!(said.contains(words) && said.contains("the run cannot continue from the model"), "{said}");
    }
}

/// A bug: on such a day a row of the missing value was trained, and the model forgot that the column has lists.
#[test]
fn a_column_of_lists_stays_one_after_a_day_of_nothing_but_nulls() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["model.kind=lr", "columns.dense=[]", "columns.slots=['h']"];
    let run = |data: &Path, from: Option<&Path>| {
        let from = from.map(|from| format!("train.from={}", from.display()));
        let settings: Vec<&str> = settings.into_iter().chain(from.as_deref()).collect();
        Training::new(common::job(data, &settings)).and_then(Training::run).map_err(|fault| fault.to_string())
    };
    let line = |i: usize, value: &str| format!("{{\"label\": {}, \"h\": {value}}}\n", i % 2);
    let list = |i: usize| line(i, &format!("[{}, {}]", i % 7, i % 5));
    let write = |name: &str, lines: &dyn Fn(usize) -> String| {
        let path = dir.path().join(name);
        fs::write(&path, (0..6000).map(lines).collect::<String>()).unwrap();
        path
    };
    let days = [
        write("lists.jsonl", &list),
        write("nulls.jsonl", &|i| line(i, "null")),
        // Behind the first lines, which tell the types.
        write("late.jsonl", &|i| if i < 5000 { line(i, "null") } else { list(i) }),
        dir.path().join("nulls.parquet"),
    ];
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..6000).map(|i| i % 2)));
    let columns = [("label", label), ("h", new_null_array(&DataType::Null, 6000))];
    let rows = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    common::write_parquet(&days[3], &rows);
    let rows = |model: &Model| block_on(model.table.stats()).unwrap().rows();
    let first = run(&days[0], None).unwrap();
    let folder = dir.path().join("model");
    first.model.save(&folder).unwrap();
    for day in &days {
        let second = run(day, Some(folder.as_path())).unwrap();
        assert_eq!(rows(&second.model), rows(&first.model), "{day:?}");
        assert!(second.training.lists.contains("h"), "{day:?}");
        let to = dir.path().join("next");
        second.model.save(&to).unwrap();
        let next = run(&days[3], Some(to.as_path())).unwrap();
        assert_eq!(rows(&next.model), rows(&first.model), "{day:?}");
        assert!(same(&scores(&next.model, &days[1]).unwrap(), &scores(&next.model, &days[3]).unwrap()), "{day:?}");
        scores(&next.model, &days[2]).unwrap();
    }
    // Readers parse the rows, and load no model.
    let (to, file) = (dir.path().join("of-readers"), dir.path().join("job.toml"));
    let more = [
        format!("train.from={}", folder.display()),
        format!("output.model={}", to.display()),
        "placement.readers=1".to_owned(),
        "placement.ps=1".to_owned(),
    ];
    for day in &days[1..] {
        let settings: Vec<&str> = settings.into_iter().chain(more.iter().map(String::as_str)).collect();
        fs::write(&file, common::job(day, &settings).to_toml()).unwrap();
        let mut launch = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let output = launch.arg("launch").arg(&file).current_dir(dir.path()).output().unwrap();
        common::exits(0, common::code_and_output(&output), &[]);
        assert_eq!(rows(&Model::load(&to, 1).unwrap()), rows(&first.model), "{day:?}");
        assert!(Manifest::read(&to).unwrap().training.unwrap().lists.contains("h"), "{day:?}");
    }
    // A column that had single values has no lists.
    run(&write("single.jsonl", &|i| line(i, "7")), None).unwrap().model.save(&folder).unwrap();
    let said = run(&days[2], Some(folder.as_path())).err().unwrap();
    assert!(said.contains("`h`") && said.contains("not one value"), "{said}");
}

#[test]
fn vectors_are_made_of_rows_that_are_read_as_in_training() {
    let dir = tempfile::tempdir().unwrap();
    let towers = [
        "model={ kind = 'two_towers', user = { slots = ['C1'], dense = ['I1'] }, item = { slots = ['C2'], dense = ['I2'] } }",
        "columns.slots=['C1', 'C2']",
        "columns.dense=['I1', 'I2']",
        "columns.statistics={}",
    ];
    let model = trained(&rows(dir.path(), 0, &[]), &towers).model;
    let embed = |types: &[(&str, DataType)]| {
        let path = rows(dir.path(), 4000, types);
        let found: Result<Vec<_>, _> = model.embed(path.to_str().unwrap(), TowerSide::User, &[]).unwrap().collect();
        found.map(|batches| arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()["vector"].clone())
    };
    let expected = embed(&[]).unwrap();
    assert_eq!(&embed(&[("C2", DataType::Utf8)]).unwrap(), &expected, "the other tower is not read");
    let values = |vectors: &arrow::array::ArrayRef| {
        vectors.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec()
    };
    assert!(same(&values(&embed(&[("I1", DataType::Float64)]).unwrap()), &values(&expected)));
    let said = embed(&[("C1", DataType::Utf8)]).unwrap_err().to_string();
    assert!(said.contains("column `C1` has strings"), "{said}");
}

/// The values of a folder are integers in some selections of folders and text in others; a folder's name can always be text.
#[test]
fn a_folder_that_was_text_in_training_is_text_in_every_selection_of_folders() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    for (first, folder) in [(0, "g=1"), (4000, "g=2"), (8000, "g=x")] {
        let to = logs.join(folder);
        fs::create_dir_all(&to).unwrap();
        fs::copy(rows(dir.path(), first, &[]), to.join("part-0.parquet")).unwrap();
    }
    let with_folder = "columns.slots=['C1', 'g']";
    let all = trained(&logs, &[with_folder]).model;
    let expected = scores(&all, &logs).unwrap();
    for (selected, from) in [("g=1", 0), ("g=2/part-0.parquet", 4000), ("g=?", 0), ("g=x", 8000)] {
        let found = scores(&all, &logs.join(selected)).unwrap();
        assert!(same(&found, &expected[from..from + found.len()]), "{selected}");
    }
    // As the rows of an evaluation, and by the kind that the job gives.
    let eval = format!("data.eval={}", logs.display());
    let settings = [&eval, "data.eval_where=g = 1", "evaluation.every.epochs=1", "data.epochs=2"];
    assert!(trained(&logs, &[&[with_folder][..], &settings].concat()).evaluations().unwrap().points[0].auc.is_some());
    // A bug: `eval` left folders out that `data.eval_where` of the model's job does not select.
    let folder = dir.path().join("model");
    trained(&logs, &[with_folder, &eval, "data.eval_where=g = 1"]).model.save(&folder).unwrap();
    let [model, logs_path] = [&folder, &logs].map(|path| path.to_str().unwrap());
    for (settings, rows) in [(&[][..], "12,000 rows"), (&["--set", "data.eval_where=g = 2"], "4,000 rows")] {
        let arguments = [&["eval", "--model", model, "--data", logs_path], settings].concat();
        common::exits(0, common::run(&arguments), &[rows]);
    }
    let text = "columns.slots=['C1', { column = 'g', kind = 'string' }]";
    let one = trained(&logs.join("g=1"), &[text]);
    assert_eq!(one.training.types["g"].to_string(), "strings");
    assert_eq!(scores(&one.model, &logs.join("g=x")).unwrap().len(), 4000);
}
