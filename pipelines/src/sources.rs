//! The source of a job: files, or a custom source.
//!
//! `sources/spread_windows.rs`: a sample from all over the rows. `sources/row_groups.rs`: rows of one group.
//! `sources/remaining_windows.rs`: after a checkpoint.

pub(crate) mod remaining_windows;
pub(crate) mod row_groups;
pub(crate) mod spread_windows;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_actors::{Fault, Place, Source, StageCx};
use forebay_batches::check_columns;
use forebay_connectors::convert::block_on;
use forebay_connectors::{
    FileColumn, FileFormat, FileSource, Format, Input, Integers, Leases, OnBadRow, PlanCheck, ReadOptions, ValueKind,
    format_of,
};
use forebay_job::{Columns, Job, Paths, Slot, Transform};

use crate::checkpointer::cut::CutPoint;
use crate::columns::run_types::{FileTypes, RowTypes};
use crate::context::Context;
use crate::extension::registry::{Read, SourceRequest, read_from};
use crate::own_thread::on_own_thread;
use crate::sources::remaining_windows::RemainingWindows;
use crate::sources::row_groups::check_groups;
use crate::sources::spread_windows::SpreadWindows;
use crate::window_rows::window_rows;

/// Reads the columns that an evaluation needs at `paths` (files, folders, globs, URLs) in order, with one window per epoch. If the job does
/// not give the format, it blocks while it lists the files.
pub(crate) fn to_evaluate(job: &Job, context: &Context, paths: &Paths) -> Result<Read, Fault> {
    read(job, context, Some(paths), (with_groups(job), Shown::Groups), 0, Windows::All)
}

/// As [`to_evaluate`], the columns that a prediction needs and `kept`, whose values go into its output.
pub(crate) fn to_predict(job: &Job, context: &Context, paths: &Paths, kept: &[String]) -> Result<Read, Fault> {
    read(job, context, Some(paths), (job.columns.names_with(kept), Shown::Kept(kept)), 0, Windows::All)
}

/// As [`to_predict`], the rows at `data.train`, in the windows that `leases` grants.
pub(crate) fn windows_to_predict(
    job: &Job,
    context: &Context,
    kept: &[String],
    leases: Arc<dyn Leases>,
) -> Result<Read, Fault> {
    let columns = (job.columns.names_with(kept), Shown::Kept(kept));
    read(job, context, train_paths(job)?, columns, window_rows(job, job.in_step()), Windows::Leased(leases))
}

/// Reads the job's training rows in windows of [`window_rows`]: all windows, or those that `leases` grants.
pub(crate) fn windows(job: &Job, context: &Context, leases: Option<Arc<dyn Leases>>) -> Result<Read, Fault> {
    to_train(job, context, leases.map_or(Windows::All, Windows::Leased))
}

/// Reads the job's training rows that were not trained on before this process began. If the windows are not known before they are read
/// (text, a custom source), reads all rows, and the look-up skips the batches that were trained on. Even then, the text files must be the
/// same as in the checkpoint.
pub(crate) fn remaining(job: &Job, context: &Context, cut_point: Option<Arc<CutPoint>>) -> Result<Read, Fault> {
    to_train(job, context, cut_point.map_or(Windows::All, Windows::Remaining))
}

fn to_train(job: &Job, context: &Context, windows: Windows) -> Result<Read, Fault> {
    let columns = (job.columns.names(), Shown::Nothing);
    read(job, context, train_paths(job)?, columns, window_rows(job, job.in_step()), windows)
}

fn train_paths(job: &Job) -> Result<Option<&Paths>, Fault> {
    match job.data.source {
        Some(_) => Ok(job.data.train.as_ref()),
        None => job.train_paths().map(Some),
    }
}

/// The columns whose values a result shows.
#[derive(Clone, Copy)]
enum Shown<'a> {
    Nothing,
    /// The columns that the evaluation of the job groups rows by.
    Groups,
    /// These columns, which are written again.
    Kept(&'a [String]),
}

