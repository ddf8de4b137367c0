//! What there is to read: a path, URL or glob becomes files, in a fixed order.
//!
//! Comes in: a file, a folder (taken with all below it), or a glob, in any store. Goes out: [`DataFile`]s, sorted by
//! path. Only metadata is read; `list` awaits the store.

use std::fmt;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::Arc;

use forebay_actors::fault::Fault;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::store::{open, store_fault};

/// One file to read.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// The store it lies in.
    pub store: Arc<dyn ObjectStore>,
    /// Its path in the store.
    pub path: Path,
    /// Its size in bytes when it was listed.
    pub size: u64,
    /// Its path as messages print it.
    pub name: String,
}

/// What a source reads: a path, several, or a path in a store that the caller holds.
#[derive(Clone, Debug)]
pub struct Input(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Store(Arc<dyn ObjectStore>, Path),
}

impl Input {
    /// A file, folder or glob in a store that the caller opened.
    pub fn in_store(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self(vec![Part::Store(store, path)])
    }

    /// Several inputs, read one after the other.
    pub fn all(inputs: impl IntoIterator<Item = Input>) -> Self {
        Self(inputs.into_iter().flat_map(|input| input.0).collect())
    }

    /// All files, in the order of the inputs and sorted by path within each. At least one, or a fault that names the path.
    pub async fn list(&self) -> Result<Vec<DataFile>, Fault> {
        let mut files = Vec::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => files.extend(list(text).await?),
                Part::Store(store, path) => files.extend(list_in(store, path, &format!("{store}:{path}"), "").await?),
            }
        }
        if files.is_empty() {
            return Err(Fault::user("no input given: name a file, a folder or a glob"));
        }
        Ok(files)
    }
}

impl<T: Into<PathBuf>> From<T> for Input {
    fn from(path: T) -> Self {
        Self(vec![Part::Text(path.into().to_string_lossy().into_owned())])
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match part {
                Part::Text(text) => write!(f, "{comma}{text}")?,
                Part::Store(store, path) => write!(f, "{comma}{store}:{path}")?,
            }
        }
        Ok(())
    }
}

/// The files at a path, URL or glob, sorted by path. Below a folder, names that begin with `_` or `.` and empty files
/// are left out.
pub async fn list(url_or_path: &str) -> Result<Vec<DataFile>, Fault> {
    let (store, path) = open(url_or_path)?;
    list_in(&store, &path, url_or_path, "/").await
}

async fn list_in(store: &Arc<dyn ObjectStore>, path: &Path, text: &str, root: &str) -> Result<Vec<DataFile>, Fault> {
    let file = |path: Path, size| DataFile { store: Arc::clone(store), name: format!("{root}{path}"), path, size };
    if !path.as_ref().contains(['*', '?']) {
        match store.head(path).await {
            Ok(meta) if meta.size == 0 => {
                return Err(Fault::user(format!("`{text}` is an empty file: no rows to read")));
            }
            Ok(meta) => return Ok(vec![file(meta.location, meta.size)]),
            // A folder: how a store says so differs, and a listing that finds nothing says it for all.
            Err(_) => {}
        }
    }
    let whole = path.as_ref();
    let fixed = match whole.find(['*', '?']) {
        Some(at) => whole[..at].rfind('/').map_or("", |slash| &whole[..slash]),
        None => whole,
    };
    let fixed =
        Path::parse(fixed).map_err(|e| Fault::user(format!("`{text}` is not a path that can be read")).because(e))?;
    let pattern = (fixed != *path).then_some(whole);
    let found = store.list(Some(&fixed)).try_collect::<Vec<_>>().await;
    let found = match found {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => Vec::new(),
        Err(e) => return Err(store_fault(&format!("cannot list `{text}`"), e)),
    };
    let below = fixed.as_ref().len();
    let mut files: Vec<DataFile> = found
        .into_iter()
        .filter(|meta| meta.size > 0)
        .filter(|meta| match pattern {
            Some(pattern) => glob(pattern.as_bytes(), meta.location.as_ref().as_bytes()),
            None => true,
        })
        .filter(|meta| !meta.location.as_ref()[below..].split('/').any(|name| name.starts_with(['_', '.'])))
        .map(|meta| file(meta.location, meta.size))
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if files.is_empty() {
        let what = match pattern {
            Some(_) => format!("no file matches `{text}`: `*` and `?` stay within a name, `**` spans folders"),
            None if root == "/" && LocalPath::new("/").join(whole).is_dir() => {
                format!(
                    "the folder `{text}` holds no data: files whose names begin with `_` or `.` and empty files are left out"
                )
            }
            None => format!("there is nothing at `{text}`: check the path"),
        };
        return Err(Fault::user(what));
    }
    Ok(files)
}

