//! Continuing from a checkpoint. Everything here blocks on the store.

use std::time::Duration;

use forebay_actors::{Fault, FaultKind, commas};
use forebay_connectors::staged::is_in;
use forebay_job::{Columns, DenseAt, Job};
use forebay_models::{DenseOptimizer, NamedTensor, ParamBlock};
use forebay_ps::TableClient;

use super::folder::CheckpointFolder;
use super::manifest::{CheckpointManifest, TrainPosition};
use super::named::NamedCheckpoint;
use super::origin::{DamagedCheckpoints, OriginCheckpoint};
use super::{ModelState, dense_state, table_rows};
use crate::columns::run_types::RowTypes;
use crate::columns::trained_types::TrainedTypes;
use crate::context::Context;
use crate::fault::model_fault;
use crate::model_folder::FileEntry;
use crate::retries::Retries;

/// What a trainer continues from.
#[derive(Default)]
pub(crate) struct Restored {
    pub(crate) position: TrainPosition,
    /// The dense model with the state of its optimizer, if the trainer holds it.
    pub(crate) model: Option<ModelState>,
    /// The files of the gradients that an exact order keeps.
    pub(crate) kept: Vec<FileEntry>,
    /// The file of the running metrics.
    pub(crate) metrics: Option<FileEntry>,
    /// The types of the feature columns, if they are known.
    pub(crate) row_types: Option<RowTypes>,
    /// The columns of the run that made the checkpoint.
    pub(crate) columns: Option<Columns>,
    /// The folder of these files. `None` if there are none.
    pub(crate) from: Option<CheckpointFolder>,
}

/// Checks, before any process starts, that a run may begin with the folder of its checkpoints, and that there is a checkpoint at
/// `checkpoint.from`.
///
/// # Errors
/// A user fault if the folder has checkpoints and `resume` is not set, if `resume` or `checkpoint.from` is set and the job has no
/// checkpoints, or if the checkpoint at `checkpoint.from` is missing or of another job.
pub fn check_checkpoints(job: &Job, resume: bool, context: &Context) -> Result<(), Fault> {
    let Some((to, from)) = open(job, resume, context)? else { return Ok(()) };
    match from {
        Some(from) if !resume || to.numbers()?.is_empty() => from.manifest()?.check_job(job),
        _ => Ok(()),
    }
}

/// The folder of the job's checkpoints, and the checkpoint at `checkpoint.from`.
fn open(
    job: &Job,
    resume: bool,
    context: &Context,
) -> Result<Option<(CheckpointFolder, Option<NamedCheckpoint>)>, Fault> {
    let options = &job.checkpoint;
    let Some(to) = &options.to else {
        let flag = match (resume, &options.from) {
            (true, _) => {
                "--resume continues from a checkpoint, but the job has none: set checkpoint.to to their folder"
            }
            (_, Some(_)) => {
                "a run that continues from a checkpoint of another folder (checkpoint.from, --resume-from) makes its own: set \
                 checkpoint.to to their folder"
            }
            _ => return Ok(None),
        };
        return Err(Fault::user(flag).kind(FaultKind::InvalidJob));
    };
    let folder = CheckpointFolder::open(to, context)?;
    let from = options.from.as_ref().map(|from| NamedCheckpoint::open(from, context)).transpose()?;
    if let Some(from) = &from
        && let (other, own) = (from.folder.folder.to_string(), folder.folder.to_string())
        && is_in(&other, &own)
        && is_in(&own, &other)
    {
        return Err(Fault::user(format!(
            "checkpoint.from and checkpoint.to are both {to}: --resume continues from the newest checkpoint there; to continue from \
             another one, name a new folder for the run's own (checkpoint.to), so that those of the earlier run stay"
        ))
        .kind(FaultKind::InvalidJob));
    }
    match folder.numbers()?.last() {
        Some(newest) if !resume && from.is_some() => Err(Fault::user(format!(
            "{to} has checkpoints of an earlier run, the newest is number {newest}: name another folder (checkpoint.to) for the \
             run that continues from {}, or add --resume to continue from number {newest} instead",
            from.map(|from| from.to_string()).unwrap_or_default()
        ))
        .kind(FaultKind::InvalidJob)),
        Some(newest) if !resume => Err(Fault::user(format!(
            "{to} has checkpoints of an earlier run, the newest is number {newest}: add --resume to continue from it, or name \
             another folder (checkpoint.to)"
        ))
        .kind(FaultKind::InvalidJob)),
        _ => Ok(Some((folder, from))),
    }
}

