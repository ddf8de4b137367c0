//! Table rows as Parquet, one file per shard and group of keys, with the columns of [`TableColumns`].
//!
//! Weights do not compress, so the values are stored plain. Both functions block on the store and on the shard, a page of
//! rows at a time.

use arrow::array::Array;
use arrow::datatypes::SchemaRef;
use forebay_actors::{Fault, Source, StageCx};
use forebay_connectors::staged::{OpenFolder, StagedFolder};
use forebay_connectors::{Input, ParquetSource, ReadOptions};
use forebay_ps::{ExportBlock, RowUsage, TableClient, TableConfig, group_of};
use futures::executor::block_on;
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;

use super::absent_file;
use super::checked::{CheckedWriter, FileEntry, cannot_write};
use super::table_columns::{self, TableColumns};
use crate::own_thread::on_own_thread;

/// Rows per request to a shard.
const PAGE: usize = 65_536;

/// Rows per row group. Small enough that several are fetched and decoded while one is put into the table.
const GROUP: usize = 2 * PAGE;

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
        let file = write_pages(TableColumns::of(group, state), staged, &path, |_| {
            // Groups come in their order; a page may have rows of several.
            let own = next.keys.iter().take_while(|key| number_of(config, **key) == number).count();
            if own == 0 {
                return Ok(ExportBlock::default());
            }
            from += own;
            let rest = split_off(&mut next, own, table);
            let after = if rest.keys.is_empty() { block_on(table.export(shard, from, PAGE))? } else { rest };
            let page = std::mem::replace(&mut next, after);
            Ok(narrowed(page, config, group))
        })?;
        files.push(FileEntry { group: (number > 0).then(|| group.name.as_str().into()), ..file });
    }
    Ok(files)
}

/// Takes the rows from row `at` on out of a page.
fn split_off(page: &mut ExportBlock, at: usize, table: &TableClient) -> ExportBlock {
    let usages = if page.usages.is_empty() { Vec::new() } else { page.usages.split_off(at) };
    ExportBlock {
        keys: page.keys.split_off(at),
        weights: page.weights.split_off(at * table.row_dim()),
        state: page.state.split_off(at * table.state_dim()),
        usages,
    }
}

/// The number of the group of a key.
fn number_of(config: &TableConfig, key: u64) -> usize {
    if config.groups.is_empty() { 0 } else { group_of(key) }
}

/// Cuts rows of a group, which are padded to the width of the table, to the width of the group.
fn narrowed(page: ExportBlock, config: &TableConfig, group: &TableConfig) -> ExportBlock {
    if config.groups.is_empty() {
        return page;
    }
    let weights = resized(&page.weights, config.row_dim(), group.row_dim());
    let state = resized(&page.state, config.state_dim(), group.state_dim());
    let usages = if group.has_lifetime() { page.usages } else { Vec::new() };
    ExportBlock { keys: page.keys, weights, state, usages }
}

/// Resizes rows of `from` floats to `to` floats: cuts them, or appends zeros.
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

/// Writes the rows that `page` gives, from a row number on, until it gives none.
///
/// # Errors
/// The faults of `page`; a user fault that names the part and the key of a value that cannot be rounded.
pub(crate) fn write_pages(
    columns: TableColumns<'_>,
    staged: &StagedFolder,
    path: &str,
    mut page: impl FnMut(usize) -> Result<ExportBlock, Fault>,
) -> Result<FileEntry, Fault> {
    let (mut writer, mut from) = (TableWriter::begin(columns, staged, path)?, 0);
    loop {
        let page = page(from)?;
        if page.keys.is_empty() {
            return writer.finish();
        }
        from += page.keys.len();
        writer.write(page)?;
    }
}

/// Writes one file, page by page.
pub(crate) struct TableWriter<'a> {
    columns: TableColumns<'a>,
    schema: SchemaRef,
    writer: ArrowWriter<CheckedWriter>,
    name: String,
    path: String,
    rows: u64,
}

