//! Checks before the first row that the model can be saved and the rows of the evaluation can be read: after hours of training
//! it would be too late.

use forebay_actors::{Domain, Fault};
use forebay_job::{Job, RunEnd};

use crate::checkpoint::CheckpointFolder;
use crate::context::Context;
use crate::evaluations::best_folders;
use crate::model_folder::{check_place, probe_place};
use crate::run_types::FileTypes;
use crate::sources;

/// Writes and removes a small file where the model and the checkpoints will be, and opens the rows of `data.eval`, whose columns must
/// be those of the job. Blocks on the stores.
///
/// # Errors
/// A user fault if the place of the model or that of the checkpoints cannot be written, or that of the model holds something else, or
/// if the rows are not there, lack a column or have one of another type; an external fault of a disk or a store.
pub fn preflight(job: &Job, context: &Context) -> Result<(), Fault> {
    check(job, context).map(drop)
}

/// See [`preflight`]. Returns the types of the rows of `data.eval`, as far as they are known.
pub(crate) fn check(job: &Job, context: &Context) -> Result<Option<FileTypes>, Fault> {
    for folder in [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| job.output.folder(ended)) {
        check_place(folder, context)?;
    }
    if let Some(folder) = &job.output.model {
        if job.keeps_best() {
            best_folders(folder).into_iter().try_for_each(|folder| check_place(folder, context))?;
        }
        probe_place(folder, context).map_err(|fault| fault.context("the model could not be saved at output.model"))?;
    }
    if let Some(to) = &job.checkpoint.to {
        match CheckpointFolder::open(to, context)?.probe() {
            Err(fault) if fault.domain == Domain::User => {
                return Err(fault.context("checkpoints could not be written to checkpoint.to"));
            }
            // A disk that is full, or a store that is away: by the first checkpoint it may be otherwise.
            Err(fault) => tracing::warn!("a checkpoint could not be written to checkpoint.to now: {fault}"),
            Ok(()) => {}
        }
    }
    let Some(paths) = &job.data.eval else { return Ok(None) };
    sources::check(&job.for_evaluation(), context, paths)
        .map_err(|fault| fault.context("the model could not be evaluated on data.eval"))
}
