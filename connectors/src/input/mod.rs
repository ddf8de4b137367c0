//! What there is to read: a path, URL or glob becomes files, in a fixed order.
//!
//! Comes in: a file, a folder (taken with all below it), or a glob, in any store, and perhaps a predicate over the
//! folders. Goes out: [`DataFile`]s, sorted by path. Only metadata is read; `list` awaits the store.

mod glob;
mod listing;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_actors::fault::Fault;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::partition::{Partitions, Predicate};
use crate::store::{open, root};

/// One file to read.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// The store it lies in.
    pub store: Arc<dyn ObjectStore>,
    /// Its path in the store.
    pub path: Path,
    /// Its size in bytes when it was listed.
    pub size: u64,
    /// What tells this version of it from any other, if the store knows: a read of a file that was replaced fails.
    pub e_tag: Option<String>,
    /// Its path as messages print it.
    pub name: String,
    /// The folders `column=value` that it lies in, below the folder that was named or the fixed part of the glob.
    pub partitions: Partitions,
}

/// What a source reads: a path, several, or a path in a store that the caller holds; all of it, or what lies in the
/// folders that a predicate selects.
#[derive(Clone, Debug)]
pub struct Input(Vec<Part>);

#[derive(Clone, Debug)]
struct Part {
    place: Place,
    filter: Option<Predicate>,
}

#[derive(Clone, Debug)]
enum Place {
    Text(String),
    Store(Arc<dyn ObjectStore>, Path),
}

impl Input {
    /// A file, folder or glob in a store that the caller opened.
    pub fn in_store(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self(vec![Part { place: Place::Store(store, path), filter: None }])
    }

    /// Several inputs, read one after the other.
    pub fn all(inputs: impl IntoIterator<Item = Input>) -> Self {
        Self(inputs.into_iter().flat_map(|input| input.0).collect())
    }

    /// Only the files whose folders `column=value` the predicate selects; other folders are not even listed. A second
    /// predicate selects among what the first one does.
    #[must_use]
    pub fn filtered(mut self, predicate: &Predicate) -> Self {
        for part in &mut self.0 {
            let both = part.filter.take().map(|first| first.and(predicate.clone()));
            part.filter = Some(both.unwrap_or_else(|| predicate.clone()));
        }
        self
    }

    /// All files, in the order of the inputs and sorted by path within each. At least one, or a fault that names the
    /// path.
    pub async fn list(&self) -> Result<Vec<DataFile>, Fault> {
        let mut files = Vec::new();
        for Part { place, filter } in &self.0 {
            files.extend(match place {
                Place::Text(text) => list_filtered(text, filter.as_ref()).await?,
                Place::Store(store, path) => {
                    listing::list(store, path, &format!("{store}:{path}"), "", filter.as_ref()).await?
                }
            });
        }
        if files.is_empty() {
            return Err(Fault::user("no input given: name a file, a folder or a glob"));
        }
        Ok(files)
    }
}

impl<T: Into<PathBuf>> From<T> for Input {
    fn from(path: T) -> Self {
        Self(vec![Part { place: Place::Text(path.into().to_string_lossy().into_owned()), filter: None }])
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Part { place, filter }) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match place {
                Place::Text(text) => write!(f, "{comma}{text}")?,
                Place::Store(store, path) => write!(f, "{comma}{store}:{path}")?,
            }
            if let Some(filter) = filter {
                write!(f, " where {filter}")?;
            }
        }
        Ok(())
    }
}

/// The files at a path, URL or glob, sorted by path. Below a folder, what Spark does not read is left out: names that
/// begin with `.`, names that begin with `_` and hold no `=`, copies under way (`._COPYING_`), and empty files.
pub async fn list(url_or_path: &str) -> Result<Vec<DataFile>, Fault> {
    list_filtered(url_or_path, None).await
}

async fn list_filtered(url_or_path: &str, filter: Option<&Predicate>) -> Result<Vec<DataFile>, Fault> {
    let (store, path) = open(url_or_path)?;
    listing::list(&store, &path, url_or_path, &root(url_or_path), filter).await
}
