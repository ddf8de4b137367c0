//! Row groups into files: the columns of a row group are encoded by several threads, and written by one more.
//!
//! ```text
//!  send(row group) ──column by column──► encode threads ──column chunks──► write thread ──► part-00000.parquet ...
//!     waits while GROUPS are under way                    in the order of the columns
//! ```
//! The files belong to a [`StagedFolder`]. `send` waits for room; the threads block on the store.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use arrow::array::ArrayRef;
use arrow::datatypes::{FieldRef, SchemaRef};
use forebay_actors::{Fault, StageCx};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory};
use parquet::errors::Result as ParquetResult;
use parquet::file::writer::SerializedFileWriter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::encode_column::{Change, encode};
use super::options::ParquetOptions;
use super::parquet_types::check_writable;
use super::progress::Written;
use crate::staged::{FileWriter, StagedFolder, fault};

/// Row groups that are encoded or written at once, beside the one that is being gathered.
const GROUPS: usize = 2;

/// The threads. A drop stops them, and removes what they wrote.
pub(super) struct Encoder {
    change: Change,
    options: ParquetOptions,
    /// Made of the first row group's columns.
    columns: Option<WrittenColumns>,
    room: Arc<Semaphore>,
    bytes: Arc<AtomicU64>,
    jobs: Option<mpsc::Sender<Job>>,
    groups: Option<mpsc::Sender<Message>>,
    encoders: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<Result<(StagedFolder, Written), Fault>>>,
}

/// The columns as they are written.
struct WrittenColumns {
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
    /// The column of each leaf.
    roots: Vec<usize>,
}

/// A column to encode.
struct Job {
    at: usize,
    field: FieldRef,
    pieces: Vec<ArrayRef>,
    change: Change,
    writers: Vec<ArrowColumnWriter>,
    to: mpsc::Sender<(usize, Result<Vec<ArrowColumnChunk>, Fault>)>,
}

enum Message {
    Group(Group),
    End,
}

/// A row group whose columns are on their way.
struct Group {
    schema: SchemaRef,
    rows: usize,
    columns: mpsc::Receiver<(usize, Result<Vec<ArrowColumnChunk>, Fault>)>,
    _room: OwnedSemaphorePermit,
}

impl Encoder {
    /// Starts the threads, named after the stage.
    pub(super) fn start(cx: &StageCx, staged: StagedFolder, options: &ParquetOptions) -> Result<Self, Fault> {
        let (jobs, queue) = mpsc::channel();
        let (groups, to_write) = mpsc::channel();
        let room = Arc::new(Semaphore::new(GROUPS));
        let bytes = Arc::new(AtomicU64::new(0));
        let cannot = |e: io::Error| Fault::no_thread("a thread that encodes", e);
        let mut encoder = Self {
            change: Change::new(options),
            options: options.clone(),
            columns: None,
            room: Arc::clone(&room),
            bytes: Arc::clone(&bytes),
            jobs: Some(jobs),
            groups: Some(groups),
            encoders: Vec::new(),
            writer: None,
        };
        let queue = Arc::new(Mutex::new(queue));
        for i in 0..options.encode_threads() {
            let queue = Arc::clone(&queue);
            let named = thread::Builder::new().name(format!("{}-encode-{i}", cx.name()));
            encoder.encoders.push(named.spawn(move || encode_all(&queue)).map_err(cannot)?);
        }
        let files = Files { part: None, staged, options: options.clone(), bytes, written: Written::default() };
        let named = thread::Builder::new().name(format!("{}-write", cx.name()));
        let write = move || {
            let done = files.write_all(&to_write);
            // Wakes senders that wait for room, because none will become free.
            room.close();
            done
        };
        encoder.writer = Some(named.spawn(write).map_err(cannot)?);
        Ok(encoder)
    }

    /// Bytes in the files so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes a row group: for each column its pieces. Waits while [`GROUPS`] are under way. Not cancel safe.
    pub(super) async fn send(
        &mut self,
        schema: &SchemaRef,
        columns: Vec<Vec<ArrayRef>>,
        rows: usize,
    ) -> Result<(), Fault> {
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else {
            return Err(self.why());
        };
        let shape = match &mut self.columns {
            Some(shape) => shape,
            None => {
                self.change.check(schema)?;
                check_writable(schema)?;
                self.columns.insert(WrittenColumns::new(self.change.schema(schema), &self.options)?)
            }
        };
        let mut writers: Vec<Vec<_>> = columns.iter().map(|_| Vec::new()).collect();
        let leaves = shape.factory.create_column_writers(0).map_err(unwritable)?;
        for (leaf, &root) in leaves.into_iter().zip(&shape.roots) {
            writers[root].push(leaf);
        }
        let (to, encoded) = mpsc::channel();
        let group = Group { schema: Arc::clone(&shape.schema), rows, columns: encoded, _room: room };
        // A thread that has ended has left its fault with the writing thread.
        let mut sent = self.groups.as_ref().is_some_and(|groups| groups.send(Message::Group(group)).is_ok());
        for (at, (pieces, writers)) in columns.into_iter().zip(writers).enumerate() {
            let (field, to) = (Arc::clone(&shape.schema.fields()[at]), to.clone());
            let job = Job { at, field, pieces, change: self.change, writers, to };
            sent &= self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        }
        if sent { Ok(()) } else { Err(self.why()) }
    }

