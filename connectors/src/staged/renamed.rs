//! A staged folder in a store that has folders and renames them in one step: HDFS. To replace a folder takes two renames (see
//! [`two_renames`]).
//!
//! A process that is killed before the renames leaves its staged folder, `.NAME.partial-...`. A process on another machine may still write
//! it, so the next writer removes it only if none of its files has changed for a day.

use std::sync::Arc;

use forebay_actors::Fault;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::error::made_meanwhile;
use super::folder::{StoreFolder, list};
use super::shell::quoted;
use super::two_renames::{self, PARTIAL, REPLACED, Renames, is_hidden};
use crate::hdfs::holds_mount_link;
use crate::store_error::store_fault;

/// A staged folder whose files are this much older than the files just written was left by a killed process, in milliseconds. HDFS changes
/// the time of a file when it is made and when it is closed.
const ABANDONED_AFTER: i64 = 24 * 3600 * 1000;

/// The folder staged; a drop before [`Self::publish`] removes it.
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
        let Some(name) = place.path.filename() else {
            return Err(Fault::user(format!("`{}` is not a folder that can be made", place.name)));
        };
        if place.url.as_deref().is_some_and(holds_mount_link) {
            return Err(Fault::user(format!(
                "`{0}` is a link of a mount table or a folder above one, which no folder can replace: name a folder in it, for instance \
                 `{0}/model`",
                place.name
            )));
        }
        let own = two_renames::own();
        let above = place.path.as_ref().strip_suffix(name).unwrap_or_default();
        // Not `join`, which encodes some characters.
        let beside = |kind: &str| {
            Path::parse(format!("{above}{}", two_renames::hidden_name(name, kind, &own)))
                .map_err(|e| Fault::user(format!("`{}` is not a folder that can be made", place.name)).because(e))
        };
        let (staged, old) = (beside(PARTIAL)?, beside(REPLACED)?);
        let staged = StoreFolder { path: staged, ..place.clone() };
        Ok(Self { place, staged, old, replace, published: false })
    }

    /// Where its files are written.
    pub(super) fn staged(&self) -> &StoreFolder {
        &self.staged
    }

    /// Gives the folder its name.
    pub(super) fn publish(mut self) -> Result<(), Fault> {
        let (place, staged) = (self.place.clone(), &self.staged.path);
        if !place.holds_anything()? {
            // A rename replaces an empty folder and no other.
            two_renames::rename(&place, "cannot finish", staged, &place.path)?;
        } else if self.replace {
            two_renames::replace(&place, staged, &place.path, &self.old)?;
            two_renames::remove(&place, &self.old);
        } else {
            return Err(made_meanwhile(&place.name));
        }
        self.published = true;
        place.clone().wait(async move {
            remove_abandoned(&place).await;
            Ok(())
        })
    }
}

impl Renames for StoreFolder {
    type Folder = Path;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn shown(&self, folder: &Path) -> String {
        format!("/{folder}")
    }

    fn holds(&self, folder: &Path) -> Result<bool, Fault> {
        Self { path: folder.clone(), ..self.clone() }.holds_anything()
    }

    fn rename(&self, what: &str, from: &Path, to: &Path) -> Result<(), Fault> {
        let (store, from, to) = (Arc::clone(&self.store), from.clone(), to.clone());
        let what = format!("{what} `{}`", self.name);
        self.wait(async move { store.rename(&from, &to).await.map_err(|e| store_fault(&what, e)) })
    }

