//! Whether files that are written would be read with the rows of an input.

use super::listing::left_out;
use super::{Input, Location};
use crate::staged::below;

impl Input {
    /// The path of this input that is read with all below it, if a folder at `place`, a path or URL, would be read with it: the next program
    /// that reads the input would take the files there for rows. Follows the symbolic links of this machine.
    #[must_use]
    pub fn path_around(&self, place: &str) -> Option<&str> {
        let paths = self.parts.iter().filter_map(|part| match &part.location {
            Location::Url(url, _) => Some(url.as_str()),
            Location::InStore(..) => None,
        });
        paths.into_iter().find(|path| is_read_with(path, place))
    }
}

fn is_read_with(path: &str, place: &str) -> bool {
    let folder = match path.find("**") {
        Some(at) => path[..at].rsplit_once('/').map_or(".", |(folder, _)| folder),
        None => path,
    };
    below(place, folder).is_some_and(|below| !below.iter().any(|name| left_out(&name.to_string_lossy())))
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
        for (paths, place) in [
            (&["rows"][..], "scores"),
            (&["rows"], "rows2"),
            (&["rows"], "rows/_scores"),
            (&["rows"], "rows/.scores/a"),
            (&["rows/*.parquet"], "rows/scores"),
            (&["rows/part-0.parquet"], "rows/scores"),
        ] {
            assert_eq!(around(paths, place), None, "{paths:?} {place}");
        }
        let store = Input::from("hdfs://names/rows").path_around("hdfs://names/rows/scores").map(str::to_owned);
        assert_eq!(store.as_deref(), Some("hdfs://names/rows"));
    }
}
