//! Table rows as Parquet, one file per shard and group of keys, with the column `key`, one column per row part, and, if the folder has the state
//! of the optimizers, the column `optimizer.state`: all floats of state of a row.
//!
//! Weights do not compress, so the values are stored plain. Both functions block on the store and on the shard, a page of
//! rows at a time.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use forebay_actors::{Fault, Source, StageCx};
use forebay_connectors::staged::{OpenFolder, StagedFolder};
use forebay_connectors::{Input, ParquetSource, ReadOptions};
use forebay_ps::{ExportBlock, Life, PartConfig, TableClient, TableConfig, group_of};
use futures::executor::block_on;
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;

use super::absent_file;
use super::checked::{CheckedWriter, FileEntry, cannot_write};
use crate::sorted_rows::SortedRows;

/// The column of the optimizers' state.
const STATE: &str = "optimizer.state";

/// The columns of what a table with a lifetime remembers of a row.
const SEEN: &str = "lifetime.seen";
const SCORE: &str = "lifetime.score";

/// Rows per request to a shard.
const PAGE: usize = 65_536;

/// Rows per row group. Small enough that several are fetched and decoded while one is put into the table.
const GROUP: usize = 2 * PAGE;

fn part_type(part: &PartConfig) -> DataType {
    match part.dim {
        1 => DataType::Float32,
        dim => floats(dim),
    }
}

fn floats(each: usize) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, false)), each as i32)
}

/// The columns of a file, with or without the state of optimizers.
fn schema(config: &TableConfig, state: bool) -> SchemaRef {
    let state_dim = config.state_dim();
    let mut fields = vec![Field::new("key", DataType::UInt64, false)];
    fields.extend(config.widest_parts().iter().map(|part| Field::new(&part.name, part_type(part), false)));
    if state && state_dim > 0 {
        fields.push(Field::new(STATE, floats(state_dim), false));
    }
    if state && config.has_lifetime() {
        fields.push(Field::new(SEEN, DataType::UInt32, false));
        fields.push(Field::new(SCORE, DataType::Float32, false));
    }
    Arc::new(Schema::new(fields))
}

/// Writes the rows of a shard, with the state of their optimizers if `state` says so: a file for each group.
pub(super) fn write(
    table: &TableClient,
    shard: usize,
    state: bool,
    staged: &StagedFolder,
) -> Result<Vec<FileEntry>, Fault> {
    let (config, mut from, mut files) = (table.config(), 0, Vec::new());
    let mut next = block_on(table.export(shard, from, PAGE))?;
    for (number, group) in config.of_groups().iter().enumerate() {
        let path = format!("tables/{}/shard-{shard:04}.parquet", group.name);
        let file = write_pages(group, state, staged, &path, |_| {
            // Groups come in their order; a page may have rows of several.
            let own = next.keys.iter().take_while(|key| number_of(config, **key) == number).count();
            if own == 0 {
                return Ok(ExportBlock::default());
            }
            from += own;
            let rest = split_off(&mut next, own, config);
            let after = if rest.keys.is_empty() { block_on(table.export(shard, from, PAGE))? } else { rest };
            let page = std::mem::replace(&mut next, after);
            Ok(narrowed(page, config, group))
        })?;
        files.push(FileEntry { group: (number > 0).then(|| group.name.as_str().into()), ..file });
    }
    Ok(files)
}

/// Takes the rows from row `at` on out of a page.
fn split_off(page: &mut ExportBlock, at: usize, config: &TableConfig) -> ExportBlock {
    let lives = if page.lives.is_empty() { Vec::new() } else { page.lives.split_off(at) };
    ExportBlock {
        keys: page.keys.split_off(at),
        weights: page.weights.split_off(at * config.row_dim()),
        state: page.state.split_off(at * config.state_dim()),
        lives,
    }
}

/// The number of the group of a key.
fn number_of(config: &TableConfig, key: u64) -> usize {
    if config.groups.is_empty() { 0 } else { group_of(key) }
}

/// Rows of a group, padded to those of the table, as those of the group.
fn narrowed(page: ExportBlock, config: &TableConfig, group: &TableConfig) -> ExportBlock {
    if config.groups.is_empty() {
        return page;
    }
    let weights = resized(&page.weights, config.row_dim(), group.row_dim());
    let state = resized(&page.state, config.state_dim(), group.state_dim());
    let lives = if group.has_lifetime() { page.lives } else { Vec::new() };
    ExportBlock { keys: page.keys, weights, state, lives }
}

