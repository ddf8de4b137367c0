//! Flushes a local folder to the disk, so that the names in it are there after a crash. Old CIFS and some FUSE do not know that for
//! folders.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::Errno;

use super::rename_flags::is_unknown;

/// Whether the log says that a file system cannot flush folders.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// Flushes the names in a folder to the disk, if the file system can.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    let synced = unless_unknown(File::open(folder)?.sync_all())?;
    if !synced && !LOGGED.swap(true, Relaxed) {
        tracing::debug!(path = %folder.display(), "the file system cannot flush folders: a crash may undo a rename");
    }
    Ok(())
}

/// Whether a folder was flushed; false if its file system does not know how. All other errors stay errors.
fn unless_unknown(synced: io::Result<()>) -> io::Result<bool> {
    match synced {
        Err(e) if Errno::from_io_error(&e).is_some_and(is_unknown) => Ok(false),
        synced => synced.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: nothing could be saved on such a file system.
    #[test]
    fn a_file_system_that_cannot_flush_folders_is_no_fault_and_a_disk_that_fails_is_one() {
        let of = |errno: Errno| unless_unknown(Err(errno.into()));
        for errno in [Errno::INVAL, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS] {
            assert!(!of(errno).unwrap(), "{errno}");
        }
        for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::BADF, Errno::STALE] {
            assert_eq!(of(errno).unwrap_err().raw_os_error(), Some(errno.raw_os_error()), "{errno}");
        }
        // Not of the system, but of the standard library.
        assert!(unless_unknown(Err(io::ErrorKind::InvalidInput.into())).is_err());
        assert!(unless_unknown(Ok(())).unwrap());
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        sync_folder(dir.path()).unwrap();
        assert_eq!(sync_folder(&dir.path().join("gone")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
