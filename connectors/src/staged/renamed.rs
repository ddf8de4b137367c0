//! A staged folder in a store that has folders and renames them in one step: HDFS.
//!
//! To replace a folder takes two renames: the old folder gets a hidden name, then the new one takes its place. A process
//! that is killed between the two leaves the old folder under that hidden name, `.NAME.replaced-...`. At any other moment
//! the old or the new folder stands in its place, whole.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_actors::Fault;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::error::made_meanwhile;
use super::folder::StoreFolder;
use crate::store_error::store_fault;

/// The folder staged; dropping it before [`Self::publish`] removes it.
pub(super) struct Renamed {
    place: StoreFolder,
    staged: StoreFolder,
    /// Where a folder that is replaced goes until it is deleted.
    old: Path,
    replace: bool,
    published: bool,
}

impl Renamed {
    /// Chooses the names; nothing is made yet.
    pub(super) fn begin(place: StoreFolder, replace: bool) -> Result<Self, Fault> {
        let mut parts: Vec<_> = place.path.parts().collect();
        let Some(name) = parts.pop() else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.name)));
        };
        // Unlike on a local disk, writers on other machines may have the same process number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let own = format!("{}-{now:x}", std::process::id());
        let parent = Path::from_iter(parts);
        // The leading dot makes readers skip the folder if the process is killed.
        let staged = parent.clone().join(format!(".{}.partial-{own}", name.as_ref()));
        let old = parent.join(format!(".{}.replaced-{own}", name.as_ref()));
        let staged = StoreFolder { path: staged, ..place.clone() };
        Ok(Self { place, staged, old, replace, published: false })
    }

    /// Where its files are written.
    pub(super) fn staged(&self) -> &StoreFolder {
        &self.staged
    }

    /// Gives the folder its name.
    pub(super) fn publish(mut self) -> Result<(), Fault> {
        let move_old = self.place.holds_anything()?;
        if move_old && !self.replace {
            return Err(made_meanwhile(&self.place.name));
        }
        let (place, staged, old) = (self.place.clone(), self.staged.path.clone(), self.old.clone());
        self.place.wait(async move {
            let cannot = |e| store_fault(&format!("cannot finish `{}`", place.name), e);
            let store = &place.store;
            if !move_old {
                // A rename replaces an empty folder and no other.
                return rename(store, &staged, &place.path).await.map_err(cannot);
            }
            if let Err(e) = rename(store, &place.path, &old).await {
                // Perhaps the rename was done, and nothing has said so since: then this puts the folder back, else it finds nothing.
                let _ = store.rename(&old, &place.path).await;
                return Err(cannot(e));
            }
            if let Err(e) = rename(store, &staged, &place.path).await {
                if let Err(e) = rename(store, &old, &place.path).await {
                    tracing::error!(path = %old, error = %e, "cannot put back the folder that was to be replaced");
                }
                return Err(cannot(e));
            }
            if let Err(e) = remove(store, &old).await {
                tracing::warn!(path = %old, error = %e, "cannot remove the folder that was replaced");
            }
            Ok(())
        })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Renamed {
    fn drop(&mut self) {
        if !self.published {
            let (store, path) = (Arc::clone(&self.staged.store), self.staged.path.clone());
            let removed = self.staged.wait(async move {
                remove(&store, &path).await.map_err(|e| store_fault("cannot remove a folder that was not finished", e))
            });
            // Not logged if nothing could be made there, because then there is nothing to remove.
            if let Err(fault) = removed
                && !matches!(self.staged.holds_anything(), Ok(false))
            {
                tracing::warn!(path = %self.staged.path, error = %fault, "a folder that was not finished stays behind");
            }
        }
    }
}

/// Renames a folder that holds something. If the folder has its new name after an error, only the answer was lost.
async fn rename(store: &dyn ObjectStore, from: &Path, to: &Path) -> object_store::Result<()> {
    let renamed = store.rename(from, to).await;
    if renamed.is_err() && matches!((holds(store, from).await, holds(store, to).await), (Ok(false), Ok(true))) {
        return Ok(());
    }
    renamed
}

/// Whether anything is in a folder; false if there is none.
async fn holds(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<bool> {
    match store.list_with_delimiter(Some(folder)).await {
        Ok(found) => Ok(!found.objects.is_empty() || !found.common_prefixes.is_empty()),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Deletes a folder with all below it, if it is there.
pub(super) async fn remove(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<()> {
    match store.delete(folder).await {
        Err(Error::NotFound { .. }) => Ok(()),
        deleted => deleted,
    }
}
