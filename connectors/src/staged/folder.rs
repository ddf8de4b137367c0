//! A folder in any store: its name, and once opened, its contents. Everything here blocks on the disk or the store.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path as LocalPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_actors::{Fault, FaultKind};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectStore, ObjectStoreExt};
use rustix::fs::OFlags;

use super::error::fault;
use super::fail_points::pass;
use super::stop::StopFlag;
use crate::disks::TriedDisks;
use crate::input::Input;
use crate::store_error::store_fault;
use crate::stores::{Stores, absolute, local_path};

/// A folder to write or to read: a plain path, a URL (`file://`, `hdfs://`, `s3://`), or a path in a store that the
/// caller holds. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct Folder {
    at: Location,
    pub(super) stop: StopFlag,
}

#[derive(Clone, Debug)]
enum Location {
    /// A path or URL, and the stores to open it in.
    Url(String, Stores),
    InStore(StoreFolder),
}

/// A folder in a store that is not the local file system.
#[derive(Clone, Debug)]
pub(super) struct StoreFolder {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    /// The stores, on whose threads the calls wait.
    pub(super) stores: Stores,
    /// Whether the store renames a folder, with all below it, in one step.
    pub(super) renames: bool,
    /// As messages name it.
    pub(super) name: String,
    /// The URL it was opened by.
    pub(super) url: Option<String>,
}

/// A folder whose store is open.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    pub(super) at: Opened,
    pub(super) stop: StopFlag,
    pub(super) disks: TriedDisks,
    held: Option<Arc<File>>,
    /// Grows with the bytes that files of the folder take.
    pub(super) written: Option<Arc<AtomicU64>>,
}

#[derive(Clone, Debug)]
pub(super) enum Opened {
    Local(PathBuf),
    Store(StoreFolder),
}

impl Folder {
    /// A folder in a store that the caller opened, without folders and renames, such as S3 or memory.
    pub fn in_store(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self::in_any_store(store, path, false)
    }

    /// The same in a store that has folders, as HDFS does: it renames one in one step, and deletes one with all below it.
    pub fn in_renaming_store(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self::in_any_store(store, path, true)
    }

    fn in_any_store(store: Arc<dyn ObjectStore>, path: Path, renames: bool) -> Self {
        let name = format!("{store}:{path}");
        Self::of_store(StoreFolder { store, path, stores: Stores::default(), renames, name, url: None })
    }

    /// A folder of a store that is open.
    pub(super) fn of_store(folder: StoreFolder) -> Self {
        Self::at(Location::InStore(folder))
    }

    fn at(at: Location) -> Self {
        Self { at, stop: StopFlag::default() }
    }

    /// Opens a path or URL in these stores, and works on their threads. Without it, a folder has stores of its own.
    #[must_use]
    pub fn with_stores(mut self, stores: &Stores) -> Self {
        match &mut self.at {
            Location::Url(_, own) | Location::InStore(StoreFolder { stores: own, .. }) => *own = stores.clone(),
        }
        self
    }

    /// No file is written there after `stop` is set: a write fails with a fault of the kind [`FaultKind::Drained`], and a staged folder is
    /// removed.
    #[must_use]
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = StopFlag(Some(stop));
        self
    }

    /// Opens the store. A user fault if there is none for the URL.
    pub fn open(&self) -> Result<OpenFolder, Fault> {
        let (Location::Url(_, stores) | Location::InStore(StoreFolder { stores, .. })) = &self.at;
        Ok(OpenFolder {
            at: self.opened()?,
            stop: self.stop.clone(),
            disks: stores.disks().clone(),
            held: None,
            written: None,
        })
    }

    fn opened(&self) -> Result<Opened, Fault> {
        let (url, stores) = match &self.at {
            Location::InStore(folder) => return Ok(Opened::Store(folder.clone())),
            Location::Url(url, stores) => (url, stores),
        };
        let Some(local) = local_path(url) else {
            let (store, path) = stores.open(url)?;
            let renames = ["hdfs://", "viewfs://"].iter().any(|scheme| url.starts_with(scheme));
            let (name, url) = named(url);
            return Ok(Opened::Store(StoreFolder {
                store,
                path,
                stores: stores.clone(),
                renames,
                name,
                url: Some(url),
            }));
        };
        if local.is_empty() {
            return Err(Fault::user("the path is empty: name a folder"));
        }
        Ok(Opened::Local(absolute(&local)?))
    }
}

/// A URL as messages name it, and as `/` and a name follow it: `hdfs:///` is `hdfs://` there.
fn named(url: &str) -> (String, String) {
    let trimmed = url.trim_end_matches('/');
    match trimmed.strip_suffix(':') {
        Some(scheme) => (format!("{scheme}:///"), format!("{scheme}://")),
        None => (trimmed.to_owned(), trimmed.to_owned()),
    }
}

