//! Writes rows into Parquet files, `part-00000.parquet` and so on: row groups of a fixed size, several to a file.
//!
//! The bytes depend on the rows and the options alone, not on threads or on how the rows were cut into batches. Rows are
//! gathered into row groups here; `encode` encodes and writes them on its own threads while the next one is read.

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
    progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    convert(source, cx, StagedFolder::begin(&folder.into(), options.replace)?, options, progress).await
}

async fn convert<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    staged: StagedFolder,
    options: &ParquetOptions,
    mut progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    let mut groups =
        Groups { encoder: Encoder::start(cx, staged, options)?, options, schema: None, held: Vec::new(), rows: 0 };
    let mut rows = 0;
    let rejected = for_each_batch(source, cx, async |next| {
        groups.add(&next.batch).await?;
        rows += next.batch.num_rows() as u64;
        progress(ConvertProgress { rows, bytes: groups.encoder.bytes() });
        Ok(())
    })
    .await?;
    groups.send().await?;
    let (staged, written) = groups.encoder.finish()?;
    progress(ConvertProgress { rows: written.rows, bytes: written.bytes });
    staged.mark()?;
    staged.publish()?;
    Ok(Written { rejected, ..written })
}

/// The row group that is being gathered.
struct Groups<'a> {
    encoder: Encoder,
    options: &'a ParquetOptions,
    /// The schema of the first batch.
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
        let staged = StagedFolder::begin(&Folder::from(&out), false).unwrap();
        let staged = staged.with_create(|_| OpenOptions::new().write(true).open("/dev/full"));
        let done = crate::convert::block_on(convert(&mut source, &cx, staged, &options, |_| ()));
        let said = done.unwrap_err().to_string();
        assert!(said.contains("the disk is full") && said.contains("part-00000.parquet"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
