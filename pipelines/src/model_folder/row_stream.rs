//! Record batches in a file of their own, as an Arrow IPC stream with columns that the reader knows. What is allocated is bounded by
//! the bytes of the file, whatever these say. Everything here blocks on the store.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::{Array, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use forebay_actors::{Fault, FaultKind};
use forebay_connectors::staged::{OpenFolder, fault};

use super::checked::{CheckedReader, CheckedWriter, FileEntry, cannot_write};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

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
    /// Bytes that are read and not decoded yet.
    piece: Buffer,
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
        let (name, piece) = (file.name().to_owned(), Buffer::from(Vec::<u8>::new()));
        Ok(Self { file: Some(file), name, schema, decoder: StreamDecoder::new(), piece, rows: 0, expected })
    }

    /// The next rows, or `None` after the last. The rows are right if `None` comes after them.
    ///
    /// # Errors
    /// A user fault of the kind [`FaultKind::Damaged`] that names the file if it is damaged, has other columns, or another number
    /// of rows than the manifest says.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, Fault> {
        loop {
            if self.piece.is_empty() && !self.fill()? {
                return self.end();
            }
            // Arrow's reader panics on some damaged files.
            let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(&mut self.piece)));
            let batch = match decoded {
                Ok(decoded) => decoded.map_err(|e| self.wrong("it is damaged").because(e))?,
                Err(_) => return Err(self.wrong("it is damaged: Arrow's reader panicked on it")),
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

    /// Reads a piece. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, Fault> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut piece = Vec::with_capacity(PIECE);
        let read = file.by_ref().take(PIECE as u64).read_to_end(&mut piece);
        read.map_err(|e| fault(&self.name, "cannot read", e))?;
        self.piece = Buffer::from(piece);
        Ok(!self.piece.is_empty())
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

    fn wrong(&self, what: impl std::fmt::Display) -> Fault {
        Fault::user(format!("cannot read {}: {what}", self.name)).kind(FaultKind::Damaged)
    }
}
