//! The dense parameters with the state of their optimizer, as safetensors. Both functions block on the store.

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;

use super::ModelState;
use crate::model_folder::checked::CheckedWriter;
use crate::model_folder::{FileEntry, dense_file};

pub(crate) fn write(state: &ModelState, folder: &OpenFolder, file: &str) -> Result<FileEntry, Fault> {
    dense_file::write(state, CheckedWriter::new(folder.create(file)?), file)
}

pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry) -> Result<ModelState, Fault> {
    dense_file::read(folder, entry)
}
