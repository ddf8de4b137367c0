//! Refuses folders that a command must not write: a folder with files that it reads, a folder that is read with its rows, and the folder of
//! its bad rows.

use crate::Fault;
use crate::connectors::convert::block_on;
use crate::connectors::staged::is_in;
use crate::connectors::{Input, OnBadRow};

/// The field of a job that names the folder of bad rows.
pub(super) const WRITE_TO: &str = "data.on_bad_row.write_to";

/// A folder in the arguments of a command that writes no standard output.
///
/// # Errors
/// The value is `-`, which means standard output elsewhere.
pub(super) fn named(text: &str) -> Result<String, String> {
    match text {
        "-" => {
            Err("expected the name of a folder: this command does not write its result to standard output".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

/// Fails if the folder `out`, which is replaced as a whole, holds one of the `models` or a file of `data`.
///
/// # Errors
/// A user fault that names the model or the data in the folder; the fault of the store, or of data that does not exist.
pub(super) fn check_replaced(out: &str, models: &[&str], data: Option<&Input>) -> Result<(), Fault> {
    let files = match data {
        Some(data) => block_on(data.list())?,
        None => Vec::new(),
    };
    let mut reads = models.iter().copied().chain(files.iter().map(|file| file.name.as_str()));
    match reads.find(|place| is_in(place, out)) {
        None => Ok(()),
        Some(read) => Err(Fault::user(format!(
            "`{out}` would be replaced, but it contains {read}, which the command reads: name another folder"
        ))),
    }
}

/// Fails if the folder `out` would be read with the rows of `data`: the next program would take its files for rows.
///
/// # Errors
/// A user fault that names the path of `data`.
pub(super) fn check_not_among_rows(out: &str, data: &Input) -> Result<(), Fault> {
    match data.path_around(out) {
        None => Ok(()),
        Some(rows) => Err(Fault::user(format!(
            "`{out}` is in {rows}, which is read as a whole: its files would be taken for rows; name a folder outside of it"
        ))),
    }
}

/// Fails if the bad rows would be written into the folder `out`, which must be empty until it appears. `option` is the field or the
/// argument that names their folder.
///
/// # Errors
/// A user fault that names both folders.
pub(super) fn check_without_bad_rows(out: &str, bad_rows: &OnBadRow, option: &str) -> Result<(), Fault> {
    match bad_rows {
        OnBadRow::WriteTo(folder) if is_in(&folder.to_string_lossy(), out) => Err(Fault::user(format!(
            "{option} is {}, in `{out}`, the folder of the output, which appears as a whole at the end: name a folder outside of it",
            folder.display()
        ))),
        _ => Ok(()),
    }
}
