//! One file being written, in any store: a local file, or parts of 8 MiB that a task uploads.
//!
//! `write` blocks on the disk, or while [`AHEAD`] parts are under way: at most 40 MiB are in memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, mpsc};

use bytes::Bytes;
use forebay_actors::Fault;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};
use rustix::fs::{Advice, fadvise};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::fault;
use super::fail_points::PointedFile;
use super::flat::{PendingUpload, PendingUploads};
use super::folder::StoreFolder;
use super::stop::StopFlag;
use crate::store_error::store_fault;
use crate::stores::Stores;

/// Bytes of a part: more than the 5 MiB that S3 wants, and 80 GB in the 10,000 parts that it allows.
const PART_BYTES: usize = 8 << 20;

/// Parts under way at once, beside the one that is being filled.
const AHEAD: usize = 4;

/// Bytes of a local file after which the system is asked to begin to write them to the disk. By itself the system waits for half a minute
/// or for a tenth of the memory, so a smaller file would go to the disk only at the end.
const WRITE_BACK: u64 = 16 << 20;

/// A file being written. Without [`finish`](Self::finish) it does not appear.
pub struct FileWriter {
    name: String,
    bytes: u64,
    /// How many of these bytes the system was asked to write to the disk.
    written_back: u64,
    to: To,
    stop: StopFlag,
    /// Grows with the bytes of all files of the folder.
    counted: Option<Arc<AtomicU64>>,
}

enum To {
    Local(BufWriter<File>),
    /// A local file, which must be on the disk at the end.
    Synced(BufWriter<PointedFile>),
    Store(BlockingUpload),
}

impl FileWriter {
    pub(super) fn local(name: String, file: File) -> Self {
        Self::to(name, To::Local(BufWriter::with_capacity(1 << 20, file)))
    }

    /// A local file. [`finish`](Self::finish) waits until it is on the disk.
    pub(super) fn synced(name: String, file: PointedFile) -> Self {
        Self::to(name, To::Synced(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Uploads a file of `folder`. At the end the upload is completed, or added to `pending` to be completed later.
    pub(super) fn store(
        name: String,
        folder: &StoreFolder,
        file: &str,
        pending: Option<PendingUploads>,
    ) -> Result<Self, Fault> {
        let to = To::Store(BlockingUpload::start(&name, folder, folder.file(file)?, pending, PART_BYTES));
        Ok(Self::to(name, to))
    }

    fn to(name: String, to: To) -> Self {
        Self { name, bytes: 0, written_back: 0, to, stop: StopFlag::default(), counted: None }
    }

    pub(super) fn stopped_by(mut self, stop: &StopFlag) -> Self {
        self.stop = stop.clone();
        self
    }

    pub(super) fn counted_by(mut self, counted: Option<&Arc<AtomicU64>>) -> Self {
        self.counted = counted.cloned();
        self
    }

    /// The file as messages name it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hands over what is buffered and waits until the store has all of it. Returns the bytes written.
    pub fn finish(self) -> Result<u64, Fault> {
        match self.to {
            To::Local(mut file) => file.flush().map_err(|e| fault(&self.name, "cannot write", e))?,
            To::Synced(mut file) => {
                let synced = file.flush().and_then(|()| file.get_ref().sync());
                synced.map_err(|e| fault(&self.name, "cannot write", e))?;
            }
            To::Store(upload) => upload.finish()?,
        }
        Ok(self.bytes)
    }

    /// Asks the system to begin to write the bytes of a local file to the disk, and does not wait. With `POSIX_FADV_DONTNEED`, pages that
    /// are not on the disk yet stay in memory, too. An error changes nothing.
    fn write_back(&mut self) {
        let from = std::mem::replace(&mut self.written_back, self.bytes);
        let file = match &self.to {
            To::Local(file) => file.get_ref().as_fd(),
            To::Synced(file) => file.get_ref().as_fd(),
            To::Store(_) => return,
        };
        let _ = fadvise(file, from, NonZeroU64::new(self.bytes - from), Advice::DontNeed);
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stop.check(&self.name).map_err(io::Error::other)?;
        let n = match &mut self.to {
            To::Local(file) => file.write(bytes)?,
            To::Synced(file) => file.write(bytes)?,
            To::Store(upload) => upload.write(bytes)?,
        };
        self.bytes += n as u64;
        if let Some(counted) = &self.counted {
            counted.fetch_add(n as u64, Ordering::Relaxed);
        }
        if self.bytes - self.written_back >= WRITE_BACK {
            self.write_back();
        }
        Ok(n)
    }

    /// Gives a local file's bytes to the system. A store gets whole parts only, and the rest at the end.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Local(file) => file.flush(),
            To::Synced(file) => file.flush(),
            To::Store(_) => Ok(()),
        }
    }
}

enum Message {
    Part(Bytes),
    End,
}

/// The side of an upload that a blocking thread holds. It waits on channels of the standard library: tokio's would panic,
/// or spin forever, on a thread that runs a tokio runtime.
struct BlockingUpload {
    part: Vec<u8>,
    part_bytes: usize,
    /// `None` once it has ended, well or not.
    parts: Option<UnboundedSender<Message>>,
    /// A token for each part that may be sent.
    room: mpsc::Receiver<()>,
    done: mpsc::Receiver<Result<(), Fault>>,
    /// The task runs on their threads: they must outlive it, also when the folder is dropped first.
    _stores: Stores,
}

impl BlockingUpload {
    fn start(name: &str, folder: &StoreFolder, path: Path, pending: Option<PendingUploads>, part_bytes: usize) -> Self {
        let (parts, receiver) = unbounded_channel();
        let (tokens, room) = mpsc::channel();
        for _ in 0..AHEAD {
            tokens.send(()).expect("the receiver is at hand");
        }
        let (ended_sender, done) = mpsc::channel();
        let (name, store) = (name.to_owned(), Arc::clone(&folder.store));
        folder.stores.io().spawn(async move {
            let ended = upload(&*store, path, receiver, &tokens, pending).await;
            let ended = ended.map_err(|e| store_fault(&format!("cannot write `{name}`"), e));
            // A writer that was dropped does not wait for the result.
            let _ = ended_sender.send(ended);
        });
        Self { part: Vec::new(), part_bytes, parts: Some(parts), room, done, _stores: folder.stores.clone() }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.capacity() == 0 {
            self.part.reserve_exact(self.part_bytes);
        }
        let n = bytes.len().min(self.part_bytes - self.part.len());
        self.part.extend_from_slice(&bytes[..n]);
        if self.part.len() == self.part_bytes {
            self.send().map_err(io::Error::other)?;
        }
        Ok(n)
    }