    fn remove(&self, folder: &Path) -> Result<(), Fault> {
        let (store, folder) = (Arc::clone(&self.store), folder.clone());
        let what = format!("cannot remove `/{folder}`");
        self.wait(async move { remove(&store, &folder).await.map_err(|e| store_fault(&what, e)) })
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

/// The folder that was at `place`, as messages name it, if a process was killed during its replacement and nothing is there; and the
/// command that puts it back. `None`, too, if the store does not say.
pub(super) fn replaced(place: &StoreFolder) -> Option<(String, String)> {
    if place.holds_anything().ok()? {
        return None;
    }
    let at = place.clone();
    let found = place.wait(async move { Ok(left_behind(&at, REPLACED).await.unwrap_or_default()) }).ok()?;
    let [old] = &found[..] else { return None };
    let (parent, _) = place.name.rsplit_once('/')?;
    let old = format!("{parent}/{}", old.filename()?);
    let command = format!("hdfs dfs -mv {} {}", quoted(&old), quoted(&place.name));
    Some((old, command))
}

/// Puts back or removes a folder that a killed process was replacing: see [`two_renames::put_back`]. Looks only at the hidden names of this
/// program; does nothing without the right to list the folder above `place`. Returns whether that folder is known to exist, because `place`
/// or another folder is in it.
pub(super) fn put_back(place: &StoreFolder) -> Result<bool, Fault> {
    let (there, at) = (place.holds_anything()?, place.clone());
    match place.wait(async move { Ok(beside(&at).await) })? {
        Ok(beside) => {
            two_renames::put_back(place, &place.path, there, &hidden(place, &beside, REPLACED))?;
            Ok(!beside.is_empty())
        }
        Err(e) => {
            tracing::debug!(path = %place.path, error = %e, "cannot look for folders that were being replaced");
            Ok(there)
        }
    }
}

/// The hidden folders of a kind beside `place`.
async fn left_behind(place: &StoreFolder, kind: &str) -> object_store::Result<Vec<Path>> {
    Ok(hidden(place, &beside(place).await?, kind))
}

/// The folders in the folder above `place`.
async fn beside(place: &StoreFolder) -> object_store::Result<Vec<Path>> {
    let mut parts: Vec<_> = place.path.parts().collect();
    if parts.pop().is_none() {
        return Ok(Vec::new());
    }
    let found = list(&*place.store, &Path::from_iter(parts)).await?;
    Ok(found.map_or_else(Vec::new, |found| found.common_prefixes))
}

/// The folders of `beside`, which are in the same folder as `place`, that have its hidden names of a kind. A process may still write to one
/// of the kind `partial`.
fn hidden(place: &StoreFolder, beside: &[Path], kind: &str) -> Vec<Path> {
    let name = place.path.filename().unwrap_or_default();
    let is_hidden = |at: &&Path| at.filename().is_some_and(|at| is_hidden(at, name, kind));
    beside.iter().filter(is_hidden).cloned().collect()
}

/// Removes the staged folders of killed processes beside `place`, which was just written. A folder that cannot be removed stays.
async fn remove_abandoned(place: &StoreFolder) {
    let store = &place.store;
    let staged = left_behind(place, PARTIAL).await.unwrap_or_default();
    if staged.is_empty() {
        return;
    }
    // The store's own times: the clock of this machine may be another.
    let Ok(Some(now)) = last_change(store, &place.path).await else { return };
    for folder in staged {
        // A folder without files may be about to get its first.
        let Ok(Some(last)) = last_change(store, &folder).await else { continue };
        if now - last < ABANDONED_AFTER {
            continue;
        }
        match remove(store, &folder).await {
            Ok(()) => tracing::debug!(path = %folder, "removed a folder that a killed process has left"),
            Err(e) => {
                tracing::debug!(path = %folder, error = %e, "cannot remove a folder that a killed process has left")
            }
        }
    }
}

/// When a file below a folder was last changed, in milliseconds since 1970; `None` if it has none.
async fn last_change(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<Option<i64>> {
    let times = store.list(Some(folder)).map_ok(|file| file.last_modified.timestamp_millis());
    times.try_fold(None, |last: Option<i64>, at| std::future::ready(Ok(last.max(Some(at))))).await
}

/// Deletes a folder with all below it, if it is there.
pub(super) async fn remove(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<()> {
    match store.delete(folder).await {
        Err(Error::NotFound { .. }) => Ok(()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::super::Folder;
    use super::super::folder::Opened;
    use super::*;

    #[test]
    fn hidden_names_have_the_characters_of_the_name() {
        for name in ["rows", "d\u{e4}ten #1 {a}%20~", "\u{884c}"] {
            for above in ["", "a b%/"] {
                let path = Path::parse(format!("{above}{name}")).unwrap();
                let folder = Folder::in_renaming_store(Arc::new(InMemory::new()), path).open().unwrap();
                let Opened::Store(place) = folder.at else { panic!("it is in a store") };
                let renamed = Renamed::begin(place, true).unwrap();
                assert!(is_hidden(renamed.old.filename().unwrap(), name, REPLACED), "{}", renamed.old);
                let staged = &renamed.staged.path;
                assert!(staged.as_ref().starts_with(above), "{staged}");
                assert!(is_hidden(staged.filename().unwrap(), name, PARTIAL), "{staged}");
            }
        }
    }
}
