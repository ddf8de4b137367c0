//! The source of text: several threads parse plain files in byte ranges; a compressed file (`.gz`, `.zst`) is one
//! stream. Rows come in file order unless shuffled. `next` blocks only to append rejected rows to a local file, if asked.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_actors::{Fault, FaultKind, Source, StageCx, commas, counted};
use futures::future::BoxFuture;
use futures::{TryFutureExt, TryStreamExt};
use tokio::sync::mpsc;

use super::bad_row::{BadRow, OnBadRow, Reason, RejectFile, Rejected};
use super::cut::{self, Cut};
use super::decompress::{ChannelReader, TextCompression, decompress};
use super::format::{LineFormat, LineParser};
use super::lines::{Failed, Parsed, SplitParser, TextSplit};
use super::row_estimate::RowEstimate;
use super::windows::{SplitToRead, TextWindows};
use crate::decode_pool::{DecodePool, JobOutput, Stop};
use crate::file::DataFile;
use crate::format::PACKED_OTHERWISE;
use crate::identity;
use crate::input::Input;
use crate::lease::{DataPlan, Leases, PlanCheck, fingerprint, wanted};
use crate::options::ReadOptions;
use crate::prefetch::{self, Prefetch};
use crate::read_ahead::{BudgetPermit, ReadAhead};
use crate::rows::Rows;

/// Bytes of a split of a plain file: about 17,000 rows of Criteo's logs.
const RANGE_BYTES: u64 = 4 << 20;

/// The most splits of less than [`RANGE_BYTES`].
const MOST_SMALL_SPLITS: u64 = 1 << 20;

/// Bytes of one request for a packed file, and how many may wait to be unpacked.
const PIECE_BYTES: u64 = 1 << 20;
const PIECES: usize = 4;

/// Reads text with one row per line in the format `F`.
pub struct TextSource<F> {
    format: Arc<F>,
    input: Input,
    options: ReadOptions,
    leases: Option<Arc<dyn Leases>>,
    check: Option<PlanCheck>,
    policy: OnBadRow,
    range_bytes: u64,
    files: Vec<DataFile>,
    splits: Vec<(u32, Range<u64>)>,
    running: Option<(DecodePool<Parsed>, Prefetch)>,
    rejects: Option<RejectFile>,
    failed: Option<(usize, Failed)>,
    seq: u64,
    /// Good and bad rows returned or counted so far.
    seen: (u64, u64),
    estimate: RowEstimate,
    /// Bad rows that no batch has counted yet.
    unaccounted: u32,
    why: Rejections,
}

/// The bad rows, for the fault of a source without good rows.
#[derive(Default)]
struct Rejections {
    /// Bad rows of each reason.
    reasons: BTreeMap<&'static str, u64>,
    /// The number of the file and the byte of the first one, and what is wrong with it.
    first: Option<(usize, u64, Option<Box<BadRow>>)>,
}

impl Rejections {
    fn add(&mut self, file: usize, rejected: &[Rejected]) {
        for row in rejected {
            *self.reasons.entry(row.reason.text()).or_default() += 1;
            self.first.get_or_insert_with(|| (file, row.offset, row.bad.clone()));
        }
    }

    /// If all lines have too few fields, the file has another format, most likely.
    fn kind(&self) -> FaultKind {
        match self.reasons.keys().all(|reason| *reason == Reason::TooFewFields.text()) && self.first.is_some() {
            true => FaultKind::OtherFormat,
            false => FaultKind::BadData,
        }
    }

    /// `` , most of them (5) because of this: not a JSON object; the first begins at byte 0 of `rows.jsonl`: found `[1]`, expected ... ``;
    /// nothing without a bad row.
    fn said(&self, files: &[DataFile]) -> String {
        let most = self.reasons.iter().max_by_key(|(_, rows)| **rows);
        let (Some((reason, rows)), Some((file, offset, bad))) = (most, &self.first) else { return String::new() };
        let name = &files[*file].name;
        let what = match bad {
            Some(bad) if bad.reason.text() == *reason => format!(": {}", bad.without_reason()),
            Some(bad) => format!(": {bad}"),
            None => String::new(),
        };
        if self.reasons.len() == 1 && *rows == 1 {
            return format!(" because of this: {reason}; it begins at byte {offset} of `{name}`{what}");
        }
        let share = match self.reasons.len() {
            1 => "all".to_owned(),
            _ if 2 * rows > self.reasons.values().sum::<u64>() => format!("most of them ({rows})"),
            _ => format!("{rows} of them"),
        };
        format!(", {share} because of this: {reason}; the first begins at byte {offset} of `{name}`{what}")
    }
}

