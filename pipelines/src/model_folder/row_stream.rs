//! Record batches in a file of their own, as an Arrow IPC stream with columns that the reader knows. The length of the file bounds the
//! memory that is allocated, not the numbers in it. Everything here blocks on the store.
//!
//! The body of a message is read into its own buffer, and the columns of the batch are slices of this buffer: no byte is copied. When a
//! batch is dropped, its buffer takes the next body.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};

use arrow::array::{Array, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use forebay_actors::{Domain, Fault, FaultKind};
use forebay_base::{catch_expected, is_out_of_memory, panic_message};
use forebay_connectors::staged::{OpenFolder, fault};

use super::checked::{CheckedReader, CheckedWriter, FileEntry, cannot_write};

/// Bytes that are read at once: they are hashed while they are in the cache.
const PIECE: usize = 256 << 10;

/// The most bytes that are allocated before any of them is read. For longer bodies, the buffer grows while they are read.
const AT_FIRST: usize = 16 << 20;

/// Buffers that are kept for the next bodies: a caller may hold a batch while it reads the next one.
const SPARE: usize = 2;

/// Writes a stream.
pub(crate) struct RowStreamWriter {
    writer: StreamWriter<CheckedWriter>,
    name: String,
    path: String,
    rows: u64,
}

impl RowStreamWriter {
    /// Begins a file that the manifest names `path`.
    pub(crate) fn begin(file: CheckedWriter, path: &str, schema: &Schema) -> Result<Self, Fault> {
        let name = file.name().to_owned();
        let writer = StreamWriter::try_new(file, schema).map_err(|e| cannot(&name, e))?;
        Ok(Self { writer, name, path: path.to_owned(), rows: 0 })
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).map_err(|e| cannot(&self.name, e))
    }

    /// Waits until the store has the file. Its entry has the number of rows.
    pub(crate) fn finish(mut self) -> Result<FileEntry, Fault> {
        self.writer.finish().map_err(|e| cannot(&self.name, e))?;
        let file = self.writer.into_inner().map_err(|e| cannot(&self.name, e))?;
        file.finish(&self.path, Some(self.rows))
    }
}

fn cannot(name: &str, e: ArrowError) -> Fault {
    match e {
        ArrowError::IoError(_, e) => cannot_write(name, e),
        e => cannot_write(name, e),
    }
}

/// Reads a stream, and compares the file with its checksum when all rows are read.
pub(crate) struct RowStream<'a> {
    /// `None` after the end.
    file: Option<CheckedReader<'a>>,
    /// The file in messages.
    name: String,
    schema: SchemaRef,
    decoder: StreamDecoder,
    /// Bytes that are read and not decoded yet: the head of a message, or its body.
    bytes: Buffer,
    /// The length of the body that follows.
    body: usize,
    /// The buffers of earlier bodies.
    lent: VecDeque<Buffer>,
    rows: u64,
    /// Rows as the manifest says.
    expected: Option<u64>,
}

impl<'a> RowStream<'a> {
    /// Begins to read the file of an entry, of `expected` rows.
    ///
    /// # Errors
    /// As [`CheckedReader::open`].
    pub(crate) fn begin(
        folder: &OpenFolder,
        entry: &'a FileEntry,
        schema: SchemaRef,
        expected: Option<u64>,
    ) -> Result<Self, Fault> {
        let file = CheckedReader::open(folder, entry)?;
        let (name, bytes, decoder) = (file.name().to_owned(), Buffer::from(Vec::<u8>::new()), StreamDecoder::new());
        Ok(Self { file: Some(file), name, schema, decoder, bytes, body: 0, lent: VecDeque::new(), rows: 0, expected })
    }

