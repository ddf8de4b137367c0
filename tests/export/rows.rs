//! Rows with every kind of slot and dense feature, missing values and lists; models of every kind trained on them; and the
//! Python of the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Date32Array, FixedSizeListArray, Float32Array, Float64Array, Int32Array,
    Int64Array, ListArray, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow::datatypes::{Float32Type, Int64Type};
use forebay::Job;
use forebay_base::mix64;

use crate::common;

/// Every kind of model that has a name.
pub(crate) const KINDS: [&str; 8] = ["lr", "fm", "wide_deep", "ctr_dnn", "deep_fm", "dcn_v2", "din", "final_mlp"];

/// Every kind of model that takes several labels, with settings.
pub(crate) const KINDS_OF_LABELS: [(&str, &[&str]); 4] = [
    ("shared_bottom", &[LABELS, "model.task_hidden=[]", "model.activation=silu"]),
    ("mmoe", &[LABELS, "model.experts=3", "model.task_hidden=[8]", "model.norm=layer"]),
    ("esmm", &[LABELS, "model.activation=prelu", "model.dropout=0.2"]),
    ("mmoe", &[LABELS, "model.pooling=max"]),
];

/// Settings of two towers over [`rows`].
pub(crate) const TWO_TOWERS: [&[&str]; 3] = [
    &[USER, ITEM],
    &[USER, ITEM, "model.similarity=dot", "model.activation=prelu", "model.norm=layer", "data.negatives=0.5"],
    &[USER, ITEM, "model.loss=in_batch_softmax", "model.item_id=item", "model.pooling=mean"],
];
const USER: &str = "model.user={ slots = ['user', 'history', 'city', 'day', 'moment'], dense = ['count', 'flag'] }";
const ITEM: &str = "model.item={ slots = ['item', 'site', 'count', 'flag'], dense = ['price', 'vector', 'price2', 'rank'], hidden = [7] }";

/// Two labels of [`rows`].
const LABELS: &str = "columns.label=['label', { column = 'rank', positive = '>= 1', name = 'top', weight = 0.5 }]";

/// The columns of [`rows`].
const COLUMNS: &str = r#"
[columns]
label = "label"
dense = ["count", { column = "vector", length = 3 }, "price", "flag", { column = "price2", transform = "log1p" },
         { column = "rank", transform = "none" }]
slots = ["user", "city", { column = "site", kind = "hex" }, { column = "item", key_space = "items" },
         { column = "history", key_space = "items" }, { column = "count", kind = "log_bucket" }, "day", "moment", "flag"]
"#;

/// Settings that give dense features and slots of [`rows`] every option: missing values, limits, scales, parts of timestamps and of
/// integers, offsets from UTC, buckets and crosses.
pub(crate) const OPTIONS: [&str; 5] = [
    "columns.dense=[{ column = 'count', transform = 'log', clip = { min = 0.5, max = 4000 }, indicator = true }, \
     { column = 'price', fill = 1.5, scale = 'z_score' }, { column = 'price2', scale = 'min_max', clip = { min = -90 } }, \
     { column = 'vector', length = 3, indicator = true, clip = { max = 2.5 } }, { column = 'moment', transform = 'hour', indicator = true }, { column = 'day', transform = 'weekday' }, \
     { column = 'day', transform = 'age_days', at = 'moment', clip = { min = -20, max = 20 } }, \
     { column = 'moment', transform = 'age_hours', at = '1970-01-02', indicator = true, clip = { max = 30 } }, \
     { column = 'moment', transform = 'weekday', utc_offset = '+14:00' }, { column = 'day', transform = 'weekday', utc_offset = '-08:00' }, \
     { column = 'second', transform = 'hour', unit = 's', utc_offset = '+05:30', indicator = true }, \
     { column = 'second', transform = 'age_days', at = 'milli', unit = 's', at_unit = 'ms', clip = { min = -9, max = 9 } }, 'flag', 'rank']",
    "columns.statistics={ price = { mean = 1.6, std = 0.9, min = 0, max = 4 }, \
     price2 = { mean = -60, std = 30, min = -90, max = 0, clip = { min = -90 } } }",
    "columns.slots=[{ column = 'user', buckets = 20 }, 'city', { column = 'site', kind = 'hex' }, 'item', 'history', \
     { column = 'moment', kind = 'hour' }, { column = 'moment', kind = 'weekday', key_space = 'day of the week' }, \
     { column = 'second', kind = 'weekday', unit = 's', utc_offset = '-03:30' }, { column = 'milli', kind = 'hour', unit = 'ms' }, \
     { column = 'price', kind = 'log_bucket' }, \
     { column = 'price', kind = 'boundaries', boundaries = [0.5, 2, 10], key_space = 'price level' }, \
     { column = 'price', kind = 'boundaries', quantiles = 3, key_space = 'price third' }]",
    "columns.quantiles={ price = [1.0, 2.2] }",
    "columns.crosses=[{ columns = ['user', 'city'] }, { columns = ['city', 'history', 'site'], buckets = 50 }]",
];