/// Rows of `from` floats as rows of `to`: cut, or with zeros at their end.
fn resized(rows: &[f32], from: usize, to: usize) -> Vec<f32> {
    let both = from.min(to);
    let mut all = vec![0.0; rows.len().checked_div(from).unwrap_or(0) * to];
    if both > 0 {
        all.chunks_exact_mut(to)
            .zip(rows.chunks_exact(from))
            .for_each(|(to, from)| to[..both].copy_from_slice(&from[..both]));
    }
    all
}

/// Writes rows without state, by ascending key; those of a table with groups as wide as those of the widest.
pub(crate) fn write_sorted(
    rows: &SortedRows,
    config: &TableConfig,
    staged: &StagedFolder,
    path: &str,
) -> Result<FileEntry, Fault> {
    write_pages(config, false, staged, path, |from| Ok(rows.page(from)))
}

/// Writes the rows that `page` gives, from a row number on, until it gives none.
fn write_pages(
    config: &TableConfig,
    state: bool,
    staged: &StagedFolder,
    path: &str,
    mut page: impl FnMut(usize) -> Result<ExportBlock, Fault>,
) -> Result<FileEntry, Fault> {
    let schema = schema(config, state);
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::PLAIN)
        .set_max_row_group_row_count(Some(GROUP))
        .build();
    let file = CheckedWriter::create(staged, path)?;
    let name = file.name().to_owned();
    let failed = |e: parquet::errors::ParquetError| cannot_write(&name, e);
    let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(failed)?;
    let mut from = 0;
    loop {
        let page = page(from)?;
        if page.keys.is_empty() {
            break;
        }
        from += page.keys.len();
        let batch = to_batch(&schema, config, page, state)?;
        writer.write(&batch).map_err(failed)?;
    }
    writer.into_inner().map_err(failed)?.finish(path, Some(from as u64))
}

fn to_batch(
    schema: &SchemaRef,
    config: &TableConfig,
    page: ExportBlock,
    with_state: bool,
) -> Result<RecordBatch, Fault> {
    let (row_dim, state_dim) = (config.row_dim(), config.state_dim());
    let ExportBlock { keys, weights, state, lives } = page;
    let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(keys))];
    let mut at = 0;
    for part in config.widest_parts() {
        let values: Vec<f32> = weights.chunks_exact(row_dim).flat_map(|row| &row[at..at + part.dim]).copied().collect();
        at += part.dim;
        let values = Arc::new(Float32Array::from(values));
        columns.push(match part_type(part) {
            DataType::FixedSizeList(field, dim) => Arc::new(FixedSizeListArray::new(field, dim, values, None)),
            _ => values,
        });
    }
    if with_state && state_dim > 0 {
        let element = Arc::new(Field::new("element", DataType::Float32, false));
        columns.push(Arc::new(FixedSizeListArray::new(
            element,
            state_dim as i32,
            Arc::new(Float32Array::from(state)),
            None,
        )));
    }
    if with_state && config.has_lifetime() {
        columns.push(Arc::new(UInt32Array::from_iter_values(lives.iter().map(|life| life.seen))));
        columns.push(Arc::new(Float32Array::from_iter_values(lives.iter().map(|life| life.score))));
    }
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Fault::internal("table rows do not fit their schema").because(e))
}

/// Puts the rows of a file into the shards of `table`: all of them, or those that this process holds. With `state`, their
/// optimizers go on with the state of the file.
pub(super) fn read(folder: &OpenFolder, entry: &FileEntry, state: bool, table: &TableClient) -> Result<(), Fault> {
    if entry.absent.is_some() && entry.rows != Some(0) {
        return absent_file::read(folder, entry, table);
    }
    read_pages(folder, entry, table.config(), state, async |keys, weights, state, lives| {
        table.import_held(keys, weights, state, lives).await
    })
}

