//! The first lines of the files: which names objects have, and which of their values are lists.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use forebay_actors::{Fault, FaultKind};
use futures::{StreamExt, TryStreamExt};

use super::column::column_type;
use super::late_keys::NewKeys;
use super::object::{each_value, elements};
use crate::file::DataFile;
use crate::format::{FileColumn, Integers, ValueKind};
use crate::names::{NoColumn, did_you_mean, listed, no_column};
use crate::partition_columns::{Constant, PartitionColumns, folder_columns, folders_of_text};
use crate::text::column::field;
use crate::text::head::{BYTE_ORDER_MARK, read_head};

/// Files whose first lines are read at once.
const AT_ONCE: usize = 16;

/// What the lines of one file hold.
#[derive(Clone, Debug)]
pub struct JsonHead(pub(super) Arc<JsonLayout>);

#[derive(Debug)]
pub(super) struct JsonLayout {
    /// The origin of each column of a batch.
    pub(super) origins: Vec<JsonOrigin>,
    /// The columns of a batch.
    pub(super) schema: SchemaRef,
    /// Bytes of a line, about, by the first lines of the file.
    pub(super) line_bytes: u64,
    /// What happens to keys that no file has in its first lines.
    pub(super) new_keys: NewKeys,
}

/// Where a column comes from.
#[derive(Debug)]
pub(super) enum JsonOrigin {
    /// A key of the objects.
    Key { kind: ValueKind, integers: Integers, list: bool },
    /// A folder `column=value`.
    Folder(Constant),
}

/// The names in the first lines of a file, and the kinds of their values; and the mean length of these lines, in bytes.
struct Head {
    names: BTreeMap<String, KindsOfValues>,
    line_bytes: u64,
}

/// What some values of a name are.
#[derive(Clone, Copy, Default)]
struct KindsOfValues {
    list: bool,
    /// Neither null nor lists.
    single: bool,
    /// Objects, or lists of lists or of objects.
    nested: bool,
}

impl KindsOfValues {
    fn add(&mut self, other: KindsOfValues) {
        self.list |= other.list;
        self.single |= other.single;
        self.nested |= other.nested;
    }
}

/// Reads the first lines of all files and finds the columns `wanted` in them; if it is `None`, all columns without nested values, as text,
/// and with `also_folders` the folders `column=value` above the first file. A column has lists in all files if one of its values in any
/// file is a list. It also has lists if all of its values are null, the job says that it holds lists, and the paired column has no single
/// values. A [`single`](FileColumn::single) column never has lists.
///
/// # Errors
/// A user fault that names a column that no file has in its first lines, unless it is optional.
pub(super) async fn read_heads(
    files: &[DataFile],
    wanted: Option<&[FileColumn]>,
    also_folders: bool,
    new_keys: impl FnOnce(HashSet<String>) -> NewKeys,
) -> Result<Vec<JsonHead>, Fault> {
    let heads: Vec<Head> = futures::stream::iter(files)
        .map(|file| async move {
            let text = read_head(file).await?;
            one_object_per_line(&file.name, &text)?;
            Ok::<_, Fault>(head(&text))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut names: BTreeMap<&str, KindsOfValues> = BTreeMap::new();
    for (name, &seen) in heads.iter().flat_map(|head| &head.names) {
        names.entry(name).or_default().add(seen);
    }
    let wanted: Vec<FileColumn> = match wanted {
        Some(wanted) => wanted.to_vec(),
        None => {
            let (nested, plain): (Vec<_>, Vec<_>) = names.iter().partition(|(_, seen)| seen.nested);
            if !nested.is_empty() {
                let nested = listed(nested.into_iter().map(|(name, _)| *name));
                tracing::warn!("left out are columns of objects, lists of objects or lists of lists: {nested}");
            }
            if plain.is_empty() && !names.is_empty() {
                let first = files.first().map_or("", |file| &file.name);
                return Err(Fault::user(format!("`{first}` and the files beside it have no other columns than these")));
            }
            let in_files = plain.into_iter().map(|(name, _)| FileColumn::new(*name, ValueKind::Text));
            let is_key = |name: &str| names.contains_key(name);
            let of_folders = if also_folders { folder_columns(files, is_key) } else { Vec::new() };
            in_files.chain(of_folders).collect()
        }
    };
    let of_wanted: Vec<String> = wanted.iter().map(|column| column.name.clone()).collect();
    let folders = PartitionColumns::new(files.iter(), &of_wanted, &folders_of_text(&wanted), &DataType::Utf8);
    let in_folders = |name: &str| files.iter().any(|file| file.is_below(name));
    if let Some(column) = wanted.iter().find(|column| {
        !column.optional && !names.contains_key(column.name.as_str()) && !in_folders(&column.name) && !names.is_empty()
    }) {
        return Err(missing(&column.name, &names, files));
    }
    let new_keys = new_keys(names.keys().map(|&name| name.to_owned()).collect());
    let layouts = files.iter().zip(&heads).map(|(file, head)| {
        let (mut origins, mut fields) = (Vec::new(), Vec::new());
        for FileColumn { name, kind, integers, list, single, paired_column, .. } in &wanted {
            let above = || folders.get_above(name, &file.partitions).filter(|_| !names.contains_key(name.as_str()));
            let (of_column, origin) = match folders.get(name, &file.partitions).or_else(above) {
                Some((of_folder, constant)) => (of_folder, JsonOrigin::Folder(constant)),
                None => {
                    let seen = |name: &str| names.get(name).copied().unwrap_or_default();
                    let of_single =
                        paired_column.as_deref().map(seen).is_some_and(|paired| paired.single && !paired.list);
                    let list = !single && (seen(name).list || *list && !seen(name).single && !of_single);
                    let origin = JsonOrigin::Key { kind: *kind, integers: *integers, list };
                    (field(name, *kind, column_type(*kind, list), *integers), origin)
                }
            };
            fields.push(of_column);
            origins.push(origin);
        }
        let schema = Arc::new(Schema::new(fields));
        JsonHead(Arc::new(JsonLayout { origins, schema, line_bytes: head.line_bytes, new_keys: new_keys.clone() }))
    });
    Ok(layouts.collect())
}

/// Refuses a file that begins as an array, or as an object of several lines. All of its lines would be bad rows, and a run that leaves out
/// bad rows would read no row of the file.
fn one_object_per_line(name: &str, text: &[u8]) -> Result<(), Fault> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).trim_ascii_start();
    let first_line = text.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let (what, with) = match first_line {
        [b'[', rest @ ..] if matches!(rest.trim_ascii_start(), [] | [b'{', ..]) => {
            ("begins with `[`, as one JSON array", "jq -c '.[]'")
        }
        b"{" => ("has an object of several lines", "jq -c ."),
        _ => return Ok(()),
    };
    let said = format!("`{name}` {what}: JSON lines have one object per line; write it anew, for instance by `{with}`");
    Err(Fault::user(said).kind(FaultKind::BadData))
}

