//! A folder that is written under a hidden name, or in uploads that are not complete, and then appears whole or not at
//! all, in any store. Everything blocks on the disk or the store: call it on a thread of its own.
//!
//! | store | while it is written | how it appears |
//! |---|---|---|
//! | local | a hidden folder beside it | flushed to the disk, then one rename; to replace one, an exchange or two renames (see `local`) |
//! | HDFS | a hidden folder beside it | one rename; two, to replace a folder (see `two_renames`) |
//! | S3, memory | uploads that are not complete | all uploads are completed, the one that makes it valid last (see `flat`) |

mod above;
mod error;
#[doc(hidden)]
pub mod fail_points;
mod files;
mod flat;
mod folder;
mod folders;
mod local;
mod missing_folders;
mod place;
mod rename_flags;
mod renamed;
mod shell;
mod stop;
mod sync;
mod two_renames;
mod within;
mod writer;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use forebay_actors::Fault;

pub use self::error::fault;
use self::flat::Flat;
use self::folder::Opened;
pub use self::folder::{Folder, OpenFolder};
use self::local::Local;
pub use self::missing_folders::{MissingFolders, probe_folder};
use self::renamed::Renamed;
use self::within::SUCCESS;
pub(crate) use self::within::below;
pub use self::within::is_in;
pub use self::writer::FileWriter;
use crate::fstab::not_mounted;

/// A folder that is being written. A drop before [`StagedFolder::publish`] removes it.
pub struct StagedFolder {
    folder: OpenFolder,
    staged: Staged,
}

enum Staged {
    Local(Local),
    Renamed(Renamed),
    Flat(Flat),
}

impl StagedFolder {
    /// Prepares an empty folder that will be `folder`, parents included.
    ///
    /// # Errors
    /// A user fault if `folder` is a file, or holds something and is not to be replaced; or if the working directory is in it.
    pub fn begin(folder: &Folder, replace: bool) -> Result<Self, Fault> {
        Self::begin_at(open(folder)?, replace)
    }

    /// As [`begin`](Self::begin), for files with one of these endings, `.parquet` for instance: only a folder that holds nothing else is
    /// replaced.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); a user fault that names another entry of the folder.
    pub fn begin_files(folder: &Folder, replace: bool, endings: &[&str]) -> Result<Self, Fault> {
        let open = open(folder)?;
        if replace {
            within::check_holds_only(&open, endings)?;
        }
        Self::begin_at(open, replace)
    }

    fn begin_at(folder: OpenFolder, replace: bool) -> Result<Self, Fault> {
        if folder.is_file()? {
            return Err(Fault::user(format!("`{folder}` is a file: name a folder to write to")));
        }
        if !replace && folder.holds_anything()? {
            return Err(Fault::user(format!(
                "`{folder}` holds files already: name another folder, or replace it with --replace"
            )));
        }
        let staged = match folder.at.clone() {
            Opened::Local(path) => {
                place::check_disk(&folder.disks, &path)?;
                Staged::Local(Local::begin(path, replace)?)
            }
            Opened::Store(place) if place.renames => Staged::Renamed(Renamed::begin(place, replace)?),
            Opened::Store(place) => Staged::Flat(Flat::begin(place, replace)),
        };
        Ok(Self { folder, staged })
    }

