//! Rows that a run has read before, and that cannot be read for a moment when a process of the run opens them again.

use forebay_actors::Fault;
use forebay_job::Job;

use crate::context::Context;
use crate::retries::Retries;
use crate::sources;

/// Waits for the files at `data.train`, for `output.retry_for` or until `ends` returns a fault, which is why the process need not wait any
/// more. Blocks on the store.
///
/// # Errors
/// The fault of `ends`. Else an external fault, so that another reader may take the rows and this process is started again.
pub(super) fn wait_for_rows(job: &Job, context: &Context, ends: &dyn Fn() -> Option<Fault>) -> Result<(), Fault> {
    let Some(paths) = &job.data.train else { return Ok(()) };
    let retries = Retries {
        not_yet: "the rows at data.train are not there",
        timeout: job.output.retry_for.0,
        passes: &|_| true,
        gives_up: &|| ends().is_some(),
    };
    retries.run(|| sources::check_found(job, context, paths)).map_err(|fault| {
        let away = || Fault::external("the rows at data.train are not there any more").because(fault);
        ends().unwrap_or_else(away)
    })
}

#[cfg(test)]
mod tests {
    use forebay_actors::{Domain, FaultKind};

    use super::*;

    /// A bug: the files could not be read while a reader was started again, and the whole run ended as if the job named no files.
    #[test]
    fn rows_that_were_there_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("rows.csv");
        let wait = |retry_for: &str, ends: &dyn Fn() -> Option<Fault>| {
            let settings = [format!("data.train={}", rows.display()), format!("output.retry_for={retry_for}")];
            wait_for_rows(&Job::from_toml("", &settings).unwrap(), &Context::default(), ends)
        };
        let fault = wait("0s", &|| None).unwrap_err();
        assert_eq!((fault.domain, fault.kind), (Domain::External, FaultKind::Other), "{fault}");
        let told = || Some(Fault::external("it was asked to shut down").kind(FaultKind::Drained));
        assert_eq!(wait("10h", &told).unwrap_err().kind, FaultKind::Drained);
        let come_back = || {
            std::fs::write(&rows, "label,c\n1,a\n").unwrap();
            None
        };
        wait("10h", &come_back).unwrap();
    }
}
