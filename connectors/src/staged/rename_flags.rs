//! Renames in ways that not every file system knows: NFS, CIFS, 9p, CephFS and many FUSE do not, nor do old kernels.

use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::{Errno, Result};

/// Such a rename, of the first path to the second. Tests replace it by one that no file system knows.
pub(super) type FlaggedRename = fn(&Path, &Path) -> Result<()>;

/// Gives each of two folders the name of the other in one step.
pub(super) fn exchange(one: &Path, other: &Path) -> Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// Gives a file a name that is free, in one step. [`Errno::EXIST`]: it is taken.
pub(super) fn no_replace(from: &Path, to: &Path) -> Result<()> {
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// Whether the file system or the kernel does not know such a rename: then it has done nothing.
pub(super) fn is_unknown(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].contains(&error)
}
