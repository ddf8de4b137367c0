//! Two towers from the job to the vectors: nearest neighbours are the ranking by score, items are counted, and the model has the same bits
//! however a run is cut up.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int32Type};
use common::{bits, run};
use forebay::Job;

const SOFTMAX: [&str; 1] = ["model.loss=in_batch_softmax"];

/// Makes rows with an item and a history of up to 8 items.
fn rows(dir: &Path, first: u64, rows: u64) -> PathBuf {
    let folder = dir.join(format!("rows-{first}"));
    let (first, rows) = (first.to_string(), rows.to_string());
    let out = folder.to_str().unwrap();
    let (code, said) = run(&["data", "synth", "--rows", &rows, "--first-row", &first, "--history", "8", "--out", out]);
    assert_eq!(code, Some(0), "{said}");
    folder
}

/// A job with the history in the user tower.
fn text(data: &Path, model: &Path) -> String {
    format!(
        "seed = 9\n[data]\ntrain = {data:?}\nshuffle_rows = 3000\n[columns]\ndense = [\"I1..I3\"]\n\
         slots = [{{ column = \"C1..C2\", kind = \"hex\" }}, \"item\", {{ column = \"history\", key_space = \"item\", pooling = \"mean\" }}]\n\
         [model]\nkind = \"two_towers\"\nembedding_dim = 8\nhidden = [24, 12]\nvector_dim = 6\n\
         user = {{ slots = [\"history\", \"C1..C2\"], dense = [\"I1..I3\"] }}\nitem = {{ slots = [\"item\"], hidden = [16] }}\n\
         [train]\nbatch_rows = 256\nthreads = 1\n[output]\nmodel = {model:?}\n"
    )
}

fn job(text: &str, settings: &[&str]) -> Job {
    let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
    Job::from_toml(text, &settings).unwrap()
}

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    common::write_parquet(path, &batch);
}

/// The vectors that the program writes for a file, checked against the array beside them.
fn embed(model: &Path, data: &Path, tower: &str, keep: &str, out: &Path) -> Vec<Vec<f32>> {
    let [model, data, to] = [model, data, out].map(|path| path.to_str().unwrap());
    let ran = run(&["embed", "--model", model, "--data", data, "--tower", tower, "--keep", keep, "--npy", "--out", to]);
    common::exits(0, ran, &[]);
    let written = common::read_rows(out);
    assert_eq!(written.schema().field(0).name(), keep);
    let lists = written["vector"].as_fixed_size_list();
    let vectors: Vec<Vec<f32>> =
        (0..lists.len()).map(|row| lists.value(row).as_primitive::<Float32Type>().values().to_vec()).collect();
    let array = fs::read(out.join("_vectors.npy")).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([array[8], array[9]]));
    let numbers: Vec<f32> =
        array[header..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(numbers, vectors.concat(), "the array has the same numbers");
    vectors
}

