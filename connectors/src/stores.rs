//! The stores that a program opened, by URL: object stores for local paths, HDFS and S3.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path as LocalPath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, fs};

use forebay_actors::{Fault, FaultKind, IoRuntime};
use object_store::ObjectStore;
use object_store::path::Path;
use percent_encoding::percent_decode_str;

use crate::disks::TriedDisks;
use crate::hdfs::{self, HdfsStore};
use crate::local_files::LocalFiles;
use crate::store_error::{io_fault, one_line, unreadable};

/// Opens stores, and shares what they need: connections by cluster or bucket, limits of concurrent reads, buffers, and
/// the threads of one IO runtime. A program makes one and passes it on. Cheap to clone.
///
/// Network stores work on the IO runtime for every calling thread: connections outlive pipelines, and many connections need more than one
/// thread. An opened store keeps the runtime alive.
#[derive(Clone)]
pub struct Stores(Arc<SharedStores>);

struct SharedStores {
    io: IoRuntime,
    hdfs: Arc<hdfs::Shared>,
    /// By root, see [`Stores::root`].
    opened: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    disks: TriedDisks,
}

impl Stores {
    /// Stores that work on the threads of `io`.
    pub fn new(io: IoRuntime) -> Self {
        let hdfs = Arc::new(hdfs::Shared::new(io.clone()));
        Self(Arc::new(SharedStores { io, hdfs, opened: Mutex::default(), disks: TriedDisks::default() }))
    }

    /// The runtime that the stores work on.
    pub fn io(&self) -> &IoRuntime {
        &self.0.io
    }

    /// Opens the store that a path or URL lies in: a plain path, `file://`, `hdfs://`, `viewfs://`, with the cargo
    /// feature `s3` also `s3://`. Returns the store and the path in it. Reads no data.
    ///
    /// # Errors
    /// A user fault if there is no store for the URL, or if a name service or a file of settings is missing. Also if the folder before a
    /// `..` is missing, or cannot be read.
    pub fn open(&self, url_or_path: &str) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        let Some(local) = local_path(url_or_path) else { return self.open_url(url_or_path) };
        if local.is_empty() {
            return Err(Fault::user("the path is empty: name a file, a folder or a glob"));
        }
        let clean = without_dots(&absolute(&local)?).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let nothing = format!("there is nothing at `{}`: check the path", one_line(&local));
                Fault::user(nothing).kind(FaultKind::NotFound)
            }
            _ => io_fault(&format!("cannot resolve `{}`", one_line(&local)), e),
        })?;
        let path = Path::from_absolute_path(clean)
            .map_err(|e| Fault::user(format!("cannot read `{}`: {}", one_line(&local), unreadable(&e))))?;
        Ok((Arc::new(LocalFiles::default()), path))
    }

    /// As [`open`](Self::open), for a URL.
    fn open_url(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        if let Some(meant) = with_two_slashes(url) {
            return Err(Fault::user(format!(
                "cannot open `{url}`: a URL has two slashes behind the colon, so write `{meant}`; `./{url}` is a local path"
            )));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        match scheme {
            "hdfs" | "viewfs" => {
                let path = &resolved(rest.split_once('/').map_or("", |(_, path)| path));
                let open = |root: &str| Ok(Arc::new(HdfsStore::open(root, Arc::clone(&self.0.hdfs))?) as _);
                Ok((self.opened(Self::root(url), open)?, parse(path, url)?))
            }
            #[cfg(feature = "s3")]
            "s3" | "s3a" => {
                let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
                let store = self.opened(format!("s3://{bucket}/"), |_| crate::s3::open(bucket, &self.0.io))?;
                Ok((store, parse(path, url)?))
            }
            #[cfg(not(feature = "s3"))]
            "s3" | "s3a" => Err(Fault::user(format!(
                "cannot open `{url}`: this program was built without `{scheme}://`, build it with `--features s3`"
            ))),
            _ if scheme.contains(|letter: char| letter.is_ascii_uppercase()) => Err(Fault::user(format!(
                "cannot open `{url}`: write its scheme in lower case, `{}://`",
                scheme.to_ascii_lowercase()
            ))),
            _ => Err(Fault::user(format!(
                "cannot open `{url}`: no store for `{scheme}://` is built in, use a local path, file://, hdfs:// or s3://"
            ))),
        }
    }

    /// The disks of the local folders that outputs were tried in.
    pub(crate) fn disks(&self) -> &TriedDisks {
        &self.0.disks
    }

    /// The store of a URL of HDFS, with connections of its own.
    pub(crate) fn hdfs(&self, url: &str) -> Result<HdfsStore, Fault> {
        HdfsStore::open(&Self::root(url), Arc::clone(&self.0.hdfs))
    }

    /// The prefix that makes a path in the store a name for [`open`](Self::open): `/`, or for instance `hdfs://host:8020/`.
    pub fn root(url_or_path: &str) -> String {
        match url_or_path.split_once("://") {
            None => "/".to_owned(),
            Some((scheme, _)) if is_file(scheme) => "/".to_owned(),
            Some((scheme, rest)) => format!("{scheme}://{}/", rest.split('/').next().unwrap_or_default()),
        }
    }

    /// The store of a root, opened at the first call.
    fn opened(
        &self,
        root: String,
        open: impl FnOnce(&str) -> Result<Arc<dyn ObjectStore>, Fault>,
    ) -> Result<Arc<dyn ObjectStore>, Fault> {
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.get(&root) {
            return Ok(Arc::clone(store));
        }
        let store = open(&root)?;
        opened.insert(root, Arc::clone(&store));
        Ok(store)
    }
}

