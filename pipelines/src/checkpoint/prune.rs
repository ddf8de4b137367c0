//! Removes old checkpoints. Everything here blocks on the store.

use std::collections::{HashMap, HashSet};

use forebay_actors::{Fault, FaultKind};

use super::folder::{CheckpointFolder, file_number};
use super::manifest::CheckpointManifest;
use crate::checkpoint_name;

/// Which checkpoints stay, and which are removed.
#[derive(Default)]
pub(super) struct Pruning {
    /// The number of the newest.
    newest: u64,
    /// The numbers of the checkpoints to remove.
    old: Vec<u64>,
    kept: Referenced,
}

/// The checkpoints that stay.
#[derive(Default)]
struct Referenced {
    /// For each whole checkpoint, from the newest on: the files of the full checkpoint that it builds on.
    bases: Vec<Vec<String>>,
    /// All files that these checkpoints name, and the files that damaged checkpoints between them name.
    files: HashSet<String>,
    /// Numbers of checkpoints whose manifest is damaged: they stay until enough newer ones are whole.
    unknown: Vec<u64>,
}

impl Referenced {
    /// Whether all whole checkpoints build on the same full checkpoint.
    fn have_one_base(&self) -> bool {
        self.bases.iter().all(|base| *base == self.bases[0])
    }
}

impl CheckpointFolder {
    /// Removes all checkpoints but the newest `keep` that are whole, as far as manifests and lengths of files say. Also removes the files
    /// that no remaining checkpoint names. If all remaining checkpoints build on one full checkpoint, and `keep` is more than 1, the newest
    /// checkpoint above another full one stays, too: else one damaged file could make all of them useless. Files of later numbers stay. If
    /// a run makes a checkpoint meanwhile, all files but old manifests stay until the next call.
    ///
    /// # Errors
    /// The store fails, or another version of the program wrote one of them. Then all stay.
    pub fn prune(&self, keep: usize) -> Result<(), Fault> {
        self.remove_old(&self.pruning(keep)?)
    }

    /// The first part of [`prune`](Self::prune): removes nothing.
    pub(super) fn pruning(&self, keep: usize) -> Result<Pruning, Fault> {
        let lengths: HashMap<String, u64> = self.folder.files()?.into_iter().collect();
        let mut numbers: Vec<u64> = lengths.keys().filter_map(|name| checkpoint_name::number_of(name)).collect();
        numbers.sort_unstable();
        let Some(&newest) = numbers.last() else { return Ok(Pruning::default()) };
        let keep = keep.max(1);
        let (mut kept, mut old) = (Referenced::default(), Vec::new());
        for number in numbers.into_iter().rev() {
            let enough = kept.bases.len() >= keep;
            if enough && (keep == 1 || !kept.have_one_base()) {
                old.push(number);
                continue;
            }
            let manifest = match self.manifest(number) {
                Ok(manifest) => manifest,
                Err(fault) if fault.kind != FaultKind::Damaged => return Err(fault),
                Err(_) if enough => {
                    old.push(number);
                    continue;
                }
                Err(_) => {
                    kept.unknown.push(number);
                    continue;
                }
            };
            let (base, whole) = (base(&manifest), self.check_lengths(&lengths, &manifest).is_ok());
            if enough && (!whole || base == kept.bases[0]) {
                old.push(number);
                continue;
            }
            kept.files.extend(manifest.files().map(|entry| entry.path.clone()));
            if whole {
                kept.bases.push(base);
            }
        }
        Ok(Pruning { newest, old, kept })
    }

    /// The second part of [`prune`](Self::prune).
    pub(super) fn remove_old(&self, Pruning { newest, old, kept }: &Pruning) -> Result<(), Fault> {
        if kept.bases.is_empty() {
            return Ok(());
        }
        for number in old {
            self.folder.remove(&CheckpointManifest::name(*number))?;
        }
        let files = self.folder.files()?;
        if files.iter().any(|(name, _)| checkpoint_name::number_of(name).is_some_and(|number| number > *newest)) {
            // The newer checkpoint may need files of the old ones.
            return Ok(());
        }
        for (name, _) in files {
            let is_old = |number: u64| number <= *newest && !kept.unknown.contains(&number);
            if file_number(&name).is_some_and(is_old) && !kept.files.contains(&name) {
                self.folder.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// The files of the full checkpoint below one.
fn base(manifest: &CheckpointManifest) -> Vec<String> {
    let oldest = manifest.tables.iter().filter_map(|table| table.layers.first());
    oldest.flat_map(|layer| &layer.files).map(|file| file.path.clone()).collect()
}
