//! A folder that is written aside and then takes its place, whole or not at all, in any store.
//!
//! | store | while it is written | how it takes its place |
//! |---|---|---|
//! | local | a hidden folder beside it | on the disk first, then one rename; a folder to be replaced is exchanged |
//! | HDFS | a hidden folder beside it | one rename; two, to replace a folder (see `renamed.rs`) |
//! | S3, memory | uploads that are not complete | all uploads are completed, the one that makes it valid last (see `flat.rs`) |
//!
//! Comes in: the [`Folder`] it shall be. Goes out: files, given up on any fault. Blocks on the disk, or on a task that speaks
//! with the store: for threads of their own, not for an arbiter.

mod flat;
mod folder;
mod local;
mod renamed;
mod writer;

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

use forebay_actors::Fault;
use parquet::errors::ParquetError;

use self::flat::Flat;
use self::folder::Home;
pub use self::folder::{Folder, OpenFolder};
use self::local::Local;
use self::renamed::Renamed;
pub use self::writer::FileWriter;

/// Name of the empty file that says, in a store, that a folder of rows is whole; readers pass it over.
const SUCCESS: &str = "_SUCCESS";

/// The folder aside; dropping it before [`StagedFolder::publish`] removes it.
pub struct StagedFolder {
    folder: OpenFolder,
    kind: Kind,
}

enum Kind {
    Local(Local),
    Renamed(Renamed),
    Flat(Flat),
}

impl StagedFolder {
    /// Prepares an empty folder that will be `folder`, parents included.
    ///
    /// # Errors
    /// A user fault if `folder` is a file, or holds something and is not to be replaced.
    pub fn begin(folder: &Folder, replace: bool) -> Result<Self, Fault> {
        let folder = folder.open()?;
        if folder.is_file()? {
            return Err(Fault::user(format!("`{folder}` is a file: name a folder to write to")));
        }
        if !replace && folder.holds_anything()? {
            return Err(Fault::user(format!(
                "`{folder}` holds files already: name another folder, or ask to replace it"
            )));
        }
        let kind = match folder.0.clone() {
            Home::Local(path) => Kind::Local(Local::begin(path, replace)?),
            Home::Store(place) if place.renames => Kind::Renamed(Renamed::begin(place, replace)?),
            Home::Store(place) => Kind::Flat(Flat::begin(place, replace)),
        };
        Ok(Self { folder, kind })
    }

    /// Makes a file; its name may hold slashes.
    pub fn create(&self, file: &str) -> Result<FileWriter, Fault> {
        let name = self.folder.name(file);
        let (at, shelf) = match &self.kind {
            Kind::Local(local) => return Ok(FileWriter::local(name, local.create(file)?)),
            Kind::Renamed(renamed) => (renamed.staged(), None),
            Kind::Flat(flat) => (&flat.place, Some(Arc::clone(&flat.shelf))),
        };
        Ok(FileWriter::store(name, Arc::clone(&at.store), at.file(file)?, shelf))
    }

    /// Marks a folder of rows as whole, as Spark does, in a store; a local folder needs no mark. To be called last.
    pub fn mark(&self) -> Result<(), Fault> {
        if let Kind::Local(_) = self.kind {
            return Ok(());
        }
        self.create(SUCCESS)?.finish().map(drop)
    }

    /// Gives the folder its name. In a store without renames the file that was made last becomes visible last.
    pub fn publish(self) -> Result<(), Fault> {
        match self.kind {
            Kind::Local(local) => local.publish(),
            Kind::Renamed(renamed) => renamed.publish(),
            Kind::Flat(flat) => flat.publish(),
        }
    }

    /// Makes local files otherwise.
    #[cfg(test)]
    pub(crate) fn with_create(mut self, create: local::Create) -> Self {
        if let Kind::Local(local) = &mut self.kind {
            local.create = create;
        }
        self
    }
}

fn made_meanwhile(name: &str) -> Fault {
    Fault::user(format!("`{name}` was made by somebody else in the meantime: name another folder"))
}

/// What went wrong with a file, in a user's words where it is the disk. A fault of a store that a writer wrapped comes out
/// as it was.
pub fn fault(name: impl Display, what: &str, error: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
    let error = match inner(error.into()) {
        Ok(fault) => return fault,
        Err(error) => error,
    };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
    let mut kind = None;
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            kind = Some(io.kind());
        }
        cause = e.source();
    }
    let text = format!("{what} `{name}`");
    match kind {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Fault::external(format!(
            "{text}: the disk is full; nothing was left behind, make room or name a folder on another disk ({error})"
        )),
        Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound) => {
            Fault::user(format!("{text}: {error}"))
        }
        _ => Fault::external(format!("{text}: {error}")),
    }
}

/// The fault that lies in an error of the Parquet writer, or of what it writes to.
fn inner(error: Box<dyn Error + Send + Sync>) -> Result<Fault, Box<dyn Error + Send + Sync>> {
    let error = match error.downcast::<Fault>() {
        Ok(fault) => return Ok(*fault),
        Err(error) => error,
    };
    let error = match error.downcast::<ParquetError>().map(|e| *e) {
        Ok(ParquetError::External(error)) => return inner(error),
        Ok(other) => return Err(other.into()),
        Err(error) => error,
    };
    match error.downcast::<io::Error>() {
        Ok(e) if e.get_ref().is_some_and(|e| e.is::<Fault>()) => match e.into_inner() {
            Some(error) => inner(error),
            None => Err("an error without a cause".into()),
        },
        Ok(e) => Err(e),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn write(aside: &StagedFolder, name: &str, text: &str) {
        let mut file = aside.create(name).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        assert_eq!(file.finish().unwrap(), text.len() as u64);
    }

    #[test]
    fn the_folder_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("out");
        let begin = |replace| StagedFolder::begin(&Folder::from(&place), replace);
        let aside = begin(false).unwrap();
        write(&aside, "a", "1");
        assert!(!place.exists());
        drop(aside);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let aside = begin(false).unwrap();
        write(&aside, "below/a", "1");
        aside.publish().unwrap();
        assert_eq!(fs::read_to_string(place.join("below/a")).unwrap(), "1");
        assert!(begin(false).err().unwrap().to_string().contains("holds files already"));
        let aside = begin(true).unwrap();
        write(&aside, "b", "2");
        aside.publish().unwrap();
        assert!(place.join("b").exists() && !place.join("below").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
