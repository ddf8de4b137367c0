//! Writes rows of Criteo's shape as text, `part-00000.txt` and so on: `label \t 13 integers \t 26 hex categories`.

use std::io::{self, Write};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int32Type, UInt32Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx};
use serde::{Deserialize, Serialize};

use super::progress::{ConvertProgress, Written, for_each_batch};
use crate::criteo::schema::hex_digits;
use crate::criteo::{Categories, INTEGERS, criteo_schema};
use crate::rows::Rows;
use crate::staged::{FileWriter, Folder, StagedFolder, fault};

/// The options of text files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TextOptions {
    /// Rows of a file. Default 1,000,000.
    pub file_rows: usize,
    /// Whether a folder that holds files is replaced. Default false.
    pub replace: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { file_rows: 1_000_000, replace: false }
    }
}

/// Writes all rows of a source into `folder`, in any store, which appears when all is written. The source must yield Criteo's columns
/// with categories as numbers.
pub async fn to_criteo_text<S: Source<Out = Rows>>(
    source: &mut S,
    cx: &StageCx,
    folder: impl Into<Folder>,
    options: &TextOptions,
    mut progress: impl FnMut(ConvertProgress),
) -> Result<Written, Fault> {
    let staged = StagedFolder::begin_files(&folder.into(), options.replace, &[".txt"])?;
    let mut written = Written::default();
    let mut part: Option<(FileWriter, usize)> = None;
    let mut text = Vec::new();
    let most = options.file_rows.max(1);
    let close = |part: Option<(FileWriter, usize)>| part.map_or(Ok(()), |(file, _)| file.finish().map(drop));
    written.rejected = for_each_batch(source, cx, async |rows| {
        let mut at = 0;
        while at < rows.batch.num_rows() {
            let (file, held) = match &mut part {
                Some(part) => part,
                None => {
                    written.files += 1;
                    part.insert((staged.create(&format!("part-{:05}.txt", written.files - 1))?, 0))
                }
            };
            let n = (rows.batch.num_rows() - at).min(most - *held);
            text.clear();
            lines(&rows.batch.slice(at, n), &mut text)?;
            file.write_all(&text).map_err(|e| fault(file.name(), "cannot write", e))?;
            (at, *held) = (at + n, *held + n);
            written.rows += n as u64;
            written.bytes += text.len() as u64;
            if *held == most {
                close(part.take())?;
            }
        }
        progress(ConvertProgress { rows: written.rows, bytes: written.bytes });
        Ok(())
    })
    .await?;
    close(part.take())?;
    staged.mark()?;
    staged.publish()?;
    Ok(written)
}

/// Appends the rows as lines.
fn lines(batch: &RecordBatch, text: &mut Vec<u8>) -> Result<(), Fault> {
    let expected = criteo_schema(Categories::Int);
    let same = batch.num_columns() == expected.fields().len()
        && batch
            .schema()
            .fields()
            .iter()
            .zip(expected.fields())
            .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
    if !same {
        return Err(Fault::user(format!(
            "only rows in Criteo's shape can be written as Criteo text: expected {}, found {}",
            names(&expected),
            names(&batch.schema())
        )));
    }
    let (integers, categories) = batch.columns().split_at(1 + INTEGERS);
    let integers: Vec<_> = integers.iter().map(|c| c.as_primitive::<Int32Type>()).collect();
    let categories: Vec<_> = categories.iter().map(|c| c.as_primitive::<UInt32Type>()).collect();
    for row in 0..batch.num_rows() {
        for (i, column) in integers.iter().enumerate() {
            if i > 0 {
                text.push(b'\t');
            }
            if column.is_valid(row) {
                let written: io::Result<()> = write!(text, "{}", column.value(row));
                written.map_err(|e| Fault::internal("a vector refused bytes").because(e))?;
            }
        }
        for column in &categories {
            text.push(b'\t');
            if column.is_valid(row) {
                text.extend_from_slice(&hex_digits(column.value(row)));
            }
        }
        text.push(b'\n');
    }
    Ok(())
}

fn names(schema: &arrow::datatypes::Schema) -> String {
    schema.fields().iter().take(45).map(|f| format!("{} {}", f.name(), f.data_type())).collect::<Vec<_>>().join(", ")
}
