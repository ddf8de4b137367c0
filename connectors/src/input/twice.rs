//! Refuses a file that is read twice, by two paths, by two names of its store or by a symbolic link: its rows would be read twice in each
//! epoch, and the metrics of an evaluation would count them twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use forebay_actors::Fault;

use crate::file::DataFile;
use crate::store_error::io_fault;

/// The store of local files, as [`Stores::root`](crate::Stores::root) says it.
const LOCAL: &str = "/";

/// The files so far: the store and the path in it, without symbolic links, and the name.
#[derive(Default)]
pub(super) struct Seen(HashMap<(String, PathBuf), String>);

impl Seen {
    /// Adds the files of one input. `store` is the same for the same store. Blocks on the disk, for local files.
    ///
    /// # Errors
    /// A user fault that names the first file that is there already; a fault of the disk.
    pub(super) fn add(&mut self, store: &str, files: &[DataFile]) -> Result<(), Fault> {
        let mut folders = HashMap::new();
        for file in files {
            let path = Path::new("/").join(file.path.as_ref());
            let path = match store == LOCAL {
                true => real(&path, &mut folders).map_err(|e| io_fault(&format!("cannot read `{}`", file.name), e))?,
                false => path,
            };
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

/// The path of a file without symbolic links; unchanged if the file has vanished. `folders` are the folders whose real paths are known.
fn real(path: &Path, folders: &mut HashMap<PathBuf, PathBuf>) -> io::Result<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path.to_owned()) };
    let is_link = match fs::symlink_metadata(path) {
        Ok(there) => there.is_symlink(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(e) => return Err(e),
    };
    if is_link {
        return fs::canonicalize(path);
    }
    if let Some(real) = folders.get(folder) {
        return Ok(real.join(name));
    }
    let real = fs::canonicalize(folder)?;
    let file = real.join(name);
    folders.insert(folder.to_owned(), real);
    Ok(file)
}
