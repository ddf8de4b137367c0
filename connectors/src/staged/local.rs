//! A staged folder on the local file system: a hidden folder beside its place. Its files are on the disk before the folder gets its name in
//! one step. A folder to be replaced is exchanged in one step, too, if the file system can; otherwise by two renames (see [`two_renames`]).
//!
//! A process that is killed leaves its staged folder, which the next process of this machine removes. A lock, which ends with its process,
//! marks the folders of live processes; folders of other machines stay.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::error::{LONGEST_NAME, fault, made_meanwhile};
use super::missing_folders::MissingFolders;
use super::place;
use super::rename_flags::{FlaggedRename, exchange, is_unknown};
use super::shell::quoted;
use super::sync::sync_folder;
use super::two_renames::{self, REPLACED, Renames, hidden_name, is_hidden};
use super::within::check_not_around_here;

/// How files are made; tests put something in the place of [`File::create_new`].
pub(crate) type Create = fn(&Path) -> io::Result<File>;

/// The folder staged; a drop before [`Self::publish`] removes it.
pub(super) struct Local {
    place: PathBuf,
    staged: PathBuf,
    replace: bool,
    published: bool,
    /// The folders above it that were not there.
    missing: MissingFolders,
    /// The folder, locked while this process writes it. `None`: the file system has no locks.
    _lock: Option<File>,
    pub(super) create: Create,
    exchange: FlaggedRename,
}

impl Local {
    /// Makes an empty folder beside `place`, parents included.
    pub(super) fn begin(place: PathBuf, replace: bool) -> Result<Self, Fault> {
        let place = place::real(&place)?;
        if replace {
            check_not_around_here(&place)?;
        }
        let Some(name) = place.file_name().map(ToOwned::to_owned) else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.display())));
        };
        let prefix = hidden_prefix(&name.to_string_lossy());
        remove_abandoned(&place, &prefix);
        let missing = MissingFolders::of(place.parent().unwrap_or(&place));
        let (staged, lock) = make_locked(&place, &prefix).map_err(|e| cannot_make(&place, &prefix, e))?;
        let create: Create = |path| File::create_new(path);
        Ok(Self { place, staged, replace, published: false, missing, _lock: lock, create, exchange })
    }

    /// Makes a file, the folders in its name included.
    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        let path = self.staged.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        (self.create)(&path)
    }

    /// Flushes every file to the disk and gives the folder its name. A folder to be replaced is exchanged in one step, or renamed first if
    /// the file system cannot exchange, then removed.
    pub(super) fn publish(mut self) -> Result<(), Fault> {
        let replaced = self.give_name()?;
        // The whole folder is in its place: a later failure is no reason to write it again.
        self.published = true;
        self.missing.keep();
        // The name is on the disk when the folder that holds it is.
        if let Err(e) = self.place.parent().map_or(Ok(()), sync_folder) {
            tracing::warn!(path = %self.place.display(), error = %e, "the folder has its name, perhaps not on the disk yet");
        }
        if let Some(old) = replaced
            && let Err(e) = fs::remove_dir_all(&old)
            // Another process may remove it first.
            && e.kind() != io::ErrorKind::NotFound
        {
            let old = old.display();
            tracing::warn!("the old folder is replaced, but cannot be removed: {e}; it is at {old} now, remove it");
        }
        Ok(())
    }

    /// Returns the place of the replaced folder, if there was one.
    fn give_name(&self) -> Result<Option<PathBuf>, Fault> {
        let cannot = |e: io::Error| fault(self.place.display(), "cannot finish", e);
        sync(&self.staged).map_err(cannot)?;
        // A rename replaces an empty folder and no other. Another process may make the folder at the same time.
        match fs::rename(&self.staged, &self.place) {
            Err(e) if self.replace && self.place.is_dir() => {
                tracing::debug!(place = %self.place.display(), error = %e, "replaces a folder");
                match (self.exchange)(&self.staged, &self.place) {
                    Err(e) if is_unknown(e) => self.replace_by_two_renames().map(Some),
                    // A folder of a lower layer of an overlay, or of another project with a quota, can be removed, but not renamed.
                    Err(Errno::XDEV) => {
                        fs::remove_dir_all(&self.place)
                            .and_then(|()| fs::rename(&self.staged, &self.place))
                            .map_err(cannot)?;
                        Ok(None)
                    }
                    exchanged => exchanged.map(|()| Some(self.staged.clone())).map_err(|e| cannot(e.into())),
                }
            }
            Err(e) if !self.replace && e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Err(made_meanwhile(&self.place.display().to_string()))
            }
            renamed => renamed.map(|()| None).map_err(cannot),
        }
    }

    /// Returns the place of the old folder.
    fn replace_by_two_renames(&self) -> Result<PathBuf, Fault> {
        let name = name_of(&self.place);
        let old = self.place.with_file_name(hidden_name(&name, REPLACED, &two_renames::own()));
        two_renames::replace(&Beside(&self.place), &self.staged, &self.place, &old)?;
        Ok(old)
    }
}