    /// Fails if nothing can be written in the place of `folder`. Makes the folders above it, writes a small file beside it (in a store
    /// without folders: below it) and removes that file, and the folders of the local disk that it made. On HDFS it removes the folders
    /// only if it fails.
    ///
    /// Remembers the disk of a local folder: after an unmount, nothing is written beside the place.
    pub fn probe(folder: &Folder, replace: bool) -> Result<(), Fault> {
        let open = folder.open()?;
        if let Opened::Local(place) = &open.at
            && replace
            && let Some(why) = local::cannot_be_replaced(place)
        {
            return Err(Fault::user(format!("`{open}` cannot be replaced: {why}")));
        }
        let mut above = match (put_back(&open)?, &open.at) {
            (false, Opened::Store(place)) => MissingFolders::above(place),
            _ => MissingFolders::default(),
        };
        let probed = Self::begin_at(open.clone(), replace).and_then(|staged| {
            let name = open.to_string();
            let mut file = staged.create_as("probe", &name)?;
            file.write_all(b"probe").map_err(|e| fault(&name, "cannot write", e))?;
            file.finish()?;
            if let Opened::Local(path) = &open.at {
                place::remember_disk(&open.disks, path);
            }
            Ok(())
        });
        if probed.is_ok() {
            above.keep();
        }
        probed
    }

    /// Makes a file; its name may hold slashes.
    pub fn create(&self, file: &str) -> Result<FileWriter, Fault> {
        self.create_as(file, &self.folder.name(file))
    }

    /// As [`create`](Self::create); messages call the file `name`.
    fn create_as(&self, file: &str, name: &str) -> Result<FileWriter, Fault> {
        self.folder.check_not_stopped()?;
        let name = name.to_owned();
        let (at, pending) = match &self.staged {
            Staged::Local(local) => {
                let made = local.create(file).map_err(|e| fault(&name, "cannot make", e))?;
                return Ok(FileWriter::local(name, made).stopped_by(&self.folder.stop));
            }
            Staged::Renamed(renamed) => (renamed.staged(), None),
            Staged::Flat(flat) => (&flat.place, Some(Arc::clone(&flat.pending))),
        };
        FileWriter::store(name, at, file, pending).map(|writer| writer.stopped_by(&self.folder.stop))
    }

    /// Marks a folder of rows as whole, as Spark does, in a store; a local folder needs no mark. To be called last.
    pub fn mark(&self) -> Result<(), Fault> {
        if let Staged::Local(_) = self.staged {
            return Ok(());
        }
        self.create(SUCCESS)?.finish().map(drop)
    }

    /// Gives the folder its name. In a store without renames the file that was made last becomes visible last.
    pub fn publish(self) -> Result<(), Fault> {
        self.folder.check_not_stopped()?;
        match self.staged {
            Staged::Local(local) => local.publish(),
            Staged::Renamed(renamed) => renamed.publish(),
            Staged::Flat(flat) => flat.publish(),
        }
    }

    /// Makes local files with `create`.
    #[cfg(test)]
    pub(crate) fn with_create(mut self, create: local::Create) -> Self {
        if let Staged::Local(local) = &mut self.staged {
            local.create = create;
        }
        self
    }
}

/// Opens a folder to write to. If a killed process had moved an older folder away from this place, puts that folder back or removes it.
fn open(folder: &Folder) -> Result<OpenFolder, Fault> {
    let open = folder.open()?;
    put_back(&open)?;
    Ok(open)
}

/// See [`renamed::put_back`]; stores without renames have nothing to put back. Only on HDFS a probe removes the folders that it made.
fn put_back(folder: &OpenFolder) -> Result<bool, Fault> {
    match &folder.at {
        Opened::Store(place) if place.renames => renamed::put_back(place),
        Opened::Store(_) => Ok(true),
        Opened::Local(place) => local::put_back(place).map(|()| true),
    }
}

impl OpenFolder {
    /// Writes and removes a small file of this name, which messages do not show. Leaves no new local folder, and remembers the disk of a
    /// local folder: after an unmount, writing here is an external fault.
    ///
    /// # Errors
    /// A user fault if the folder cannot be written; an external fault of a disk or a store.
    pub fn probe(&self, file: &str) -> Result<(), Fault> {
        let _missing = self.missing_folders();
        self.create_as(file, &self.to_string())?.finish()?;
        self.remove(file)?;
        if let Opened::Local(path) = &self.at {
            self.disks.remember(path);
        }
        Ok(())
    }

