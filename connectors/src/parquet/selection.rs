//! The columns wanted of a Parquet file, and where it places them.

use std::ops::Range;

use forebay_actors::Fault;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Compression;

use crate::column_types::in_batches;
use crate::file::DataFile;
use crate::partition_columns::PartitionColumns;
use crate::typed_columns::{self, FoundColumns};

/// The columns wanted of one file.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) mask: ProjectionMask,
    pub(crate) found: FoundColumns,
    /// For each row group the byte ranges of the columns wanted, checked against the file's size, sorted.
    pub(crate) ranges: Vec<Vec<Range<u64>>>,
}

/// Finds the columns `wanted` and checks where the file places them.
pub(super) fn select(
    file: &DataFile,
    metadata: &ArrowReaderMetadata,
    wanted: &[String],
    optional: &[String],
    folders: &PartitionColumns,
) -> Result<Selection, Fault> {
    let found = typed_columns::find(file, metadata.schema().fields(), wanted, optional, folders, in_batches)?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), found.places.iter().copied());
    let ranges = ranges(file, metadata, &mask)?;
    Ok(Selection { mask, found, ranges })
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
                    "`{}`, column `{}`: compressed with {codec}, which Forebay does not read: write the file again \
                     with zstd, snappy, gzip, lz4 or uncompressed",
                    file.name,
                    column.column_path().string(),
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
                        "`{}`, row group {number}, column `{}`: the footer places it at byte {start}, {} bytes long, \
                         but the file has {} bytes: the file is damaged, write it again",
                        file.name,
                        column.column_path().string(),
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
    use std::sync::Arc;

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
            assert!(said.contains(&format!("`f.parquet`, column `a`: compressed with {name}")), "{said}");
        }
        for at in [-5, 91, i64::MAX] {
            let said = selected(Compression::SNAPPY, at).unwrap_err().to_string();
            assert!(said.contains("the footer places it at"), "{said}");
        }
    }
}
