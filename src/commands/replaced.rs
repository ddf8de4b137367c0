//! Refuses to `--replace` a folder with files that the command reads.

use crate::Fault;
use crate::connectors::Input;
use crate::connectors::convert::block_on;
use crate::connectors::staged::is_in;

/// Fails if the folder `out`, which is replaced as a whole, holds one of the `models` or a file of `data`.
///
/// # Errors
/// A user fault that names the model or the data in the folder; the fault of the store, or of data that does not exist.
pub(super) fn check(out: &str, models: &[&str], data: Option<&Input>) -> Result<(), Fault> {
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
