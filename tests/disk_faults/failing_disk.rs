//! Runs the program on a disk whose calls fail with EIO, or that does not know some of them: `eio.c` says how.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::common::{Background, code_and_output};

/// The letters of calls, as `eio.c` has them: open, read, write, sync, rename, stat.
pub(crate) const ALL: &str = "orwsnt";

/// Which calls of a run fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fails {
    /// The letters of `eio.c`: the letters of [`ALL`], `x` for a disk that knows no renames with flags, `k` for a kill instead of a
    /// failure.
    pub(crate) kinds: &'static str,
    /// The number of the first one, from 1. 0: none.
    pub(crate) first: u64,
    /// Whether all later ones fail, too.
    pub(crate) and_later: bool,
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    /// The calls on the disk, failed or not.
    pub(crate) calls: u64,
}

/// The program that runs others. `None`: there is no compiler, or the kernel does not do it.
pub(crate) fn runner() -> Option<&'static Path> {
    static MADE: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let runner = folder.path().join("eio");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/disk_faults/eio.c");
        let compiled = Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&runner).arg(source).output();
        let Ok(compiled) = compiled else {
            eprintln!("skipped: this test needs a C compiler");
            return None;
        };
        assert!(compiled.status.success(), "{}", code_and_output(&compiled).1);
        let mut tried = Command::new(&runner);
        tried.args(["/", "s", "0", "0"]).arg(folder.path().join("count")).arg("/bin/true");
        if tried.status().unwrap().success() {
            return Some((folder, runner));
        }
        eprintln!("skipped: the kernel does not let this process decide about system calls");
        None
    });
    made.as_ref().map(|(_, runner)| runner.as_path())
}

/// `command` with a disk below `folder` that hangs: its calls of these kinds never return. Exits as the command does, and passes SIGTERM
/// on.
pub(crate) fn hanging(runner: &Path, folder: &Path, kinds: &str, command: &Command) -> Command {
    let mut run = Command::new(runner);
    run.arg(format!("{}/", folder.display())).arg(format!("h{kinds}")).args(["1", &i64::MAX.to_string(), "/dev/null"]);
    run.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    command.get_current_dir().map(|at| run.current_dir(at));
    run
}

/// Runs `command` with a disk that fails below `folder`.
pub(crate) fn run(runner: &Path, folder: &Path, fails: Option<Fails>, command: &Command) -> Ended {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let count = std::env::temp_dir().join(format!(
        "forebay-calls-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::SeqCst)
    ));
    let kinds = fails.map_or(ALL, |fails| fails.kinds);
    let (first, last) = fails.map_or((0, 0), |f| (f.first, if f.and_later { i64::MAX as u64 } else { f.first }));
    let mut run = Command::new(runner);
    run.arg(format!("{}/", folder.display())).arg(kinds).args([first.to_string(), last.to_string()]).arg(&count);
    run.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    command.get_current_dir().map(|at| run.current_dir(at));
    // A run that hangs misses the deadline of this wait.
    let (code, text) = Background::start(&mut run).wait();
    let calls = std::fs::read_to_string(&count).unwrap_or_else(|e| panic!("no count, {e}: {text}"));
    let _ = std::fs::remove_file(count);
    assert!(!text.contains("panicked"), "{fails:?}: {text}");
    Ended { code, text, calls: calls.trim().parse().unwrap() }
}
