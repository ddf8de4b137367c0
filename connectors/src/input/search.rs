//! A search through folders for the files of a path or glob. Folders that cannot hold a wanted file are not entered.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{DirEntry, FileType};
use std::io::ErrorKind;
use std::path::Path as LocalPath;
use std::sync::Arc;

use forebay_actors::Fault;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::glob;
use crate::partition::{Partitions, Predicate};
use crate::store_error::{has_waited, io_fault, may_not, unreadable};

/// Folders that are listed at once.
const AT_ONCE: usize = 16;

/// A search through folders, level by level.
pub(super) struct Search<'a> {
    store: &'a Arc<dyn ObjectStore>,
    /// The folder above all that may be wanted.
    pub(super) root: Path,
    /// Bytes of the path that was named: folders count below it.
    pub(super) below: usize,
    pub(super) pattern: Option<&'a str>,
    filter: Option<&'a Predicate>,
    /// The values of each partition column that were met, entered or not.
    pub(super) seen: BTreeMap<String, BTreeSet<String>>,
}

impl<'a> Search<'a> {
    /// A search for `path`, below the folder that no wildcard is part of. Messages call the path `text`.
    pub(super) fn new(
        store: &'a Arc<dyn ObjectStore>,
        path: &'a Path,
        text: &str,
        filter: Option<&'a Predicate>,
    ) -> Result<Self, Fault> {
        let whole = path.as_ref();
        let fixed = match whole.find(['*', '?']) {
            Some(at) => whole[..at].rfind('/').map_or("", |slash| &whole[..slash]),
            None => whole,
        };
        let root = Path::parse(fixed).map_err(|e| Fault::user(format!("cannot read `{text}`: {}", unreadable(&e))))?;
        let below = root.as_ref().len();
        let pattern = (root != *path).then_some(whole);
        Ok(Self { store, root, below, pattern, filter, seen: BTreeMap::new() })
    }

    /// Everything that may be wanted.
    pub(super) async fn run(&mut self) -> object_store::Result<Vec<ObjectMeta>> {
        if self.pattern.is_none() && self.filter.is_none() {
            match self.store.list(Some(&self.root)).try_collect().await {
                // The unreadable folder may be one that is left out, such as `_temporary`, which the search below does not enter.
                Err(e) if may_not(&e) && !has_waited(&e) => {}
                listed => return listed,
            }
        }
        let mut found = Vec::new();
        let mut level = vec![self.root.clone()];
        while !level.is_empty() {
            let store = self.store;
            let lists = futures::stream::iter(level)
                .map(|folder| async move { store.list_with_delimiter(Some(&folder)).await })
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<_>>()
                .await?;
            level = Vec::new();
            for list in lists {
                found.extend(list.objects);
                level.extend(list.common_prefixes.into_iter().filter(|folder| self.enters(folder.as_ref())));
            }
        }
        Ok(found)
    }

    fn enters(&mut self, folder: &str) -> bool {
        if folder.rsplit('/').next().is_some_and(left_out)
            || self.pattern.is_some_and(|pattern| !glob::reaches(pattern, folder) && !glob::selects(pattern, folder))
        {
            return false;
        }
        let Some(filter) = self.filter else { return true };
        let partitions = Partitions::of(&folder[self.below..]);
        if let Some((column, value)) = partitions.iter().next_back() {
            let value = value.map_or_else(|| "null".to_owned(), |value| format!("{value:?}"));
            self.seen.entry(column.to_owned()).or_default().insert(value);
        }
        filter.may_select(&partitions)
    }