    /// Waits until all is written; gives back the folder with its files.
    pub(super) fn finish(mut self) -> Result<(StagedFolder, Written), Fault> {
        if let Some(groups) = self.groups.take() {
            // A writer that is gone has left its fault.
            let _ = groups.send(Message::End);
        }
        self.join()
    }

    fn why(&mut self) -> Fault {
        self.groups = None;
        match self.join() {
            Err(fault) => fault,
            Ok(_) => Fault::internal("the writing thread ended before the rows did"),
        }
    }

    fn join(&mut self) -> Result<(StagedFolder, Written), Fault> {
        self.jobs = None;
        for thread in mem::take(&mut self.encoders) {
            // A panic of the thread shows as a column that never comes.
            let _ = thread.join();
        }
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(done)) => done,
            Some(Err(panic)) => Err(Fault::of_panic("the writing thread panicked", &*panic)),
            None => Err(Fault::internal("the writing thread has ended already")),
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.groups = None;
            drop(self.join());
        }
    }
}

impl WrittenColumns {
    fn new(schema: SchemaRef, options: &ParquetOptions) -> Result<Self, Fault> {
        // Only the schema of this file is used: column writers do not depend on their file.
        let file = ArrowWriter::try_new(io::sink(), Arc::clone(&schema), Some(options.properties()));
        let (file, factory) = file.and_then(ArrowWriter::into_serialized_writer).map_err(unwritable)?;
        let leaves = file.schema_descr();
        let roots = (0..leaves.num_columns()).map(|leaf| leaves.get_column_root_idx(leaf)).collect();
        Ok(Self { schema, factory, roots })
    }
}

fn unwritable(e: parquet::errors::ParquetError) -> Fault {
    Fault::user("rows of this shape cannot be written as Parquet").because(e)
}

fn encode_all(queue: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { at, field, pieces, change, writers, to }) = job else { return };
        // If the writing thread is gone, the column is not needed.
        let _ = to.send((at, encode(&pieces, change, &field, writers)));
    }
}

/// The state of the writing thread.
struct Files {
    /// Dropped before the folder, so that an upload is given up before its folder.
    part: Option<PartFile>,
    staged: StagedFolder,
    options: ParquetOptions,
    bytes: Arc<AtomicU64>,
    written: Written,
}

struct PartFile {
    file: SerializedFileWriter<FileWriter>,
    name: String,
    groups: usize,
}

impl Files {
    /// Writes row groups until the end message. Removes everything if the sender is dropped without one.
    fn write_all(mut self, groups: &mpsc::Receiver<Message>) -> Result<(StagedFolder, Written), Fault> {
        loop {
            match groups.recv() {
                Ok(Message::Group(group)) => self.write(group)?,
                Ok(Message::End) => break,
                Err(_) => {
                    return Err(Fault::internal(
                        "the thread that sends rows to the Parquet writer ended without an end message",
                    ));
                }
            }
        }
        self.close()?;
        Ok((self.staged, self.written))
    }

    fn write(&mut self, group: Group) -> Result<(), Fault> {
        let part = match &mut self.part {
            Some(part) => part,
            None => self.part.insert(PartFile::begin(&self.staged, &self.options, &group.schema, self.written.files)?),
        };
        let failed = |name: &str, e| fault(name, "cannot write", e);
        let mut row_group = part.file.next_row_group().map_err(|e| failed(&part.name, e))?;
        // Columns come in any order and are written in the order of the schema.
        let mut early = HashMap::new();
        for at in 0..group.schema.fields().len() {
            let chunks = loop {
                if let Some(chunks) = early.remove(&at) {
                    break chunks;
                }
                match group.columns.recv() {
                    Ok((at, chunks)) => drop(early.insert(at, chunks?)),
                    Err(_) => return Err(Fault::internal("a thread that encodes panicked")),
                }
            };
            for chunk in chunks {
                chunk.append_to_row_group(&mut row_group).map_err(|e| failed(&part.name, e))?;
            }
        }
        row_group.close().map_err(|e| failed(&part.name, e))?;
        part.groups += 1;
        self.written.rows += group.rows as u64;
        self.bytes.store(self.written.bytes + part.file.bytes_written() as u64, Ordering::Relaxed);
        if part.groups >= self.options.file_groups.max(1) {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fault> {
        if let Some(part) = self.part.take() {
            let file = part.file.into_inner().map_err(|e| fault(&part.name, "cannot write", e))?;
            self.written.bytes += file.finish()?;
            self.written.files += 1;
            self.bytes.store(self.written.bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl PartFile {
    fn begin(staged: &StagedFolder, options: &ParquetOptions, schema: &SchemaRef, number: u64) -> Result<Self, Fault> {
        let file = staged.create(&format!("part-{number:05}.parquet"))?;
        let name = file.name().to_owned();
        let begin = || -> ParquetResult<_> {
            let writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(options.properties()))?;
            Ok(writer.into_serialized_writer()?.0)
        };
        Ok(Self { file: begin().map_err(|e| fault(&name, "cannot begin", e))?, name, groups: 0 })
    }
}
