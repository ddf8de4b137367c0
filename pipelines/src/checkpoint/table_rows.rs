//! The rows of one shard with their optimizer state as an Arrow IPC stream, written from a snapshot and read into a table. The
//! columns are `key` (uint64), `weights` and `state` (lists of a fixed size of float32), and in a table with a lifetime `seen`
//! (uint32) and `score` (float32). The keys without a row of such a table are in a file of their own. Everything here blocks on the store.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, ScopedJoinHandle};

use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use forebay_actors::{Fault, FaultKind};
use forebay_connectors::staged::OpenFolder;
use forebay_ps::{
    CELLS, ExportBlock, ImportedRows, PendingImport, RowUsage, ShardSnapshot, TableClient, TableConfig, cell_of,
};
use futures::executor::block_on;

use super::cut_plan::CutPlan;
use super::folder::file_name;
use super::manifest::TableLayers;
use crate::model_folder::checked::CheckedWriter;
use crate::model_folder::row_stream::{RowStream, RowStreamWriter};
use crate::model_folder::{FileEntry, absent_file};

/// Rows of a page.
const PAGE: usize = 65_536;

/// The columns of a table's rows. `row_dim` weights and `state_dim` floats of state per row; without state there is no such column.
pub(super) fn schema(config: &TableConfig) -> SchemaRef {
    let (row_dim, state_dim) = (config.row_dim(), config.state_dim());
    let mut fields = vec![Field::new("key", DataType::UInt64, false), list_field("weights", row_dim)];
    if state_dim > 0 {
        fields.push(list_field("state", state_dim));
    }
    if has_usages(config) {
        fields.push(Field::new("seen", DataType::UInt32, false));
        fields.push(Field::new("score", DataType::Float32, false));
    }
    Arc::new(Schema::new(fields))
}

/// Whether rows come and go: then files have the usage of each row, and there are files of keys without a row.
pub(super) fn has_usages(config: &TableConfig) -> bool {
    config.has_lifetime()
}

fn list_field(name: &str, floats: usize) -> Field {
    let element = Arc::new(Field::new("element", DataType::Float32, false));
    Field::new(name, DataType::FixedSizeList(element, floats as i32), false)
}

fn list(floats: Vec<f32>, each: usize) -> ArrayRef {
    let element = Arc::new(Field::new("element", DataType::Float32, false));
    Arc::new(FixedSizeListArray::new(element, each as i32, Arc::new(Float32Array::from(floats)), None))
}

/// Begins a new file of rows.
pub(super) fn begin(folder: &OpenFolder, file: &str, config: &TableConfig) -> Result<RowStreamWriter, Fault> {
    RowStreamWriter::begin(CheckedWriter::new(folder.create(file)?), file, &schema(config))
}

/// Writes the rows of `snapshot` to a new file.
pub(crate) fn write(
    snapshot: &mut ShardSnapshot,
    table: &TableClient,
    folder: &OpenFolder,
    file: &str,
) -> Result<FileEntry, Fault> {
    let config = table.config();
    let (row_dim, state_dim, schema) = (config.row_dim(), config.state_dim(), schema(config));
    let mut writer = begin(folder, file, config)?;
    loop {
        let ExportBlock { keys, weights, state, usages } = block_on(snapshot.next(PAGE))?;
        if keys.is_empty() {
            return writer.finish();
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(keys)), list(weights, row_dim)];
        if state_dim > 0 {
            columns.push(list(state, state_dim));
        }
        if has_usages(config) {
            columns.push(Arc::new(UInt32Array::from_iter_values(usages.iter().map(|usage| usage.last_seen))));
            columns.push(Arc::new(Float32Array::from_iter_values(usages.iter().map(|usage| usage.score))));
        }
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns)
            .map_err(|e| Fault::internal("rows of a snapshot do not fit their schema").because(e))?;
        writer.write(&batch)?;
    }
}

/// The rows of a file.
pub(super) fn stream<'a>(
    folder: &OpenFolder,
    entry: &'a FileEntry,
    config: &TableConfig,
) -> Result<RowStream<'a>, Fault> {
    RowStream::begin(folder, entry, schema(config), entry.rows)
}

/// Puts the rows of a file into the shards of `table`: all of them, or those that this process holds. Compares the checksum of the file
/// when all rows are read. If this function fails, the table must be dropped.
///
/// # Errors
/// A user fault of the kind [`FaultKind::Damaged`] that names the file if it is damaged, or its rows do not fit the table.
fn read(folder: &OpenFolder, entry: &FileEntry, table: &TableClient) -> Result<(), Fault> {
    if entry.absent.is_some() {
        return absent_file::read(folder, entry, table);
    }
    let config = table.config();
    let mut begun: Option<PendingImport> = None;
    stream(folder, entry, config)?.each(|batch| {
        let keys = batch.column(0).as_primitive::<UInt64Type>().values();
        if let Some(cells) = cells(entry)
            && let Some(key) = keys.iter().find(|key| !cells.contains(&cell_of(**key)))
        {
            let message = format!("{} has key {key}, which is not of its cells {cells:?}", folder.name(&entry.path));
            return Err(Fault::user(message).kind(FaultKind::Damaged));
        }
        let floats = |column: usize| {
            let list = batch.column(column).as_fixed_size_list();
            let each = list.value_length() as usize;
            let all = list.values().as_primitive::<Float32Type>();
            all.values().slice(list.value_offset(0) as usize, keys.len() * each)
        };
        // A table that is only read takes no state.
        let state = if table.state_dim() > 0 { Some(floats(2)) } else { None };
        let mut usages = Vec::new();
        if has_usages(config)
            && let [.., seen, score] = batch.columns()
        {
            let (seen, score) = (seen.as_primitive::<UInt32Type>(), score.as_primitive::<Float32Type>());
            let both = seen.values().iter().zip(score.values());
            usages.extend(both.map(|(seen, score)| RowUsage { last_seen: *seen, score: *score }));
        }
        let rows = ImportedRows { keys: keys.clone(), weights: floats(1), state, usages };
        // The next rows are read while the shards set these.
        begun.take().map_or(Ok(()), |begun| block_on(begun.done()))?;
        begun = Some(block_on(table.begin_import(rows))?);
        Ok(())
    })?;
    begun.take().map_or(Ok(()), |begun| block_on(begun.done()))
}

