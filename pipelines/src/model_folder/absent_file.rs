//! The keys without a row of one shard as an Arrow IPC stream: `key` (uint64), `count` (uint32) of batches that had it, and `seen`
//! (uint32), the last step that had it. A count of 0 says that a row was removed. Both functions block on the store.

use std::io::{Read, Write};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use forebay_actors::Fault;
use forebay_ps::{Absent, TableClient};
use futures::executor::block_on;

use super::checked::{CheckedWriter, FileEntry, cannot_write};

/// Keys of a page.
pub(crate) const PAGE: usize = 1 << 18;

fn schema() -> SchemaRef {
    let field = |name: &str, of: DataType| Field::new(name, of, false);
    let numbers = [field("count", DataType::UInt32), field("seen", DataType::UInt32)];
    Arc::new(Schema::new([vec![field("key", DataType::UInt64)], numbers.to_vec()].concat()))
}

/// Writes the pages that `next` gives, until one is empty.
pub(crate) fn write(
    mut file: CheckedWriter,
    path: &str,
    mut next: impl FnMut() -> Result<Vec<Absent>, Fault>,
) -> Result<FileEntry, Fault> {
    let (schema, name) = (schema(), file.name().to_owned());
    let failed = |e: ArrowError| match e {
        ArrowError::IoError(_, e) => cannot_write(&name, e),
        e => cannot_write(&name, e),
    };
    let mut writer = StreamWriter::try_new(&mut file, &schema).map_err(failed)?;
    let mut keys = 0;
    loop {
        let page = next()?;
        if page.is_empty() {
            break;
        }
        keys += page.len() as u64;
        let column =
            |of: fn(&Absent) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(page.iter().map(of))) };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from_iter_values(page.iter().map(|absent| absent.key))),
            column(|absent| absent.count),
            column(|absent| absent.seen),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns)
            .map_err(|e| Fault::internal("keys without a row do not fit their schema").because(e))?;
        writer.write(&batch).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    drop(writer);
    file.flush().map_err(|e| cannot_write(&name, e))?;
    Ok(FileEntry { absent: Some(keys), ..file.finish(path, None)? })
}

/// Takes the rows of these keys from the shards of `table` that this process holds, and sets their counts. The file's checksum has
/// been verified.
///
/// # Errors
/// A user fault that names the file if it has other columns.
pub(crate) fn read(file: impl Read, name: &str, entry: &FileEntry, table: &TableClient) -> Result<(), Fault> {
    let damaged = |e: ArrowError| Fault::user(format!("cannot read {name}")).because(e);
    let (reader, expected) = (StreamReader::try_new(file, None).map_err(damaged)?, schema());
    if reader.schema().fields() != expected.fields() {
        return Err(Fault::user(format!(
            "cannot read {name}: its columns are {:?}, expected {:?}",
            reader.schema().fields(),
            expected.fields()
        )));
    }
    let mut found = 0;
    for batch in reader {
        let batch = batch.map_err(damaged)?;
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            return Err(Fault::user(format!("cannot read {name}: it has missing values, expected none")));
        }
        found += batch.num_rows() as u64;
        let number = |column: usize| batch.column(column).as_primitive::<UInt32Type>().values();
        let keys = batch.column(0).as_primitive::<UInt64Type>().values();
        let absent: Vec<Absent> = keys
            .iter()
            .zip(number(1).iter().zip(number(2)))
            .map(|(key, (count, seen))| Absent { key: *key, count: *count, seen: *seen })
            .collect();
        block_on(table.import_absent_held(&absent))?;
    }
    match entry.absent {
        Some(expected) if expected != found => {
            Err(Fault::user(format!("cannot read {name}: {found} keys, the manifest expects {expected}")))
        }
        _ => Ok(()),
    }
}