#[test]
fn nearest_neighbours_of_the_exported_vectors_are_the_ranking_by_score() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(dir.path(), 0, 3000);
    let all = common::read_rows(&data);
    let items: Vec<i32> = all["item"].as_primitive::<Int32Type>().values().iter().copied().take(40).collect();
    let users = all.slice(0, 5);
    // Items without the columns of users, and users without an item; both without a label.
    write(&dir.path().join("items.parquet"), vec![("item", Arc::new(Int32Array::from(items.clone())))]);
    let of_users = ["C1", "C2", "I1", "I2", "I3", "history"].map(|name| (name, Arc::clone(&users[name])));
    write(&dir.path().join("users.parquet"), of_users.into());
    // Each user with each item.
    let pick: Int32Array = (0..200).map(|row| row / 40).collect();
    let mut pairs: Vec<(&str, ArrayRef)> = ["C1", "C2", "I1", "I2", "I3", "history"]
        .map(|name| (name, arrow::compute::take(&users[name], &pick, None).unwrap()))
        .into();
    let item: Int32Array = (0..200).map(|row| Some(items[row % 40])).collect();
    pairs.push(("item", Arc::new(item)));
    write(&dir.path().join("pairs.parquet"), pairs);
    for (at, settings) in [
        &[][..],
        &["model.similarity=dot"],
        &SOFTMAX,
        &["model.loss=in_batch_softmax", "model.similarity=dot", "model.norm=layer", "model.activation=prelu"],
    ]
    .into_iter()
    .enumerate()
    {
        let path = |name: &str| dir.path().join(format!("{name}-{at}"));
        let model = path("model");
        common::train(job(&text(&data, &model), settings)).model.save(&model).unwrap();
        let items = embed(&model, &dir.path().join("items.parquet"), "item", "item", &path("items"));
        let users = embed(&model, &dir.path().join("users.parquet"), "user", "C1", &path("users"));
        if !settings.contains(&"model.similarity=dot") {
            for vector in items.iter().chain(&users) {
                assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
        let out = path("scores");
        let pairs = dir.path().join("pairs.parquet");
        let [model, data, to] = [&model, &pairs, &out].map(|path| path.to_str().unwrap());
        common::exits(0, run(&["predict", "--model", model, "--data", data, "--out", to]), &[]);
        let scored = common::read_rows(&out);
        let scores = scored["score"].as_primitive::<Float32Type>().values();
        assert_eq!(scores.len(), 200);
        for (user, scores) in users.iter().zip(scores.chunks_exact(40)) {
            let products: Vec<f32> =
                items.iter().map(|item| user.iter().zip(item).map(|(a, b)| a * b).sum::<f32>()).collect();
            let mut order: Vec<usize> = (0..40).collect();
            order.sort_by(|&a, &b| products[b].total_cmp(&products[a]));
            assert!(products[order[0]] - products[order[39]] > 1e-3, "the items differ: {products:?}");
            // In the order of the products the scores do not rise, but for the last bits.
            for pair in order.windows(2) {
                let (before, after) = (scores[pair[0]], scores[pair[1]]);
                assert!(after <= before * (1.0 + 3e-6), "{settings:?}: {before} before {after}");
            }
        }
    }
}

/// The part `count` of every row, by key.
fn counts(bits: &common::Bits) -> BTreeMap<u64, f32> {
    bits.1.iter().map(|(key, row)| (*key, f32::from_bits(row[0]))).filter(|(_, count)| *count != 0.0).collect()
}

#[test]
fn the_table_counts_how_often_each_item_was_in_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(dir.path(), 0, 4000);
    let mut of_items: BTreeMap<i32, u32> = BTreeMap::new();
    for item in common::read_rows(&data)["item"].as_primitive::<Int32Type>().values() {
        *of_items.entry(*item).or_default() += 1;
    }
    let mut expected: Vec<f32> = of_items.into_values().map(|count| 2.0 * count as f32).collect();
    let text = text(&data, &dir.path().join("model"));
    // Neither a change of the learning rates nor clipping changes what is counted.
    let settings = [
        "model.loss=in_batch_softmax",
        "data.epochs=2",
        "train.clip_norm=0.001",
        "table.embedding_optimizer={kind=\"sgd\",lr={peak=0.1,warmup_steps=9}}",
    ];
    let found = counts(&bits(&common::train(job(&text, &settings))));
    let mut found: Vec<f32> = found.into_values().collect();
    found.sort_by(f32::total_cmp);
    expected.sort_by(f32::total_cmp);
    assert_eq!(found, expected);
}

