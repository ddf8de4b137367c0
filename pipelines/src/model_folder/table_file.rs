//! Table rows as Parquet, one file a shard: `key` and one column per part of the row.
//!
//! Weights do not compress, so nothing is encoded: the file is read and written at the speed of the disk. Blocks on
//! the disk and on the shard, a page of rows at a time.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt64Type};
use forebay_actors::Fault;
use forebay_ps::{PartConfig, TableClient, TableConfig};
use futures::executor::block_on;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;

use super::checked::{CheckedWriter, cannot_write};
use super::manifest::FileEntry;

/// Rows moved at a time.
const PAGE: usize = 65_536;

fn part_type(part: &PartConfig) -> DataType {
    match part.dim {
        1 => DataType::Float32,
        dim => DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, false)), dim as i32),
    }
}

fn schema(config: &TableConfig) -> SchemaRef {
    let key = Field::new("key", DataType::UInt64, false);
    let parts = config.parts.iter().map(|part| Field::new(&part.name, part_type(part), false));
    Arc::new(Schema::new(std::iter::once(key).chain(parts).collect::<Vec<_>>()))
}

pub(super) fn write(table: &TableClient, shard: usize, config: &TableConfig, path: &Path) -> Result<FileEntry, Fault> {
    let schema = schema(config);
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(Encoding::PLAIN).build();
    let failed = |e: parquet::errors::ParquetError| cannot_write(path, e);
    let mut writer =
        ArrowWriter::try_new(CheckedWriter::create(path)?, schema.clone(), Some(properties)).map_err(failed)?;
    let mut from = 0;
    loop {
        let page = block_on(table.export(shard, from, PAGE))?;
        if page.keys.is_empty() {
            break;
        }
        from += page.keys.len();
        let batch = to_batch(&schema, config, page.keys, &page.weights)?;
        writer.write(&batch).map_err(failed)?;
    }
    writer.into_inner().map_err(failed)?.finish(Some(from as u64))
}

fn to_batch(schema: &SchemaRef, config: &TableConfig, keys: Vec<u64>, weights: &[f32]) -> Result<RecordBatch, Fault> {
    let row_dim = config.row_dim();
    let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(keys))];
    let mut at = 0;
    for part in &config.parts {
        let values: Vec<f32> = weights.chunks_exact(row_dim).flat_map(|row| &row[at..at + part.dim]).copied().collect();
        at += part.dim;
        let values = Arc::new(Float32Array::from(values));
        columns.push(match part_type(part) {
            DataType::FixedSizeList(field, dim) => Arc::new(FixedSizeListArray::new(field, dim, values, None)),
            _ => values,
        });
    }
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Fault::internal("table rows do not fit their schema").because(e))
}

pub(super) fn read(path: &Path, config: &TableConfig, table: &TableClient) -> Result<(), Fault> {
    let cannot = |e: String| Fault::user(format!("cannot read {}: {e}", path.display()));
    let file = File::open(path).map_err(|e| cannot(e.to_string()))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| cannot(e.to_string()))?;
    let expected = schema(config);
    let found = builder.schema().clone();
    for field in expected.fields() {
        match found.field_with_name(field.name()) {
            Ok(there) if same_type(there.data_type(), field.data_type()) => {}
            Ok(there) => {
                return Err(cannot(format!(
                    "column `{}` is {}, the manifest expects {}",
                    field.name(),
                    there.data_type(),
                    field.data_type()
                )));
            }
            Err(_) => return Err(cannot(format!("no column `{}`, which the manifest expects", field.name()))),
        }
    }
    let mut weights = Vec::new();
    for batch in builder.with_batch_size(PAGE).build().map_err(|e| cannot(e.to_string()))? {
        let batch = batch.map_err(|e| cannot(e.to_string()))?;
        from_batch(&batch, config, &mut weights);
        let keys = batch.column_by_name("key").expect("checked above").as_primitive::<UInt64Type>();
        block_on(table.import(keys.values(), &weights, None))?;
    }
    Ok(())
}

/// The names of a list's element and whether it may be null do not matter.
fn same_type(found: &DataType, expected: &DataType) -> bool {
    match (found, expected) {
        (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => n == m && a.data_type() == b.data_type(),
        _ => found == expected,
    }
}

/// Rows `[n × row dim]` from columns.
fn from_batch(batch: &RecordBatch, config: &TableConfig, weights: &mut Vec<f32>) {
    let row_dim = config.row_dim();
    weights.clear();
    weights.resize(batch.num_rows() * row_dim, 0.0);
    let mut at = 0;
    for part in &config.parts {
        let column = batch.column_by_name(&part.name).expect("checked above");
        let values = match column.as_fixed_size_list_opt() {
            Some(list) => list.values().clone(),
            None => column.clone(),
        };
        let values = values.as_primitive::<Float32Type>().values();
        for (row, value) in weights.chunks_exact_mut(row_dim).zip(values.chunks_exact(part.dim)) {
            row[at..at + part.dim].copy_from_slice(value);
        }
        at += part.dim;
    }
}
