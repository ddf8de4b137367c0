//! The folders that a command makes for its output, to be removed if the command fails.

use std::path::{Path, PathBuf};
use std::{fs, io};

use forebay_actors::{Fault, FaultKind};

use super::above;
use super::folder::StoreFolder;

/// Folders that were missing. A drop removes the folders that have been made since and are empty.
#[derive(Default)]
pub struct MissingFolders {
    /// On the local disk, the lowest first.
    folders: Vec<PathBuf>,
    /// Above a folder of HDFS, the lowest first.
    above: Option<(StoreFolder, Vec<object_store::path::Path>)>,
}

impl MissingFolders {
    /// Looks whether a local folder, and which folders above it, are missing; to be called before they are made.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let folders = folder.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        Self { folders, above: None }
    }

    /// Looks which folders are missing above a folder of HDFS; to be called before they are made.
    pub(super) fn above(folder: &StoreFolder) -> Self {
        let missing = above::find(folder);
        Self { folders: Vec::new(), above: (!missing.is_empty()).then(|| (folder.clone(), missing)) }
    }

    /// The folders stay.
    pub fn keep(&mut self) {
        self.folders.clear();
        self.above = None;
    }
}

impl Drop for MissingFolders {
    fn drop(&mut self) {
        if let Some((place, folders)) = self.above.take() {
            above::remove(&place, folders);
        }
        for folder in &self.folders {
            match fs::remove_dir(folder) {
                // The folder was not made.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // The folder is not empty: another process may use it.
                Err(_) => break,
                Ok(()) => {}
            }
        }
    }
}

/// Makes a folder, calls `probe`, which writes and removes a file in it, and removes the folders that were not there.
///
/// # Errors
/// What `probe` returned; `cannot` of the error if the folder cannot be made.
pub fn probe_folder(
    folder: &Path,
    cannot: impl Fn(io::Error) -> Fault,
    probe: impl Fn() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let _missing = MissingFolders::of(folder);
    let made = || if folder.exists() { Ok(()) } else { fs::create_dir_all(folder) };
    let probed = || made().map_err(&cannot).and_then(|()| probe());
    match probed() {
        // Another process that probes the same folder may have removed it.
        Err(fault) if fault.kind == FaultKind::NotFound => probed(),
        probed => probed,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::fault;
    use super::*;

    #[test]
    fn empty_folders_that_were_not_there_are_removed_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("there")).unwrap();
        for (folder, file, stays) in [
            ("new/a/b", None, None),
            ("there", None, Some("there")),
            ("there/a", None, Some("there")),
            ("used/a/b", Some("used/file"), Some("used")),
            ("full/a", Some("full/a/file"), Some("full/a")),
        ] {
            let missing = MissingFolders::of(&at(folder));
            fs::create_dir_all(at(folder)).unwrap();
            file.map_or(Ok(()), |file| fs::write(at(file), "1")).unwrap();
            drop(missing);
            assert_eq!(at(folder).exists(), stays == Some(folder), "{folder}");
            assert!(stays.is_none_or(|stays| at(stays).exists()), "{folder}");
        }
        assert!(!at("new").exists());
        let missing = MissingFolders::of(&at("new/a/b"));
        fs::create_dir_all(at("new/a")).unwrap();
        drop(missing);
        assert!(!at("new").exists(), "not all were made");
        let mut kept = MissingFolders::of(&at("kept/a"));
        fs::create_dir_all(at("kept/a")).unwrap();
        kept.keep();
        drop(kept);
        assert!(at("kept/a").exists());
    }

    #[test]
    fn a_probe_makes_a_folder_again_that_another_process_has_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let cannot = |e| fault(folder.display(), "cannot write to", e);
        let tries = Cell::new(0);
        let probe = || {
            tries.set(tries.get() + 1);
            if tries.get() == 1 {
                fs::remove_dir(&folder).unwrap();
            }
            fs::write(folder.join("file"), "1").and_then(|()| fs::remove_file(folder.join("file"))).map_err(cannot)
        };
        probe_folder(&folder, cannot, probe).unwrap();
        assert_eq!((tries.get(), dir.path().join("a").exists()), (2, false));
    }
}
