//! `finished.json`: the run of a folder of checkpoints has trained on all its rows, and its model is saved. A run of several processes
//! writes this file last. If a process is killed after that and started again, it finds the file and ends at once, instead of waiting for
//! the others, which have ended. Everything here blocks on the store.

use std::fmt;

use forebay_actors::Fault;
use forebay_connectors::staged::Folder;
use forebay_job::Job;
use serde::{Deserialize, Serialize};

use super::folder::CheckpointFolder;
use super::manifest::seconds_since_1970;
use crate::context::Context;
use crate::model_folder::MANIFEST;
use crate::{signed_json, versioned_json};

const NAME: &str = "finished.json";
const FORMAT: &str = "forebay finished run";
const VERSION: u32 = 1;
/// The longest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// A run that has ended with its model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedRun {
    format: String,
    version: u32,
    /// Seconds since 1970 when it was written.
    written: u64,
    /// The random number of the run.
    run: u64,
    /// The digest of its job.
    job: String,
    /// The folder of its model. `None`: the job saves none.
    model: Option<String>,
    /// Rows trained on.
    rows: u64,
}

impl FinishedRun {
    /// `job`: the digest of the run's job, which its processes compare.
    pub(crate) fn new(run: u64, job: String, model: Option<String>, rows: u64) -> Self {
        Self { format: FORMAT.into(), version: VERSION, written: seconds_since_1970(), run, job, model, rows }
    }
}

impl fmt::Display for FinishedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run has ended: it has trained on {}", forebay_actors::counted(self.rows, "row"))?;
        self.model.as_ref().map_or(Ok(()), |model| write!(f, ", and its model is at {model}"))
    }
}

impl CheckpointFolder {
    /// Writes that the run has ended.
    pub(crate) fn finish(&self, run: &FinishedRun) -> Result<(), Fault> {
        self.forget_finished()?;
        match self.folder.put_new(NAME, signed_json::to_json(run)?)? {
            true => Ok(()),
            false => Err(Fault::external(format!("another process has written {}", self.folder.name(NAME)))),
        }
    }

    /// Another run begins in the folder.
    pub(super) fn forget_finished(&self) -> Result<(), Fault> {
        match self.folder.has(NAME)? {
            true => self.folder.remove(NAME),
            false => Ok(()),
        }
    }

    /// The content of `finished.json`, if it is of the run of the newest checkpoint.
    fn finished(&self) -> Result<Option<FinishedRun>, Fault> {
        if !self.folder.has(NAME)? {
            return Ok(None);
        }
        let (text, name) = (self.folder.bytes(NAME, MOST_BYTES)?, self.folder.name(NAME));
        signed_json::has_checksum(&text, &name)?;
        let run: FinishedRun = versioned_json::parse(&text, &name, FORMAT, VERSION)?;
        let newest = self.numbers()?.last().map(|number| self.manifest(*number)).transpose()?;
        Ok(Some(run).filter(|run| newest.is_none_or(|newest| newest.position.run == run.run)))
    }
}

/// The run in the folder of the job's checkpoints, if it was a run of this job, has ended not longer than `placement.timeout_seconds` ago,
/// and its model is still there. A process that comes later does not belong to that run: the whole job was started again, perhaps because
/// its rows have changed. `digest`: the digest of the job.
///
/// # Errors
/// A file is damaged, or the store fails.
pub(crate) fn finished(job: &Job, digest: &str, context: &Context) -> Result<Option<FinishedRun>, Fault> {
    let Some(to) = &job.checkpoint.to else { return Ok(None) };
    let oldest = seconds_since_1970().saturating_sub(job.placement.timeout().as_secs());
    let is_this = |run: &FinishedRun| run.job == digest && run.written >= oldest;
    let Some(run) = CheckpointFolder::open(to, context)?.finished()?.filter(is_this) else { return Ok(None) };
    let has_model = match &run.model {
        Some(model) => Folder::from(model.as_str()).with_stores(&context.stores).open()?.has(MANIFEST)?,
        None => true,
    };
    Ok(Some(run).filter(|_| has_model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::manifest::{CheckpointManifest, TrainPosition};

    /// A checkpoint of this run.
    fn checkpoint(of: &CheckpointFolder, number: u64, run: u64) {
        let position = TrainPosition { run, ..TrainPosition::default() };
        let manifest = CheckpointManifest::new(number, Job::default(), position, Vec::new(), Vec::new());
        assert!(of.folder.put_new(&CheckpointManifest::name(number), manifest.to_json().unwrap()).unwrap());
    }

    #[test]
    fn a_run_has_ended_if_it_is_that_of_the_newest_checkpoint_and_its_model_is_there() {
        let (dir, context) = (tempfile::tempdir().unwrap(), Context::default());
        let at = |name: &str| dir.path().join(name).display().to_string();
        let job = Job::from_toml("", &[format!("checkpoint.to={}", at("checkpoints"))]).unwrap();
        let folder = CheckpointFolder::open(&at("checkpoints"), &context).unwrap();
        let found = |digest: &str| finished(&job, digest, &context).unwrap();
        assert_eq!(found("abc"), None, "there is no folder");
        folder.forget_finished().unwrap();
        std::fs::create_dir(dir.path().join("model")).unwrap();
        std::fs::write(dir.path().join("model").join(MANIFEST), "{}").unwrap();
        let run = FinishedRun::new(9, "abc".into(), Some(at("model")), 1234);
        folder.finish(&FinishedRun { rows: 1, ..run.clone() }).unwrap();
        folder.finish(&run).unwrap();
        assert_eq!(found("abc").as_ref(), Some(&run), "it ended before its first checkpoint");
        assert_eq!(
            run.to_string(),
            format!("the run has ended: it has trained on 1,234 rows, and its model is at {}", at("model"))
        );
        assert_eq!(found("abd"), None, "another job");
        let long_ago = run.written - job.placement.timeout().as_secs() - 1;
        folder.finish(&FinishedRun { written: long_ago, ..run.clone() }).unwrap();
        assert_eq!(found("abc"), None, "the job was started again later");
        folder.finish(&run).unwrap();
        checkpoint(&folder, 1, 9);
        assert_eq!(found("abc"), Some(run));
        std::fs::remove_file(dir.path().join("model").join(MANIFEST)).unwrap();
        assert_eq!(found("abc"), None, "the model is gone");
        std::fs::write(dir.path().join("model").join(MANIFEST), "{}").unwrap();
        checkpoint(&folder, 2, 10);
        assert_eq!(found("abc"), None, "another run");
        folder.forget_finished().unwrap();
        assert!(!dir.path().join("checkpoints").join(NAME).exists());
    }

    #[test]
    fn a_file_that_is_damaged_is_a_fault() {
        let (dir, context) = (tempfile::tempdir().unwrap(), Context::default());
        let to = dir.path().display().to_string();
        let job = Job::from_toml("", &[format!("checkpoint.to={to}")]).unwrap();
        CheckpointFolder::open(&to, &context).unwrap().finish(&FinishedRun::new(9, "abc".into(), None, 7)).unwrap();
        assert!(finished(&job, "abc", &context).unwrap().is_some());
        let path = dir.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [text.replace("\"rows\": 7", "\"rows\": 8"), text[..40].to_owned(), String::new()] {
            std::fs::write(&path, damaged).unwrap();
            let fault = finished(&job, "abc", &context).unwrap_err().to_string();
            assert!(fault.contains(NAME), "{fault}");
        }
    }
}