#[test]
fn towers_have_the_same_bits_in_one_process_and_in_several() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (rows(dir.path(), 0, 4000), dir.path().join("model"));
    let text = text(&data, &model);
    let trained = |settings: &[&str]| bits(&common::train(job(&text, &[&SOFTMAX, settings].concat())));
    let reference = trained(&[]);
    assert!(reference.0.iter().any(|(name, _)| name == "item.1.weight"));
    let replicas = ["pipeline.parse_replicas=3", "pipeline.batch_replicas=2", "data.read_rows=700", "table.shards=3"];
    for settings in [&replicas[..], &["train.threads=2"]] {
        assert!(trained(settings) == reference, "{settings:?}");
    }
    assert!(trained(&["model.log_q=false"]).0 != reference.0, "the comparison can fail");

    let file = dir.path().join("job.toml");
    fs::write(&file, &text).unwrap();
    let version =
        |command, settings: &[&str]| common::version_after(command, &file, &[&SOFTMAX, settings].concat(), &model);
    let alone = version("train", &[]);
    assert_eq!(version("launch", &["placement.readers=1", "placement.ps=2"]), alone);
    version("launch", &["placement.readers=1", "placement.ps=1", "placement.trainers=2"]);
}

#[cfg(feature = "torch")]
#[test]
fn the_backends_train_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model, test) = (rows(dir.path(), 0, 2000), dir.path().join("model"), rows(dir.path(), 2000, 1000));
    let text = text(&data, &model);
    for loss in [&[][..], &SOFTMAX] {
        let auc = |settings: &[&str]| {
            let trained = common::train(job(&text, &[loss, settings].concat()));
            trained.model.evaluate(test.to_str().unwrap()).unwrap().0.auc.unwrap()
        };
        let (native, torch) = (auc(&[]), auc(&["train.backend=torch"]));
        assert!((native - torch).abs() < 0.002, "{native} {torch}");
        let other = auc(&["model.temperature=0.5"]);
        assert!((native - other).abs() > 1e-6, "{native} {other}");
    }
}

#[test]
fn several_inputs_are_embedded_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (data, model) = (rows(dir.path(), 0, 600), path("model"));
    common::train(job(&text(&data, &model), &[])).model.save(&model).unwrap();
    // Not in the order of their names.
    let inputs = [("b.parquet", 0..30), ("a.parquet", 30..50)].map(|(name, items)| {
        write(&path(name), vec![("item", Arc::new(Int32Array::from_iter_values(items)))]);
        path(name)
    });
    let [first, second] =
        inputs.each_ref().map(|data| embed(&model, data, "item", "item", &data.with_extension("out")));
    let together = path("both");
    let [model, b, a, to] = [&model, &inputs[0], &inputs[1], &together].map(|path| path.to_str().unwrap());
    let both = ["embed", "--model", model, "--data", b, "--data", a, "--tower", "item", "--keep", "item", "--npy"];
    common::exits(0, run(&[&both[..], &["--out", to]].concat()), &["50 rows"]);
    let written = common::read_rows(Path::new(to));
    assert_eq!(written["item"].as_primitive::<Int32Type>().values().to_vec(), (0..50).collect::<Vec<_>>());
    let expected = [first, second].concat().concat();
    assert_eq!(written["vector"].as_fixed_size_list().values().as_primitive::<Float32Type>().values(), &expected[..]);
    let array = fs::read(path("both/_vectors.npy")).unwrap();
    let last: Vec<u8> = expected.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert!(array.ends_with(&last), "the array has the same rows");
    let again = ["embed", "--model", model, "--data", b, "--data", b, "--tower", "item", "--out"];
    let out = path("again");
    common::exits(2, run(&[&again[..], &[out.to_str().unwrap()]].concat()), &["b.parquet", "twice"]);
    assert!(!out.exists());
}