/// Whether `name` matches `pattern`: `*` any run without `/`, `**` any run, `?` one character but `/`.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    // One flag per place in the pattern: which prefixes of it can match what was read. Linear in pattern x name.
    let closure = |at: &mut Vec<bool>| {
        for p in 0..pattern.len() {
            if at[p] && pattern[p] == b'*' {
                at[p + 1] = true;
                // `**/` also stands for no folder at all.
                if pattern[p..].starts_with(b"**/") && (p == 0 || pattern[p - 1] == b'/') {
                    at[p + 3] = true;
                }
            }
        }
    };
    let mut at = vec![false; pattern.len() + 1];
    at[0] = true;
    closure(&mut at);
    for &c in name {
        let mut next = vec![false; pattern.len() + 1];
        for p in 0..pattern.len() {
            if !at[p] {
                continue;
            }
            match pattern[p] {
                b'*' => {
                    let spans = pattern.get(p + 1) == Some(&b'*') || (p > 0 && pattern[p - 1] == b'*');
                    next[p] |= spans || c != b'/';
                }
                b'?' => next[p + 1] |= c != b'/',
                literal => next[p + 1] |= literal == c,
            }
        }
        closure(&mut next);
        at = next;
    }
    at[pattern.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, name, matches) in [
            ("a/*.parquet", "a/x.parquet", true),
            ("a/*.parquet", "a/b/x.parquet", false),
            ("a/**/*.parquet", "a/b/c/x.parquet", true),
            ("a/**/*.parquet", "a/x.parquet", true),
            ("a/**", "a/b/c", true),
            ("a/part-??", "a/part-07", true),
            ("a/part-??", "a/part-7", false),
            ("a/*", "a/", true),
            ("*a*b", "xxaxxab", true),
            ("*a*b", "xxaxxba", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), matches, "{pattern} {name}");
        }
    }

    #[tokio::test]
    async fn a_folder_is_listed_with_all_below_it_in_a_fixed_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.parquet", "a.parquet", "_SUCCESS", ".hidden", "sub/c.parquet", "_tmp/d.parquet"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
        std::fs::write(dir.path().join("zero.parquet"), b"").unwrap();
        let names = |files: Vec<DataFile>| -> Vec<String> {
            files
                .iter()
                .map(|f| LocalPath::new(&f.name).strip_prefix(dir.path()).unwrap().display().to_string())
                .collect()
        };
        let root = dir.path().display().to_string();
        let all = ["a.parquet", "b.parquet", "sub/c.parquet"];
        assert_eq!(names(list(&root).await.unwrap()), all);
        assert_eq!(names(list(&format!("file://{root}/")).await.unwrap()), all);
        assert_eq!(names(list(&format!("{root}/sub/../?.parquet")).await.unwrap()), all[..2]);
        assert_eq!(names(list(&format!("{root}/**/*.parquet")).await.unwrap()), all);
        assert_eq!(names(list(&format!("{root}/b.parquet")).await.unwrap()), ["b.parquet"]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        let said = async |text: String| list(&text).await.unwrap_err().to_string();
        assert!(said(root.clone()).await.contains("holds no data"));
        assert!(said(format!("{root}/nope")).await.contains(&format!("nothing at `{root}/nope`")));
        assert!(said(format!("{root}/*.x")).await.contains("no file matches"));
        assert!(said("s3://b/k".into()).await.contains("s3://"));
        std::fs::write(dir.path().join("zero"), b"").unwrap();
        assert!(said(format!("{root}/zero")).await.contains("empty file"));
    }
}