/// Removes a folder and all that is in it, if it is there: at once, by a rename to a hidden name. If the process is killed meanwhile, the
/// next one that writes a folder of this name removes the rest.
pub(super) fn remove(place: &Path) -> io::Result<()> {
    let hidden =
        place.with_file_name(format!("{}{:016x}", hidden_prefix(&name_of(place)), forebay_base::random_seed()));
    let there = match fs::rename(place, &hidden) {
        Ok(()) => hidden.as_path(),
        // Not all folders can be renamed.
        Err(_) => place,
    };
    match fs::remove_dir_all(there) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes hidden parts of a folder that killed processes of this machine have left. A part that cannot be removed stays.
pub(super) fn remove_abandoned_of(place: &Path) {
    if let Ok(place) = place::followed(place) {
        remove_abandoned(&place, &hidden_prefix(&name_of(&place)));
    }
}

/// The prefix of the hidden folders that processes of this machine make beside a folder of this name. The leading dot makes readers skip
/// them if the process is killed.
fn hidden_prefix(name: &str) -> String {
    format!(".{name}.partial-{}-", host())
}

/// The digits that follow the prefix of a hidden name.
const DIGITS: usize = 16;

/// The fault of a staged folder that cannot be made. If its name is too long, says how long the name of the place may be.
fn cannot_make(place: &Path, prefix: &str, error: io::Error) -> Fault {
    let name = place.file_name().unwrap_or_default().len();
    let most = LONGEST_NAME.saturating_sub((prefix.len() + DIGITS).saturating_sub(name));
    if error.raw_os_error() != Some(Errno::NAMETOOLONG.raw_os_error()) || name <= most {
        return fault(place.display(), "cannot make", error);
    }
    Fault::user(format!(
        "cannot make `{}`: its name has {name} bytes, and may have {most}, because it has a longer name while it is written: name a \
         shorter one",
        place.display()
    ))
}

/// Why an existing folder cannot be replaced, if a look can tell.
pub(super) fn cannot_be_replaced(place: &Path) -> Option<String> {
    let place = place::followed(place).ok()?;
    let (folder, above) = (fs::symlink_metadata(&place).ok()?, fs::metadata(place.parent()?).ok()?);
    let user = rustix::process::geteuid().as_raw();
    let is_sticky = above.mode() & 0o1000 != 0;
    if is_sticky && user != 0 && user != folder.uid() && user != above.uid() {
        return Some(format!("`{}` is of another user, and the folder above it is sticky", place.display()));
    }
    let fixed = |at: &Path| is_fixed(at).then(|| format!("`{}` is immutable or append-only (lsattr)", at.display()));
    fixed(&place).or_else(|| fixed(place.parent()?))
}

/// Whether names in this folder, or its own, cannot be changed.
fn is_fixed(folder: &Path) -> bool {
    let found = statx(CWD, folder, AtFlags::empty(), StatxFlags::BASIC_STATS);
    found.is_ok_and(|found| found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND))
}

/// The folders beside this one.
struct Beside<'a>(&'a Path);

impl Renames for Beside<'_> {
    type Folder = PathBuf;

    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn shown(&self, folder: &PathBuf) -> String {
        folder.display().to_string()
    }

    fn holds(&self, folder: &PathBuf) -> Result<bool, Fault> {
        match fs::read_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            entries => entries
                .and_then(|mut entries| entries.next().transpose())
                .map(|first| first.is_some())
                .map_err(|e| fault(folder.display(), "cannot look into", e)),
        }
    }

    fn rename(&self, what: &str, from: &PathBuf, to: &PathBuf) -> Result<(), Fault> {
        fs::rename(from, to).map_err(|e| fault(self.0.display(), what, e))
    }

    fn remove(&self, folder: &PathBuf) -> Result<(), Fault> {
        match fs::remove_dir_all(folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(fault(folder.display(), "cannot remove", e)),
            _ => Ok(()),
        }
    }
}

