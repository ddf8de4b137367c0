//! Whether one place lies in another, by their paths and URLs; and the check of a folder to be replaced.

use std::env;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

use super::folder::OpenFolder;
use super::place;
use crate::disks::real_path;
use crate::stores::{comparable, local_path};

/// Name of the empty file that marks a folder of rows in a store as complete. Readers skip it.
pub(super) const SUCCESS: &str = "_SUCCESS";

/// Whether a path or URL names `folder`, or something in it, by any name of its store. Follows the symbolic links of this machine.
#[must_use]
pub fn is_in(place: &str, folder: &str) -> bool {
    below(place, folder).is_some()
}

/// The path of a path or URL from `folder` on, if it is in it. Follows the symbolic links of this machine.
pub(crate) fn below(place: &str, folder: &str) -> Option<PathBuf> {
    resolved(place).strip_prefix(resolved(folder)).ok().map(Path::to_owned)
}

fn resolved(place: &str) -> PathBuf {
    let Some(local) = local_path(place) else { return PathBuf::from(comparable(place)) };
    let path = std::path::absolute(local.as_ref()).unwrap_or_else(|_| local.as_ref().into());
    let path = place::followed(&path).unwrap_or(path);
    real_path(&path).unwrap_or(path)
}

/// Fails if the working directory is `place` or lies in it: no command replaces the folder that it runs in.
pub(super) fn check_not_around_here(place: &Path) -> Result<(), Fault> {
    let around = env::current_dir().is_ok_and(|here| resolved(&here.to_string_lossy()).starts_with(place));
    match around {
        true => Err(Fault::user(format!("`{}` holds the working directory: name another folder", place.display()))),
        false => Ok(()),
    }
}

/// Fails if `folder` holds something other than files with one of these endings.
pub(super) fn check_holds_only(folder: &OpenFolder, endings: &[&str]) -> Result<(), Fault> {
    let is_mark = |name: &str| name == SUCCESS || name.starts_with('.') && name.ends_with(".crc");
    let other =
        folder.names()?.into_iter().find(|name| !is_mark(name) && !endings.iter().any(|end| name.ends_with(end)));
    other.map_or(Ok(()), |name| {
        Err(Fault::user(format!(
            "`{folder}` is not replaced: it holds {name:?}, and only a folder of {} files is; name another folder",
            endings.join(" and ")
        )))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_place_is_in_a_folder_by_any_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::create_dir_all(at("model/tables")).unwrap();
        std::os::unix::fs::symlink(at("model"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("model/later/new"), at("broken")).unwrap();
        for place in
            ["model", "model/", "model/tables/../x", "./model", "link", "link/new/er", "model/../model/new", "broken"]
        {
            assert!(is_in(&at(place), &at("model")), "{place}");
            assert!(is_in(&format!("file://{}", at(place)), &at("link/")), "{place}");
        }
        for place in ["models", "model.partial", "model/../other", ""] {
            assert!(!is_in(&at(place), &at("model")), "{place}");
        }
        for (place, folder, expected) in [
            ("hdfs://name:9000/a/b", "hdfs://name:9000/a/", true),
            ("hdfs://NAME:9000//a//b/", "hdfs://me@name:9000/a", true),
            ("hdfs://name:9000/a/b", "hdfs://name:9000", true),
            ("hdfs://name:9000/ab", "hdfs://name:9000/a", false),
            ("hdfs://name:9000/a%62", "hdfs://name:9000/ab", false),
            ("hdfs://name:9001/a", "hdfs://name:9000/a", false),
            ("s3a://bucket/a/b", "s3://bucket/a", true),
            ("s3://bucket/a", "hdfs://bucket/a", false),
        ] {
            assert_eq!(is_in(place, folder), expected, "{place} {folder}");
        }
    }
}
