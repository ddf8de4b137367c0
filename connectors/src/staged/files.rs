//! Single files of a folder, in any store: a checkpoint folder grows file by file, and a file that appears last makes the
//! others count. Everything here blocks on the disk or the store.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forebay_actors::Fault;
use futures::executor::block_on;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::{ListResult, ObjectMeta, ObjectStoreExt, PutMode, PutOptions};
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::error::fault;
use super::fail_points::{PointedFile, around, pass};
use super::folder::{OpenFolder, Opened, StoreFolder, list};
use super::rename_flags::{FlaggedRename, is_unknown, no_replace};
use super::sync::sync_folder;
use super::writer::FileWriter;
use super::{flat, local, place, renamed};
use crate::store_error::store_fault;

/// Bytes of a local file that are read at once for a reader that asks for less. A reader that asks for more gets it without a copy.
const BUFFER: usize = 64 << 10;

/// Bytes that wait for [`Read::read`], beside those that the store fetches by itself; one piece may be longer. The limit counts bytes
/// because stores give pieces of 16 KiB to 16 MiB.
const BYTES_AHEAD: usize = 16 << 20;

impl OpenFolder {
    /// Makes a file of this name; parents are made, too. [`FileWriter::finish`] returns when the file is on the disk or in the
    /// store. Before that a local file may be there in part.
    pub fn create(&self, file: &str) -> Result<FileWriter, Fault> {
        self.create_as(file, &self.name(file))
    }

    /// As [`create`](Self::create); messages call the file `name`.
    pub(super) fn create_as(&self, file: &str, name: &str) -> Result<FileWriter, Fault> {
        let name = name.to_owned();
        self.stop.check(&name)?;
        let writer = match &self.at {
            Opened::Local(path) => {
                place::check_disk(&self.disks, path)?;
                let made = fs::create_dir_all(path).and_then(|()| PointedFile::create(&path.join(file)));
                FileWriter::synced(name.clone(), made.map_err(|e| fault(&name, "cannot make", e))?)
            }
            Opened::Store(folder) => FileWriter::store(name, folder, file, None)?,
        };
        Ok(writer.stopped_by(&self.stop).counted_by(self.written.as_ref()))
    }

    /// Makes a file with these bytes, whole or not at all, and durable. Returns false, and changes nothing, if another file of this name is
    /// there. A file with the same bytes counts as made by an earlier try.
    pub fn put_new(&self, file: &str, bytes: Vec<u8>) -> Result<bool, Fault> {
        let name = self.name(file);
        let made = match &self.at {
            Opened::Local(path) => {
                place::check_disk(&self.disks, path)?;
                put_local(path, file, &bytes, no_replace).map_err(|e| fault(&name, "cannot write", e))?
            }
            Opened::Store(folder) => folder.put_new(file, name, Bytes::from(bytes.clone()))?,
        };
        Ok(made || self.bytes(file, bytes.len() as u64).is_ok_and(|found| found == bytes))
    }

    /// The files directly in the folder with their lengths, by name. A folder that is not there has none.
    pub fn files(&self) -> Result<Vec<(String, u64)>, Fault> {
        let mut files = match &self.at {
            Opened::Local(path) => list_local(path).map_err(|e| fault(self, "cannot list", e))?,
            Opened::Store(folder) => folder.files()?,
        };
        files.sort();
        Ok(files)
    }

    /// A stamp that differs for another file of the same name, even one with the same bytes: the inode and the time of its last change, or
    /// the store's version.
    ///
    /// # Errors
    /// A user fault that names the file if it is not there.
    pub fn stamp(&self, file: &str) -> Result<String, Fault> {
        let name = self.name(file);
        match &self.at {
            Opened::Local(path) => {
                let there = fs::metadata(path.join(file)).map_err(|e| fault(&name, "cannot read", e))?;
                Ok(format!("{} {}.{:09}", there.ino(), there.mtime(), there.mtime_nsec()))
            }
            Opened::Store(folder) => {
                let (store, at) = (Arc::clone(&folder.store), folder.file(file)?);
                folder.wait(async move {
                    let there = store.head(&at).await.map_err(|e| store_fault(&format!("cannot read `{name}`"), e))?;
                    Ok(format!("{:?} {}", there.e_tag, there.last_modified.timestamp_micros()))
                })
            }
        }
    }

