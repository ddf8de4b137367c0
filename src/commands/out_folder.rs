//! Refuses folders that a command must not write: one with files that it reads, and one that is read with its rows.

use crate::Fault;
use crate::connectors::Input;
use crate::connectors::convert::block_on;
use crate::connectors::staged::is_in;

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

/// Fails if the folder `out` would be read with the rows of `data`, so that the next program takes its files for rows.
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
