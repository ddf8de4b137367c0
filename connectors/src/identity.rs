//! The identity of the files of a data set: their places in it, and their sizes. The place of the data set itself does not count, so a
//! folder may be moved or copied.

use std::fmt;

/// The parts of paths below the folders that all of them share. A folder `column=value` is part of the data, and so is all below it.
fn places<'a>(paths: &[&'a str]) -> Vec<&'a str> {
    let Some((first, rest)) = paths.split_first() else { return Vec::new() };
    let mut common = 0;
    // The last part is the name of a file.
    let folders = first.rmatch_indices('/').map(|(at, _)| at + 1).collect::<Vec<_>>();
    for end in folders.into_iter().rev() {
        if first[common..end].contains('=') || !rest.iter().all(|path| path.starts_with(&first[..end])) {
            break;
        }
        common = end;
    }
    paths.iter().map(|path| &path[common..]).collect()
}

/// Writes a line for each file: its place, its size, and what else `more` says of it.
pub(crate) fn write(to: &mut dyn fmt::Write, files: &[(&str, u64)], more: impl Fn(usize) -> String) -> fmt::Result {
    let paths: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
    for (at, (place, (_, size))) in places(&paths).into_iter().zip(files).enumerate() {
        write!(to, "\n{place} {size} {}", more(at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_depend_on_where_the_data_set_lies() {
        for root in ["", "rows/", "mnt/data/rows/train/", "other/"] {
            let at = |names: &[&str]| -> Vec<String> { names.iter().map(|name| format!("{root}{name}")).collect() };
            for names in [
                &["a.parquet"][..],
                &["a.parquet", "b.parquet"],
                &["x/a.parquet", "y/a.parquet", "z"],
                &["xx/a", "xy/a"],
            ] {
                let paths = at(names);
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                assert_eq!(places(&paths), names, "{root}");
            }
            let paths = at(&["day=1/a", "day=1/b"]);
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            assert_eq!(places(&paths), ["day=1/a", "day=1/b"], "{root}: the folder is a column");
        }
        assert_eq!(places(&["a/b/c", "a/b/d/e"]), ["c", "d/e"]);
        assert!(places(&[]).is_empty());
    }
}
