//! Reads a model folder with Parquet and safetensors, without Forebay's code, to compare models bit by bit.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, UInt32Type, UInt64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Every number of a model.
#[derive(PartialEq)]
pub(crate) struct Bits {
    /// The bytes of the file of dense parameters.
    dense: Vec<u8>,
    /// Each key's row, from all shard files.
    rows: BTreeMap<u64, Vec<u32>>,
}

impl Bits {
    pub(crate) fn read(folder: &Path) -> Self {
        let (mut dense, mut rows) = (Vec::new(), BTreeMap::new());
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
                let path = entry.unwrap().path();
                match path.extension().and_then(|ending| ending.to_str()) {
                    _ if path.is_dir() => folders.push(path),
                    Some("safetensors") => dense.extend(std::fs::read(&path).unwrap()),
                    Some("parquet") => read_table(&path, &mut rows),
                    _ => {}
                }
            }
        }
        assert!(!dense.is_empty() && !rows.is_empty(), "{} holds no model", folder.display());
        Self { dense, rows }
    }

    /// The first difference from `other`.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let (dense, rows) = (self.dense != other.dense, self.difference_of_rows(other));
        (dense || rows.is_some()).then(|| {
            let (far, rows) = (self.distance(other), rows.unwrap_or_else(|| "all rows are the same".to_owned()));
            let dense = if dense { "differ" } else { "are the same" };
            format!("dense parameters {dense} (by {far:e}), {rows}")
        })
    }

    /// The first difference of the rows of the tables from those of `other`.
    pub(crate) fn difference_of_rows(&self, other: &Self) -> Option<String> {
        if self.rows == other.rows {
            return None;
        }
        let differ = |(key, row): &(&u64, &Vec<u32>)| other.rows.get(key) != Some(row);
        let rows = self.rows.iter().filter(differ).count();
        let (here, there) = (self.rows.len(), other.rows.len());
        Some(format!("{rows} rows of {here} are not among those {there}"))
    }

    /// The largest distance of two dense parameters, relative to the largest of them.
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        let (a, b) = (floats(&self.dense), floats(&other.dense));
        assert_eq!(a.len(), b.len(), "models of one shape");
        let largest = a.iter().chain(&b).fold(0_f32, |most, v| most.max(v.abs()));
        a.iter().zip(&b).fold(0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
    }

    pub(crate) fn keys(&self) -> usize {
        self.rows.len()
    }
}

/// The values of a safetensors file: after a header whose length comes first.
fn floats(file: &[u8]) -> Vec<f32> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn read_table(path: &Path, rows: &mut BTreeMap<u64, Vec<u32>>) {
    for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap() {
        let batch = batch.unwrap();
        let keys = batch.column_by_name("key").unwrap().as_primitive::<UInt64Type>();
        for (row, key) in keys.values().iter().enumerate() {
            let before = rows.insert(*key, row_bits(&batch, row));
            assert!(before.is_none(), "key {key} lies in two places");
        }
    }
}

fn row_bits(batch: &RecordBatch, row: usize) -> Vec<u32> {
    let parts = batch.columns().iter().zip(batch.schema_ref().fields()).filter(|(_, field)| field.name() != "key");
    let mut bits = Vec::new();
    for (column, _) in parts {
        if let Some(numbers) = column.as_primitive_opt::<UInt32Type>() {
            bits.push(numbers.value(row));
            continue;
        }
        let values = match column.data_type() {
            DataType::FixedSizeList(..) => column.as_fixed_size_list().value(row),
            _ => column.slice(row, 1),
        };
        bits.extend(values.as_primitive::<Float32Type>().values().iter().map(|value| value.to_bits()));
    }
    bits
}
