//! What a reader keeps of the footer of a Parquet file, for all epochs.

use std::sync::Arc;

use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::ParquetMetaData;

use super::row_group::RowGroup;
use super::schemas::FileSchema;
use crate::file::DataFile;
use crate::requests::coalesce;
use crate::typed_columns::FoundColumns;

/// One file, ready to be read. It holds nothing of the columns that are not read.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) file: Arc<DataFile>,
    /// The columns of the file that are read.
    pub(super) schema: Arc<FileSchema>,
    /// The columns of batches.
    pub(crate) found: FoundColumns,
    pub(super) row_groups: Vec<RowGroup>,
}

/// A file, and all of its columns.
pub(super) struct ParsedFooter {
    pub(super) file: DataFile,
    pub(super) schema: Arc<FileSchema>,
    pub(super) row_groups: Vec<RowGroup>,
}

impl Footer {
    pub(crate) fn row_groups(&self) -> usize {
        self.row_groups.len()
    }

    pub(crate) fn rows(&self, row_group: usize) -> u64 {
        self.row_groups[row_group].rows.max(0) as u64
    }

    pub(super) fn rows_of_groups(&self) -> Vec<u64> {
        (0..self.row_groups.len()).map(|row_group| self.rows(row_group)).collect()
    }

    /// Bytes that are held for a row group at most, when its columns are fetched.
    pub(super) fn cost(&self, row_group: usize) -> u64 {
        coalesce(&self.row_groups[row_group].ranges()).iter().map(|r| r.end - r.start).sum()
    }

    /// A footer of one row group alone.
    pub(super) fn alone(&self, row_group: usize) -> ParquetResult<ParquetMetaData> {
        self.row_groups[row_group].alone(&self.schema.parquet)
    }

    /// What the decoder needs, of a footer that [`alone`](Self::alone) made.
    pub(super) fn for_decoder(&self, alone: &Arc<ParquetMetaData>) -> ParquetResult<ArrowReaderMetadata> {
        self.schema.for_decoder(alone)
    }
}
