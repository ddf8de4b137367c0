//! The header of a CSV file: the field of each wanted column, and the columns of the file's folders.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use forebay_actors::{Fault, FaultKind};
use futures::{StreamExt, TryStreamExt};

use super::options::CsvOptions;
use super::split::split_line;
use crate::file::DataFile;
use crate::format::{FileColumn, Integers, ValueKind};
use crate::names::{NamesOfFile, NoColumn, did_you_mean, listed, named_like_a_range, no_column, unnamed_columns};
use crate::partition_columns::{Constant, PartitionColumns, folder_columns, folders_of_text};
use crate::text::MAX_LINE;
use crate::text::bad_row::shown;
use crate::text::column::{data_type, field};
use crate::text::head::{BYTE_ORDER_MARK, marked_encoding, read_head};
use crate::text::sparse::sparse_text;

/// Files whose headers are read at once.
const AT_ONCE: usize = 16;

/// What the lines of one file hold.
#[derive(Clone, Debug)]
pub struct CsvHeader(pub(super) Arc<CsvLayout>);

#[derive(Debug)]
pub(super) struct CsvLayout {
    /// The names in the header, one for each field of a line.
    pub(super) names: Vec<String>,
    /// For each field the place of its column in a batch, if it is wanted.
    pub(super) targets: Vec<Option<usize>>,
    /// The origin of each column of a batch.
    pub(super) origins: Vec<CsvOrigin>,
    /// The columns of a batch.
    pub(super) schema: SchemaRef,
    /// Bytes of a line, about, by the first lines of the file.
    pub(super) line_bytes: u64,
}

/// Where a column comes from.
#[derive(Debug)]
pub(super) enum CsvOrigin {
    Field(ValueKind, Integers),
    /// A folder `column=value`, or a column that the file lacks.
    Constant(Constant),
}

/// What is read if no columns are named.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unnamed {
    /// Also the folders `column=value` above the first file.
    pub(super) folders: bool,
    /// The columns of all files, not only of the first.
    pub(super) of_all_files: bool,
}

/// Reads the headers of all files and finds the columns `wanted` in them. If it is `None`, all columns of the first file are read, as text,
/// and what `unnamed` says.
///
/// # Errors
/// A user fault that names the file and the column that it lacks or has twice.
pub(super) async fn read_headers(
    files: &[DataFile],
    wanted: Option<&[FileColumn]>,
    unnamed: Unnamed,
    options: &CsvOptions,
) -> Result<Vec<CsvHeader>, Fault> {
    options.check()?;
    let headers: Vec<Option<(Vec<String>, u64)>> = futures::stream::iter(files)
        .map(|file| async move { header(file, &read_head(file).await?, options) })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let first = headers.iter().flatten().next().cloned();
    if let (None, Some(file)) = (&first, files.first()) {
        return Err(Fault::user(format!("`{}` is an empty file: no rows to read", file.name)).kind(FaultKind::BadData));
    }
    // A file without rows has the columns of any other.
    let headers: Vec<(Vec<String>, u64)> =
        headers.into_iter().filter_map(|header| header.or_else(|| first.clone())).collect();
    let wanted: Vec<FileColumn> = match (wanted, headers.first()) {
        (Some(wanted), _) => wanted.to_vec(),
        (None, Some(_)) => {
            let there: Vec<NamesOfFile<'_>> = files
                .iter()
                .zip(&headers)
                .map(|(file, (names, _))| (file.name.as_str(), names.iter().map(String::as_str).collect()))
                .collect();
            let (names, may_lack) = unnamed_columns(&there, unnamed.of_all_files);
            let in_files =
                names.iter().map(|name| FileColumn::new(name, ValueKind::Text).optional(may_lack.contains(name)));
            let of_folders = if unnamed.folders {
                folder_columns(files, |folder| names.iter().any(|name| name == folder))
            } else {
                Vec::new()
            };
            in_files.chain(of_folders).collect()
        }
        (None, None) => Vec::new(),
    };
    let names: Vec<String> = wanted.iter().map(|column| column.name.clone()).collect();
    let folders = PartitionColumns::new(files.iter(), &names, &folders_of_text(&wanted), &DataType::Utf8);
    let layouts = files.iter().zip(headers).map(|(file, (names, line_bytes))| {
        let layout = layout(file, names, line_bytes, &wanted, &folders, options)?;
        Ok(CsvHeader(Arc::new(layout)))
    });
    layouts.collect()
}