/// What is directly in a folder; `None` if the store says that there is none.
pub(super) async fn list(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<Option<ListResult>> {
    match store.list_with_delimiter(Some(folder)).await {
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Whether anything is in a folder; false if there is none.
pub(super) async fn holds(store: &dyn ObjectStore, folder: &Path) -> object_store::Result<bool> {
    let found = list(store, folder).await?;
    Ok(found.is_some_and(|found| !found.objects.is_empty() || !found.common_prefixes.is_empty()))
}

/// A path that leads to an open folder under any name.
fn path_of(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// What is at a path, a link followed; `None` if nothing is.
fn look(path: &LocalPath) -> io::Result<Option<fs::Metadata>> {
    unless_missing(fs::metadata(path))
}

/// `None` if nothing is there: also if a file is in the place of a folder above, or if no file can have such a name. Any other error may
/// hide a file.
fn unless_missing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename) => {
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// Opens a file to read. Opening a pipe would wait for what writes to it.
fn open_file(path: &LocalPath) -> io::Result<File> {
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(no_wait).open(path)?;
    let there = file.metadata()?;
    match there.is_file() || there.is_dir() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidFilename, "it is a pipe or a device, expected a file")),
    }
}

impl<T: Into<PathBuf>> From<T> for Folder {
    fn from(path: T) -> Self {
        Self::at(Location::Url(path.into().to_string_lossy().into_owned(), Stores::default()))
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.at {
            Location::Url(url, _) => url,
            Location::InStore(folder) => &folder.name,
        })
    }
}

impl fmt::Display for OpenFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Opened::Local(path) => write!(f, "{}", path.display()),
            Opened::Store(folder) => f.write_str(&folder.name),
        }
    }
}

impl OpenFolder {
    /// As [`Folder::stopped_by`].
    #[must_use]
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = StopFlag(Some(stop));
        self
    }

    /// Adds to `written` the bytes that files of [`create`](Self::create) take, so that another thread can see whether the store takes any.
    #[must_use]
    pub fn counted_by(mut self, written: Arc<AtomicU64>) -> Self {
        self.written = Some(written);
        self
    }

    /// Holds a local folder, so that later reads stay in this folder even if another one takes its name, or find that its files are
    /// removed. A folder in a store, or a missing one, is returned unchanged.
    ///
    /// So does a local one where no `/proc` is mounted, as in some chroots: its files are read by their paths. Then another folder that has
    /// the name for a moment, between two reads, is not noticed.
    #[must_use]
    pub fn held(mut self) -> Self {
        if let Opened::Local(path) = &self.at {
            let opened = OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(path);
            self.held = opened.ok().filter(|folder| path_of(folder).exists()).map(Arc::new);
        }
        self
    }

    /// Whether this is a local folder that is [`held`](Self::held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The folder that has the name, which may be another one than the [`held`](Self::held) folder.
    #[must_use]
    pub fn by_name(&self) -> Self {
        Self { held: None, ..self.clone() }
    }

    /// Opens a file of a local folder.
    pub(super) fn open_to_read(&self, path: &LocalPath, file: &str) -> io::Result<File> {
        pass(&path.join(file), "before read").and_then(|()| open_file(&self.path_to_read(path, file)))
    }

    /// The device and the inode of a local folder: of the [`held`](Self::held) one, which no other folder gets meanwhile, or of the folder
    /// that has the name. `None` for a folder in a store, or a missing one.
    #[must_use]
    pub fn inode(&self) -> Option<(u64, u64)> {
        let there = match (&self.at, &self.held) {
            (Opened::Store(_), _) => return None,
            (Opened::Local(_), Some(held)) => held.metadata(),
            (Opened::Local(path), None) => fs::metadata(path),
        };
        there.ok().map(|there| (there.dev(), there.ino()))
    }

    /// The path by which files of a local folder are read.
    fn path_to_read(&self, path: &LocalPath, file: &str) -> PathBuf {
        match &self.held {
            Some(held) => path_of(held).join(file),
            None => path.join(file),
        }
    }

    /// # Errors
    /// A fault of the kind [`FaultKind::Drained`], if nothing more is to be written here.
    pub fn check_not_stopped(&self) -> Result<(), Fault> {
        self.stop.check(self)
    }

    /// A file of the folder as messages name it.
    #[must_use]
    pub fn name(&self, file: &str) -> String {
        match &self.at {
            Opened::Store(StoreFolder { url: Some(url), .. }) => format!("{url}/{file}"),
            _ => format!("{self}/{file}"),
        }
    }

    /// Whether a file stands where the folder would, or a pipe or a device.
    pub fn is_file(&self) -> Result<bool, Fault> {
        match &self.at {
            Opened::Local(path) => {
                let there = look(path).map_err(|e| fault(self, "cannot look at", e))?;
                Ok(there.is_some_and(|there| !there.is_dir()))
            }
            Opened::Store(folder) => folder.has(folder.path.clone()),
        }
    }

    /// Whether the folder has this file.
    pub fn has(&self, file: &str) -> Result<bool, Fault> {
        match &self.at {
            Opened::Local(path) => {
                let there = look(&path.join(file)).map_err(|e| fault(self.name(file), "cannot look at", e))?;
                Ok(there.is_some_and(|there| there.is_file()))
            }
            Opened::Store(folder) => folder.has(folder.file(file)?),
        }
    }

    /// Whether anything is in the folder; false if there is none.
    pub fn holds_anything(&self) -> Result<bool, Fault> {
        match &self.at {
            Opened::Local(path) => {
                let dir = unless_missing(fs::read_dir(path));
                let first = dir.and_then(|dir| dir.and_then(|mut entries| entries.next()).transpose());
                Ok(first.map_err(|e| fault(self, "cannot look into", e))?.is_some())
            }
            Opened::Store(folder) => folder.holds_anything(),
        }
    }

    /// Hands the bytes of a file to `take`, piece by piece, and returns the final `state`. At most a few MiB are in memory at once.
    ///
    /// # Errors
    /// A user fault that names the file if it is not there or may not be read.
    pub fn fold<T: Send + 'static>(
        &self,
        file: &str,
        mut state: T,
        mut take: impl FnMut(&mut T, &[u8]) + Send + 'static,
    ) -> Result<T, Fault> {
        let name = self.name(file);
        match &self.at {
            Opened::Local(path) => {
                let cannot = |e| fault(&name, "cannot read", e);
                let mut file = self.open_to_read(path, file).map_err(cannot)?;
                let mut buffer = vec![0; 1 << 20];
                loop {
                    match file.read(&mut buffer).map_err(cannot)? {
                        0 => return Ok(state),
                        n => take(&mut state, &buffer[..n]),
                    }
                }
            }
            Opened::Store(folder) => {
                let (store, at) = (Arc::clone(&folder.store), folder.file(file)?);
                folder.wait(async move {
                    let cannot = |e| store_fault(&format!("cannot read `{name}`"), e);
                    let mut pieces = store.get(&at).await.map_err(cannot)?.into_stream();
                    while let Some(piece) = pieces.next().await {
                        take(&mut state, &piece.map_err(cannot)?);
                    }
                    Ok(state)
                })
            }
        }
    }

    /// All bytes of a file that holds at most `most`.
    pub fn bytes(&self, file: &str, most: u64) -> Result<Vec<u8>, Fault> {
        let bytes = self.fold(file, Vec::new(), move |all: &mut Vec<u8>, piece| {
            let room = most.saturating_add(1).saturating_sub(all.len() as u64).min(piece.len() as u64);
            all.extend_from_slice(&piece[..room as usize]);
        })?;
        if bytes.len() as u64 > most {
            let message = format!("`{}` is longer than {most} bytes, the most expected", self.name(file));
            return Err(Fault::user(message).kind(FaultKind::Damaged));
        }
        Ok(bytes)
    }

    /// A file of the folder as the input of a source, under its [`name`](Self::name).
    pub fn input(&self, file: &str) -> Result<Input, Fault> {
        let input = match &self.at {
            Opened::Local(path) => Input::from(self.path_to_read(path, file)),
            Opened::Store(StoreFolder { url: Some(url), stores, .. }) => {
                Input::from(format!("{url}/{file}")).with_stores(stores)
            }
            Opened::Store(folder) => Input::in_store(Arc::clone(&folder.store), folder.file(file)?),
        };
        Ok(input.named(&self.name(file)))
    }
}

