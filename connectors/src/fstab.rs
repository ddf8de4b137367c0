//! The disks that the system is to mount, as `/etc/fstab` says. One that is not mounted leaves an empty folder in its place, which looks
//! like a folder that nothing was written to yet.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use crate::disks::real_path;

/// The mount point of the disk that a folder, which may be missing, lies on by `/etc/fstab`, if that disk is not mounted now.
pub(crate) fn not_mounted(folder: &Path) -> Option<PathBuf> {
    // If the system does not say, the disk counts as mounted.
    not_mounted_of(&fs::read(FSTAB).ok()?, folder, |place| is_mount_point(place) != Some(false))
}

const FSTAB: &str = "/etc/fstab";

fn not_mounted_of(fstab: &[u8], folder: &Path, is_mounted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let real = real_path(folder)?;
    let points = fstab.split(|byte| *byte == b'\n').filter_map(mount_point);
    // The disk that would be mounted last lies on top.
    let innermost = points.filter(|point| real.starts_with(point)).max_by_key(|point| point.as_os_str().len())?;
    (!is_mounted(&innermost)).then_some(innermost)
}

/// The mount point of a line. `None`: a comment, swap, the root, or a disk that is mounted only when a user asks for it.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    fields.next().filter(|device| !device.starts_with(b"#"))?;
    let (point, _, options) = (fields.next()?, fields.next()?, fields.next().unwrap_or_default());
    let is_asked_for = options.split(|byte| *byte == b',').any(|option| option == b"noauto");
    let point = PathBuf::from(std::ffi::OsString::from_vec(unescaped(point)));
    (!is_asked_for && point.is_absolute() && point.parent().is_some()).then_some(point)
}

/// `\040` stands for a space, and so on.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                text.push(escaped);
                rest = &after[3..];
            }
            None => {
                text.push(byte);
                rest = after;
            }
        }
    }
    text
}

/// Whether a disk is mounted at a place; the dot makes the system mount one that it mounts on demand. `None`: the system does not say, for
/// instance before Linux 5.8.
pub(crate) fn is_mount_point(place: &Path) -> Option<bool> {
    match statx(CWD, place.join("."), AtFlags::empty(), StatxFlags::BASIC_STATS) {
        Ok(there) if there.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Some(there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(Errno::NOENT) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_below_a_disk_that_is_not_mounted_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let place = |name: &str| root.join(name);
        fs::create_dir_all(place("with space")).unwrap();
        symlink(place("with space"), place("link")).unwrap();
        let at = root.display();
        let fstab = format!(
            "# comment {at}/runs\n\nUUID=1 / ext4 defaults 0 1\n/dev/b none swap sw 0 0\nserver:/a {at}/runs nfs rw,hard 0 0\n\
             /dev/c\t{at}/with\\040space ext4 defaults\n/dev/d {at}/asked ext4 rw,noauto 0 0\n/dev/e {at}/runs/deep ext4\n"
        );
        let found = |folder: &str, mounted: &[&str]| {
            let is_mounted = |point: &Path| mounted.iter().any(|name| place(name) == point);
            not_mounted_of(fstab.as_bytes(), &place(folder), is_mounted)
        };
        assert_eq!(found("runs/day-1/checkpoints", &[]), Some(place("runs")));
        assert_eq!(found("runs", &[]), Some(place("runs")));
        assert_eq!(found("runs/day-1", &["runs"]), None);
        assert_eq!(found("runs/deep/checkpoints", &["runs"]), Some(place("runs/deep")));
        assert_eq!(found("link/checkpoints", &[]), Some(place("with space")));
        assert_eq!(found("with space/checkpoints", &["with space"]), None);
        for other in ["asked/checkpoints", "elsewhere", "runs-2/checkpoints"] {
            assert_eq!(found(other, &[]), None, "{other}");
        }
        assert_eq!(
            [Path::new("/proc"), &root, &place("missing")].map(is_mount_point),
            [Some(true), Some(false), Some(false)]
        );
    }
}