    /// Calls `take` with the rows of the file, batch by batch. The rows are right if this function succeeds.
    ///
    /// # Errors
    /// A user fault of the kind [`FaultKind::Damaged`] that names the file if it is damaged, has other columns, or another number of rows
    /// than the manifest says; what `take` returns. If `take` refuses the rows and the checksum says that the file is damaged, the fault
    /// says so.
    pub(crate) fn each(mut self, mut take: impl FnMut(RecordBatch) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut take_all = || -> Result<(), Fault> {
            while let Some(batch) = self.next()? {
                take(batch)?;
            }
            Ok(())
        };
        let Err(fault) = take_all() else { return Ok(()) };
        let damaged = |file: CheckedReader<'_>| file.finish().err().filter(|found| found.kind == FaultKind::Damaged);
        Err(match self.file.filter(|_| fault.domain == Domain::User).and_then(damaged) {
            Some(damaged) => damaged.because(fault),
            None => fault,
        })
    }

    /// The next rows, or `None` after the last. The rows are right if `None` comes after them.
    fn next(&mut self) -> Result<Option<RecordBatch>, Fault> {
        loop {
            if self.bytes.is_empty() && !self.fill()? {
                return self.end();
            }
            // Arrow's reader panics on some damaged files.
            let decoded = catch_expected(|| self.decoder.decode(&mut self.bytes));
            let batch = match decoded {
                Ok(decoded) => decoded.map_err(|e| self.not_decoded("it is damaged", &e.to_string()))?,
                Err(panic) => {
                    let what = "it is damaged: Arrow's reader panicked on it";
                    return Err(self.not_decoded(what, panic_message(&*panic)));
                }
            };
            if let Some(found) = self.decoder.schema()
                && found.fields() != self.schema.fields()
            {
                let what = format!("its columns are {:?}, expected {:?}", found.fields(), self.schema.fields());
                return Err(self.wrong(what));
            }
            let Some(batch) = batch else { continue };
            if batch.columns().iter().any(|column| column.null_count() > 0) {
                return Err(self.wrong("it has missing values, expected none"));
            }
            self.rows += batch.num_rows() as u64;
            return Ok(Some(batch));
        }
    }

