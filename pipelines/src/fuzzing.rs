//! All of a checkpoint that may be hostile, read as the program reads it.

use forebay_actors::Fault;

use crate::checkpoint::{CheckpointFolder, read_dense, read_kept, read_metrics};

/// Reads the manifest and every file of a checkpoint. Merges the files of the tables into one layer in the folder `to`, as `forebay
/// checkpoint compact` does. Reads dense parameters, kept gradients and running metrics as a trainer that continues from the checkpoint.
///
/// # Errors
/// A user fault that says what is wrong with the checkpoint; an external one if the store fails.
pub fn read_checkpoint(from: &CheckpointFolder, number: u64, to: &CheckpointFolder) -> Result<(), Fault> {
    let manifest = from.verify(number)?;
    manifest.dense.iter().try_for_each(|entry| read_dense(&from.folder, entry).map(drop))?;
    for table in &manifest.tables {
        table.config.check()?;
        let row_dim = table.config.row_dim();
        manifest.kept.iter().try_for_each(|entry| read_kept(&from.folder, entry, row_dim).map(drop))?;
    }
    manifest.metrics.iter().try_for_each(|entry| read_metrics(from, entry).map(drop))?;
    from.compact(Some(number), Some(to)).map(drop)
}
