//! The best model of a run so far: a model folder beside `output.model`, whole or not at all.
//!
//! There are two places for it, `.best-0` and `.best-1`. A better model goes to the place that the newest checkpoint does not need: a
//! run that is killed and goes on from that checkpoint finds the model that was the best then. A run that has ended leaves its best
//! model at `output.model` alone; if it goes on, that model is the best one until there is a better one. Everything here blocks on the
//! store.

use std::io;

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::{Folder, OpenFolder, StagedFolder, is_in};
use forebay_job::Job;

use super::points::EvaluationPoint;
use crate::checkpoint::may_go_on_as;
use crate::context::Context;
use crate::model::Model;
use crate::model_folder::checked::{self, CheckedWriter, cannot_write};
use crate::model_folder::{FileEntry, MANIFEST, Manifest, check_place};

/// The places of the best model.
pub(crate) struct BestModels {
    places: [Place; 2],
    /// `output.model`, where an earlier process of the run may have left its best model. It is only read.
    output: Place,
    context: Context,
    /// The evaluation whose model the newest checkpoint needs.
    needed: Option<usize>,
}

struct Place {
    folder: String,
    /// The index of the evaluation whose model is in this place.
    holds: Option<usize>,
    /// The files of that model.
    files: Vec<FileEntry>,
}

impl BestModels {
    /// Beside the model folder at `model`.
    pub(super) fn beside(model: &str, context: &Context) -> Self {
        let place = |folder| Place { folder, holds: None, files: Vec::new() };
        let output = place(model.to_owned());
        Self { places: folders(model).map(place), output, context: context.clone(), needed: None }
    }

