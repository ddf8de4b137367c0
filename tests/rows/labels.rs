//! Several labels from the job to the scores: evaluation and prediction of each, the same bits however a run is cut up, and what does
//! not fit is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch};
use arrow::datatypes::{Float32Type, Int32Type};
use forebay::Model;
use forebay_models::auc_exact;
use serde_json::Value;

use super::common;

/// Two labels of the synthetic rows; the second is 1 for about half of them.
const LABELS: &str = "columns.label=['label', { column = 'I2', positive = '>= 3', name = 'many', weight = 0.5 }]";

const KINDS: [&str; 3] = ["shared_bottom", "mmoe", "esmm"];

fn settings<'a>(kind: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    // Each kind refuses the sizes of the others.
    let sizes: &[&str] = match kind.rsplit_once('=').map_or(kind, |(_, kind)| kind) {
        "mmoe" => &["model.experts=3", "model.task_hidden=[8]"],
        "shared_bottom" => &["model.task_hidden=[8]"],
        _ => &[],
    };
    [&[kind, LABELS], sizes, more].concat()
}

#[test]
fn each_label_has_its_scores_and_its_quality() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let (data, test) = (common::parquet(dir.path(), 0, 6000), common::parquet(dir.path(), 6000, 5000));
        let kind_setting = format!("model.kind={kind}");
        let trained = common::train(common::job(&data, &settings(&kind_setting, &["data.epochs=2"])));
        let (folder, out) = (dir.path().join("model"), dir.path().join("scores"));
        trained.model.save(&folder).unwrap();
        let (evaluation, _) = trained.model.evaluate(test.to_str().unwrap()).unwrap();
        let [model, rows, to] = [&folder, &test, &out].map(|path| path.to_str().unwrap());

        let keep = "label,I2";
        common::exits(0, common::run(&["predict", "--model", model, "--data", rows, "--out", to, "--keep", keep]), &[]);
        let scored = common::read_rows(&out);
        let column = |name: &str| scored[name].as_primitive::<Float32Type>().values().to_vec();
        let ints = |name: &str| scored[name].as_primitive::<Int32Type>().values().to_vec();
        let clicks: Vec<f32> = ints("label").into_iter().map(|label| label as f32).collect();
        let mut many: Vec<f32> = ints("I2").into_iter().map(|value| f32::from(u8::from(value >= 3))).collect();
        if kind == "esmm" {
            // The second label counts where the first does, and its score is at most the first label's.
            many.iter_mut().zip(&clicks).for_each(|(many, click)| *many *= click);
            let given = column("score_many_given_label");
            for ((click, both), given) in column("score_label").iter().zip(column("score_many")).zip(given) {
                assert!((click * given - both).abs() < 1e-6 && both <= *click, "{click} {both} {given}");
            }
        }
        assert_eq!(scored.num_columns(), if kind == "esmm" { 5 } else { 4 });
        let names: Vec<_> = evaluation.labels.iter().map(|label| label.label.clone().unwrap()).collect();
        assert_eq!(names, ["label", "many"]);
        for (quality, labels) in evaluation.labels.iter().zip([&clicks, &many]) {
            let scores = column(&format!("score_{}", quality.label.as_ref().unwrap()));
            assert_eq!(quality.auc, auc_exact(&scores, labels), "{kind}");
            assert_eq!(quality.positives, labels.iter().sum::<f32>() as u64);
            assert!(quality.auc.is_some(), "{kind}: {quality}");
        }
        assert_eq!((evaluation.label.as_deref(), evaluation.auc), (Some("label"), evaluation.labels[0].auc));

        let set = ["--set", "evaluation.label=many"];
        let (code, said) =
            common::run(&[&["eval", "--model", model, "--data", rows, "--json", "--slice", "C20"], &set[..]].concat());
        assert_eq!(code, Some(0), "{said}");
        let json: Value = serde_json::from_str(said.trim()).unwrap();
        assert_eq!((&json["label"], &json["auc"]), (&"many".into(), &json["labels"][1]["auc"]));
        assert_eq!(json["labels"][0]["auc"].as_f64(), evaluation.auc);
        assert!(json["labels"][1]["slices"].as_array().is_some_and(|slices| slices.len() > 1), "{said}");
        let (_, said) = common::run(&["eval", "--model", model, "--data", rows]);
        assert!(said.contains("label: 5,000 rows"), "{said}");
        assert!(said.contains("many: 5,000 rows"), "{said}");

        let ran = common::run(&["predict", "--model", model, "--data", rows, "--out", "-", "--keep", "score_many"]);
        common::exits(2, ran, &["`score_many` is the name of the result"]);
        let again = Model::load(&folder, 2).unwrap();
        assert_eq!(again.evaluate(rows).unwrap().0, evaluation);
        assert_eq!(again.version().unwrap(), trained.model.version().unwrap());
    }
}

