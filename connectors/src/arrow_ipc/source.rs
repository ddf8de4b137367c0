//! The source of Arrow IPC files: record batches in a seeded order, fetched ahead, decoded on threads of its own, batches in order.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx, counted};
use forebay_base::{catch_expected, is_out_of_memory, panic_message};
use futures::TryStreamExt;

use super::dictionaries::{DictionaryCache, DictionarySet};
use super::open::{self, IpcFile};
use super::unpack::{self, FetchedBuffers};
use crate::decode_pool::{DecodePool, JobOutput, Stop};
use crate::input::Input;
use crate::lease::{Leases, total_rows};
use crate::next_rows;
use crate::options::ReadOptions;
use crate::prefetch::{self, Prefetch};
use crate::read_ahead::{BudgetPermit, ReadAhead};
use crate::row_places::RowPlaces;
use crate::rows::{Rows, batch_bytes};
use crate::typed_splits::{self, FilePart, fingerprint_of};
use crate::window::{Numbered, Part};

/// Reads Arrow IPC files (file or stream format): a split is one record batch of one file. Only the buffers of the wanted columns are
/// read. The dictionaries of the files that were read last are kept, beside `read_ahead_bytes`.
pub struct ArrowSource {
    input: Input,
    options: ReadOptions,
    leases: Option<Arc<dyn Leases>>,
    columns: Option<Vec<String>>,
    optional: Vec<String>,
    of_all_files: bool,
    folders_of_text: Vec<String>,
    dictionaries: bool,
    files: Vec<Arc<IpcFile>>,
    splits: Vec<FilePart>,
    /// Rows of all splits.
    rows: u64,
    running: Option<(DecodePool<Rows>, Prefetch)>,
    seq: u64,
}

impl ArrowSource {
    /// Reads all columns of a file, a folder, a glob, or several of them; columns of folders only if [`columns`](Self::columns) names them.
    pub fn new(input: impl Into<Input>, options: ReadOptions) -> Self {
        Self {
            input: input.into(),
            options: options.sane(),
            leases: None,
            columns: None,
            optional: Vec::new(),
            of_all_files: false,
            folders_of_text: Vec::new(),
            dictionaries: true,
            files: Vec::new(),
            splits: Vec::new(),
            rows: 0,
            running: None,
            seq: 0,
        }
    }

    /// Reads these columns only, found by name, in this order; as in [`ParquetSource`](crate::ParquetSource::columns) one may name a
    /// folder `column=value`.
    #[must_use]
    pub fn columns<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Columns that a file may lack: they are null in all of its rows. One that all files lack has the type `Null`.
    #[must_use]
    pub fn optional(mut self, columns: impl IntoIterator<Item = String>) -> Self {
        self.optional = columns.into_iter().collect();
        self
    }

    /// Without [`columns`](Self::columns), reads the columns of all files, not only of the first one. A column is null in the rows of a
    /// file that lacks it. A file without any column of the first file is refused all the same.
    #[must_use]
    pub fn of_all_files(mut self, yes: bool) -> Self {
        self.of_all_files = yes;
        self
    }

    /// Columns that are text where they are folders `column=value`, even if all of their values are integers.
    #[must_use]
    pub fn folders_of_text(mut self, columns: impl IntoIterator<Item = String>) -> Self {
        self.folders_of_text = columns.into_iter().collect();
        self
    }

    /// Whether dictionaries of texts stay dictionaries, `Dictionary(Int32, Utf8)`, or become texts. Default true.
    #[must_use]
    pub fn dictionaries(mut self, yes: bool) -> Self {
        self.dictionaries = yes;
        self
    }

    /// Reads only the windows that it is leased; see [`Leases`].
    #[must_use]
    pub fn leasing(mut self, leases: Arc<dyn Leases>) -> Self {
        self.leases = Some(leases);
        self
    }

    /// The columns that `next` yields; `None` before `open`.
    pub fn schema(&self) -> Option<SchemaRef> {
        self.files.first().map(|file| Arc::clone(&file.found.schema))
    }

    /// Rows of one epoch; 0 before `open`.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn fingerprint(&self) -> u64 {
        let files: Vec<_> = self.files.iter().map(|file| (&*file.file, file.rows_of_batches())).collect();
        fingerprint_of("arrow", &self.options, self.schema(), &files)
    }

    /// The files; empty before `open`.
    pub(crate) fn files(&self) -> &[Arc<IpcFile>] {
        &self.files
    }

    /// Record batches of all files; 0 before `open`.
    pub(crate) fn record_batches(&self) -> u64 {
        self.files.iter().map(|file| file.batches.len() as u64).sum()
    }
}

impl Source for ArrowSource {
    type Out = Rows;

    fn describe(&self) -> String {
        match self.files.len() {
            0 => format!("arrow {}", self.input),
            files => {
                let (batches, rows) = (self.splits.len(), self.rows());
                let (files, batches, rows) =
                    (counted(files, "file"), counted(batches, "record batch"), counted(rows, "row"));
                format!("arrow {}: {files}, {batches}, {rows}", self.input)
            }
        }
    }