    /// The names of all that is directly in the folder, files and folders.
    pub(super) fn names(&self) -> Result<Vec<String>, Fault> {
        match &self.at {
            Opened::Local(path) => {
                let entries = match fs::read_dir(path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                    entries => entries,
                };
                let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
                entries.and_then(|entries| entries.map(name).collect()).map_err(|e| fault(self, "cannot list", e))
            }
            Opened::Store(folder) => folder.names(),
        }
    }

    /// Removes a file. A file that is not there is no error.
    pub fn remove(&self, file: &str) -> Result<(), Fault> {
        let name = self.name(file);
        match &self.at {
            Opened::Local(path) => match around(path, "remove", || fs::remove_file(path.join(file))) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(fault(&name, "cannot remove", e)),
                _ => Ok(()),
            },
            Opened::Store(folder) => {
                let (store, at) = (Arc::clone(&folder.store), folder.file(file)?);
                folder.wait(async move {
                    match store.delete(&at).await {
                        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                        Err(e) => Err(store_fault(&format!("cannot remove `{name}`"), e)),
                    }
                })
            }
        }
    }

    /// Removes the folder with all that is in it. A folder that is not there is no error.
    pub fn remove_all(&self) -> Result<(), Fault> {
        match &self.at {
            Opened::Local(path) => local::remove(path).map_err(|e| fault(self, "cannot remove", e)),
            Opened::Store(folder) => {
                let (folder, name) = (folder.clone(), self.to_string());
                folder.clone().wait(async move {
                    let removed = match folder.renames {
                        true => renamed::remove(&folder.store, &folder.path).await,
                        false => flat::remove(&folder).await,
                    };
                    removed.map_err(|e| store_fault(&format!("cannot remove `{name}`"), e))
                })
            }
        }
    }

    /// Removes the hidden parts of this folder, if it is a local one, that processes of this machine have left which were killed while they
    /// wrote or removed it.
    pub fn remove_abandoned(&self) {
        if let Opened::Local(path) = &self.at {
            local::remove_abandoned_of(path);
        }
    }

    /// The bytes of a file, in order. Reading blocks.
    pub fn reader(&self, file: &str) -> Result<Box<dyn Read + Send>, Fault> {
        let name = self.name(file);
        match &self.at {
            Opened::Local(path) => {
                let file = self.open_to_read(path, file).map_err(|e| fault(&name, "cannot read", e))?;
                Ok(Box::new(BufReader::with_capacity(BUFFER, file)))
            }
            Opened::Store(folder) => {
                let (store, at) = (Arc::clone(&folder.store), folder.file(file)?);
                let (sender, pieces) = mpsc::unbounded_channel();
                folder.stores.io().spawn(async move {
                    let cannot = |e| store_fault(&format!("cannot read `{name}`"), e);
                    match store.get(&at).await {
                        Ok(found) => send_pieces(found.into_stream().map_err(cannot), sender).await,
                        Err(e) => drop(sender.send((Err(cannot(e)), None))),
                    }
                });
                Ok(Box::new(StoreReader { pieces, piece: Bytes::new(), _folder: folder.clone() }))
            }
        }
    }
}

/// A piece of a file, and its share of [`BYTES_AHEAD`].
type Piece = (Result<Bytes, Fault>, Option<OwnedSemaphorePermit>);

/// Sends the pieces of a file as fast as they are received, until the receiver is dropped.
async fn send_pieces(mut pieces: impl Stream<Item = Result<Bytes, Fault>> + Unpin, to: mpsc::UnboundedSender<Piece>) {
    let room = Arc::new(Semaphore::new(BYTES_AHEAD));
    while let Some(piece) = pieces.next().await {
        let bytes = piece.as_ref().map_or(0, |piece| piece.len().min(BYTES_AHEAD));
        let share = Arc::clone(&room).acquire_many_owned(bytes as u32).await.ok();
        if to.send((piece, share)).is_err() {
            return;
        }
    }
}

/// The bytes of a file that a task fetches.
struct StoreReader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    piece: Bytes,
    /// The task runs on the threads of its stores.
    _folder: StoreFolder,
}

