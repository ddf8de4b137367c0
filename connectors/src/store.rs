//! Where bytes lie: a path or URL becomes an object store and a path in it, a range of a file becomes bytes.
//!
//! Comes in: a plain path, `file://`, `hdfs://` (and `viewfs://`), with the cargo feature `s3` also `s3://`. Goes out:
//! the store, nothing read yet. Stores that go over a network do their work on [`io_runtime`], whatever thread asks.

use std::ops::Range;
use std::path::{Component, Path as LocalPath, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use forebay_actors::fault::Fault;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};
use tokio::runtime::{Handle, Runtime};

use crate::hdfs;
use crate::input::DataFile;

/// Opens the store a path or URL lies in. Nothing is read; a name service or a file of settings that is missing is a
/// fault here.
pub fn open(url_or_path: &str) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
    let local = match url_or_path.split_once("://") {
        None => url_or_path,
        Some(("file", rest)) => rest,
        Some(("hdfs" | "viewfs", rest)) => {
            let path = rest.split_once('/').map_or("", |(_, path)| path);
            return Ok((hdfs::open(&root(url_or_path))?, parse(path, url_or_path)?));
        }
        #[cfg(feature = "s3")]
        Some(("s3" | "s3a", rest)) => {
            let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
            return Ok((crate::s3::open(bucket)?, parse(path, url_or_path)?));
        }
        #[cfg(not(feature = "s3"))]
        Some((scheme @ ("s3" | "s3a"), _)) => {
            return Err(Fault::user(format!(
                "cannot open `{url_or_path}`: this program was built without `{scheme}://`, build it with `--features s3`"
            )));
        }
        Some((scheme, _)) => {
            return Err(Fault::user(format!(
                "cannot open `{url_or_path}`: no store for `{scheme}://` is built in, use a local path, file://, hdfs:// or s3://"
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

/// What stands before a path in the store to make a name that [`open`] takes: `/`, or for instance `hdfs://host:8020/`.
pub fn root(url_or_path: &str) -> String {
    match url_or_path.split_once("://") {
        None | Some(("file", _)) => "/".to_owned(),
        Some((scheme, rest)) => format!("{scheme}://{}/", rest.split('/').next().unwrap_or_default()),
    }
}

fn parse(path: &str, url: &str) -> Result<Path, Fault> {
    let path = path.trim_end_matches('/');
    Path::parse(path).map_err(|e| Fault::user(format!("`{url}` is not a path that can be read")).because(e))
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

/// The runtime on which stores send, receive and check sums: connections outlive the pipelines that use them, and many
/// connections need more than the one thread of an arbiter. Up to 8 threads, started at first use.
pub fn io_runtime() -> &'static Handle {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("store-io")
            .enable_all()
            .build()
            .expect("threads can be started")
    });
    RUNTIME.handle()
}

/// Reads a range of a file, all of it, from the version that was listed. Cancel safe.
pub(crate) async fn read_range(file: &DataFile, range: Range<u64>) -> Result<Bytes, Fault> {
    let what = || format!("cannot read `{}`, bytes {} to {}", file.name, range.start, range.end);
    let options =
        GetOptions { range: Some(range.clone().into()), if_match: file.e_tag.clone(), ..GetOptions::default() };
    let got = async { file.store.get_opts(&file.path, options).await?.bytes().await };
    let bytes = got.await.map_err(|e| store_fault(&what(), e))?;
    if bytes.len() as u64 != range.end - range.start {
        return Err(Fault::external(format!(
            "{}: only {} bytes came: the file became shorter while it was read",
            what(),
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// A store's error as a fault: what is missing or forbidden is the user's, the rest may pass.
pub(crate) fn store_fault(what: &str, error: object_store::Error) -> Fault {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Fault::user(format!("{what}: it is not there (any more)")).because(error),
        E::Precondition { .. } => Fault::external(format!(
            "{what}: the file was replaced or changed after it was listed; start again, and write new data to new files"
        ))
        .because(error),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } | E::InvalidPath { .. } => {
            Fault::user(what).because(error)
        }
        E::Generic { source, .. } if source.is::<hdfs::Trouble>() => match source.downcast::<hdfs::Trouble>() {
            Ok(trouble) => trouble.into_fault(what),
            Err(source) => Fault::external(what).because(source),
        },
        other => Fault::external(what).retryable().because(other),
    }
}
