//! Rows into Parquet files: row groups of a fixed size, several to a file.
//!
//! Comes in: a source. Goes out: `part-00000.parquet` and so on. Blocks on encoding and on the disk.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray, UInt32Array};
use arrow::datatypes::{DataType, Int32Type, Schema, SchemaRef, UInt32Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use super::{Progress, Written, each};
use crate::aside::{Aside, Create, create, fault};
use crate::criteo::{Categories, with_hex_categories};
use crate::rows::Rows;

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
    /// Rows of a row group. Default 131,072.
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
        }
    }
}

impl ParquetOptions {
    fn properties(&self) -> WriterProperties {
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
}

/// Writes all rows of a source into `folder`, which appears when all is written. `progress` is called after each batch.
pub async fn to_parquet<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    folder: &Path,
    options: &ParquetOptions,
    progress: impl FnMut(Progress),
) -> Result<Written, Fault> {
    convert(source, cx, folder, options, progress, create).await
}

async fn convert<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    folder: &Path,
    options: &ParquetOptions,
    mut progress: impl FnMut(Progress),
    create: Create,
) -> Result<Written, Fault> {
    let aside = Aside::begin(folder, options.replace)?;
    let mut parts = Parts { aside: &aside, options, create, part: None, written: Written::default() };
    let rejected = each(source, cx, |rows| {
        parts.write(&prepared(&rows.batch, options)?)?;
        progress(parts.progress());
        Ok(())
    })
    .await?;
    parts.close()?;
    progress(parts.progress());
    let written = Written { rejected, ..parts.written };
    aside.publish()?;
    Ok(written)
}

struct Parts<'a> {
    aside: &'a Aside,
    options: &'a ParquetOptions,
    create: Create,
    part: Option<Part>,
    written: Written,
}

struct Part {
    path: PathBuf,
    writer: ArrowWriter<Box<dyn Write + Send>>,
    rows: usize,
}

impl Parts<'_> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let most = self.options.group_rows.max(1).saturating_mul(self.options.file_groups.max(1));
        let mut at = 0;
        while at < batch.num_rows() {
            let part = match &mut self.part {
                Some(part) => part,
                None => self.part.insert(self.begin(batch.schema())?),
            };
            let n = (batch.num_rows() - at).min(most - part.rows);
            part.writer.write(&batch.slice(at, n)).map_err(|e| fault(&part.path, "cannot write", e))?;
            part.rows += n;
            at += n;
            self.written.rows += n as u64;
            if part.rows == most {
                self.close()?;
            }
        }
        Ok(())
    }

    fn begin(&self, schema: SchemaRef) -> Result<Part, Fault> {
        let path = self.aside.file(&format!("part-{:05}.parquet", self.written.files));
        let file = (self.create)(&path).map_err(|e| fault(&path, "cannot make", e))?;
        let writer = ArrowWriter::try_new(file, schema, Some(self.options.properties()))
            .map_err(|e| fault(&path, "cannot begin", e))?;
        Ok(Part { path, writer, rows: 0 })
    }

    fn close(&mut self) -> Result<(), Fault> {
        if let Some(mut part) = self.part.take() {
            part.writer.finish().map_err(|e| fault(&part.path, "cannot write", e))?;
            part.writer.inner_mut().flush().map_err(|e| fault(&part.path, "cannot write", e))?;
            self.written.files += 1;
            self.written.bytes += part.writer.bytes_written() as u64;
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        let open = self.part.as_ref().map_or(0, |part| part.writer.bytes_written() as u64);
        Progress { rows: self.written.rows, bytes: self.written.bytes + open }
    }
}

fn prepared(batch: &RecordBatch, options: &ParquetOptions) -> Result<RecordBatch, Fault> {
    let batch = match options.categories {
        Categories::Hex => with_hex_categories(batch)?,
        Categories::Int => batch.clone(),
    };
    if !options.fill_nulls {
        return Ok(batch);
    }
    let schema = batch.schema();
    let (fields, columns): (Vec<_>, Vec<_>) = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| match filled(column) {
            Some(column) => (Arc::new(field.as_ref().clone().with_nullable(false)), column),
            None => (Arc::clone(field), Arc::clone(column)),
        })
        .unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Fault::internal("filled columns do not fit their schema").because(e))
}

/// The column with 0 or an empty string for what is missing; `None` for types that Criteo does not have.
fn filled(column: &ArrayRef) -> Option<ArrayRef> {
    Some(match column.data_type() {
        DataType::Int32 => {
            let values = column.as_primitive::<Int32Type>();
            Arc::new(values.iter().map(Option::unwrap_or_default).collect::<Int32Array>())
        }
        DataType::UInt32 => {
            let values = column.as_primitive::<UInt32Type>();
            Arc::new(values.iter().map(Option::unwrap_or_default).collect::<UInt32Array>())
        }
        DataType::Utf8 => {
            let values = column.as_string::<i32>();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<StringArray>())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::options::ReadOptions;
    use crate::synthetic::{Synthetic, SyntheticSource};

    #[test]
    fn a_disk_that_fills_up_is_named_and_nothing_is_left() {
        let full: Create = |_| Ok(Box::new(OpenOptions::new().write(true).open("/dev/full")?));
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut source =
            SyntheticSource::new(Synthetic { rows: 20_000, ..Synthetic::default() }, ReadOptions::default());
        let options = ParquetOptions { group_rows: 4096, ..ParquetOptions::default() };
        let cx = StageCx::detached("t");
        let done = super::super::block_on(convert(&mut source, &cx, &out, &options, |_| (), full));
        let said = done.unwrap_err().to_string();
        assert!(said.contains("the disk is full") && said.contains("part-00000.parquet"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