impl Read for StoreReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match block_on(self.pieces.recv()) {
                Some((piece, _)) => self.piece = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let n = into.len().min(self.piece.len());
        into[..n].copy_from_slice(&self.piece.split_to(n));
        Ok(n)
    }
}

/// Writes a hidden file, then gives it its name unless the name is taken.
///
/// Without `no_replace` in the file system, it looks first whether the name is taken: if two processes give it at the same moment, both
/// return true, and the file of the later one stays.
fn put_local(folder: &Path, file: &str, bytes: &[u8], no_replace: FlaggedRename) -> io::Result<bool> {
    fs::create_dir_all(folder)?;
    let hidden = folder.join(format!(".{file}.partial-{}", std::process::id()));
    let place = folder.join(file);
    let written = (|| {
        let mut file = PointedFile::create(&hidden)?;
        file.write_all(bytes)?;
        file.sync()?;
        pass(&place, "before rename")?;
        match no_replace(&hidden, &place) {
            Ok(()) => pass(&place, "after rename")?,
            Err(Errno::EXIST) => return Ok(false),
            Err(e) if is_unknown(e) && place.try_exists()? => return Ok(false),
            Err(e) if is_unknown(e) => fs::rename(&hidden, &place)?,
            Err(e) => return Err(e.into()),
        }
        // The name is on the disk when the folder is.
        around(folder, "sync of the folder", || sync_folder(folder))?;
        Ok(true)
    })();
    if !matches!(written, Ok(true)) {
        let _ = around(&hidden, "remove", || fs::remove_file(&hidden));
    }
    written
}

fn list_local(folder: &Path) -> io::Result<Vec<(String, u64)>> {
    pass(folder, "list")?;
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let meta = match entry.metadata() {
            // The file was removed during the listing.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            meta => meta.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", entry.path().display())))?,
        };
        if meta.is_file() {
            files.push((entry.file_name().to_string_lossy().into_owned(), meta.len()));
        }
    }
    Ok(files)
}