/// Writes the snapshots of all shards of this process at the same time: each to a file of its own, and with a lifetime the keys
/// without a row to another.
pub(crate) fn write_shards(
    snapshots: &mut [ShardSnapshot],
    table: &TableClient,
    folder: &OpenFolder,
    plan: CutPlan,
) -> Result<Vec<FileEntry>, Fault> {
    let write_all = |snapshot: &mut ShardSnapshot| {
        let file = |what: &str| {
            let shard = table.route().name(snapshot.shard(), 4);
            let what = format!("{}{what}-{shard}.arrow", table.table());
            file_name(plan.number, plan.try_id, &what)
        };
        let (rows, absent) = (file(""), file("-absent"));
        let of_shard = table.route().cells_of(snapshot.shard());
        let mut files = vec![write(snapshot, table, folder, &rows)?];
        if has_usages(table.config()) {
            let next = || block_on(snapshot.next_absent(absent_file::PAGE));
            files.push(absent_file::write(CheckedWriter::new(folder.create(&absent)?), &absent, next)?);
        }
        files.iter_mut().for_each(|file| file.cells = Some((of_shard.start as u32, of_shard.end as u32)));
        Ok(files)
    };
    let written: Result<Vec<_>, Fault> = std::thread::scope(|scope| {
        let start = |snapshot| started(Builder::new().spawn_scoped(scope, || write_all(snapshot)));
        let writing: Vec<_> = snapshots.iter_mut().map(start).collect::<Result<_, _>>()?;
        writing.into_iter().map(joined).collect()
    });
    Ok(written?.concat())
}

/// Puts the rows of all layers into the shards of `table` that this process holds. Files without a key of these shards are not read. Reads
/// the files of a layer at the same time: first the files of keys without a row, then the files of rows, because a removed key may have got
/// a row again.
///
/// # Errors
/// As [`read`].
pub(crate) fn load(folder: &OpenFolder, layers: &TableLayers, table: &TableClient) -> Result<(), Fault> {
    let held = table.route().cells();
    if let Some(oldest) = layers.layers.first() {
        block_on(table.expect_rows(|cells| rows_in(&oldest.files, cells, table)))?;
    }
    let has_held = |file: &&FileEntry| cells(file).is_none_or(|cells| cells.start < held.end && held.start < cells.end);
    for layer in &layers.layers {
        let (absent, rows): (Vec<_>, Vec<_>) = layer.files.iter().partition(|file| file.absent.is_some());
        for files in [absent, rows] {
            check_cells(&files).map_err(|what| {
                Fault::user(format!("{folder} is damaged: checkpoint {}: {what}", layer.checkpoint))
                    .kind(FaultKind::Damaged)
            })?;
            std::thread::scope(|scope| {
                let start = |entry| started(Builder::new().spawn_scoped(scope, move || read(folder, entry, table)));
                let reading: Vec<_> = files.into_iter().filter(has_held).map(start).collect::<Result<_, _>>()?;
                reading.into_iter().try_for_each(joined)
            })?;
        }
    }
    Ok(())
}

/// The cells of the keys in a file; `None`: of all.
fn cells(file: &FileEntry) -> Option<Range<usize>> {
    file.cells.map(|(first, end)| first as usize..end as usize)
}

/// An estimate of the rows of these cells in the files: keys are spread evenly over the cells of a file. At most as many as the bytes of
/// the files can hold.
fn rows_in(files: &[FileEntry], of: Range<usize>, table: &TableClient) -> usize {
    let row = 8 + 4 * (table.row_dim() + table.state_dim()) as u64;
    let rows = |file: &FileEntry| {
        let cells = cells(file).unwrap_or(0..CELLS);
        let both = cells.end.min(of.end).saturating_sub(cells.start.max(of.start));
        let rows = file.rows.unwrap_or_default().min(file.bytes / row) as f64;
        rows * both as f64 / cells.len().max(1) as f64
    };
    files.iter().map(rows).sum::<f64>() as usize
}

/// Fails if files of one kind that say their cells leave out a cell, or have one twice.
fn check_cells(files: &[&FileEntry]) -> Result<(), String> {
    let mut parts: Vec<_> = files.iter().filter_map(|file| cells(file)).collect();
    if parts.is_empty() {
        return Ok(());
    }
    parts.sort_by_key(|cells| (cells.start, cells.end));
    let end = parts.iter().try_fold(0, |end, cells| (cells.start == end && end <= cells.end).then_some(cells.end));
    if end != Some(CELLS) || parts.len() < files.len() {
        return Err(format!("its files are of the cells {parts:?}, expected each of {CELLS} once"));
    }
    Ok(())
}

fn started<T>(thread: std::io::Result<ScopedJoinHandle<'_, T>>) -> Result<ScopedJoinHandle<'_, T>, Fault> {
    thread.map_err(|e| Fault::no_thread("a thread that reads or writes table rows", e))
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Fault>>) -> Result<T, Fault> {
    thread.join().map_err(|panic| Fault::of_panic("a thread that reads or writes table rows panicked", &*panic))?
}