/// A setting of `[model]` that differs from the default, for each that a tower has, and for pooling.
pub(crate) const TOWER_SETTINGS: [&str; 7] = [
    "activation=gelu",
    "activation=silu",
    "activation=prelu",
    "activation=sigmoid",
    "dropout=0.4",
    "norm=layer",
    "pooling=max",
];

/// Settings of `dcn_v2`.
pub(crate) const CROSSES: [&[&str]; 3] = [
    &["model.cross_rank=5"],
    &["model.cross_structure=stacked", "model.cross_layers=2"],
    &["model.cross_structure=stacked", "model.cross_rank=3", "model.activation=gelu"],
];

/// Settings of `final_mlp`.
pub(crate) const FINAL_MLPS: [&[&str]; 3] = [
    &["model.heads=3", "model.second_hidden=[9]", "model.second_context=['city', 'item']", "model.gate_hidden=[]"],
    &["model.first_context=['user']", "model.gate_hidden=[5, 7]", "model.norm=layer", "model.activation=gelu"],
    &["model.feature_gates=false", "model.heads=4", "model.activation=prelu", "data.negatives=0.5"],
];

/// Slots with a pooling of their own, and lists that are cut: one slot keeps the last two values but its padding, another the first.
pub(crate) const LISTS: &str = "columns.slots=['user', 'city', { column = 'item', key_space = 'items', pooling = 'max' }, \
     { column = 'history', key_space = 'items', last = 2, padding = 7, pooling = 'mean' }, \
     { column = 'history', key_space = 'firsts', first = 1 }]";

/// Slots whose values have weights: lists that are cut, hashed into buckets, pooled by sum and mean, and values that are no lists.
pub(crate) const WEIGHTS: &str = "columns.slots=['user', { column = 'item', key_space = 'items', weights = 'item_weight' }, 'city', \
     { column = 'history', key_space = 'items', weights = 'history_weights', pooling = 'mean' }, \
     { column = 'history', key_space = 'lasts', last = 2, weights = 'history_weights', buckets = 20 }]";

/// The towers over [`WEIGHTS`].
pub(crate) const TOWERS_OF_WEIGHTS: [&str; 2] = [
    "model.user={ slots = ['user', 'city', 'history'], dense = ['count', 'flag', 'price2', 'rank'] }",
    "model.item={ slots = ['item'], dense = ['price', 'vector'] }",
];

/// Slots and a cross with tables of several widths, optimizers and storages.
pub(crate) const TABLES: [&str; 3] = [
    "columns.slots=[{ column = 'user', table = 'small' }, 'city', { column = 'site', kind = 'hex', table = 'small' }, \
     { column = 'item', key_space = 'items', table = 'items' }, \
     { column = 'history', key_space = 'items', table = 'items', pooling = 'mean' }, 'day', 'moment']",
    "columns.crosses=[{ columns = ['user', 'city'], table = 'crossed' }]",
    "tables={ small = { embedding_dim = 2, embedding_optimizer = { kind = 'adagrad' } }, items = { embedding_dim = 9, \
     storage = 'f16' }, crossed = { embedding_dim = 1, embedding_init = { kind = 'normal' } } }",
];

