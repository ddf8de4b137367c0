//! The traits of a format of text: the head of a file, and how a line becomes a row.

use std::future::Future;

use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;

use super::bad_row::BadRow;
use crate::file::DataFile;

/// A batch with this many bytes of text is full. With the longest line it stays within the 32-bit offsets of strings.
pub(crate) const TEXT_BYTES: usize = 64 << 20;

/// A format of text with one row per line. The formats of this crate implement it.
pub trait LineFormat: Send + Sync + 'static {
    /// What the source knows of a file before it reads rows: for CSV, the header.
    type Head: Clone + Send + Sync + 'static;
    /// Turns the lines of one split into batches.
    type Parser: LineParser;

    /// The name of the format in reports.
    const NAME: &'static str;

    /// Whether the first line of each file is a header.
    const HEADER: bool;

    /// Reads the head of each file.
    fn heads(&self, files: &[DataFile]) -> impl Future<Output = Result<Vec<Self::Head>, Fault>>;

    /// The approximate bytes of a row, by which windows are cut. Must be the same in every process.
    fn row_bytes(&self, heads: &[Self::Head]) -> u64;

    /// A parser for one split of a file; its batches have at most `capacity` rows.
    fn parser(&self, head: &Self::Head, capacity: usize) -> Self::Parser;

    /// The format and its options, which make two readings of the same files differ.
    fn identity(&self) -> String;
}

/// Turns lines into the rows of a batch.
pub trait LineParser: Send {
    /// Takes the line that begins at `at` and ends in `\n` (or `\r\n`); returns the place behind it. `None` if it is not a good
    /// row or has no end: then nothing was taken. There must be room.
    fn push(&mut self, text: &[u8], at: usize) -> Option<usize>;

    /// Rows taken since the last batch.
    fn rows(&self) -> usize;

    /// Whether a batch must be taken before the next line.
    fn is_full(&self) -> bool;

    /// The rows taken so far as a batch; starts again.
    ///
    /// # Errors
    /// An internal fault if the columns do not fit their schema.
    fn take(&mut self) -> Result<RecordBatch, Fault>;

    /// What is wrong with a line that `push` refused; the line comes without its `\n`.
    fn diagnose(&self, line: &[u8]) -> BadRow;
}