impl<'a> TableWriter<'a> {
    /// Begins a file that the manifest names `path`.
    pub(crate) fn begin(columns: TableColumns<'a>, staged: &StagedFolder, path: &str) -> Result<Self, Fault> {
        let schema = columns.schema();
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_max_row_group_row_count(Some(GROUP))
            .build();
        let file = CheckedWriter::create(staged, path)?;
        let name = file.name().to_owned();
        let writer =
            ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(|e| cannot_write(&name, e))?;
        Ok(Self { columns, schema, writer, name, path: path.to_owned(), rows: 0 })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// A user fault that names the part and the key of a value that cannot be rounded.
    pub(crate) fn write(&mut self, page: ExportBlock) -> Result<(), Fault> {
        self.rows += page.keys.len() as u64;
        let batch = self.columns.to_batch(&self.schema, page)?;
        self.writer.write(&batch).map_err(|e| cannot_write(&self.name, e))
    }

    /// Waits until the store has the file.
    pub(crate) fn finish(self) -> Result<FileEntry, Fault> {
        let file = self.writer.into_inner().map_err(|e| cannot_write(&self.name, e))?;
        file.finish(&self.path, Some(self.rows))
    }
}

/// Puts the rows of a file into the shards of `table`: all of them, or those that this process holds. With `state`, their
/// optimizers go on with the state of the file.
pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry, state: bool, table: &TableClient) -> Result<(), Fault> {
    if entry.absent.is_some() && entry.rows != Some(0) {
        return absent_file::read(folder, entry, table);
    }
    read_pages(folder, entry, TableColumns::of(table.config(), state), async |keys, weights, state, usages| {
        table.import_held(keys, weights, state, usages).await
    })
}

/// Calls `take` with the rows of a file, page by page: keys and weights, `[keys × row dim]`. From a file with state also the state of the
/// optimizers, `[keys × state dim]`, and the usages, if the table has a lifetime. The rows of a group come padded to the width of the
/// table.
///
/// # Errors
/// A user fault that names the file if its rows do not fit the table, or are of another group; the fault of `take`, with the name of the
/// file.
pub(crate) fn read_pages(
    folder: &OpenFolder,
    entry: &FileEntry,
    columns: TableColumns<'_>,
    mut take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[RowUsage]) -> Result<(), Fault> + Send,
) -> Result<(), Fault> {
    let config = columns.config;
    if entry.rows == Some(0) {
        return Ok(());
    }
    let name = folder.name(&entry.path);
    let mut take = async |keys: &[u64], weights: &[f32], state: Option<&[f32]>, usages: &[RowUsage]| {
        let taken = take(keys, weights, state, usages).await;
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
        return read_file(folder, entry, columns.of_group(group), async |keys, weights, state, usages| {
            if let Some(key) = keys.iter().find(|key| group_of(**key) != number) {
                return Err(Fault::user(format!("cannot read {name}: key {key} is not of the group `{}`", group.name)));
            }
            let weights = resized(weights, group.row_dim(), config.row_dim());
            let state = state.map(|state| match group.state_dim() {
                0 => vec![0.0; keys.len() * config.state_dim()],
                dim => resized(state, dim, config.state_dim()),
            });
            take(keys, &weights, state.as_deref(), usages).await
        });
    }
    read_file(folder, entry, columns, take)
}

/// As [`read_pages`], for a table without groups.
fn read_file(
    folder: &OpenFolder,
    entry: &FileEntry,
    columns: TableColumns<'_>,
    take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[RowUsage]) -> Result<(), Fault> + Send,
) -> Result<(), Fault> {
    let name = folder.name(&entry.path);
    let input = folder.input(&entry.path)?;
    let pages = || forebay_connectors::convert::block_on(pages(input, &name, columns, take));
    let rows = on_own_thread("reading a table", pages)?;
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
    columns: TableColumns<'_>,
    mut take: impl AsyncFnMut(&[u64], &[f32], Option<&[f32]>, &[RowUsage]) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    let expected = columns.schema();
    let names: Vec<&str> = expected.fields().iter().map(|field| field.name().as_str()).collect();
    let options = ReadOptions { batch_rows: PAGE, ..ReadOptions::default() };
    let mut source = ParquetSource::new(input, options).columns(names);
    let cx = StageCx::detached("load");
    source.open(&cx).await?;
    let found = source.schema().ok_or_else(|| Fault::internal("an open source has a schema"))?;
    for (there, field) in found.fields().iter().zip(expected.fields()) {
        if !table_columns::same_type(there.data_type(), field.data_type()) {
            return Err(Fault::user(format!(
                "cannot read {name}: column `{}` is {}, the manifest expects {}",
                field.name(),
                there.data_type(),
                field.data_type()
            )));
        }
    }
    let (mut weights, mut usages, mut rows) = (Vec::new(), Vec::new(), 0);
    while let Some(page) = source.next(&cx).await? {
        let batch = page.batch;
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            return Err(Fault::user(format!("cannot read {name}: it has missing values, expected none")));
        }
        let read = columns.read_batch(&batch, &mut weights);
        read.map_err(|fault| fault.context(format!("cannot read {name}")))?;
        table_columns::usages(&batch, &mut usages);
        take(table_columns::keys(&batch), &weights, table_columns::state(&batch), &usages).await?;
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}
