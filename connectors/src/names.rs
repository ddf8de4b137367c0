//! Names of columns in messages: lists that do not flood a terminal, and the name that was probably meant.

use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::Schema;

/// `label, I1, I2 and 37 more`.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 50;
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => {}
        more => text += &format!(" and {more} more"),
    }
    text
}

/// ``no column `x` ``: every message about a column that a file lacks has it, so that [`FileSource`](crate::FileSource) finds the column.
pub(crate) fn no_column(column: &str) -> String {
    format!("no column `{column}`")
}

/// `, did you mean `day`?`, or nothing if no name is near.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    forebay_base::nearest(wrong, names).map_or_else(String::new, |name| format!(", did you mean `{name}`?"))
}

/// Warns of the columns that files have and the first of them lacks: where none is named, those of the first file are read. `there` has
/// files and their columns.
pub(crate) fn warn_of_columns_left_out<'a>(first: &[String], there: impl IntoIterator<Item = (&'a str, &'a str)>) {
    if let Some(warning) = columns_left_out(first, there) {
        tracing::warn!("{warning}");
    }
}

/// The columns of the first file, which are read where none is named. Warns of those that only later files have. `files` are names and
/// schemas.
pub(crate) fn columns_of_first<'a>(files: impl Iterator<Item = (&'a str, &'a Schema)> + Clone) -> Vec<String> {
    let names =
        |(file, schema): (&'a str, &'a Schema)| schema.fields().iter().map(move |field| (file, field.name().as_str()));
    let first: Vec<String> = files.clone().take(1).flat_map(names).map(|(_, name)| name.to_owned()).collect();
    warn_of_columns_left_out(&first, files.flat_map(names));
    first
}

fn columns_left_out<'a>(first: &[String], there: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<String> {
    let first: HashSet<&str> = first.iter().map(String::as_str).collect();
    let mut left_out = BTreeMap::new();
    for (file, column) in there.into_iter().filter(|(_, column)| !first.contains(column)) {
        left_out.entry(column).or_insert(file);
    }
    let (column, file) = left_out.first_key_value()?;
    Some(format!(
        "left out are columns that the first file lacks: {}; `{file}`, for instance, has `{column}`; a job reads them if columns.optional \
         names them, too",
        listed(left_out.keys().copied())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: `data convert` left them out without a word.
    #[test]
    fn columns_that_the_first_file_lacks_are_named_with_a_file() {
        let first = ["a", "b"].map(str::to_owned);
        let files = [("1.csv", "a"), ("1.csv", "b"), ("2.csv", "a"), ("2.csv", "y"), ("3.csv", "x"), ("4.csv", "x")];
        let said = columns_left_out(&first, files).unwrap();
        assert!(said.contains("first file lacks: x, y; `3.csv`, for instance, has `x`"), "{said}");
        assert_eq!(columns_left_out(&first, files.into_iter().take(3)), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..60).map(|i| format!("C{i}")).collect();
        let text = listed(many.iter().map(String::as_str));
        assert!(text.starts_with("C0, C1, ") && text.ends_with("C49 and 10 more"), "{text}");
        assert_eq!(listed(["a", "b"]), "a, b");
    }
}
