//! Looks for newer versions of a model: a model folder that was replaced, or deltas from the current version. Blocks on the store.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use forebay_actors::Fault;
use forebay_connectors::staged::Folder;
use xxhash_rust::xxh3::xxh3_128;

use super::failed::Failed;
use super::serving_model::ServingModel;
use crate::context::Context;
use crate::delta::{Delta, DeltaManifest, ModelVersions};
use crate::model_folder::{MANIFEST, Manifest};
use crate::model_version::ModelVersion;

/// Follows a model folder and a folder of deltas.
pub struct Follower {
    model: String,
    deltas: Option<PathBuf>,
    settings: Vec<String>,
    context: Context,
    /// The manifest that was loaded last.
    seen: Option<SeenManifest>,
    /// The newer manifest whose model could not be loaded, and when it is tried again.
    failed: Option<(SeenManifest, Failed)>,
    /// Versions since the model folder was read. No delta leads back to them, so that a circle of deltas ends.
    passed: HashSet<ModelVersion>,
    /// Deltas from the current version that could not be applied: the version that each leads on from, and when it is tried again.
    broken: HashMap<PathBuf, (ModelVersion, Failed)>,
    /// What is wrong now and was told, so that it is told once, although it is found again.
    told: HashSet<String>,
    /// Deltas that are left out, because their manifest cannot be read or they lead back. Each is reported once, and read again, because it
    /// may be on its way.
    left_out: HashSet<PathBuf>,
}

/// Tells the manifest of a model folder from another one that takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenManifest {
    hash: u128,
    /// Differs even if the folder that takes the place has the same content.
    stamp: String,
}

/// What [`Follower::look`] found.
pub enum Followed {
    /// Nothing new.
    Nothing,
    /// A newer model.
    Newer(Box<ServingModel>),
    /// Something that cannot be loaded, which no look has told before: the current model stays.
    Broken(Fault),
}

impl Follower {
    /// Follows the model folder at a path or URL and, if given, a local folder whose subfolders are deltas. `settings` override
    /// fields of the model's job.
    pub fn new(model: &str, deltas: Option<&Path>, settings: &[String], context: &Context) -> Self {
        Self {
            model: model.to_owned(),
            deltas: deltas.map(Path::to_owned),
            settings: settings.to_owned(),
            context: context.clone(),
            seen: None,
            failed: None,
            passed: HashSet::new(),
            broken: HashMap::new(),
            told: HashSet::new(),
            left_out: HashSet::new(),
        }
    }

    /// Loads the model folder and applies the deltas that lead on from it, up to one that cannot be applied: it may be on its way, and
    /// later looks try it again.
    ///
    /// # Errors
    /// As [`ServingModel::load`].
    pub fn load(&mut self) -> Result<ServingModel, Fault> {
        self.seen = Some(self.manifest()?);
        let model = ServingModel::load(self.model.as_str(), &self.settings, &self.context)?;
        let (model, broken) = self.with_deltas(model);
        if let Some(fault) = broken {
            tracing::warn!("{} is served for now: {fault}", model.versions());
        }
        Ok(model)
    }

    /// Looks for a version newer than `current`, and loads it. What cannot be loaded is tried again at later looks: a folder that is copied
    /// file by file is whole only at the end.
    pub fn look(&mut self, current: &ServingModel) -> Followed {
        let of_folder = match self.look_at_folder(current) {
            Ok(None) => None,
            Ok(Some(model)) => {
                self.told.clear();
                return Followed::Newer(Box::new(model));
            }
            Err(fault) => Some(fault),
        };
        let of_deltas = match self.next_model(current) {
            Ok(None) => None,
            Ok(Some(model)) => return Followed::Newer(Box::new(model)),
            Err(fault) => Some(fault),
        };
        let of_earlier_looks = self.broken.values().map(|(_, failed)| failed.fault.clone());
        let wrong: Vec<Fault> = of_folder.into_iter().chain(of_deltas).chain(of_earlier_looks).collect();
        self.untold(wrong).map_or(Followed::Nothing, Followed::Broken)
    }

    /// One of the faults of a look that was not told yet. What is no longer wrong is told again if it comes back.
    fn untold(&mut self, wrong: Vec<Fault>) -> Option<Fault> {
        let texts: HashSet<String> = wrong.iter().map(Fault::to_string).collect();
        self.told.retain(|text| texts.contains(text));
        wrong.into_iter().find(|fault| self.told.insert(fault.to_string()))
    }

    /// A model that was just read from the folder, with the deltas that lead on from it; and why they end early, if they do.
    fn with_deltas(&mut self, mut model: ServingModel) -> (ServingModel, Option<Fault>) {
        self.passed = model.versions().all().collect();
        loop {
            match self.next_model(&model) {
                Ok(Some(newer)) => model = newer,
                Ok(None) => return (model, None),
                Err(fault) => return (model, Some(fault)),
            }
        }
    }

    /// The model with the next delta that leads on, if there is one. Later looks try a delta again that cannot be applied.
    fn next_model(&mut self, model: &ServingModel) -> Result<Option<ServingModel>, Fault> {
        let Some((path, from)) = self.next_delta(model.versions())? else { return Ok(None) };
        match self.apply(model, &path) {
            Ok(newer) => {
                self.broken.remove(&path);
                self.passed.extend(newer.versions().all());
                Ok(Some(newer))
            }
            Err(fault) => {
                let fault = Fault::user(format!("delta {} is not applied: {fault}", path.display()));
                let failed = Failed::new(fault.clone(), self.broken.get(&path).map(|(_, before)| before));
                self.broken.insert(path, (from, failed));
                Err(fault)
            }
        }
    }

