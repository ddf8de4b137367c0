//! Writes rows into Parquet files, `part-00000.parquet` and so on: row groups of a fixed size, several to a file.
//!
//! The bytes depend on the rows and the options alone, not on threads or on how the rows were cut into batches. The writer gathers rows
//! into row groups; `encode` encodes and writes a row group on its own threads while the next one is gathered.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx};

use super::encode::Encoder;
use super::options::ParquetOptions;
use super::progress::{ConvertProgress, Written, for_each_batch};
use crate::rows::Rows;
use crate::staged::{Folder, StagedFolder};

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
    mut progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    let mut writer = ParquetWriter::begin(cx, folder, options)?;
    let rejected = for_each_batch(source, cx, async |next| {
        writer.write(&next.batch).await?;
        progress(writer.progress());
        Ok(())
    })
    .await?;
    let written = writer.finish().await?;
    progress(ConvertProgress { rows: written.rows, bytes: written.bytes });
    Ok(Written { rejected, ..written })
}

/// Endings of the files that a folder of rows may hold to be replaced; the second belongs to vectors beside their rows.
const REPLACED: [&str; 2] = [".parquet", ".npy"];

/// Writes record batches into a folder of Parquet files, in any store. The folder appears at [`finish`](Self::finish), or not
/// at all.
pub struct ParquetWriter {
    encoder: Encoder,
    group_rows: usize,
    /// The schema of the first batch.
    schema: Option<SchemaRef>,
    /// The row group that is being gathered.
    held: Vec<RecordBatch>,
    held_rows: usize,
    rows: u64,
}

impl ParquetWriter {
    /// Starts the threads that encode and write, named after the stage of `cx`.
    ///
    /// # Errors
    /// The store's fault, or a user fault if the folder holds files and is not to be replaced, or holds something other than rows.
    pub fn begin(cx: &StageCx, folder: impl Into<Folder>, options: &ParquetOptions) -> Result<Self, Fault> {
        Self::staged(cx, StagedFolder::begin_files(&folder.into(), options.replace, &REPLACED)?, options)
    }

    fn staged(cx: &StageCx, staged: StagedFolder, options: &ParquetOptions) -> Result<Self, Fault> {
        let encoder = Encoder::start(cx, staged, options)?;
        let group_rows = options.group_rows.max(1);
        Ok(Self { encoder, group_rows, schema: None, held: Vec::new(), held_rows: 0, rows: 0 })
    }

    /// Adds rows; waits while two row groups are being written. Not cancel safe.
    ///
    /// # Errors
    /// The store's fault, or a user fault if the columns differ from the first batch.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let schema = self.schema.get_or_insert_with(|| batch.schema());
        if **schema != *batch.schema() {
            return Err(Fault::user(format!(
                "a batch of rows has other columns than the batches before it: {:?}, expected {:?}",
                batch.schema().fields(),
                schema.fields()
            )));
        }
        let mut at = 0;
        while at < batch.num_rows() {
            let n = (batch.num_rows() - at).min(self.group_rows - self.held_rows);
            self.held.push(batch.slice(at, n));
            self.held_rows += n;
            at += n;
            if self.held_rows == self.group_rows {
                self.send().await?;
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Rows taken, and bytes in the files so far.
    pub fn progress(&self) -> ConvertProgress {
        ConvertProgress { rows: self.rows, bytes: self.encoder.bytes() }
    }

    /// Writes the rest, and gives the folder its name. Not cancel safe.
    pub async fn finish(self) -> Result<Written, Fault> {
        self.finish_beside(|_| Ok(())).await
    }

    /// As [`finish`](Self::finish); `others` writes other files into the folder before it has its name.
    pub async fn finish_beside(
        mut self,
        others: impl FnOnce(&StagedFolder) -> Result<(), Fault>,
    ) -> Result<Written, Fault> {
        self.send().await?;
        let (staged, written) = self.encoder.finish()?;
        others(&staged)?;
        staged.mark()?;
        staged.publish()?;
        Ok(written)
    }

    /// Hands the row group over; waits while two are under way.
    async fn send(&mut self) -> Result<(), Fault> {
        let (Some(schema), false) = (&self.schema, self.held.is_empty()) else { return Ok(()) };
        let held = std::mem::take(&mut self.held);
        let pieces = |column| held.iter().map(|batch| Arc::clone(batch.column(column))).collect::<Vec<ArrayRef>>();
        let columns = (0..schema.fields().len()).map(pieces).collect();
        self.encoder.send(schema, columns, std::mem::take(&mut self.held_rows)).await
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
        let staged = StagedFolder::begin(&Folder::from(&out), false).unwrap();
        let staged = staged.with_create(|_| OpenOptions::new().write(true).open("/dev/full"));
        let done = crate::convert::block_on(async {
            let mut writer = ParquetWriter::staged(&cx, staged, &options)?;
            for_each_batch(&mut source, &cx, async |next| writer.write(&next.batch).await).await?;
            writer.finish().await
        });
        let said = done.unwrap_err().to_string();
        assert!(said.contains("the disk is full") && said.contains("part-00000.parquet"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
