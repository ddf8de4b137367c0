//! Turns the lines of one split into batches and rejected rows, in order. It runs on a decode thread and blocks only while
//! the consumer is behind.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use forebay_actors::{Batch, Lineage};

use super::bad_row::{BadRow, MAX_LINE, OnBadRow, Reason, Rejected};
use super::format::LineParser;
use crate::decode_pool::{JobOutput, Stop};
use crate::file::DataFile;
use crate::row_places::{RowPlaces, Unit};
use crate::rows::{BYTES_OF_BATCH, Rows, WindowMark};

/// Rejected rows that are handed over at once, at most, in bytes and in number.
const REJECTED_BYTES: usize = 1 << 20;
const REJECTED_ROWS: usize = 4096;

/// Part of a split: rejected rows, and the good rows after or around them.
pub(crate) struct Parsed {
    /// Number of the file.
    pub(crate) file: usize,
    /// The epoch and the place of the split, and its bytes.
    pub(crate) split: ((u32, u32), u64),
    pub(crate) rows: Option<Rows>,
    pub(crate) rejected: Vec<Rejected>,
    /// The row that ends the run, under the policy `fail`.
    pub(crate) failed: Option<Failed>,
}

/// A bad row and its place.
pub(crate) struct Failed {
    pub(crate) bad: BadRow,
    /// Byte of the (decompressed) file where the line begins.
    pub(crate) offset: u64,
    /// Line in the file from 1, if the split began with the file.
    pub(crate) line: Option<u64>,
}

/// The split of a parser.
#[derive(Clone, Debug)]
pub(crate) struct TextSplit {
    pub(crate) file: usize,
    pub(crate) data_file: Arc<DataFile>,
    /// Its bytes in the file, as they lie in the store.
    pub(crate) bytes: u64,
    /// The lineage of its rows, except `seq` and `row`.
    pub(crate) lineage: Lineage,
    /// `closes` is for the last of its rows.
    pub(crate) window: WindowMark,
    pub(crate) policy: OnBadRow,
    /// Whether the split begins with its file, so that lines can be numbered.
    pub(crate) from_start: bool,
    /// Whether the first line of the split is the file's header.
    pub(crate) header: bool,
}

/// Turns the text of one split into items.
pub(crate) struct SplitParser<'a, P> {
    split: TextSplit,
    output: &'a JobOutput<Parsed>,
    columns: P,
    /// The place of each row since the last batch: its line if the split begins with its file, else its first byte.
    places: Vec<u64>,
    rejected: Vec<Rejected>,
    rejected_bytes: usize,
    /// Good rows emitted so far.
    row: u64,
    lines: u64,
}

impl<'a, P: LineParser> SplitParser<'a, P> {
    pub(crate) fn new(split: TextSplit, columns: P, output: &'a JobOutput<Parsed>) -> Self {
        let (rejected, places) = (Vec::new(), Vec::new());
        Self { split, output, columns, places, rejected, rejected_bytes: 0, row: 0, lines: 0 }
    }

    /// Records the place of the row that was just taken.
    #[inline]
    fn taken(&mut self, offset: u64) {
        self.places.push(if self.split.from_start { self.lines + 1 } else { offset });
    }

    /// Takes whole lines; the first begins at byte `offset` of the file. The last may lack its line end. Empty lines
    /// are no rows and are passed over.
    pub(crate) fn lines(&mut self, text: &[u8], offset: u64) -> Result<(), Stop> {
        let whole = memchr::memrchr(b'\n', text).map_or(0, |end| end + 1);
        let mut at = 0;
        if std::mem::take(&mut self.split.header) {
            self.lines += 1;
            match memchr::memchr(b'\n', text) {
                Some(end) => at = end + 1,
                None => return Ok(()),
            }
        }
        while at < whole {
            at = match self.columns.push(&text[..whole], at) {
                Some(next) => {
                    self.taken(offset + at as u64);
                    next
                }
                None => {
                    let end = at + memchr::memchr(b'\n', &text[at..whole]).expect("the block ends in a line end");
                    self.refused(&text[at..end], offset + at as u64)?;
                    end + 1
                }
            };
            self.lines += 1;
            if self.columns.is_full() {
                self.flush(false)?;
            }
        }
        let rest = &text[whole..];
        if !rest.is_empty() {
            let mut line = Vec::with_capacity(rest.len().min(MAX_LINE) + 1);
            line.extend_from_slice(&rest[..rest.len().min(MAX_LINE)]);
            line.push(b'\n');
            if rest.len() > MAX_LINE || self.columns.push(&line, 0).is_none() {
                self.refused(rest, offset + whole as u64)?;
            } else {
                self.taken(offset + whole as u64);
            }
            self.lines += 1;
            if self.columns.is_full() {
                self.flush(false)?;
            }
        }
        Ok(())
    }

