//! The disks that outputs were tried on. A disk that is unmounted during a run leaves its mount point, an empty folder of the disk beneath.
//! A writer would make the folders of the output anew there, and the output would be on the wrong disk without an error.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_actors::Fault;

/// The folders that were tried. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TriedDisks(Arc<Mutex<HashMap<PathBuf, Tried>>>);

/// A folder that was tried.
#[derive(Debug)]
struct Tried {
    /// Its path without symbolic links, or that of the nearest folder above it that existed.
    real: PathBuf,
    /// The mount point of its disk.
    mount: PathBuf,
    /// The device that the mount point is on.
    beneath: u64,
}

impl TriedDisks {
    /// Remembers the disk of a folder, or of the nearest existing one above it. The disk of `/` cannot be unmounted.
    pub(crate) fn remember(&self, folder: &Path) {
        if let Some(tried) = Tried::of(folder, device) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), tried);
        }
    }

    /// Remembers the disk that a folder, which may be missing, is or will be on, unless it is remembered already.
    pub(crate) fn remember_first(&self, folder: &Path) {
        let is_new = !self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(folder);
        if is_new {
            self.remember(folder);
        }
    }

    /// The mount point of the disk that a place in a folder that was tried is on. `None`: the disk of `/`, or it is not known.
    pub(crate) fn mount_of(&self, place: &Path) -> Option<PathBuf> {
        let tried = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let around = tried.iter().filter(|(folder, _)| place.starts_with(folder));
        around.max_by_key(|(folder, _)| folder.as_os_str().len()).map(|(_, tried)| tried.mount.clone())
    }

    /// An earlier process has tried a folder on a disk that was mounted at `mount`. If nothing is mounted there now, the folder counts as
    /// one whose disk has been unmounted. It does not if the mount point holds something: then it is no mount point on this machine. What
    /// was remembered before stays.
    pub(crate) fn expect(&self, folder: &Path, mount: &Path) {
        let is_empty = fs::read_dir(mount).map_or(true, |mut entries| entries.next().is_none());
        if let (true, Some(away)) = (is_empty, Tried::away(folder, mount, device)) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(folder.to_owned()).or_insert(away);
        }
    }

    /// # Errors
    /// An external fault if `place` is in a folder that was tried, and its disk has been unmounted since.
    pub(crate) fn check(&self, place: &Path) -> Result<(), Fault> {
        let tried = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match tried.iter().find(|(folder, tried)| place.starts_with(folder) && tried.is_gone(folder, device)) {
            None => Ok(()),
            Some((folder, _)) => Err(Fault::external(format!(
                "cannot reach `{}`: the disk that `{}` was on at the start is not mounted any more: mount it again",
                place.display(),
                folder.display()
            ))),
        }
    }

    /// As if the disk of an existing folder had been unmounted since it was tried.
    #[cfg(test)]
    pub(crate) fn unmounted(&self, folder: &Path) {
        let real = fs::canonicalize(folder).expect("it is there");
        let beneath = device(folder).expect("it is there");
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(folder.to_owned(), Tried { mount: real.clone(), real, beneath });
    }
}

impl Tried {
    fn of(folder: &Path, device: impl Fn(&Path) -> Option<u64>) -> Option<Self> {
        let real = folder.ancestors().find_map(|at| fs::canonicalize(at).ok())?;
        let own = device(&real)?;
        let mount = real.ancestors().take_while(|at| device(at) == Some(own)).last()?.to_owned();
        let beneath = device(mount.parent()?)?;
        Some(Self { real, mount, beneath })
    }

    /// A folder on the disk of this mount point. `None`: a disk is mounted there, or the folder does not lie there.
    fn away(folder: &Path, mount: &Path, device: impl Fn(&Path) -> Option<u64>) -> Option<Self> {
        let real = real_path(folder)?;
        let beneath = mount.parent()?.ancestors().find_map(&device)?;
        let lies_there = real.starts_with(mount);
        let away = Self { real, mount: mount.to_owned(), beneath };
        (lies_there && away.is_gone(folder, device)).then_some(away)
    }

    /// Whether the folder, or the nearest existing one above it, is on the disk beneath. A check of the old device would not do: a disk
    /// that is mounted again may be another device, and a link in the folder's place may lead to any disk.
    fn is_gone(&self, folder: &Path, device: impl Fn(&Path) -> Option<u64>) -> bool {
        let there = folder.ancestors().find_map(|at| Some((device(at)?, fs::canonicalize(at).ok()?)));
        there.is_some_and(|(device, real)| device == self.beneath && self.real.starts_with(real))
    }
}

