//! The Parquet source: row groups in a seeded order, fetched ahead, decoded on threads of its own, batches in order.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_actors::{Fault, FaultKind, Source, StageCx, commas, counted};
use forebay_base::{catch_expected, is_out_of_memory, panic_message};
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::cuts::Cuts;
use super::encryption::encrypted_column;
use super::fetch::{self, Fetched, FetchedRows};
use super::footer::Footer;
use super::footers;
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

/// Reads Parquet files: a split is one row group of one file.
pub struct ParquetSource {
    input: Input,
    options: ReadOptions,
    leases: Option<Arc<dyn Leases>>,
    columns: Option<Vec<String>>,
    optional: Vec<String>,
    of_all_files: bool,
    folders_of_text: Vec<String>,
    dictionaries: bool,
    footers: Vec<Arc<Footer>>,
    splits: Vec<FilePart>,
    /// Rows of all splits.
    rows: u64,
    running: Option<(DecodePool<Rows>, Prefetch)>,
    seq: u64,
}

impl ParquetSource {
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
            footers: Vec::new(),
            splits: Vec::new(),
            rows: 0,
            running: None,
            seq: 0,
        }
    }

    /// Reads these columns only, found by name, in this order. One that names a folder `column=value` above a file is the
    /// same for all rows of the file: an integer if its values in all files are, else text, and null where Hive and Spark
    /// write `__HIVE_DEFAULT_PARTITION__`.
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

    /// Whether string columns come as `Dictionary(Int32, Utf8)`, and binary columns as `Dictionary(Int32, Binary)`, which decode and hash
    /// about twice as fast, or in the type the file names. Default true.
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
        self.footers.first().map(|footer| Arc::clone(&footer.found.schema))
    }

    /// Rows of one epoch; 0 before `open`.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn fingerprint(&self) -> u64 {
        let files: Vec<_> = self.footers.iter().map(|footer| (&*footer.file, footer.rows_of_groups())).collect();
        fingerprint_of("parquet", &self.options, self.schema(), &files)
    }

    /// The footers, for reports on files; empty before `open`.
    pub(crate) fn footers(&self) -> &[Arc<Footer>] {
        &self.footers
    }
}

impl Source for ParquetSource {
    type Out = Rows;

    fn describe(&self) -> String {
        match self.footers.len() {
            0 => format!("parquet {}", self.input),
            files => {
                let groups = counted(self.splits.len(), "row group");
                format!("parquet {}: {}, {groups}, {}", self.input, counted(files, "file"), counted(self.rows(), "row"))
            }
        }
    }

    fn total_rows(&self) -> Option<u64> {
        total_rows(self.leases.as_ref(), self.rows(), self.options.epochs)
    }

