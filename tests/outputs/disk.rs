//! A disk of some MiB that a test can fill.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// A file system of its own in memory, which can be full.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    /// `None`: mounting is not allowed here.
    pub(crate) fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(&at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(at));
        }
        eprintln!("skipped: this test needs root, and the right to mount");
        None
    }

    /// All files below a folder, with their bytes.
    pub(crate) fn contents(&self, folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.0.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => files.push((entry.clone(), fs::read(&entry).unwrap())),
                }
            }
        }
        files.sort();
        files
    }

    /// Takes all space but so many bytes.
    pub(crate) fn fill_but(&self, left: u64) {
        let filler = self.0.join("filler");
        let free = rustix::fs::statvfs(&self.0).unwrap();
        fs::write(filler, vec![7; (free.f_bavail * free.f_frsize).saturating_sub(left) as usize]).unwrap();
    }

    /// Takes all space, also what has become free since the disk was filled.
    pub(crate) fn fill_up(&self) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.0.join("filler")).unwrap();
        while filler.write(&[7; 4096]).is_ok_and(|written| written > 0) {}
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success() || std::thread::panicking());
    }
}
