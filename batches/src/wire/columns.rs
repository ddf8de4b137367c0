//! A batch as Arrow columns: one row, a list in each column, so that vectors of different length travel as they lie.
//!
//! ```text
//!  label: list<f32>       [n x t], row after row
//!  weight: list<f32>      [n]; null if every row weighs 1
//!  dense: list<f32>       [n x d], row after row
//!  key:   list<u64>       [u], every key once
//!  place: list<u16>       for each value, bag after bag, its place in `key`; null if there are more than 65,536 keys...
//!  wide:  list<u32>       ...which is where the places are then; null otherwise
//!  bag:   list<u32>       [n x slots + 1] offsets of the bags in the places; null if every bag holds one value
//!  slot:  list<u32>       [slots x 3] of each slot its values, the rows without any, and where its keys end; null if not counted
//!  row:   list<f32>       [u x row dim], the rows of the keys; null if the trainer looks them up
//!  value_weight: list<f32> for each value its weight; null if the batch has no values. Only in jobs whose slots have weights
//!  kept:  list<u8>     what a prediction writes beside the scores, as Arrow IPC streams; null without rows. Only in predictions
//! ```
//!
//! Columns from a socket are checked. Encoding copies only narrow places. Decoding copies each vector once, so that stages own the vectors
//! that they change and a batch does not hold its whole message: a quarter of the time of decoding (see `what_decoding_copies_costs`).

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray, RecordBatch};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Field, Float32Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use forebay_actors::{Fault, Lineage};
use forebay_connectors::WindowMark;

use super::metadata::Header;
use crate::flow::{KeptRows, SlotCounts, TrainBatch};

/// The most keys whose places fit into 16 bits.
const NARROW: usize = 1 << 16;

const VALUE_WEIGHT: &str = "value_weight";
const KEPT: &str = "kept";

/// The optional columns of the batches of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Values have weights.
    pub weighted: bool,
    /// Rows have the columns that a prediction writes beside the scores.
    pub kept: bool,
}

/// The columns of a batch.
pub fn schema(layout: Layout) -> SchemaRef {
    static SCHEMAS: LazyLock<[SchemaRef; 4]> = LazyLock::new(|| {
        let list = |name: &str, of: DataType, nullable| {
            Field::new(name, DataType::List(Arc::new(Field::new("item", of, false))), nullable)
        };
        [(false, false), (false, true), (true, false), (true, true)].map(|(weighted, kept)| {
            let mut fields = vec![
                list("label", DataType::Float32, false),
                list("weight", DataType::Float32, true),
                list("dense", DataType::Float32, false),
                list("key", DataType::UInt64, false),
                list("place", DataType::UInt16, true),
                list("wide", DataType::UInt32, true),
                list("bag", DataType::UInt32, true),
                list("slot", DataType::UInt32, true),
                list("row", DataType::Float32, true),
            ];
            fields.extend(weighted.then(|| list(VALUE_WEIGHT, DataType::Float32, true)));
            fields.extend(kept.then(|| list(KEPT, DataType::UInt8, true)));
            Arc::new(Schema::new(fields))
        })
    });
    Arc::clone(&SCHEMAS[2 * usize::from(layout.weighted) + usize::from(layout.kept)])
}

