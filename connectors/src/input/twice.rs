//! Refuses a file that several inputs name: its rows would be read twice in each epoch, and the metrics of an evaluation would count
//! them twice.

use std::collections::HashSet;

use forebay_actors::Fault;
use object_store::path::Path;

use crate::file::DataFile;

/// The files so far: the store, and the path in it.
#[derive(Default)]
pub(super) struct Seen(HashSet<(String, Path)>);

impl Seen {
    /// Adds the files of one input. `store` is the same for the same store.
    ///
    /// # Errors
    /// A user fault that names the first file that an earlier input has.
    pub(super) fn add(&mut self, store: &str, files: &[DataFile]) -> Result<(), Fault> {
        match files.iter().find(|file| !self.0.insert((store.to_owned(), file.path.clone()))) {
            None => Ok(()),
            Some(file) => Err(Fault::user(format!(
                "`{}` is named twice, by two paths or globs: name it once (data.epochs reads all rows several times)",
                file.name
            ))),
        }
    }
}
