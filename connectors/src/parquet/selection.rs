//! The columns wanted of a Parquet file, and where it places them.

use std::sync::Arc;

use forebay_actors::Fault;
use parquet::basic::Compression;

use super::footer::{Footer, ParsedFooter};
use super::row_group::{Chunk, RowGroup};
use super::schemas::{FileSchema, Schemas};
use crate::column_types::in_batches;
use crate::file::DataFile;
use crate::partition_columns::PartitionColumns;
use crate::typed_columns;

/// The columns that are read of all files.
pub(super) struct Wanted {
    pub(super) columns: Vec<String>,
    /// Those that a file may lack.
    pub(super) optional: Vec<String>,
    pub(super) folders: PartitionColumns,
}

/// Finds the columns wanted in a file, checks where the file places them, and forgets the other columns.
pub(super) fn select(parsed: ParsedFooter, wanted: &Wanted, schemas: &mut Schemas) -> Result<Footer, Fault> {
    let ParsedFooter { file, schema: whole, row_groups } = parsed;
    let Wanted { columns, optional, folders } = wanted;
    let mut found = typed_columns::find(&file, whole.arrow.fields(), columns, optional, folders, in_batches)?;
    let places = std::mem::take(&mut found.places);
    let leaves: Vec<usize> = whole.leaves(&places).collect();
    let select = |(number, group): (usize, RowGroup)| {
        let chunk = |&leaf: &usize| checked(&file, &whole, number, leaf, group.chunks[leaf]);
        Ok(RowGroup { rows: group.rows, chunks: leaves.iter().map(chunk).collect::<Result<_, Fault>>()? })
    };
    let row_groups = row_groups.into_iter().enumerate().map(select).collect::<Result<_, Fault>>()?;
    let schema = schemas
        .read(&whole, places)
        .map_err(|e| Fault::user(format!("`{}` has columns of types that cannot be read", file.name)).because(e))?;
    Ok(Footer { file: Arc::new(file), schema, found, row_groups })
}

/// A column chunk that can be read.
///
/// # Errors
/// A user fault that names file and column, if its codec is none of Forebay's or if it does not lie in the file.
fn checked(file: &DataFile, schema: &FileSchema, row_group: usize, leaf: usize, chunk: Chunk) -> Result<Chunk, Fault> {
    let column = || schema.parquet.column(leaf).path().string();
    if let codec @ (Compression::BROTLI(_) | Compression::LZO) = chunk.codec() {
        let codec = if codec == Compression::LZO { "lzo" } else { "brotli" };
        return Err(Fault::user(format!(
            "`{}`, column `{}`: compressed with {codec}, which Forebay does not read: write the file again \
             with zstd, snappy, gzip, lz4 or uncompressed",
            file.name,
            column(),
        )));
    }
    if chunk.range().is_none_or(|range| range.end > file.size) {
        return Err(Fault::user(format!(
            "`{}`, row group {row_group}, column `{}`: the footer places it at byte {}, {} bytes long, \
             but the file has {} bytes: the file is damaged, write it again",
            file.name,
            column(),
            chunk.start,
            chunk.bytes,
            file.size,
        )));
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use parquet::basic::BrotliLevel;
    use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, ParquetMetaData, RowGroupMetaData};
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;
    use crate::partition::Partitions;

    /// The footer of a file of 100 bytes with one column `a` at byte `at`.
    fn selected(codec: Compression, at: i64) -> Result<Footer, Fault> {
        let schema = parse_message_type("message m { required int32 a; }").unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let column = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(codec)
            .set_data_page_offset(at)
            .set_total_compressed_size(10)
            .build()
            .unwrap();
        let group = RowGroupMetaData::builder(Arc::clone(&schema)).set_column_metadata(vec![column]).set_num_rows(1);
        let groups = vec![group.build().unwrap()];
        let parsed = ParquetMetaData::new(FileMetaData::new(2, 1, None, None, schema, None), groups.clone());
        let mut schemas = Schemas::new(true);
        let schema = schemas.whole("f.parquet", &Bytes::new(), &Arc::new(parsed)).unwrap();
        let file = DataFile {
            store: Arc::new(InMemory::new()),
            path: Path::from("f"),
            size: 100,
            e_tag: None,
            name: "f.parquet".into(),
            partitions: Partitions::default(),
        };
        let parsed = ParsedFooter { file, schema, row_groups: groups.iter().map(RowGroup::new).collect() };
        let (optional, folders) = (Vec::new(), PartitionColumns::default());
        select(parsed, &Wanted { columns: vec!["a".to_owned()], optional, folders }, &mut schemas)
    }

    #[test]
    fn codecs_that_are_not_read_and_places_outside_the_file_are_refused_by_name() {
        assert_eq!(selected(Compression::SNAPPY, 4).unwrap().row_groups[0].ranges().first(), Some(&(4..14)));
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