/// A slot and a cross that only the linear part reads, beside slots of one width.
pub(crate) const LINEAR_ONLY: [&str; 3] = [
    "columns.slots=['user', 'city', { column = 'site', kind = 'hex', table = 'linear' }, { column = 'item', key_space = 'items' }, \
     { column = 'history', key_space = 'items', pooling = 'mean' }]",
    "columns.crosses=[{ columns = ['user', 'city'], table = 'linear' }]",
    "tables={ linear = { embedding_dim = 0, linear_optimizer = { kind = 'adagrad', lr = 0.1 } } }",
];

/// The towers over [`TABLES`].
pub(crate) const TOWERS_OF_TABLES: [&str; 2] = [
    "model.user={ slots = ['user', 'city', 'site', 'day', 'moment'], dense = ['count', 'flag', 'price2', 'rank'] }",
    "model.item={ slots = ['item', 'history'], dense = ['price', 'vector'] }",
];

/// A number from 0 to `below`, pseudo-random by row and column.
fn number(row: u64, column: u64, below: u64) -> u64 {
    mix64(row ^ mix64(column)) % below
}

/// Three numbers a row; some lists, and some of their numbers, are missing.
fn vectors(rows: impl Iterator<Item = u64>) -> FixedSizeListArray {
    let of =
        |row| (0..3).map(move |at| (number(row, 30 + at, 5) != 0).then_some(number(row, 40 + at, 100) as f32 / 30.0));
    let lists = rows.map(|row| (number(row, 29, 6) != 0).then(|| of(row)));
    FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(lists, 3)
}

/// Writes rows `first..first + n` as one Parquet file.
pub(crate) fn rows(dir: &Path, first: u64, n: u64) -> PathBuf {
    let range = || first..first + n;
    let pick = |column: u64, below: u64| move |row: u64| number(row, column, below);
    let some = |row: u64, column: u64| number(row, column + 100, 7) != 0;
    let label = range().map(|r| i32::from((pick(1, 50)(r) % 5 + pick(2, 30)(r) % 7) < 5));
    let lists = range().map(|r| {
        some(r, 3).then(|| {
            (0..pick(4, 4)(r)).map(|i| some(r + i, 5).then_some((pick(6, 40)(r + i)) as i64)).collect::<Vec<_>>()
        })
    });
    let weights = range().map(|r| {
        let of_value = |i: u64| Some((pick(50, 8)(r + 100 * i) as f32) * 0.25);
        some(r, 3).then(|| (0..pick(4, 4)(r)).map(of_value).collect::<Vec<_>>())
    });
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(label.collect::<Int32Array>())),
        (
            "count",
            Arc::new(range().map(|r| some(r, 7).then_some(pick(8, 9000)(r) as i64 - 20)).collect::<Int64Array>()),
        ),
        (
            "price",
            Arc::new(range().map(|r| some(r, 9).then_some(pick(10, 1000)(r) as f32 / 300.0)).collect::<Float32Array>()),
        ),
        (
            "price2",
            Arc::new(range().map(|r| some(r, 11).then_some(pick(12, 1000)(r) as f64 / -7.0)).collect::<Float64Array>()),
        ),
        ("rank", Arc::new(range().map(|r| Some(pick(13, 3)(r) as i32 - 1)).collect::<Int32Array>())),
        ("flag", Arc::new(range().map(|r| some(r, 14).then_some(pick(15, 2)(r) == 1)).collect::<BooleanArray>())),
        ("user", Arc::new(range().map(|r| some(r, 16).then_some(pick(1, 50)(r) as i64 - 7)).collect::<Int64Array>())),
        (
            "city",
            Arc::new(
                range().map(|r| some(r, 17).then_some(format!("city {} é", pick(2, 30)(r)))).collect::<StringArray>(),
            ),
        ),
        (
            "site",
            Arc::new(
                range()
                    .map(|r| {
                        some(r, 18).then(|| {
                            if pick(19, 9)(r) == 0 { String::new() } else { format!("{:x}", pick(20, 60)(r) << 40) }
                        })
                    })
                    .collect::<StringArray>(),
            ),
        ),
        ("item", Arc::new(range().map(|r| Some(pick(21, 40)(r) as i32)).collect::<Int32Array>())),
        ("item_weight", Arc::new(range().map(|r| Some(pick(51, 5)(r) as f64 / 2.0)).collect::<Float64Array>())),
        ("history_weights", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(weights))),
        ("vector", Arc::new(vectors(range()))),
        ("history", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
        ("day", Arc::new(range().map(|r| some(r, 22).then_some(pick(23, 20)(r) as i32 - 10)).collect::<Date32Array>())),
        (
            "moment",
            Arc::new(
                range()
                    .map(|r| some(r, 24).then_some((pick(25, 20)(r) as i64 - 4) * 3_600_001_000_007))
                    .collect::<TimestampNanosecondArray>(),
            ),
        ),
        (
            "second",
            Arc::new(
                range().map(|r| some(r, 26).then_some((pick(26, 400)(r) as i64 - 200) * 4321)).collect::<Int64Array>(),
            ),
        ),
        (
            "milli",
            Arc::new(
                range()
                    .map(|r| some(r, 27).then_some((pick(27, 400)(r) as f64 - 200.0) * 4_321_987.0 - 0.25))
                    .collect::<Float64Array>(),
            ),
        ),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap();
    let path = dir.join(format!("rows-{first}.parquet"));
    common::write_parquet(&path, &batch);
    path
}

