//! Reads the wanted column chunks of one row group: near ranges as one request, several requests at once. The decoder then
//! reads from memory without copying.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use forebay_actors::Fault;
use futures::future::try_join_all;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::footer::Footer;
use crate::requests::coalesce;

/// Bytes that [`fetch`] will hold for a row group.
pub(crate) fn cost(footer: &Footer, row_group: usize) -> u64 {
    coalesce(&footer.selected.ranges[row_group]).iter().map(|r| r.end - r.start).sum()
}

/// Reads the wanted columns of a row group.
pub(crate) async fn fetch(footer: &Arc<Footer>, row_group: usize) -> Result<Fetched, Fault> {
    let file = &footer.file;
    let requests = coalesce(&footer.selected.ranges[row_group]);
    let parts = try_join_all(requests.into_iter().filter(|r| !r.is_empty()).map(|request| async move {
        let start = request.start;
        Ok::<_, Fault>((start, file.read(request).await?))
    }));
    Ok(Fetched { size: file.size, parts: parts.await? })
}

/// Parts of a file in memory.
#[derive(Debug)]
pub(crate) struct Fetched {
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
