//! A staged folder on the local file system: a hidden folder beside its place. Its files are on the disk before the folder
//! gets its name in one step.
//!
//! A process that is killed leaves its staged folder, which the next one of this machine removes. It tells them from those of
//! processes that are alive by their locks, which end with a process; so folders of other machines stay.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

use super::error::fault;
use super::place;
use super::within::check_not_around_here;

/// How files are made; tests put something in the place of [`File::create_new`].
pub(crate) type Create = fn(&Path) -> io::Result<File>;

/// The folder staged; dropping it before [`Self::publish`] removes it.
pub(super) struct Local {
    place: PathBuf,
    staged: PathBuf,
    replace: bool,
    published: bool,
    /// The folder, locked while this process writes it. `None`: the file system has no locks.
    _lock: Option<File>,
    pub(super) create: Create,
}

impl Local {
    /// Makes an empty folder beside `place`, parents included.
    pub(super) fn begin(place: PathBuf, replace: bool) -> Result<Self, Fault> {
        let place = place::real(&place)?;
        if replace {
            check_not_around_here(&place)?;
        }
        let Some(name) = place.file_name() else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.display())));
        };
        // The leading dot makes readers skip the folder if the process is killed.
        let prefix = format!(".{}.partial-{}-", name.to_string_lossy(), host());
        remove_abandoned(&place, &prefix);
        let (staged, lock) = make_locked(&place, &prefix)?;
        Ok(Self { place, staged, replace, published: false, _lock: lock, create: |path| File::create_new(path) })
    }

    /// Makes a file, the folders in its name included.
    pub(super) fn create(&self, name: &str) -> Result<File, Fault> {
        let path = self.staged.join(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| (self.create)(&path))
            .map_err(|e| fault(path.display(), "cannot make", e))
    }

    /// Flushes every file to the disk and gives the folder its name; a folder to be replaced is exchanged for it in one
    /// step, then removed.
    pub(super) fn publish(mut self) -> Result<(), Fault> {
        let replaced = self.give_name().map_err(|e| fault(self.place.display(), "cannot finish", e))?;
        // The folder stands in its place, whole: what fails from here on is no reason to write it again.
        self.published = true;
        // The name itself is on the disk when the folder that holds it is.
        if let Err(e) = self.place.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all()) {
            tracing::warn!(path = %self.place.display(), error = %e, "the folder has its name, perhaps not on the disk yet");
        }
        if replaced
            && let Err(e) = fs::remove_dir_all(&self.staged)
            // Another process may remove it first.
            && e.kind() != io::ErrorKind::NotFound
        {
            let old = self.staged.display();
            tracing::warn!("the old folder is replaced, but cannot be removed: {e}; it is at {old} now, remove it");
        }
        Ok(())
    }

    /// Returns whether another folder was replaced, which has the hidden name now.
    fn give_name(&self) -> io::Result<bool> {
        sync(&self.staged)?;
        // A rename replaces an empty folder and no other. Another process may make the folder at the same time.
        match fs::rename(&self.staged, &self.place) {
            Err(e) if self.replace && self.place.is_dir() => {
                tracing::debug!(place = %self.place.display(), error = %e, "replaces a folder");
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                renameat_with(CWD, &self.staged, CWD, &self.place, RenameFlags::EXCHANGE)?;
                Ok(true)
            }
            renamed => renamed.map(|()| false),
        }
    }
}

/// The name of this machine, as it fits into the name of a file.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')).take(32).collect()
}

/// Makes a folder beside `place`, and locks it.
fn make_locked(place: &Path, prefix: &str) -> Result<(PathBuf, Option<File>), Fault> {
    loop {
        let staged = place.with_file_name(format!("{prefix}{:016x}", forebay_base::random_seed()));
        let made = fs::create_dir_all(&staged).map_err(|e| fault(staged.display(), "cannot make", e));
        let lock = made.map(|()| File::open(&staged).and_then(|folder| Ok(try_lock(&folder)?.then_some(folder))))?;
        match lock {
            // Before it was locked, another process may have removed it as one that was left behind.
            Ok(Some(lock)) => match fs::metadata(&staged) {
                Ok(_) => return Ok((staged, Some(lock))),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(fault(staged.display(), "cannot make", e)),
            },
            Ok(None) => {}
            Err(e) => {
                tracing::debug!(path = %staged.display(), error = %e, "the folder cannot be locked");
                return Ok((staged, None));
            }
        }
    }
}

/// Whether it was locked; false if another process has locked it.
fn try_lock(folder: &File) -> io::Result<bool> {
    match folder.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Removes staged folders of processes of this machine that have ended. One that cannot be removed stays.
fn remove_abandoned(place: &Path, prefix: &str) {
    let entries = place.parent().and_then(|parent| fs::read_dir(parent).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)).unwrap_or_default();
        let is_staged = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(folder) = is_staged.then(|| File::open(&path).ok()).flatten() else { continue };
        if matches!(try_lock(&folder), Ok(true)) {
            let left = path.display();
            match fs::remove_dir_all(&path) {
                // Another process may remove it first.
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("{left} is left of an earlier command, and cannot be removed: {e}; remove it");
                }
                removed => tracing::debug!("{left} is left of a killed process: {removed:?}"),
            }
        }
    }
}

/// Flushes everything below a folder to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() { sync(&path)? } else { File::open(path)?.sync_all()? }
    }
    File::open(folder)?.sync_all()
}

impl Drop for Local {
    fn drop(&mut self) {
        if !self.published
            && let Err(e) = fs::remove_dir_all(&self.staged)
        {
            tracing::warn!(path = %self.staged.display(), error = %e, "cannot remove a folder that was not finished");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A bug: each process that was killed while it saved a model left a copy of the model.
    #[test]
    fn folders_that_killed_processes_have_left_are_removed_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let prefix = format!(".model.partial-{}-", host());
        let left = dir.path().join(format!("{prefix}{:016x}", 7));
        let stay =
            [".model.partial-elsewhere-0000000000000007".into(), format!("{prefix}notes"), ".model.partial-77".into()];
        stay.iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        fs::create_dir(&left).unwrap();
        fs::write(left.join("dense"), "half").unwrap();
        let live = Local::begin(place.clone(), true).unwrap();
        assert!(!left.exists());
        live.create("dense").unwrap();
        let other = Local::begin(place.clone(), true).unwrap();
        assert!(live.staged.join("dense").exists() && live.staged != other.staged, "it is locked");
        live.publish().unwrap();
        other.create("other").unwrap();
        other.publish().unwrap();
        assert!(place.join("other").exists());
        drop(Local::begin(place, true).unwrap());
        assert_eq!(names().len(), stay.len() + 1, "{:?}", names());
    }

    /// A bug: it was reported as failed, and the output was written once more elsewhere. A folder of another user cannot be removed either.
    #[test]
    fn a_folder_is_replaced_even_if_the_old_one_cannot_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        fs::create_dir_all(place.join("mounted")).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place.join("mounted")).output();
        if !mount.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this test needs root, and the right to mount");
            return;
        }
        let staged = Local::begin(place.clone(), true).unwrap();
        staged.create("dense").unwrap();
        let old = staged.staged.join("mounted");
        let published = staged.publish();
        assert!(Command::new("umount").arg(&old).status().unwrap().success(), "{published:?}");
        published.unwrap();
        assert!(place.join("dense").exists() && !place.join("mounted").exists());
        drop(Local::begin(place.clone(), true).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the next writer removes it");
    }
}