/// The names in the first line of a file, and the mean length of the lines in `head`, in bytes. `None`: the file, once it is unpacked, is
/// empty.
fn header(file: &DataFile, head: &[u8], options: &CsvOptions) -> Result<Option<(Vec<String>, u64)>, Fault> {
    let name = &file.name;
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    if text.is_empty() {
        return Ok(None);
    }
    let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
    let line = text[..end].strip_suffix(b"\r").unwrap_or(&text[..end]);
    if end == text.len() && line.contains(&b'\r') {
        return Err(Fault::user(format!(
            "`{name}`: its lines end with \\r alone, expected \\n or \\r\\n: convert it, for instance with `tr '\\r' '\\n'`"
        ))
        .kind(FaultKind::BadData));
    }
    if line.len() > MAX_LINE {
        return Err(Fault::user(format!(
            "`{name}`: its first line has more than {MAX_LINE} bytes, so it is not a header"
        ))
        .kind(FaultKind::BadData));
    }
    if line.is_empty() {
        return Err(Fault::user(format!(
            "`{name}`: its first line is empty, expected a header with the names of columns"
        ))
        .kind(FaultKind::BadData));
    }
    let fields = split_line(line, options).map_err(|reason| {
        Fault::user(format!("`{name}`, line 1: the header cannot be read: {}", reason.text())).kind(FaultKind::BadData)
    })?;
    let names = fields.into_iter().map(|field| String::from_utf8(field).map(|name| name.trim().to_owned()));
    let names: Vec<String> = names.collect::<Result<_, _>>().map_err(|_| not_utf8(name, line))?;
    if let Some(at) = memchr::memchr(0, line) {
        return Err(zero_byte(name, line, at));
    }
    let lines = memchr::memchr_iter(b'\n', &text[end..]).count().max(1);
    Ok(Some((names, ((text.len() - end) / lines).max(1) as u64)))
}

/// The fault of a header with a byte that is not UTF-8: where it is, and how to convert the file.
fn not_utf8(name: &str, line: &[u8]) -> Fault {
    let marked = marked_encoding(line);
    let valid = std::str::from_utf8(line).map_or_else(|e| e.valid_up_to(), str::len);
    // A control character other than a tab means a binary file.
    if marked.is_none() && line.iter().any(|&byte| byte < b' ' && byte != b'\t') {
        return Fault::user(format!("`{name}`, line 1: the header is not UTF-8, and not text, so the file is not CSV"))
            .kind(FaultKind::BadData);
    }
    let byte = line.get(valid).copied().unwrap_or_default();
    let from = marked.unwrap_or("LATIN1");
    Fault::user(format!(
        "`{name}`, line 1: the header is not UTF-8: its byte {valid} is 0x{byte:02x}, in {}: convert the file, for instance with `iconv -f {from} \
         -t UTF-8 {name} > utf8.csv`{}",
        around(line, valid),
        if marked.is_some() { "" } else { " if it is Latin-1 (ISO 8859-1)" }
    ))
    .kind(FaultKind::BadData)
}

/// The fault of a header with a zero byte, as UTF-16 without a byte order mark has in ASCII text.
fn zero_byte(name: &str, line: &[u8], at: usize) -> Fault {
    let from = if at == 0 { "UTF-16BE" } else { "UTF-16LE" };
    Fault::user(format!(
        "`{name}`, line 1: the header has a zero byte, in {}: if the file is UTF-16, convert it, for instance with `iconv -f {from} \
         -t UTF-8 {name} > utf8.csv`",
        around(line, at)
    ))
    .kind(FaultKind::BadData)
}

/// A few letters of the name that a byte of the header is in.
fn around(line: &[u8], at: usize) -> String {
    shown(&line[at.saturating_sub(12)..line.len().min(at + 12)])
}

