//! The columns of files as Parquet and Arrow see them. The files of one writer have equal schemas, which are parsed once and shared.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_base::{catch_expected, panic_message};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ProjectionMask, parquet_to_arrow_schema};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type, TypePtr};

use super::types;

/// Schemas that are remembered: of the last files.
const REMEMBERED: usize = 4;

/// Some columns: in Parquet's types, and in the types that they are decoded as.
#[derive(Debug, PartialEq)]
pub(super) struct FileSchema {
    pub(super) parquet: SchemaDescPtr,
    pub(super) arrow: SchemaRef,
}

/// The schemas of the last files.
pub(super) struct Schemas {
    dictionaries: bool,
    whole: VecDeque<Whole>,
    read: VecDeque<Read>,
}

/// All columns of a file.
struct Whole {
    /// The first bytes of the footer, with all of the schema.
    begin: Bytes,
    /// The Arrow schema that the writer left in the footer.
    written: Option<String>,
    schema: Arc<FileSchema>,
}

/// Those columns of a file that are read.
struct Read {
    of: Arc<FileSchema>,
    /// Their places in it, ascending.
    places: Vec<usize>,
    schema: Arc<FileSchema>,
}

impl Schemas {
    /// `dictionaries`: whether strings are decoded as dictionaries.
    pub(super) fn new(dictionaries: bool) -> Self {
        Self { dictionaries, whole: VecDeque::new(), read: VecDeque::new() }
    }

    /// Parses a footer, without its statistics.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(super) fn parse(&mut self, footer: &Bytes) -> ParquetResult<ParquetMetaData> {
        let skip = ParquetStatisticsPolicy::SkipAll;
        let mut options = ParquetMetaDataOptions::new()
            .with_column_stats_policy(skip.clone())
            .with_encoding_stats_policy(skip.clone())
            .with_size_stats_policy(skip);
        if let Some(known) = self.whole.iter_mut().find_map(|known| known.same_schema(footer)) {
            options.set_schema(known);
        }
        ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&options))
    }

    /// All columns of the file `name`, whose footer was parsed.
    ///
    /// # Errors
    /// A user fault that names the file, and if possible the column of a type that cannot be read.
    pub(super) fn whole(
        &mut self,
        name: &str,
        footer: &Bytes,
        parsed: &Arc<ParquetMetaData>,
    ) -> Result<Arc<FileSchema>, Fault> {
        let parquet = parsed.file_metadata().schema_descr_ptr();
        let written = parsed.file_metadata().key_value_metadata().into_iter().flatten();
        let written = written.filter(|pair| pair.key == ARROW_SCHEMA_META_KEY).find_map(|pair| pair.value.as_ref());
        let is_same =
            |known: &&Whole| Arc::ptr_eq(&known.schema.parquet, &parquet) && known.written.as_ref() == written;
        if let Some(known) = self.whole.iter().find(is_same) {
            return Ok(Arc::clone(&known.schema));
        }
        let arrow = arrow_schema(name, parsed, self.dictionaries)?;
        let begin = self.whole.iter().find(|known| Arc::ptr_eq(&known.schema.parquet, &parquet));
        let begin = begin.map_or(footer, |known| &known.begin).clone();
        let schema = Arc::new(FileSchema { parquet, arrow });
        let known = Whole { begin, written: written.cloned(), schema: Arc::clone(&schema) };
        remember(&mut self.whole, known);
        Ok(schema)
    }

    /// The columns at `places` of a file, ascending.
    ///
    /// # Errors
    /// None, unless the crate cannot read single columns of a schema that it can read.
    pub(super) fn read(&mut self, of: &Arc<FileSchema>, places: Vec<usize>) -> ParquetResult<Arc<FileSchema>> {
        let is_same = |known: &&Read| Arc::ptr_eq(&known.of, of) && known.places == places;
        if let Some(known) = self.read.iter().find(is_same) {
            return Ok(Arc::clone(&known.schema));
        }
        let schema = of.at(&places)?;
        // Files may differ only in columns that are not read.
        let known = self.read.iter().find(|known| *known.schema == schema).map(|known| Arc::clone(&known.schema));
        let schema = known.unwrap_or_else(|| Arc::new(schema));
        remember(&mut self.read, Read { of: Arc::clone(of), places, schema: Arc::clone(&schema) });
        Ok(schema)
    }
}

