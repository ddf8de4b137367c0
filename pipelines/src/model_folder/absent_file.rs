//! The keys without a row of one shard as an Arrow IPC stream: `key` (uint64), `count` (uint32) of batches that had it, and `seen`
//! (uint32), the last step that had it. A count of 0 says that a row was removed. Everything here blocks on the store.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_ps::{Absent, TableClient};
use futures::executor::block_on;

use super::checked::{CheckedWriter, FileEntry};
use super::row_stream::{RowStream, RowStreamWriter};

/// Keys of a page.
pub(crate) const PAGE: usize = 1 << 18;

fn schema() -> SchemaRef {
    let field = |name: &str, of: DataType| Field::new(name, of, false);
    let numbers = [field("count", DataType::UInt32), field("seen", DataType::UInt32)];
    Arc::new(Schema::new([vec![field("key", DataType::UInt64)], numbers.to_vec()].concat()))
}

/// The keys of one page as columns.
pub(crate) fn batch(page: &[Absent]) -> Result<RecordBatch, Fault> {
    let column = |of: fn(&Absent) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(page.iter().map(of))) };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(page.iter().map(|absent| absent.key))),
        column(|absent| absent.count),
        column(|absent| absent.seen),
    ];
    RecordBatch::try_new(schema(), columns)
        .map_err(|e| Fault::internal("keys without a row do not fit their schema").because(e))
}

/// Begins a file of keys without a row.
pub(crate) fn begin(file: CheckedWriter, path: &str) -> Result<RowStreamWriter, Fault> {
    RowStreamWriter::begin(file, path, &schema())
}

/// Ends it.
pub(crate) fn finish(writer: RowStreamWriter) -> Result<FileEntry, Fault> {
    let entry = writer.finish()?;
    Ok(FileEntry { absent: entry.rows, rows: None, ..entry })
}

/// Writes the pages that `next` gives, until one is empty.
pub(crate) fn write(
    file: CheckedWriter,
    path: &str,
    mut next: impl FnMut() -> Result<Vec<Absent>, Fault>,
) -> Result<FileEntry, Fault> {
    let mut writer = begin(file, path)?;
    loop {
        let page = next()?;
        if page.is_empty() {
            return finish(writer);
        }
        writer.write(&batch(&page)?)?;
    }
}

/// Reads the keys of a file, page by page.
pub(crate) fn pages(
    folder: &OpenFolder,
    entry: &FileEntry,
    mut each: impl FnMut(Vec<Absent>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    RowStream::begin(folder, entry, schema(), entry.absent)?.each(|batch| {
        let number = |column: usize| batch.column(column).as_primitive::<UInt32Type>().values();
        let keys = batch.column(0).as_primitive::<UInt64Type>().values();
        let numbers = keys.iter().zip(number(1).iter().zip(number(2)));
        each(numbers.map(|(key, (count, seen))| Absent { key: *key, count: *count, seen: *seen }).collect())
    })
}

/// Takes the rows of these keys from the shards of `table` that this process holds, and sets their counts. The file's checksum is
/// compared when all keys are read.
///
/// # Errors
/// A user fault that names the file if it is damaged or has other columns.
pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry, table: &TableClient) -> Result<(), Fault> {
    pages(folder, entry, |page| block_on(table.import_absent_held(&page)))
}
