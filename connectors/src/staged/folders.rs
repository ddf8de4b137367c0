//! The folders directly in a folder, in any store. Listing them blocks on the disk or the store.

use std::path::Path;
use std::{fs, io};

use forebay_actors::Fault;

use super::error::fault;
use super::fail_points::pass;
use super::folder::{Folder, OpenFolder, Opened, StoreFolder};

impl OpenFolder {
    /// Whether the folder is on a file system of this machine, and not in a store, where each call is a request.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.at, Opened::Local(_))
    }

    /// The names of the folders directly in this one, sorted: hidden ones, too, and symbolic links, unless they lead to files. `None` if a
    /// local folder is not there. In a store a folder that is not there has none.
    ///
    /// # Errors
    /// The folder cannot be listed: the fault of the disk or the store.
    pub fn folders(&self) -> Result<Option<Vec<String>>, Fault> {
        let mut folders = match &self.at {
            Opened::Local(path) => list_local(path).map_err(|e| fault(self, "cannot list", e))?,
            Opened::Store(folder) => Some(folder.listed(|found| {
                found.common_prefixes.iter().filter_map(|at| at.filename().map(str::to_owned)).collect()
            })?),
        };
        if let Some(folders) = &mut folders {
            folders.sort();
        }
        Ok(folders)
    }

    /// The folder of this name in this one, whether or not it is there.
    ///
    /// # Errors
    /// A user fault if no folder of the store can have this name.
    pub fn folder(&self, name: &str) -> Result<Folder, Fault> {
        let mut folder = match &self.at {
            Opened::Local(path) => Folder::from(path.join(name)),
            Opened::Store(store) => {
                let named = self.name(name);
                let url = store.url.as_ref().map(|_| named.clone());
                Folder::of_store(StoreFolder { path: store.file(name)?, name: named, url, ..store.clone() })
            }
        };
        folder.stop = self.stop.clone();
        Ok(folder)
    }
}

fn list_local(folder: &Path) -> io::Result<Option<Vec<String>>> {
    pass(folder, "list")?;
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        // An entry without readable metadata may be a folder.
        if fs::metadata(entry.path()).is_ok_and(|there| !there.is_dir()) {
            continue;
        }
        folders.push(entry.file_name().to_string_lossy().into_owned());
    }
    Ok(Some(folders))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn the_folders_in_a_folder_are_listed_and_read_in_any_store() {
        let dir = tempfile::tempdir().unwrap();
        let local = Folder::from(dir.path().join("deltas")).open().unwrap();
        let memory = Folder::in_store(Arc::new(InMemory::new()), "deltas".into()).open().unwrap();
        assert!(local.is_local() && !memory.is_local());
        assert_eq!((local.folders().unwrap(), memory.folders().unwrap()), (None, Some(Vec::new())));
        for folder in [local, memory] {
            let names = [".hidden", "one", "two #2 ä"];
            for name in names {
                let below = folder.folder(name).unwrap().open().unwrap();
                assert!(below.put_new("file", name.as_bytes().to_vec()).unwrap());
                assert_eq!(below.name("file"), folder.name(&format!("{name}/file")));
            }
            assert!(folder.put_new("a file", b"1".to_vec()).unwrap());
            let found = folder.folders().unwrap().unwrap();
            assert_eq!(found, names);
            for name in found {
                let bytes = folder.folder(&name).unwrap().open().unwrap().bytes("file", 99).unwrap();
                assert_eq!(bytes, name.as_bytes());
            }
        }
    }

    #[test]
    fn a_folder_of_a_url_has_folders_of_urls() {
        for (url, expected) in
            [("hdfs://host:8020/a/b/", "hdfs://host:8020/a/b/c/file"), ("hdfs://host:8020", "hdfs://host:8020/c/file")]
        {
            let below = Folder::from(url).open().unwrap().folder("c").unwrap();
            assert_eq!(below.open().unwrap().name("file"), expected);
            assert_eq!(format!("{below}/file"), expected);
        }
    }

    #[test]
    fn a_link_to_a_folder_is_one_and_what_is_no_folder_cannot_be_listed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("there")).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        for (link, to) in [("link", "there"), ("file link", "file")] {
            std::os::unix::fs::symlink(dir.path().join(to), dir.path().join(link)).unwrap();
        }
        let folder = Folder::from(dir.path()).open().unwrap();
        assert_eq!(folder.folders().unwrap().unwrap(), ["link", "there"]);
        let said = folder.folder("file").unwrap().open().unwrap().folders().unwrap_err().to_string();
        assert!(said.starts_with("cannot list `") && said.contains("/file`"), "{said}");
    }
}
