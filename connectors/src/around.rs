//! Whether an input would read files that are written.

use forebay_actors::Fault;

use crate::input::search::left_out;
use crate::input::{Input, glob};
use crate::staged::below;
use crate::text::bad_row::{OnBadRow, REJECTED};

impl Input {
    /// The path of this input by which the files of a folder at `place`, a path or URL, would be read: the next program that reads the
    /// input would take these files for rows. Follows the symbolic links of this machine.
    #[must_use]
    pub fn path_around(&self, place: &str) -> Option<&str> {
        self.paths().find(|path| is_read_with(path, place))
    }

    /// Fails if the files of bad rows would be read with this input. `option` is the field or the argument that names their folder.
    ///
    /// # Errors
    /// A user fault that names the folder, and the path of this input.
    pub fn check_apart_from(&self, bad_rows: &OnBadRow, option: &str) -> Result<(), Fault> {
        let OnBadRow::WriteTo(folder) = bad_rows else { return Ok(()) };
        // The sources of text write the first file, the first replica of the stage `parse` writes the second.
        let files = [REJECTED.to_owned(), OnBadRow::file_of_stage("parse", 0)];
        let files = files.map(|name| folder.join(name).to_string_lossy().into_owned());
        match self.paths().find(|path| files.iter().any(|file| reads(path, file))) {
            None => Ok(()),
            Some(path) => Err(Fault::user(format!(
                "{option} is {}, whose files are read with {path}: the next run would take the bad rows for rows; name a \
                 folder outside of it",
                folder.display()
            ))),
        }
    }
}

/// Whether `path` reads a folder at `place`, or may read something in it: by `**`, which spans folders.
fn is_read_with(path: &str, place: &str) -> bool {
    let (folder, pattern) = parts(path);
    names_below(place, folder).is_some_and(|names| {
        pattern.is_none_or(|pattern| {
            glob::selects(pattern, &names) || pattern.contains("**") && glob::reaches(pattern, &names)
        })
    })
}

/// Whether `path` reads a file at `file`.
fn reads(path: &str, file: &str) -> bool {
    let (folder, pattern) = parts(path);
    names_below(file, folder).is_some_and(|names| pattern.is_none_or(|pattern| glob::selects(pattern, &names)))
}

/// The folder above the first wildcard of a path, and the pattern of what is read below it. Without a wildcard: the path, and `None`.
fn parts(path: &str) -> (&str, Option<&str>) {
    let Some(wildcard) = path.find(['*', '?']) else { return (path, None) };
    match path[..wildcard].rfind('/') {
        Some(0) => ("/", Some(&path[1..])),
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (".", Some(path)),
    }
}

/// The path of `place` from `folder` on, if it is in it, and a listing of `folder` does not leave it out.
fn names_below(place: &str, folder: &str) -> Option<String> {
    let names = below(place, folder)?.to_string_lossy().into_owned();
    (!names.split('/').any(left_out)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_with_the_folders_above_it_unless_its_name_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        let around = |paths: &[&str], place: &str| {
            let input = Input::all(paths.iter().map(|path| Input::from(at(path))));
            input.path_around(&at(place)).map(|path| path.rsplit('/').next().unwrap().to_owned())
        };
        assert_eq!(around(&["other", "rows"], "rows/scores").as_deref(), Some("rows"));
        assert_eq!(around(&["rows/**/*.parquet"], "rows/a/scores").as_deref(), Some("*.parquet"));
        assert_eq!(around(&["rows/*"], "rows/scores").as_deref(), Some("*"));
        assert_eq!(around(&["rows/day=*/**/*.csv"], "rows/day=1/scores").as_deref(), Some("*.csv"));
        for (paths, place) in [
            (&["rows"][..], "scores"),
            (&["rows"], "rows2"),
            (&["rows"], "rows/_scores"),
            (&["rows"], "rows/.scores/a"),
            (&["rows/*.parquet"], "rows/scores"),
            (&["rows/day=*/**/*.csv"], "rows/scores"),
            (&["rows/part-0.parquet"], "rows/scores"),
        ] {
            assert_eq!(around(paths, place), None, "{paths:?} {place}");
        }
        let store = Input::from("hdfs://names/rows").path_around("hdfs://names/rows/scores").map(str::to_owned);
        assert_eq!(store.as_deref(), Some("hdfs://names/rows"));
    }

    #[test]
    fn files_of_bad_rows_that_would_be_read_as_rows_are_refused_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        let checked = |rows: &str, bad: &str| {
            Input::from(at(rows)).check_apart_from(&OnBadRow::WriteTo(at(bad).into()), "data.on_bad_row.write_to")
        };
        for (rows, bad) in [
            ("rows", "rows"),
            ("rows", "rows/bad"),
            ("rows", "./rows/bad"),
            ("rows/*", "rows"),
            ("rows/*", "rows/bad"),
            ("rows/*.tsv", "rows"),
            ("rows/**/*.jsonl", "rows/bad"),
            ("bad/rejected.tsv", "bad"),
        ] {
            let said = checked(rows, bad).unwrap_err().to_string();
            assert!(said.contains("data.on_bad_row.write_to is") && said.contains(&at(rows)), "{rows} {bad}: {said}");
        }
        for (rows, bad) in [
            ("rows", "bad"),
            ("rows", "rows/_bad"),
            ("rows/a.csv", "rows"),
            ("rows/*.csv", "rows"),
            ("rows/**/*.csv", "rows/bad"),
            ("rows/*/a", "rows/bad"),
        ] {
            assert!(checked(rows, bad).is_ok(), "{rows} {bad}");
        }
        assert!(Input::from(at("rows")).check_apart_from(&OnBadRow::Skip, "").is_ok());
    }
}
