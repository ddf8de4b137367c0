//! Reads the footers of Parquet files, kept for all epochs, and the types of columns over all files.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::DataType;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_base::{catch_expected, panic_message};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use super::selection::{self, Selection};
use super::types;
use crate::column_types::dictionary;
use crate::file::DataFile;
use crate::names::{names_of, unnamed_columns};
use crate::partition_columns::PartitionColumns;
use crate::requests::coalesce;
use crate::store_error::store_fault;
use crate::typed_columns;

/// Footers that are fetched at once.
const AT_ONCE: usize = 16;

/// Bytes read from the end of a file at first: most footers are smaller, so that one request suffices.
const FOOTER_GUESS: usize = 64 * 1024;

/// One file, ready to be read.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) file: Arc<DataFile>,
    pub(crate) metadata: ArrowReaderMetadata,
    /// The columns that the job reads.
    pub(crate) selected: Selection,
}

impl Footer {
    pub(crate) fn rows(&self, row_group: usize) -> u64 {
        self.metadata.metadata().row_group(row_group).num_rows().max(0) as u64
    }

    pub(super) fn rows_of_groups(&self) -> Vec<u64> {
        (0..self.selected.ranges.len()).map(|row_group| self.rows(row_group)).collect()
    }

    /// Bytes that are held for a row group at most, when its wanted columns are fetched.
    pub(super) fn cost(&self, row_group: usize) -> u64 {
        coalesce(&self.selected.ranges[row_group]).iter().map(|r| r.end - r.start).sum()
    }

    /// Whether a selected column is a list, or lies in one.
    pub(super) fn has_lists(&self) -> bool {
        let columns = self.metadata.metadata().file_metadata().schema_descr().columns();
        columns.iter().enumerate().any(|(leaf, c)| c.max_rep_level() > 0 && self.selected.mask.leaf_included(leaf))
    }
}

/// Reads all footers, in the order of the files. `columns` is `None` for all columns of the first file, or with `of_all_files` for all
/// columns of all files; `as_text`: columns that are text where they are folders.
pub(crate) async fn load(
    files: Vec<DataFile>,
    columns: Option<&[String]>,
    optional: &[String],
    of_all_files: bool,
    as_text: &[String],
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
    let (wanted, optional) = match columns {
        Some(columns) => (columns.to_vec(), optional.to_vec()),
        None => {
            let names: Vec<_> =
                metadata.iter().map(|(file, found)| (file.name.as_str(), names_of(found.schema()))).collect();
            unnamed_columns(&names, of_all_files)
        }
    };
    let text = if dictionaries { dictionary() } else { DataType::Utf8 };
    let folders = PartitionColumns::new(metadata.iter().map(|(file, _)| file), &wanted, as_text, &text);
    let mut footers: Vec<Footer> = Vec::with_capacity(metadata.len());
    for (file, metadata) in metadata {
        let selected = selection::select(&file, &metadata, &wanted, &optional, &folders)?;
        footers.push(Footer { file: Arc::new(file), metadata, selected });
    }
    let files: Vec<_> = footers.iter().map(|footer| (&*footer.file, &footer.selected.found.schema)).collect();
    if let Some(schema) = typed_columns::unified(&files)? {
        footers.iter_mut().for_each(|footer| footer.selected.found.read_as(&schema));
    }
    Ok(footers.into_iter().map(Arc::new).collect())
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
        .load_and_finish(Fetch::Store(file), file.size)
        .await
        .map_err(|e| match e {
            ParquetError::External(e) => match e.downcast::<object_store::Error>() {
                Ok(e) => store_fault(&format!("cannot read the footer of `{name}`"), *e),
                // For instance, the footer has text that is not UTF-8.
                Err(e) => cut().because(e),
            },
            // Its last four bytes are PARE instead of PAR1.
            e if e.to_string().contains("encrypted footer") => Fault::user(format!(
                "`{name}` is encrypted, which Forebay does not read: write the file again without encryption"
            )),
            e => cut().because(e),
        })?;
    let metadata = Arc::new(metadata);
    let plain = as_written(name, &metadata)?;
    let read_as = |dictionaries| {
        let schema = types::read_as(plain.schema(), plain.parquet_schema(), dictionaries);
        let options = ArrowReaderOptions::new().with_schema(Arc::new(schema));
        arrow_metadata(&metadata, options)
    };
    // A file whose strings cannot be read as dictionaries is read in its own types.
    match read_as(dictionaries) {
        Err(_) if dictionaries => read_as(false),
        read => read,
    }
    .map_err(|e| Fault::user(format!("`{name}` has columns of types that cannot be read")).because(e))
}