impl<F: LineFormat> TextSource<F> {
    /// Reads a file, a folder, a glob, or several of them, which are all in this format.
    pub fn of(format: F, input: impl Into<Input>, options: ReadOptions) -> Self {
        Self {
            format: Arc::new(format),
            input: input.into(),
            options: options.sane(),
            leases: None,
            check: None,
            policy: OnBadRow::Fail,
            range_bytes: RANGE_BYTES,
            files: Vec::new(),
            splits: Vec::new(),
            running: None,
            rejects: None,
            failed: None,
            seq: 0,
            seen: (0, 0),
            estimate: RowEstimate::default(),
            unaccounted: 0,
            why: Rejections::default(),
        }
    }

    /// The action on a row that cannot be used. Default: fail.
    #[must_use]
    pub fn on_bad_row(mut self, policy: OnBadRow) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn format(&self) -> &F {
        &self.format
    }

    /// Reads in another format, or in the same with other options.
    #[must_use]
    pub(crate) fn with_format(mut self, format: F) -> Self {
        self.format = Arc::new(format);
        self
    }

    /// Size of the byte ranges that plain files are split into. Default 4 MiB. If less would give more than a million splits, it is more.
    #[must_use]
    pub fn range_bytes(mut self, bytes: u64) -> Self {
        self.range_bytes = bytes.max(1);
        self
    }

    /// Reads only the windows that it is leased; see [`Leases`].
    #[must_use]
    pub fn leasing(mut self, leases: Arc<dyn Leases>) -> Self {
        self.leases = Some(leases);
        self
    }

    /// Calls `check` with the plan when the source is opened without leases. (Leases get the plan themselves.) The plan has neither rows
    /// nor windows, and its fingerprint covers only the files, not the columns or the options of the format.
    #[must_use]
    pub fn checking(mut self, check: PlanCheck) -> Self {
        self.check = Some(check);
        self
    }

    /// The files; empty before `open`.
    pub(crate) fn files(&self) -> &[DataFile] {
        &self.files
    }

    /// Bytes of all files as they lie in the store; 0 before `open`.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Good rows returned and bad rows left out so far.
    pub fn seen(&self) -> (u64, u64) {
        self.seen
    }

    fn fingerprint(&self) -> u64 {
        let ReadOptions { shuffle, seed, window_rows, .. } = self.options;
        fingerprint(|text| {
            write!(text, "{} {shuffle} {seed} {window_rows} {}", self.format.identity(), self.range_bytes)?;
            self.write_files(text)
        })
    }

    /// The plan without leases: all files, split by split.
    fn plan_without_windows(&self) -> DataPlan {
        let ReadOptions { shuffle, seed, epochs, .. } = self.options;
        let fingerprint = fingerprint(|text| {
            write!(text, "{shuffle} {seed} {}", self.range_bytes)?;
            self.write_files(text)
        });
        DataPlan { epochs: epochs as u32, rows: 0, windows: 0, fingerprint }
    }

    fn write_files(&self, text: &mut dyn fmt::Write) -> fmt::Result {
        let files: Vec<(&str, u64)> = self.files.iter().map(|file| (file.path.as_ref(), file.size)).collect();
        identity::write(text, &files, |_| String::new())
    }

    fn reject(&mut self, file: usize, rejected: &[Rejected], cx: &StageCx) {
        if rejected.is_empty() {
            return;
        }
        self.seen.1 += rejected.len() as u64;
        self.why.add(file, rejected);
        self.unaccounted = self.unaccounted.saturating_add(rejected.len() as u32);
        cx.ledger().read(rejected.len() as u64);
        for same in rejected.chunk_by(|a, b| a.reason == b.reason) {
            cx.ledger().reject(same[0].reason.text(), same.len() as u64);
        }
        let rejects = self.rejects.as_mut();
        let unwritten = rejects.map_or(0, |rejects| rejects.write(&self.files[file].name, rejected));
        cx.ledger().unwritten(unwritten);
    }

