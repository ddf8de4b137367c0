//! Writes a folder aside and puts it in its place in one step.
//!
//! Comes in: a path. Goes out: a folder beside it, later exchanged with it. Blocks on the disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use forebay_actors::Fault;

/// A folder that becomes another when it is whole, and nothing if it is dropped before.
pub(super) struct Aside {
    target: PathBuf,
    part: PathBuf,
    done: bool,
}

impl Aside {
    /// Makes an empty folder beside `target`; parents are made, too.
    pub(super) fn new(target: &Path) -> Result<Self, Fault> {
        let target = std::path::absolute(target).map_err(|e| cannot("use", target, e))?;
        let name = target.file_name().ok_or_else(|| {
            Fault::user(format!("cannot write a model to {}: expected the path of a folder", target.display()))
        })?;
        if target.exists() && !target.is_dir() {
            return Err(Fault::user(format!("cannot write a model to {}: a file is there", target.display())));
        }
        let mut part = OsString::from(".");
        part.push(name);
        part.push(format!(".part-{}", std::process::id()));
        let part = target.with_file_name(part);
        if part.exists() {
            fs::remove_dir_all(&part).map_err(|e| cannot("clear", &part, e))?;
        }
        fs::create_dir_all(&part).map_err(|e| cannot("make", &part, e))?;
        Ok(Self { target, part, done: false })
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        &self.part
    }

    /// Renames it to its target, or exchanges the two and removes the old one.
    pub(super) fn put_in_place(mut self) -> Result<(), Fault> {
        let put = || -> io::Result<()> {
            if self.target.exists() {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    &self.part,
                    rustix::fs::CWD,
                    &self.target,
                    rustix::fs::RenameFlags::EXCHANGE,
                )?;
                fs::remove_dir_all(&self.part)?;
            } else {
                fs::rename(&self.part, &self.target)?;
            }
            // The rename itself is on the disk when the folder that holds the name is.
            let parent = self.target.parent().unwrap_or(Path::new("/"));
            File::open(parent)?.sync_all()
        };
        put().map_err(|e| cannot("put the model in place at", &self.target, e))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.done {
            // Nothing to tell anybody: the fault that led here is on its way.
            let _ = fs::remove_dir_all(&self.part);
        }
    }
}

fn cannot(what: &str, path: &Path, error: io::Error) -> Fault {
    Fault::external(format!("cannot {what} {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_folder_is_replaced_whole_and_a_dropped_one_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("deep/model");
        for text in ["one", "two"] {
            let aside = Aside::new(&target).unwrap();
            fs::write(aside.path().join(text), text).unwrap();
            aside.put_in_place().unwrap();
            assert_eq!(names(&target), [text]);
        }
        let dropped = Aside::new(&target).unwrap();
        fs::write(dropped.path().join("half"), "").unwrap();
        drop(dropped);
        assert_eq!(names(&target), ["two"]);
        assert_eq!(names(target.parent().unwrap()), ["model"]);
    }

    #[test]
    fn a_file_in_the_way_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        fs::write(&target, "mine").unwrap();
        assert!(Aside::new(&target).err().unwrap().to_string().contains("a file is there"));
    }
}
