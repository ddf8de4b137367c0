//! Going on from a checkpoint. Everything here blocks on the store.

use forebay_actors::{Fault, commas};
use forebay_models::NamedTensor;
use forebay_ps::{TableClient, TableConfig};

use super::folder::CheckpointFolder;
use super::manifest::{CheckpointManifest, TrainPosition};
use super::{ModelState, dense_state, table_rows};
use crate::context::Context;
use crate::job::{DenseAt, Job};
use crate::model_folder::FileEntry;

/// What a trainer goes on from.
#[derive(Default)]
pub(crate) struct Restored {
    pub(crate) position: TrainPosition,
    /// The dense model with the state of its optimizer, if the trainer holds it.
    pub(crate) model: Option<ModelState>,
    /// The files of the gradients that an exact order keeps.
    pub(crate) kept: Vec<FileEntry>,
}

/// Checks, before any process starts, that a run may begin with the folder of its checkpoints.
///
/// # Errors
/// A user fault if the folder has checkpoints and `resume` is not set, or `resume` is set and the job has no checkpoints.
pub fn check_checkpoints(job: &Job, resume: bool, context: &Context) -> Result<(), Fault> {
    open(job, resume, context).map(drop)
}

fn open(job: &Job, resume: bool, context: &Context) -> Result<Option<CheckpointFolder>, Fault> {
    let Some(to) = &job.checkpoint.to else {
        return if resume {
            Err(Fault::user(
                "--resume goes on from a checkpoint, but the job has none: set checkpoint.to to their folder",
            ))
        } else {
            Ok(None)
        };
    };
    let folder = CheckpointFolder::open(to, context)?;
    match folder.numbers()?.last() {
        Some(newest) if !resume => Err(Fault::user(format!(
            "{to} has checkpoints of an earlier run, the newest is number {newest}: add --resume to go on from it, or name \
             another folder (checkpoint.to)"
        ))),
        _ => Ok(Some(folder)),
    }
}

/// The folder of the job's checkpoints, and the checkpoint to go on from. `None`: the job has no checkpoints.
///
/// # Errors
/// As [`check_checkpoints`]. A user fault if the checkpoints are of another job, or none is whole.
pub(crate) fn find(
    job: &Job,
    resume: bool,
    context: &Context,
) -> Result<Option<(CheckpointFolder, Option<CheckpointManifest>)>, Fault> {
    let Some(folder) = open(job, resume, context)? else { return Ok(None) };
    if !resume {
        return Ok(Some((folder, None)));
    }
    let to = &folder.folder;
    let newest = folder.latest()?;
    match &newest {
        Some(manifest) => {
            manifest.check_job(job)?;
            let rows = commas(manifest.rows_trained());
            tracing::info!("goes on from checkpoint {} in {to}: {rows} rows are trained on", manifest.number);
        }
        None => tracing::info!("{to} has no checkpoint yet: the run begins at the start"),
    }
    Ok(Some((folder, newest)))
}

/// Puts the rows of a checkpoint into the shards of `table` that this process holds.
pub(crate) fn load_rows(
    folder: &CheckpointFolder,
    manifest: &CheckpointManifest,
    table: &TableClient,
) -> Result<(), Fault> {
    let [layers] = manifest.tables.as_slice() else {
        return Err(Fault::user(format!(
            "checkpoint {} has {} tables, expected one",
            manifest.number,
            manifest.tables.len()
        )));
    };
    // Of the same job, which says how long rows live. Ages in steps depend on the trainers that share a step.
    let lifetime = table.config().lifetime;
    if (TableConfig { lifetime, ..layers.config.clone() }) != *table.config() {
        return Err(Fault::user(format!(
            "checkpoint {} has a table {:?}, expected {:?}",
            manifest.number,
            layers.config,
            table.config()
        )));
    }
    table_rows::load(&folder.folder, layers, table)
}

/// What a trainer goes on from, but for the rows of tables. `dense`: the role that holds the dense parameters.
pub(crate) fn load_trainer(
    folder: &CheckpointFolder,
    manifest: CheckpointManifest,
    dense: DenseAt,
) -> Result<Restored, Fault> {
    if dense == DenseAt::Ps {
        return Ok(Restored { position: manifest.position, model: None, kept: manifest.kept });
    }
    let [entry] = manifest.dense.as_slice() else {
        return Err(Fault::user(format!(
            "checkpoint {} has {} files of dense parameters, expected one: placement.dense must be as it was",
            manifest.number,
            manifest.dense.len()
        )));
    };
    let model = dense_state::read(&folder.folder, entry)?;
    Ok(Restored { position: manifest.position, model: Some(model), kept: manifest.kept })
}

/// The dense parameters of a checkpoint, without the state of their optimizer. `manifest` has one file of them.
pub(crate) fn dense_parameters(
    folder: &CheckpointFolder,
    manifest: &CheckpointManifest,
) -> Result<Vec<NamedTensor>, Fault> {
    let mut dense = Vec::new();
    for entry in &manifest.dense {
        dense.extend(dense_state::read(&folder.folder, entry)?);
    }
    dense.retain(|tensor| !tensor.name.starts_with("optimizer."));
    Ok(dense)
}
