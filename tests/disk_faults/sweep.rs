//! Runs a command again and again, each time with another call that fails.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::failing_disk::{Ended, Fails, run, runner};

/// How the program says EIO.
pub(crate) const EIO: &str = "Input/output error";

/// A command whose disk fails, in a folder of its own.
pub(crate) trait Case: Sync {
    /// Prepares `folder` for one run. Returns the command; calls on files below `folder/disk` fail.
    fn prepare(&self, folder: &Path) -> Command;

    /// Checks how the run ended, and what is in the folder.
    fn check(&self, folder: &Path, ended: &Ended, fails: Fails);
}

/// Checks that the last error that the program printed names the reason and a file of the disk.
pub(crate) fn names_the_file(text: &str, fails: Fails) {
    let error = text.lines().rfind(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error: {text}"));
    assert!(error.contains(EIO) && error.contains("/disk/"), "{fails:?}: {error}");
}

/// Runs `case` without a fault, then with faults: of the calls of these kinds, `most` of them spread evenly fail, each once alone and
/// once with all later ones.
pub(crate) fn sweep(case: &impl Case, kinds: &'static [&'static str], most: u64) {
    let Some(runner) = runner() else { return };
    let faults: Vec<Fails> = kinds.iter().flat_map(|kinds| faults(case, runner, kinds, most)).collect();
    let (next, wrong) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(fails) = faults.get(next.fetch_add(1, Ordering::SeqCst) as usize) {
                    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(case, runner, *fails)));
                    if tried.is_err() {
                        wrong.lock().unwrap().push(*fails);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} faults: {wrong:?}", wrong.len(), faults.len());
}

fn one(case: &impl Case, runner: &Path, fails: Fails) {
    let folder = tempfile::tempdir().unwrap();
    let command = case.prepare(folder.path());
    let ended = run(runner, &folder.path().join("disk"), Some(fails), &command);
    case.check(folder.path(), &ended, fails);
}

/// The faults to try.
fn faults(case: &impl Case, runner: &Path, kinds: &'static str, most: u64) -> Vec<Fails> {
    let folder = tempfile::tempdir().unwrap();
    let command = case.prepare(folder.path());
    let never = Fails { kinds, first: 0, and_later: false };
    let ended = run(runner, &folder.path().join("disk"), Some(never), &command);
    case.check(folder.path(), &ended, never);
    assert!(ended.calls > 0, "no call of {kinds}: {}", ended.text);
    let tried = ended.calls.min(most);
    let first = (0..tried).map(|n| 1 + n * ended.calls / tried);
    first.flat_map(|first| [false, true].map(|and_later| Fails { kinds, first, and_later })).collect()
}
