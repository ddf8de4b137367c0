//! Looks for newer versions of a model: a model folder that was replaced, or deltas from the current version. Blocks on the store.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::Folder;
use xxhash_rust::xxh3::xxh3_128;

use super::delta_folder::{DeltaFolder, DeltaVersions};
use super::failed::Failed;
use super::outage::Outage;
use super::serving_model::ServingModel;
use crate::context::Context;
use crate::delta::{Delta, ModelVersions};
use crate::model::model_version::ModelVersion;
use crate::model_folder::{MANIFEST, Manifest};

/// Follows a model folder and a folder of deltas.
pub struct Follower {
    model: String,
    deltas: Option<DeltaFolder>,
    settings: Vec<String>,
    context: Context,
    /// The manifest that was loaded last.
    seen: Option<SeenManifest>,
    /// Why the manifest cannot be read.
    outage: Outage,
    /// The newer manifest whose model could not be loaded, and when it is tried again.
    failed: Option<(SeenManifest, Failed)>,
    /// Versions since the model folder was read, in their order. No delta leads back to them, so that a circle of deltas ends.
    passed: Vec<ModelVersion>,
    /// Deltas from the current version that could not be applied: the version that each leads on from, and when it is tried again.
    broken: HashMap<String, (ModelVersion, Failed)>,
    /// The faults that hold and were reported: each is reported once, although every look finds it again.
    told: HashSet<String>,
    /// Deltas that are left out, because they lead back. Each is reported once.
    left_out: HashSet<String>,
}

/// Tells the manifest of a model folder from another one that takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenManifest {
    hash: u128,
    /// Differs even if the new folder has the same content.
    stamp: String,
}

/// What [`Follower::look`] found.
pub enum Followed {
    /// Nothing new.
    Nothing,
    /// A newer model.
    Newer(Box<ServingModel>),
    /// A model or a delta that cannot be loaded, and that no look has reported before: the current model stays.
    Broken(Fault),
}

impl Follower {
    /// Follows the model folder at a path or URL and, if given, a folder in any store whose subfolders are deltas. `settings` override
    /// fields of the model's job.
    pub fn new(model: &str, deltas: Option<Folder>, settings: &[String], context: &Context) -> Self {
        Self {
            model: model.to_owned(),
            deltas: deltas.map(|folder| DeltaFolder::new(folder, context)),
            settings: settings.to_owned(),
            context: context.clone(),
            seen: None,
            outage: Outage::default(),
            failed: None,
            passed: Vec::new(),
            broken: HashMap::new(),
            told: HashSet::new(),
            left_out: HashSet::new(),
        }
    }

    /// Loads the model folder and applies the deltas that lead on from it, up to the first that cannot be applied: it may be incomplete,
    /// and later looks try it again. If the deltas cannot be listed, this waits as long as their store tries, and then serves the model of
    /// the folder until a later look.
    ///
    /// # Errors
    /// As [`ServingModel::load`]; a user fault if there is no store for the URL of the deltas.
    pub fn load(&mut self) -> Result<ServingModel, Fault> {
        if let Some(deltas) = &self.deltas {
            deltas.open()?;
        }
        self.seen = Some(self.manifest()?);
        let model = ServingModel::load(self.model.as_str(), &self.settings, &self.context)?;
        let listed = self.look_for_deltas();
        let (model, broken) = self.with_deltas(model);
        let wrong: Vec<Fault> = listed.err().into_iter().chain(broken).chain(self.unreadable_deltas()).collect();
        for fault in wrong {
            tracing::warn!("{} is served for now: {fault}", model.versions());
            if fault.domain == Domain::External {
                // No delta is at fault: nothing is to be counted at the first look.
                self.told.insert(fault.to_string());
            }
        }
        Ok(model)
    }

    /// Looks for a version newer than `current`, and loads it. If a folder cannot be loaded, later looks try again, because a folder that
    /// is copied file by file is whole only at the end. Each look asks a store that cannot be reached again, but reports it only once.
    pub fn look(&mut self, current: &ServingModel) -> Followed {
        let listed = self.look_for_deltas();
        let of_folder = match self.look_at_folder(current) {
            Ok(None) => None,
            Ok(Some(model)) => {
                self.told.clear();
                return Followed::Newer(Box::new(model));
            }
            Err(fault) => Some(fault),
        };
        let of_deltas = match listed.and_then(|()| self.next_model(current)) {
            Ok(None) => None,
            Ok(Some(model)) => return Followed::Newer(Box::new(model)),
            Err(fault) => Some(fault),
        };
        let of_earlier_looks = self.broken.values().map(|(_, failed)| failed.fault.clone());
        let of_deltas =
            of_deltas.into_iter().chain(of_earlier_looks).chain(self.unreadable_deltas()).chain(self.forks());
        let wrong: Vec<Fault> = of_folder.into_iter().chain(of_deltas).collect();
        self.first_unreported(wrong).map_or(Followed::Nothing, Followed::Broken)
    }

    fn look_for_deltas(&mut self) -> Result<(), Fault> {
        self.deltas.as_mut().map_or(Ok(()), DeltaFolder::look)
    }

    fn unreadable_deltas(&self) -> impl Iterator<Item = Fault> {
        self.deltas.iter().flat_map(|deltas| deltas.wrong())
    }

