//! What a training prints at its end, and the report as a file.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::Fault;
use crate::actors::commas;
use crate::connectors::staged;
use crate::pipelines::cluster::RunStatus;
use crate::pipelines::{RunReport, Trained};

use serde_json::json;

use crate::out;
use crate::usage::Usage;

/// What a training prints at its end.
pub(crate) struct Summary<'a> {
    pub(crate) trained: &'a Trained,
    /// The usage of this process before the training.
    pub(crate) before: Option<Usage>,
    /// The status of the run, in a cluster.
    pub(crate) status: Option<RunStatus>,
    /// Print one JSON object.
    pub(crate) json: bool,
}

impl Summary<'_> {
    pub(crate) fn print(&self) {
        let last = &self.trained.progress;
        if self.json {
            return out::tell(self.to_json());
        }
        out::tell(&self.trained.report);
        out::tell(format_args!(
            "trained on {} rows in {:.1} s, {} steps, running logloss {:.5}, running AUC {}",
            commas(last.rows),
            last.seconds,
            last.steps,
            last.logloss,
            last.auc.map_or("undefined".into(), |auc| format!("{auc:.5}"))
        ));
        if let (Some(before), Some(after)) = (self.before, Usage::now()) {
            let cpu = after.cpu_seconds - before.cpu_seconds;
            out::tell(format_args!(
                "used {cpu:.1} CPU seconds ({:.1} per million rows), at most {} MiB of memory",
                cpu / last.rows.max(1) as f64 * 1e6,
                after.peak_bytes >> 20
            ));
        }
        if let Some(RunStatus { counts, windows_done: done, windows_total: of, reassigned_leases, .. }) = &self.status {
            out::tell(format_args!(
                "all processes: {} rows trained on, {} rejected, {} batches, {done} of {of} windows, {reassigned_leases} \
                 leases given out again",
                commas(counts.trained),
                commas(counts.rejected),
                commas(counts.batches)
            ));
        }
    }
}

impl Summary<'_> {
    fn to_json(&self) -> serde_json::Value {
        let Trained { report, progress, training, .. } = self.trained;
        let used = self.before.zip(Usage::now());
        json!({ "trained": {
            "report": report,
            "progress": progress,
            "training": training,
            "cpu_seconds": used.map(|(before, after)| after.cpu_seconds - before.cpu_seconds),
            "peak_bytes": used.map(|(_, after)| after.peak_bytes),
            "run": self.status,
        } })
    }
}

/// Where the report of a training goes as JSON, if anywhere.
pub(crate) struct ReportFile(Option<PathBuf>);

impl ReportFile {
    /// Checks that the file can be written, before the training.
    pub(crate) fn new(file: Option<PathBuf>) -> Result<Self, Fault> {
        file.as_deref().map_or(Ok(()), probe)?;
        Ok(Self(file))
    }

    /// Writes the report.
    pub(crate) fn write(&self, report: &RunReport) -> Result<(), Fault> {
        let Some(path) = &self.0 else { return Ok(()) };
        let text = serde_json::to_string_pretty(report)
            .map_err(|e| Fault::internal("the report cannot be written as JSON").because(e))?;
        fs::write(path, text).map_err(|e| staged::fault(path.display(), "cannot write the report to", e))
    }
}

/// Fails if `file` cannot be written. Leaves it as it was.
fn probe(file: &Path) -> Result<(), Fault> {
    if file.is_dir() {
        return Err(Fault::user(format!(
            "cannot write the report to `{}`: it is a folder, name a file",
            file.display()
        )));
    }
    let tried = match OpenOptions::new().write(true).create_new(true).open(file) {
        Ok(_) => fs::remove_file(file),
        // Opening a pipe would wait for its reader.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && file.is_file() => {
            OpenOptions::new().append(true).open(file).map(drop)
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    };
    tried.map_err(|e| staged::fault(file.display(), "cannot write the report to", e))
}
