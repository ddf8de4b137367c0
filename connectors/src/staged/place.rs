//! The place of a local folder that is written and then renamed: a rename must be able to give it this name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disks::TriedDisks;
use crate::fstab::is_mount_point;
use forebay_actors::Fault;

/// As many symbolic links as Linux follows.
const MOST_LINKS: usize = 40;

/// The place without symbolic links: a link stays, and its target is made or replaced.
///
/// # Errors
/// A user fault if a link leads back to itself, or if the place is a mount point, whose name a rename cannot give to another folder.
pub(super) fn real(place: &Path) -> Result<PathBuf, Fault> {
    let real = followed(place)?;
    match is_mount_point(&real) {
        Some(true) => Err(Fault::user(format!(
            "`{}` is a mount point, which no folder can replace: name a folder in it, for instance `{}`",
            place.display(),
            place.join("model").display()
        ))),
        _ => Ok(real),
    }
}

/// Follows links to missing targets, too.
pub(super) fn followed(place: &Path) -> Result<PathBuf, Fault> {
    let mut at = place.to_owned();
    for _ in 0..=MOST_LINKS {
        if let Ok(real) = fs::canonicalize(&at) {
            return Ok(real);
        }
        let Ok(target) = fs::read_link(&at) else { return Ok(at) };
        at = at.parent().map_or_else(|| target.clone(), |folder| folder.join(&target));
    }
    Err(Fault::user(format!("`{}` is a symbolic link that leads back to itself: name another folder", place.display())))
}

/// Remembers the disk of the folder above a place that was tried: see [`check_disk`].
pub(super) fn remember_disk(disks: &TriedDisks, place: &Path) {
    folders_above(place).iter().for_each(|folder| disks.remember(folder));
}

/// An earlier process has tried the place, on a disk that was mounted at `mount`: see [`TriedDisks::expect`].
pub(super) fn expect_disk(disks: &TriedDisks, place: &Path, mount: &Path) {
    folders_above(place).iter().for_each(|folder| disks.expect(folder, mount));
}

/// The mount point of the disk of a place that was tried. `None`: the disk of `/`.
pub(super) fn mount_of(disks: &TriedDisks, place: &Path) -> Option<PathBuf> {
    folders_above(place).iter().rev().find_map(|folder| disks.mount_of(folder))
}

/// The folder above a place, and the one above the target of a link there.
fn folders_above(place: &Path) -> Vec<PathBuf> {
    let places = [Some(place.to_owned()), followed(place).ok()];
    places.into_iter().flatten().map(|place| place.parent().unwrap_or(&place).to_owned()).collect()
}

/// # Errors
/// An external fault if the disk of a place that was tried has been unmounted since.
pub(super) fn check_disk(disks: &TriedDisks, place: &Path) -> Result<(), Fault> {
    disks.check(place)?;
    followed(place).map_or(Ok(()), |place| disks.check(&place))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_to_what_is_not_there_is_followed_and_one_to_itself_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir(at("there")).unwrap();
        for (link, target) in [("a", "there"), ("b", "later/model"), ("c", "b"), ("d", "e"), ("e", "d")] {
            symlink(target, at(link)).unwrap();
        }
        for (place, expected) in
            [("there", "there"), ("new", "new"), ("a", "there"), ("b", "later/model"), ("c", "later/model")]
        {
            assert_eq!(real(&at(place)).unwrap(), at(expected), "{place}");
        }
        assert!(real(&at("d")).unwrap_err().to_string().contains("leads back to itself"));
    }

    #[test]
    fn a_mount_point_is_refused() {
        let said = real(Path::new("/proc")).unwrap_err().to_string();
        assert!(said.contains("`/proc` is a mount point") && said.contains("`/proc/model`"), "{said}");
    }
}