    /// Reads all footers, checks the columns, and starts to fetch.
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        let files = self.input.list().await?;
        self.footers = footers::load(
            files,
            self.columns.as_deref(),
            &self.optional,
            self.of_all_files,
            &self.folders_of_text,
            self.dictionaries,
        )
        .await?;
        let rows = self.footers.iter().map(|footer| footer.rows_of_groups());
        self.splits = typed_splits::splits(rows, &self.input, "Parquet")?;
        self.seq = 0;
        let options = &self.options;
        let rows: Vec<u64> = self.splits.iter().map(|split| split.rows).collect();
        self.rows = rows.iter().sum();
        let numbered = Numbered::new(rows, options);
        if numbered.has_one_order() {
            tracing::info!("{}", one_order(options, self.splits.len(), self.rows));
        }
        let parts = numbered.parts(self.leases.as_ref(), self.fingerprint())?;
        let (footers, splits) = (self.footers.clone(), self.splits.clone());
        let batch_rows = options.most_batch_rows();
        let cuts = Cuts::new(options, splits.len());
        let splits_to_read = parts.map_ok(move |part| {
            let FilePart { file, part: group, before, .. } = splits[part.split as usize];
            let (footer, group) = (Arc::clone(&footers[file as usize]), group as usize);
            let cost = footer.cost(group);
            let pieces = cuts.of(cost, part.rows.end - part.rows.start);
            (cost, Decode { footer, group, before, part, batch_rows, pieces })
        });
        let (pool, queue) = DecodePool::of(cx, options)?;
        let ahead = ReadAhead::of(cx, options);
        let cx = cx.clone();
        let fetch = move |decode: Decode, mut permit: BudgetPermit| {
            let cx = cx.clone();
            async move {
                let Decode { footer, group, part, pieces, .. } = &decode;
                let fetched = fetch::fetch(footer, *group, &part.rows, *pieces > 1, &mut permit).await?;
                cx.meter().fetched(fetched.bytes);
                // The bytes are in memory until the last piece is decoded.
                let permit = Arc::new(permit);
                let job = |piece: Decode| {
                    let (fetched, permit) = (fetched.clone(), Arc::clone(&permit));
                    move |output: &JobOutput<Rows>| {
                        let done = piece.run(fetched, output);
                        drop(permit);
                        done
                    }
                };
                Ok(decode.cut(fetched.finds_rows).map(job).collect())
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

/// A hint about data whose windows come in one order.
fn one_order(options: &ReadOptions, groups: usize, rows: u64) -> String {
    let rows = commas(rows);
    format!(
        "data.epochs is {}, and the {rows} rows are in {}: every epoch has its windows of data.shuffle_rows = {} in nearly the same order, \
         and a model that overfits does so more. Set data.shuffle_rows to the number of rows if they fit in memory, or write row groups of \
         16,384 rows with `forebay data convert --group-rows 16384`",
        options.epochs,
        counted(groups, "row group"),
        options.window_rows,
    )
}

/// Rows of one row group to decode.
#[derive(Clone)]
struct Decode {
    footer: Arc<Footer>,
    group: usize,
    /// Rows of the file before the row group.
    before: u64,
    part: Part,
    batch_rows: usize,
    /// The number of jobs that decode the rows.
    pieces: u64,
}

impl Decode {
    /// The rows in pieces of whole batches, in order; in one piece if the decoder cannot find rows in the middle.
    fn cut(self, finds_rows: bool) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.part.rows;
        let pieces = if finds_rows { self.pieces } else { 1 };
        let step = (end - start).div_ceil(pieces).next_multiple_of(self.batch_rows as u64);
        (start..end).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(move |from| {
            let mut piece = self.clone();
            piece.part.rows = from..end.min(from.saturating_add(step));
            piece
        })
    }

    fn run(self, fetched: FetchedRows, output: &JobOutput<Rows>) -> Result<(), Stop> {
        let Range { start, end } = self.part.rows;
        let mut row = start;
        let FetchedRows { data, metadata, .. } = fetched;
        // A decoder may panic on unforeseen bytes: the file is at fault, not the program.
        let mut reader = self.guard(row, &data, || {
            let metadata = self.footer.for_decoder(&metadata)?;
            let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(data.clone(), metadata)
                .with_batch_size(self.batch_rows);
            if start > 0 {
                builder = builder.with_offset(usize::try_from(start).unwrap_or(usize::MAX));
            }
            if end < self.footer.rows(self.group) {
                builder = builder.with_limit(usize::try_from(end - start).unwrap_or(usize::MAX));
            }
            builder.build()
        })?;
        while let Some(batch) = self.guard(row, &data, || reader.next().transpose())? {
            let batch = self.footer.found.in_order(&batch)?;
            let (rows, bytes) = (batch.num_rows(), batch_bytes(&batch));
            let mut at = 0;
            while at < rows {
                let (n, lineage, window) = self.part.cut(row, end.saturating_sub(row).min((rows - at) as u64));
                if n == 0 {
                    return Err(self.fault(row, "more rows came than the footer promises".to_owned()).into());
                }
                let places = Some(RowPlaces::rows_from(&self.footer.file, self.before + row));
                let cut = Rows { batch: batch.slice(at, n as usize), lineage, window, rejected: 0, places };
                let memory = cut.memory(bytes * n as usize / rows);
                output.push(cut, memory)?;
                (at, row) = (at + n as usize, row + n);
            }
        }
        if row != end {
            return Err(self.fault(row, format!("{row} rows came where the footer promises {end}")).into());
        }
        Ok(())
    }

    fn guard<T, E: std::error::Error>(
        &self,
        row: u64,
        data: &Fetched,
        f: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Fault> {
        let why = match catch_expected(f) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(e)) => e.to_string(),
            Err(panic) => panic_message(&*panic).to_owned(),
        };
        Err(match encrypted_column(&self.footer, self.group, data) {
            Some(column) => Fault::user(format!(
                "column `{column}` of `{}` is encrypted, which Forebay does not read: write the file again without encryption",
                self.footer.file.name
            )),
            None => self.fault(row, why),
        })
    }

    fn fault(&self, row: u64, why: String) -> Fault {
        let at = format!("`{}`, row group {}, at or after row {row} of it: {why}", self.footer.file.name, self.group);
        let mut fault = match is_out_of_memory(&why) {
            true => Fault::external(format!("{at}: the process needs more memory to unpack it")),
            false => Fault::user(format!("{at}: the file is damaged, write or copy it again")).kind(FaultKind::BadData),
        };
        fault.lineage = Some(self.part.cut(row, 1).1);
        fault.hide_lineage()
    }
}