    /// Remembers the disk of a local folder, which need not be there yet: after an unmount, writing here is an external fault. What was
    /// remembered before stays.
    pub fn remember_disk(&self) {
        if let Opened::Local(path) = &self.at {
            self.disks.remember_first(path);
        }
    }

    /// Call it before a missing file is taken for a removed one.
    ///
    /// # Errors
    /// An external fault if this is a local folder in one that was tried ([`StagedFolder::probe`]), and its disk has been unmounted since.
    pub fn check_disk(&self) -> Result<(), Fault> {
        match &self.at {
            Opened::Local(path) => place::check_disk(&self.disks, path),
            Opened::Store(_) => Ok(()),
        }
    }

    /// The mount point of the disk that this folder was on when it was tried ([`StagedFolder::probe`]). `None`: the disk of `/`, a path
    /// that is not UTF-8, or a store.
    #[must_use]
    pub fn mount_point(&self) -> Option<String> {
        match &self.at {
            Opened::Local(path) => place::mount_of(&self.disks, path)?.into_os_string().into_string().ok(),
            Opened::Store(_) => None,
        }
    }

    /// An earlier process has tried this folder, on a disk that was mounted at `mount`. While nothing is mounted there, and the mount point
    /// is empty or missing, the disk counts as unmounted: see [`check_disk`](Self::check_disk).
    pub fn expect_disk(&self, mount: &str) {
        if let Opened::Local(path) = &self.at {
            place::expect_disk(&self.disks, path, Path::new(mount));
        }
    }

    /// The mount point of the disk that this local folder lies on by `/etc/fstab`, if that disk is not mounted now.
    #[must_use]
    pub fn not_mounted(&self) -> Option<String> {
        match &self.at {
            Opened::Local(path) => Some(not_mounted(path)?.display().to_string()),
            Opened::Store(_) => None,
        }
    }

    /// This folder and the folders above it that are missing, if it is a local folder.
    #[must_use]
    pub fn missing_folders(&self) -> MissingFolders {
        match &self.at {
            Opened::Local(path) => MissingFolders::of(path),
            Opened::Store(_) => MissingFolders::default(),
        }
    }