/// `batch` (and the rows of its keys) as columns. All batches of a run have one layout, as a stream has one schema.
pub fn write(batch: TrainBatch, rows: Option<Vec<f32>>, layout: Layout) -> Result<RecordBatch, Fault> {
    if !layout.weighted && !batch.value_weights.is_empty() {
        return Err(Fault::user(
            "a stage gave weights to values, and the job has no slot with weights: set `weights` of one, so that they are sent",
        ));
    }
    // Nearly every batch has fewer keys, and places are half of its bytes.
    let (narrow, wide) = if batch.unique.len() <= NARROW {
        (Some(batch.inverse.iter().map(|&place| place as u16).collect()), None)
    } else {
        (None, Some(batch.inverse))
    };
    let mut columns = vec![
        list::<Float32Type>(Some(batch.labels)),
        list::<Float32Type>(Some(batch.weights).filter(|weights| !weights.is_empty())),
        list::<Float32Type>(Some(batch.dense)),
        list::<UInt64Type>(Some(batch.unique)),
        list::<UInt16Type>(narrow),
        list::<UInt32Type>(wide),
        list::<UInt32Type>(batch.offsets),
        list::<UInt32Type>((!batch.slots.is_empty()).then(|| counts(&batch.slots))),
        list::<Float32Type>(rows),
    ];
    if layout.weighted {
        columns.push(list::<Float32Type>(Some(batch.value_weights).filter(|weights| !weights.is_empty())));
    }
    if layout.kept {
        let kept = (!batch.kept.is_empty()).then(|| KeptRows::to_bytes(&batch.kept)).transpose()?;
        columns.push(list::<UInt8Type>(kept));
    }
    let columns = columns.into_iter().collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(schema(layout), columns)
        .map_err(|e| Fault::internal("a batch does not fit its columns").because(e))
}

fn counts(slots: &[SlotCounts]) -> Vec<u32> {
    slots.iter().flat_map(|&SlotCounts { values, empty, keys_end }| [values, empty, keys_end]).collect()
}

fn list<T: ArrowPrimitiveType>(values: Option<Vec<T::Native>>) -> Result<ArrayRef, Fault> {
    let nulls = values.is_none().then(|| NullBuffer::new_null(1));
    let values = values.unwrap_or_default();
    let end = i32::try_from(values.len()).map_err(|_| {
        Fault::user(format!("a batch of {} values is too large to send: use smaller batches", values.len()))
    })?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(vec![0, end]));
    let field = Arc::new(Field::new("item", T::DATA_TYPE, false));
    let values = Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None));
    Ok(Arc::new(ListArray::new(field, offsets, values, nulls)))
}

