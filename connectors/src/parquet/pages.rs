//! Which pages of a row group hold some of its rows, by the file's offset index. A lease may end in the middle of a large row group: then
//! the source fetches and decodes only the pages of its rows, and the dictionaries.
//!
//! The index of a row group is read when it is needed: the indexes of all row groups would take memory in proportion to the data.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use forebay_actors::Fault;
use futures::FutureExt;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::page_index::offset_index::PageLocation;

use super::footer::{Fetch, Footer};

/// A row group of fewer bytes is fetched whole: to read its index takes a round trip to the store.
const WORTH: u64 = 1 << 20;

/// The index of one row group takes less than this, or it is not read.
const MOST_INDEX: u64 = 16 << 20;

/// The pages of some rows of a row group.
pub(super) struct Pages {
    /// A footer of this row group alone, with the places of its pages.
    pub(super) metadata: ArrowReaderMetadata,
    /// The byte ranges of the pages that hold the rows, and of the dictionaries, sorted.
    pub(super) ranges: Vec<Range<u64>>,
    /// Bytes of the index that were read.
    pub(super) index_bytes: u64,
}

/// Finds the pages of `rows` of a row group. `None` if the row group is small, or the file has no usable index: then fetch the row group
/// whole.
///
/// # Errors
/// The fault of the store.
pub(super) async fn of_rows(footer: &Footer, row_group: usize, rows: &Range<u64>) -> Result<Option<Pages>, Fault> {
    let group = footer.metadata.metadata().row_group(row_group);
    if footer.cost(row_group) < WORTH {
        return Ok(None);
    }
    let Some(index) = index_range(group, footer.file.size) else { return Ok(None) };
    let bytes = footer.file.read(index.clone()).await?;
    let file = footer.metadata.metadata().file_metadata().clone();
    let alone = ParquetMetaData::new(file, vec![group.clone()]);
    let mut reader = ParquetMetaDataReader::new_with_metadata(alone)
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional);
    // An index that cannot be read, or at which the parser panics, is no loss: the pages have headers, too.
    let load = AssertUnwindSafe(reader.load_page_index(Fetch::Read(index.start, bytes))).catch_unwind();
    if !matches!(load.await, Ok(Ok(()))) {
        return Ok(None);
    }
    let Ok(metadata) = reader.finish() else { return Ok(None) };
    let Some(ranges) = ranges(footer, &metadata, rows) else { return Ok(None) };
    let options = ArrowReaderOptions::new().with_schema(Arc::clone(footer.metadata.schema()));
    let Ok(metadata) = ArrowReaderMetadata::try_new(Arc::new(metadata), options) else { return Ok(None) };
    Ok(Some(Pages { metadata, ranges, index_bytes: index.end - index.start }))
}

/// Where the offset indexes of all columns of a row group lie.
fn index_range(group: &RowGroupMetaData, file_size: u64) -> Option<Range<u64>> {
    let mut all: Option<Range<u64>> = None;
    for column in group.columns() {
        let start = u64::try_from(column.offset_index_offset()?).ok()?;
        let end = start.checked_add(u64::try_from(column.offset_index_length()?).ok()?)?;
        let known = all.unwrap_or(start..end);
        all = Some(known.start.min(start)..known.end.max(end));
    }
    all.filter(|range| range.end <= file_size && range.end - range.start <= MOST_INDEX)
}

/// The byte ranges of the wanted columns' pages that hold `rows`, sorted. `None` if the index contradicts the footer.
fn ranges(footer: &Footer, alone: &ParquetMetaData, rows: &Range<u64>) -> Option<Vec<Range<u64>>> {
    let index = alone.offset_index()?.first()?;
    let group = alone.row_group(0);
    let all_rows = u64::try_from(group.num_rows()).ok()?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (leaf, column) in group.columns().iter().enumerate() {
        if !footer.selected.mask.leaf_included(leaf) {
            continue;
        }
        let (start, length) = column.byte_range();
        let chunk = start..start.checked_add(length)?;
        let pages = index.get(leaf)?.page_locations();
        ranges.extend(pages_of(pages, chunk, all_rows, rows)?);
    }
    ranges.sort_by_key(|range| range.start);
    Some(ranges)
}

/// The byte ranges of the pages of one column chunk that hold `rows`, and of its dictionary. Near ranges become one.
fn pages_of(pages: &[PageLocation], chunk: Range<u64>, all_rows: u64, rows: &Range<u64>) -> Option<Vec<Range<u64>>> {
    let first = pages.first().filter(|page| page.first_row_index == 0)?;
    let mut from = u64::try_from(first.offset).ok().filter(|offset| chunk.contains(offset))?;
    let dictionary = chunk.start..from;
    let mut found = vec![dictionary];
    for (i, page) in pages.iter().enumerate() {
        let (offset, size) = (u64::try_from(page.offset).ok()?, u64::try_from(page.compressed_page_size).ok()?);
        let begin = u64::try_from(page.first_row_index).ok()?;
        let end = pages.get(i + 1).map_or(Some(all_rows), |next| u64::try_from(next.first_row_index).ok())?;
        let bytes = offset..offset.checked_add(size)?;
        if offset < from || bytes.end > chunk.end || end < begin || end > all_rows {
            return None;
        }
        from = bytes.end;
        if begin < rows.end && rows.start < end {
            match found.last_mut() {
                Some(last) if last.end == offset => last.end = bytes.end,
                _ => found.push(bytes),
            }
        }
    }
    found.retain(|range| !range.is_empty());
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(offset: i64, compressed_page_size: i32, first_row_index: i64) -> PageLocation {
        PageLocation { offset, compressed_page_size, first_row_index }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range of bytes is meant")]
    fn pages_that_hold_some_of_the_rows_are_found_with_the_dictionary() {
        let pages = [page(10, 5, 0), page(15, 5, 100), page(22, 8, 200)];
        let of = |rows| pages_of(&pages, 4..30, 300, &rows);
        assert_eq!(of(0..1), Some(vec![4..15]));
        assert_eq!(of(100..200), Some(vec![4..10, 15..20]));
        assert_eq!(of(99..101), Some(vec![4..20]));
        assert_eq!(of(199..201), Some(vec![4..10, 15..20, 22..30]));
        // Without a dictionary.
        assert_eq!(pages_of(&pages, 10..30, 300, &(250..300)), Some(vec![22..30]));
    }

    #[test]
    fn an_index_that_contradicts_the_footer_is_not_used() {
        let of = |pages: &[PageLocation]| pages_of(pages, 4..30, 300, &(0..300));
        assert_eq!(of(&[]), None);
        for bad in [
            [page(10, 5, 1), page(15, 5, 100)],
            [page(10, 5, 0), page(12, 5, 100)],
            [page(10, 5, 0), page(15, 16, 100)],
            [page(10, 5, 0), page(15, -1, 100)],
            [page(-10, 5, 0), page(15, 5, 100)],
            [page(10, 5, 0), page(15, 5, 301)],
            [page(3, 5, 0), page(15, 5, 100)],
        ] {
            assert_eq!(of(&bad), None, "{bad:?}");
        }
    }
}