impl StoreFolder {
    fn put_new(&self, file: &str, name: String, bytes: Bytes) -> Result<bool, Fault> {
        let (store, at) = (Arc::clone(&self.store), self.file(file)?);
        self.wait(async move {
            let new = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match store.put_opts(&at, bytes.into(), new).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                Err(e) => Err(store_fault(&format!("cannot write `{name}`"), e)),
            }
        })
    }

    fn names(&self) -> Result<Vec<String>, Fault> {
        self.listed(|found| {
            let files = found.objects.into_iter().map(|meta| meta.location);
            files.chain(found.common_prefixes).filter_map(|at| at.filename().map(str::to_owned)).collect()
        })
    }

    fn files(&self) -> Result<Vec<(String, u64)>, Fault> {
        let file = |meta: ObjectMeta| meta.location.filename().map(|name| (name.to_owned(), meta.size));
        self.listed(move |found| found.objects.into_iter().filter_map(file).collect())
    }

    /// The results of `take` for all entries directly in the folder; none if there is no folder.
    pub(super) fn listed<T: Send + 'static>(
        &self,
        take: impl FnOnce(ListResult) -> Vec<T> + Send + 'static,
    ) -> Result<Vec<T>, Fault> {
        let Self { store, path, name, .. } = self.clone();
        self.wait(async move {
            let found = list(&*store, &path).await.map_err(|e| store_fault(&format!("cannot list `{name}`"), e))?;
            Ok(found.map_or_else(Vec::new, take))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use object_store::memory::InMemory;

    use super::super::Folder;
    use super::*;

    #[test]
    fn a_file_has_another_stamp_after_one_with_the_same_bytes_has_taken_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let local = Folder::from(dir.path()).open().unwrap();
        for folder in [local, Folder::in_store(Arc::new(InMemory::new()), "model".into()).open().unwrap()] {
            assert!(folder.stamp("a").unwrap_err().to_string().contains(&folder.name("a")));
            let put = || assert!(folder.put_new("a", b"one".to_vec()).unwrap());
            put();
            let before = folder.stamp("a").unwrap();
            put();
            assert_eq!(folder.stamp("a").unwrap(), before, "nothing was replaced");
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while folder.stamp("a").unwrap() == before {
                assert!(std::time::Instant::now() < until, "{before}");
                folder.remove("a").unwrap();
                put();
            }
        }
    }

    fn check(folder: &OpenFolder) {
        assert_eq!(folder.files().unwrap(), [], "no folder, no files");
        folder.remove("a").unwrap();
        let mut file = folder.create("a").unwrap();
        // More than the bytes after which the system begins to write back, and not a multiple of them.
        let len = (35 << 20) + 3;
        let data: Vec<u8> = (0..len).map(|i| (i >> 12) as u8).collect();
        data.chunks(3 << 20).for_each(|piece| file.write_all(piece).unwrap());
        assert_eq!(file.finish().unwrap(), len);
        let mut bytes = Vec::new();
        folder.reader("a").unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == data);

        assert!(folder.put_new("b", b"one".to_vec()).unwrap());
        assert!(folder.put_new("b", b"one".to_vec()).unwrap(), "made by an earlier try");
        assert!(!folder.put_new("b", b"two".to_vec()).unwrap());
        assert_eq!(folder.bytes("b", 9).unwrap(), b"one");
        assert_eq!(folder.files().unwrap(), [("a".to_owned(), len), ("b".to_owned(), 3)]);
        folder.remove("a").unwrap();
        assert_eq!(folder.files().unwrap(), [("b".to_owned(), 3)]);
        let read = folder
            .reader("a")
            .and_then(|mut file| file.read_to_end(&mut Vec::new()).map_err(|e| fault("a", "cannot read", e)));
        assert!(read.is_err(), "a missing file is an error, not an empty file");
        folder.remove_all().unwrap();
        assert!(!folder.holds_anything().unwrap());
        folder.remove_all().unwrap();
    }

    #[tokio::test]
    async fn few_bytes_wait_for_a_slow_reader() {
        const PIECES: usize = 40;
        let given = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&given);
        let pieces = futures::stream::iter(0..PIECES).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from(vec![0; BYTES_AHEAD / 16]))
        });
        let (sender, mut received) = mpsc::unbounded_channel();
        let task = tokio::spawn(send_pieces(pieces, sender));
        for read in 0..PIECES {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            // 16 wait, and one waits for room.
            assert_eq!(given.load(Ordering::Relaxed), PIECES.min(read + 17));
            received.recv().await.unwrap().0.unwrap();
        }
        assert!(received.recv().await.is_none());
        task.await.unwrap();
    }

    #[test]
    fn a_name_that_is_taken_stays_where_the_file_system_knows_only_the_plain_rename() {
        let unknown: [FlaggedRename; 3] =
            [|_, _| Err(Errno::INVAL), |_, _| Err(Errno::NOSYS), |_, _| Err(Errno::OPNOTSUPP)];
        for rename in unknown {
            let dir = tempfile::tempdir().unwrap();
            let put = |bytes: &[u8]| put_local(dir.path(), "a", bytes, rename).unwrap();
            assert!(put(b"one") && !put(b"two"));
            assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"one");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no hidden file stays");
        }
        let dir = tempfile::tempdir().unwrap();
        let fault = put_local(dir.path(), "a", b"one", |_, _| Err(Errno::IO)).unwrap_err();
        assert_eq!(fault.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_a_local_folder() {
        let dir = tempfile::tempdir().unwrap();
        check(&Folder::from(dir.path().join("below/checkpoints")).open().unwrap());
    }

    #[tokio::test]
    async fn a_file_to_read_is_named_by_its_folder_held_or_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("model")).unwrap();
        fs::write(dir.path().join("model/a.parquet"), "x").unwrap();
        let folder = Folder::from(dir.path().join("model")).open().unwrap();
        for folder in [folder.clone(), folder.held()] {
            let (input, name) = (folder.input("a.parquet").unwrap(), folder.name("a.parquet"));
            assert_eq!((input.to_string(), &input.list().await.unwrap()[0].name), (name.clone(), &name));
            let said = folder.input("b.parquet").unwrap().list().await.unwrap_err().to_string();
            assert!(said.contains(&folder.name("b.parquet")) && !said.contains("/proc/"), "{said}");
        }
    }

    #[test]
    fn files_of_a_store() {
        check(&Folder::in_store(Arc::new(InMemory::new()), "checkpoints".into()).open().unwrap());
    }
}
