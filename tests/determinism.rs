//! `staleness = 0` is the sequential program: the same model to the bit, whatever runs beside it. `staleness = k` is
//! bounded by k.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;

use forebay::pipelines::Trained;
use futures::executor::block_on;

/// Every number of a model: dense parameters by name, and each key's row.
type Bits = (Vec<(String, Vec<u32>)>, BTreeMap<u64, Vec<u32>>);

fn bits(trained: &Trained) -> Bits {
    let model = &trained.model;
    let to_bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let dense = model.dense.iter().map(|t| (t.name.clone(), to_bits(&t.data))).collect();
    let mut rows = BTreeMap::new();
    for shard in 0..model.table.shards() {
        let mut from = 0;
        loop {
            let page = block_on(model.table.export(shard, from, 1000)).unwrap();
            if page.keys.is_empty() {
                break;
            }
            from += page.keys.len();
            for (key, row) in page.keys.iter().zip(page.weights.chunks(model.table.row_dim())) {
                assert!(rows.insert(*key, to_bits(row)).is_none(), "key {key} is in two places");
            }
        }
    }
    (dense, rows)
}

#[test]
fn shards_replicas_threads_and_luck_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 6000);
    let with = |settings: &[&str]| bits(&common::train(common::job(&data, settings)));
    let reference = with(&[]);
    assert!(reference.1.len() > 1000, "{} keys", reference.1.len());
    for settings in [
        &[][..],
        &["table.shards=2"],
        &["table.shards=4"],
        &["pipeline.parse_replicas=3"],
        &["table.shards=4", "pipeline.parse_replicas=3", "data.decode_threads=3", "data.read_ahead=1"],
        &["train.threads=2"],
    ] {
        let found = with(settings);
        assert!(found.0 == reference.0, "dense parameters differ with {settings:?}");
        assert!(found.1 == reference.1, "rows differ with {settings:?}");
    }
    // And the comparison can fail: another seed is another model.
    assert!(with(&["seed=10"]).0 != reference.0);
}

#[test]
fn text_and_parquet_of_the_same_rows_give_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let (parquet, text) = (common::parquet(dir.path(), 0, 3000), common::text(dir.path(), 0, 3000));
    // One order: splits differ between the formats.
    let settings = ["data.shuffle=false", "data.shuffle_rows=0"];
    let a = bits(&common::train(common::job(&parquet, &settings)));
    let b = bits(&common::train(common::job(&text, &settings)));
    assert!(a == b);
}

#[test]
fn staleness_is_bounded_and_used() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 6000);
    for k in [0_u64, 1, 3] {
        let trained = common::train(common::job(&data, &[&format!("train.staleness={k}")]));
        assert!(trained.staleness_observed <= k, "{} with bound {k}", trained.staleness_observed);
        assert_eq!(trained.staleness_observed > 0, k > 0, "{} with bound {k}", trained.staleness_observed);
        assert_eq!(trained.report.ledger.delivered, 6000);
    }
}
