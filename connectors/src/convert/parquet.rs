//! Rows into Parquet files: row groups of a fixed size, several to a file.
//!
//! Comes in: a source. Goes out: `part-00000.parquet` and so on, whose bytes depend on the rows and the options alone, not
//! on threads or on how the rows were cut into batches. Rows are gathered here into row groups; `encode.rs` does the rest
//! on threads of its own while the next row group is read.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use super::encode::Encoder;
use super::{ConvertProgress, Written, each};
use crate::criteo::Categories;
use crate::rows::Rows;
use crate::staged::{Folder, StagedFolder};

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

/// What the Parquet files shall look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParquetOptions {
    /// Default: dictionary.
    pub encoding: Encoding,
    /// Rows of a row group. Default 131,072. Up to four row groups are in memory at once.
    pub group_rows: usize,
    /// Row groups of a file. Default 8.
    pub file_groups: usize,
    /// Whether a missing value becomes 0 (or an empty string) and the column non-null, which decodes faster but can no
    /// longer be told from a 0. Default false.
    pub fill_nulls: bool,
    /// Categories as `UInt32` (default) or as hex strings.
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

/// Writes all rows of a source into `folder`, in any store, which appears when all is written. `progress` is called after
/// each batch.
///
/// # Errors
/// The source's fault, the store's, or a user fault if the folder holds files and is not to be replaced. Nothing is left.
pub async fn to_parquet<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    folder: impl Into<Folder>,
    options: &ParquetOptions,
    progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    convert(source, cx, StagedFolder::begin(&folder.into(), options.replace)?, options, progress).await
}

async fn convert<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    aside: StagedFolder,
    options: &ParquetOptions,
    mut progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    let mut groups =
        Groups { encoder: Encoder::start(cx, aside, options)?, options, schema: None, held: Vec::new(), rows: 0 };
    let mut rows = 0;
    let rejected = each(source, cx, async |next| {
        groups.add(&next.batch).await?;
        rows += next.batch.num_rows() as u64;
        progress(ConvertProgress { rows, bytes: groups.encoder.bytes() });
        Ok(())
    })
    .await?;
    groups.send().await?;
    let (aside, written) = groups.encoder.finish()?;
    progress(ConvertProgress { rows: written.rows, bytes: written.bytes });
    aside.mark()?;
    aside.publish()?;
    Ok(Written { rejected, ..written })
}

/// The row group that is being gathered.
struct Groups<'a> {
    encoder: Encoder,
    options: &'a ParquetOptions,
    /// Of the first batch.
    schema: Option<SchemaRef>,
    held: Vec<RecordBatch>,
    rows: usize,
}

impl Groups<'_> {
    async fn add(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let schema = self.schema.get_or_insert_with(|| batch.schema());
        if **schema != *batch.schema() {
            return Err(Fault::user(format!(
                "the rows change their columns under way: {:?}, before {:?}",
                batch.schema().fields(),
                schema.fields()
            )));
        }
        let most = self.options.group_rows.max(1);
        let mut at = 0;
        while at < batch.num_rows() {
            let n = (batch.num_rows() - at).min(most - self.rows);
            self.held.push(batch.slice(at, n));
            self.rows += n;
            at += n;
            if self.rows == most {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Hands the row group over; waits while two are under way.
    async fn send(&mut self) -> Result<(), Fault> {
        let (Some(schema), false) = (&self.schema, self.held.is_empty()) else { return Ok(()) };
        let held = std::mem::take(&mut self.held);
        let pieces = |column| held.iter().map(|batch| Arc::clone(batch.column(column))).collect::<Vec<ArrayRef>>();
        let columns = (0..schema.fields().len()).map(pieces).collect();
        self.encoder.send(schema, columns, std::mem::take(&mut self.rows)).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::options::ReadOptions;
    use crate::synthetic::{Synthetic, SyntheticSource};

    #[test]
    fn a_disk_that_fills_up_is_named_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut source =
            SyntheticSource::new(Synthetic { rows: 20_000, ..Synthetic::default() }, ReadOptions::default());
        let options = ParquetOptions { group_rows: 4096, ..ParquetOptions::default() };
        let cx = StageCx::detached("t");
        let aside = StagedFolder::begin(&Folder::from(&out), false).unwrap();
        let aside = aside.with_create(|_| OpenOptions::new().write(true).open("/dev/full"));
        let done = super::super::block_on(convert(&mut source, &cx, aside, &options, |_| ()));
        let said = done.unwrap_err().to_string();
        assert!(said.contains("the disk is full") && said.contains("part-00000.parquet"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