    fn total_rows(&self) -> Option<u64> {
        total_rows(self.leases.as_ref(), self.rows(), self.options.epochs)
    }

    /// Reads all headers, checks the columns, and starts to fetch.
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        let files = self.input.list().await?;
        self.files = open::load(
            files,
            self.columns.as_deref(),
            &self.optional,
            self.of_all_files,
            &self.folders_of_text,
            self.dictionaries,
        )
        .await?;
        let rows = self.files.iter().map(|file| file.rows_of_batches());
        self.splits = typed_splits::splits(rows, &self.input, "Arrow")?;
        self.seq = 0;
        let options = &self.options;
        let rows: Vec<u64> = self.splits.iter().map(|split| split.rows).collect();
        self.rows = rows.iter().sum();
        let parts = Numbered::new(rows, options).parts(self.leases.as_ref(), self.fingerprint())?;
        let (files, splits, cache) = (self.files.clone(), self.splits.clone(), DictionaryCache::default());
        let batch_rows = options.most_batch_rows();
        let splits_to_read = parts.map_ok(move |part| {
            let FilePart { file: number, part: batch, before, .. } = splits[part.split as usize];
            let (file, batch) = (Arc::clone(&files[number as usize]), batch as usize);
            let at = &file.batches[batch];
            let (cost, set) = (at.block.cost(), cache.get(number, at.before));
            (cost, Decode { file, batch, before, set, part, batch_rows })
        });
        let (pool, queue) = DecodePool::of(cx, options)?;
        let ahead = ReadAhead::of(cx, options);
        let cx = cx.clone();
        let fetch = move |decode: Decode, permit: BudgetPermit| {
            let cx = cx.clone();
            async move {
                let (file, at) = (&decode.file, &decode.file.batches[decode.batch]);
                decode.set.fetch(&file.file, &file.dictionaries_of(at.before)).await?;
                let fetched = unpack::fetch(&file.file, &at.block).await?;
                cx.meter().fetched(at.block.cost());
                Ok(vec![move |output: &JobOutput<Rows>| {
                    let done = decode.run(fetched, output);
                    drop(permit);
                    done
                }])
            }
        };
        let prefetch = prefetch::start(ahead, splits_to_read, fetch, queue);
        self.running = Some((pool, prefetch));
        Ok(())
    }

    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Rows>, Fault> {
        next_rows::next(&mut self.running, self.leases.as_ref(), &mut self.seq).await
    }
}

/// Rows of one record batch to decode.
struct Decode {
    file: Arc<IpcFile>,
    batch: usize,
    /// Rows of the file before the record batch.
    before: u64,
    set: Arc<DictionarySet>,
    part: Part,
    batch_rows: usize,
}

impl Decode {
    fn run(self, fetched: FetchedBuffers, output: &JobOutput<Rows>) -> Result<(), Stop> {
        let whole = self.arrays(fetched)?;
        let (bytes, rows) = (batch_bytes(&whole), whole.num_rows().max(1));
        let (mut row, end) = (self.part.rows.start, self.part.rows.end);
        while row < end {
            let (n, lineage, window) = self.part.cut(row, (end - row).min(self.batch_rows as u64));
            // One batch at a time, so that a converted column is only as large as the batch.
            let batch = self.file.found.in_order(&whole.slice(row as usize, n as usize))?;
            let places = Some(RowPlaces::rows_from(&self.file.file, self.before + row));
            let cut = Rows { batch, lineage, window, rejected: 0, places };
            let memory = cut.memory(bytes / rows * n as usize);
            output.push(cut, memory)?;
            row += n;
        }
        Ok(())
    }

    fn arrays(&self, fetched: FetchedBuffers) -> Result<RecordBatch, Fault> {
        let at = &self.file.batches[self.batch];
        let arrays = || {
            let dictionaries = self.set.decoded(&self.file.dictionaries_of(at.before))?;
            unpack::arrays(&at.block, fetched, Arc::clone(&self.file.decoded), &dictionaries)
        };
        // The decoder may panic on unforeseen bytes: the file is at fault, not the program.
        match catch_expected(arrays) {
            Ok(Ok(batch)) => Ok(batch),
            Ok(Err(e)) => Err(self.fault(&e.to_string())),
            Err(panic) => Err(self.fault(panic_message(&*panic))),
        }
    }

    fn fault(&self, why: &str) -> Fault {
        let what = format!("record batch {}: {why}", self.batch);
        let mut fault = match is_out_of_memory(why) {
            true => Fault::external(format!(
                "`{}`: {what}: the process needs more memory to unpack it",
                self.file.file.name
            )),
            false => super::layout::damaged(&self.file.file.name, what),
        };
        fault.lineage = Some(self.part.cut(self.part.rows.start, 1).1);
        fault.hide_lineage()
    }
}