/// Puts back or removes a folder that a killed process was replacing by two renames: see [`two_renames::put_back`].
pub(super) fn put_back(place: &Path) -> Result<(), Fault> {
    let Ok(place) = place::followed(place) else { return Ok(()) };
    let (left, beside) = (left_behind(&place), Beside(&place));
    // The writer reports a file in the place of the folder.
    if left.is_empty() || fs::symlink_metadata(&place).is_ok_and(|there| !there.is_dir()) {
        return Ok(());
    }
    two_renames::put_back(&beside, &place, beside.holds(&place)?, &left)
}

/// The folder that was at `place`, if a process was killed during its replacement and nothing is there; and the command that puts it back.
pub(super) fn replaced(place: &Path) -> Option<(String, String)> {
    let place = place::followed(place).ok()?;
    if Beside(&place).holds(&place).ok()? {
        return None;
    }
    let left = left_behind(&place);
    let [old] = &left[..] else { return None };
    let at = old.display().to_string();
    let command = format!("mv -T {} {}", quoted(&at), quoted(&place.display().to_string()));
    Some((at, command))
}

/// The folders beside `place` that were replaced by two renames and are not removed.
fn left_behind(place: &Path) -> Vec<PathBuf> {
    let name = name_of(place);
    let entries = place.parent().and_then(|parent| fs::read_dir(parent).ok()).into_iter().flatten().flatten();
    let left = entries.filter(|entry| entry.file_name().to_str().is_some_and(|at| is_hidden(at, &name, REPLACED)));
    left.map(|entry| entry.path()).collect()
}

/// The name of a folder, as in the hidden names beside it.
fn name_of(place: &Path) -> String {
    place.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The name of this machine, as it fits into the name of a file.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')).take(32).collect()
}