/// A job over [`rows`].
pub(crate) fn job(data: &Path, settings: &[&str]) -> Job {
    let mut all: Vec<String> = [
        "model.embedding_dim=6",
        "model.hidden=[24, 12]",
        "train.batch_rows=256",
        "train.threads=1",
        "table.shards=2",
        "data.epochs=3",
    ]
    .map(str::to_owned)
    .into();
    all.push(format!("data.train={}", data.display()));
    all.extend(settings.iter().map(|s| (*s).to_owned()));
    Job::from_toml(&format!("seed = 9\n{COLUMNS}"), &all).unwrap()
}

/// Trains a model of `kind` on 4,000 rows and saves it; returns its folder.
pub(crate) fn model(dir: &Path, kind: &str, settings: &[&str]) -> PathBuf {
    let kind_setting = format!("model.kind={kind}");
    let attention = "model.attention=[{ history = 'history', target = 'item' }]";
    let own: &[&str] = if kind == "din" { &[&kind_setting, attention] } else { &[&kind_setting] };
    let settings = [own, settings].concat();
    let folder = dir.join(format!("model-{kind}"));
    common::train(job(&rows(dir, 0, 4000), &settings)).model.save(&folder).unwrap();
    folder
}

/// The scores that `forebay predict` gives to the rows of a file, written to the folder `out`; of several labels row by row.
pub(crate) fn predict(model: &Path, data: &Path, out: &Path) -> Vec<f32> {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (code, said) =
        common::run(&["predict", "--model", &path(model), "--data", &path(data), "--out", &path(out), "--replace"]);
    assert_eq!(code, Some(0), "{said}");
    let rows = common::read_rows(out);
    let columns: Vec<_> = rows.columns().iter().map(|c| c.as_primitive::<Float32Type>().values()).collect();
    (0..rows.num_rows()).flat_map(|row| columns.iter().map(move |column| column[row])).collect()
}

/// The Python of the tests.
pub(crate) fn interpreter() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/python/bin/python");
    assert!(python.exists(), "Python is not there: make setup-python");
    python
}

/// Runs a Python script with these arguments.
pub(crate) fn python(script: &Path, arguments: &[&Path]) -> Output {
    Command::new(interpreter()).arg(script).args(arguments).current_dir(script.parent().unwrap()).output().unwrap()
}

/// Runs it; fails unless it ends well. Returns what it printed.
pub(crate) fn python_says(script: &Path, arguments: &[&Path]) -> String {
    let output = python(script, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The block of code of this language on a page of the docs that has `words`.
pub(crate) fn block(page: &str, language: &str, words: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).unwrap();
    let begin = format!("```{language}\n");
    let blocks = text.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap());
    let found: Vec<&str> = blocks.filter(|block| block.contains(words)).collect();
    assert_eq!(found.len(), 1, "{page} has {} blocks of {language} with {words:?}", found.len());
    found[0].to_owned()
}
