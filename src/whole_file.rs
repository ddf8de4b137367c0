//! Writes a file whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Writes the bytes to a hidden file, then renames it to `path`: if the disk is full, the old content stays. A link stays a link, and a
/// file keeps its mode. For a pipe or a device, writes the bytes directly. If the process is killed meanwhile, the next write to `path`
/// uses the hidden file.
///
/// # Errors
/// Returns the error of the file system.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = match fs::metadata(&place) {
        Ok(old) if old.file_type().is_fifo() => return write_to_pipe(&place, bytes),
        Ok(old) if !old.is_file() => return fs::write(&place, bytes),
        Ok(old) => Some(old.permissions()),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let (hidden, mut file) = match hidden_file(&place) {
        // The folder may be read-only while the file is writable.
        Err(e) if old.is_some() && e.kind() == ErrorKind::PermissionDenied => return fs::write(&place, bytes),
        found => found?,
    };
    let written = file.set_len(0).and_then(|()| file.write_all(bytes));
    let written = written.and_then(|()| old.map_or(Ok(()), |mode| file.set_permissions(mode)));
    written.and_then(|()| fs::rename(&hidden, &place)).inspect_err(|_| {
        // An error means that the next write uses the hidden file.
        let _ = fs::remove_file(&hidden);
    })
}

/// If so many hidden files of one name cannot be opened, a write fails.
const MOST_HIDDEN: usize = 16;

/// Opens the hidden file beside `place`, and locks it while this process writes. If another process writes there, opens another one.
fn hidden_file(place: &Path) -> io::Result<(PathBuf, File)> {
    // A name has at most 255 bytes.
    let name: String = place.file_name().unwrap_or_default().to_string_lossy().chars().take(60).collect();
    let mut number = 0;
    loop {
        let hidden = place.with_file_name(format!(".{name}.partial-{number}"));
        let mut options = OpenOptions::new();
        // A link that another user has left there is not followed.
        options.write(true).create(true).truncate(false).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = match options.open(&hidden) {
            // The file of another user, or one that a killed process had made read-only.
            Err(_) if number < MOST_HIDDEN && fs::symlink_metadata(&hidden).is_ok() => {
                number += 1;
                continue;
            }
            opened => opened?,
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => number += 1,
            // Before the lock, another process may have renamed the file.
            Ok(()) if fs::metadata(&hidden).ok().map(|there| there.ino()) != Some(file.metadata()?.ino()) => {}
            // Not all file systems have locks.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok((hidden, file)),
        }
    }
}

/// Writes to a named pipe, or fails at once if no process reads it: a blocking open would ignore signals of the user.
fn write_to_pipe(pipe: &Path, bytes: &[u8]) -> io::Result<()> {
    let no_wait = OFlags::NONBLOCK;
    let opened = OpenOptions::new().write(true).custom_flags(no_wait.bits().cast_signed()).open(pipe);
    let mut file = opened.map_err(|e| match e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
        true => io::Error::new(ErrorKind::BrokenPipe, "no process reads the pipe"),
        false => e,
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - no_wait)?;
    file.write_all(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// A bug: each process that was killed while it wrote a report left a file of another name.
    #[test]
    fn the_hidden_file_of_a_killed_process_is_gone_after_the_next_write() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let place = dir.path().join("report.json");
        // As after a kill: longer than what is written next.
        let (left, mut file) = hidden_file(&place).unwrap();
        file.write_all(b"{ half of a long report").unwrap();
        // While the process lives, another one does not write to its file.
        write(&place, b"{}").unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"{}");
        assert_eq!(names(), [left.file_name().unwrap(), place.file_name().unwrap()]);
        drop(file);
        write(&place, b"{ }").unwrap();
        assert_eq!((names(), fs::read(&place).unwrap()), (vec!["report.json".into()], b"{ }".to_vec()));
        // One that cannot be opened, such as that of another user, is left alone.
        fs::create_dir(&left).unwrap();
        write(&place, b"{}").unwrap();
        fs::remove_dir(&left).unwrap();
        assert_eq!((names(), fs::read(&place).unwrap()), (vec!["report.json".into()], b"{}".to_vec()));
        // The longest name that a file may have.
        write(&dir.path().join("\u{fc}".repeat(127)), b"{}").unwrap();
        assert_eq!(names().len(), 2);
    }

    /// A bug: users read the name of a file that they had not named.
    #[test]
    fn an_error_does_not_have_the_name_of_the_temporary_file() {
        // No file can be made there.
        let said = write(Path::new("/proc/report.json"), b"{}").unwrap_err().to_string();
        assert!(said.contains("No such file") && !said.contains("/proc"), "{said}");
    }
}
