//! A staged folder in a store that has folders and renames them in one step: HDFS.
//!
//! To replace a folder takes two renames: the old folder gets a hidden name, then the new one takes its place. A process
//! that is killed between the two leaves the old folder under that hidden name, `.NAME.replaced-...`, and the next writer puts it
//! back. At any other moment the old or the new folder stands in its place, whole.
//!
//! A process that is killed earlier leaves its staged folder, `.NAME.partial-...`. Nothing tells whether a process on another machine still
//! writes it, so the next writer removes it only if none of its files has changed for a day.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_actors::Fault;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::error::made_meanwhile;
use super::folder::{OpenFolder, Opened, StoreFolder, holds, list};
use crate::hdfs::holds_mount_link;
use crate::store_error::store_fault;

/// A staged folder whose files are this much older than those that were just written belongs to no process any more, in milliseconds. HDFS
/// changes the time of a file when it is made and when it is closed.
const ABANDONED_AFTER: i64 = 24 * 3600 * 1000;

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
        // Unlike on a local disk, writers on other machines may have the same process number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let own = format!("{}-{now:x}", std::process::id());
        let above = place.path.as_ref().strip_suffix(name).unwrap_or_default();
        // Not `join`, which encodes some characters. The leading dot makes readers skip the folder if the process is killed.
        let beside = |kind: &str| {
            Path::parse(format!("{above}.{name}.{kind}-{own}"))
                .map_err(|e| Fault::user(format!("`{}` is not a folder that can be made", place.name)).because(e))
        };
        let (staged, old) = (beside("partial")?, beside("replaced")?);
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
                rename(store, &staged, &place.path).await.map_err(cannot)?;
                remove_abandoned(&place).await;
                return Ok(());
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
            remove_abandoned(&place).await;
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

impl OpenFolder {
    /// The folder that stood here, as messages name it, if nothing does now because a process was killed while it replaced it. `None`, too,
    /// if the store does not say.
    #[must_use]
    pub fn replaced(&self) -> Option<String> {
        let Opened::Store(place) = &self.at else { return None };
        if !place.renames || place.holds_anything().ok()? {
            return None;
        }
        let at = place.clone();
        let found = place.wait(async move { Ok(left_behind(&at, "replaced").await.unwrap_or_default()) }).ok()?;
        let [old] = &found[..] else { return None };
        let (parent, _) = place.name.rsplit_once('/')?;
        Some(format!("{parent}/{}", old.filename()?))
    }
}

/// Puts back what a process that was killed was replacing. If something stands at `place`, removes what was replaced instead. Only looks at
/// the hidden names of this program; without the right to list the folder above `place`, does nothing. Returns whether that folder is known
/// to be there, because `place` or another folder is in it.
pub(super) fn put_back(place: &StoreFolder) -> Result<bool, Fault> {
    let (there, place) = (place.holds_anything()?, place.clone());
    place.clone().wait(async move {
        let beside = match beside(&place).await {
            Ok(beside) => beside,
            Err(e) => {
                tracing::debug!(path = %place.path, error = %e, "cannot look for folders that were being replaced");
                return Ok(there);
            }
        };
        let left = hidden(&place, &beside, "replaced");
        match &left[..] {
            _ if there => {
                for old in &left {
                    if let Err(e) = remove(&place.store, old).await {
                        tracing::warn!(path = %old, error = %e, "cannot remove the folder that was replaced");
                    }
                }
            }
            [old] => {
                let back = rename(&place.store, old, &place.path).await;
                back.map_err(|e| store_fault(&format!("cannot put back `{}`, which is at /{old}", place.name), e))?;
                tracing::warn!("a process was killed while it replaced `{}`: the old folder is back", place.name);
            }
            [] => {}
            several => {
                let names: Vec<_> = several.iter().map(|old| format!("/{old}")).collect();
                tracing::warn!(
                    "processes were killed while they replaced `{}`: {} are left",
                    place.name,
                    names.join(", ")
                );
            }
        }
        Ok(!beside.is_empty())
    })
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

/// Those of the folders `beside` the folder `place` that have the hidden names of a kind. Those of the kind `partial` may belong to
/// processes that still write.
fn hidden(place: &StoreFolder, beside: &[Path], kind: &str) -> Vec<Path> {
    let name = place.path.filename().unwrap_or_default();
    let is_hidden = |at: &&Path| at.filename().is_some_and(|at| is_hidden(at, name, kind));
    beside.iter().filter(is_hidden).cloned().collect()
}

/// Whether a folder has the hidden name that [`Renamed::begin`] chooses beside `name`, of this kind: `partial` or `replaced`.
fn is_hidden(folder: &str, name: &str, kind: &str) -> bool {
    let own = folder.strip_prefix('.').and_then(|folder| folder.strip_prefix(name));
    let own = own.and_then(|own| own.strip_prefix('.')).and_then(|own| own.strip_prefix(kind));
    let own = own.and_then(|own| own.strip_prefix('-')).and_then(|own| own.split_once('-'));
    own.is_some_and(|(process, time)| process.parse::<u32>().is_ok() && u128::from_str_radix(time, 16).is_ok())
}

/// Removes the staged folders beside `place`, which was just written, that killed processes have left. One that cannot be removed stays.
async fn remove_abandoned(place: &StoreFolder) {
    let store = &place.store;
    let staged = left_behind(place, "partial").await.unwrap_or_default();
    if staged.is_empty() {
        return;
    }
    // The store's own times: the clock of this machine may be another.
    let Ok(Some(now)) = last_change(store, &place.path).await else { return };
    for folder in staged {
        // One without files may be about to get its first.
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

/// Renames a folder that holds something. If the folder has its new name after an error, only the answer was lost.
async fn rename(store: &dyn ObjectStore, from: &Path, to: &Path) -> object_store::Result<()> {
    let renamed = store.rename(from, to).await;
    if renamed.is_err() && matches!((holds(store, from).await, holds(store, to).await), (Ok(false), Ok(true))) {
        return Ok(());
    }
    renamed
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
    use super::*;

    #[test]
    fn hidden_names_have_the_characters_of_the_name() {
        for name in ["rows", "d\u{e4}ten #1 {a}%20~", "\u{884c}"] {
            for above in ["", "a b%/"] {
                let path = Path::parse(format!("{above}{name}")).unwrap();
                let folder = Folder::in_renaming_store(Arc::new(InMemory::new()), path).open().unwrap();
                let Opened::Store(place) = folder.at else { panic!("it is in a store") };
                let renamed = Renamed::begin(place, true).unwrap();
                assert!(is_hidden(renamed.old.filename().unwrap(), name, "replaced"), "{}", renamed.old);
                let staged = &renamed.staged.path;
                assert!(staged.as_ref().starts_with(above), "{staged}");
                assert!(is_hidden(staged.filename().unwrap(), name, "partial"), "{staged}");
            }
        }
    }

    #[test]
    fn only_hidden_names_of_this_program_are_folders_that_were_replaced() {
        for (folder, expected) in [
            (".mp.replaced-30236-18ebb46b072e7df2", true),
            (".mp.partial-30236-18ebb46b072e7df2", false),
            (".mp2.replaced-30236-18ebb46b072e7df2", false),
            (".mp.replaced-by-me", false),
            (".mp.replaced-1", false),
            ("mp.replaced-1-a", false),
        ] {
            assert_eq!(is_hidden(folder, "mp", "replaced"), expected, "{folder}");
        }
    }
}
