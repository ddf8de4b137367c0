//! Files with checksums: hashed while they are written, verified before they are read.
//!
//! The checksum (XXH3, 128 bits) finds damage, not malice. Blocks on the disk.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use forebay_actors::Fault;
use forebay_connectors::aside::fault;
use xxhash_rust::xxh3::Xxh3;

use super::manifest::FileEntry;

/// Writes a file and hashes it.
pub(super) struct CheckedWriter {
    path: PathBuf,
    file: BufWriter<File>,
    hash: Xxh3,
    bytes: u64,
}

impl CheckedWriter {
    pub(super) fn create(path: &Path) -> Result<Self, Fault> {
        let create = || -> io::Result<File> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            File::create(path)
        };
        let file = create().map_err(|e| cannot_write(path, e))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::with_capacity(1 << 20, file), hash: Xxh3::new(), bytes: 0 })
    }

    /// Flushes to the disk and returns what the manifest says of the file.
    pub(super) fn finish(mut self, rows: Option<u64>) -> Result<FileEntry, Fault> {
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(|e| cannot_write(&self.path, e))?;
        Ok(FileEntry { path: String::new(), bytes: self.bytes, xxh3: format!("{:032x}", self.hash.digest128()), rows })
    }
}

impl Write for CheckedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Compares a file with what the manifest says of it.
pub(super) fn verify(folder: &Path, entry: &FileEntry) -> Result<(), Fault> {
    if Path::new(&entry.path).components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
        return Err(Fault::user(format!("the manifest names {:?}, which is not inside the model folder", entry.path)));
    }
    let path = folder.join(&entry.path);
    let damaged = |what: String| {
        Fault::user(format!("{} is damaged: {what}; copy the model folder anew or train again", path.display()))
    };
    let cannot_read = |e| Fault::user(format!("cannot read {}, a part of the model", path.display())).because(e);
    let mut file = File::open(&path).map_err(cannot_read)?;
    let (mut hash, mut bytes, mut buffer) = (Xxh3::new(), 0_u64, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(cannot_read)? {
            0 => break,
            n => {
                hash.update(&buffer[..n]);
                bytes += n as u64;
            }
        }
    }
    if bytes != entry.bytes {
        return Err(damaged(format!("{bytes} bytes, expected {}", entry.bytes)));
    }
    let found = format!("{:032x}", hash.digest128());
    if found != entry.xxh3 {
        return Err(damaged(format!("its checksum is {found}, expected {}", entry.xxh3)));
    }
    Ok(())
}

/// See [`fault`].
pub(super) fn cannot_write(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    fault(path, "cannot write", error)
}
