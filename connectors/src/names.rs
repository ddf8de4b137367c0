//! Names of columns in messages: short lists, and the name that was probably meant.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use arrow::datatypes::Schema;

/// `label, I1, I2 and 37 more`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    forebay_base::listed(names, 50)
}

/// The column that a file lacks: the source of a fault of the kind `MissingColumn`, whose message names the column, too.
#[derive(Debug, thiserror::Error)]
#[error("no column `{0}`")]
pub(crate) struct NoColumn(pub(crate) String);

/// ``no column `x` ``, as all messages about a column that a file lacks say it.
pub(crate) fn no_column(column: &str) -> String {
    format!("no column `{column}`")
}

/// `, did you mean `day`?`, or nothing if no name is near.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    forebay_base::nearest(wrong, names).map_or_else(String::new, |name| format!(", did you mean `{name}`?"))
}

/// What to do about a column that is named like a range of columns in a job; nothing without one.
pub(crate) fn named_like_a_range<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let without_number = |end: &'a str| end.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_range = |name: &&'a str| {
        name.split_once("..").is_some_and(|(first, last)| {
            let (stem, of_last) = (without_number(first), without_number(last));
            stem == of_last && stem.len() < first.len() && of_last.len() < last.len()
        })
    };
    names.into_iter().find(is_range).map_or_else(String::new, |name| {
        format!(
            "; in a job `{name}` stands for a range of columns: give the column of this name another one in the file"
        )
    })
}

/// A file's name and the names of its columns.
pub(crate) type NamesOfFile<'a> = (&'a str, Vec<&'a str>);

/// The names of the columns of a schema.
pub(crate) fn names_of(schema: &Schema) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}

/// The columns that are read where none is named, and those among them that a file may lack. These are the columns of the first file, which
/// all files must have; with `of_all`, the columns of all files, unless a file has no column of the first one. Warns of columns that only
/// some files have.
pub(crate) fn unnamed_columns(files: &[NamesOfFile<'_>], of_all: bool) -> (Vec<String>, Vec<String>) {
    let (wanted, optional, warning) = match files.split_first() {
        Some(((_, first), others)) if of_all && others.iter().all(|(_, names)| share_a_name(first, names)) => {
            of_all_files(files)
        }
        Some(((_, first), _)) => (first.clone(), Vec::new(), left_out(files)),
        None => return (Vec::new(), Vec::new()),
    };
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    (owned(wanted), owned(optional))
}

fn share_a_name(names: &[&str], others: &[&str]) -> bool {
    names.iter().any(|name| others.contains(name))
}

/// The columns of all files in the order in which they come, the columns that some files lack, and a warning that names the latter.
fn of_all_files<'a>(files: &[NamesOfFile<'a>]) -> (Vec<&'a str>, Vec<&'a str>, Option<String>) {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    all.extend(files.iter().flat_map(|(_, names)| names).filter(|name| seen.insert(**name)).copied());
    let mut lacking = BTreeMap::new();
    for (file, names) in files {
        let there: HashSet<&str> = names.iter().copied().collect();
        for &name in all.iter().filter(|name| !there.contains(**name)) {
            lacking.entry(name).or_insert(*file);
        }
    }
    let warning = lacking.first_key_value().map(|(column, file)| {
        format!(
            "columns that only some files have: {}; `{file}`, for instance, has no `{column}`; they are missing in its rows. A \
             job reads them if columns.optional names them, too",
            listed(lacking.keys().copied())
        )
    });
    let optional = all.iter().filter(|name| lacking.contains_key(**name)).copied().collect();
    (all, optional, warning)
}

/// A warning of the columns that the first file lacks.
fn left_out(files: &[NamesOfFile<'_>]) -> Option<String> {
    let first: BTreeSet<&str> = files.first()?.1.iter().copied().collect();
    let mut left_out = BTreeMap::new();
    for (file, names) in files {
        names.iter().filter(|name| !first.contains(**name)).for_each(|name| {
            left_out.entry(*name).or_insert(*file);
        });
    }
    let (column, file) = left_out.first_key_value()?;
    Some(format!(
        "left out are columns that the first file lacks: {}; `{file}`, for instance, has `{column}`; a job reads them if columns.optional \
         names them, too, and `forebay data convert --all-columns` writes them",
        listed(left_out.keys().copied())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `data convert` left them out without a word.
    #[test]
    fn columns_that_the_first_file_lacks_are_named_with_a_file() {
        let files =
            [("1.csv", vec!["a", "b"]), ("2.csv", vec!["a", "y"]), ("3.csv", vec!["x"]), ("4.csv", vec!["x", "a"])];
        let said = left_out(&files).unwrap();
        assert!(said.contains("first file lacks: x, y; `3.csv`, for instance, has `x`"), "{said}");
        assert_eq!(left_out(&files[..1]), None);
        assert_eq!(unnamed_columns(&files, false), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    }

    #[test]
    fn columns_of_all_files_are_read_if_the_files_have_a_name_of_the_first_one() {
        let files = [("1.csv", vec!["a", "b"]), ("2.csv", vec!["y", "a"]), ("3.csv", vec!["b", "a", "x"])];
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(unnamed_columns(&files, true), (owned(&["a", "b", "y", "x"]), owned(&["b", "y", "x"])));
        let said = of_all_files(&files).2.unwrap();
        assert!(said.contains("only some files have: b, x, y; `2.csv`, for instance, has no `b`"), "{said}");
        assert_eq!(of_all_files(&files[..1]).2, None);
        // Most likely a file of another data set, or CSV with another delimiter or without a header.
        let other = [("1.csv", vec!["a", "b"]), ("2.csv", vec!["c;d"])];
        assert_eq!(unnamed_columns(&other, true), (owned(&["a", "b"]), vec![]));
        assert_eq!(unnamed_columns(&[], true), (vec![], vec![]));
    }

    #[test]
    fn a_column_with_the_name_of_a_range_has_to_be_renamed() {
        assert!(named_like_a_range(["x", "C1..C3"]).starts_with("; in a job `C1..C3` stands for a range"));
        assert_eq!(named_like_a_range(["C1", "a..b", "price_1..10", "age_1.5..2.5", ".."]), "");
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..60).map(|i| format!("C{i}")).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.starts_with("C0, C1, ") && text.ends_with("C49 and 10 more"), "{text}");
        assert_eq!(listed(["a", "b"]), "a, b");
    }
}
