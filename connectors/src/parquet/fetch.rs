//! Reads the wanted column chunks of one row group, or the pages of some of its rows: near ranges as one request, several requests at
//! once. The decoder then reads from memory without copying.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use forebay_actors::Fault;
use futures::future::try_join_all;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::footer::Footer;
use super::pages::{self, Pages};
use crate::read_ahead::BudgetPermit;
use crate::requests::coalesce;

/// Reads the wanted columns of some rows of a row group: all of it, or their pages if the file says where they are. `in_pieces`: the rows
/// are decoded in several pieces, so the places of pages are useful even if all are read. `permit` is for the whole row group, and gives
/// the unneeded part back.
pub(super) async fn fetch(
    footer: &Arc<Footer>,
    row_group: usize,
    rows: &Range<u64>,
    in_pieces: bool,
    permit: &mut BudgetPermit,
) -> Result<FetchedRows, Fault> {
    let file = &footer.file;
    let all = rows.start == 0 && rows.end >= footer.rows(row_group);
    let pages = if all && !in_pieces { None } else { pages::of_rows(footer, row_group, rows).await? };
    let requests = match &pages {
        Some(pages) => coalesce(&pages.ranges),
        None => coalesce(&footer.row_groups[row_group].ranges()),
    };
    let bytes = requests.iter().map(|request| request.end - request.start).sum();
    permit.keep(bytes);
    let parts = try_join_all(requests.into_iter().filter(|r| !r.is_empty()).map(|request| async move {
        let start = request.start;
        Ok::<_, Fault>((start, file.read(request).await?))
    }));
    let data = Fetched { size: file.size, parts: parts.await? };
    Ok(match pages {
        Some(Pages { metadata, index_bytes, .. }) => {
            FetchedRows { data, metadata: Arc::new(metadata), bytes: bytes + index_bytes, finds_rows: true }
        }
        None => {
            let metadata = footer.alone(row_group).map_err(|e| Fault::internal("a row group's columns").because(e))?;
            FetchedRows { data, metadata: Arc::new(metadata), bytes, finds_rows: !footer.schema.has_lists() }
        }
    })
}

/// The input of the decoder for rows of a row group.
#[derive(Clone)]
pub(super) struct FetchedRows {
    pub(super) data: Fetched,
    /// A footer of this row group alone.
    pub(super) metadata: Arc<ParquetMetaData>,
    /// Bytes that were read from the store.
    pub(super) bytes: u64,
    /// Whether the decoder finds rows in the middle without decoding earlier rows: pages of lists do not say how many rows they hold, but
    /// the index does.
    pub(super) finds_rows: bool,
}

/// Parts of a file in memory.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    size: u64,
    /// (offset in the file, bytes), sorted.
    parts: Vec<(u64, Bytes)>,
}

impl Fetched {
    /// The bytes from `start` to the end of the part that holds it.
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = self.parts.partition_point(|(offset, _)| *offset <= start);
        at.checked_sub(1)
            .map(|at| &self.parts[at])
            .filter(|(offset, bytes)| start - offset <= bytes.len() as u64)
            .map(|(offset, bytes)| bytes.slice((start - offset) as usize..))
            .ok_or_else(|| ParquetError::EOF(format!("byte {start} lies outside the column chunks of the footer")))
    }
}

impl Length for Fetched {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Fetched {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} reach beyond the column chunk")));
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_what_was_fetched_can_be_read() {
        let fetched =
            Fetched { size: 100, parts: vec![(10, Bytes::from_static(b"abcd")), (50, Bytes::from_static(b"xy"))] };
        assert_eq!(fetched.get_bytes(11, 2).unwrap(), "bc");
        assert_eq!(fetched.get_bytes(50, 2).unwrap(), "xy");
        for (start, length) in [(0, 1), (12, 3), (20, 1), (51, 2), (99, 1), (u64::MAX, 1)] {
            assert!(fetched.get_bytes(start, length).is_err(), "{start} {length}");
        }
    }
}