/// Skips lines that are no objects: reading the rows reports them.
fn head(text: &[u8]) -> Head {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let (mut names, mut lines) = (BTreeMap::<String, KindsOfValues>::new(), 0);
    let mut at = 0;
    for end in memchr::memchr_iter(b'\n', text).chain((!text.ends_with(b"\n")).then_some(text.len())) {
        let line = text.get(at..end).unwrap_or_default();
        (at, lines) = (end + 1, lines + 1);
        let mut found: Vec<String> = Vec::new();
        let mut values: Vec<KindsOfValues> = Vec::new();
        let name = |key: &str| {
            found.push(key.to_owned());
            Some(found.len() - 1)
        };
        let value = |_, raw: &str| -> Result<(), Infallible> {
            values.push(seen(raw));
            Ok(())
        };
        if each_value(line, name, value).is_ok() {
            found.into_iter().zip(values).for_each(|(name, seen)| names.entry(name).or_default().add(seen));
        }
    }
    Head { names, line_bytes: (text.len() / lines.max(1)).max(1) as u64 }
}

/// The kind of a value, given as its text.
fn seen(raw: &str) -> KindsOfValues {
    let list = raw.starts_with('[');
    let nests = |raw: &str| raw.starts_with(['[', '{']);
    let nested = if list {
        elements(raw).is_ok_and(|elements| elements.iter().any(|element| nests(element.get())))
    } else {
        nests(raw)
    };
    KindsOfValues { list, single: !list && raw != "null", nested }
}

fn missing(column: &str, names: &BTreeMap<&str, KindsOfValues>, files: &[DataFile]) -> Fault {
    let near = did_you_mean(column, names.keys().copied());
    let first = files.first().map_or("", |file| &file.name);
    let shown = names.keys().map(|name| name.get(..60).unwrap_or(name));
    let outer =
        column.split_once('.').map(|(outer, _)| outer).filter(|outer| names.get(outer).is_some_and(|seen| seen.nested));
    let hint = outer.map(|outer| {
        format!("; objects within objects, as in `{outer}`, are not read: write the value as a key of its own")
    });
    Fault::user(format!(
        "{} in the first lines of `{first}` and the files beside it{near}: their objects have {}{}",
        no_column(column),
        listed(shown),
        hint.unwrap_or_default()
    ))
    .kind(FaultKind::MissingColumn)
    .with_source(NoColumn(column.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: the only advice was to make the column optional, so that all of its values were missing.
    #[test]
    fn a_name_within_an_object_is_told_that_objects_are_not_read() {
        let head = head(b"{\"user\":{\"id\":1},\"site\":2}");
        let names = head.names.iter().map(|(name, seen)| (name.as_str(), *seen)).collect();
        let said = |column: &str| missing(column, &names, &[]).to_string();
        assert!(said("user.id").contains("as in `user`, are not read: write the value as a key of its own"));
        assert!(!said("site.id").contains("not read") && !said("x").contains("not read"));
    }

    /// A bug: names that only the first line has were not found.
    #[test]
    fn the_first_line_counts_behind_a_byte_order_mark() {
        let names = |text: &str| head(text.as_bytes()).names.into_keys().collect::<Vec<_>>();
        assert_eq!(names("\u{feff}{\"a\":1}\nno object\n{\"b\":2}"), ["a", "b"]);
    }
}