/// Makes a folder beside `place`, and locks it.
fn make_locked(place: &Path, prefix: &str) -> io::Result<(PathBuf, Option<File>)> {
    loop {
        let staged = place.with_file_name(format!("{prefix}{:016x}", forebay_base::random_seed()));
        match fs::create_dir_all(&staged) {
            // Meanwhile another process may have removed the folders above.
            Err(e) if e.kind() == io::ErrorKind::NotFound => fs::create_dir_all(&staged)?,
            made => made?,
        }
        match File::open(&staged).and_then(|folder| Ok(try_lock(&folder)?.then_some(folder))) {
            // Before the lock, another process may have removed the folder as one that was left behind.
            Ok(Some(lock)) => match fs::metadata(&staged) {
                Ok(_) => return Ok((staged, Some(lock))),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
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
    sync_folder(folder)
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

    use forebay_actors::Domain;

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

    /// A bug: a process that was killed while it removed a model left a part of it, which no later run could read or replace.
    #[test]
    fn a_removed_folder_is_gone_at_once_and_a_part_that_is_left_goes_with_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model.best-0");
        remove(&place).unwrap();
        make_old(&place);
        remove(&place).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
        // As after a kill.
        let left = dir.path().join(format!("{}{:016x}", hidden_prefix("model.best-0"), 7));
        make_old(&left);
        drop(Local::begin(place.clone(), true).unwrap());
        assert_eq!(names(dir.path()), Vec::<String>::new());
        // A name that is too long for a hidden one.
        let long = dir.path().join("n".repeat(250));
        make_old(&long);
        remove(&long).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }

    /// A bug: it failed after the training, and `--resume` failed again.
    #[test]
    fn a_folder_that_cannot_be_renamed_is_removed_to_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        make_old(&place);
        let mut staged = staged(&place);
        staged.exchange = |_, _| Err(Errno::XDEV);
        staged.publish().unwrap();
        assert_eq!((names(dir.path()), names(&place)), (vec!["model".to_owned()], vec!["new".to_owned()]));
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Makes a folder that holds the file `old`.
    fn make_old(folder: &Path) {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("old"), "1").unwrap();
    }

    /// A folder that holds the file `new`, to be put in `place`, on a file system that does not know the exchange of folders.
    fn staged(place: &Path) -> Local {
        let mut staged = Local::begin(place.to_owned(), true).unwrap();
        staged.create("new").unwrap();
        staged.exchange = |_, _| Err(Errno::INVAL);
        staged
    }

    /// A bug: the fault was `Directory not empty`, as one that may pass.
    #[test]
    fn a_folder_that_another_program_has_made_meanwhile_stays_and_the_fault_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("scores");
        let staged = Local::begin(place.clone(), false).unwrap();
        staged.create("new").unwrap();
        make_old(&place);
        let fault = staged.publish().unwrap_err();
        assert!(fault.domain == Domain::User && fault.to_string().contains("another program has made `"), "{fault}");
        assert_eq!((names(dir.path()), names(&place)), (vec!["scores".to_owned()], vec!["old".to_owned()]));
    }

    /// A bug: every second training to the same folder failed on NFS.
    #[test]
    fn where_folders_are_not_exchanged_two_renames_replace_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        for errno in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP] {
            make_old(&place);
            let mut staged = staged(&place);
            staged.exchange = match errno {
                Errno::INVAL => |_, _| Err(Errno::INVAL),
                Errno::NOSYS => |_, _| Err(Errno::NOSYS),
                _ => |_, _| Err(Errno::OPNOTSUPP),
            };
            staged.publish().unwrap();
            assert_eq!(names(dir.path()), ["model"], "{errno}");
            assert_eq!(names(&place), ["new"], "{errno}");
            fs::remove_dir_all(&place).unwrap();
        }
    }

    #[test]
    fn a_fault_of_the_disk_is_none_of_a_missing_exchange() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        make_old(&place);
        let mut staged = staged(&place);
        staged.exchange = |_, _| Err(Errno::IO);
        let fault = staged.publish().unwrap_err();
        assert!(fault.domain == Domain::External && fault.to_string().contains("cannot finish"), "{fault}");
        assert_eq!(names(dir.path()), ["model"]);
        assert_eq!(names(&place), ["old"]);
    }

    #[test]
    fn an_old_folder_is_put_back_if_the_new_one_cannot_take_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("model");
        make_old(&place);
        let mut staged = staged(&place);
        // The second rename finds nothing to rename.
        staged.exchange = |staged, _| {
            fs::remove_dir_all(staged).unwrap();
            Err(Errno::INVAL)
        };
        let said = staged.publish().unwrap_err().to_string();
        assert!(said.contains("cannot finish") && said.contains("model"), "{said}");
        assert_eq!(names(dir.path()), ["model"]);
        assert_eq!(names(&place), ["old"]);
    }

    /// A bug: a path with a space was two words of the command.
    #[test]
    fn the_command_that_puts_a_folder_back_works_for_every_path() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["model", "my model", "it's $HOME; exit 3"] {
            let (place, old) = (dir.path().join(name), format!(".{name}.replaced-7-18ebb46b072e7df2"));
            make_old(&dir.path().join(&old));
            let (at, command) = replaced(&place).unwrap();
            assert_eq!(Path::new(&at), dir.path().join(&old));
            let moved = Command::new("sh").args(["-c", &command]).status().unwrap();
            assert!(moved.success() && place.join("old").exists(), "{command}");
        }
    }

    /// What a process leaves that is killed between the two renames.
    #[test]
    fn a_folder_that_was_being_replaced_is_named_to_readers_and_put_back_by_the_next_writer() {
        let dir = tempfile::tempdir().unwrap();
        // By a link, too: the hidden folders are beside what it leads to.
        let (place, link) = (dir.path().join("model"), dir.path().join("link"));
        std::os::unix::fs::symlink("model", &link).unwrap();
        let old = |number: u32| dir.path().join(format!(".model.replaced-{number}-18ebb46b072e7df2"));
        for named in [&place, &link] {
            make_old(&old(1));
            let (at, command) = replaced(named).unwrap();
            assert!(Path::new(&at) == old(1) && command.starts_with(&format!("mv -T {at} ")), "{at} {command}");
            let moved = Command::new("sh").args(["-c", &command]).status().unwrap();
            assert!(moved.success() && place.join("old").exists() && replaced(named).is_none(), "{command}");
            fs::rename(&place, old(1)).unwrap();
            put_back(named).unwrap();
            assert!(place.join("old").exists() && !old(1).exists());
            // Beside a folder that stands there, it goes; what has another name stays.
            let mine = dir.path().join(".model.replaced-by-me");
            make_old(&old(1));
            make_old(&mine);
            put_back(named).unwrap();
            assert!(place.join("old").exists() && !old(1).exists() && mine.exists());
            fs::remove_dir_all(&place).unwrap();
            fs::remove_dir_all(&mine).unwrap();
        }
        // Which of two is the newer one, nothing says.
        make_old(&old(1));
        make_old(&old(2));
        put_back(&place).unwrap();
        assert!(old(1).exists() && old(2).exists() && !place.exists() && replaced(&place).is_none());
        // A file in its place is no folder to be replaced, and no reason to remove one.
        fs::write(&place, "mine").unwrap();
        put_back(&place).unwrap();
        assert!(old(1).exists() && old(2).exists() && place.is_file());
    }

    /// A bug: it was reported as failed, and the output was written again elsewhere. A folder of another user cannot be removed either.
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