impl StoreFolder {
    /// The path of a file of the folder; its name may hold slashes.
    pub(super) fn file(&self, file: &str) -> Result<Path, Fault> {
        Path::parse(format!("{}/{file}", self.path))
            .map_err(|e| Fault::user(format!("`{file}` is not a name within `{}`", self.name)).because(e))
    }

    fn has(&self, file: Path) -> Result<bool, Fault> {
        let (store, name) = (Arc::clone(&self.store), self.name.clone());
        self.wait(async move {
            match store.head(&file).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::NotFound { .. }) => Ok(false),
                Err(e) => Err(store_fault(&format!("cannot look into `{name}`"), e)),
            }
        })
    }

    pub(super) fn holds_anything(&self) -> Result<bool, Fault> {
        let Self { store, path, name, .. } = self.clone();
        self.wait(async move {
            holds(&*store, &path).await.map_err(|e| store_fault(&format!("cannot look into `{name}`"), e))
        })
    }

    /// Runs a future on the stores' threads and blocks until its end, without a lock or channel of tokio, so that the caller's thread may
    /// itself run a tokio runtime.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.stores.io().start()?;
        self.stores.io().spawn(async move {
            let ended = AssertUnwindSafe(future).catch_unwind().await;
            // A caller that is gone wants no result.
            let _ =
                done.send(ended.unwrap_or_else(|panic| Err(Fault::of_panic("a task of a store panicked", &*panic))));
        });
        result.recv().unwrap_or_else(|_| Err(Fault::internal("a task of a store ended before it was done")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_the_default_file_system_has_a_name() {
        for (url, name, before_a_file) in [
            ("hdfs:///", "hdfs:///", "hdfs://"),
            ("hdfs://ns/", "hdfs://ns", "hdfs://ns"),
            ("hdfs:///a//", "hdfs:///a", "hdfs:///a"),
        ] {
            assert_eq!(named(url), (name.to_owned(), before_a_file.to_owned()));
        }
    }
}
