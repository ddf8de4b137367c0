//! Refuses a file that is read twice, by two paths, by two names of its store or by a symbolic link: its rows would be read twice in each
//! epoch, and the metrics of an evaluation would count them twice.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

use crate::file::DataFile;

/// The store of local files, as [`Stores::root`](crate::Stores::root) says it.
const LOCAL: &str = "/";

/// The files so far: the store and the path in it, without symbolic links, and the name.
#[derive(Default)]
pub(super) struct Seen(HashMap<(String, PathBuf), String>);

impl Seen {
    /// Adds the files of one input. `store` is the same for the same store. Blocks on the disk, for local files.
    ///
    /// # Errors
    /// A user fault that names the first file that is there already.
    pub(super) fn add(&mut self, store: &str, files: &[DataFile]) -> Result<(), Fault> {
        let mut folders = HashMap::new();
        for file in files {
            let path = Path::new("/").join(file.path.as_ref());
            let path = if store == LOCAL { real(&path, &mut folders) } else { path };
            let Some(other) = self.0.insert((store.to_owned(), path), file.name.clone()) else { continue };
            return Err(Fault::user(match (other == file.name, store == LOCAL) {
                (true, _) => format!(
                    "`{other}` is named twice, by two paths or globs: name it once (data.epochs reads all rows several times)"
                ),
                (false, true) => format!(
                    "`{other}` and `{}` are one file, by a symbolic link, so its rows would count twice: name folders or files without the \
                     link, or give the link a name that begins with `_`",
                    file.name
                ),
                (false, false) => format!(
                    "`{other}` and `{}` are one file, by two names of its store, so its rows would count twice: name it once",
                    file.name
                ),
            }));
        }
        Ok(())
    }
}

/// The path of a file without symbolic links. `folders` are the folders whose real paths are known.
fn real(path: &Path, folders: &mut HashMap<PathBuf, PathBuf>) -> PathBuf {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
    if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
        return fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    }
    let real = folders.entry(folder.to_owned());
    real.or_insert_with(|| fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())).join(name)
}
