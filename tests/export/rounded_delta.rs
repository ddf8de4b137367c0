//! Deltas with values in f16 and int8: what `--apply` and a server make of them says which exact model it approximates, and the next delta
//! leads on from there.

use std::fs;
use std::path::{Path, PathBuf};

use forebay::Model;
use forebay::pipelines::ModelVersions;
use serde_json::{Value, json};

use crate::common;
use crate::delta::{delta, delta_with, export, trained};
use crate::rows::{LINEAR_ONLY, TABLES, model, predict, rows};
use crate::server::{Server, json_rows};

/// A model, and others that continue from it, each with 40 rows more.
fn days(dir: &Path, names: &[&str], settings: &[&str]) -> Vec<PathBuf> {
    let mut days = vec![model(dir, "wide_deep", settings)];
    for (at, name) in names.iter().enumerate() {
        let from = format!("train.from={}", days[at].display());
        let settings = [settings, &[&from, "data.epochs=1"]].concat();
        days.push(trained(dir, name, 10_000 * (at as u64 + 1), 40, &settings));
    }
    days
}

fn versions(folder: &Path) -> ModelVersions {
    Model::load(folder, 1).unwrap().versions().unwrap()
}

fn apply(model: &Path, deltas: &[PathBuf], to: &Path) -> String {
    let arguments: Vec<&str> = deltas.iter().flat_map(|delta| ["--apply", delta.to_str().unwrap()]).collect();
    common::exits(0, export(model, &arguments, to), &[])
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.02)
}

#[test]
fn rounded_and_exact_deltas_follow_each_other_in_a_server_and_in_folders_and_so_do_whole_folders() {
    rounded_and_exact_deltas_follow_each_other(&[], ["int8", "f32", "f16"]);
}

/// One of the tables is kept in f16, so int8 would round its rows again.
#[test]
fn so_do_those_of_tables_of_several_widths() {
    rounded_and_exact_deltas_follow_each_other(&TABLES, ["f16", "f32", "f16"]);
    let linear_only = [&["model.kind=wide_deep"], &LINEAR_ONLY[..]].concat();
    rounded_and_exact_deltas_follow_each_other(&linear_only, ["int8", "f32", "f16"]);
}