    /// The wanted files below the searched local folder that are not among `found`: listings of a local disk leave files and folders out
    /// whose metadata cannot be read.
    ///
    /// Refuses entries that may be wanted, or may hold wanted files, but are no files: a link to nothing, a pipe, a device. Also refuses
    /// files whose names end in `#` and digits. Listings leave such entries out, or show them as empty files.
    pub(super) fn left_out_by_the_store(&mut self, found: &[ObjectMeta]) -> Result<Vec<Path>, Fault> {
        let found: HashSet<&str> = found.iter().map(|meta| meta.location.as_ref()).collect();
        let (mut folders, mut missed) = (vec![self.root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            let at = LocalPath::new("/").join(folder.as_ref());
            let entries = match std::fs::read_dir(&at) {
                // The folder vanished, or is a file.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                entries => entries.map_err(|e| cannot_look_at(&at, e))?,
            };
            for entry in entries {
                let entry = entry.map_err(|e| cannot_look_at(&at, e))?;
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
                // Not `join`, which encodes some characters.
                let Ok(path) = Path::parse(format!("{folder}/{name}")) else { continue };
                if left_out(&name) {
                    continue;
                }
                let wanted = self.pattern.is_none_or(|pattern| glob::selects(pattern, path.as_ref()));
                match entry_kind(&entry) {
                    Ok(kind) if kind.is_dir() => folders.extend(self.enters(path.as_ref()).then_some(path)),
                    Ok(_) if !wanted => {}
                    Ok(kind) if !kind.is_file() => return Err(special(&entry.path().display().to_string())),
                    Ok(_) if is_numbered(&name) => match std::fs::metadata(entry.path()) {
                        Ok(metadata) if metadata.len() == 0 => {}
                        Err(e) if e.kind() == ErrorKind::NotFound => {}
                        Ok(_) => return Err(numbered(&entry.path().display().to_string())),
                        Err(e) => return Err(cannot_look_at(&entry.path(), e)),
                    },
                    Ok(_) if found.contains(path.as_ref()) => {}
                    Ok(_) => missed.push(path),
                    // The entry vanished; if its name is still there, it is a link to nothing.
                    Err(e) if e.kind() == ErrorKind::NotFound && is_gone(&entry.path()) => {}
                    Err(e) => {
                        let reaches = |pattern| glob::reaches(pattern, path.as_ref());
                        if wanted || self.pattern.is_some_and(reaches) {
                            return Err(match e.kind() {
                                ErrorKind::NotFound => Fault::user(format!(
                                    "`{}` is a link to a file or folder that is not there: correct or remove it",
                                    entry.path().display()
                                )),
                                _ => cannot_look_at(&entry.path(), e),
                            });
                        }
                    }
                }
            }
        }
        Ok(missed)
    }

    /// `` `day` has "2026-11-18", "2026-11-19" ``, with a few values of each column.
    pub(super) fn seen(&self) -> String {
        const SHOWN: usize = 3;
        let columns = self.seen.iter().map(|(column, values)| {
            let few = values.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
            match values.last() {
                Some(last) if values.len() > SHOWN => {
                    format!("`{column}` has {} values, {few} ... {last}", values.len())
                }
                _ => format!("`{column}` has {few}"),
            }
        });
        columns.collect::<Vec<_>>().join("; ")
    }
}

/// Whether the store for local disks hides a file of this name, in listings too: it keeps names that end in `#` and digits for itself.
pub(super) fn is_numbered(name: &str) -> bool {
    name.split_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(super) fn numbered(name: &str) -> Fault {
    Fault::user(format!(
        "`{name}` has a name that ends in `#` and digits, which is not read on a local disk: rename the file"
    ))
}

/// Names that Spark does not read, either: hidden files, files without data (`_SUCCESS`, `_temporary`), copies under way. A partition
/// column's name may begin with `_`.
pub(crate) fn left_out(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('=')) || name.ends_with("._COPYING_")
}

/// The type of an entry; for a link, the type of its target.
fn entry_kind(entry: &DirEntry) -> std::io::Result<FileType> {
    match entry.file_type()? {
        link if link.is_symlink() => Ok(std::fs::metadata(entry.path())?.file_type()),
        kind => Ok(kind),
    }
}

/// Whether nothing has this name, not even a link to nothing.
fn is_gone(path: &LocalPath) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn cannot_look_at(path: &LocalPath, e: std::io::Error) -> Fault {
    io_fault(&format!("cannot read `{}`", path.display()), e)
}

pub(super) fn special(name: &str) -> Fault {
    Fault::user(format!(
        "`{name}` is a pipe, a socket or a device, expected a file or a folder: data is read several times and at any place, so write it \
         to a file first"
    ))
}