    /// Sends the part in hand, if there is one.
    fn send(&mut self) -> Result<(), Fault> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = Bytes::from(std::mem::take(&mut self.part));
        let sent = match &self.parts {
            Some(parts) => self.room.recv().is_ok() && parts.send(Message::Part(part)).is_ok(),
            None => return Err(Fault::internal("a file in a store was written to after its upload had failed")),
        };
        if sent { Ok(()) } else { self.wait() }
    }

    fn finish(mut self) -> Result<(), Fault> {
        self.send()?;
        match &self.parts {
            // A failed task does not receive: it has given its fault.
            Some(parts) => drop(parts.send(Message::End)),
            None => return Err(Fault::internal("a file in a store was finished after its upload had failed")),
        }
        self.wait()
    }

    /// Waits until the task has ended.
    fn wait(&mut self) -> Result<(), Fault> {
        self.parts = None;
        self.done.recv().unwrap_or_else(|_| Err(Fault::internal("an upload panicked")))
    }
}

impl Drop for BlockingUpload {
    /// Waits until the upload is given up, so that the folder around it can be removed.
    fn drop(&mut self) {
        if self.parts.is_some() {
            let _ = self.wait();
        }
    }
}

/// Uploads the parts in order until the end, and completes; gives up if the end never comes.
async fn upload(
    store: &dyn ObjectStore,
    path: Path,
    mut parts: UnboundedReceiver<Message>,
    room: &mpsc::Sender<()>,
    pending: Option<PendingUploads>,
) -> object_store::Result<()> {
    let mut upload = store.put_multipart(&path).await?;
    match put(&mut *upload, &mut parts, room).await {
        Ok(true) => match pending {
            Some(pending) => {
                pending.lock().unwrap_or_else(PoisonError::into_inner).push(PendingUpload { path, upload });
                return Ok(());
            }
            None => upload.complete().await.map(drop)?,
        },
        ended => {
            if let Err(e) = upload.abort().await {
                tracing::warn!(%path, error = %e, "cannot give an upload up: its parts may stay in the store");
            }
            ended?;
        }
    }
    Ok(())
}

/// Returns whether the end came.
async fn put(
    upload: &mut dyn MultipartUpload,
    parts: &mut UnboundedReceiver<Message>,
    room: &mpsc::Sender<()>,
) -> object_store::Result<bool> {
    let mut under_way = FuturesUnordered::new();
    let ended = loop {
        tokio::select! {
            Some(put) = under_way.next(), if !under_way.is_empty() => {
                put?;
                // The writer may have ended without waiting.
                let _ = room.send(());
            }
            part = parts.recv() => match part {
                Some(Message::Part(part)) => under_way.push(upload.put_part(part.into())),
                Some(Message::End) => break true,
                None => break false,
            },
        }
    };
    while let Some(put) = under_way.next().await {
        put?;
    }
    Ok(ended)
}
