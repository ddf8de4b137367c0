//! Which pages of a row group hold some of its rows, by the file's offset index. A lease may end in the middle of a large row group: then
//! the source fetches and decodes only the pages of its rows, and the dictionaries.
//!
//! The index of a row group is read when it is needed: the indexes of all row groups would take memory in proportion to the data.

use std::ops::Range;
use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use forebay_actors::Fault;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::async_reader::MetadataFetch;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::page_index::offset_index::PageLocation;

use super::footer::Footer;

/// A row group of fewer bytes is fetched whole: to read its index takes a round trip to the store.
const WORTH: u64 = 1 << 20;

/// The index of one row group takes less than this, or it is not read.
const MOST_INDEX: u64 = 16 << 20;

/// The pages of some rows of a row group.
pub(super) struct Pages {
    /// A footer of this row group alone, with the places of its pages.
    pub(super) metadata: ParquetMetaData,
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
    if footer.cost(row_group) < WORTH {
        return Ok(None);
    }
    let index = footer.row_groups[row_group].index_range();
    let index = index.filter(|range| range.end <= footer.file.size && range.end - range.start <= MOST_INDEX);
    let (Some(index), Ok(alone)) = (index, footer.alone(row_group)) else { return Ok(None) };
    let bytes = footer.file.read(index.clone()).await?;
    let mut reader = ParquetMetaDataReader::new_with_metadata(alone)
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional);
    // An index that cannot be read, or at which the parser panics, is no loss: the pages have headers, too.
    let load = AssertUnwindSafe(reader.load_page_index(Index { start: index.start, bytes })).catch_unwind();
    if !matches!(load.await, Ok(Ok(()))) {
        return Ok(None);
    }
    let Ok(metadata) = reader.finish() else { return Ok(None) };
    let Some(ranges) = ranges(&metadata, rows) else { return Ok(None) };
    Ok(Some(Pages { metadata, ranges, index_bytes: index.end - index.start }))
}

/// The bytes of the indexes, and the first one's place in the file.
struct Index {
    start: u64,
    bytes: Bytes,
}

impl MetadataFetch for Index {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        let within = range.start.checked_sub(self.start).zip(range.end.checked_sub(self.start));
        let within = within.filter(|(from, to)| from <= to && *to <= self.bytes.len() as u64);
        let bytes = within.map(|(from, to)| self.bytes.slice(from as usize..to as usize));
        async move { bytes.ok_or_else(|| ParquetError::EOF(format!("bytes {range:?} were not read"))) }.boxed()
    }
}

/// The byte ranges of the columns' pages that hold `rows`, sorted. `None` if the index contradicts the footer.
fn ranges(alone: &ParquetMetaData, rows: &Range<u64>) -> Option<Vec<Range<u64>>> {
    let index = alone.offset_index()?.first()?;
    let group = alone.row_group(0);
    let all_rows = u64::try_from(group.num_rows()).ok()?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (leaf, column) in group.columns().iter().enumerate() {
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
