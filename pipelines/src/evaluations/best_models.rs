//! The best model of a run so far: a model folder beside `output.model`, whole or not at all.
//!
//! There are two places for it, `.best-0` and `.best-1`. A better model goes to the place that the newest checkpoint does not need: a
//! run that is killed and continues from that checkpoint finds the model that was the best then. A run that has ended leaves its best
//! model at `output.model` alone; if it goes on, that model is the best one until there is a better one. Everything here blocks on the
//! store.

use std::collections::BTreeSet;
use std::io;

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::{Folder, OpenFolder, StagedFolder, is_in};
use forebay_job::Job;

use crate::checkpoint::may_go_on_as;
use crate::context::Context;
use crate::metrics::evaluation_points::EvaluationPoint;
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
    /// Whether that model has the state of its optimizers.
    has_state: bool,
}

impl BestModels {
    /// Beside the model folder at `model`.
    pub(super) fn beside(model: &str, context: &Context) -> Self {
        let place = |folder| Place { folder, holds: None, files: Vec::new(), has_state: false };
        let output = place(model.to_owned());
        Self { places: folders(model).map(place), output, context: context.clone(), needed: None }
    }

    /// Looks beside `output.model`, and there, for models that earlier processes of the run of `job` have kept or saved. Returns the
    /// indices of the `points` whose models are there. Warns of a model beside `output.model` whose manifest is damaged.
    ///
    /// # Errors
    /// A fault of the disk or the store.
    pub(super) fn find(&mut self, points: &[EvaluationPoint], job: &Job) -> Result<BTreeSet<usize>, Fault> {
        let beside = self.places.iter_mut().map(|place| (place, false));
        for (place, is_output) in beside.chain([(&mut self.output, true)]) {
            let folder = open_kept(&place.folder, &self.context)?;
            if !folder.has(MANIFEST)? {
                continue;
            }
            let manifest = match Manifest::read_in(&folder) {
                Ok(manifest) => manifest,
                // The run replaces what is at `output.model`, also if it is damaged.
                Err(fault) if fault.domain == Domain::User => {
                    if !is_output {
                        tracing::warn!("a model that was the best so far cannot be used: {fault}");
                    }
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            let trained = manifest.training.as_ref().map(|training| (training.rows, training.steps));
            let at = points.iter().position(|point| trained == Some((point.rows, point.steps)));
            // Another run may have left a model in any of the places.
            if at.is_some() && may_go_on_as(&manifest.job, job) {
                place.files = manifest.files().cloned().collect();
                (place.holds, place.has_state) = (at, manifest.optimizer.is_some());
            }
        }
        Ok(self.held())
    }

    /// The evaluations whose models are in one of the places.
    pub(super) fn held(&self) -> BTreeSet<usize> {
        self.places.iter().chain([&self.output]).filter_map(|place| place.holds).collect()
    }

    /// The folder of the model of evaluation `at`, if an earlier process has saved it without the state of its optimizers.
    pub(super) fn without_state(&self, at: usize) -> Option<&str> {
        self.place_of(at).filter(|place| !place.has_state).map(|place| place.folder.as_str())
    }

    /// The newest checkpoint needs the model of this evaluation, if it is kept.
    pub(super) fn checkpoint_needs(&mut self, at: usize) {
        self.needed = self.place_of(at).is_some().then_some(at);
    }

    /// The place for the next best model: the place that the newest checkpoint does not need, else the place that does not have the best
    /// model so far.
    fn next_place(&self) -> usize {
        let spared = self.needed.or(self.places.iter().filter_map(|place| place.holds).max());
        usize::from(spared.is_some() && self.places[0].holds == spared)
    }

    /// Saves the model of evaluation `at`.
    ///
    /// # Errors
    /// The fault of the disk or the store, with the folder. Models that were kept before are still there, unless a store without renames
    /// failed halfway: see [`lost`](Self::lost).
    pub(super) fn keep(&mut self, at: usize, model: &Model) -> Result<(), Fault> {
        let next = self.next_place();
        let place = &mut self.places[next];
        let before = place.holds.take();
        let manifest = model.save(place.folder.as_str()).map_err(|fault| {
            place.holds = before;
            let folder = &place.folder;
            fault.context(format!("the model of evaluation {}, the best so far, cannot be saved to {folder}", at + 1))
        })?;
        place.files = manifest.files().cloned().collect();
        (place.holds, place.has_state) = (Some(at), manifest.optimizer.is_some());
        Ok(())
    }

    fn place_of(&self, at: usize) -> Option<&Place> {
        self.places.iter().chain([&self.output]).find(|place| place.holds == Some(at))
    }

    /// The folder of the model of evaluation `at`.
    pub(crate) fn folder_of(&self, at: usize) -> Option<String> {
        self.place_of(at).map(|place| place.folder.clone())
    }

    /// The place of the model of evaluation `at`, if the model is gone: another run with the same `output.model` may have replaced or
    /// removed it.
    ///
    /// # Errors
    /// The manifest is damaged; a fault of the disk, which may be unmounted, or of the store.
    pub(crate) fn lost(&self, at: usize) -> Result<Option<&str>, Fault> {
        let Some(Place { folder, files, .. }) = self.place_of(at) else { return Ok(None) };
        let open = open_kept(folder, &self.context)?;
        let is_there = open.has(MANIFEST)? && Manifest::read_in(&open)?.files().eq(files);
        Ok((!is_there).then_some(folder))
    }

    /// The files of the model of evaluation `at`.
    fn open_place(&self, at: usize) -> Result<(&Place, OpenFolder), Fault> {
        let place = self.place_of(at).ok_or_else(|| Fault::internal("the folder of the best model is not known"))?;
        Ok((place, open_kept(&place.folder, &self.context)?.held()))
    }

    /// Reads all files of the model of evaluation `at`.
    ///
    /// # Errors
    /// A user fault if a file of it is damaged or missing; a fault of the disk or the store.
    pub(crate) fn verify(&self, at: usize) -> Result<(), Fault> {
        let (place, from) = self.open_place(at)?;
        place.files.iter().try_for_each(|entry| checked::verify(&from, entry))
    }

    /// The model of evaluation `at` is damaged. Returns whether another place has it, too, which is then used.
    pub(crate) fn has_copy(&mut self, at: usize) -> bool {
        let mut holders = self.places.iter_mut().chain([&mut self.output]).filter(|place| place.holds == Some(at));
        let (damaged, copy) = (holders.next(), holders.next().is_some());
        if let Some(damaged) = damaged.filter(|_| copy) {
            damaged.holds = None;
        }
        copy
    }

    /// Writes the model of evaluation `at` to a model folder, whole or not at all, unless it is there already.
    ///
    /// # Errors
    /// A file of it has changed since it was [verified](Self::verify); a fault of the disk or the store.
    pub(crate) fn copy(&self, at: usize, to: &Folder) -> Result<Manifest, Fault> {
        let (place, from) = self.open_place(at)?;
        let name = to.to_string();
        if is_in(&place.folder, &name) && is_in(&name, &place.folder) {
            return Manifest::read_in(&from);
        }
        let to = to.clone().with_stores(&self.context.stores);
        check_place(to.clone(), &self.context)?;
        let (manifest, staged) = (Manifest::read_in(&from)?, StagedFolder::begin(&to, true)?);
        for entry in manifest.files() {
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

    /// Removes the kept models, also models that killed processes left, and parts of them.
    pub(crate) fn remove(&mut self) -> Result<(), Fault> {
        for place in &mut self.places {
            place.holds = None;
            let folder = open(&place.folder, &self.context)?;
            if folder.has(MANIFEST)? {
                folder.remove_all()?;
            }
            folder.remove_abandoned();
        }
        Ok(())
    }
}

fn open(folder: &str, context: &Context) -> Result<OpenFolder, Fault> {
    Folder::from(folder).with_stores(&context.stores).open()
}

/// Opens the folder of a model that was kept. A fault if its disk is not mounted: it would look as if the model were removed.
fn open_kept(folder: &str, context: &Context) -> Result<OpenFolder, Fault> {
    let open = open(folder, context)?;
    open.check_disk()?;
    Ok(open)
}

/// Where the best model of a run with this model folder is kept.
pub(crate) fn folders(model: &str) -> [String; 2] {
    let model = model.trim_end_matches('/');
    [0, 1].map(|number| format!("{model}.best-{number}"))
}

#[cfg(test)]
mod tests {
    use forebay_job::RunEnd;

    use super::*;
    use crate::metrics::training_summary::TrainingSummary;

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

    /// Writes the manifest of a model that a run of `job` has trained on so many rows.
    fn put(folder: &str, job: &Job, rows: u64) {
        let training = TrainingSummary {
            rows,
            steps: rows / 10,
            epochs: 0,
            ended: RunEnd::StoppedEarly,
            run: None,
            format: None,
            types: Default::default(),
            lists: Default::default(),
        };
        let dense = FileEntry {
            path: "dense.safetensors".into(),
            bytes: rows,
            xxh3: String::new(),
            rows: None,
            absent: None,
            group: None,
            cells: None,
        };
        let manifest = Manifest {
            format: "forebay model".into(),
            version: 1,
            forebay: String::new(),
            spec: None,
            job: job.clone(),
            training: Some(training),
            approximates: None,
            tables: Vec::new(),
            dense,
            optimizer: None,
        };
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(format!("{folder}/{MANIFEST}"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    }

    /// A bug: a process that was killed while it removed a model left a part of it for good.
    #[test]
    fn a_part_of_a_model_that_a_killed_process_was_removing_goes_with_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("ctr").display().to_string();
        let place = dir.path().join("ctr.best-0");
        // The name that the part of a removed folder has.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let part = dir.path().join(format!(".ctr.best-0.partial-{}-{:016x}", host.trim(), 7));
        std::fs::create_dir(&part).unwrap();
        put(&place.display().to_string(), &Job::default(), 100);
        BestModels::beside(&model, &Context::default()).remove().unwrap();
        assert!(!place.exists() && !part.exists());
    }

    /// A bug: a model of any job with the same number of rows passed as the model of the run.
    #[test]
    fn models_of_another_run_and_damaged_ones_are_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("ctr").display().to_string();
        let [first, second] = folders(&model);
        let (job, other) = (Job::default(), Job { seed: 77, ..Job::default() });
        let (auc, logloss, reduced_lr) = (Some(0.5), Some(0.5), false);
        let (gauc, recall, mrr) = (None, None, None);
        let point =
            |rows| EvaluationPoint { rows, steps: rows / 10, epochs: 0, auc, logloss, gauc, recall, mrr, reduced_lr };
        let points = [100, 200, 300].map(point);
        let found = || BestModels::beside(&model, &Context::default()).find(&points, &job).unwrap();
        assert_eq!(found(), BTreeSet::new(), "no place holds a model");
        put(&first, &job, 200);
        put(&second, &other, 100);
        put(&model, &job, 250);
        assert_eq!(found(), BTreeSet::from([1]));
        put(&second, &job, 100);
        put(&model, &other, 300);
        assert_eq!(found(), BTreeSet::from([0, 1]));
        let mut longer = job.clone();
        longer.data.epochs = 9;
        put(&model, &longer, 300);
        assert_eq!(found(), BTreeSet::from([0, 1, 2]));
        std::fs::write(format!("{model}/{MANIFEST}"), "{").unwrap();
        assert_eq!(found(), BTreeSet::from([0, 1]), "what is at output.model is replaced");
        std::fs::write(format!("{first}/{MANIFEST}"), "{").unwrap();
        assert_eq!(found(), BTreeSet::from([0]), "the one that was evaluation 1 is damaged");
        put(&model, &job, 100);
        let mut models = BestModels::beside(&model, &Context::default());
        models.find(&points, &job).unwrap();
        assert_eq!(models.place_of(0).map(|place| place.folder.clone()), Some(second));
        assert!(models.has_copy(0) && !models.has_copy(0), "one beside output.model, and one there");
        assert_eq!(models.place_of(0).map(|place| place.folder.clone()), Some(model));
    }
}