    /// The fault of a bad row, with its line. If the line is not known, reads the file up to there to count it.
    async fn fault(&self, file: usize, failed: &Failed) -> Fault {
        let file = &self.files[file];
        let line = match failed.line {
            Some(line) => Some(line),
            None => file.lines_before(failed.offset).await.ok().map(|before| before + 1),
        };
        let place = line.map_or_else(String::new, |line| format!(", line {line}"));
        let remedy = match failed.bad.reason {
            Reason::Sparse => "",
            _ => {
                "; correct the row, or go on without such rows, by data.on_bad_row of the job (--set data.on_bad_row=skip) or by --on-bad-row of \
                 data convert"
            }
        };
        Fault::user(format!("`{}`{place} (byte {}): {}{remedy}", file.name, failed.offset, failed.bad))
            .hide_lineage()
            .kind(failed.bad.kind())
    }
}

impl<F: LineFormat> Source for TextSource<F> {
    type Out = Rows;

    fn describe(&self) -> String {
        match self.files.len() {
            0 => format!("{} {}", F::NAME, self.input),
            files => format!("{} {}: {}, {} bytes", F::NAME, self.input, counted(files, "file"), commas(self.bytes())),
        }
    }

    /// An estimate, as soon as one split was read whole.
    fn total_rows(&self) -> Option<u64> {
        let bytes = self.bytes().checked_mul(self.options.epochs as u64).filter(|_| self.leases.is_none())?;
        self.estimate.rows_of(bytes)
    }

    /// Lists the files, reads their headers and starts to fetch.
    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.files = self.input.list().await?;
        // Small splits of much text would be too many.
        let range_bytes = self.range_bytes.max((self.bytes() / MOST_SMALL_SPLITS).min(RANGE_BYTES));
        self.splits = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            let name = file.name.to_ascii_lowercase();
            let ends = |ending: &&&str| name.strip_suffix(**ending).is_some_and(|stem| stem.ends_with('.'));
            if let Some(ending) = PACKED_OTHERWISE.iter().find(ends) {
                return Err(Fault::user(format!(
                    "`{}`: text packed as `.{ending}` is not supported, write it as .gz, .zst or plain text",
                    file.name
                )));
            }
            match TextCompression::of(&file.name) {
                TextCompression::Plain => {
                    self.splits.extend(cut::ranges(file.size, range_bytes).map(|r| (number as u32, r)))
                }
                _ => self.splits.push((number as u32, 0..file.size)),
            }
        }
        if let (Some(check), None) = (&self.check, &self.leases) {
            check(&self.plan_without_windows())?;
        }
        let heads = self.format.heads(&self.files).await?;
        if let OnBadRow::WriteTo(folder) = &self.policy {
            self.rejects = Some(RejectFile::open(folder)?);
        }
        (self.seq, self.seen, self.failed) = (0, (0, 0), None);
        (self.unaccounted, self.why, self.estimate) = (0, Rejections::default(), RowEstimate::default());
        let options = self.options.clone();
        let files: Arc<[Arc<DataFile>]> = self.files.iter().cloned().map(Arc::new).collect();
        let splits = self.splits.clone();
        let policy = self.policy.clone();
        let groups = TextWindows::new(&self.splits, &self.files, self.format.row_bytes(&heads), &options);
        let splits_to_read = groups.splits_to_read(self.leases.as_ref(), self.fingerprint())?.map_ok({
            let files = Arc::clone(&files);
            move |SplitToRead { split, lineage, window }| {
                let (file, range) = splits[split as usize].clone();
                let text = TextSplit {
                    file: file as usize,
                    data_file: Arc::clone(&files[file as usize]),
                    bytes: range.end.min(files[file as usize].size).saturating_sub(range.start),
                    lineage,
                    window,
                    policy: policy.clone(),
                    from_start: range.start == 0,
                    header: F::HEADER && range.start == 0,
                };
                let cost = match TextCompression::of(&files[text.file].name) {
                    TextCompression::Plain => cut::cost(&range),
                    _ => PIECE_BYTES * (PIECES as u64 + 2),
                };
                (cost, (text, range))
            }
        });
        let (pool, queue) = DecodePool::of(cx, &options)?;
        let ahead = ReadAhead::of(cx, &options);
        let (format, cx) = (Arc::clone(&self.format), cx.clone());
        let fetch = move |(text, range): (TextSplit, Range<u64>), permit: BudgetPermit| {
            // Counted at the request: a compressed file comes in pieces, as fast as it is parsed.
            cx.meter().fetched(range.end.min(files[text.file].size).saturating_sub(range.start));
            let (format, head, rows) = (Arc::clone(&format), heads[text.file].clone(), options.batch_rows);
            let fetched = fetch(text, move || format.parser(&head, rows), range, permit);
            fetched.map_ok(|job| vec![job])
        };
        let prefetch = prefetch::start(ahead, splits_to_read, fetch, queue);
        self.running = Some((pool, prefetch));
        Ok(())
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        loop {
            // Kept until its fault is made, so that a dropped future does not lose it.
            if let Some((file, failed)) = &self.failed {
                return Err(self.fault(*file, failed).await);
            }
            let Some((pool, _)) = &mut self.running else {
                return Err(Fault::internal("`next` was called before `open`"));
            };
            let Some(parsed) = pool.next().await? else {
                if self.seen.0 == 0 && self.leases.is_none() {
                    let fault = Fault::user(match self.seen.1 {
                        0 => format!("`{}` holds no rows", self.input),
                        rejected => format!(
                            "`{}` holds no usable row: {} {} rejected{}",
                            self.input,
                            counted(rejected, "row"),
                            if rejected == 1 { "was" } else { "were" },
                            self.why.said(&self.files)
                        ),
                    });
                    return Err(fault.kind(self.why.kind()));
                }
                return Ok(None);
            };
            let (split, bytes) = parsed.split;
            self.estimate.reads(split, bytes, self.seen.0 + self.seen.1);
            self.reject(parsed.file, &parsed.rejected, cx);
            self.failed = parsed.failed.map(|failed| (parsed.file, failed));
            if let Some(mut rows) = parsed.rows {
                if !wanted(self.leases.as_ref(), &rows) {
                    return Ok(None);
                }
                rows.rejected = std::mem::take(&mut self.unaccounted);
                rows.lineage.seq = self.seq;
                self.seq += 1;
                self.seen.0 += rows.batch.num_rows() as u64;
                return Ok(Some(rows));
            }
        }
    }
}

