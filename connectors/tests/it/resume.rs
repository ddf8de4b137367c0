//! Going on from any position yields exactly the rows that were not returned yet.

use std::fmt::Write as _;

use forebay_actors::Source;
use forebay_connectors::{
    CriteoSource, OnBadRow, ParquetSource, Position, ReadOptions, Rows, Synthetic, SyntheticSource,
};
use proptest::prelude::*;

use super::{cx, read, shape};

/// Stops after `stop` batches, writes the position down, goes on in a new source; the two parts are the whole.
fn two_parts<S: Source<Out = Rows, Position = Position>>(make: impl Fn() -> S, stop: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let whole_cx = cx();
        let whole = read(&mut make(), &whole_cx, None).await.unwrap();
        let stop = stop % (whole.len() + 1);
        let part_cx = cx();
        let mut first = make();
        first.open(&part_cx, None).await.unwrap();
        let mut parts = Vec::new();
        for _ in 0..stop {
            parts.push(first.next().await.unwrap().unwrap());
        }
        let noted = serde_json::to_string(&first.position()).unwrap();
        drop(first);
        let position = serde_json::from_str(&noted).unwrap();
        parts.extend(read(&mut make(), &part_cx, Some(position)).await.unwrap());
        assert_eq!(shape(&parts), shape(&whole));
        // Rows that were rejected are counted once as well.
        assert_eq!(part_cx.ledger().snapshot(), whole_cx.ledger().snapshot());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn parquet(stop: usize, seed: u64, batch_rows in 1usize..130, shuffle: bool) {
        let dir = super::parquet::folder();
        let options = ReadOptions { batch_rows, epochs: 2, shuffle, seed, ..ReadOptions::default() };
        two_parts(|| ParquetSource::new(dir.path(), options.clone()), stop);
    }

    #[test]
    fn criteo_text_with_bad_rows(stop: usize, seed: u64, batch_rows in 1usize..60, shuffle: bool, range_bytes in 200u64..9000) {
        let dir = tempfile::tempdir().unwrap();
        for file in 0..2 {
            let mut text = String::new();
            for row in 0..120 {
                match row % 11 {
                    3 => text.push_str("nonsense\n"),
                    7 => text.push_str("7\n"),
                    _ => writeln!(text, "{}\t{row}{}{}", row % 2, "\t".repeat(12), "\t0badf00d".repeat(26)).unwrap(),
                }
            }
            std::fs::write(dir.path().join(format!("{file}.txt")), text).unwrap();
        }
        let options = ReadOptions { batch_rows, epochs: 2, shuffle, seed, ..ReadOptions::default() };
        two_parts(|| CriteoSource::new(dir.path(), options.clone()).on_bad_row(OnBadRow::Skip).range_bytes(range_bytes), stop);
    }

    #[test]
    fn csv_with_bad_rows(stop: usize, seed: u64, batch_rows in 1usize..60, shuffle: bool, range_bytes in 30u64..900) {
        let dir = super::csv::folder(120);
        let options = ReadOptions { batch_rows, epochs: 2, shuffle, seed, ..ReadOptions::default() };
        two_parts(|| super::csv::source(dir.path(), options.clone()).range_bytes(range_bytes), stop);
    }

    #[test]
    fn synthetic(stop: usize, seed in 0u64..3, batch_rows in 1usize..200) {
        let options = ReadOptions { batch_rows, epochs: 2, ..ReadOptions::default() };
        let what = Synthetic { rows: 500, seed, ..Synthetic::default() };
        two_parts(|| SyntheticSource::new(what.clone(), options.clone()), stop);
    }
}

#[tokio::test]
async fn a_position_of_other_data_is_refused() {
    let dir = super::parquet::folder();
    let position = Position { epoch: 0, split: 99, row: 0 };
    let mut source = ParquetSource::new(dir.path(), ReadOptions::default());
    let said = source.open(&cx(), Some(position)).await.unwrap_err().to_string();
    assert!(said.contains("cannot go on at split 99"), "{said}");
}
