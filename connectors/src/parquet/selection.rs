//! The columns wanted, found by name in a file and in the folders above it, or a fault that names file and column.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_actors::Fault;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Compression;

use super::types;
use crate::file::DataFile;
use crate::names::{did_you_mean, listed};
use crate::partition_columns::{Constant, PartitionColumns};

/// The columns wanted of one file.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) mask: ProjectionMask,
    /// For each column wanted where it comes from.
    pub(crate) columns: Vec<Origin>,
    /// The columns wanted, in the order wanted.
    pub(crate) schema: SchemaRef,
    /// For each row group the byte ranges of the columns wanted, checked against the file's size, sorted.
    pub(crate) ranges: Vec<Vec<Range<u64>>>,
}

impl Selection {
    /// Batches have these columns: those of the file in types that hold the values of all files.
    pub(super) fn read_as(&mut self, schema: &SchemaRef) {
        self.schema = Arc::clone(schema);
        for (origin, field) in self.columns.iter_mut().zip(schema.fields()) {
            if let Origin::Constant(Constant::Null(kind)) = origin {
                *kind = field.data_type().clone();
            }
        }
    }
}

/// Where a column of a batch comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The column at this place among those that the decoder yields, which come in the file's order.
    File(usize),
    /// A folder `column=value`, or a column that the file lacks: the same for all rows of the file.
    Constant(Constant),
}

/// Finds the columns `wanted` and checks where the file places them. As in Spark, a folder's value counts before a
/// column of the same name.
pub(super) fn select(
    file: &DataFile,
    metadata: &ArrowReaderMetadata,
    wanted: &[String],
    optional: &[String],
    folders: &PartitionColumns,
) -> Result<Selection, Fault> {
    if wanted.is_empty() {
        return Err(Fault::user(format!("no column of `{}` is asked for: name at least one", file.name)));
    }
    let there = metadata.schema().fields();
    let mut roots = Vec::new();
    let mut fields = Vec::with_capacity(wanted.len());
    let mut origins = Vec::with_capacity(wanted.len());
    for column in wanted {
        if let Some((field, constant)) = folders.get(column, &file.partitions) {
            fields.push(Arc::new(field));
            origins.push(Origin::Constant(constant));
        } else if let Some(at) = there.iter().position(|field| field.name() == column) {
            fields.push(types::in_batches(&there[at]));
            origins.push(Origin::File(at));
            roots.push(at);
        } else if optional.contains(column) {
            // Its type is that of the files that have it; see `unify`.
            fields.push(Arc::new(Field::new(column, DataType::Null, true)));
            origins.push(Origin::Constant(Constant::Null(DataType::Null)));
        } else {
            return Err(missing(column, wanted, file, metadata));
        }
    }
    roots.sort_unstable();
    roots.dedup();
    for origin in &mut origins {
        if let Origin::File(at) = origin {
            *at = roots.binary_search(at).expect("it is one of them");
        }
    }
    let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
    let ranges = ranges(file, metadata, &mask)?;
    Ok(Selection { mask, columns: origins, schema: Arc::new(Schema::new(fields)), ranges })
}

fn missing(column: &str, wanted: &[String], file: &DataFile, metadata: &ArrowReaderMetadata) -> Fault {
    let there: Vec<&str> = metadata.schema().fields().iter().map(|field| field.name().as_str()).collect();
    let folders: Vec<&str> = file.partitions.iter().map(|(name, _)| name).collect();
    let near = did_you_mean(column, there.iter().chain(&folders).copied());
    let above = if folders.is_empty() { String::new() } else { format!(", and its folders {}", listed(folders)) };
    Fault::user(format!(
        "`{}` has no column `{column}`{near}: expected {}; it has {}{above}",
        file.name,
        listed(wanted.iter().map(String::as_str)),
        listed(there),
    ))
}

/// For each row group the byte ranges of the columns in `mask`, sorted.
fn ranges(
    file: &DataFile,
    metadata: &ArrowReaderMetadata,
    mask: &ProjectionMask,
) -> Result<Vec<Vec<Range<u64>>>, Fault> {
    let parquet = metadata.metadata();
    let mut ranges = Vec::with_capacity(parquet.num_row_groups());
    for (number, group) in parquet.row_groups().iter().enumerate() {
        let mut of_group = Vec::new();
        for (leaf, column) in group.columns().iter().enumerate() {
            if !mask.leaf_included(leaf) {
                continue;
            }
            if let codec @ (Compression::BROTLI(_) | Compression::LZO) = column.compression() {
                let codec = if codec == Compression::LZO { "lzo" } else { "brotli" };
                return Err(Fault::user(format!(
                    "`{}`, column `{}`: compressed with {codec}, which is not read here: write it anew with zstd, snappy, \
                     gzip, lz4 or uncompressed",
                    file.name,
                    column.column_path(),
                )));
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
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use parquet::arrow::arrow_reader::ArrowReaderOptions;
    use parquet::basic::BrotliLevel;
    use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, ParquetMetaData, RowGroupMetaData};
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;
    use crate::partition::Partitions;

    /// The footer of a file of 100 bytes with one column `a` at byte `at`.
    fn selected(codec: Compression, at: i64) -> Result<Selection, Fault> {
        let schema = parse_message_type("message m { required int32 a; }").unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let column = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(codec)
            .set_data_page_offset(at)
            .set_total_compressed_size(10)
            .build()
            .unwrap();
        let group = RowGroupMetaData::builder(Arc::clone(&schema)).set_column_metadata(vec![column]).set_num_rows(1);
        let metadata =
            ParquetMetaData::new(FileMetaData::new(2, 1, None, None, schema, None), vec![group.build().unwrap()]);
        let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new()).unwrap();
        let file = DataFile {
            store: Arc::new(InMemory::new()),
            path: Path::from("f"),
            size: 100,
            e_tag: None,
            name: "f.parquet".into(),
            partitions: Partitions::default(),
        };
        select(&file, &metadata, &["a".to_owned()], &[], &PartitionColumns::default())
    }

    #[test]
    fn codecs_that_are_not_read_and_places_outside_the_file_are_refused_by_name() {
        assert_eq!(selected(Compression::SNAPPY, 4).unwrap().ranges[0].first(), Some(&(4..14)));
        for (codec, name) in [(Compression::BROTLI(BrotliLevel::default()), "brotli"), (Compression::LZO, "lzo")] {
            let said = selected(codec, 4).unwrap_err().to_string();
            assert!(said.contains(&format!("`f.parquet`, column `\"a\"`: compressed with {name}")), "{said}");
        }
        for at in [-5, 91, i64::MAX] {
            let said = selected(Compression::SNAPPY, at).unwrap_err().to_string();
            assert!(said.contains("the footer places it at"), "{said}");
        }
    }
}