/// Decodes a batch, and the rows of its keys if they came with it.
///
/// # Errors
/// A user fault: other columns, or lengths that do not go together. The model checks whether the lengths fit it.
pub fn read(header: &Header, columns: &RecordBatch) -> Result<(TrainBatch, Option<Vec<f32>>), Fault> {
    let wrong = |what: String| Fault::user(format!("{} is not what it should be: {what}", header.id));
    if columns.num_rows() != 1 {
        return Err(wrong(format!("{} rows of columns, expected 1 of lists", columns.num_rows())));
    }
    fn values<T: ArrowPrimitiveType>(
        columns: &RecordBatch,
        name: &str,
    ) -> Result<Option<ScalarBuffer<T::Native>>, String> {
        let there = || columns.schema_ref().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ");
        let Some(column) = columns.column_by_name(name) else {
            return Err(format!("no column `{name}`, there are: {}", there()));
        };
        let Some(list) = column.as_list_opt::<i32>().filter(|list| *list.values().data_type() == T::DATA_TYPE) else {
            return Err(format!("column `{name}` is {}, expected a list of {}", column.data_type(), T::DATA_TYPE));
        };
        if list.is_null(0) {
            return Ok(None);
        }
        let values = list.value(0);
        if values.null_count() > 0 {
            return Err(format!("column `{name}` holds nulls"));
        }
        Ok(Some(values.as_primitive::<T>().values().clone()))
    }
    let some = |name: &str| wrong(format!("column `{name}` is null"));
    let floats = |name| Ok::<_, Fault>(values::<Float32Type>(columns, name).map_err(wrong)?.map(|v| v.to_vec()));
    let ints = |name| Ok::<_, Fault>(values::<UInt32Type>(columns, name).map_err(wrong)?.map(|v| v.to_vec()));
    let unique = values::<UInt64Type>(columns, "key").map_err(wrong)?.ok_or_else(|| some("key"))?.to_vec();
    let inverse: Vec<u32> = match (values::<UInt16Type>(columns, "place").map_err(wrong)?, ints("wide")?) {
        (Some(narrow), None) => narrow.iter().map(|&place| u32::from(place)).collect(),
        (None, Some(wide)) => wide,
        (Some(_), Some(_)) => return Err(wrong("places in both columns `place` and `wide`".to_owned())),
        (None, None) => return Err(wrong("columns `place` and `wide` are both null".to_owned())),
    };
    // No early exit: with one, the compiler does not vectorize the loop.
    if inverse.iter().fold(0, |most, &place| most.max(place)) as usize >= unique.len() && !inverse.is_empty() {
        return Err(wrong(format!("a place beyond its {} keys", unique.len())));
    }
    let labels = floats("label")?.ok_or_else(|| some("label"))?;
    if header.labels == 0 || !labels.len().is_multiple_of(header.labels as usize) {
        return Err(wrong(format!("{} labels, and {} of them a row", labels.len(), header.labels)));
    }
    let slots = ints("slot")?.unwrap_or_default();
    let (slots, []) = slots.as_chunks::<3>() else {
        return Err(wrong(format!("{} counts of slots, expected 3 for each", slots.len())));
    };
    let slots = slots.iter().map(|&[values, empty, keys_end]| SlotCounts { values, empty, keys_end }).collect();
    let batch = TrainBatch {
        lineage: Lineage { epoch: header.id.epoch, split: header.split, row: header.row, seq: 0 },
        window: WindowMark { window: header.id.window, term: header.term, closes: header.closes.is_some() },
        index: header.id.index,
        closes: header.closes,
        rows: labels.len() / header.labels as usize,
        other_rows: header.other_rows,
        labels,
        weights: floats("weight")?.unwrap_or_default(),
        dense: floats("dense")?.ok_or_else(|| some("dense"))?,
        unique,
        inverse,
        offsets: ints("bag")?,
        slots,
        value_weights: match columns.column_by_name(VALUE_WEIGHT) {
            Some(_) => floats(VALUE_WEIGHT)?.unwrap_or_default(),
            None => Vec::new(),
        },
        kept: match columns.column_by_name(KEPT) {
            // Copied, so that the rows do not hold the whole message.
            Some(_) => match values::<UInt8Type>(columns, KEPT).map_err(wrong)? {
                Some(bytes) => KeptRows::from_bytes(&Buffer::from_slice_ref(&bytes[..]))?,
                None => Vec::new(),
            },
            None => Vec::new(),
        },
    };
    if columns.column_by_name(KEPT).is_some() {
        let kept = batch.kept.iter().map(KeptRows::rows).sum::<usize>();
        if kept != batch.rows {
            return Err(wrong(format!("kept columns of {kept} rows for {} rows", batch.rows)));
        }
    }
    if !batch.value_weights.is_empty() && batch.value_weights.len() != batch.inverse.len() {
        return Err(wrong(format!("{} weights for {} values", batch.value_weights.len(), batch.inverse.len())));
    }
    if !batch.weights.is_empty() && batch.weights.len() != batch.rows {
        return Err(wrong(format!("{} weights for {} rows", batch.weights.len(), batch.rows)));
    }
    let rows = floats("row")?;
    if let Some(rows) = &rows
        && (batch.unique.is_empty() != rows.is_empty() || rows.len().checked_rem(batch.unique.len().max(1)) != Some(0))
    {
        return Err(wrong(format!("{} weights for {} keys", rows.len(), batch.unique.len())));
    }
    Ok((batch, rows))
}