    /// The folder that was here, as messages name it, if nothing is here because a process replaces it or was killed meanwhile; and the
    /// command that puts it back. `None`, too, if the store does not say.
    #[must_use]
    pub fn replaced(&self) -> Option<(String, String)> {
        match &self.at {
            Opened::Store(place) if place.renames => renamed::replaced(place),
            Opened::Store(_) => None,
            Opened::Local(place) => local::replaced(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_actors::{Domain, FaultKind};

    use super::*;
    use crate::Stores;

    fn write(staged: &StagedFolder, name: &str, text: &str) {
        let mut file = staged.create(name).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        assert_eq!(file.finish().unwrap(), text.len() as u64);
    }

    #[test]
    fn the_folder_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("out");
        let begin = |replace| StagedFolder::begin(&Folder::from(&place), replace);
        let staged = begin(false).unwrap();
        write(&staged, "a", "1");
        assert!(!place.exists());
        drop(staged);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let staged = begin(false).unwrap();
        write(&staged, "below/a", "1");
        staged.publish().unwrap();
        assert_eq!(fs::read_to_string(place.join("below/a")).unwrap(), "1");
        assert!(begin(false).err().unwrap().to_string().contains("holds files already"));
        let staged = begin(true).unwrap();
        write(&staged, "b", "2");
        staged.publish().unwrap();
        assert!(place.join("b").exists() && !place.join("below").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A bug: the folders were made anew on the disk beneath, and the run ended well.
    #[test]
    fn nothing_is_written_to_the_disk_beneath_one_that_was_unmounted() {
        let (dir, stores) = (tempfile::tempdir().unwrap(), Stores::default());
        let folder = |name: &str| Folder::from(dir.path().join(name)).with_stores(&stores);
        StagedFolder::probe(&folder("models/ctr"), true).unwrap();
        let checkpoints = folder("models/checkpoints").open().unwrap();
        checkpoints.probe("probe").unwrap();
        drop(StagedFolder::begin(&folder("models/ctr"), true).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::create_dir(dir.path().join("models")).unwrap();
        stores.disks().unmounted(&dir.path().join("models"));
        let faults = [
            StagedFolder::begin(&folder("models/ctr"), true).err().unwrap(),
            StagedFolder::begin(&folder("models/ctr.best-0"), true).err().unwrap(),
            checkpoints.create("a").err().unwrap(),
            checkpoints.put_new("a", vec![1]).unwrap_err(),
        ];
        for fault in faults {
            assert!(fault.domain == Domain::External && fault.to_string().contains("not mounted any more"), "{fault}");
        }
        assert_eq!(fs::read_dir(dir.path().join("models")).unwrap().count(), 0);
        drop(StagedFolder::begin(&folder("elsewhere/ctr"), true).unwrap());
    }

    /// A bug: the folders above an output stayed after a command that had failed, and its errors had the hidden name.
    #[test]
    fn an_output_that_is_not_written_leaves_no_folder_above_it_and_errors_have_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(dir.path()).unwrap().count();
        let place = dir.path().join("new/deep/out");
        let folder = Folder::from(&place);
        StagedFolder::probe(&folder, true).unwrap();
        assert_eq!(names(), 0);
        let staged = StagedFolder::begin(&folder, false).unwrap();
        write(&staged, "a", "1");
        drop(staged);
        assert_eq!(names(), 0);
        let (first, second) =
            (StagedFolder::begin(&folder, false).unwrap(), StagedFolder::begin(&folder, false).unwrap());
        drop(first);
        second.publish().unwrap();
        assert!(place.is_dir());
        fs::write(dir.path().join("file"), "").unwrap();
        let in_a_file = Folder::from(dir.path().join("file/out"));
        let long = Folder::from(dir.path().join("x".repeat(240)));
        for folder in [in_a_file, long] {
            let name = folder.open().unwrap().to_string();
            for fault in
                [StagedFolder::probe(&folder, true).unwrap_err(), folder.open().unwrap().probe("p/q").unwrap_err()]
            {
                let said = fault.to_string();
                assert!(said.starts_with(&format!("cannot make `{name}`: ")) && fault.domain == Domain::User, "{said}");
            }
        }
        let probed = |bytes: usize| StagedFolder::probe(&Folder::from(dir.path().join("x".repeat(bytes))), true);
        let said = probed(240).unwrap_err().to_string();
        let most = said.split_once("its name has 240 bytes, and may have ").and_then(|(_, rest)| rest.split_once(','));
        let most: usize = most.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
        probed(most).unwrap();
        assert!(probed(most + 1).unwrap_err().to_string().contains("its name has"));
        let folder = Folder::from(dir.path().join("x".repeat(256))).open().unwrap();
        assert!(folder.probe("p").unwrap_err().to_string().contains("names of at most 255 bytes"));
    }

    #[test]
    fn a_folder_that_is_stopped_is_not_written_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let folder = Folder::from(dir.path().join("out")).stopped_by(Arc::clone(&stop));
        let (staged, whole) =
            (StagedFolder::begin(&folder, false).unwrap(), StagedFolder::begin(&folder, false).unwrap());
        write(&whole, "a", "1");
        let mut file = staged.create("a").unwrap();
        file.write_all(b"1").unwrap();
        stop.store(true, Ordering::SeqCst);
        let faults = [
            fault("a", "cannot write", file.write_all(b"2").unwrap_err()),
            staged.create("b").err().unwrap(),
            whole.publish().unwrap_err(),
        ];
        for fault in faults {
            assert!(fault.kind == FaultKind::Drained && fault.to_string().starts_with("stopped: "), "{fault}");
        }
        drop((file, staged));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
