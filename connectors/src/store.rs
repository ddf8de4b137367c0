//! Where bytes lie: a path or URL becomes an object store and a path in it.
//!
//! Comes in: a plain path or `file://`. Goes out: the store, nothing read yet.

use std::path::{Component, Path as LocalPath, PathBuf};
use std::sync::Arc;

use forebay_actors::fault::Fault;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

/// Opens the store a path or URL lies in: plain paths and `file://`. Nothing is read.
pub fn open(url_or_path: &str) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
    let local = match url_or_path.split_once("://") {
        None => url_or_path,
        Some(("file", rest)) => rest,
        Some((scheme, _)) => {
            return Err(Fault::user(format!(
                "cannot read `{url_or_path}`: no store for `{scheme}://` is built in, use a local path or file://"
            )));
        }
    };
    if local.is_empty() {
        return Err(Fault::user("the path is empty: name a file, a folder or a glob"));
    }
    let absolute =
        std::path::absolute(local).map_err(|e| Fault::user(format!("cannot resolve `{local}`")).because(e))?;
    let path = Path::from_absolute_path(without_dots(&absolute))
        .map_err(|e| Fault::user(format!("`{local}` is not a path that can be read")).because(e))?;
    Ok((Arc::new(LocalFileSystem::new()), path))
}

/// `/a/./b/../c` is `/a/c`.
fn without_dots(path: &LocalPath) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// A store's error as a fault: what is missing or forbidden is the user's, the rest may pass.
pub(crate) fn store_fault(what: &str, error: object_store::Error) -> Fault {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Fault::user(format!("{what}: it is not there (any more)")).because(error),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } | E::InvalidPath { .. } => {
            Fault::user(what).because(error)
        }
        other => Fault::external(what).retryable().because(other),
    }
}