/// Where a path leads without symbolic links. A path that does not exist yet has no links, so the links of the folders above it count.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    let (above, real) = path.ancestors().find_map(|at| Some((at, fs::canonicalize(at).ok()?)))?;
    Some(real.join(path.strip_prefix(above).ok()?))
}

/// The device that a folder is on. The dot makes the system mount a disk that it mounts on demand.
fn device(folder: &Path) -> Option<u64> {
    fs::metadata(folder.join(".")).ok().map(|there| there.dev())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_disk_that_is_gone_is_told_from_a_folder_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (point, folder, other) = (root.join("disk"), root.join("disk/models"), root.join("other"));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir(&other).unwrap();
        let mounted = |at: &Path| at.exists().then(|| if at.starts_with(&point) { 2 } else { 1 });
        let again = |at: &Path| at.exists().then(|| if at.starts_with(&point) { 3 } else { 1 });
        let unmounted = |at: &Path| at.exists().then_some(1);
        let tried = Tried::of(&folder, mounted).unwrap();
        assert_eq!((&tried.real, &tried.mount, tried.beneath), (&folder, &point, 1));
        let check = || {
            assert!(!tried.is_gone(&folder, mounted) && !tried.is_gone(&folder, again));
            assert!(tried.is_gone(&folder, unmounted));
        };
        check();
        fs::remove_dir(&folder).unwrap();
        check();
        // The user has made the folder a link to a folder on another disk.
        symlink(&other, &folder).unwrap();
        assert!(!tried.is_gone(&folder, unmounted));
        assert!(Tried::of(&other, mounted).is_none(), "it is on the disk of `/`");
        // A folder that was not there yet when it was tried.
        let later = point.join("checkpoints/of/a run");
        let tried = Tried::of(&later, mounted).unwrap();
        assert!(!tried.is_gone(&later, mounted) && tried.is_gone(&later, unmounted));
    }

    #[test]
    fn a_folder_of_an_earlier_process_is_on_no_other_disk_than_then() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (point, link) = (root.join("disk"), root.join("link"));
        symlink(&point, &link).unwrap();
        let mounted = |at: &Path| Some(if fs::canonicalize(at).ok()?.starts_with(&point) { 2 } else { 1 });
        let unmounted = |at: &Path| at.exists().then_some(1);
        let is_away =
            |folder: &Path, device: &dyn Fn(&Path) -> Option<u64>| Tried::away(folder, &point, device).is_some();
        let models = point.join("models");
        // The mount point itself is missing.
        assert!(is_away(&models, &unmounted) && !is_away(&root.join("elsewhere/models"), &unmounted));
        fs::create_dir(&point).unwrap();
        for folder in [&models, &point, &link, &link.join("models")] {
            assert!(is_away(folder, &unmounted) && !is_away(folder, &mounted), "{}", folder.display());
        }
        let expected = |folder: &Path| {
            let disks = TriedDisks::default();
            disks.expect(folder, &point);
            disks
        };
        let disks = expected(&models);
        let fault = disks.check(&models.join("ctr")).unwrap_err();
        assert!(fault.to_string().contains("is not mounted any more"), "{fault}");
        assert_eq!(disks.mount_of(&models.join("ctr")), Some(point.clone()));
        disks.check(&root.join("other")).unwrap();
        fs::create_dir(&models).unwrap();
        assert!(expected(&models).check(&models.join("ctr")).is_ok(), "it is a folder like others on this machine");
        expected(Path::new("/proc")).check(Path::new("/proc/models")).unwrap();
    }

    #[test]
    fn only_places_in_a_folder_that_was_tried_are_checked() {
        let disks = TriedDisks::default();
        // A file system that is mounted on every machine.
        disks.unmounted(Path::new("/proc"));
        let fault = disks.clone().check(Path::new("/proc/models/ctr")).unwrap_err();
        assert!(fault.domain == forebay_actors::Domain::External, "{fault}");
        assert!(fault.to_string().contains("the disk that `/proc` was on at the start is not mounted"), "{fault}");
        disks.check(Path::new("/process/models")).unwrap();
        disks.remember(Path::new("/proc"));
        disks.check(Path::new("/proc/models/ctr")).unwrap();
    }
}
