//! A folder that is written aside and then takes its place: whole or not at all.
//!
//! Comes in: the place it shall have. Goes out: files under a name of their own beside it, renamed at the end, removed on
//! any fault. Blocks on the file system.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

/// How files are made; tests put something in the place of [`create`].
pub(crate) type Create = fn(&Path) -> io::Result<Box<dyn Write + Send>>;

pub(crate) fn create(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    Ok(Box::new(BufWriter::with_capacity(1 << 20, File::create_new(path)?)))
}

/// The folder aside; dropping it before [`Aside::publish`] removes it.
pub struct Aside {
    place: PathBuf,
    aside: PathBuf,
    replace: bool,
    published: bool,
}

impl Aside {
    /// Makes an empty folder beside `place`, parents included.
    ///
    /// # Errors
    /// A user fault if `place` is a file, or holds something and is not to be replaced.
    pub fn begin(place: &Path, replace: bool) -> Result<Self, Fault> {
        let place = std::path::absolute(place).map_err(|e| fault(place, "cannot resolve", e))?;
        let Some(name) = place.file_name() else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.display())));
        };
        if place.is_file() {
            return Err(Fault::user(format!("`{}` is a file: name a folder to write to", place.display())));
        }
        let holds = fs::read_dir(&place).is_ok_and(|mut dir| dir.next().is_some());
        if holds && !replace {
            return Err(Fault::user(format!(
                "`{}` holds files already: name another folder, or ask to replace it",
                place.display()
            )));
        }
        // A leading dot: readers pass it over should the process be killed.
        let aside = place.with_file_name(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id()));
        let made =
            fs::remove_dir_all(&aside).or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) });
        made.and_then(|()| fs::create_dir_all(&aside)).map_err(|e| fault(&aside, "cannot make", e))?;
        Ok(Self { place, aside, replace, published: false })
    }

    /// Path of a file to write.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.aside.join(name)
    }

    /// Flushes every file to the disk and gives the folder its name; a folder to be replaced is exchanged for it in one
    /// step, then removed.
    pub fn publish(mut self) -> Result<(), Fault> {
        let mut all = || -> io::Result<()> {
            sync(&self.aside)?;
            if self.place.exists() && self.replace {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                renameat_with(CWD, &self.aside, CWD, &self.place, RenameFlags::EXCHANGE)?;
                self.published = true;
                fs::remove_dir_all(&self.aside)?;
            } else {
                if self.place.exists() {
                    fs::remove_dir(&self.place)?;
                }
                fs::rename(&self.aside, &self.place)?;
                self.published = true;
            }
            // The name itself is on the disk when the folder that holds it is.
            self.place.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        };
        all().map_err(|e| fault(&self.place, "cannot finish", e))
    }
}

/// Everything below a folder, to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { sync(&path)? } else { File::open(path)?.sync_all()? }
    }
    File::open(folder)?.sync_all()
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.published
            && let Err(e) = fs::remove_dir_all(&self.aside)
        {
            tracing::warn!(path = %self.aside.display(), error = %e, "cannot remove a folder that was not finished");
        }
    }
}

/// What went wrong with a file, in a user's words where it is the disk.
pub fn fault(path: &Path, what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    let error = error.into();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    let mut kind = None;
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            kind = Some(io.kind());
        }
        cause = e.source();
    }
    let text = format!("{what} `{}`", path.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("out");
        let aside = Aside::begin(&place, false).unwrap();
        fs::write(aside.file("a"), "1").unwrap();
        assert!(!place.exists());
        drop(aside);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let aside = Aside::begin(&place, false).unwrap();
        fs::write(aside.file("a"), "1").unwrap();
        aside.publish().unwrap();
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "1");
        assert!(Aside::begin(&place, false).err().unwrap().to_string().contains("holds files already"));
        let aside = Aside::begin(&place, true).unwrap();
        fs::write(aside.file("b"), "2").unwrap();
        aside.publish().unwrap();
        assert!(place.join("b").exists() && !place.join("a").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