/// The bytes of all values, as credits count them: the same in reader and trainer.
pub fn bytes(columns: &RecordBatch) -> u64 {
    let list = |column: &ArrayRef| {
        let list = column.as_list_opt::<i32>()?;
        Some(list.values().len() * list.values().data_type().primitive_width()?)
    };
    columns.columns().iter().filter_map(list).sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, UInt64Array};
    use proptest::prelude::*;

    use super::*;
    use crate::flow::{BatchId, WindowEnd};

    fn header(index: u32, closes: Option<WindowEnd>) -> Header {
        Header {
            id: BatchId { epoch: 1, window: 7, index },
            term: 2,
            split: 3,
            row: 4,
            closes,
            done_before: 0,
            urgent: false,
            labels: 1,
            other_rows: 0,
        }
    }

    proptest! {
        #[test]
        fn a_batch_is_the_same_after_encoding_and_decoding(
            labels in prop::collection::vec(0f32..1.0, 0..9), per_row in 1u32..4, unique in prop::collection::vec(any::<u64>(), 1..9),
            places in prop::collection::vec(any::<u32>(), 0..20), bags: bool, rows: bool, closes: bool, weighted: bool, slots in 0usize..4,
            value_weights: bool, other_rows: u32,
        ) {
            let end = closes.then_some(WindowEnd { batches: 6, rows: 9, rejected: 1 });
            let header = Header { labels: per_row, other_rows, ..header(5, end) };
            let rows_of_batch = labels.len();
            let all_labels: Vec<f32> = labels.iter().flat_map(|&label| vec![label; per_row as usize]).collect();
            let inverse: Vec<u32> = places.iter().map(|p| p % unique.len() as u32).collect();
            let lineage = Lineage { epoch: 1, split: 3, row: 4, seq: 0 };
            let window = WindowMark { window: 7, term: 2, closes };
            let batch = TrainBatch {
                lineage, window, index: 5, closes: end, dense: labels.iter().map(|l| -l).collect(),
                weights: if weighted { labels.iter().map(|l| l + 0.5).collect() } else { Vec::new() },
                rows: rows_of_batch, other_rows, labels: all_labels,
                offsets: bags.then(|| vec![0, inverse.len() as u32]),
                slots: unique.iter().take(slots).map(|&n| SlotCounts { values: n as u32, empty: 7, keys_end: 9 }).collect(), unique,
                value_weights: if value_weights { inverse.iter().map(|&place| place as f32).collect() } else { Vec::new() },
                inverse,
                kept: Vec::new(),
            };
            let rows = rows.then(|| vec![0.5; batch.unique.len() * 3]);
            let columns = write(batch.clone(), rows.clone(), Layout { weighted: value_weights, kept: false }).unwrap();
            prop_assert_eq!(columns.num_columns(), 9 + usize::from(value_weights), "no column more without weights");
            let values = batch.value_weights.len() + batch.labels.len() + batch.rows + batch.weights.len() + batch.unique.len() * 2
                + batch.offsets.as_ref().map_or(0, Vec::len) + 3 * batch.slots.len() + rows.as_ref().map_or(0, Vec::len);
            prop_assert_eq!(bytes(&columns), (values * 4 + batch.inverse.len() * 2) as u64);
            prop_assert_eq!(read(&header, &columns).unwrap(), (batch, rows));
        }
    }

    #[test]
    fn places_take_16_bits_if_the_keys_allow() {
        for (keys, bytes_of_a_place) in [(NARROW, 2), (NARROW + 1, 4)] {
            let last = keys as u32 - 1;
            let batch = TrainBatch {
                unique: (0..keys as u64).collect(),
                inverse: vec![last, 0, last],
                lineage: Lineage { epoch: 1, split: 3, row: 4, seq: 0 },
                window: WindowMark { window: 7, term: 2, closes: false },
                ..TrainBatch::default()
            };
            let columns = write(batch.clone(), None, Layout::default()).unwrap();
            assert_eq!(bytes(&columns), keys as u64 * 8 + 3 * bytes_of_a_place);
            assert_eq!(read(&header(0, None), &columns).unwrap().0, batch);
        }
    }

    #[test]
    fn kept_columns_travel_with_their_rows_and_are_checked() {
        let kept = |from: i64, to: i64| {
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
            let reasons = (from..to).map(|row| (row == 1).then_some("too bad"));
            KeptRows::new(vec![("id", &ids)], reasons.collect()).unwrap()
        };
        let batch = TrainBatch {
            rows: 3,
            labels: vec![0.0; 3],
            unique: vec![9],
            inverse: vec![0; 3],
            lineage: Lineage { epoch: 1, split: 3, row: 4, seq: 0 },
            window: WindowMark { window: 7, term: 2, closes: false },
            kept: vec![kept(0, 2), kept(2, 3)],
            ..TrainBatch::default()
        };
        let layout = Layout { weighted: false, kept: true };
        let columns = write(batch.clone(), None, layout).unwrap();
        let without = write(batch.clone(), None, Layout::default()).unwrap();
        assert!(bytes(&columns) > bytes(&without), "credits count them");
        assert_eq!(read(&header(0, None), &columns).unwrap().0, batch);
        assert_eq!(read(&header(0, None), &without).unwrap().0, TrainBatch { kept: Vec::new(), ..batch.clone() });
        let refused = |columns: &RecordBatch| read(&header(0, None), columns).unwrap_err().to_string();
        let fewer = write(TrainBatch { kept: vec![kept(0, 2)], ..batch.clone() }, None, layout).unwrap();
        assert!(refused(&fewer).contains("kept columns of 2 rows for 3 rows"), "{}", refused(&fewer));
        let none = write(TrainBatch { kept: Vec::new(), ..batch }, None, layout).unwrap();
        assert!(refused(&none).contains("kept columns of 0 rows for 3 rows"), "{}", refused(&none));
        let mut damaged = none.columns().to_vec();
        *damaged.last_mut().unwrap() = list::<UInt8Type>(Some(vec![7; 40])).unwrap();
        let damaged = RecordBatch::try_new(schema(layout), damaged).unwrap();
        assert!(refused(&damaged).contains("no message of Arrow begins"), "{}", refused(&damaged));
    }

    #[test]
    fn columns_that_are_no_batch_are_refused_with_the_column_named() {
        let good =
            || TrainBatch { rows: 1, labels: vec![1.0], unique: vec![9], inverse: vec![0], ..TrainBatch::default() };
        let refused = |columns: &RecordBatch| read(&header(0, None), columns).unwrap_err().to_string();
        let beyond = write(TrainBatch { inverse: vec![1], ..good() }, None, Layout::default()).unwrap();
        assert!(
            refused(&beyond).contains("batch 0 of window 7 of epoch 1")
                && refused(&beyond).contains("beyond its 1 keys")
        );
        for labels in [0, 2] {
            let header = Header { labels, ..header(0, None) };
            let said = read(&header, &write(good(), None, Layout::default()).unwrap()).unwrap_err().to_string();
            assert!(said.contains(&format!("1 labels, and {labels} of them a row")), "{said}");
        }
        let weighted = write(TrainBatch { weights: vec![1.0; 2], ..good() }, None, Layout::default()).unwrap();
        assert!(refused(&weighted).contains("2 weights for 1 rows"), "{}", refused(&weighted));
        let values =
            write(TrainBatch { value_weights: vec![1.0; 2], ..good() }, None, Layout { weighted: true, kept: false })
                .unwrap();
        assert!(refused(&values).contains("2 weights for 1 values"), "{}", refused(&values));
        let unexpected =
            write(TrainBatch { value_weights: vec![1.0], ..good() }, None, Layout::default()).unwrap_err().to_string();
        assert!(unexpected.contains("the job has no slot with weights"), "{unexpected}");
        let rows = write(TrainBatch { unique: vec![1, 2], ..good() }, Some(vec![0.0; 3]), Layout::default()).unwrap();
        assert!(refused(&rows).contains("3 weights for 2 keys"), "{}", refused(&rows));
        let keys: Vec<u64> = (0..=NARROW as u64).collect();
        let beyond = TrainBatch { inverse: vec![keys.len() as u32], unique: keys, ..good() };
        let beyond = refused(&write(beyond, None, Layout::default()).unwrap());
        assert!(beyond.contains("beyond its 65537 keys"), "{beyond}");
        let none = write(TrainBatch { unique: vec![], ..good() }, None, Layout::default()).unwrap();
        assert!(refused(&none).contains("beyond its 0 keys"), "{}", refused(&none));
        let columns = write(good(), None, Layout::default()).unwrap();
        let there = columns.project(&[0, 2, 4]).unwrap();
        assert!(refused(&there).contains("no column `key`, there are: label, dense, place"), "{}", refused(&there));
        for (places, word) in [(Some(vec![0]), "both columns"), (None, "both null")] {
            let mut columns = columns.columns().to_vec();
            (columns[4], columns[5]) = (
                list::<UInt16Type>(places.clone()).unwrap(),
                list::<UInt32Type>(places.map(|p: Vec<u16>| p.into_iter().map(u32::from).collect())).unwrap(),
            );
            let columns = RecordBatch::try_new(schema(Layout::default()), columns).unwrap();
            assert!(refused(&columns).contains(word), "{}", refused(&columns));
        }
        let mut typed = columns.columns().to_vec();
        typed[3] = Arc::new(UInt64Array::from(vec![1]));
        let mut fields: Vec<_> = schema(Layout::default()).fields().iter().map(|f| f.as_ref().clone()).collect();
        fields[3] = Field::new("key", DataType::UInt64, false);
        let typed = RecordBatch::try_new(Arc::new(Schema::new(fields)), typed).unwrap();
        assert!(refused(&typed).contains("column `key` is UInt64"), "{}", refused(&typed));
        let two = RecordBatch::try_from_iter([("label", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]).unwrap();
        assert!(refused(&two).contains("2 rows of columns"));
    }

    /// `cargo test -p forebay-batches --lib copies_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement, quoted in docs/cluster-performance.md"]
    fn what_decoding_copies_costs() {
        const ROWS: usize = 2048;
        let unique: Vec<u64> = (0..8 * ROWS as u64).collect();
        let batch = TrainBatch {
            lineage: Lineage { epoch: 1, split: 3, row: 4, seq: 0 },
            window: WindowMark { window: 7, term: 2, closes: false },
            index: 5,
            closes: None,
            rows: ROWS,
            other_rows: 0,
            labels: vec![1.0; ROWS],
            weights: Vec::new(),
            dense: vec![0.5; 13 * ROWS],
            inverse: (0..26 * ROWS as u32).map(|i| i * 7919 % unique.len() as u32).collect(),
            unique,
            offsets: None,
            slots: Vec::new(),
            value_weights: Vec::new(),
            kept: Vec::new(),
        };
        let columns = write(batch, None, Layout::default()).unwrap();
        let nanoseconds = |mut once: Box<dyn FnMut() -> usize + '_>| {
            let begun = std::time::Instant::now();
            let sum: usize = (0..2000).map(|_| once()).sum();
            assert_ne!(sum, 0);
            begun.elapsed().as_nanos() as f64 / (2000 * ROWS) as f64
        };
        let values = |name: &str| columns.column_by_name(name).unwrap().as_list::<i32>().value(0);
        for _ in 0..3 {
            let decode = nanoseconds(Box::new(|| read(&header(5, None), &columns).unwrap().0.inverse.len()));
            let copies = nanoseconds(Box::new(|| {
                let floats = |name| values(name).as_primitive::<Float32Type>().values().to_vec();
                let keys = values("key").as_primitive::<UInt64Type>().values().to_vec();
                floats("label").len() + floats("dense").len() + keys.len()
            }));
            println!("decoding a batch takes {decode:.1} ns/row; its copies take {copies:.1} of them");
        }
    }
}
