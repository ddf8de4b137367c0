//! The statistics of slots in the report: right to the value, in one process and in several.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::common;

const ROWS: usize = 3000;

/// Row `i`: `a` is missing in each fifth row, `b` is a list of up to three items, `c` shares the keys of `b`, `d` has many keys.
fn a(i: usize) -> Option<usize> {
    (!i.is_multiple_of(5)).then_some(i % 37)
}

fn b(i: usize) -> Vec<usize> {
    (0..i % 4).map(|k| (i + k) % 200).collect()
}

fn c(i: usize) -> usize {
    i % 300
}

fn rows(path: &Path) {
    let mut text = String::new();
    for i in 0..ROWS {
        let a = a(i).map_or("null".into(), |a| a.to_string());
        writeln!(text, r#"{{"label":{},"a":{a},"b":{:?},"c":{},"d":{}}}"#, i % 2, b(i), c(i), i * 7).unwrap();
    }
    fs::write(path, text).unwrap();
}

const COLUMNS: &str = "columns={ label = 'label', dense = [], slots = [{ column = 'a', kind = 'int' }, { column = 'b', kind = 'int', key_space = \
    'items' }, { column = 'c', kind = 'int', key_space = 'items' }, { column = 'd', kind = 'int' }], crosses = [{ columns = ['a', 'c'] }] }";

/// The slots of `report.json`, and what was printed.
fn report(dir: &Path, command: &str, settings: &[&str]) -> (Value, String) {
    let (data, folder) = (dir.join("rows.jsonl"), dir.join("report"));
    if !data.exists() {
        rows(&data);
    }
    let (train, model) =
        (format!("data.train={}", data.display()), format!("output.model={}", dir.join("model").display()));
    let mut args = vec![command, "--report", folder.to_str().unwrap()];
    let all = ["model.kind=fm", "model.embedding_dim=4", "train.batch_rows=64", COLUMNS, &train, &model];
    all.iter().chain(settings).for_each(|setting| args.extend(["--set", *setting]));
    let said = common::exits(0, common::run(&args), &[]);
    let text = fs::read_to_string(folder.join("report.json")).unwrap();
    (serde_json::from_str::<Value>(&text).unwrap()["slots"].clone(), said)
}

fn of<'a>(slots: &'a Value, name: &str) -> &'a Value {
    slots.as_array().unwrap().iter().find(|slot| slot["name"] == name).unwrap_or_else(|| panic!("{name}: {slots}"))
}

#[test]
fn values_empty_rows_and_keys_are_those_of_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (slots, said) = report(dir.path(), "train", &["data.epochs=2"]);
    let share = |count: usize| count as f64 / ROWS as f64;
    let of_b: usize = (0..ROWS).map(|i| b(i).len()).sum();
    for (name, values, empty) in [
        ("a", ROWS, share((0..ROWS).filter(|&i| a(i).is_none()).count())),
        ("b", of_b, share((0..ROWS).filter(|&i| b(i).is_empty()).count())),
        ("c", ROWS, 0.0),
        ("d", ROWS, 0.0),
        ("a x c", ROWS, 0.0),
    ] {
        let slot = of(&slots, name);
        assert_eq!(slot["values"], 2 * values, "two epochs: {slot}");
        assert!((slot["mean_values"].as_f64().unwrap() - share(values)).abs() < 1e-12, "{slot}");
        assert!((slot["empty_share"].as_f64().unwrap() - empty).abs() < 1e-12, "{slot}");
        assert_eq!((&slot["rows"], &slot["table"]), (&slot["keys"], &"embedding".into()), "{slot}");
    }
    let items: BTreeSet<usize> = (0..ROWS).flat_map(|i| b(i).into_iter().chain([c(i)])).collect();
    for (name, keys) in [("a", 38), ("b", items.len()), ("c", items.len())] {
        let slot = of(&slots, name);
        assert_eq!((&slot["keys"], &slot["estimated"]), (&keys.into(), &false.into()), "{slot}");
    }
    let d = of(&slots, "d");
    let keys = d["keys"].as_f64().unwrap();
    assert!(d["estimated"] == true && (keys / ROWS as f64 - 1.0).abs() < 0.2, "{d}");
    assert!(said.contains("slots with the most keys: `d` about"), "{said}");
    assert!(said.contains("most often empty: `b`, in 25% of the rows"), "{said}");
}

/// A third of 1,000 keys come twice. With `count = 2`, the table gives a row to these keys alone.
#[test]
fn keys_that_were_not_admitted_have_no_row() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("rows.jsonl");
    let rows =
        (0..400).chain(0..200).map(|i| format!("{{\"label\":{},\"a\":{i},\"c\":{},\"b\":[],\"d\":1}}\n", i % 2, i % 3));
    fs::write(&data, rows.collect::<String>()).unwrap();
    let settings = [
        "table.admission={ count = 2 }",
        "table.shards=3",
        "data.shuffle_rows=0",
        "train.staleness=0",
        "train.batch_rows=50",
    ];
    let (slots, said) = report(dir.path(), "train", &settings);
    let a = of(&slots, "a");
    assert_eq!((&a["keys"], &a["rows"], &a["estimated"]), (&400.into(), &200.into(), &false.into()), "{a}");
    assert!(said.contains("`a` 400 (200 have a row)"), "{said}");
}

#[test]
fn two_trainers_and_two_ps_count_what_one_process_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (alone, _) = report(dir.path(), "train", &["table.shards=2"]);
    fs::remove_dir_all(dir.path().join("model")).unwrap();
    fs::remove_dir_all(dir.path().join("report")).unwrap();
    let cluster = [
        "placement.readers=1",
        "placement.ps=2",
        "placement.trainers=2",
        "train.sync=true",
        "placement.lease_rows=512",
    ];
    let (together, said) = report(dir.path(), "launch", &cluster);
    assert_eq!(together, alone, "{said}");
    let text = fs::read_to_string(dir.path().join("report/report.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = &report["ledger"]["delivered"];
    assert_eq!(&report["all_trainers"]["rows"], rows, "the rows of both trainers count");
    assert!(report["progress"]["rows"].as_u64() < rows.as_u64(), "{}", report["progress"]);
}
