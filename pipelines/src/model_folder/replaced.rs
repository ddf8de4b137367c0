//! Model folders that are replaced while they are read: a run saves its model to the folder that another program loads.

use forebay_actors::{Domain, Fault};
use forebay_connectors::staged::OpenFolder;

use super::manifest::Manifest;

/// How often a folder is read that is replaced again and again.
const TRIES: usize = 10;

/// Reads the files of one model. If another model replaces it meanwhile, so that the files do not belong together, reads anew. Blocks on
/// the store.
///
/// # Errors
/// Returns the error of `read`. Returns an external fault if the store cannot be read, or if the folder was replaced at every try.
pub(crate) fn read_one<T>(
    folder: OpenFolder,
    mut read: impl FnMut(&OpenFolder) -> Result<T, Fault>,
) -> Result<T, Fault> {
    for _ in 0..TRIES {
        // The folder is held first, because the system may give the inode of a removed folder that is not open to the next one.
        let held = folder.clone().held();
        let before = identity(&held)?;
        let model = read(&held);
        // A local folder that is held stays the same one, also if another one gets its name: only its files may be removed.
        if model.is_ok() && held.is_held() || before == identity(&folder)? {
            return model;
        }
        tracing::info!("{folder} was replaced while it was read: it is read again");
    }
    Err(Fault::external(format!("{folder} was replaced {TRIES} times while it was read")))
}

/// Distinguishes a model from another one that replaces its folder.
pub(crate) struct ModelIdentity(Identity);

impl ModelIdentity {
    /// The identity of the model in `folder`. A local folder must be held.
    ///
    /// # Errors
    /// Returns an external fault if the store cannot be read.
    pub(crate) fn of(folder: &OpenFolder) -> Result<Self, Fault> {
        identity(folder).map(Self)
    }

    /// The fault of a file that could not be read. If another model has replaced this one, no file is damaged: then the fault is external
    /// and says so.
    pub(crate) fn explain(&self, folder: &OpenFolder, fault: Fault) -> Fault {
        match identity(&folder.by_name()) {
            Ok(now) if now != self.0 => {
                Fault::external(format!("{folder} was replaced while it was read: start the run again")).because(fault)
            }
            _ => fault,
        }
    }
}

/// The inode of a local folder, the manifest of one in a store.
type Identity = (Option<(u64, u64)>, Option<Vec<u8>>);

/// Distinguishes a folder from another one that gets its name. Fails if the store cannot be read, because the store has tried for long
/// enough.
fn identity(folder: &OpenFolder) -> Result<Identity, Fault> {
    let inode = folder.inode();
    if inode.is_some() {
        return Ok((inode, None));
    }
    match Manifest::bytes(folder) {
        Err(fault) if fault.domain != Domain::User => Err(fault),
        bytes => Ok((None, bytes.ok())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_connectors::staged::Folder;
    use object_store::local::LocalFileSystem;

    use super::super::MANIFEST;
    use super::*;

    #[test]
    fn a_store_whose_manifest_cannot_be_read_is_not_asked_for_it_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("model")).unwrap();
        // A link to itself, which is no missing file.
        std::os::unix::fs::symlink(MANIFEST, dir.path().join("model").join(MANIFEST)).unwrap();
        let store = Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
        let folder = Folder::in_store(store, "model".into()).open().unwrap();
        let mut reads = 0;
        let fault = read_one(folder, |_| {
            reads += 1;
            Ok(())
        });
        assert_eq!((fault.unwrap_err().domain, reads), (Domain::External, 0));
    }
}
