//! `forebay export`: onnxruntime over the exported rows gets the scores of `forebay predict`.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common;
use crate::rows::{
    CROSSES, FINAL_MLPS, KINDS, KINDS_OF_LABELS, LINEAR_ONLY, LISTS, OPTIONS, TABLES, TOWER_SETTINGS, TOWERS_OF_TABLES,
    TOWERS_OF_WEIGHTS, TWO_TOWERS, WEIGHTS, block, model, predict, python, python_says, rows,
};

fn export(model: &Path, to: &Path, more: &[&str]) -> (Option<i32>, String) {
    let arguments = ["export", "--model", model.to_str().unwrap(), "--to", to.to_str().unwrap()];
    common::run(&[&arguments[..], more].concat())
}

/// The scripts of the pages, side by side.
fn scripts(dir: &Path) -> PathBuf {
    fs::write(dir.join("reader.py"), block("model-folder.md", "python", "def score")).unwrap();
    fs::write(dir.join("exported.py"), block("export.md", "python", "class Exported")).unwrap();
    dir.join("exported.py")
}

/// Trains a model and exports it: onnxruntime gets the scores of `predict`. Returns the folder with its files.
fn check_scores(kind: &str, settings: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let (model, data, out, to) =
        (model(dir, kind, settings), rows(dir, 4000, 1500), dir.join("scores"), dir.join("export"));
    predict(&model, &data, &out);
    common::exits(0, export(&model, &to, &[]), &["dense.onnx", "version "]);
    let said = python_says(&scripts(dir), &[&to, &data, &out]);
    let numbers: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(numbers[0], "1500");
    let difference: f64 = numbers[numbers.len() - 1].parse().unwrap();
    assert!(difference < 1e-5, "{kind} {settings:?}: {difference}");
    folder
}

#[test]
fn onnxruntime_gets_the_scores_of_predict_for_every_kind() {
    for kind in KINDS {
        check_scores(kind, &[]);
    }
}

#[test]
fn it_does_so_for_means_left_out_negatives_and_without_or_with_all_options_of_dense_features() {
    let cases: [&[&str]; 13] = [
        &["model.pooling=mean", "table.storage=f16"],
        &["columns.dense=[]"],
        &["data.negatives=0.5", "model.linear=true", "model.fm=true", "model.cross_layers=2"],
        &OPTIONS,
        &[LISTS],
        &[WEIGHTS],
        &[WEIGHTS, "model.pooling=mean"],
        &TABLES,
        &TABLES,
        &TABLES,
        &LINEAR_ONLY,
        &LINEAR_ONLY,
        &LINEAR_ONLY,
    ];
    let kinds = ["wide_deep", "lr", "custom", "deep_fm", "fm", "deep_fm", "lr", "wide_deep", "dcn_v2", "lr"];
    for (kind, settings) in kinds.into_iter().chain(["wide_deep", "fm", "lr"]).zip(cases) {
        check_scores(kind, settings);
    }
}

#[test]
fn it_does_so_for_a_table_without_rows() {
    check_scores("wide_deep", &["table.admission={ count = 100000 }"]);
}

#[test]
fn it_does_so_for_cross_layers_of_low_rank_and_a_tower_behind_them() {
    for settings in CROSSES {
        check_scores("dcn_v2", settings);
    }
}

#[test]
fn it_does_so_for_heads_and_gates_of_final_mlp() {
    let of_tables = [&TABLES[..], &["model.first_context=['site', 'item']"]].concat();
    for settings in FINAL_MLPS.into_iter().chain([&of_tables[..]]) {
        check_scores("final_mlp", settings);
    }
}

#[test]
fn it_does_so_for_several_labels() {
    for (kind, settings) in KINDS_OF_LABELS {
        check_scores(kind, settings);
    }
}

/// The graph of one tower also gives what `forebay embed` writes.
#[test]
fn it_does_so_for_two_towers_and_the_vectors_of_each() {
    let of_tables = [&TABLES[..], &TOWERS_OF_TABLES].concat();
    let of_weights = [&[WEIGHTS][..], &TOWERS_OF_WEIGHTS].concat();
    for settings in TWO_TOWERS.into_iter().chain([&of_tables[..], &of_weights]) {
        let dir = check_scores("two_towers", settings);
        for tower in ["user", "item"] {
            let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
            let (model, rows, out) = (path("model-two_towers"), path("rows-4000.parquet"), path(tower));
            let ran = common::run(&["embed", "--model", &model, "--data", &rows, "--tower", tower, "--out", &out]);
            common::exits(0, ran, &[]);
            let script = dir.path().join("tower.py");
            fs::write(&script, COMPARE_TOWER).unwrap();
            let said = python_says(
                &script,
                &[&dir.path().join("export"), Path::new(&rows), Path::new(&out), Path::new(tower)],
            );
            let difference: f64 = said.trim().parse().unwrap();
            assert!(difference < 1e-5, "{tower} {settings:?}: {difference}");
        }
    }
}