    /// One of the faults of a look that was not reported yet. A fault that was gone is reported again if it comes back.
    fn first_unreported(&mut self, wrong: Vec<Fault>) -> Option<Fault> {
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

    /// The model with the next delta that leads on, if there is one: the first by name that can be applied. Later looks try the others
    /// again.
    ///
    /// # Errors
    /// Why the first of them could not be applied, if none can be.
    fn next_model(&mut self, model: &ServingModel) -> Result<Option<ServingModel>, Fault> {
        let mut failed = Vec::new();
        for (name, versions) in self.next_deltas(model.versions())? {
            let Some(folder) = self.unchanged(&name, versions)? else { continue };
            let applied = Delta::read(folder.clone(), &self.context).and_then(|delta| model.with_delta(&delta));
            let before = self.broken.remove(&name).map(|(_, before)| before);
            match applied {
                Ok(newer) => {
                    self.passed.extend(newer.versions().all());
                    failed.iter().for_each(|fault| tracing::warn!("{fault}; another delta leads on"));
                    return Ok(Some(newer));
                }
                Err(fault) => {
                    let failure = Failed::new(fault.context(format!("delta {folder} is not applied")), before.as_ref());
                    let fault = failure.fault.clone();
                    self.broken.insert(name, (versions.from, failure));
                    if fault.domain == Domain::External && !self.deltas.as_ref().is_some_and(DeltaFolder::is_local) {
                        // Reading each of the other deltas would wait as long for the store.
                        return Err(fault);
                    }
                    failed.push(fault);
                }
            }
        }
        failed.into_iter().next().map_or(Ok(None), Err)
    }

    /// The folder of a delta; `None` if its manifest changed since an earlier look read it: then the next look handles it.
    fn unchanged(&mut self, name: &str, versions: DeltaVersions) -> Result<Option<Folder>, Fault> {
        let Some(deltas) = &mut self.deltas else { return Ok(None) };
        let folder = deltas.delta(name)?;
        Ok(Some(folder).filter(|_| deltas.read_now(name) == Some(versions)))
    }

    /// The model of the folder with the deltas that lead on from it, if the folder is another one than was loaded; not if that is the
    /// current model. Why the deltas end early is reported at the next look.
    fn look_at_folder(&mut self, current: &ServingModel) -> Result<Option<ServingModel>, Fault> {
        let found = self.manifest();
        let manifest = self.outage.note(&self.model, found)?;
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
            // The folder was replaced while it was read: the next look finds the new one.
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
                let failed = Failed::new(fault, before.as_ref().map(|(_, failed)| failed));
                let fault = failed.fault.clone();
                self.failed = Some((manifest, failed));
                Err(fault)
            }
        }
    }

    fn manifest(&self) -> Result<SeenManifest, Fault> {
        let folder = Folder::from(self.model.as_str()).with_stores(&self.context.stores).open()?;
        Ok(SeenManifest { hash: xxh3_128(&Manifest::bytes(&folder)?), stamp: folder.stamp(MANIFEST)? })
    }

    /// The deltas that lead on from a model of these versions and that this look tries, by name.
    fn next_deltas(&mut self, current: ModelVersions) -> Result<Vec<(String, DeltaVersions)>, Fault> {
        let Self { deltas: Some(deltas), broken, passed, left_out, .. } = self else { return Ok(Vec::new()) };
        if !deltas.is_listed() {
            return Ok(Vec::new());
        }
        left_out.retain(|name| deltas.has(name));
        broken.retain(|name, (from, _)| deltas.has(name) && current.has(*from));
        let mut there = deltas.deltas();
        there.retain(|(name, _)| broken.get_mut(name).is_none_or(|(_, failed)| failed.is_due()));
        let mut next = Vec::new();
        for (name, versions) in there {
            if !current.has(versions.from) {
                // Another delta may have replaced one that could not be applied.
                broken.remove(&name);
            } else if !versions.leads_back(current, passed) {
                next.push((name, versions));
            } else if versions.to != current.version && !left_out.contains(&name) {
                tracing::warn!(
                    "delta {} is left out: it leads back to version {}, which was served since the model folder was read; to go \
                     back, remove the deltas that lead on and replace the model folder",
                    deltas.delta(&name)?,
                    versions.to
                );
                left_out.insert(name);
            }
        }
        Ok(next)
    }

    /// For each version that was served since the model folder was read: a fault if deltas lead from it to different versions. Then it
    /// depends on the time when a server first sees each of them which one it serves.
    fn forks(&self) -> Vec<Fault> {
        let Some(deltas) = self.deltas.as_ref().filter(|deltas| deltas.is_listed()) else { return Vec::new() };
        let place = |version: ModelVersion| self.passed.iter().position(|passed| *passed == version);
        let mut by_from: BTreeMap<usize, Vec<(String, DeltaVersions)>> = BTreeMap::new();
        for (name, versions) in deltas.deltas() {
            let Some(from) = place(versions.from) else { continue };
            // A delta that leads back is never applied.
            if place(versions.to).is_none_or(|to| to > from) {
                by_from.entry(from).or_default().push((name, versions));
            }
        }
        let fork = |deltas: Vec<(String, DeltaVersions)>| {
            let (first, versions) = deltas.first()?;
            let (other, others) = deltas.iter().find(|(_, other)| other.to != versions.to)?;
            Some(Fault::user(format!(
                "deltas `{first}` and `{other}` both lead on from version {}, to {} and {}: of those that it finds together, a \
                 server applies the first by name, so servers may serve different versions; remove all but one of them",
                versions.from, versions.to, others.to
            )))
        };
        by_from.into_values().filter_map(fork).collect()
    }
}

#[cfg(test)]
mod tests;
