//! What is kept of a row group: its rows, and the places of the columns that are read. The parser's form of a column takes some 400 bytes,
//! and statistics on top. So it is made for one row group at a time, when the row group is read.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{Compression, CompressionCodec};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::SchemaDescPtr;

/// Rows and columns of a row group, as the footer says them: a damaged footer may hold any numbers.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: i64,
    /// The column chunks, in the order of the leaves.
    pub(super) chunks: Box<[Chunk]>,
}

/// The place of a column in a row group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// The first byte: of the dictionary, if it has one.
    pub(super) start: i64,
    pub(super) bytes: i64,
    values: i64,
    /// The first byte of the offset index, which says where the pages are.
    index_start: i64,
    /// Bytes of the offset index; 0 without one.
    index_bytes: i32,
    codec: CompressionCodec,
    has_dictionary: bool,
}

impl RowGroup {
    pub(super) fn new(parsed: &RowGroupMetaData) -> Self {
        Self { rows: parsed.num_rows(), chunks: parsed.columns().iter().map(Chunk::new).collect() }
    }

    /// The byte ranges of the columns, sorted. They were checked: see [`Chunk::range`].
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = self.chunks.iter().filter_map(Chunk::range).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Where the offset indexes of all columns lie. `None` if a column has none.
    pub(super) fn index_range(&self) -> Option<Range<u64>> {
        let mut all: Option<Range<u64>> = None;
        for chunk in &self.chunks {
            let start = u64::try_from(chunk.index_start).ok()?;
            let bytes = u64::try_from(chunk.index_bytes).ok().filter(|bytes| *bytes > 0)?;
            let end = start.checked_add(bytes)?;
            let known = all.unwrap_or(start..end);
            all = Some(known.start.min(start)..known.end.max(end));
        }
        all
    }

    /// A footer of this row group alone, for the parser and the decoder.
    pub(super) fn alone(&self, schema: &SchemaDescPtr) -> ParquetResult<ParquetMetaData> {
        let columns = self.chunks.iter().enumerate().map(|(leaf, chunk)| chunk.for_decoder(schema, leaf));
        let group = RowGroupMetaData::builder(Arc::clone(schema)).set_num_rows(self.rows);
        let group = group.set_column_metadata(columns.collect::<ParquetResult<_>>()?).build()?;
        let file = FileMetaData::new(2, self.rows, None, None, Arc::clone(schema), None);
        Ok(ParquetMetaData::new(file, vec![group]))
    }
}

impl Chunk {
    fn new(parsed: &ColumnChunkMetaData) -> Self {
        let dictionary = parsed.dictionary_page_offset();
        Self {
            start: dictionary.unwrap_or(parsed.data_page_offset()),
            bytes: parsed.compressed_size(),
            values: parsed.num_values(),
            index_start: parsed.offset_index_offset().unwrap_or_default(),
            index_bytes: parsed.offset_index_offset().and(parsed.offset_index_length()).unwrap_or_default(),
            codec: parsed.compression_codec(),
            has_dictionary: dictionary.is_some(),
        }
    }

    pub(super) fn codec(&self) -> Compression {
        self.codec.into()
    }

    /// The bytes of the chunk in the file. `None` if the footer gives a negative start or length, or an end beyond 64 bits.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        let (start, bytes) = (u64::try_from(self.start).ok()?, u64::try_from(self.bytes).ok()?);
        Some(start..start.checked_add(bytes)?)
    }

    fn for_decoder(&self, schema: &SchemaDescPtr, leaf: usize) -> ParquetResult<ColumnChunkMetaData> {
        let has_index = self.index_bytes > 0;
        ColumnChunkMetaData::builder(schema.column(leaf))
            .set_compression_codec(self.codec)
            .set_num_values(self.values)
            .set_total_compressed_size(self.bytes)
            .set_data_page_offset(self.start)
            .set_dictionary_page_offset(self.has_dictionary.then_some(self.start))
            .set_offset_index_offset(has_index.then_some(self.index_start))
            .set_offset_index_length(has_index.then_some(self.index_bytes))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::statistics::Statistics;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    /// A bug: every process that reads kept 1.4 KB for each column of each row group, read or not.
    #[test]
    fn a_column_of_a_row_group_takes_few_bytes_and_the_decoder_gets_what_it_needs() {
        assert!(size_of::<Chunk>() <= 40, "{}", size_of::<Chunk>());
        let schema = parse_message_type("message m { required int32 a; }").unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let column = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(Compression::SNAPPY)
            .set_num_values(7)
            .set_data_page_offset(20)
            .set_dictionary_page_offset(Some(4))
            .set_total_compressed_size(30)
            .set_offset_index_offset(Some(50))
            .set_offset_index_length(Some(9))
            .set_statistics(Statistics::int32(Some(1), Some(2), None, Some(0), false));
        let parsed = RowGroupMetaData::builder(Arc::clone(&schema)).set_num_rows(7);
        let group = RowGroup::new(&parsed.add_column_metadata(column.build().unwrap()).build().unwrap());
        assert_eq!((group.ranges().first(), group.index_range()), (Some(&(4..34)), Some(50..59)));
        let alone = group.alone(&schema).unwrap();
        assert_eq!(
            (alone.num_row_groups(), alone.file_metadata().num_rows(), alone.row_group(0).num_rows()),
            (1, 7, 7)
        );
        let column = alone.row_group(0).column(0);
        assert_eq!((column.byte_range(), column.num_values(), column.compression()), ((4, 30), 7, Compression::SNAPPY));
        assert_eq!((column.dictionary_page_offset(), column.statistics()), (Some(4), None));
        assert_eq!((column.offset_index_offset(), column.offset_index_length()), (Some(50), Some(9)));
    }
}
