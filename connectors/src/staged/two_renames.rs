//! Replaces a folder by two renames, where one step cannot: on HDFS, and on local file systems that do not exchange folders.
//!
//! The old folder gets a hidden name, then the new one takes its place. A process that is killed between the two leaves the old folder
//! under that hidden name, `.NAME.replaced-...`, and the next writer puts it back. At any other moment the whole old or the whole new
//! folder is in its place.
//!
//! Two gaps remain. A reader that opens the folder between the two renames finds nothing there. A writer that begins between them puts the
//! old folder back, as if the first writer had been killed; then the second rename of the first writer fails, because it replaces nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use forebay_actors::Fault;

/// The kind of the hidden name of a folder that is written.
pub(super) const PARTIAL: &str = "partial";

/// The kind of the hidden name of a folder that is replaced.
pub(super) const REPLACED: &str = "replaced";

/// A store in which a folder is replaced, and the calls on the folders beside it. Every call blocks on the store.
pub(super) trait Renames {
    /// The path of a folder.
    type Folder;

    /// The folder that is replaced, as messages name it.
    fn name(&self) -> String;

    /// The path of a folder, as messages name it.
    fn shown(&self, folder: &Self::Folder) -> String;

    /// Whether anything is in a folder; false if there is none.
    fn holds(&self, folder: &Self::Folder) -> Result<bool, Fault>;

    /// Gives a folder another name in one step. A folder that holds something is never replaced. `what` begins the message of a fault.
    fn rename(&self, what: &str, from: &Self::Folder, to: &Self::Folder) -> Result<(), Fault>;

    /// Deletes a folder with all below it, if it is there.
    fn remove(&self, folder: &Self::Folder) -> Result<(), Fault>;
}

/// The part of a hidden name that is unique to this process and moment.
pub(super) fn own() -> String {
    // Unlike on a disk of one machine, writers on other machines may have the same process number.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{}-{now:x}", std::process::id())
}

/// The hidden name beside a folder of this name. The leading dot makes readers skip the folder if the process is killed.
pub(super) fn hidden_name(name: &str, kind: &str, own: &str) -> String {
    format!(".{name}.{kind}-{own}")
}

/// Whether a folder has a [`hidden_name`] beside `name`, of this kind.
pub(super) fn is_hidden(folder: &str, name: &str, kind: &str) -> bool {
    let own = folder.strip_prefix('.').and_then(|folder| folder.strip_prefix(name));
    let own = own.and_then(|own| own.strip_prefix('.')).and_then(|own| own.strip_prefix(kind));
    let own = own.and_then(|own| own.strip_prefix('-')).and_then(|own| own.split_once('-'));
    own.is_some_and(|(process, time)| process.parse::<u32>().is_ok() && u128::from_str_radix(time, 16).is_ok())
}

/// Renames a folder that holds something. If the folder has its new name after an error, only the answer was lost.
pub(super) fn rename<R: Renames>(store: &R, what: &str, from: &R::Folder, to: &R::Folder) -> Result<(), Fault> {
    let renamed = store.rename(what, from, to);
    if renamed.is_err() && matches!((store.holds(from), store.holds(to)), (Ok(false), Ok(true))) {
        return Ok(());
    }
    renamed
}

/// Gives the folder at `place` the name `old`, and `staged` the name `place`. If it fails, the old folder is at `place` again, unless that
/// fails, too: then it stays at `old`, for the next writer to put back.
pub(super) fn replace<R: Renames>(
    store: &R,
    staged: &R::Folder,
    place: &R::Folder,
    old: &R::Folder,
) -> Result<(), Fault> {
    let what = "cannot finish";
    if let Err(fault) = rename(store, what, place, old) {
        // The rename may have been done without an answer: then this puts the folder back, else it finds nothing.
        let _ = store.rename(what, old, place);
        return Err(fault);
    }
    if let Err(fault) = rename(store, what, staged, place) {
        if let Err(e) = rename(store, what, old, place) {
            let path = store.shown(old);
            tracing::error!(path = %path, error = %e, "cannot put back the folder that was to be replaced");
        }
        return Err(fault);
    }
    Ok(())
}

/// Puts back a folder that a killed process was replacing: `left` are the folders of the kind [`REPLACED`] beside `place`. If something is
/// at `place`, removes them instead. Moves none of several, because nothing says which one is newer.
pub(super) fn put_back<R: Renames>(
    store: &R,
    place: &R::Folder,
    stands_there: bool,
    left: &[R::Folder],
) -> Result<(), Fault> {
    match left {
        _ if stands_there => {
            for old in left {
                remove(store, old);
            }
        }
        [old] => {
            rename(store, &format!("cannot move {} back to", store.shown(old)), old, place)?;
            tracing::warn!("a process was killed while it replaced `{}`: the old folder is back", store.name());
        }
        [] => {}
        several => {
            let names: Vec<_> = several.iter().map(|old| store.shown(old)).collect();
            tracing::warn!(
                "processes were killed while they replaced `{}`: {} are left",
                store.name(),
                names.join(", ")
            );
        }
    }
    Ok(())
}

/// Removes a folder that was replaced. If it cannot be removed, the next writer tries again.
pub(super) fn remove<R: Renames>(store: &R, old: &R::Folder) {
    if let Err(e) = store.remove(old) {
        tracing::warn!(path = %store.shown(old), error = %e, "cannot remove the folder that was replaced");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(is_hidden(folder, "mp", REPLACED), expected, "{folder}");
        }
        assert!(is_hidden(&hidden_name("mp", REPLACED, &own()), "mp", REPLACED));
    }
}
