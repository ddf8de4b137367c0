//! The disk of `output.model`. A checkpoint says where it was mounted, so that the run that goes on does not take its empty mount point for
//! the place of the model. Everything here blocks on the disk.

use forebay_actors::Fault;
use forebay_connectors::staged::{Folder, OpenFolder};
use forebay_job::Job;

use super::manifest::CheckpointManifest;
use crate::context::Context;
use crate::retries::Retries;

/// The place of the job's model, if the job saves one.
pub(crate) fn model_place(job: &Job, context: &Context) -> Result<Option<OpenFolder>, Fault> {
    let open = |model: &String| Folder::from(model.as_str()).with_stores(&context.stores).open();
    job.output.model.as_ref().map(open).transpose()
}

impl CheckpointManifest {
    /// Waits for `output.retry_for`, or until `ends` returns a fault, for the disk that `output.model` was on when the checkpoint was made.
    /// A job with another `output.model` waits for none.
    ///
    /// # Errors
    /// The fault of `ends`; an external fault if the disk stays unmounted.
    pub(crate) fn wait_for_model_disk(
        &self,
        job: &Job,
        context: &Context,
        ends: &dyn Fn() -> Option<Fault>,
    ) -> Result<(), Fault> {
        let Some(mount) = self.model_disk.as_ref().filter(|_| job.output.model == self.job.output.model) else {
            return Ok(());
        };
        let Some(place) = model_place(job, context)? else { return Ok(()) };
        place.expect_disk(mount);
        let retries = Retries {
            not_yet: "the run waits for the disk of output.model",
            timeout: job.output.retry_for.0,
            passes: &|_| true,
            gives_up: &|| ends().is_some(),
        };
        retries.run(|| place.check_disk()).map_err(|fault| {
            let why = format!(
                "nothing is trained: output.model was on a disk at {mount} when checkpoint {} was made (if the disk is gone for good, name \
                 another output.model)",
                self.number
            );
            ends().unwrap_or_else(|| fault.context(why))
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;

    use super::*;
    use crate::checkpoint::manifest::TrainPosition;

    fn job(model: &str) -> Job {
        Job::from_toml("output.retry_for = '0s'", &[format!("output.model={model}")]).unwrap()
    }

    /// A bug: the model went to the disk beneath, with a warning that the best model was gone.
    #[test]
    fn a_run_goes_on_only_with_the_disk_of_its_model() {
        let dir = tempfile::tempdir().unwrap();
        let point = std::fs::canonicalize(dir.path()).unwrap().join("disk");
        let (model, other) = (point.join("models/ctr"), dir.path().join("ctr"));
        let (model, other) = (job(&model.display().to_string()), job(&other.display().to_string()));
        let mut manifest = CheckpointManifest::new(3, model.clone(), TrainPosition::default(), Vec::new(), Vec::new());
        let wait = |manifest: &CheckpointManifest, job: &Job, ends: &dyn Fn() -> Option<Fault>| {
            manifest.wait_for_model_disk(job, &Context::default(), ends)
        };
        wait(&manifest, &model, &|| None).unwrap();
        manifest.model_disk = Some(point.display().to_string());
        let read: CheckpointManifest = serde_json::from_slice(&manifest.to_json().unwrap()).unwrap();
        let fault = wait(&read, &model, &|| None).unwrap_err();
        let said = fault.to_string();
        assert!(fault.domain == Domain::External && said.contains("is not mounted any more"), "{said}");
        assert!(said.contains(&format!("a disk at {} when checkpoint 3 was made", point.display())), "{said}");
        let told = || Some(Fault::external("it was asked to shut down"));
        assert_eq!(wait(&read, &model, &told).unwrap_err().to_string(), "it was asked to shut down");
        wait(&read, &other, &|| None).unwrap();
        std::fs::create_dir_all(point.join("models")).unwrap();
        wait(&read, &model, &|| None).unwrap();
    }
}