#[test]
fn what_has_no_vectors_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(dir.path(), 0, 600);
    let (towers, other) = (dir.path().join("towers"), dir.path().join("other"));
    common::train(job(&text(&data, &towers), &[])).model.save(&towers).unwrap();
    let plain = ["model.kind=ctr_dnn", "columns.slots=['C1']", "columns.dense=[]"];
    common::train(common::job(&data, &plain)).model.save(&other).unwrap();
    let refused = |model: &Path, more: &[&str]| {
        let out = dir.path().join("out");
        let [model, data, out] = [model, data.as_path(), out.as_path()].map(|path| path.to_str().unwrap());
        let (code, said) = run(&[&["embed", "--model", model, "--data", data, "--out", out][..], more].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(!Path::new(out).exists());
        said
    };
    let said = refused(&other, &["--tower", "item"]);
    assert!(said.contains("the model is of the kind \"ctr_dnn\", which has no vectors"), "{said}");
    let said = refused(&towers, &["--tower", "items"]);
    assert!(said.contains("expected user or item"), "{said}");
    let said = refused(&towers, &["--tower", "item", "--keep", "item,item"]);
    assert!(said.contains("`item` is kept twice"), "{said}");
    write(&dir.path().join("users.parquet"), vec![("vector", Arc::new(Int32Array::from(vec![1])))]);
    let said = refused(&towers, &["--tower", "item", "--keep", "vector"]);
    assert!(said.contains("`vector` is the name of the result"), "{said}");
    // A row with two items is a bad row: its vector is null, and NaN in the array.
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![Some(1), Some(2)])]);
    let (two, out) = (dir.path().join("two.parquet"), dir.path().join("vectors"));
    write(&two, vec![("item", Arc::new(lists))]);
    let softmax = dir.path().join("softmax");
    common::train(job(&text(&data, &softmax), &SOFTMAX)).model.save(&softmax).unwrap();
    let [model, data, to] = [&softmax, &two, &out].map(|path| path.to_str().unwrap());
    let embed = ["embed", "--model", model, "--data", data, "--tower", "item", "--out", to];
    common::exits(2, run(&embed), &["`item` has 2 values, expected one"]);
    let (code, said) = run(&[&embed[..], &["--npy", "--set", "data.on_bad_row=skip"]].concat());
    assert!(code == Some(0) && said.contains("1 row without a vector"), "{said}");
    let written = common::read_rows(&out);
    assert_eq!((written["vector"].is_null(0), written["vector"].is_null(1)), (false, true));
}

/// In-batch softmax refuses `data.negatives` and says what to do: a folder `label=1`, which `data.where` selects.
#[test]
fn in_batch_softmax_trains_on_a_folder_of_rows_of_label_1() {
    let dir = tempfile::tempdir().unwrap();
    let rows = common::read_rows(&rows(dir.path(), 0, 2000));
    let labels = rows["label"].as_primitive::<arrow::datatypes::Int32Type>().clone();
    for label in [0, 1] {
        let mask = labels.iter().map(|found| Some(found == Some(label))).collect();
        let part = arrow::compute::filter_record_batch(&rows, &mask).unwrap();
        let folder = dir.path().join(format!("by-label/label={label}"));
        fs::create_dir_all(&folder).unwrap();
        let schema = part.schema();
        let others = schema.fields().iter().filter(|field| field.name() != "label");
        write(
            &folder.join("rows.parquet"),
            others.map(|field| (field.name().as_str(), Arc::clone(&part[field.name()]))).collect(),
        );
    }
    let text = text(&dir.path().join("by-label"), &dir.path().join("model"));
    let refused = job(&text, &[SOFTMAX[0], "data.negatives=0.5"]).check().unwrap_err().to_string();
    let advice = "data.where = \"label = 1\"";
    assert!(refused.contains(advice) && refused.contains("label=1"), "{refused}");
    let trained = common::train(job(&text, &[SOFTMAX[0], &advice.replacen(" = ", "=", 1)]));
    let positives = labels.values().iter().filter(|&&label| label == 1).count() as u64;
    assert_eq!(trained.training.rows, positives);
}

/// What `eval --json` prints of a model on rows.
fn evaluated(model: &Path, data: &Path, more: &[&str]) -> serde_json::Value {
    let eval = ["eval", "--model", model.to_str().unwrap(), "--data", data.to_str().unwrap(), "--json"];
    let said = common::exits(0, run(&[&eval[..], more].concat()), &[]);
    serde_json::from_str(said.lines().find(|line| line.starts_with('{')).unwrap()).unwrap()
}