/// Calls `take` with the rows of a file, page by page: keys, `[keys × row dim]` weights, and with `state` the state of their
/// optimizers, `[keys × state dim]`, and their lives, if the table has a lifetime. The rows of a group come padded to those of the table.
///
/// # Errors
/// A user fault that names the file if its rows are not those of such a table, or of another group; what `take` returns, with the name
/// of the file.
pub(crate) fn read_pages(
    folder: &OpenFolder,
    entry: &FileEntry,
    config: &TableConfig,
    state: bool,
    mut take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[Life]) -> Result<(), Fault> + Send,
) -> Result<(), Fault> {
    if entry.rows == Some(0) {
        return Ok(());
    }
    let name = folder.name(&entry.path);
    let mut take = async |keys: &[u64], weights: &[f32], state: Option<&[f32]>, lives: &[Life]| {
        let taken = take(keys, weights, state, lives).await;
        taken.map_err(|fault| fault.context(format!("cannot take the rows of {name}")))
    };
    if !config.groups.is_empty() {
        let groups = config.of_groups();
        let number = match &entry.group {
            None => Some(0),
            Some(name) => groups.iter().skip(1).position(|group| group.name == **name).map(|at| at + 1),
        };
        let Some((number, group)) = number.and_then(|number| Some((number, groups.get(number)?))) else {
            let found = entry.group.as_deref().unwrap_or_default();
            return Err(Fault::user(format!("cannot read {name}: the manifest has no group `{found}`")));
        };
        return read_file(folder, entry, group, state, async |keys, weights, state, lives| {
            if let Some(key) = keys.iter().find(|key| group_of(**key) != number) {
                return Err(Fault::user(format!("cannot read {name}: key {key} is not of the group `{}`", group.name)));
            }
            let weights = resized(weights, group.row_dim(), config.row_dim());
            let state = state.map(|state| match group.state_dim() {
                0 => vec![0.0; keys.len() * config.state_dim()],
                dim => resized(state, dim, config.state_dim()),
            });
            take(keys, &weights, state.as_deref(), lives).await
        });
    }
    read_file(folder, entry, config, state, take)
}

/// As [`read_pages`], of a file whose rows are those of a table without groups.
fn read_file(
    folder: &OpenFolder,
    entry: &FileEntry,
    config: &TableConfig,
    state: bool,
    take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[Life]) -> Result<(), Fault> + Send,
) -> Result<(), Fault> {
    let name = folder.name(&entry.path);
    let input = folder.input(&entry.path)?;
    // On its own thread, because the caller may be inside a runtime, and runtimes cannot be nested.
    let rows = std::thread::scope(|scope| {
        let pages = || forebay_connectors::convert::block_on(pages(input, &name, config, state, take));
        scope.spawn(pages).join().map_err(|_| Fault::internal("reading a table panicked"))?
    })?;
    match entry.rows {
        Some(expected) if expected != rows => {
            Err(Fault::user(format!("cannot read {name}: {rows} rows, the manifest expects {expected}")))
        }
        _ => Ok(()),
    }
}

/// Returns the number of rows.
async fn pages(
    input: Input,
    name: &str,
    config: &TableConfig,
    state: bool,
    mut take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[Life]) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    let expected = schema(config, state);
    let columns: Vec<&str> = expected.fields().iter().map(|field| field.name().as_str()).collect();
    let options = ReadOptions { batch_rows: PAGE, ..ReadOptions::default() };
    let mut source = ParquetSource::new(input, options).columns(columns);
    source.open(&StageCx::detached("load")).await?;
    let found = source.schema().ok_or_else(|| Fault::internal("an open source has a schema"))?;
    for (there, field) in found.fields().iter().zip(expected.fields()) {
        if !same_type(there.data_type(), field.data_type()) {
            return Err(Fault::user(format!(
                "cannot read {name}: column `{}` is {}, the manifest expects {}",
                field.name(),
                there.data_type(),
                field.data_type()
            )));
        }
    }
    let (mut weights, mut lives, mut rows) = (Vec::new(), Vec::new(), 0);
    while let Some(page) = source.next().await? {
        let batch = page.batch;
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            return Err(Fault::user(format!("cannot read {name}: it has missing values, expected none")));
        }
        from_batch(&batch, config, &mut weights);
        let keys = batch.column_by_name("key").expect("asked for by name").as_primitive::<UInt64Type>();
        let list = batch.column_by_name(STATE).map(|column| column.as_fixed_size_list().values());
        let state = list.map(|list| list.as_primitive::<Float32Type>().values() as &[f32]);
        lives.clear();
        if let (Some(seen), Some(score)) = (batch.column_by_name(SEEN), batch.column_by_name(SCORE)) {
            let (seen, score) = (seen.as_primitive::<UInt32Type>(), score.as_primitive::<Float32Type>());
            let both = seen.values().iter().zip(score.values());
            lives.extend(both.map(|(seen, score)| Life { seen: *seen, score: *score }));
        }
        take(keys.values(), &weights, state, &lives).await?;
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}

/// Compares types, but ignores the name and the nullability of a list's elements.
fn same_type(found: &DataType, expected: &DataType) -> bool {
    match (found, expected) {
        (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => n == m && a.data_type() == b.data_type(),
        _ => found == expected,
    }
}

/// Converts the columns of the row parts to rows, `[n × row dim]`.
fn from_batch(batch: &RecordBatch, config: &TableConfig, weights: &mut Vec<f32>) {
    let row_dim = config.row_dim();
    weights.clear();
    weights.resize(batch.num_rows() * row_dim, 0.0);
    let mut at = 0;
    for part in config.widest_parts() {
        let column = batch.column_by_name(&part.name).expect("asked for by name");
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