fn layout(
    file: &DataFile,
    names: Vec<String>,
    line_bytes: u64,
    wanted: &[FileColumn],
    folders: &PartitionColumns,
    options: &CsvOptions,
) -> Result<CsvLayout, Fault> {
    let mut targets = vec![None; names.len()];
    let mut origins = Vec::with_capacity(wanted.len());
    let mut fields = Vec::with_capacity(wanted.len());
    for (place, FileColumn { name, kind, integers, optional, .. }) in wanted.iter().enumerate() {
        if let Some((of_folder, constant)) = folders.get(name, &file.partitions) {
            fields.push(of_folder);
            origins.push(CsvOrigin::Constant(constant));
            continue;
        }
        let mut at = names.iter().enumerate().filter(|(_, there)| *there == name).map(|(at, _)| at);
        match (at.next(), at.next()) {
            (Some(at), None) => targets[at] = Some(place),
            (Some(first), Some(second)) => {
                let hint = no_header(names.iter().map(String::as_str), options).unwrap_or_else(|| {
                    ": rename one of them; a job that does not name it reads the file as it is".to_owned()
                });
                return Err(Fault::user(format!(
                    "`{}`: its header has `{name}` twice, as columns {} and {}{hint}",
                    file.name,
                    first + 1,
                    second + 1
                ))
                .kind(FaultKind::BadData));
            }
            (None, _) => {
                let null = || {
                    let arrays = data_type(*kind);
                    optional.then(|| (field(name, *kind, arrays.clone(), *integers), Constant::Null(arrays)))
                };
                let Some((constant_field, constant)) = folders.get_above(name, &file.partitions).or_else(null) else {
                    return Err(missing(name, &names, file, options));
                };
                fields.push(constant_field);
                origins.push(CsvOrigin::Constant(constant));
                continue;
            }
        }
        fields.push(field(name, *kind, data_type(*kind), *integers));
        origins.push(CsvOrigin::Field(*kind, *integers));
    }
    Ok(CsvLayout { targets, origins, schema: Arc::new(Schema::new(fields)), line_bytes, names })
}

/// The first name of a header that is a number: then the line is a row, most likely, and the file has no header.
pub fn number_among<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names.into_iter().find(|name| name.parse::<f64>().is_ok_and(f64::is_finite))
}

/// Says that a header with numbers is a row; `None` if it has none.
fn no_header<'a>(names: impl IntoIterator<Item = &'a str>, options: &CsvOptions) -> Option<String> {
    number_among(names)?;
    let how = header_to_add(options.delimiter);
    Some(format!(": the first line has numbers, expected a header with the names of columns: {how}"))
}

/// How to add a header to a file with this delimiter.
pub fn header_to_add(delimiter: char) -> String {
    let names = ["user", "item", "label"].join(&delimiter.escape_default().to_string());
    let command = match delimiter {
        ',' => format!("echo {names}"),
        _ => format!("printf '{names}\\n'"),
    };
    format!("write the names in front of the rows, as in ({command}; cat rows.csv) > named.csv")
}

/// Another delimiter in the only name of a header: then it is most likely the one between the fields.
pub fn other_delimiter(names: &[&str], delimiter: char) -> Option<char> {
    let [name] = names else { return None };
    ['\t', ',', ';', '|'].into_iter().find(|other| *other != delimiter && name.contains(*other))
}

fn missing(column: &str, names: &[String], file: &DataFile, options: &CsvOptions) -> Fault {
    let near = did_you_mean(column, names.iter().map(String::as_str));
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match other_delimiter(&all, options.delimiter) {
        Some(other) => format!(
            ": the first line has {other:?} and no {:?}, set data.csv.delimiter to {other:?} if that stands between fields",
            options.delimiter
        ),
        None => match names.first().filter(|_| names.len() == 1).and_then(|name| sparse_text(name.as_bytes())) {
            Some(columns) => format!(", expected {columns}"),
            None => no_header(all, options).unwrap_or_default(),
        },
    };
    let shown = names.iter().map(|name| name.get(..60).unwrap_or(name));
    let what = no_column(column);
    let range = named_like_a_range(names.iter().map(String::as_str));
    Fault::user(format!("`{}` has {what}{near}: its header has {}{hint}{range}", file.name, listed(shown)))
        .kind(FaultKind::MissingColumn)
        .with_source(NoColumn(column.to_owned()))
}