#[test]
fn the_model_does_not_depend_on_threads_replicas_or_the_size_of_reads() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 5000);
    for kind in ["model.kind=mmoe", "model.kind=esmm"] {
        let model = |more: &[&str]| {
            common::bits(&common::train(common::job(&data, &settings(kind, &[&["model.dropout=0.2"], more].concat()))))
        };
        let whole = model(&[]);
        for more in [
            &["train.threads=3", "table.shards=3"][..],
            &["pipeline.parse_replicas=3", "pipeline.batch_replicas=2", "data.read_rows=300"],
        ] {
            assert!(model(more) == whole, "{kind} {more:?}");
        }
        assert!(model(&["data.shuffle_rows=0"]) != whole, "the comparison can fail");
    }
}

#[test]
fn a_weight_of_a_label_and_its_order_matter() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 2000);
    let model = |label: &str| {
        let label = format!("columns.label={label}");
        common::bits(&common::train(common::job(&data, &["model.kind=shared_bottom", &label])))
    };
    let second = "column = 'I2', positive = '>= 3'";
    let whole = model(&format!("['label', {{ {second} }}]"));
    assert!(model(&format!("['label', {{ {second}, name = 'x' }}]")) == whole, "a name is for outputs");
    assert!(model(&format!("['label', {{ {second}, weight = 0.5 }}]")) != whole);
    assert!(model(&format!("[{{ {second} }}, 'label']")) != whole);
}