    /// Looks for the model of an evaluation that an earlier process of the run of `job` made: beside `output.model`, then there.
    ///
    /// # Errors
    /// The manifest of a model beside `output.model` is damaged; a fault of the disk or the store.
    pub(super) fn find(&mut self, at: usize, point: &EvaluationPoint, job: &Job) -> Result<bool, Fault> {
        let beside = self.places.iter_mut().map(|place| (place, false));
        for (place, is_output) in beside.chain([(&mut self.output, true)]) {
            let folder = open(&place.folder, &self.context)?;
            if !folder.has(MANIFEST)? {
                continue;
            }
            let manifest = match Manifest::read_in(&folder) {
                // The run replaces what is there, also if it is damaged.
                Err(fault) if is_output && fault.domain == Domain::User => continue,
                read => read?,
            };
            let trained = manifest.training.as_ref().map(|training| (training.rows, training.steps));
            // The model of any run may be at `output.model`.
            if trained == Some((point.rows, point.steps)) && (!is_output || may_go_on_as(&manifest.job, job)) {
                if job.output.state && manifest.optimizer.is_none() {
                    tracing::warn!(
                        "the best model so far, of evaluation {}, at {folder}, was saved without the state of its optimizers: unless a \
                         later one is better, the model of this run has none, although output.state is true",
                        at + 1
                    );
                }
                place.files = manifest.files().cloned().collect();
                (place.holds, self.needed) = (Some(at), Some(at));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The newest checkpoint needs the model of this evaluation, if it is kept.
    pub(super) fn checkpoint_needs(&mut self, at: usize) {
        self.needed = self.place_of(at).is_some().then_some(at);
    }

    /// Where the model of evaluation `at` goes, which is the best so far: the place that the newest checkpoint does not need, else
    /// the one that does not have the best so far.
    fn next_place(&self) -> usize {
        let spared = self.needed.or(self.places.iter().filter_map(|place| place.holds).max());
        usize::from(spared.is_some() && self.places[0].holds == spared)
    }

    /// Saves the model of evaluation `at`.
    ///
    /// # Errors
    /// The fault of the disk or the store, with the folder. Models that were kept before are still there.
    pub(super) fn keep(&mut self, at: usize, model: &Model) -> Result<(), Fault> {
        let next = self.next_place();
        let place = &mut self.places[next];
        place.holds = None;
        let what = format!("the model of evaluation {}, the best so far, cannot be saved to {}", at + 1, place.folder);
        let manifest = model.save(place.folder.as_str()).map_err(|fault| fault.context(what))?;
        place.files = manifest.files().cloned().collect();
        place.holds = Some(at);
        Ok(())
    }

    fn place_of(&self, at: usize) -> Option<&Place> {
        self.places.iter().chain([&self.output]).find(|place| place.holds == Some(at))
    }

    /// The place of the model of evaluation `at`, if the model is gone: another run with the same `output.model` may have replaced or
    /// removed it.
    ///
    /// # Errors
    /// The manifest is damaged; a fault of the disk or the store.
    pub(super) fn lost(&self, at: usize) -> Result<Option<&str>, Fault> {
        let Some(Place { folder, files, .. }) = self.place_of(at) else { return Ok(None) };
        let open = open(folder, &self.context)?;
        let is_there = open.has(MANIFEST)? && Manifest::read_in(&open)?.files().eq(files);
        Ok((!is_there).then_some(folder))
    }

    /// Writes the model of evaluation `at` to a model folder, whole or not at all. If it is there already, its files are only checked.
    ///
    /// # Errors
    /// A file of it is damaged; a fault of the disk or the store.
    pub(super) fn copy(&self, at: usize, to: &str) -> Result<Manifest, Fault> {
        let place = self.place_of(at).ok_or_else(|| Fault::internal("the folder of the best model is not known"))?;
        let from = open(&place.folder, &self.context)?.held();
        if is_in(&place.folder, to) && is_in(to, &place.folder) {
            let manifest = Manifest::read_in(&from)?;
            manifest.files().try_for_each(|entry| checked::verify(&from, entry))?;
            return Ok(manifest);
        }
        let to = Folder::from(to).with_stores(&self.context.stores);
        check_place(to.clone(), &self.context)?;
        let (manifest, staged) = (Manifest::read_in(&from)?, StagedFolder::begin(&to, true)?);
        for entry in manifest.files() {
            checked::verify(&from, entry)?;
            let mut file = CheckedWriter::create(&staged, &entry.path)?;
            let copied = io::copy(&mut from.reader(&entry.path)?, &mut file);
            copied.map_err(|e| cannot_write(file.name(), e))?;
            let written = file.finish(&entry.path, entry.rows)?;
            if (written.bytes, &written.xxh3) != (entry.bytes, &entry.xxh3) {
                return Err(Fault::external(format!("{} changed while it was read", from.name(&entry.path))));
            }
        }
        manifest.write(&staged)?;
        staged.publish()?;
        Ok(manifest)
    }

    /// Removes the kept models, also those of processes that were killed.
    pub(super) fn remove(&mut self) -> Result<(), Fault> {
        for place in &mut self.places {
            place.holds = None;
            let folder = open(&place.folder, &self.context)?;
            if folder.has(MANIFEST)? {
                folder.remove_all()?;
            }
        }
        Ok(())
    }
}

fn open(folder: &str, context: &Context) -> Result<OpenFolder, Fault> {
    Folder::from(folder).with_stores(&context.stores).open()
}

/// Where the best model of a run with this model folder is kept.
pub(crate) fn folders(model: &str) -> [String; 2] {
    let model = model.trim_end_matches('/');
    [0, 1].map(|number| format!("{model}.best-{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_better_model_never_replaces_the_one_that_a_checkpoint_needs() {
        let mut models = BestModels::beside("s3://bucket/ctr/", &Context::default());
        assert_eq!(models.places[0].folder, "s3://bucket/ctr.best-0");
        let keep = |models: &mut BestModels, at| {
            let place = models.next_place();
            models.places[place].holds = Some(at);
            place
        };
        assert_eq!(
            [keep(&mut models, 0), keep(&mut models, 2), keep(&mut models, 3)],
            [0, 1, 0],
            "without checkpoints"
        );
        let folder_of = |models: &BestModels, at| models.place_of(at).map(|place| place.folder.clone());
        models.checkpoint_needs(3);
        assert_eq!([keep(&mut models, 4), keep(&mut models, 7)], [1, 1]);
        assert_eq!(folder_of(&models, 3).as_deref(), Some("s3://bucket/ctr.best-0"));
        models.checkpoint_needs(7);
        assert_eq!(keep(&mut models, 8), 0);
        assert_eq!((folder_of(&models, 3), folder_of(&models, 7).as_deref()), (None, Some("s3://bucket/ctr.best-1")));
    }

    #[test]
    fn the_best_model_of_a_run_that_had_ended_stays_at_the_output_and_better_ones_go_beside_it() {
        let mut models = BestModels::beside("s3://bucket/ctr", &Context::default());
        models.output.holds = Some(2);
        models.checkpoint_needs(2);
        assert_eq!((models.needed, models.next_place()), (Some(2), 0));
        assert_eq!(models.place_of(2).map(|place| place.folder.as_str()), Some("s3://bucket/ctr"));
        models.places[0].holds = Some(5);
        models.checkpoint_needs(5);
        assert_eq!((models.needed, models.next_place()), (Some(5), 1));
    }
}
