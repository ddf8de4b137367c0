//! Lists the files at a path or glob, sorted by path, or says what is there instead.

use std::io::ErrorKind;
use std::path::Path as LocalPath;
use std::sync::Arc;

use forebay_actors::{Fault, FaultKind};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::glob;
use super::search::{Search, is_numbered, left_out, numbered, special};
use crate::file::DataFile;
use crate::format::Format;
use crate::names::{did_you_mean, listed};
use crate::partition::{Partitions, Predicate};
use crate::store_error::{io_fault, store_fault};

/// What is listed: a file, a folder, or what a glob matches.
struct Listing<'a> {
    store: &'a Arc<dyn ObjectStore>,
    path: &'a Path,
    /// The name of the path in messages.
    text: &'a str,
    /// It stands before the path of a file to make its name.
    root: &'a str,
    filter: Option<&'a Predicate>,
}

/// The file or the folder that has exactly the name of a [`Listing`].
enum Named {
    /// This file; `None` if the predicate does not select it.
    File(Option<DataFile>),
    /// A local folder.
    Folder,
    /// No file: perhaps a folder, perhaps a glob.
    NoFile,
}

/// The files at `path`, which messages call `text`; `root` stands before a file's path to make its name.
pub(super) async fn list(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    text: &str,
    root: &str,
    filter: Option<&Predicate>,
) -> Result<Vec<DataFile>, Fault> {
    let listing = Listing { store, path, text, root, filter };
    let is_folder = match listing.named().await? {
        Named::File(file) => return Ok(file.into_iter().collect()),
        Named::Folder => true,
        Named::NoFile => false,
    };
    let mut search = Search::new(store, path, text, filter)?;
    let found = listing.found(&mut search).await?;
    let mut files = listing.data_files(found, &search)?;
    if files.is_empty() {
        return Err(listing.nothing(&search, is_folder));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

impl Listing<'_> {
    fn is_local(&self) -> bool {
        self.root == "/"
    }

    fn file(&self, meta: ObjectMeta, partitions: Partitions) -> DataFile {
        DataFile {
            store: Arc::clone(self.store),
            name: format!("{}{}", self.root, meta.location),
            path: meta.location,
            size: meta.size,
            e_tag: meta.e_tag,
            partitions,
        }
    }

    /// Looks for a file or a local folder of this name.
    async fn named(&self) -> Result<Named, Fault> {
        let Self { path, text, .. } = *self;
        if path.as_ref().contains(['*', '?']) {
            return Ok(Named::NoFile);
        }
        if self.is_local() && is_local_folder(&LocalPath::new("/").join(path.as_ref()), text)? {
            return Ok(Named::Folder);
        }
        // The local store does not look at files of numbered names; this name stands for a missing file.
        if self.is_local() && path.filename().is_some_and(is_numbered) {
            return Ok(Named::NoFile);
        }
        match self.store.head(path).await {
            Ok(meta) if meta.size == 0 => {
                let empty = Fault::user(format!("`{text}` is an empty file: no rows to read"));
                Err(empty.kind(FaultKind::NotFound))
            }
            Ok(meta) => {
                let above = path.as_ref().rsplit_once('/').map_or("", |(above, _)| above);
                let file = self.file(meta, Partitions::default().below_path(above));
                Ok(Named::File(selected(self.filter, &file, text)?.then_some(file)))
            }
            // Perhaps a folder. In every store, a listing that finds nothing shows that there is none.
            Err(object_store::Error::NotFound { .. }) => Ok(Named::NoFile),
            Err(e) => Err(store_fault(&format!("cannot read `{text}`"), e)),
        }
    }

    /// All that the search finds, also what a listing of a local disk leaves out.
    async fn found(&self, search: &mut Search<'_>) -> Result<Vec<ObjectMeta>, Fault> {
        let mut found = match search.run().await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(cannot_list(self.text, e)),
        };
        if self.is_local() {
            for path in search.left_out_by_the_store(&found)? {
                match self.store.head(&path).await {
                    Ok(meta) => found.push(meta),
                    Err(object_store::Error::NotFound { .. }) => {}
                    Err(e) => return Err(store_fault(&format!("cannot read `{}{path}`", self.root), e)),
                }
            }
        }
        Ok(found)
    }

    /// The files with data among all that was found, which the predicate selects.
    fn data_files(&self, found: Vec<ObjectMeta>, search: &Search<'_>) -> Result<Vec<DataFile>, Fault> {
        let Search { below, pattern, .. } = *search;
        // A file or folder of exactly this name is meant, not what the name matches as a glob.
        let is_exact = found.iter().any(|meta| meta.location.prefix_matches(self.path));
        let is_named = |path: &Path| {
            let whole = path.as_ref();
            pattern.is_none_or(|pattern| glob::selects(pattern, whole))
                && (!is_exact || path.prefix_matches(self.path))
                && !whole[below..].split('/').any(left_out)
        };
        let mut folder = (String::new(), Partitions::default().below_path(search.root.as_ref()));
        let mut files = Vec::new();
        for meta in found.into_iter().filter(|meta| is_named(&meta.location)) {
            let whole = meta.location.as_ref();
            let empty = meta.size == 0;
            if empty && Format::from_extension(whole) != Some(Format::Parquet) {
                continue;
            }
            // Files of one folder mostly come together and share its partitions.
            let within = whole[below..].rsplit_once('/').map_or("", |(within, _)| within);
            if folder.0 != within {
                folder = (within.to_owned(), Partitions::of(within).below_path(&whole[..below]));
            }
            let file = self.file(meta, folder.1.clone());
            if !selected(self.filter, &file, self.text)? {
                continue;
            }
            if empty {
                return Err(Fault::user(format!(
                    "`{}` is empty, which no whole Parquet file is: it was cut off or is still being written; \
                     write it again or remove it",
                    file.name
                )));
            }
            files.push(file);
        }
        Ok(files)
    }

    /// Says that there is no file, and what is there instead.
    fn nothing(&self, search: &Search<'_>, is_folder: bool) -> Fault {
        let text = self.text;
        Fault::user(match (self.filter, search.pattern) {
            (Some(filter), _) if !search.seen.is_empty() => {
                format!("no file of `{text}` is selected by where = {:?}: {}", filter.to_string(), search.seen())
            }
            (_, Some(_)) if is_unexpanded(text) => format!("no file or folder matches `{text}`: {UNEXPANDED}"),
            (_, Some(_)) => {
                let other = brackets(text);
                format!("no file or folder matches `{text}`: `*` and `?` stay within a name, `**` spans folders{other}")
            }
            (_, None) if is_folder => format!(
                "the folder `{text}` holds no data: files whose names begin with `_` or `.` and empty files are left out"
            ),
            (_, None) if is_unexpanded(text) => format!("there is nothing at `{text}`: {UNEXPANDED}"),
            (_, None) => format!("there is nothing at `{text}`: check the path{}", brackets(text)),
        })
        .kind(FaultKind::NotFound)
    }
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