#[test]
fn the_best_model_and_the_report_go_by_the_label_of_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (data, test) = (common::parquet(dir.path(), 0, 3000), common::parquet(dir.path(), 3000, 2000));
    let (folder, report) = (dir.path().join("model"), dir.path().join("report"));
    let paths = [&data, &test, &folder].map(|path| path.display().to_string());
    let job = dir.path().join("job.toml");
    let text = format!(
        "[data]\ntrain = {:?}\neval = {:?}\nepochs = 2\n[columns]\nlabel = ['label', {{ column = 'I2', positive = '>= 3', name = \
         'many' }}]\n[model]\nkind = 'mmoe'\nhidden = [16]\nembedding_dim = 4\n[evaluation]\nlabel = 'many'\nevery = {{ epochs = 1 \
         }}\n[output]\nmodel = {:?}\n",
        paths[0], paths[1], paths[2]
    );
    fs::write(&job, text).unwrap();
    let (code, said) = common::run(&["train", job.to_str().unwrap(), "--report", report.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    let json: Value = common::read_json(report.join("report.json"));
    let found = &json["evaluation"]["evaluation"];
    assert_eq!((&found["label"], &found["labels"][0]["label"]), (&"many".into(), &"label".into()), "{found}");
    assert_eq!(json["evaluations"]["points"][1]["auc"], found["auc"]);
    for label in ["label: 2,000 rows", "many: 2,000 rows"] {
        assert!(said.contains(&format!("{label}, ")), "{said}");
    }
    assert!(said.contains("; label: AUC 0."), "each evaluation says the AUC of the other label: {said}");
}

/// Synthetic rows with a column `buy`, which is null for two thirds of them; with `none`, for all.
fn with_missing(dir: &Path, first: u64, rows: u64, none: bool) -> PathBuf {
    let batch = common::read_rows(&common::parquet(dir, first, rows));
    let of = |(row, value): (usize, &i32)| (!none && row % 3 == 0).then_some(i32::from(*value >= 3));
    let buy: Int32Array = batch["I2"].as_primitive::<Int32Type>().values().iter().enumerate().map(of).collect();
    let schema = batch.schema();
    let columns =
        schema.fields().iter().zip(batch.columns()).map(|(field, column)| (field.name().clone(), column.clone()));
    let columns =
        columns.chain([("buy".to_owned(), Arc::new(buy) as ArrayRef)]).map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let path = dir.join(format!("missing-{first}-{none}.parquet"));
    common::write_parquet(&path, &batch);
    path
}

#[test]
fn a_row_without_one_label_trains_the_others_and_counts_in_their_metrics_alone() {
    const MASKED: &str = "columns.label=['label', { column = 'buy', mask_missing = true }]";
    let dir = tempfile::tempdir().unwrap();
    let (data, test) = (with_missing(dir.path(), 0, 6000, false), with_missing(dir.path(), 6000, 3000, false));
    let none = with_missing(dir.path(), 9000, 100, true);
    let refused = common::job(&data, &["model.kind=mmoe", "columns.label=['label', 'buy']"]);
    let said = forebay::Training::builder(refused).run().expect_err("refused").to_string();
    assert!(said.contains("column `buy` has no value, expected 0 or 1"), "{said}");
    for kind in KINDS {
        let kind = format!("model.kind={kind}");
        let settings = |more: &[&'static str]| {
            let sizes: &[&str] = if kind == "model.kind=esmm" { &[] } else { &["model.task_hidden=[8]"] };
            [&[kind.as_str(), MASKED, "evaluation.group=C20", "evaluation.slices=['C9']"], sizes, more].concat()
        };
        let train = |more: &[&'static str]| common::train(common::job(&data, &settings(more)));
        let trained = train(&[]);
        assert!(
            common::bits(&trained)
                == common::bits(&train(&["train.threads=3", "pipeline.parse_replicas=3", "data.read_rows=300"]))
        );
        let (evaluation, _) = trained.model.evaluate(test.to_str().unwrap()).unwrap();
        let (folder, out) = (dir.path().join("model"), dir.path().join("scores"));
        trained.model.save(&folder).unwrap();
        let [model, rows, to] = [&folder, &test, &out].map(|path| path.to_str().unwrap());
        let (code, said) = common::run(&[
            "predict",
            "--model",
            model,
            "--data",
            rows,
            "--out",
            to,
            "--replace",
            "--keep",
            "label,buy",
        ]);
        assert_eq!(code, Some(0), "{said}");
        let scored = common::read_rows(&out);
        assert_eq!(scored.num_rows(), 3000, "every row has the scores of both labels");
        let clicks = scored["label"].as_primitive::<Int32Type>();
        let after_click = kind == "model.kind=esmm";
        let known = |row: usize| scored["buy"].is_valid(row) || after_click && clicks.value(row) == 0;
        let (mut scores, mut labels) = (Vec::new(), Vec::new());
        for row in (0..3000).filter(|&row| known(row)) {
            scores.push(scored["score_buy"].as_primitive::<Float32Type>().value(row));
            let buy = scored["buy"].is_valid(row) && scored["buy"].as_primitive::<Int32Type>().value(row) == 1;
            labels.push(f32::from(u8::from(buy && (!after_click || clicks.value(row) == 1))));
        }
        let [click, buy] = &evaluation.labels[..] else { panic!("two labels") };
        assert_eq!(
            (click.rows, buy.rows, buy.positives),
            (3000, labels.len() as u64, labels.iter().sum::<f32>() as u64)
        );
        assert_eq!(buy.auc, auc_exact(&scores, &labels), "{kind}");
        assert!(buy.rows < 3000 && buy.auc.is_some_and(|auc| auc > 0.0));
        let groups = [click, buy].map(|label| label.gauc.as_ref().unwrap().mixed_rows);
        assert!(groups[1] > 0 && groups[1] < groups[0], "{groups:?}");
        let of_slices = |slices: &[forebay::pipelines::Slice]| slices.iter().map(|slice| slice.rows).sum::<u64>();
        assert!(of_slices(&buy.slices) > 0 && of_slices(&buy.slices) < of_slices(&click.slices));
        // A bug: rows without one of the labels could not be evaluated at all.
        let none = none.to_str().unwrap();
        let (evaluation, _) = trained.model.evaluate(none).unwrap();
        let [click, buy] = &evaluation.labels[..] else { panic!("two labels") };
        assert!(click.rows == 100 && click.logloss().is_some_and(f64::is_finite) && click.gauc.is_some());
        assert_eq!(buy.is_measured(), after_click, "rows without a click have no buy");
        if !after_click {
            assert!(
                buy.rows == 0 && buy.auc.is_none() && buy.logloss().is_some_and(f64::is_nan) && buy.slices.is_empty()
            );
            let eval = ["eval", "--model", model, "--data", none];
            common::exits(0, common::run(&eval), &["label: 100 rows", "buy: no row has the label\n"]);
            let said = common::run(&[&eval[..], &["--set", "evaluation.label=buy"]].concat());
            common::exits(2, said, &["no row has the label `buy`, so it cannot be evaluated"]);
        }
    }
}
