//! Whether the run was over before this process was started, as the folder of its checkpoints says: the process was killed when all others
//! had ended, and its coordinator will not come back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_actors::{Fault, FaultKind};
use forebay_job::Job;
use tokio::time::Instant;

use super::messages::job_digest;
use crate::checkpoint::finished;
use crate::context::Context;

/// The least time between two looks into the folder.
const EVERY: Duration = Duration::from_secs(5);

/// The fault of a process that has nothing to do, because the run has ended with its model.
pub(super) fn run_over(why: impl Into<String>) -> Fault {
    Fault::external(why.into()).kind(FaultKind::RunOver)
}

/// How the run of a job has ended, for people, if the folder of its checkpoints says that it has, and not longer than
/// `placement.timeout_seconds` ago: then a run that continues from there has nothing to do. A folder that cannot be read says nothing.
/// Blocks on the store.
pub fn ended_before(job: &Job, context: &Context) -> Option<String> {
    let run = finished(job, &job_digest(job), context).unwrap_or_else(|fault| {
        tracing::debug!("it is not known whether the run has ended: {fault}");
        None
    });
    run.map(|run| run.to_string())
}

/// Looks into the folder of the checkpoints.
pub(super) struct OverBefore {
    /// `None`: the process may not continue from a checkpoint.
    run: Option<(Job, Context)>,
    looked: Mutex<Option<Instant>>,
}

impl OverBefore {
    /// `resume`: the process may continue from a checkpoint, so it may be one that was started again.
    pub(super) fn new(job: &Job, resume: bool, context: &Context) -> Self {
        let may_be = resume && job.checkpoint.to.is_some();
        Self { run: may_be.then(|| (job.clone(), context.clone())), looked: Mutex::default() }
    }

    /// Looks, unless it has looked a moment before. A folder that cannot be read says nothing: a reader may have no access to it.
    ///
    /// # Errors
    /// The run was over before: a fault of the kind [`FaultKind::RunOver`].
    pub(super) async fn check(&self) -> Result<(), Fault> {
        let Some((job, context)) = &self.run else { return Ok(()) };
        let now = Instant::now();
        let last = self.looked.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if last.is_some_and(|last| now - last < EVERY) {
            return Ok(());
        }
        let (job, context) = (job.clone(), context.clone());
        match tokio::task::spawn_blocking(move || ended_before(&job, &context)).await {
            Ok(Some(run)) => Err(run_over(run)),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}