    /// Takes the beginning of a line that is longer than [`MAX_LINE`].
    pub(crate) fn too_long(&mut self, head: &[u8], offset: u64) -> Result<(), Stop> {
        debug_assert!(head.len() > MAX_LINE);
        self.refused(head, offset)?;
        self.lines += 1;
        Ok(())
    }

    /// Hands over the rest of the rows.
    pub(crate) fn finish(mut self) -> Result<(), Stop> {
        self.flush(true)
    }

    fn refused(&mut self, line: &[u8], offset: u64) -> Result<(), Stop> {
        if line.is_empty() || line == b"\r" {
            return Ok(());
        }
        let bad = self.columns.diagnose(line);
        if self.split.policy == OnBadRow::Fail {
            self.flush(false)?;
            let line = self.split.from_start.then_some(self.lines + 1);
            let failed = Some(Failed { bad, offset, line });
            self.output.push(self.parsed(None, Vec::new(), failed), 0)?;
            return Err(Stop::Closed);
        }
        let keep = match (&self.split.policy, bad.reason) {
            (OnBadRow::WriteTo(_), Reason::TooLong) => &line[..4096.min(line.len())],
            (OnBadRow::WriteTo(_), _) => line,
            _ => &[],
        };
        self.rejected_bytes += keep.len();
        // The text of each would cost memory and time.
        let is_first = self.rejected.is_empty() && self.row == 0 && self.columns.rows() == 0;
        let (reason, line, bad) = (bad.reason, Bytes::copy_from_slice(keep), is_first.then(|| Box::new(bad)));
        self.rejected.push(Rejected { reason, bad, line, offset });
        if self.rejected_bytes > REJECTED_BYTES || self.rejected.len() >= REJECTED_ROWS {
            self.flush(false)?;
        }
        Ok(())
    }

    /// `last`: the split ends here. A split that closes its window then sends a batch even if it is empty.
    fn flush(&mut self, last: bool) -> Result<(), Stop> {
        let closes = last && self.split.window.closes;
        let (rows, rejected) = (self.columns.rows(), std::mem::take(&mut self.rejected));
        self.rejected_bytes = 0;
        if rows == 0 && rejected.is_empty() && !closes {
            return Ok(());
        }
        let first = self.row;
        self.row += rows as u64;
        let rows = if rows > 0 || closes {
            let batch = self.columns.take()?;
            Some(self.stamp(batch, first, closes))
        } else {
            None
        };
        let bytes = rows.as_ref().map_or(BYTES_OF_BATCH, Rows::bytes)
            + rejected.iter().map(|r| r.line.len() + size_of::<Rejected>()).sum::<usize>();
        self.output.push(self.parsed(rows, rejected, None), bytes)
    }

    fn parsed(&self, rows: Option<Rows>, rejected: Vec<Rejected>, failed: Option<Failed>) -> Parsed {
        let TextSplit { file, bytes, lineage, .. } = &self.split;
        Parsed { file: *file, split: ((lineage.epoch, lineage.split), *bytes), rows, rejected, failed }
    }

    fn stamp(&mut self, batch: RecordBatch, row: u64, closes: bool) -> Rows {
        let lineage = Lineage { row, ..self.split.lineage.clone() };
        let unit = if self.split.from_start { Unit::Line } else { Unit::Byte };
        let numbers = std::mem::replace(&mut self.places, Vec::with_capacity(batch.num_rows()));
        let places = Some(RowPlaces::each(&self.split.data_file, unit, numbers));
        Rows { batch, lineage, window: WindowMark { closes, ..self.split.window }, rejected: 0, places }
    }
}
