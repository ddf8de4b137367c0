//! Checks before the first row that the model can be saved and the rows of the evaluation can be read: after hours of training
//! it would be too late.

use forebay_actors::{Domain, Fault};
use forebay_connectors::Input;
use forebay_job::{Job, RunEnd};

use crate::checkpoint::CheckpointFolder;
use crate::columns::run_types::{FileTypes, not_evaluated};
use crate::context::Context;
use crate::evaluations::best_folders;
use crate::model_folder::{check_place, probe_place};
use crate::sources;

/// Writes and removes a small file where the model, the checkpoints and bad rows will be, and opens the rows of `data.eval`, which must
/// have the columns of the job. Blocks on the stores.
///
/// # Errors
/// A user fault about a place: the place of the model, of the checkpoints or of bad rows cannot be written or lies among the rows, or the
/// place of the model holds something else. A user fault about `data.eval`: the rows are not there, lack a column, or have a column of
/// another type or one by which they cannot be grouped. An external fault of a disk or a store.
pub fn preflight(job: &Job, context: &Context) -> Result<(), Fault> {
    check_outputs(job, context, false)?;
    check_eval(job, context, false).map(drop)
}

/// The part of [`preflight`] about `data.eval`. Returns the types of its rows, as far as they are known. `goes_on`: the run may have
/// trained before, so rows that cannot be read now do not end it. They may be there again when the model is evaluated; else the model is
/// saved.
pub(crate) fn check_eval(job: &Job, context: &Context, goes_on: bool) -> Result<Option<FileTypes>, Fault> {
    let Some(paths) = &job.data.eval else { return Ok(None) };
    unless_it_goes_on(sources::check(&job.for_evaluation(), context, paths), goes_on)
}

/// The result of a check of `data.eval`; if the run goes on, a fault is only a warning.
fn unless_it_goes_on<T: Default>(checked: Result<T, Fault>, goes_on: bool) -> Result<T, Fault> {
    match checked {
        Err(fault) if goes_on => {
            tracing::warn!("the model could not be evaluated on data.eval now: {fault}");
            Ok(T::default())
        }
        checked => checked.map_err(not_evaluated),
    }
}

/// Makes the checks of [`preflight`] that need neither a model nor the columns of the rows. A run that continues from a model or a
/// checkpoint calls this before it loads one, which may take minutes; after that only [`check_eval`] is left. If the run is one process,
/// this also checks that the rows to train on exist. `goes_on`: see [`check_outputs`] and [`check_eval`]. Blocks on the stores.
///
/// # Errors
/// As [`preflight`]. Returns a user fault if the rows to train on do not exist.
pub(crate) fn check_before_loading(job: &Job, context: &Context, goes_on: bool) -> Result<(), Fault> {
    check_outputs(job, context, goes_on)?;
    if let (Some(paths), true) = (&job.data.train, job.placement.is_one_process()) {
        sources::check_found(job, context, paths)?;
    }
    let Some(paths) = &job.data.eval else { return Ok(()) };
    unless_it_goes_on(sources::check_found(&job.for_evaluation(), context, paths), goes_on)
}

/// Refuses a name that is too long for the folders that may be beside the model: the model of a drained run, and a model that cannot be
/// saved at `output.model`.
fn check_name(model: &str, context: &Context) -> Result<(), Fault> {
    /// Most file systems have names of up to 255 bytes.
    const LONG: usize = 150;
    let model = model.trim_end_matches('/');
    let is_long = model.rsplit('/').next().is_some_and(|name| name.len() > LONG);
    match is_long.then(|| probe_place(format!("{model}.partial.rescued-3"), context)) {
        Some(Err(fault)) if fault.domain == Domain::User => {
            Err(fault.context("the name of output.model is too long for the names of models beside it"))
        }
        _ => Ok(()),
    }
}