impl Default for Stores {
    /// Stores with an IO runtime of their own: up to 8 threads, started when a network store is opened.
    fn default() -> Self {
        Self::new(IoRuntime::new("store-io", IoRuntime::cores(8)))
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stores({:?})", self.0.io)
    }
}

fn parse(path: &str, url: &str) -> Result<Path, Fault> {
    let path = path.trim_end_matches('/');
    Path::parse(path).map_err(|e| Fault::user(format!("cannot read `{}`: {}", one_line(url), unreadable(&e))))
}

/// Whether a scheme means local files, in any case (RFC 3986).
fn is_file(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("file")
}

/// A local path from the root on.
///
/// # Errors
/// User: the path is relative, and the working directory has been removed.
pub(crate) fn absolute(local: &str) -> Result<PathBuf, Fault> {
    std::path::absolute(local).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Fault::user(format!(
            "cannot resolve `{}`: the working directory has been removed: change to another one, or give a path from the root on",
            one_line(local)
        )),
        _ => Fault::user(format!("cannot resolve `{}`", one_line(local))).because(e),
    })
}

/// The local path that a path or a URL `file://` means; `None` for other URLs. The host of a URL may be `localhost` (RFC 8089). In a URL
/// `%20` is a space, as in RFC 3986, and a `%` that no two hexadecimal digits follow is itself.
pub(crate) fn local_path(url_or_path: &str) -> Option<Cow<'_, str>> {
    match url_or_path.split_once("://") {
        None if with_two_slashes(url_or_path).is_some() => None,
        None => Some(Cow::Borrowed(url_or_path)),
        Some((scheme, rest)) if is_file(scheme) => {
            let host = rest.find('/').filter(|slash| rest[..*slash].eq_ignore_ascii_case("localhost"));
            let path = &rest[host.unwrap_or_default()..];
            Some(percent_decode_str(path).decode_utf8().unwrap_or(Cow::Borrowed(path)))
        }
        Some(_) => None,
    }
}

