//! Files with checksums, computed while a file is written and verified before it is read. The hash (XXH3, 128 bits) detects
//! damage, but not a deliberate change. All functions block on the store.

use std::io::{self, Write};
use std::path::{Component, Path};

use forebay_actors::Fault;
use forebay_connectors::staged::{FileWriter, OpenFolder, StagedFolder, fault};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// The manifest's entry of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path within the folder.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Checksum: XXH3, 128 bits, in hex.
    pub xxh3: String,
    /// Table rows in the file, if it is a table file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Keys without a row in the file, if it is of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<u64>,
    /// The group of a table whose rows the file has, if it is not the first one. They are as wide as those of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<str>>,
}

/// Writes a file and hashes it.
pub(crate) struct CheckedWriter {
    file: FileWriter,
    hash: Xxh3,
}

impl CheckedWriter {
    pub(crate) fn create(staged: &StagedFolder, name: &str) -> Result<Self, Fault> {
        Ok(Self::new(staged.create(name)?))
    }

    pub(crate) fn new(file: FileWriter) -> Self {
        Self { file, hash: Xxh3::new() }
    }

    /// The name of the file in messages.
    pub(crate) fn name(&self) -> &str {
        self.file.name()
    }

    /// Waits until the store has the whole file, and returns its entry for the manifest.
    pub(crate) fn finish(self, path: &str, rows: Option<u64>) -> Result<FileEntry, Fault> {
        let xxh3 = format!("{:032x}", self.hash.digest128());
        Ok(FileEntry { path: path.to_owned(), bytes: self.file.finish()?, xxh3, rows, absent: None, group: None })
    }
}

impl Write for CheckedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Checks the length and the checksum of a file against its entry.
pub(crate) fn verify(folder: &OpenFolder, entry: &FileEntry) -> Result<(), Fault> {
    if Path::new(&entry.path).components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(Fault::user(format!("the manifest names {:?}, which is not inside the folder", entry.path)));
    }
    let (hash, bytes) = folder.fold(&entry.path, (Xxh3::new(), 0), |(hash, bytes), piece| {
        hash.update(piece);
        *bytes += piece.len() as u64;
    })?;
    let damaged = |what: String| {
        let name = folder.name(&entry.path);
        Fault::user(format!("{name} is damaged: {what}; copy the folder anew or train again"))
    };
    if bytes != entry.bytes {
        return Err(damaged(format!("{bytes} bytes, expected {}", entry.bytes)));
    }
    let found = format!("{:032x}", hash.digest128());
    if found != entry.xxh3 {
        return Err(damaged(format!("its checksum is {found}, expected {}", entry.xxh3)));
    }
    Ok(())
}

pub(crate) fn cannot_write(name: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    fault(name, "cannot write", error)
}
