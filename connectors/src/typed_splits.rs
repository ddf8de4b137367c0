//! The splits of files that say how many rows their parts have: row groups of Parquet, record batches of Arrow IPC.

use arrow::datatypes::SchemaRef;
use forebay_actors::{Fault, counted};

use crate::file::DataFile;
use crate::identity;
use crate::input::Input;
use crate::lease::fingerprint;
use crate::options::ReadOptions;

/// A part of a file that has rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePart {
    /// Number of the file.
    pub(crate) file: u32,
    /// Number of the part in its file.
    pub(crate) part: u32,
    /// Rows of the file before it.
    pub(crate) before: u64,
    pub(crate) rows: u64,
}

/// The parts that have rows, in the order of the files. `files`: for each file the rows of its parts. `format`: its name in messages.
///
/// # Errors
/// A user fault if there are no rows.
pub(crate) fn splits(
    files: impl ExactSizeIterator<Item = Vec<u64>>,
    input: &Input,
    format: &str,
) -> Result<Vec<FilePart>, Fault> {
    let (count, mut splits) = (files.len(), Vec::new());
    for (file, parts) in (0..).zip(files) {
        let mut before = 0;
        for (part, rows) in (0..).zip(parts) {
            if rows > 0 {
                splits.push(FilePart { file, part, before, rows });
            }
            before += rows;
        }
    }
    if splits.is_empty() {
        let files = counted(count, &format!("{format} file"));
        return Err(Fault::user(format!("`{input}` holds no rows: {files} without one")));
    }
    Ok(splits)
}

/// The fingerprint of [`DataPlan`](crate::DataPlan). `files`: each with the rows of its parts.
pub(crate) fn fingerprint_of(
    format: &str,
    options: &ReadOptions,
    schema: Option<SchemaRef>,
    files: &[(&DataFile, Vec<u64>)],
) -> u64 {
    let ReadOptions { shuffle, seed, window_rows, .. } = options;
    fingerprint(|text| {
        let columns = schema.map(|schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>());
        write!(text, "{format} {shuffle} {seed} {window_rows} {columns:?}")?;
        let places: Vec<(&str, u64)> = files.iter().map(|(file, _)| (file.path.as_ref(), file.size)).collect();
        identity::write(text, &places, |file| format!("{:?}", files[file].1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_rows_are_no_splits_and_count_for_the_rows_before() {
        let input = Input::from("rows");
        let found = splits([vec![0, 5, 0, 7], vec![], vec![3]].into_iter(), &input, "Arrow").unwrap();
        let part = |file, part, before, rows| FilePart { file, part, before, rows };
        assert_eq!(found, [part(0, 1, 0, 5), part(0, 3, 5, 7), part(2, 0, 0, 3)]);
        let said = splits([vec![], vec![0]].into_iter(), &input, "Arrow").unwrap_err().to_string();
        assert_eq!(said, "`rows` holds no rows: 2 Arrow files without one");
    }
}
