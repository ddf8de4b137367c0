//! Fail points for tests: before and after every change that a checkpoint makes to a local folder, and before every look into it.
//!
//! A test [`arm`]s a folder: at one point the change fails, or from that point on no change of this process reaches the disk, as if the
//! process had been killed there. Builds without debug assertions have no fail points.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointFailure {
    /// The call fails; later ones do not.
    Error,
    /// A write stores half of its bytes and fails. Other calls fail as with [`PointFailure::Error`].
    Short,
    /// This call and all later ones fail without an effect, as if the process had died.
    Death,
    /// The same after a write that has stored half of its bytes.
    DeathInWrite,
}

/// A folder whose calls fail, until this is dropped.
#[derive(Debug)]
pub struct Armed(PathBuf);

struct State {
    folder: PathBuf,
    at: usize,
    failure: PointFailure,
    /// The points that were passed.
    passed: Vec<String>,
}

static ARMED: AtomicUsize = AtomicUsize::new(0);
static STATES: Mutex<Vec<State>> = Mutex::new(Vec::new());

/// Makes the `at`-th point in `folder`, counted from 0, fail. A number that no run reaches only counts the points.
pub fn arm(folder: &Path, at: usize, failure: PointFailure) -> Armed {
    ARMED.fetch_add(1, Ordering::SeqCst);
    states(|states| states.push(State { folder: folder.to_owned(), at, failure, passed: Vec::new() }));
    Armed(folder.to_owned())
}

impl Armed {
    /// The points that were passed so far.
    pub fn passed(&self) -> Vec<String> {
        states(|states| states.iter().filter(|state| state.folder == self.0).flat_map(|s| s.passed.clone()).collect())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        states(|states| states.retain(|state| state.folder != self.0));
        ARMED.fetch_sub(1, Ordering::SeqCst);
    }
}

fn states<T>(with: impl FnOnce(&mut Vec<State>) -> T) -> T {
    with(&mut STATES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The failure of the next call in the folder. `None`: the call works as usual.
fn next(path: &Path, point: &str) -> Option<PointFailure> {
    if !cfg!(debug_assertions) || ARMED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    states(|states| {
        let state = states.iter_mut().find(|state| path.starts_with(&state.folder))?;
        let number = state.passed.len();
        let dead = matches!(state.failure, PointFailure::Death | PointFailure::DeathInWrite) && number > state.at;
        state.passed.push(format!("{point} {}", path.display()));
        match (number == state.at, dead) {
            (true, _) => Some(state.failure),
            (_, true) => Some(PointFailure::Death),
            _ => None,
        }
    })
}

fn failed(point: &str) -> io::Error {
    io::Error::other(format!("fail point: {point}"))
}

/// Passes a point.
pub(super) fn pass(path: &Path, point: &str) -> io::Result<()> {
    next(path, point).map_or(Ok(()), |_| Err(failed(point)))
}

/// Does something with a file: the points before and after it.
pub(super) fn around<T>(path: &Path, what: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    pass(path, &format!("before {what}"))?;
    let done = call()?;
    pass(path, &format!("after {what}"))?;
    Ok(done)
}

/// A file whose writes pass points.
pub(super) struct PointedFile {
    file: File,
    path: PathBuf,
}

impl PointedFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = around(path, "create", || File::create(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        around(&self.path, "sync", || self.file.sync_all())
    }
}

impl AsFd for PointedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Write for PointedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match next(&self.path, "before write") {
            None => {}
            Some(PointFailure::Short | PointFailure::DeathInWrite) => {
                self.file.write_all(&bytes[..bytes.len() / 2])?;
                return Err(failed("in write"));
            }
            Some(PointFailure::Error | PointFailure::Death) => return Err(failed("before write")),
        }
        let written = self.file.write(bytes)?;
        pass(&self.path, "after write")?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
