//! Saves the model of a training that has ended. After a fault of a disk or a store it tries again for a while; then it leaves a
//! checkpoint of the whole run, or saves the model at another place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Fault;
use crate::actors::{Domain, FaultKind, counted};
use crate::pipelines::cluster::{ClusterSession, RunPhase};
use crate::pipelines::model_folder::Manifest;
use crate::pipelines::{Evaluation, Retries, RunEnd, Trained};
use crate::stop::Stop;

/// How long a run that was asked to shut down retries: its supervisor may soon kill it.
const WHEN_TOLD: Duration = Duration::from_secs(10);

/// The saved model: its manifest, and its evaluation if known.
type Saved = (Manifest, Option<Evaluation>);

/// Saves the model of one training.
pub(super) struct Saving<'a> {
    pub(super) trained: &'a Trained,
    /// Where the model goes.
    pub(super) folder: &'a str,
    pub(super) stop: &'a Stop,
    /// The membership of this process, in a cluster.
    pub(super) session: Option<&'a ClusterSession>,
}

impl Saving<'_> {
    /// Saves the model, and tries again for `output.retry_for`.
    ///
    /// # Errors
    /// The last fault, of the kind [`FaultKind::Unsaved`], with the place where the model is instead. The fault is external if a disk or a
    /// store failed, and nothing is saved or a checkpoint has the whole run; else it is a user fault.
    pub(super) fn save(&self) -> Result<Saved, Fault> {
        let fault = match self.try_for_a_while() {
            Ok(saved) => return Ok(saved),
            Err(fault) => fault,
        };
        if self.has_failed() {
            return Err(fault);
        }
        if fault.domain == Domain::External
            && let Some(checkpoint) = self.leave_checkpoint()
        {
            return Err(fault.followed_by(format_args!("; {checkpoint}")).kind(FaultKind::Unsaved));
        }
        Err(self.save_elsewhere(fault).kind(FaultKind::Unsaved))
    }

    fn try_for_a_while(&self) -> Result<Saved, Fault> {
        let told_before = self.stop.asked();
        let retry_for = self.trained.model.job.output.retry_for.0;
        let retries = Retries {
            // After the first signal, the second one ends the program at once.
            not_yet: match told_before {
                true => "the model is not saved yet",
                false => "the model is not saved yet (Ctrl-C ends the tries, output.retry_for sets their time)",
            },
            timeout: if told_before { retry_for.min(WHEN_TOLD) } else { retry_for },
            passes: &|fault: &Fault| fault.domain == Domain::External,
            gives_up: &|| !told_before && self.stop.asked() || self.has_failed(),
        };
        retries.run(|| self.trained.save(self.folder))
    }

    /// In a cluster, whether the run has failed or begun a new attempt: then the model in this process is void.
    fn has_failed(&self) -> bool {
        self.session.is_some_and(|session| matches!(session.status().phase, RunPhase::Failed(_)))
    }

    /// Makes a checkpoint of the whole run, if the run makes checkpoints. Returns a text about it.
    fn leave_checkpoint(&self) -> Option<String> {
        // A run that stopped early stops again at once when it is resumed: its evaluations are in the checkpoint.
        let what = match self.trained.training.ended {
            RunEnd::Complete => "all",
            RunEnd::StoppedEarly => "the",
            RunEnd::Drained => return None,
        };
        let status = self.session.map(ClusterSession::status);
        match self.trained.leave_checkpoint(status.as_ref())? {
            Ok((number, folder)) => Some(format!(
                "checkpoint {number} in {folder} has {what} {}: --resume saves the model",
                counted(self.trained.training.rows, "row")
            )),
            Err(fault) => {
                tracing::warn!("a checkpoint of the whole run cannot be made either: {fault}");
                None
            }
        }
    }

    /// Saves the model at the first place that takes it. Returns a fault with that place.
    fn save_elsewhere(&self, fault: Fault) -> Fault {
        let places = places(self.folder, fault.domain);
        let mut which = "the model".to_owned();
        let saved = self.save_at(&places).or_else(|| {
            // Perhaps the kept best model cannot be read. The last model is in memory.
            let best = self.trained.give_best_up()?;
            tracing::warn!("the model after the last row is saved instead of the best one, if a place takes it");
            which = format!("the model after the last row (the best one is in {best} if that can be read again)");
            self.save_at(&places)
        });
        match saved {
            Some(place) => {
                let mut fault = fault.followed_by(format_args!(
                    "; {which} was saved at {place} instead: move it to {}",
                    self.folder
                ));
                // The user decides what becomes of it.
                fault.domain = Domain::User;
                fault
            }
            None => fault.context(match &self.trained.model.job.checkpoint.to {
                Some(to) => format!(
                    "the model could not be saved anywhere, and is lost; --resume continues from the newest checkpoint in {to} or \
                     starts again from row 0"
                ),
                None => "the model could not be saved anywhere, and is lost".into(),
            }),
        }
    }

    /// The first of these places that takes the model.
    fn save_at<'p>(&self, places: &'p [String]) -> Option<&'p str> {
        places.iter().map(String::as_str).find(|place| match self.trained.save(place) {
            Ok(_) => true,
            Err(fault) => {
                tracing::warn!("the model cannot be saved at {place} either: {fault}");
                false
            }
        })
    }
}

/// The places to try, in order, for a model that cannot be saved at `folder`: beside `folder` if something is in the way there, the working
/// directory, the folder of temporary files.
fn places(folder: &str, because: Domain) -> Vec<String> {
    let folder = folder.trim_end_matches('/');
    let name = folder.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("model");
    let mut places = Vec::new();
    if because == Domain::User {
        places.push(format!("{folder}.rescued"));
    }
    let local = std::env::current_dir().into_iter().chain([std::env::temp_dir()]);
    places.extend(local.map(|at| free_place(&at, name).display().to_string()));
    places
}

/// A path in `folder` where nothing is.
fn free_place(folder: &Path, name: &str) -> PathBuf {
    let named = |number: u32| match number {
        1 => folder.join(format!("{name}.rescued")),
        _ => folder.join(format!("{name}.rescued-{number}")),
    };
    (1..).map(named).find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| named(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_cannot_be_saved_never_replaces_another() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ctr.rescued", "ctr.rescued-2", "ctr.rescued-3"] {
            let place = free_place(dir.path(), "ctr");
            assert_eq!(place, dir.path().join(name));
            std::fs::create_dir(place).unwrap();
        }
    }

    #[test]
    fn a_place_beside_the_model_is_tried_only_if_something_is_in_the_way() {
        let names = |because| {
            let places = places("hdfs://ns/models/ctr/", because);
            places.iter().map(|place| place.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(places("hdfs://ns/models/ctr/", Domain::User)[0], "hdfs://ns/models/ctr.rescued");
        assert_eq!(names(Domain::User).len(), 3);
        assert!(places("hdfs://ns/models/ctr", Domain::External).iter().all(|place| place.starts_with('/')));
        assert!(names(Domain::External).iter().all(|name| name.starts_with("ctr.rescued")));
    }
}