/// Adds to a list, which forgets its oldest.
fn remember<T>(list: &mut VecDeque<T>, newest: T) {
    if list.len() == REMEMBERED {
        list.pop_back();
    }
    list.push_front(newest);
}

impl Whole {
    /// The schema in Parquet's types, if another file's footer begins with the same one.
    fn same_schema(&mut self, footer: &Bytes) -> Option<SchemaDescPtr> {
        if !footer.starts_with(&self.begin) {
            let common = self.begin.iter().zip(footer).take_while(|(a, b)| a == b).count();
            // The schema comes first. If the bytes that both have hold one, it is the schema of both.
            ParquetMetaDataReader::decode_schema(&footer[..common]).ok()?;
            self.begin.truncate(common);
        }
        Some(Arc::clone(&self.schema.parquet))
    }
}

impl FileSchema {
    /// The leaves of the columns at `places`.
    pub(super) fn leaves(&self, places: &[usize]) -> impl Iterator<Item = usize> {
        let mask = ProjectionMask::roots(&self.parquet, places.iter().copied());
        (0..self.parquet.num_columns()).filter(move |&leaf| mask.leaf_included(leaf))
    }

    /// Whether a column is a list, or lies in one.
    pub(super) fn has_lists(&self) -> bool {
        self.parquet.columns().iter().any(|column| column.max_rep_level() > 0)
    }

    /// What the decoder needs, of a footer with these columns.
    pub(super) fn for_decoder(&self, footer: &Arc<ParquetMetaData>) -> ParquetResult<ArrowReaderMetadata> {
        arrow_metadata(footer, ArrowReaderOptions::new().with_schema(Arc::clone(&self.arrow)))
    }

    /// The columns at `places` alone.
    fn at(&self, places: &[usize]) -> ParquetResult<Self> {
        let root = self.parquet.root_schema();
        let types = places.iter().map(|&place| Arc::clone(&root.get_fields()[place])).collect();
        let parquet = Type::group_type_builder(root.name()).with_fields(types).build()?;
        let parquet = Arc::new(SchemaDescriptor::new(Arc::new(parquet)));
        let fields: Vec<_> = places.iter().map(|&place| Arc::clone(&self.arrow.fields()[place])).collect();
        Ok(Self { parquet, arrow: Arc::new(Schema::new(fields)) })
    }
}

/// The types that the columns of a file are decoded as.
fn arrow_schema(name: &str, parsed: &Arc<ParquetMetaData>, dictionaries: bool) -> Result<SchemaRef, Fault> {
    let plain = as_written(name, parsed)?;
    let read_as = |dictionaries| {
        let schema = types::read_as(plain.schema(), plain.parquet_schema(), dictionaries);
        arrow_metadata(parsed, ArrowReaderOptions::new().with_schema(Arc::new(schema)))
    };
    // A file whose strings cannot be read as dictionaries is read in its own types.
    let read = match read_as(dictionaries) {
        Err(_) if dictionaries => read_as(false),
        read => read,
    };
    let read =
        read.map_err(|e| Fault::user(format!("`{name}` has columns of types that cannot be read")).because(e))?;
    Ok(Arc::clone(read.schema()))
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

#[cfg(test)]
mod tests {
    use parquet::file::metadata::FileMetaData;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    #[test]
    fn a_column_of_a_type_that_arrow_does_not_have_is_named() {
        let schema =
            "message m { required int32 a; required group pairs (LIST) { required int32 x; required int32 y; } }";
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap())));
        let metadata = ParquetMetaData::new(FileMetaData::new(2, 1, None, None, schema, None), Vec::new());
        let said = as_written("f.parquet", &Arc::new(metadata)).unwrap_err().to_string();
        assert!(said.contains("column `pairs` of `f.parquet` has a type that cannot be read"), "{said}");
    }
}