/// The part of [`preflight`] about the places of all that the run writes. `goes_on`: the run may have trained before, so a full disk, or a
/// store that cannot be reached, does not end it. Blocks on the stores.
pub(crate) fn check_outputs(job: &Job, context: &Context, goes_on: bool) -> Result<(), Fault> {
    for (output, place) in [("output.model", &job.output.model), ("checkpoint.to", &job.checkpoint.to)] {
        place.as_ref().map_or(Ok(()), |place| check_not_among_rows(job, output, place))?;
    }
    if let Some(paths) = &job.data.train {
        sources::check_bad_rows(job, &Input::all(paths.0.iter().map(Input::from)))?;
    }
    for folder in [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| job.output.folder(ended)) {
        check_place(folder, context)?;
    }
    if let Some(folder) = &job.output.model {
        if job.keeps_best() {
            best_folders(folder).into_iter().try_for_each(|folder| check_place(folder, context))?;
        }
        check_probed(probe_place(folder, context), goes_on, "the model could not be saved at output.model")?;
        check_name(folder, context)?;
    }
    if let Some(to) = &job.checkpoint.to {
        let probed = CheckpointFolder::open(to, context)?.probe();
        check_probed(probed, true, "checkpoints could not be written to checkpoint.to")?;
    }
    if !job.placement.is_one_process() {
        // The readers write bad rows.
        return Ok(());
    }
    // A full disk may have room again when a bad row comes.
    job.data.on_bad_row.probe().or_else(|fault| if fault.domain == Domain::User { Err(fault) } else { Ok(()) })
}

/// Fails if a probe has failed, and says `why` nothing is trained, unless [`warn_if_it_may_pass`] only warns.
fn check_probed(probed: Result<(), Fault>, may_wait: bool, why: &str) -> Result<(), Fault> {
    let checked = warn_if_it_may_pass(probed, may_wait, why);
    checked.map_err(|fault| fault.context(format!("nothing is trained, because {why}")))
}

/// Returns the fault of a probe. `may_wait`: a full disk, or a store that cannot be reached, is only a warning, because it may have changed
/// before the run writes something. The warning says `what` cannot be done.
///
/// # Errors
/// The fault of the probe.
pub fn warn_if_it_may_pass(probed: Result<(), Fault>, may_wait: bool, what: &str) -> Result<(), Fault> {
    match probed {
        Err(fault) if may_wait && fault.domain == Domain::External => {
            tracing::warn!("{what} now: {fault}");
            Ok(())
        }
        probed => probed,
    }
}

/// Fails if `place`, which the field or argument `output` names, lies in a folder of the job's rows: folders are read with all that is
/// below them, so the next run would read what this run writes there as rows.
///
/// # Errors
/// A user fault that names `output`, the place and the folder.
pub fn check_not_among_rows(job: &Job, output: &str, place: &str) -> Result<(), Fault> {
    let read = [("data.train", &job.data.train), ("data.eval", &job.data.eval)];
    for (input, paths) in read.into_iter().filter_map(|(input, paths)| Some((input, paths.as_ref()?))) {
        if let Some(rows) = Input::all(paths.0.iter().map(Input::from)).path_around(place) {
            return Err(Fault::user(format!(
                "{output} is {place}, in {rows}, which {input} reads as a whole: its files would be taken for rows; name a place \
                 outside of it"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `data.eval` could not be read for a moment while the first trainer was started again, and the whole run ended.
    #[test]
    fn rows_of_the_evaluation_that_are_away_end_no_run_that_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let eval = format!("data.eval={}", dir.path().join("away").display());
        let (job, context) = (Job::from_toml("", &[eval]).unwrap(), Context::default());
        assert!(check_before_loading(&job, &context, true).is_ok());
        assert!(check_eval(&job, &context, true).unwrap().is_none());
        for fault in [check_before_loading(&job, &context, false).unwrap_err(), preflight(&job, &context).unwrap_err()]
        {
            let said = fault.to_string();
            assert!(
                said.starts_with("nothing is trained, because the model could not be evaluated on data.eval"),
                "{said}"
            );
        }
    }
}