/// The columns in the types of the Arrow schema that the writer left in the footer. If this schema has types that the crate does not know,
/// such as the integers of 128 bits of polars, the columns have Parquet's own types.
fn as_written(name: &str, metadata: &Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata, Fault> {
    let read = |skip| arrow_metadata(metadata, ArrowReaderOptions::new().with_skip_arrow_metadata(skip));
    read(false).or_else(|_| read(true)).map_err(|e| {
        let what = match unknown_column(metadata) {
            Some(column) => format!("column `{column}` of `{name}` has a type that cannot be read"),
            None => format!("`{name}` has columns of types that cannot be read"),
        };
        Fault::user(format!("{what}: write the file again with other types")).because(e)
    })
}

/// The first column whose type in Parquet has no type in Arrow.
fn unknown_column(metadata: &ParquetMetaData) -> Option<&str> {
    // Each in a schema of its own: a mask leaves out columns too late.
    let alone = |column: &TypePtr| {
        let schema = Type::group_type_builder("schema").with_fields(vec![Arc::clone(column)]).build()?;
        parquet_to_arrow_schema(&SchemaDescriptor::new(Arc::new(schema)), None)
    };
    let is_known = |column: &TypePtr| matches!(catch_expected(|| alone(column)), Ok(Ok(_)));
    let columns = metadata.file_metadata().schema_descr().root_schema().get_fields();
    columns.iter().find(|column| !is_known(column)).map(|column| column.name())
}

/// The columns as Arrow sees them. The crate panics at some damaged Arrow schemas in the footer; here that is an error.
fn arrow_metadata(
    metadata: &Arc<ParquetMetaData>,
    options: ArrowReaderOptions,
) -> Result<ArrowReaderMetadata, ParquetError> {
    let read = || ArrowReaderMetadata::try_new(Arc::clone(metadata), options);
    catch_expected(read).unwrap_or_else(|panic| Err(ParquetError::General(panic_message(&*panic).to_owned())))
}

/// Where the parser of footers gets its bytes from.
pub(super) enum Fetch<'a> {
    Store(&'a DataFile),
    /// Bytes that were read, and the first one's place in the file.
    Read(u64, Bytes),
}

impl MetadataFetch for Fetch<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        match self {
            Self::Store(file) => {
                async move { file.get(range).await.map_err(|e| ParquetError::External(Box::new(e))) }.boxed()
            }
            Self::Read(start, bytes) => {
                let within = range.start.checked_sub(*start).zip(range.end.checked_sub(*start));
                let within = within.filter(|(from, to)| from <= to && *to <= bytes.len() as u64);
                let bytes = within.map(|(from, to)| bytes.slice(from as usize..to as usize));
                async move { bytes.ok_or_else(|| ParquetError::EOF(format!("bytes {range:?} were not read"))) }.boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::metadata::FileMetaData;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::input::Input;

    #[test]
    fn a_column_of_a_type_that_arrow_does_not_have_is_named() {
        let schema =
            "message m { required int32 a; required group pairs (LIST) { required int32 x; required int32 y; } }";
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap())));
        let metadata = ParquetMetaData::new(FileMetaData::new(2, 1, None, None, schema, None), Vec::new());
        let said = as_written("f.parquet", &Arc::new(metadata)).unwrap_err().to_string();
        assert!(said.contains("column `pairs` of `f.parquet` has a type that cannot be read"), "{said}");
    }

    /// A bug: it was called not whole, as if it were still being written.
    #[tokio::test]
    async fn a_file_that_is_replaced_after_it_was_listed_is_told_as_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        std::fs::write(&path, "PAR1 and so on").unwrap();
        let files = Input::from(path.clone()).list().await.unwrap();
        std::fs::write(&path, "of another length, and no Parquet file").unwrap();
        let said = load(files, None, &[], false, &[], false).await.unwrap_err().to_string();
        assert!(said.contains("a.parquet") && said.contains("was replaced or changed after it was listed"), "{said}");
    }
}