fn inner_product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// The recall at `k` and the MRR by the vectors that `embed` writes: all other items sorted by score, tied ones in the middle.
fn slow_recall(model: &Path, data: &Path, dir: &Path, k: usize) -> (f64, f64) {
    let rows = common::read_rows(data);
    let [items, labels] = ["item", "label"].map(|name| rows[name].as_primitive::<Int32Type>().values().to_vec());
    let of_items = embed(model, data, "item", "item", &dir.join("slow-items"));
    let of_users = embed(model, data, "user", "item", &dir.join("slow-users"));
    let catalogue: BTreeMap<i32, &Vec<f32>> = items.iter().copied().zip(&of_items).rev().collect();
    let (mut found, mut reciprocal, mut positives) = (0.0, 0.0, 0.0);
    for ((item, user), _) in items.iter().zip(&of_users).zip(&labels).filter(|(_, label)| **label == 1) {
        let own = inner_product(user, catalogue[item]);
        let others = || catalogue.iter().filter(|(other, _)| *other != item).map(|(_, of)| inner_product(user, of));
        let (better, tied) =
            (others().filter(|&score| score > own).count(), others().filter(|&score| score == own).count());
        let places = || better + 1..=better + tied + 1;
        found += places().filter(|place| *place <= k).count() as f64 / places().count() as f64;
        reciprocal += places().map(|place| 1.0 / place as f64).sum::<f64>() / places().count() as f64;
        positives += 1.0;
    }
    (found / positives, reciprocal / positives)
}

#[test]
fn recall_is_that_of_all_sorted_scores_and_a_trained_model_beats_a_random_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (data, test) = (rows(dir.path(), 0, 200_000), rows(dir.path(), 200_000, 2000));
    let (model, random) = (path("model"), path("random"));
    let text = text(&data, &model);
    let of_histories = [
        "columns.dense=[]",
        "columns.slots=['item', { column = 'history', key_space = 'item', pooling = 'mean' }]",
        "model.user={ slots = ['history'] }",
        "model.item={ slots = ['item'] }",
        "model.hidden=[]",
        "model.vector_dim=16",
    ];
    for loss in [&SOFTMAX[..], &[]] {
        common::train(job(&text, &[loss, &of_histories].concat())).model.save(&model).unwrap();
        let found = evaluated(&model, &test, &["--set", "evaluation.recall_at=[20, 200]"]);
        let retrieval = &found["retrieval"];
        let vectors = tempfile::tempdir().unwrap();
        let (recall, mrr) = slow_recall(&model, &test, vectors.path(), 20);
        assert!((retrieval["recall"][0]["recall"].as_f64().unwrap() - recall).abs() < 1e-9, "{found} {recall}");
        assert!((retrieval["mrr"].as_f64().unwrap() - mrr).abs() < 1e-9, "{found} {mrr}");
        assert_eq!((&retrieval["recall"][1]["k"], &retrieval["rows"]), (&200.into(), &found["positives"]));
        assert_eq!((&retrieval["items"], &retrieval["rows"]), (&retrieval["all_items"], &retrieval["all_rows"]));
        let is_probability = loss.is_empty();
        for metric in ["logloss", "normalized_entropy", "copc", "reliability"] {
            assert_eq!(found.get(metric).is_some(), is_probability, "{metric}: {found}");
        }
        if !is_probability {
            let still = [
                "train.optimizer={ kind = 'sgd', lr = 1e-12 }",
                "table.embedding_optimizer={ kind = 'sgd', lr = 1e-12 }",
            ];
            common::train(job(&text, &[loss, &of_histories, &still].concat())).model.save(&random).unwrap();
            let chance = evaluated(&random, &test, &["--set", "evaluation.recall_at=[20, 200]"]);
            let at = |of: &serde_json::Value| of["retrieval"]["recall"][1]["recall"].as_f64().unwrap();
            assert!(at(&found) > 1.5 * at(&chance), "{found} {chance}");
        }
    }
}