    /// Reads the body of a message, or the head of the next one. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, Fault> {
        self.bytes = match std::mem::take(&mut self.body) {
            0 => Buffer::from(self.head()?),
            body => {
                let spare = self.spare();
                let body = Buffer::from(self.read(spare, 0, body)?);
                self.lent.push_back(body.clone());
                body
            }
        };
        Ok(!self.bytes.is_empty())
    }

    /// The length of a message's description, and the description: it says how long the body is. The decoder checks whether that is right.
    fn head(&mut self) -> Result<Vec<u8>, Fault> {
        let mut head = self.read(Vec::new(), 0, 4)?;
        if head == [0xff; 4] {
            head = self.read(head, 4, 8)?;
        }
        let begin = head.len();
        let Some(size) = head.last_chunk().map(|size| u32::from_le_bytes(*size)) else { return Ok(head) };
        let head = self.read(head, begin, begin + size as usize)?;
        let message = head.get(begin..).map(root_as_message);
        self.body = message.and_then(Result::ok).map_or(0, |message| message.bodyLength().max(0) as usize);
        Ok(head)
    }

    /// The buffer of an earlier body whose batch was dropped, or an empty one.
    fn spare(&mut self) -> Vec<u8> {
        for _ in 0..self.lent.len() {
            let Some(body) = self.lent.pop_front() else { break };
            match body.into_vec() {
                Ok(spare) => return spare,
                Err(body) if self.lent.len() < SPARE => self.lent.push_back(body),
                Err(_) => {}
            }
        }
        Vec::new()
    }

    /// Keeps the first `filled` bytes of `bytes`, and reads the file into the rest until `bytes` has `len` bytes or the file ends.
    fn read(&mut self, mut bytes: Vec<u8>, mut filled: usize, len: usize) -> Result<Vec<u8>, Fault> {
        let Some(file) = &mut self.file else { return Ok(bytes) };
        while filled < len {
            // The old bytes of a spare buffer are overwritten, so it need not be cleared.
            if bytes.len() < len && bytes.len() <= filled {
                bytes.resize(len.min(AT_FIRST.max(2 * filled)), 0);
            }
            let end = bytes.len().min(len).min(filled + PIECE);
            match file.read(&mut bytes[filled..end]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(fault(&self.name, "cannot read", e)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn end(&mut self) -> Result<Option<RecordBatch>, Fault> {
        self.decoder.finish().map_err(|e| self.wrong("it ends too early").because(e))?;
        if let Some(expected) = self.expected
            && expected != self.rows
        {
            return Err(self.wrong(format!("{} rows, the manifest expects {expected}", self.rows)));
        }
        self.file.take().map_or(Ok(None), |file| file.finish().map(|()| None))
    }

    /// The fault of a message that Arrow's reader refuses with these words.
    fn not_decoded(&self, what: &str, words: &str) -> Fault {
        match is_out_of_memory(words) {
            true => Fault::external(format!("cannot read {}: the process needs more memory: {words}", self.name)),
            false => self.wrong(what).because(words.to_owned()),
        }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Fault {
        Fault::user(format!("cannot read {}: {what}", self.name)).kind(FaultKind::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, UInt64Array};
    use arrow::datatypes::{DataType, Field, UInt64Type};
    use forebay_connectors::staged::Folder;

    use super::*;

    const ROWS: u64 = 5000;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("key", DataType::UInt64, false)]))
    }

    fn page(first: u64, rows: u64) -> RecordBatch {
        RecordBatch::try_new(schema(), vec![Arc::new(UInt64Array::from_iter_values(first..first + rows))]).unwrap()
    }

    fn written(folder: &OpenFolder, pages: impl Iterator<Item = RecordBatch>) -> FileEntry {
        let file = CheckedWriter::new(folder.create("rows").unwrap());
        let mut writer = RowStreamWriter::begin(file, "rows", &schema()).unwrap();
        pages.for_each(|page| writer.write(&page).unwrap());
        writer.finish().unwrap()
    }

    fn place(batch: &RecordBatch) -> *const u64 {
        batch.column(0).as_primitive::<UInt64Type>().values().as_ptr()
    }

    #[test]
    fn the_buffer_of_a_batch_that_was_dropped_takes_the_next_body() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::from(dir.path()).open().unwrap();
        let entry = written(&folder, (0..6).map(|number| page(number * ROWS, ROWS - number)));
        let mut stream = RowStream::begin(&folder, &entry, schema(), entry.rows).unwrap();
        let (mut held, mut places) = (None, Vec::new());
        for number in 0..6 {
            let batch = stream.next().unwrap().unwrap();
            assert_eq!(batch, page(number * ROWS, ROWS - number), "a batch that is held is not written over");
            places.push(place(&batch));
            if let Some((number, batch)) = held.replace((number, batch)) {
                assert_eq!(batch, page(number * ROWS, ROWS - number));
            }
        }
        assert_eq!(stream.next().unwrap(), None);
        assert!(places[0] != places[1] && places[2..] == [&places[..2], &places[..2]].concat(), "{places:?}");
    }

    #[test]
    fn a_body_that_is_longer_than_the_file_is_damaged_and_takes_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::from(dir.path()).open().unwrap();
        let entry = written(&folder, [page(0, ROWS)].into_iter());
        let mut bytes = std::fs::read(dir.path().join("rows")).unwrap();
        // The second message: its body has as many bytes as the column, which is its only one.
        let len = (ROWS * 8).to_le_bytes();
        let places: Vec<_> = (0..bytes.len() - 8).filter(|at| bytes[*at..at + 8] == len).collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + 8].copy_from_slice(&(1u64 << 50).to_le_bytes());
        }
        std::fs::write(dir.path().join("rows"), &bytes).unwrap();
        let mut stream = RowStream::begin(&folder, &entry, schema(), entry.rows).unwrap();
        let fault = stream.next().unwrap_err();
        assert!(fault.kind == FaultKind::Damaged && fault.to_string().contains("rows"), "{fault}");
    }
}
