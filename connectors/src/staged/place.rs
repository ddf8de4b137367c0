//! The place of a local folder that is written and then renamed: a rename must be able to give it this name.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::disks::TriedDisks;

/// As many symbolic links as Linux follows.
const MOST_LINKS: usize = 40;

/// The place without symbolic links: a link stays, and its target is made or replaced.
///
/// # Errors
/// A user fault if a link leads back to itself, or if the place is a mount point, whose name a rename cannot give to another folder.
pub(super) fn real(place: &Path) -> Result<PathBuf, Fault> {
    let real = followed(place)?;
    match is_mount_point(&real) {
        true => Err(Fault::user(format!(
            "`{}` is a mount point, which no folder can replace: name a folder in it, for instance `{}`",
            place.display(),
            place.join("model").display()
        ))),
        false => Ok(real),
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
    for place in [Some(place.to_owned()), followed(place).ok()].into_iter().flatten() {
        disks.remember(place.parent().unwrap_or(&place));
    }
}

/// # Errors
/// An external fault if the disk of a place that was tried has been unmounted since.
pub(super) fn check_disk(disks: &TriedDisks, place: &Path) -> Result<(), Fault> {
    disks.check(place)?;
    followed(place).map_or(Ok(()), |place| disks.check(&place))
}

fn is_mount_point(place: &Path) -> bool {
    let there = statx(CWD, place, AtFlags::empty(), StatxFlags::BASIC_STATS);
    there.is_ok_and(|there| there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
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
