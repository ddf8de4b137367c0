//! The folder of deltas, and the versions between which its deltas lead. Blocks on the store.
//!
//! A look lists the folder. On a local disk it then reads each manifest. In a store, where reading takes requests, it reads the manifests
//! of new folders, one of the known manifests in turn, and, less and less often, the manifests that could not be read.

use std::collections::{BTreeMap, BTreeSet};

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_connectors::staged::{Folder, OpenFolder};

use super::failed::Failed;
use super::outage::Outage;
use crate::context::Context;
use crate::delta::{DeltaManifest, ModelVersions};
use crate::model::model_version::ModelVersion;

/// Known manifests that a look at a store reads again, because another delta may have replaced one.
const READ_AGAIN: usize = 1;

/// The folder of deltas, as the last look found it.
pub(super) struct DeltaFolder {
    folder: Folder,
    context: Context,
    /// By the name of the subfolder.
    known: BTreeMap<String, KnownDelta>,
    outage: Outage,
    /// Whether the last look could list the folder.
    is_listed: bool,
    looks: u64,
}

struct KnownDelta {
    /// What its manifest says, or why it cannot be read.
    manifest: Result<DeltaVersions, Failed>,
    /// The look that read it.
    read_at: u64,
}

/// The versions in a manifest: see [`DeltaManifest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeltaVersions {
    pub(super) from: ModelVersion,
    pub(super) to: ModelVersion,
    gives: Option<ModelVersion>,
}

impl DeltaVersions {
    fn of(manifest: &DeltaManifest) -> Self {
        Self { from: manifest.from, to: manifest.to, gives: manifest.gives }
    }

    /// Whether the delta leads from a model of the versions `current` back to a version that was served before (`passed`), so that a circle
    /// of deltas would not end.
    pub(super) fn leads_back(&self, current: ModelVersions, passed: &[ModelVersion]) -> bool {
        // An exact delta from the rounded content itself makes the model exact.
        let makes_exact = self.from == current.version && self.gives.is_none() && current.approximates == Some(self.to);
        !makes_exact && passed.contains(&self.to)
    }
}

impl DeltaFolder {
    pub(super) fn new(folder: Folder, context: &Context) -> Self {
        let (folder, context) = (folder.with_stores(&context.stores), context.clone());
        Self { folder, context, known: BTreeMap::new(), outage: Outage::default(), is_listed: false, looks: 0 }
    }

    /// Opens the store of the folder, without a request.
    ///
    /// # Errors
    /// A user fault if there is no store for the URL.
    pub(super) fn open(&self) -> Result<OpenFolder, Fault> {
        self.folder.open()
    }

    /// Looks which deltas the folder has.
    ///
    /// # Errors
    /// The folder cannot be listed: then nothing is known of its deltas until a later look.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let listed = self.list();
        self.is_listed = listed.is_ok();
        let (folder, names) = self.outage.note(&self.folder, listed)?;
        if self.looks == 0 && names.is_empty() {
            // A store without folders does not say that the name is wrong.
            tracing::info!("`{}` holds no deltas yet", self.folder);
        }
        self.looks += 1;
        self.known.retain(|name, _| names.contains(name));
        for name in self.due(names, folder.is_local()) {
            let known = self.read(&folder, name);
            let is_away = known.manifest.as_ref().is_err_and(|failed| failed.fault.domain == Domain::External);
            if is_away && !folder.is_local() {
                // Reading each of the other manifests would wait as long for the store.
                break;
            }
        }
        Ok(())
    }

    /// The names of the subfolders.
    fn list(&self) -> Result<(OpenFolder, BTreeSet<String>), Fault> {
        let folder = self.open()?;
        match folder.folders()? {
            // A hidden folder is being written.
            Some(names) => Ok((folder, names.into_iter().filter(|name| !name.starts_with('.')).collect())),
            None => Err(Fault::user(format!("cannot list the deltas in `{folder}`: there is no such folder"))),
        }
    }

    /// The folders whose manifests this look reads: new ones first.
    fn due(&mut self, names: BTreeSet<String>, is_local: bool) -> Vec<String> {
        let (mut due, mut read) = (Vec::new(), Vec::new());
        for name in names {
            match self.known.get_mut(&name) {
                None => due.push(name),
                Some(KnownDelta { manifest: Ok(_), read_at }) => read.push((*read_at, name)),
                Some(KnownDelta { manifest: Err(failed), .. }) => {
                    if failed.is_due() || is_local {
                        due.push(name);
                    }
                }
            }
        }
        read.sort();
        let again = if is_local { read.len() } else { READ_AGAIN };
        due.extend(read.into_iter().take(again).map(|(_, name)| name));
        due
    }

    /// Reads the manifest of a delta.
    fn read(&mut self, folder: &OpenFolder, name: String) -> &KnownDelta {
        let read = folder.folder(&name).and_then(|delta| DeltaManifest::read(delta, &self.context));
        let before = self.known.remove(&name).and_then(|known| known.manifest.err());
        let manifest = match read {
            Ok(manifest) => Ok(DeltaVersions::of(&manifest)),
            Err(fault) => {
                let left_out = fault.context(format!("delta {} is left out", folder.name(&name)));
                Err(Failed::new(left_out, before.as_ref()))
            }
        };
        self.known.entry(name).or_insert(KnownDelta { manifest, read_at: self.looks })
    }

    /// Whether it is on a local disk.
    pub(super) fn is_local(&self) -> bool {
        self.open().is_ok_and(|folder| folder.is_local())
    }

    /// Whether the last look could list the folder.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Whether there is a subfolder of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The deltas whose manifests could be read, by name.
    pub(super) fn deltas(&self) -> Vec<(String, DeltaVersions)> {
        let of = |(name, known): (&String, &KnownDelta)| Some((name.clone(), *known.manifest.as_ref().ok()?));
        self.known.iter().filter_map(of).collect()
    }

    /// Reads the versions in the manifest of a delta again; `None` if it cannot be read. This look reads a manifest only once.
    pub(super) fn read_now(&mut self, name: &str) -> Option<DeltaVersions> {
        if self.known.get(name)?.read_at < self.looks {
            let folder = self.open().ok()?;
            self.read(&folder, name.to_owned());
        }
        self.known.get(name)?.manifest.as_ref().ok().copied()
    }

    /// Why manifests cannot be read. A folder without one may be another program's, or be copied at the moment.
    pub(super) fn wrong(&self) -> impl Iterator<Item = Fault> {
        let failed = self.known.values().filter_map(|known| known.manifest.as_ref().err());
        failed.map(|failed| failed.fault.clone()).filter(|fault| fault.kind != FaultKind::NotFound)
    }

    pub(super) fn delta(&self, name: &str) -> Result<Folder, Fault> {
        self.open()?.folder(name)
    }
}
