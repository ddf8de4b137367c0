//! A file in memory for the processes that this one starts. It is gone when all processes have ended, in any way.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

/// A file in memory, which is on no disk.
pub(super) struct MemoryFile(File);

impl MemoryFile {
    /// `name`: what /proc/PID/fd calls the file.
    pub(super) fn new(name: &str, bytes: &[u8]) -> io::Result<Self> {
        // Without CLOEXEC, so that child processes inherit it, also those that are restarted later.
        let file = memfd_create(name, MemfdFlags::empty())?;
        // Closed to other users before anything is in it.
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        Ok(Self(file))
    }

    /// The path of the file, for this process and its children.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
