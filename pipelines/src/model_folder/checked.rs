//! Files with checksums, computed while a file is written and verified before it is read. The hash (XXH3, 128 bits) detects
//! damage, but not a deliberate change. All functions block on the store.

use std::io::{self, Read, Write};
use std::path::{Component, Path};

use forebay_actors::{Fault, FaultKind};
use forebay_connectors::staged::{FileWriter, OpenFolder, StagedFolder, fault};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

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
    /// Keys without a row in the file, if it is a file of such keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<u64>,
    /// The group of a table whose rows the file has, if it is not the first group. The rows have the width of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<str>>,
    /// The cells of the keys in the file, if it is part of a checkpoint: from the first number to before the second, out of
    /// [`forebay_ps::CELLS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<(u32, u32)>,
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
        let bytes = self.file.finish()?;
        Ok(FileEntry { path: path.to_owned(), bytes, xxh3, rows, absent: None, group: None, cells: None })
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

/// Reads a file and hashes it.
pub(crate) struct CheckedReader<'a> {
    file: Box<dyn Read + Send>,
    name: String,
    entry: &'a FileEntry,
    hash: Xxh3,
    bytes: u64,
}

impl<'a> CheckedReader<'a> {
    /// Opens the file of an entry.
    ///
    /// # Errors
    /// A user fault if the entry names a file outside the folder, of the kind [`FaultKind::Damaged`] if the file is missing; an external
    /// one if it cannot be opened.
    pub(crate) fn open(folder: &OpenFolder, entry: &'a FileEntry) -> Result<Self, Fault> {
        if Path::new(&entry.path).components().any(|c| !matches!(c, Component::Normal(_))) {
            return Err(Fault::user(format!("the manifest names {:?}, which is not inside the folder", entry.path)));
        }
        let (file, name) = (folder.reader(&entry.path).map_err(missing_is_damage)?, folder.name(&entry.path));
        Ok(Self { file, name, entry, hash: Xxh3::new(), bytes: 0 })
    }

    /// The name of the file in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the file to its end, and compares its length and its checksum with the entry. If this succeeds, the bytes that were read are
    /// right.
    ///
    /// # Errors
    /// A user fault of the kind [`FaultKind::Damaged`] that names the file; an external one if it cannot be read.
    pub(crate) fn finish(mut self) -> Result<(), Fault> {
        let mut piece = vec![0; PIECE];
        while self.read(&mut piece).map_err(|e| fault(&self.name, "cannot read", e))? > 0 {}
        let expected = self.entry;
        let damaged = |what: String| {
            let message = format!("{} is damaged: {what}; copy the folder again or train again", self.name);
            Err(Fault::user(message).kind(FaultKind::Damaged))
        };
        if self.bytes != expected.bytes {
            return damaged(format!("{} bytes, expected {}", self.bytes, expected.bytes));
        }
        let found = format!("{:032x}", self.hash.digest128());
        if found != expected.xxh3 {
            return damaged(format!("its checksum is {found}, expected {}", expected.xxh3));
        }
        Ok(())
    }
}

impl Read for CheckedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer).map_err(missing_file)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}

/// The fault of a file that a manifest names, or of a manifest that was there: if it is missing, that is damage.
pub(crate) fn missing_is_damage(fault: Fault) -> Fault {
    match fault.kind {
        FaultKind::NotFound => fault.kind(FaultKind::Damaged),
        _ => fault,
    }
}

/// The same for the error of a store's reader, which opens the file only when it is read.
fn missing_file(error: io::Error) -> io::Error {
    match error.downcast::<Fault>() {
        Ok(fault) => io::Error::other(missing_is_damage(fault)),
        Err(error) => error,
    }
}

/// Checks the length and the checksum of a file against its entry.
///
/// # Errors
/// As [`CheckedReader::finish`].
pub(crate) fn verify(folder: &OpenFolder, entry: &FileEntry) -> Result<(), Fault> {
    CheckedReader::open(folder, entry)?.finish()
}

/// The bytes of a file, after its length and its checksum were checked. No more memory is taken than the entry says.
///
/// # Errors
/// As [`CheckedReader::finish`].
pub(crate) fn bytes(folder: &OpenFolder, entry: &FileEntry) -> Result<Vec<u8>, Fault> {
    let (mut file, mut bytes) = (CheckedReader::open(folder, entry)?, Vec::new());
    let read = file.by_ref().take(entry.bytes).read_to_end(&mut bytes);
    read.map_err(|e| fault(&file.name, "cannot read", e))?;
    file.finish()?;
    Ok(bytes)
}

pub(crate) fn cannot_write(name: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    fault(name, "cannot write", error)
}
