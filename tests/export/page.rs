//! docs/model-folder.md: its Python reader gets the scores of `forebay predict`.

use crate::common;
use crate::rows::{
    CROSSES, FINAL_MLPS, KINDS, KINDS_OF_LABELS, LINEAR_ONLY, LISTS, OPTIONS, TABLES, TOWER_SETTINGS, TOWERS_OF_TABLES,
    TWO_TOWERS, WEIGHTS, block, model, predict, python_says, rows,
};

/// Trains a model: the reader of the page gets the scores of `predict` for all rows.
fn check_reader(kind: &str, settings: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let script = dir.join("reader.py");
    std::fs::write(&script, block("model-folder.md", "python", "def score")).unwrap();
    let (model, data, out) = (model(dir, kind, settings), rows(dir, 4000, 1500), dir.join("scores"));
    let scores = predict(&model, &data, &out);
    assert!(scores.iter().any(|score| (score - scores[0]).abs() > 0.01), "{kind}: the scores hardly differ");
    let said = python_says(&script, &[&model, &data, &out]);
    let numbers: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(numbers[0], "1500");
    let difference: f64 = numbers[numbers.len() - 1].parse().unwrap();
    assert!(difference < 1e-6, "{kind} {settings:?}: {difference}");
}

#[test]
fn the_reader_of_the_page_gets_the_scores_of_predict() {
    for kind in KINDS {
        check_reader(kind, &[]);
    }
}

#[test]
fn the_short_reader_gets_the_scores_of_a_model_on_criteos_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (script, folder, data) =
        (dir.path().join("short.py"), dir.path().join("model"), common::parquet(dir.path(), 4000, 300));
    std::fs::write(&script, block("model-folder.md", "python", "tower.{last}")).unwrap();
    let job = common::job(&common::parquet(dir.path(), 0, 2000), &["model.kind=wide_deep"]);
    common::train(job).model.save(&folder).unwrap();
    let found = python_says(&script, &[&folder, &data]);
    let found: Vec<f64> = found.lines().map(|score| score.parse().unwrap()).collect();
    let expected = predict(&folder, &data, &dir.path().join("scores"));
    assert_eq!((found.len(), expected.len()), (300, 300));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - f64::from(expected)).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn it_reads_cross_layers_of_low_rank_and_a_tower_behind_them() {
    for settings in CROSSES {
        check_reader("dcn_v2", settings);
    }
}

#[test]
fn it_reads_heads_and_gates_of_final_mlp() {
    let of_tables = [&TABLES[..], &["model.first_context=['site', 'item']"]].concat();
    for settings in FINAL_MLPS.into_iter().chain([&of_tables[..]]) {
        check_reader("final_mlp", settings);
    }
}

#[test]
fn it_reads_models_of_several_labels() {
    for (kind, settings) in KINDS_OF_LABELS {
        check_reader(kind, settings);
    }
}

#[test]
fn it_reads_two_towers() {
    for settings in TWO_TOWERS {
        check_reader("two_towers", settings);
    }
}

#[test]
fn it_reads_means_half_precision_and_models_of_a_sample_of_the_negatives() {
    let settings = ["model.pooling=mean", "table.storage=f16", "data.negatives=0.5", "output.state=true"];
    check_reader("deep_fm", &settings);
}

#[test]
fn it_reads_every_option_of_dense_features_buckets_and_crosses() {
    check_reader("deep_fm", &OPTIONS);
}

#[test]
fn it_reads_attention_of_every_activation() {
    for setting in ["attention_activation=sigmoid", "attention_hidden=[7, 5]", "kind=custom", "activation=prelu"] {
        check_reader("din", &[&format!("model.{setting}")]);
    }
}

#[test]
fn it_reads_lists_that_are_cut_and_poolings_of_slots() {
    check_reader("deep_fm", &[LISTS]);
}

#[test]
fn it_reads_weights_of_values() {
    for kind in ["deep_fm", "lr"] {
        check_reader(kind, &[WEIGHTS]);
    }
    let dir = tempfile::tempdir().unwrap();
    let manifest = |settings: &[&str]| -> serde_json::Value {
        let folder = model(dir.path(), "lr", settings);
        common::read_json(folder.join("manifest.json"))
    };
    let (weighted, plain) = (manifest(&[WEIGHTS]), manifest(&[]));
    assert_eq!((&weighted["version"], &plain["version"]), (&3.into(), &1.into()), "older readers refuse weights");
    assert_eq!(weighted["training"]["types"]["history_weights"], "number");
}

#[test]
fn it_reads_tables_of_some_slots() {
    let towers = [&TABLES[..], &TOWERS_OF_TABLES].concat();
    let cases = [("wide_deep", &TABLES[..]), ("dcn_v2", &TABLES), ("lr", &TABLES), ("two_towers", &towers)];
    for (kind, settings) in cases.into_iter().chain(["deep_fm", "wide_deep"].map(|kind| (kind, &LINEAR_ONLY[..]))) {
        check_reader(kind, settings);
    }
}

#[test]
fn it_reads_every_setting_of_the_tower() {
    for setting in TOWER_SETTINGS {
        check_reader("wide_deep", &[&format!("model.{setting}")]);
    }
}
