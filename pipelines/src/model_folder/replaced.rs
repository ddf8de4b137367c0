//! Model folders that are replaced while they are read: a run saves its model to the folder that another program loads.

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;

use super::manifest::Manifest;

/// How often a folder is read that is replaced again and again.
const TRIES: usize = 10;

/// Reads the files of one model. If another one takes its place meanwhile, and what was read is not whole for that reason, it reads
/// anew. Blocks on the store.
///
/// # Errors
/// Those of `read`; an external fault if the folder was replaced at every try.
pub(crate) fn read_one<T>(folder: OpenFolder, read: impl Fn(&OpenFolder) -> Result<T, Fault>) -> Result<T, Fault> {
    for _ in 0..TRIES {
        // Held first: the inode of a folder that is not open goes to the next one that is made.
        let held = folder.clone().held();
        let before = identity(&held);
        let model = read(&held);
        // A local folder stays the same one, whatever takes its name: only its files may be removed.
        if model.is_ok() && held.is_held() || before == identity(&folder) {
            return model;
        }
        tracing::info!("{folder} was replaced while it was read: it is read again");
    }
    Err(Fault::external(format!("{folder} was replaced {TRIES} times while it was read")))
}

/// What tells a folder from another one that takes its name: the inode of a local one, the manifest of one in a store.
fn identity(folder: &OpenFolder) -> (Option<(u64, u64)>, Option<Vec<u8>>) {
    match folder.inode() {
        None => (None, Manifest::bytes(folder).ok()),
        inode => (inode, None),
    }
}