/// A checkpoint to continue from, and the folder that has it.
pub(crate) struct Found {
    pub(crate) folder: CheckpointFolder,
    pub(crate) manifest: CheckpointManifest,
    pub(crate) at: OriginCheckpoint,
}

impl Found {
    /// The checkpoint that the coordinator has chosen. `known`: its manifest as JSON, which is then not read again.
    pub(crate) fn open(job: &Job, at: OriginCheckpoint, known: Option<&str>, context: &Context) -> Result<Self, Fault> {
        let (to, from) = (&job.checkpoint.to, &job.checkpoint.from);
        let folder = match (at.elsewhere, to, from) {
            (true, _, Some(from)) => NamedCheckpoint::open(from, context)?.folder,
            (false, Some(to), _) => CheckpointFolder::open(to, context)?,
            _ => {
                return Err(Fault::internal("the run continues from a checkpoint, and its job names no folder of any"));
            }
        };
        let unreadable = |e| Fault::internal("the coordinator has sent a manifest that is none").because(e);
        let manifest = match known {
            Some(known) => serde_json::from_str(known).map_err(unreadable)?,
            None => folder.manifest(at.number)?,
        };
        Ok(Self { folder, manifest, at }.of_this_run())
    }

    /// A run that continues from the checkpoint of another run is a run of its own: neither may write into the other's folder.
    fn of_this_run(mut self) -> Self {
        if self.at.elsewhere {
            self.manifest.position.run = 0;
        }
        self
    }
}

/// As [`find`], for a run in one process. If its checkpoints cannot be reached, waits for them for `output.retry_for`.
pub(crate) fn find_alone(
    job: &Job,
    resume: bool,
    damaged: &DamagedCheckpoints,
    context: &Context,
) -> Result<Option<(CheckpointFolder, Option<Found>)>, Fault> {
    waiting(job.output.retry_for.0, &|| false).run(|| find(job, resume, false, damaged, context))
}

/// The waits for checkpoints that cannot be reached, until `gives_up` returns true.
pub(crate) fn waiting(timeout: Duration, gives_up: &dyn Fn() -> bool) -> Retries<'_> {
    Retries { not_yet: "the run waits for its checkpoints", timeout, passes: &are_away, gives_up }
}

/// Whether checkpoints could not be found because their disk is not mounted.
pub(crate) fn are_away(fault: &Fault) -> bool {
    fault.kind == FaultKind::Unsaved
}

