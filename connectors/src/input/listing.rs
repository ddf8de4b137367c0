//! Lists the files at a path or glob, sorted by path, or says what is there instead. Folders that cannot hold a selected
//! file are not entered.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{DirEntry, FileType};
use std::io::ErrorKind;
use std::path::Path as LocalPath;
use std::sync::Arc;

use forebay_actors::{Fault, FaultKind};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::glob;
use crate::file::DataFile;
use crate::format::Format;
use crate::names::{did_you_mean, listed};
use crate::partition::{Partitions, Predicate};
use crate::store_error::{has_waited, io_fault, may_not, store_fault, unreadable};

/// Folders that are listed at once.
const AT_ONCE: usize = 16;

/// The files at `path`, which messages call `text`; `root` stands before a file's path to make its name.
pub(super) async fn list(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    text: &str,
    root: &str,
    filter: Option<&Predicate>,
) -> Result<Vec<DataFile>, Fault> {
    let file = |meta: ObjectMeta, partitions| DataFile {
        store: Arc::clone(store),
        name: format!("{root}{}", meta.location),
        path: meta.location,
        size: meta.size,
        e_tag: meta.e_tag,
        partitions,
    };
    let mut is_folder = false;
    if !path.as_ref().contains(['*', '?']) {
        if root == "/" {
            is_folder = is_local_folder(&LocalPath::new("/").join(path.as_ref()), text)?;
        }
        // The local store does not look at files of numbered names; this name stands for a missing file.
        let head = match is_folder || root == "/" && path.filename().is_some_and(is_numbered) {
            true => Err(object_store::Error::NotFound { path: path.to_string(), source: text.into() }),
            false => store.head(path).await,
        };
        match head {
            Ok(meta) if meta.size == 0 => {
                let empty = Fault::user(format!("`{text}` is an empty file: no rows to read"));
                return Err(empty.kind(FaultKind::NotFound));
            }
            Ok(meta) => {
                let above = path.as_ref().rsplit_once('/').map_or("", |(above, _)| above);
                let file = file(meta, Partitions::default().below_path(above));
                return if selected(filter, &file, text)? { Ok(vec![file]) } else { Ok(Vec::new()) };
            }
            // Perhaps a folder. In every store, a listing that finds nothing shows that there is none.
            Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(store_fault(&format!("cannot read `{text}`"), e)),
        }
    }
    let whole = path.as_ref();
    let fixed = match whole.find(['*', '?']) {
        Some(at) => whole[..at].rfind('/').map_or("", |slash| &whole[..slash]),
        None => whole,
    };
    let fixed = Path::parse(fixed).map_err(|e| Fault::user(format!("cannot read `{text}`: {}", unreadable(&e))))?;
    let below = fixed.as_ref().len();
    let pattern = (fixed != *path).then_some(whole);
    let mut search = Search { store, root: fixed, below, pattern, filter, seen: BTreeMap::new() };
    let mut found = match search.run().await {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        Err(e) => return Err(cannot_list(text, e)),
    };
    if root == "/" {
        for path in search.left_out_by_the_store(&found)? {
            match store.head(&path).await {
                Ok(meta) => found.push(meta),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(store_fault(&format!("cannot read `{root}{path}`"), e)),
            }
        }
    }
    // A file or folder of exactly this name is meant, not what the name matches as a glob.
    let is_exact = found.iter().any(|meta| meta.location.prefix_matches(path));
    let mut folder = (String::new(), Partitions::default().below_path(search.root.as_ref()));
    let mut files = Vec::new();
    for meta in found {
        let whole = meta.location.as_ref();
        let matched = pattern.is_none_or(|pattern| glob::selects(pattern, whole));
        let named =
            matched && (!is_exact || meta.location.prefix_matches(path)) && !whole[below..].split('/').any(left_out);
        let empty = meta.size == 0;
        if named && (!empty || Format::from_extension(whole) == Some(Format::Parquet)) {
            // Files of one folder mostly come together and share its partitions.
            let within = whole[below..].rsplit_once('/').map_or("", |(within, _)| within);
            if folder.0 != within {
                folder = (within.to_owned(), Partitions::of(within).below_path(&whole[..below]));
            }
            let file = file(meta, folder.1.clone());
            if selected(filter, &file, text)? {
                if empty {
                    return Err(Fault::user(format!(
                        "`{}` is empty, which no whole Parquet file is: it was cut off or is still being written; \
                         write it again or remove it",
                        file.name
                    )));
                }
                files.push(file);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if !files.is_empty() {
        return Ok(files);
    }
    Err(Fault::user(match (filter, pattern) {
        (Some(filter), _) if !search.seen.is_empty() => {
            format!("no file of `{text}` is selected by where = {:?}: {}", filter.to_string(), search.seen())
        }
        (_, Some(_)) if is_unexpanded(text) => format!("no file or folder matches `{text}`: {UNEXPANDED}"),
        (_, Some(_)) => {
            let other = brackets(text);
            format!("no file or folder matches `{text}`: `*` and `?` stay within a name, `**` spans folders{other}")
        }
        (_, None) if is_folder => {
            format!(
                "the folder `{text}` holds no data: files whose names begin with `_` or `.` and empty files are left out"
            )
        }
        (_, None) if is_unexpanded(text) => format!("there is nothing at `{text}`: {UNEXPANDED}"),
        (_, None) => format!("there is nothing at `{text}`: check the path{}", brackets(text)),
    })
    .kind(FaultKind::NotFound))
}

const UNEXPANDED: &str = "the shell did not expand `~`, which it does only at the beginning of a word and outside of \
    quotes; write $HOME instead, in double quotes";

/// Says that a path has brackets, which are a glob in other programs.
fn brackets(text: &str) -> &'static str {
    match text.contains(['[', '{']) {
        true => "; `[` and `{` are part of a name, not of a glob: name several paths instead",
        false => "",
    }
}

/// Whether a path begins with a home folder that no shell has filled in.
fn is_unexpanded(text: &str) -> bool {
    text == "~" || text.starts_with("~/")
}

/// Whether the store for local disks hides a file of this name, in listings too: it keeps names that end in `#` and digits for itself.
fn is_numbered(name: &str) -> bool {
    name.split_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn numbered(name: &str) -> Fault {
    Fault::user(format!(
        "`{name}` has a name that ends in `#` and digits, which is not read on a local disk: rename the file"
    ))
}

/// Names that Spark does not read, either: hidden files, files without data (`_SUCCESS`, `_temporary`), copies under way. A partition
/// column's name may begin with `_`.
pub(crate) fn left_out(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('=')) || name.ends_with("._COPYING_")
}

/// Whether a local path is a folder. Refuses a path that is neither a file nor a folder: a pipe or a device has no size, and opening it may
/// block. Also refuses a file whose name the store does not read.
fn is_local_folder(path: &LocalPath, text: &str) -> Result<bool, Fault> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(metadata) if !metadata.is_file() => Err(special(text)),
        Ok(_) if path.file_name().and_then(|name| name.to_str()).is_some_and(is_numbered) => Err(numbered(text)),
        Ok(_) => Ok(false),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io_fault(&format!("cannot read `{text}`"), e)),
    }
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

