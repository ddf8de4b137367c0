//! Checks before the first row that the model can be saved and the rows of the evaluation can be read: after hours of training
//! it would be too late.

use forebay_actors::{Domain, Fault};

use crate::context::Context;
use crate::job::Job;
use crate::model_folder::{check_place, probe_place};
use crate::sources;
use crate::training_summary::RunEnd;

/// Writes and removes a small file where the model will be saved, and opens the rows of `data.eval`, whose columns must be those
/// of the job. Blocks on the stores.
///
/// # Errors
/// A user fault if the place of the model cannot be written or holds something else, or if the rows are not there, lack a column
/// or have one of another type; an external fault of a disk or a store.
pub fn preflight(job: &Job, context: &Context) -> Result<(), Fault> {
    for folder in [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| job.output.folder(ended)) {
        check_place(folder, context)?;
    }
    if let Some(folder) = &job.output.model {
        probe_place(folder, context).map_err(|fault| before("the model could not be saved at output.model", &fault))?;
    }
    if let Some(paths) = &job.data.eval {
        sources::check(&job.for_evaluation(), context, paths)
            .map_err(|fault| before("the model could not be evaluated on data.eval", &fault))?;
    }
    Ok(())
}

/// `fault`, and what it would have prevented later.
fn before(what: &str, fault: &Fault) -> Fault {
    let text = format!("{what}: {fault}");
    match fault.domain {
        Domain::User => Fault::user(text),
        Domain::External => Fault::external(text),
        Domain::Internal => Fault::internal(text),
    }
    .kind(fault.kind)
}
