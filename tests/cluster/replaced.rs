//! The file of the program is removed or replaced while `forebay launch` runs: it starts processes again with the program that runs.

use std::path::Path;
use std::process::Command;

use super::jobs::{job, one_process};
use super::processes::{Run, in_time, over_too_soon};
use super::supervise::{Child, child};

const ROWS: u64 = 12_000;

/// What `ps` shows of a process: its name, and the first word of its command.
fn shown(child: &Child) -> (String, String) {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id.as_raw_nonzero())).unwrap_or_default();
    let (name, command) = (read("comm"), read("cmdline"));
    (name.trim_end().to_owned(), command.split('\0').next().unwrap_or_default().to_owned())
}

/// Runs a launch of a program whose file `change` changes, and then kills `victim`.
fn goes_on(victim: &str, change: impl Fn(&Path)) {
    in_time(|_| {
        // Small leases: a reader that is killed leaves rows for its successor.
        let settings = ["placement.readers=1", "placement.ps=1", "placement.lease_rows=1024", "data.epochs=6"];
        let settings = job(ROWS, &settings);
        let mut run = Run::local(&settings);
        // A copy would be open for writing in processes that other tests start at the same time, and could not be started then.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = folder.path().canonicalize().unwrap().join("trains");
        std::fs::hard_link(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
        let mut command = Command::new(&program);
        command.arg("launch").env("TMPDIR", run.folder());
        run.start_command("launch", command);
        run.until_said("launch", "all members joined");
        let first = child(&mut run, victim);
        let (name, command) = shown(&first);
        if command.is_empty() {
            over_too_soon(&format!("{victim} has ended"));
        }
        assert_eq!((name.as_str(), Path::new(&command)), ("trains", &*program));
        change(&program);
        first.kill();
        run.until_said("launch", &format!("{victim} was killed by signal 9 (SIGKILL): starts it again"));
        let log = run.end_well(&["launch"]).remove(0);
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{log}");
    });
}

/// A bug: the launch ended with "No such file or directory".
#[test]
fn a_launch_whose_program_is_removed_starts_its_reader_again() {
    goes_on("reader 0", |program| std::fs::remove_file(program).unwrap());
}

/// A bug: the processes of a run were of two versions.
#[test]
fn a_launch_whose_program_is_replaced_starts_its_ps_again_with_the_program_that_runs() {
    goes_on("ps 0", |program| {
        let other = program.with_extension("other");
        std::fs::write(&other, "no program\n").unwrap();
        std::fs::rename(other, program).unwrap();
    });
}