type Job = Box<dyn FnOnce(&JobOutput<Parsed>) -> Result<(), Stop> + Send>;

/// `parser` is called when the split is decoded, so that a split that waits holds no columns.
fn fetch<P: LineParser>(
    split: TextSplit,
    parser: impl FnOnce() -> P + Send + 'static,
    range: Range<u64>,
    permit: BudgetPermit,
) -> BoxFuture<'static, Result<Job, Fault>> {
    Box::pin(async move {
        let file = Arc::clone(&split.data_file);
        let compression = TextCompression::of(&file.name);
        if compression == TextCompression::Plain {
            let cut = cut::read(&file, range).await?;
            return Ok(Box::new(move |output: &JobOutput<Parsed>| {
                let done = parse(&cut, SplitParser::new(split, parser(), output));
                drop((cut, permit));
                done
            }) as Job);
        }
        let (pieces, receiver) = mpsc::channel(PIECES);
        let name = file.name.clone();
        // Ends by itself when the job, which receives, is dropped.
        tokio::spawn(async move {
            for range in cut::ranges(file.size, PIECE_BYTES) {
                let piece = file.read(range).await;
                let failed = piece.is_err();
                if pieces.send(piece).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Box::new(move |output: &JobOutput<Parsed>| {
            let parser = SplitParser::new(split, parser(), output);
            let done = decompress(&name, compression, ChannelReader::new(receiver, output), parser);
            drop(permit);
            done
        }) as Job)
    })
}

fn parse<P: LineParser>(cut: &Cut, mut parser: SplitParser<'_, P>) -> Result<(), Stop> {
    if !cut.endless {
        parser.lines(&cut.text, cut.offset)?;
        return parser.finish();
    }
    let whole = memchr::memrchr(b'\n', &cut.text).map_or(0, |end| end + 1);
    parser.lines(&cut.text[..whole], cut.offset)?;
    parser.too_long(&cut.text[whole..], cut.offset + whole as u64)?;
    parser.finish()
}