const COMPARE_TOWER: &str = r#"
import sys, numpy as np, pyarrow.parquet as pq
from exported import Exported
export, rows, vectors, tower = sys.argv[1:]
expected = np.array(pq.read_table(vectors)["vector"].to_pylist(), np.float32)
found = Exported(export).vectors(pq.read_table(rows), tower)
assert found.shape == expected.shape and np.abs(expected).max() > 0.1
print(np.abs(found - expected).max())
"#;

#[test]
fn it_does_so_for_every_setting_of_the_tower() {
    for setting in TOWER_SETTINGS {
        check_scores("deep_fm", &[&format!("model.{setting}")]);
    }
}

#[test]
fn it_does_so_for_attention_of_every_activation() {
    for setting in ["attention_activation=sigmoid", "attention_hidden=[7, 5]", "cross_layers=2", "activation=gelu"] {
        let settings = [format!("model.{setting}"), "model.fm=true".to_owned(), "model.kind=custom".to_owned()];
        let settings = settings.each_ref().map(String::as_str);
        let settings = if setting == "cross_layers=2" { &settings[..] } else { &settings[..1] };
        check_scores("din", settings);
    }
}

#[test]
fn the_arrays_and_the_parquet_file_have_the_rows_of_the_model_by_ascending_key() {
    let dir = tempfile::tempdir().unwrap();
    let (model, to) = (model(dir.path(), "wide_deep", &[]), dir.path().join("export"));
    assert_eq!(export(&model, &to, &[]).0, Some(0));
    let script = dir.path().join("compare.py");
    let compare = r#"
import json, sys, pathlib, numpy as np, pyarrow as pa, pyarrow.parquet as pq
model, export = map(pathlib.Path, sys.argv[1:])
files = json.loads((model / "manifest.json").read_text())["tables"][0]["files"]
assert len(files) == 2
rows = pa.concat_tables(pq.read_table(model / f["path"]) for f in files).sort_by("key")
assert rows.equals(pq.read_table(export / "tables/embedding/rows.parquet"))
table = export / "tables/embedding"
keys, linear, embedding = (np.load(table / f"{name}.npy") for name in ("keys", "linear", "embedding"))
assert keys.dtype == np.uint64 and (np.diff(keys) > 0).all() and (keys == rows["key"].to_numpy()).all()
assert linear.shape == (len(keys), 1) and linear.dtype == np.float32 and (linear[:, 0] == rows["linear"].to_numpy()).all()
assert embedding.shape == (len(keys), 6) and (embedding == np.array(rows["embedding"].to_pylist(), np.float32)).all()
print(len(keys))
"#;
    fs::write(&script, compare).unwrap();
    let keys: usize = python_says(&script, &[&model, &to]).trim().parse().unwrap();
    assert!(keys > 100, "{keys}");
    // The same files from another number of shards.
    let again = dir.path().join("again");
    forebay::Model::load(&model, 3)
        .unwrap()
        .export(again.as_path(), forebay::pipelines::ExportParts::All, false)
        .unwrap();
    for file in ["manifest.json", "dense.onnx", "tables/embedding/embedding.npy", "tables/embedding/rows.parquet"] {
        assert!(fs::read(to.join(file)).unwrap() == fs::read(again.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn a_damaged_model_and_a_folder_in_use_are_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (model, to) = (model(dir.path(), "lr", &[]), dir.path().join("export"));
    fs::create_dir(&to).unwrap();
    fs::write(to.join("letters"), "dear").unwrap();
    common::exits(2, export(&model, &to, &[]), &["holds files already"]);
    for (to, words) in [(&to, "something other than a forebay export"), (&model, "which the command reads")] {
        common::exits(2, export(&model, to, &["--replace"]), &[words]);
    }
    fs::remove_file(to.join("letters")).unwrap();
    assert_eq!(export(&model, &to, &[]).0, Some(0));
    assert_eq!(export(&model, &to, &["--replace", "--tables-only"]).0, Some(0));
    assert!(!to.join("dense.onnx").exists() && to.join("manifest.json").exists());
    let missing = python(&scripts(dir.path()), &[&to, &to, &to]);
    assert!(!missing.status.success(), "there is no dense part to run");

    let dense = model.join("dense.safetensors");
    let mut bytes = fs::read(&dense).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&dense, bytes).unwrap();
    let other = dir.path().join("other");
    common::exits(2, export(&model, &other, &[]), &["dense.safetensors is damaged"]);
    assert!(!other.exists());
}