/// The folder of the job's checkpoints, and the checkpoint to continue from: the newest there, else the one at `checkpoint.from`. `None`:
/// the job has no checkpoints. Does not read the files of the checkpoint. If the caller finds one damaged, it adds the checkpoint to
/// `damaged`, drops what it has read, and calls this again. `made`: the run has made checkpoints, so it does not begin without one.
///
/// # Errors
/// As [`check_checkpoints`]. A user fault if the checkpoint is of another job, or all are damaged. An external fault of the kind
/// [`FaultKind::Unsaved`] if `made`, and `checkpoint.to` has no checkpoint; also with `resume`, if its disk is not mounted.
pub(crate) fn find(
    job: &Job,
    resume: bool,
    made: bool,
    damaged: &DamagedCheckpoints,
    context: &Context,
) -> Result<Option<(CheckpointFolder, Option<Found>)>, Fault> {
    let Some((to, from)) = open(job, resume, context)? else { return Ok(None) };
    if !resume {
        to.forget_finished()?;
    }
    let own = if resume { to.newest(&damaged.of_folder(false))? } else { None };
    if made && own.is_none() {
        let away = format!(
            "{} has no checkpoint now, and the run has made checkpoints there: is its disk mounted, and has no one moved the folder?",
            to.folder
        );
        return Err(Fault::external(away).kind(FaultKind::Unsaved));
    }
    if let (true, None, Some(disk)) = (resume, &own, to.folder.not_mounted()) {
        let away = format!(
            "{} has no checkpoint now, and by /etc/fstab it lies on the disk of {disk}, which is not mounted: mount it (without --resume \
             the run begins at the start)",
            to.folder
        );
        return Err(Fault::external(away).kind(FaultKind::Unsaved));
    }
    let mut found = match (own, from) {
        (Some(manifest), _) => Found { folder: to.clone(), at: OriginCheckpoint::own(manifest.number), manifest },
        (None, Some(from)) => {
            let manifest = from.not_among(&damaged.of_folder(true))?;
            let at = OriginCheckpoint { number: manifest.number, elsewhere: true };
            Found { folder: from.folder, manifest, at }.of_this_run()
        }
        (None, None) => {
            if resume {
                tracing::info!("{} has no checkpoint yet: the run begins at the start", to.folder);
            }
            return Ok(Some((to, None)));
        }
    };
    let Found { folder, manifest, .. } = &mut found;
    manifest.check_job(job)?;
    let rows = commas(manifest.rows_trained());
    tracing::info!("continues from checkpoint {} in {}: {rows} rows are trained on", manifest.number, folder.folder);
    if let Some(why) = manifest.drop_other_evaluations(job)
        && job.evaluation.every.is_some()
    {
        tracing::warn!(
            "the evaluations of the checkpoint do not count, neither for the best model nor for evaluation.patience and \
             evaluation.reduce_lr_on_plateau: {why}; those to come are compared with each other"
        );
    }
    if let Some(what) = manifest.other_evaluation_rows(job) {
        tracing::warn!(
            "the evaluations to come are compared with those of the checkpoint, and {what}: the rows must be the same"
        );
    }
    Ok(Some((to, Some(found))))
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
        ))
        .kind(FaultKind::OtherVersion));
    };
    // The job is the same, but lifetimes count steps, whose rows depend on the number of trainers.
    if layers.config.clone().with_lifetimes_of(table.config()) != *table.config() {
        return Err(Fault::user(format!(
            "checkpoint {} has a table {:?}, expected {:?}",
            manifest.number,
            layers.config,
            table.config()
        ))
        .kind(FaultKind::InvalidJob));
    }
    table_rows::load(&folder.folder, layers, table)
}

/// What a trainer continues from, without the rows of tables. `dense`: the role that holds the dense parameters.
pub(crate) fn load_trainer(
    folder: &CheckpointFolder,
    manifest: CheckpointManifest,
    dense: DenseAt,
) -> Result<Restored, Fault> {
    let model = match (dense, manifest.dense.as_slice()) {
        (DenseAt::Ps, _) => None,
        (DenseAt::Trainer, [entry]) => Some(dense_state::read(&folder.folder, entry)?),
        (DenseAt::Trainer, files) => {
            return Err(Fault::user(format!(
                "checkpoint {} has {} files of dense parameters, expected one: placement.dense must be as it was",
                manifest.number,
                files.len()
            ))
            .kind(FaultKind::InvalidJob));
        }
    };
    let CheckpointManifest { job, position, kept, metrics, types, lists, .. } = manifest;
    let row_types = (!types.is_empty()).then_some(RowTypes { types: TrainedTypes(types), lists });
    let (columns, from) = (Some(job.columns), Some(folder.clone()));
    Ok(Restored { position, model, kept, metrics, row_types, columns, from })
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

/// The dense parameters of a checkpoint that lie in blocks of ps processes, and the state of their optimizer, as one block.
pub(crate) fn dense_blocks(
    folder: &CheckpointFolder,
    manifest: &CheckpointManifest,
    optimizer: DenseOptimizer,
) -> Result<ParamBlock, Fault> {
    let mut blocks = Vec::new();
    for entry in &manifest.dense {
        let tensors = dense_state::read(&folder.folder, entry)?;
        blocks.push(ParamBlock::restored(optimizer, &tensors).map_err(|e| {
            let what = format!("checkpoint {} has no dense blocks of ps processes", manifest.number);
            Fault::user(format!("{what}: placement.dense must be as it was")).kind(FaultKind::InvalidJob).because(e)
        })?);
    }
    ParamBlock::joined(&blocks).map_err(model_fault)
}