/// `hdfs:///a` for `hdfs:/a`, which Hadoop takes for the same. `None` for all other paths and URLs.
fn with_two_slashes(url: &str) -> Option<String> {
    let (scheme, path) = url.split_once(":/").filter(|(_, path)| !path.starts_with('/'))?;
    let known = ["hdfs", "viewfs", "file", "s3", "s3a"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    known.then(|| format!("{scheme}://{}{path}", if scheme.starts_with("s3") { "" } else { "/" }))
}

/// A path of HDFS without `.`, `..` and empty names, as Hadoop resolves it: by the names alone.
fn resolved(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names.join("/")
}

/// A path or URL to compare, not to open: a store with several names gets one name.
pub(crate) fn comparable(url_or_path: &str) -> String {
    let Some((scheme, rest)) = url_or_path.split_once("://") else { return url_or_path.to_owned() };
    let (store, path) = rest.split_once('/').unwrap_or((rest, ""));
    match scheme {
        "hdfs" | "viewfs" => format!("{scheme}://{}/{path}", hdfs::one_name(store)),
        "s3" | "s3a" => format!("s3://{store}/{path}"),
        _ => url_or_path.to_owned(),
    }
}

/// `/a/./b/../c` is `/a/c`, as the system resolves it: if `b` is a symbolic link, `c` beside its target. After a wildcard, where no name is
/// known, it is `/a/c`.
fn without_dots(path: &LocalPath) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                let is_glob = clean.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?'));
                if !is_glob && fs::symlink_metadata(&clean)?.is_symlink() {
                    clean = fs::canonicalize(&clean)?;
                }
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `link/..` was the folder of the link, so other rows were read than the path means to the system.
    #[test]
    fn the_folder_above_a_link_is_that_of_its_target() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["here/one", "other/sub", "other/one"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("../other/sub", dir.path().join("here/link")).unwrap();
        let path = |of: &str| {
            let opened = Stores::default().open(&format!("{}/{of}", dir.path().display()));
            opened.map(|(_, path)| format!("/{path}")).map_err(|fault| fault.to_string())
        };
        let real = fs::canonicalize(dir.path()).unwrap().display().to_string();
        assert_eq!(path("here/link/../one"), Ok(format!("{real}/other/one")));
        assert_eq!(path("here/link/../one/*.csv"), Ok(format!("{real}/other/one/*.csv")));
        assert_eq!(path("here/one/../link"), Ok(format!("{}/here/link", dir.path().display())));
        assert_eq!(path("here/*/../one"), Ok(format!("{}/here/one", dir.path().display())));
        assert!(path("here/none/../one").unwrap_err().contains("there is nothing at"));
        assert!(path("here/link/../../other/sub").is_ok_and(|path| path == format!("{real}/other/sub")));
    }

    #[test]
    fn a_url_with_one_slash_is_no_local_path() {
        let said = |url: &str| Stores::default().open(url).err().map(|fault| fault.to_string()).unwrap_or_default();
        for (url, meant) in [
            ("hdfs:/a/b", "write `hdfs:///a/b`"),
            ("viewfs:/a", "write `viewfs:///a`"),
            ("file:/a", "write `file:///a`"),
            ("s3:/bucket/a", "write `s3://bucket/a`"),
        ] {
            assert!(said(url).contains(meant), "{}", said(url));
            assert_eq!(local_path(url), None);
        }
        for path in ["a:/b", "./hdfs:/a", "hdfs:a", "C:/a"] {
            assert_eq!(local_path(path).as_deref(), Some(path));
        }
    }

    #[test]
    fn paths_of_hdfs_are_resolved_by_their_names() {
        for (path, expected) in
            [("a//b/", "a/b"), ("./a/./b/../c", "a/c"), ("../a", "a"), ("a/*/..x/b", "a/*/..x/b"), ("", "")]
        {
            assert_eq!(resolved(path), expected, "{path}");
        }
    }

    #[test]
    fn urls_of_files_are_decoded_and_paths_are_not() {
        let stores = Stores::default();
        let path = |of: &str| stores.open(of).unwrap().1;
        assert_eq!(path("file:///a/b%20c/%C3%A4%231.csv"), path("/a/b c/\u{e4}#1.csv"));
        assert_ne!(path("/a/b%20c"), path("/a/b c"));
        for url in ["file://localhost/a/b", "FILE:///a/b", "File://LOCALHOST/a/b"] {
            assert_eq!((path(url), Stores::root(url).as_str()), (path("/a/b"), "/"), "{url}");
        }
        assert_ne!(path("file://localhosts/a/b"), path("/a/b"));
        assert!(stores.open("HDFS://ns/a").unwrap_err().to_string().contains("in lower case, `hdfs://`"));
        for kept in ["/a/100%", "/a/5%zz", "/a/%f", "/a/%ff"] {
            assert_eq!(path(&format!("file://{kept}")), path(kept), "{kept}");
        }
    }
}