/// Which windows a source reads.
enum Windows {
    /// All. In text, where windows need leases, an epoch is then one window.
    All,
    Leased(Arc<dyn Leases>),
    /// All that were not trained on before this process began.
    Remaining(Arc<CutPoint>),
}

impl Windows {
    /// The windows that the source must read. `numbered`: the source knows its windows before it reads them.
    ///
    /// # Errors
    /// A user fault if the run continues from a checkpoint of other windows.
    fn granted(self, numbered: bool) -> Result<Granted, Fault> {
        Ok(match self {
            Self::Leased(leases) => Granted::Leases(leases),
            Self::Remaining(cut_point) if numbered => Granted::Leases(Arc::new(RemainingWindows::new(cut_point))),
            Self::Remaining(cut_point) if cut_point.is_numbered() => {
                return Err(Fault::user(
                    "several processes made the checkpoint, and they cut text into other batches than one process \
                     does: resume in several processes",
                ));
            }
            Self::Remaining(cut_point) => Granted::AllOf(Arc::new(move |data| cut_point.reads(data))),
            Self::All => Granted::All,
        })
    }
}

/// The windows that a source must read.
enum Granted {
    All,
    /// All rows, if this check finds that the data is the same as before.
    AllOf(PlanCheck),
    Leases(Arc<dyn Leases>),
}

pub(crate) fn read_options(job: &Job, window_rows: usize) -> ReadOptions {
    ReadOptions {
        batch_rows: job.data.read_rows,
        epochs: job.data.epochs,
        shuffle: job.data.shuffle,
        seed: job.seed,
        window_rows,
        read_ahead_bytes: job.data.first_read_ahead(),
        most_read_ahead_bytes: job.data.most_read_ahead(),
        memory_limit: job.memory_limit(),
        decode_ahead_bytes: job.data.decode_ahead.0,
        decode_threads: job.decode_threads(),
        most_decode_threads: job.most_decode_threads(),
    }
}

/// Opens `paths` and checks that its rows have the columns of the job, with types that can be parsed, and by which rows can be grouped.
/// Returns the types. Returns `None` for custom sources, which it does not open, and if custom stages come between source and parser: then
/// it does not check the types.
pub(crate) fn check(job: &Job, context: &Context, paths: &Paths) -> Result<Option<FileTypes>, Fault> {
    if job.data.source.is_some() {
        return Ok(None);
    }
    let (mut source, in_files, told) = to_look_at(job, context, paths, (with_groups(job), Shown::Groups), 0)?;
    let (columns, groups) = (&job.columns, job.evaluation.columns());
    let types = job.pipeline.after_read.is_empty();
    on_own_thread("opening files", || {
        block_on(async {
            let cx = StageCx::detached("check");
            source.open(&cx).await?;
            let rows = match source.schema() {
                Some(schema) => Some(RecordBatch::new_empty(schema)),
                None => source.next(&cx).await?.map(|rows| rows.batch),
            };
            let Some(rows) = rows.filter(|_| types) else { return Ok(None) };
            check_columns(columns, &rows)?;
            check_groups(&groups, &rows)?;
            let folders = source.folder_columns(&in_files);
            Ok(Some(FileTypes { format: told, rows: RowTypes::of(job, rows.schema_ref()), folders }))
        })
    })
}