#[test]
fn the_text_says_what_was_ranked_and_no_metric_that_needs_probabilities() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (rows(dir.path(), 0, 1500), dir.path().join("model"));
    common::train(job(&text(&data, &model), &SOFTMAX)).model.save(&model).unwrap();
    let eval = ["eval", "--model", model.to_str().unwrap(), "--data", data.to_str().unwrap()];
    let said = common::exits(0, run(&[&eval[..], &["--slice", "C1"]].concat()), &["recall@10 ", "recall@100 ", "MRR "]);
    assert!(said.contains("ranked ") && !said.contains("a sample"), "{said}");
    for metric in ["logloss", "entropy", "COPC", "predicted", "observed"] {
        assert!(!said.contains(metric), "{metric}: {said}");
    }
    let few = ["--set", "evaluation.recall_items=50", "--set", "evaluation.recall_rows=20"];
    let said = common::exits(0, run(&[&eval[..], &few].concat()), &["ranked 20 rows with label 1 among 50 items"]);
    assert!(
        said.contains("(evaluation.recall_rows)") && said.contains("(evaluation.recall_items), so recall"),
        "{said}"
    );
    let again = evaluated(&model, &data, &few);
    assert_eq!(again, evaluated(&model, &data, &few), "the sample is the same");
    let refused = ["--set", "evaluation.metric=logloss"];
    common::exits(2, run(&[&eval[..], &refused].concat()), &["expected \"recall\", \"mrr\", \"auc\" or \"gauc\""]);
}

/// The best model by recall, and early stopping, with readers and ps apart as in one process.
#[test]
fn recall_compares_evaluations_alike_in_one_process_and_in_several() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model, report) = (rows(dir.path(), 0, 4000), dir.path().join("model"), dir.path().join("report.json"));
    let test = rows(dir.path(), 4000, 500);
    let file = dir.path().join("job.toml");
    fs::write(&file, text(&data, &model)).unwrap();
    let eval = format!("data.eval={}", test.display());
    let settings = [
        SOFTMAX[0],
        &eval,
        "data.epochs=6",
        "evaluation.every={ epochs = 1 }",
        "evaluation.metric=recall",
        "evaluation.recall_at=[50]",
        "evaluation.patience=2",
        "train.staleness=0",
    ];
    let evaluations = |command, more: &[&str]| {
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        let run_job = [command, file.to_str().unwrap(), "--report", report.to_str().unwrap()];
        common::exits(0, run(&[&run_job[..], &settings].concat()), &["the best recall of "]);
        let version = forebay::Model::load(&model, 1).unwrap().version().unwrap().to_string();
        let report: serde_json::Value = common::read_json(&report);
        (version, report["evaluations"].clone(), report["evaluation"]["evaluation"]["retrieval"].clone())
    };
    let alone = evaluations("train", &[]);
    let points = alone.1["points"].as_array().unwrap();
    let recalls: Vec<f64> = points.iter().map(|point| point["recall"]["recall"].as_f64().unwrap()).collect();
    let most = recalls.iter().copied().fold(0.0, f64::max);
    let best = recalls.iter().position(|&recall| recall == most).unwrap();
    assert_eq!((&alone.1["metric"], alone.1["best"].as_u64()), (&"recall".into(), Some(best as u64)), "{}", alone.1);
    assert!(points.iter().all(|point| point.get("logloss").is_none()), "{}", alone.1);
    assert_eq!(alone.2["recall"][0]["recall"].as_f64(), Some(most), "the saved model is the best one");
    let apart = evaluations("launch", &["placement.readers=1", "placement.ps=2"]);
    assert_eq!(apart, alone);
}
