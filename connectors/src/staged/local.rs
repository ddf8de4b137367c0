//! A staged folder on the local file system: a hidden folder beside its place. Its files are on the disk before the folder
//! gets its name in one step.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

use super::error::fault;

/// How files are made; tests put something in the place of [`File::create_new`].
pub(crate) type Create = fn(&Path) -> io::Result<File>;

/// The folder staged; dropping it before [`Self::publish`] removes it.
pub(super) struct Local {
    place: PathBuf,
    staged: PathBuf,
    replace: bool,
    published: bool,
    pub(super) create: Create,
}

impl Local {
    /// Makes an empty folder beside `place`, parents included.
    pub(super) fn begin(place: PathBuf, replace: bool) -> Result<Self, Fault> {
        let Some(name) = place.file_name() else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.display())));
        };
        // A leading dot: readers pass it over should the process be killed.
        let staged = place.with_file_name(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id()));
        let made =
            fs::remove_dir_all(&staged).or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) });
        made.and_then(|()| fs::create_dir_all(&staged)).map_err(|e| fault(staged.display(), "cannot make", e))?;
        Ok(Self { place, staged, replace, published: false, create: |path| File::create_new(path) })
    }

    /// Makes a file, the folders in its name included.
    pub(super) fn create(&self, name: &str) -> Result<File, Fault> {
        let path = self.staged.join(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| (self.create)(&path))
            .map_err(|e| fault(path.display(), "cannot make", e))
    }

    /// Flushes every file to the disk and gives the folder its name; a folder to be replaced is exchanged for it in one
    /// step, then removed.
    pub(super) fn publish(mut self) -> Result<(), Fault> {
        let mut all = || -> io::Result<()> {
            sync(&self.staged)?;
            // A rename replaces an empty folder and no other. Another process may make the folder at the same time.
            match fs::rename(&self.staged, &self.place) {
                Err(e) if self.replace && self.place.is_dir() => {
                    tracing::debug!(place = %self.place.display(), error = %e, "replaces a folder");
                    use rustix::fs::{CWD, RenameFlags, renameat_with};
                    renameat_with(CWD, &self.staged, CWD, &self.place, RenameFlags::EXCHANGE)?;
                    self.published = true;
                    fs::remove_dir_all(&self.staged)?;
                }
                renamed => {
                    renamed?;
                    self.published = true;
                }
            }
            // The name itself is on the disk when the folder that holds it is.
            self.place.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        };
        all().map_err(|e| fault(self.place.display(), "cannot finish", e))
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

impl Drop for Local {
    fn drop(&mut self) {
        if !self.published
            && let Err(e) = fs::remove_dir_all(&self.staged)
        {
            tracing::warn!(path = %self.staged.display(), error = %e, "cannot remove a folder that was not finished");
        }
    }
}