fn rounded_and_exact_deltas_follow_each_other(settings: &[&str], values: [&str; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let days = days(dir.path(), &["tuesday", "wednesday", "thursday", "friday"], settings);
    let (served, deltas) = (dir.path().join("served"), dir.path().join("deltas"));
    fs::create_dir(&deltas).unwrap();
    Model::load(&days[0], 1).unwrap().save(&served).unwrap();
    let server = Server::start(&served, &["--deltas", deltas.to_str().unwrap()]);
    assert_eq!(server.model()["approximates"], Value::Null);
    let (data, mut written) = (rows(dir.path(), 4000, 150), Vec::new());
    let asked = json_rows(&server, &data);
    for (at, values) in (1..).zip(values) {
        let path = deltas.join(format!("{at}"));
        let said = delta_with(&days[at - 1], &days[at], &["--values", values], &path);
        assert_eq!(said.contains(&format!("changed, values in {values}, ")), values != "f32", "{said}");
        written.push(path);
        // Applied at once to the first model, and to the folder of the day before.
        let (merged, again) = (dir.path().join(format!("merged-{at}")), dir.path().join(format!("again-{at}")));
        let said = apply(&days[0], &written, &merged);
        let before = if at == 1 { days[0].clone() } else { dir.path().join(format!("merged-{}", at - 1)) };
        apply(&before, &written[at - 1..], &again);
        let exact = versions(&days[at]).version;
        let found = versions(&merged);
        assert_eq!((found.approximates, versions(&again)), (Some(exact), found));
        assert!(
            found.version != exact && said.contains(&format!("version {}, approximates {exact}", found.version)),
            "{said}"
        );
        let manifest: Value = common::read_json(merged.join("manifest.json"));
        assert_eq!(manifest["approximates"], exact.to_string());

        common::until("the delta is applied", || server.model()["approximates"] == exact.to_string());
        let (version, scores) = server.scores(&asked);
        let expected = predict(&merged, &data, &dir.path().join("scores"));
        assert_eq!((version, scores), (found.version.to_string(), expected.iter().copied().map(Some).collect()));
        assert!(close(&expected, &predict(&days[at], &data, &dir.path().join("exact"))), "after {at}");
        assert_eq!((&server.model()["deltas"], &server.model()["version"]), (&json!(at), &json!(found.version)));
    }
    // A server that begins with a folder that approximates a model continues from there.
    let merged = dir.path().join("merged-1");
    let again = Server::start(&merged, &["--deltas", deltas.to_str().unwrap()]);
    assert_eq!(
        (&again.model()["approximates"], &again.model()["deltas"]),
        (&server.model()["approximates"], &json!(2))
    );
    assert_eq!(again.model()["version"], server.model()["version"]);

    // A whole folder after deltas, and an exact delta from it.
    Model::load(&days[3], 1).unwrap().save(&served).unwrap();
    common::until("the folder is taken", || server.model()["version"] == versions(&days[3]).version.to_string());
    assert_eq!((&server.model()["approximates"], &server.model()["deltas"]), (&Value::Null, &json!(0)));
    delta(&days[3], &days[4], &deltas.join("4"));
    common::until("the delta is applied", || server.model()["version"] == versions(&days[4]).version.to_string());
    assert_eq!(server.model()["approximates"], Value::Null);
}

#[test]
fn an_exact_delta_from_the_rounded_rows_makes_them_exact() {
    let dir = tempfile::tempdir().unwrap();
    let days = days(dir.path(), &["tuesday"], &[]);
    let (deltas, merged) = (dir.path().join("deltas"), dir.path().join("merged"));
    fs::create_dir(&deltas).unwrap();
    let rounded = deltas.join("rounded");
    delta_with(&days[0], &days[1], &["--values", "int8"], &rounded);
    apply(&days[0], std::slice::from_ref(&rounded), &merged);
    let server = Server::start(&days[0], &["--deltas", deltas.to_str().unwrap()]);
    let (found, exact) = (versions(&merged), versions(&days[1]));
    assert_eq!(server.model()["version"], found.version.to_string());
    // A delta that gives other rows of the model that is approximated leads nowhere, and one that leads back does not, either.
    delta_with(&merged, &days[1], &["--values", "f16"], &deltas.join("again"));
    delta(&days[1], &days[0], &deltas.join("back"));
    delta(&merged, &days[1], &deltas.join("exact"));
    common::until("the delta is applied", || server.model()["version"] == exact.version.to_string());
    assert_eq!((&server.model()["approximates"], &server.model()["deltas"]), (&Value::Null, &json!(2)));
    apply(&merged, &[deltas.join("exact")], &dir.path().join("exact"));
    assert_eq!(versions(&dir.path().join("exact")), exact);
}

#[test]
fn without_rounding_a_delta_is_what_it_was_and_rounding_is_for_deltas_alone() {
    let dir = tempfile::tempdir().unwrap();
    let old = trained(dir.path(), "old", 0, 250, &[]);
    let new = trained(dir.path(), "new", 2000, 250, &[&format!("train.from={}", old.display())]);
    let [plain, named, small] = ["plain", "named", "small"].map(|name| dir.path().join(name));
    delta(&old, &new, &plain);
    delta_with(&old, &new, &["--values", "f32"], &named);
    let text = fs::read_to_string(plain.join("manifest.json")).unwrap();
    assert!(text.contains("\"version\": 1,") && !text.contains("\"values\"") && !text.contains("\"gives\""), "{text}");
    for file in ["manifest.json", "changed.parquet", "removed.parquet", "dense.safetensors"] {
        assert!(fs::read(plain.join(file)).unwrap() == fs::read(named.join(file)).unwrap(), "{file}");
    }
    delta_with(&old, &new, &["--values", "int8"], &small);
    let text = fs::read_to_string(small.join("manifest.json")).unwrap();
    assert!(text.contains("\"version\": 2,") && text.contains("\"values\": \"int8\""), "{text}");
    for file in ["removed.parquet", "dense.safetensors"] {
        assert!(fs::read(plain.join(file)).unwrap() == fs::read(small.join(file)).unwrap(), "{file} is not rounded");
    }
    assert!(
        fs::read(small.join("changed.parquet")).unwrap().len() < fs::read(plain.join("changed.parquet")).unwrap().len()
    );
    // It is checked as an exact one is.
    let (code, said) = export(&new, &["--apply", small.to_str().unwrap()], &dir.path().join("wrong"));
    assert!(code == Some(2) && said.contains("the delta leads from version"), "{said}");
    let file = small.join("changed.parquet");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, said) = export(&old, &["--apply", small.to_str().unwrap()], &dir.path().join("wrong"));
    assert!(code == Some(2) && said.contains("changed.parquet is damaged"), "{said}");

    for (arguments, words) in
        [(&["--values", "int8"][..], "--delta-from"), (&["--values", "f8"], "[possible values: f32, f16, int8]")]
    {
        common::exits(2, export(&new, arguments, &dir.path().join("wrong")), &[words]);
    }
    assert!(!dir.path().join("wrong").exists());
}
