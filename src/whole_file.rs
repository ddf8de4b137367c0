//! Writes a file whole or not at all.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Writes the bytes to a temporary file, then renames it to `path`: if the disk is full, the old content stays. A link stays a link, and a
/// file keeps its mode. For a pipe or a device, writes the bytes directly.
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
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The umask still applies.
    let mut file = match tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder) {
        // The folder may be read-only while the file is writable.
        Err(e) if old.is_some() && e.kind() == ErrorKind::PermissionDenied => return fs::write(&place, bytes),
        file => file.map_err(without_path)?,
    };
    // Not `file.write_all`: its errors have the name of the temporary file.
    file.as_file_mut().write_all(bytes)?;
    if let Some(mode) = old {
        file.as_file().set_permissions(mode)?;
    }
    file.persist(&place).map(drop).map_err(|e| e.error)
}

/// An error of `tempfile` without the name of its file, which the user did not choose.
fn without_path(e: io::Error) -> io::Error {
    match e.to_string().split_once(" at path ") {
        Some((why, _)) => io::Error::new(e.kind(), why),
        None => e,
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

    /// A bug: users read the name of a file that they had not named.
    #[test]
    fn an_error_does_not_have_the_name_of_the_temporary_file() {
        // No file can be made there.
        let said = write(Path::new("/proc/report.json"), b"{}").unwrap_err().to_string();
        assert!(said.contains("No such file") && !said.contains("/proc"), "{said}");
    }
}