    /// The model of the folder with the deltas that lead on from it, if the folder is another one than was loaded; not if that is the
    /// current model. Why the deltas end early is reported at the next look.
    fn look_at_folder(&mut self, current: &ServingModel) -> Result<Option<ServingModel>, Fault> {
        let manifest = self.manifest()?;
        let is_equal = self.seen.as_ref().is_some_and(|seen| seen.hash == manifest.hash);
        // With deltas applied, a folder of the same content leads back.
        if is_equal && (current.deltas() == 0 || self.seen.as_ref() == Some(&manifest)) {
            self.seen = Some(manifest);
            return Ok(None);
        }
        if let Some((of, failed)) = &mut self.failed
            && *of == manifest
            && !failed.is_due()
        {
            return Err(failed.fault.clone());
        }
        let model = ServingModel::load(self.model.as_str(), &self.settings, &self.context);
        if self.manifest()? != manifest {
            // It was replaced while it was read: the next look finds it.
            return Ok(None);
        }
        let before = self.failed.take().filter(|(of, _)| *of == manifest);
        match model {
            Ok(model) => {
                self.seen = Some(manifest);
                let (model, _) = self.with_deltas(model);
                let of = |model: &ServingModel| (model.versions(), model.deltas());
                Ok(Some(model).filter(|model| of(model) != of(current)))
            }
            Err(fault) => {
                let failed = Failed::new(fault.clone(), before.as_ref().map(|(_, failed)| failed));
                self.failed = Some((manifest, failed));
                Err(fault)
            }
        }
    }

    fn manifest(&self) -> Result<SeenManifest, Fault> {
        let folder = Folder::from(self.model.as_str()).with_stores(&self.context.stores).open()?;
        Ok(SeenManifest { hash: xxh3_128(&Manifest::bytes(&folder)?), stamp: folder.stamp(MANIFEST)? })
    }

    /// A delta that leads on from a model of these versions, and the one of them that it names.
    fn next_delta(&mut self, current: ModelVersions) -> Result<Option<(PathBuf, ModelVersion)>, Fault> {
        let Some(deltas) = &self.deltas else { return Ok(None) };
        let cannot =
            |e: std::io::Error| Fault::user(format!("cannot list the deltas in {}", deltas.display())).because(e);
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(deltas).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            // A hidden folder is being written.
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let is_file = std::fs::metadata(&path).is_ok_and(|there| !there.is_dir());
            if !hidden && !is_file {
                folders.push(path);
            }
        }
        folders.sort();
        self.broken.retain(|path, (from, _)| folders.contains(path) && current.has(*from));
        folders.retain(|path| self.broken.get_mut(path).is_none_or(|(_, failed)| failed.is_due()));
        for path in folders {
            match DeltaManifest::read(path.as_path(), &self.context) {
                Ok(manifest) if !current.has(manifest.from) => {
                    // Another delta may have taken the place of one that could not be applied.
                    self.broken.remove(&path);
                }
                Ok(manifest) if !self.leads_back(&manifest, current) => return Ok(Some((path, manifest.from))),
                Ok(manifest) => {
                    let changes = manifest.to != current.version;
                    if changes && self.left_out.insert(path.clone()) {
                        tracing::warn!(
                            "delta {} is left out: it leads back to version {}, which was served since the model folder was read; \
                             to go back, remove the deltas that lead on and replace the model folder",
                            path.display(),
                            manifest.to
                        );
                    }
                }
                // A folder without a manifest may be another program's, or be copied at the moment.
                Err(_) if matches!(path.join("manifest.json").try_exists(), Ok(false)) => {}
                Err(fault) => {
                    if self.left_out.insert(path.clone()) {
                        tracing::warn!("delta {} is left out: {fault}", path.display());
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a delta leads from a model of these versions to one that was served before, so that a circle of deltas would not end.
    fn leads_back(&self, delta: &DeltaManifest, current: ModelVersions) -> bool {
        // An exact delta from the rounded content itself makes the model the exact one.
        let makes_exact =
            delta.from == current.version && delta.gives.is_none() && current.approximates == Some(delta.to);
        !makes_exact && self.passed.contains(&delta.to)
    }

    fn apply(&self, model: &ServingModel, path: &Path) -> Result<ServingModel, Fault> {
        model.with_delta(&Delta::read(path, &self.context)?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_delta_whose_manifest_cannot_be_read_is_told_once_and_a_folder_without_one_never() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bad", "other"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let bad = dir.path().join("bad");
        std::fs::write(bad.join("manifest.json"), "{ this is cut").unwrap();
        let mut follower = Follower::new("model", Some(dir.path()), &[], &Context::default());
        for _ in 0..2 {
            let current = ModelVersions { version: "0".repeat(32).parse().unwrap(), approximates: None };
            assert!(follower.next_delta(current).unwrap().is_none());
            assert_eq!(follower.left_out, HashSet::from([bad.clone()]));
        }
    }
}
