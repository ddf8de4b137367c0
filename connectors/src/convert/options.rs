//! The options of converted files.

use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use crate::criteo::Categories;

/// How columns are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Dictionaries and zstd: the smallest files.
    #[default]
    Dictionary,
    /// Values as they are, uncompressed: the fastest to decode.
    Plain,
}

/// The options of Parquet files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParquetOptions {
    /// Default: dictionary.
    pub encoding: Encoding,
    /// Rows of a row group. Default 131,072. Up to four row groups are in memory at once.
    pub group_rows: usize,
    /// Row groups of a file. Default 8.
    pub file_groups: usize,
    /// Whether a missing integer, number, boolean or text becomes 0, false or an empty string and the column non-null, which decodes
    /// faster but can no longer be told from such a value. Default false.
    pub fill_nulls: bool,
    /// Categories as `UInt32` (default) or as hex strings; rows without a column of `UInt32` are then refused.
    pub categories: Categories,
    /// Whether a folder that holds files is replaced. Default false.
    pub replace: bool,
    /// Threads that encode; the bytes do not depend on it. Default 0: as many as there are cores.
    pub threads: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self {
            encoding: Encoding::Dictionary,
            group_rows: 131_072,
            file_groups: 8,
            fill_nulls: false,
            categories: Categories::Int,
            replace: false,
            threads: 0,
        }
    }
}

impl ParquetOptions {
    pub(super) fn properties(&self) -> WriterProperties {
        let builder = WriterProperties::builder().set_max_row_group_row_count(Some(self.group_rows.max(1)));
        match self.encoding {
            // The dictionary of a column of distinct hex strings is 12 bytes a row.
            Encoding::Dictionary => {
                builder.set_compression(Compression::ZSTD(ZstdLevel::default())).set_dictionary_page_size_limit(2 << 20)
            }
            Encoding::Plain => builder.set_compression(Compression::UNCOMPRESSED).set_dictionary_enabled(false),
        }
        .build()
    }

    pub(super) fn encode_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}