fn special(name: &str) -> Fault {
    Fault::user(format!(
        "`{name}` is a pipe, a socket or a device, expected a file or a folder: data is read several times and at any place, so write it \
         to a file first"
    ))
}

/// The fault of a listing. A loop of links is a user fault.
fn cannot_list(text: &str, e: object_store::Error) -> Fault {
    let said = e.to_string();
    match said.find("File system loop found") {
        Some(at) => Fault::user(format!(
            "cannot list `{text}`: a link makes a loop of folders, remove it ({})",
            said[at..].lines().next().unwrap_or_default()
        )),
        None => store_fault(&format!("cannot list `{text}`"), e),
    }
}

/// Whether a file is wanted. Refuses a predicate that is not decided by the file's folders.
fn selected(filter: Option<&Predicate>, file: &DataFile, text: &str) -> Result<bool, Fault> {
    let Some(filter) = filter else { return Ok(true) };
    if !filter.may_select(&file.partitions) {
        return Ok(false);
    }
    let Some(unknown) = filter.columns().into_iter().find(|column| file.partitions.get(column).is_none()) else {
        return Ok(true);
    };
    let columns: Vec<&str> = file.partitions.iter().map(|(column, _)| column).collect();
    let there = match columns.as_slice() {
        [] => "it lies in no folder named column=value".to_owned(),
        _ => format!("its partition columns are {}{}", listed(columns.clone()), did_you_mean(unknown, columns.clone())),
    };
    Err(Fault::user(format!(
        "where = {:?} asks for `{unknown}`, but below `{text}` no folder `{unknown}=...` holds `{}`: {there}",
        filter.to_string(),
        file.name
    )))
}

/// A search through folders, level by level.
struct Search<'a> {
    store: &'a Arc<dyn ObjectStore>,
    /// The folder above all that may be wanted.
    root: Path,
    /// Bytes of the path that was named: folders count below it.
    below: usize,
    pattern: Option<&'a str>,
    filter: Option<&'a Predicate>,
    /// The values of each partition column that were met, entered or not.
    seen: BTreeMap<String, BTreeSet<String>>,
}

impl Search<'_> {
    /// Everything that may be wanted.
    async fn run(&mut self) -> object_store::Result<Vec<ObjectMeta>> {
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
    fn left_out_by_the_store(&mut self, found: &[ObjectMeta]) -> Result<Vec<Path>, Fault> {
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
    fn seen(&self) -> String {
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