/// The rows at `paths` in the order of the files, once, without bad rows of text, and with nothing read ahead; the columns that are read,
/// and the format. The source is not open yet.
fn to_look_at(
    job: &Job,
    context: &Context,
    paths: &Paths,
    (names, shown): (Vec<String>, Shown<'_>),
    window_rows: usize,
) -> Result<(FileSource, Vec<FileColumn>, Format), Fault> {
    let (input, format) = input(job, context, paths)?;
    let format = FileFormat { on_bad_row: OnBadRow::Skip, ..format };
    let ahead = read_options(job, window_rows).without_ahead();
    let options = ReadOptions { epochs: 1, shuffle: false, ..ahead };
    let (columns, told) = (file_columns(job, format.format, names, shown)?, format.format);
    let source = FileSource::new(input, options, format, columns.clone()).hinting(column_hint(job, false));
    Ok((source, columns, told))
}

/// Calls `each` with batches of rows at `data.train`, `most` rows in all, from parts that are spread evenly over the data; the first part
/// is the first rows. `each` also gets the number of the part. There are up to [`spread_windows::MOST`] parts, and fewer if they are large:
/// after [`LOOKED_AT`] bytes no further part begins. The job has no custom source. Bad rows of text are left out. Returns the rows of an
/// epoch, if the files tell. Blocks on the store.
pub(crate) fn sampled_rows(
    job: &Job,
    context: &Context,
    most: usize,
    mut each: impl FnMut(usize, RecordBatch) -> Result<(), Fault> + Send,
) -> Result<Option<u64>, Fault> {
    let (names, window_rows) = ((job.columns.names(), Shown::Nothing), most / spread_windows::MOST);
    let (source, ..) = to_look_at(job, context, job.train_paths()?, names, window_rows)?;
    let windows = Arc::new(SpreadWindows::new());
    let leases: Arc<dyn Leases> = windows.clone();
    let mut source = source.leasing(leases).text_split_bytes(SMALL_SPLIT);
    on_own_thread("reading rows", || {
        block_on(async {
            let cx = StageCx::detached("row sample");
            source.open(&cx).await?;
            windows.grant();
            let (mut left, mut part) = (most, 0);
            while left > 0
                && let Some(rows) = source.next(&cx).await?
            {
                let batch = rows.batch.slice(0, rows.batch.num_rows().min(left));
                left -= batch.num_rows();
                each(part, batch)?;
                if rows.window.closes {
                    part += 1;
                    // All bytes of the window were fetched, and no others.
                    if cx.meter().bytes_fetched() < LOOKED_AT { windows.grant() } else { windows.close() }
                }
            }
            Ok(windows.rows())
        })
    })
}

/// Bytes after which no further part of the data is looked at: less than a second of most stores.
const LOOKED_AT: u64 = 16 << 20;

/// Bytes of a split of text that is looked at: 8,192 short rows.
const SMALL_SPLIT: u64 = 64 << 10;

/// Fails if there are no files at `paths`, or if the files are of several formats. Blocks on the store.
pub(crate) fn check_found(job: &Job, context: &Context, paths: &Paths) -> Result<(), Fault> {
    if job.data.source.is_some() {
        return Ok(());
    }
    let (input, _) = input(job, context, paths)?;
    match job.data.format {
        Some(_) => on_own_thread("opening files", || block_on(input.list())).map(drop),
        // The files were listed to find their format.
        None => Ok(()),
    }
}

/// The rows of an epoch at `data.train`, if its files tell, and if no custom stage makes others of them. `None` also if the files cannot
/// be opened: the run itself says why. Blocks on the store.
pub(crate) fn train_rows(job: &Job, context: &Context) -> Option<u64> {
    let own = &job.pipeline;
    if job.data.source.is_some()
        || [&own.after_read, &own.after_parse, &own.after_batch].iter().any(|own| !own.is_empty())
    {
        return None;
    }
    let (input, format) = input(job, context, job.data.train.as_ref()?).ok()?;
    if !format.format.tells_rows() {
        return None;
    }
    let options = ReadOptions { epochs: 1, ..read_options(job, 0).without_ahead() };
    let columns = file_columns(job, format.format, job.columns.names(), Shown::Nothing).ok()?;
    let rows = on_own_thread("opening files", || {
        block_on(async {
            let mut source = FileSource::new(input, options, format, columns);
            let cx = StageCx::detached("check");
            source.open(&cx).await?;
            Ok(source.total_rows())
        })
    });
    rows.ok()?
}

/// The columns of the job, and the columns that its evaluation groups rows by.
fn with_groups(job: &Job) -> Vec<String> {
    let mut names = job.columns.names();
    let more: Vec<String> = job.evaluation.columns().into_iter().filter(|column| !names.contains(column)).collect();
    names.extend(more);
    names
}

fn read(
    job: &Job,
    context: &Context,
    paths: Option<&Paths>,
    (columns, shown): (Vec<String>, Shown<'_>),
    window_rows: usize,
    windows: Windows,
) -> Result<Read, Fault> {
    let options = read_options(job, window_rows);
    let paths = match (&job.data.source, paths) {
        (Some(name), paths) => {
            let leases = match windows.granted(false)? {
                Granted::Leases(leases) => Some(leases),
                Granted::AllOf(_) | Granted::All => None,
            };
            let paths = paths.map(|paths| paths.0.clone()).unwrap_or_default();
            let request = SourceRequest { paths, columns, options, leases };
            return context.registry.read(name, request);
        }
        (None, Some(paths)) => paths,
        (None, None) => return Err(Fault::internal("files are read without a path")),
    };
    let (input, format) = input(job, context, paths)?;
    let hint = column_hint(job, matches!(shown, Shown::Kept(_)));
    let granted = windows.granted(format.format.tells_rows())?;
    let (columns, told) = (file_columns(job, format.format, columns, shown)?, Some(format.format));
    let mut read = read_from(Place::Shared, None, move || {
        let source = FileSource::new(input, options, format, columns).hinting(hint);
        match granted {
            Granted::All => source,
            Granted::AllOf(check) => source.checking(check),
            Granted::Leases(leases) => source.leasing(leases),
        }
    });
    read.format = told;
    Ok(read)
}

/// What to do about a column that a file lacks. A job that names no features has those of Criteo, so it needs the names of its data. A
/// column that only some files have may be missing: a label in a prediction only, and a slot whose values have weights never. A column that
/// is no feature must be in `columns.extra`, so that `columns.optional` may name it.
fn column_hint(job: &Job, predicts: bool) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let Columns { label, weight, slots, extra, optional, .. } = &job.columns;
    let needed = label.iter().map(|label| &label.column).chain(weight).filter(|_| !predicts);
    let weighted = slots.iter().filter(|slot| slot.weights.is_some()).flat_map(Slot::columns);
    let needed: HashSet<String> = needed.chain(weighted).cloned().collect();
    let known: HashSet<String> = job.columns.names().into_iter().collect();
    let (extra, optional) = (extra.clone(), optional.clone());
    let of_criteo = features_of_criteo(&job.columns);
    move |column| {
        if let Some((fields, _)) = of_criteo.as_ref().filter(|(_, names)| names.contains(column)) {
            return Some(format!(
                "{fields}, so the job has the features of Criteo: name the columns of your data (`forebay data inspect` prints them)"
            ));
        }
        let with = |names: &[String]| {
            let names: Vec<String> =
                names.iter().map(String::as_str).chain([column]).map(|name| format!("{name:?}")).collect();
            names.join(", ")
        };
        let also = match known.contains(column) {
            _ if needed.contains(column) => return None,
            true => String::new(),
            false => format!("--set 'columns.extra=[{}]' ", with(&extra)),
        };
        Some(format!("if only some files or rows have it, add {also}--set 'columns.optional=[{}]'", with(&optional)))
    }
}

/// The features that the job has because it leaves out `columns.dense` or `columns.slots`, and words that name these fields. `None`: it
/// sets both. A job that writes the defaults itself looks the same.
fn features_of_criteo(columns: &Columns) -> Option<(&'static str, HashSet<String>)> {
    let default = Columns::default();
    let dense = default.dense.iter().map(|dense| dense.column.clone()).filter(|_| columns.dense == default.dense);
    let slots = default.slots.iter().map(|slot| slot.column.clone()).filter(|_| columns.slots == default.slots);
    let fields = match (columns.dense == default.dense, columns.slots == default.slots) {
        (true, true) => "columns.dense and columns.slots have their defaults",
        (true, false) => "columns.dense has its default",
        (false, true) => "columns.slots has its default",
        (false, false) => return None,
    };
    Some((fields, dense.chain(slots).collect()))
}

/// Fails if the bad rows of the job would be written among the rows of `input`.
///
/// # Errors
/// A user fault that names both places.
pub(crate) fn check_bad_rows(job: &Job, input: &Input) -> Result<(), Fault> {
    input.check_apart_from(&job.data.on_bad_row, "data.on_bad_row.write_to")
}

/// The files at `paths`, and their format.
fn input(job: &Job, context: &Context, paths: &Paths) -> Result<(Input, FileFormat), Fault> {
    let mut input = Input::all(paths.0.iter().map(Input::from)).with_stores(&context.stores);
    check_bad_rows(job, &input)?;
    if let Some(filter) = &job.data.filter {
        input = input.filtered(filter);
    }
    let format = match job.data.format {
        Some(format) => format,
        None => on_own_thread("opening files", || block_on(format_of(&input, job.data.eval_format)))?,
    };
    Ok((input, FileFormat { format, csv: job.data.csv.clone(), on_bad_row: job.data.on_bad_row.clone() }))
}

/// The columns `names` of files. Columns that the job does not have are text in CSV and JSON; the other formats have their own types.
/// Hexadecimal digits in a result stay text, and so do integers that would wrap. Integers that a result writes again do not wrap, and such
/// numbers are not rounded. Integers that are also a dense feature with the transform `auto` are told apart, because this transform is none
/// for numbers of text.
fn file_columns(job: &Job, format: Format, names: Vec<String>, shown: Shown<'_>) -> Result<Vec<FileColumn>, Fault> {
    let known = match format {
        Format::Csv | Format::JsonLines => job.columns.in_files(format)?,
        Format::Parquet | Format::Arrow | Format::Criteo => job.columns.in_typed_files(),
    };
    let known: HashMap<&str, &FileColumn> = known.iter().map(|column| (column.name.as_str(), column)).collect();
    let numbers = job.columns.dense.iter().filter(|dense| dense.transform == Transform::Auto);
    let numbers: HashSet<&str> = numbers.map(|dense| dense.column.as_str()).collect();
    let groups = job.evaluation.columns();
    let (shown, kept) = match shown {
        Shown::Nothing => (&[][..], false),
        Shown::Groups => (&groups[..], false),
        Shown::Kept(kept) => (kept, true),
    };
    let wraps = |known: &FileColumn| known.kind == ValueKind::Integer && known.integers == Integers::Wrapping;
    let column = |name: String| match known.get(name.as_str()).copied() {
        Some(known) if known.kind == ValueKind::Integer && numbers.contains(name.as_str()) => {
            known.clone().integers(Integers::AlsoNumbers)
        }
        Some(known) if known.kind == ValueKind::Hex && shown.contains(&name) => {
            FileColumn { kind: ValueKind::HexText, ..known.clone() }
        }
        // A custom stage may make other fields, which do not say that this text has integers.
        Some(known) if wraps(known) && !kept && shown.contains(&name) && job.pipeline.after_read.is_empty() => {
            FileColumn { kind: ValueKind::IntegerText, ..known.clone() }
        }
        Some(known) if kept && shown.contains(&name) => {
            let would_be_rounded = known.kind == ValueKind::Number || known.integers == Integers::RoundedDown;
            known.clone().integers(if would_be_rounded { Integers::Exact } else { Integers::Signed })
        }
        Some(known) => known.clone(),
        None => FileColumn::new(name, ValueKind::Text),
    };
    Ok(names.into_iter().map(column).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job shuffles, in windows, its decode threads may grow to its cores, and its read-ahead to 1 GiB. In all else, both read in the
    /// same way.
    #[test]
    fn a_source_reads_by_default_as_a_job_on_two_cores_does() {
        for cores in [1, 2] {
            let job = Job::from_toml("", &[format!("pipeline.cores={cores}")]).unwrap();
            let plain = ReadOptions::default();
            let expected = ReadOptions {
                shuffle: job.data.shuffle,
                most_decode_threads: cores,
                most_read_ahead_bytes: 1 << 30,
                ..plain.clone()
            };
            assert_eq!(read_options(&job, plain.window_rows), expected);
        }
    }
}
