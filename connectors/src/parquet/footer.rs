//! What a Parquet file holds, from its footer, and which of its columns are wanted.
//!
//! Comes in: files and column names. Goes out: [`Footer`]s, kept for all epochs, each checked against the first file.
//! Awaits the store; decoding a footer is short and happens in place.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use forebay_actors::Fault;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ParquetMetaDataReader;

use crate::input::DataFile;
use crate::store::store_fault;

/// Footers that are fetched at once.
const AT_ONCE: usize = 16;

/// Bytes read from the end of a file at first: most footers are smaller, so that one request suffices.
const FOOTER_GUESS: usize = 64 * 1024;

/// One file, ready to be read.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) file: DataFile,
    pub(crate) metadata: ArrowReaderMetadata,
    pub(crate) mask: ProjectionMask,
    /// For each column wanted its place among the columns that the reader yields, which come in the file's order.
    pub(crate) order: Vec<usize>,
    /// The columns wanted, in the order wanted.
    pub(crate) schema: SchemaRef,
    /// For each row group the byte ranges of the columns wanted, checked against the file's size, sorted.
    pub(crate) ranges: Vec<Vec<Range<u64>>>,
}

impl Footer {
    /// Rows of a row group.
    pub(crate) fn rows(&self, row_group: usize) -> u64 {
        self.metadata.metadata().row_group(row_group).num_rows().max(0) as u64
    }
}

/// Reads all footers, in the order of the files. `columns` is `None` for all columns of the first file.
pub(crate) async fn load(
    files: Vec<DataFile>,
    columns: Option<&[String]>,
    dictionaries: bool,
) -> Result<Vec<Arc<Footer>>, Fault> {
    let metadata: Vec<_> = futures::stream::iter(files)
        .map(|file| async move {
            let metadata = read(&file, dictionaries).await?;
            Ok::<_, Fault>((file, metadata))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let wanted: Vec<String> = match (columns, metadata.first()) {
        (Some(columns), _) => columns.to_vec(),
        (None, Some((_, first))) => first.schema().fields().iter().map(|f| f.name().clone()).collect(),
        (None, None) => Vec::new(),
    };
    let mut footers: Vec<Arc<Footer>> = Vec::with_capacity(metadata.len());
    for (file, metadata) in metadata {
        let footer = select(file, metadata, &wanted)?;
        if let Some(first) = footers.first() {
            same_types(first, &footer)?;
        }
        footers.push(Arc::new(footer));
    }
    Ok(footers)
}

async fn read(file: &DataFile, dictionaries: bool) -> Result<ArrowReaderMetadata, Fault> {
    let name = &file.name;
    let cut = || {
        Fault::user(format!(
            "`{name}` is not a whole Parquet file ({} bytes): it is of another format, was cut short, or is still being written",
            file.size
        ))
    };
    let metadata = ParquetMetaDataReader::new()
        .with_prefetch_hint(Some(FOOTER_GUESS.min(file.size as usize)))
        .load_and_finish(Fetch(file), file.size)
        .await
        .map_err(|e| match e {
            ParquetError::External(e) => match e.downcast::<object_store::Error>() {
                Ok(e) => store_fault(&format!("cannot read the footer of `{name}`"), *e),
                Err(e) => Fault::external(format!("cannot read the footer of `{name}`")).because(e),
            },
            e => cut().because(e),
        })?;
    let metadata = Arc::new(metadata);
    let plain =
        ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new()).map_err(|e| cut().because(e))?;
    if !dictionaries {
        return Ok(plain);
    }
    // Strings as dictionaries: a page's distinct values are decoded, and later hashed, once. A file whose schema cannot
    // be asked for so (a nested one, say) is read as it is.
    let fields: Vec<Field> = plain.schema().fields().iter().map(|field| as_dictionary(field)).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, plain.schema().metadata().clone()));
    let options = ArrowReaderOptions::new().with_schema(schema);
    Ok(ArrowReaderMetadata::try_new(metadata, options).unwrap_or(plain))
}

fn as_dictionary(field: &Field) -> Field {
    match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            field.clone().with_data_type(dictionary)
        }
        _ => field.clone(),
    }
}

fn select(file: DataFile, metadata: ArrowReaderMetadata, wanted: &[String]) -> Result<Footer, Fault> {
    let schema = metadata.schema();
    let mut roots = Vec::with_capacity(wanted.len());
    for column in wanted {
        match schema.fields().iter().position(|field| field.name() == column) {
            Some(at) => roots.push(at),
            None => {
                return Err(Fault::user(format!(
                    "`{}` has no column `{column}`: expected {}; it has {}",
                    file.name,
                    names(wanted.iter().map(String::as_str)),
                    names(schema.fields().iter().map(|f| f.name().as_str())),
                )));
            }
        }
    }
    if roots.is_empty() {
        return Err(Fault::user(format!("no column of `{}` is asked for: name at least one", file.name)));
    }
    let mut in_file_order = roots.clone();
    in_file_order.sort_unstable();
    in_file_order.dedup();
    let order = roots.iter().map(|root| in_file_order.binary_search(root).expect("it is one of them")).collect();
    let schema = Arc::new(schema.project(&roots).map_err(|e| Fault::internal("projection").because(e))?);
    let parquet = metadata.metadata();
    let mask = ProjectionMask::roots(metadata.parquet_schema(), in_file_order);
    let mut ranges = Vec::with_capacity(parquet.num_row_groups());
    for (number, group) in parquet.row_groups().iter().enumerate() {
        let mut of_group = Vec::new();
        for (leaf, column) in group.columns().iter().enumerate() {
            if !mask.leaf_included(leaf) {
                continue;
            }
            // `byte_range` panics on what a damaged footer may hold.
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let range = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
            let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
            match range.filter(|range| range.end <= file.size) {
                Some(range) => of_group.push(range),
                None => {
                    return Err(Fault::user(format!(
                        "`{}`, row group {number}, column `{}`: the footer places it at byte {start}, {} bytes long, but \
                         the file has {} bytes: the file is damaged, write it anew",
                        file.name,
                        column.column_path(),
                        column.compressed_size(),
                        file.size,
                    )));
                }
            }
        }
        of_group.sort_by_key(|range| range.start);
        ranges.push(of_group);
    }
    Ok(Footer { file, metadata, mask, order, schema, ranges })
}

/// The columns must have the same types in every file; nullability may differ.
fn same_types(first: &Footer, other: &Footer) -> Result<(), Fault> {
    for (expected, found) in first.schema.fields().iter().zip(other.schema.fields()) {
        if expected.data_type() != found.data_type() {
            return Err(Fault::user(format!(
                "column `{}` is {} in `{}` but {} in `{}`: files that are read together must agree",
                found.name(),
                found.data_type(),
                other.file.name,
                expected.data_type(),
                first.file.name,
            )));
        }
    }
    Ok(())
}

/// `label, I1, I2 and 37 more`.
fn names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 50;
    let more = names.len().saturating_sub(SHOWN);
    let mut text = names.take(SHOWN).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

struct Fetch<'a>(&'a DataFile);

impl MetadataFetch for Fetch<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        let file = self.0;
        async move { file.store.get_range(&file.path, range).await.map_err(|e| ParquetError::External(Box::new(e))) }
            .boxed()
    }
}
