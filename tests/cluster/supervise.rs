//! `forebay launch` as a supervisor: processes that are killed are started again, and none outlives it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::pipelines::RunEnd;
use forebay::pipelines::model_folder::Manifest;
use rustix::process::{Pid, Signal, kill_process};

use super::jobs::{job, one_process, rows};
use super::launch::{left, start, start_in};
use super::processes::{Ended, LONG, Run, in_time, over_too_soon};

const ROWS: u64 = 12_000;

/// A run that would take hours.
const ENDLESS: [&str; 4] = ["placement.readers=2", "placement.ps=2", "data.epochs=100000", "placement.lease_rows=2048"];

/// A child of `launch`: its name and process.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) id: Pid,
}

impl Child {
    pub(crate) fn runs(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.id.as_raw_nonzero())).unwrap_or_default();
        // A process that its parent has not waited for is a zombie.
        status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    /// Whether it has a thread of this name; a stage has one of its own name.
    fn has_thread(&self, name: &str) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id.as_raw_nonzero()));
        let name_of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
        threads
            .is_ok_and(|threads| threads.flatten().any(|thread| name_of(thread).is_ok_and(|it| it.trim_end() == name)))
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if kill_process(self.id, signal).is_err() {
            over_too_soon(&format!("{} has ended", self.name));
        }
    }
}

/// The running children of `launch`.
fn children(run: &mut Run) -> Vec<Child> {
    children_of(run.id("launch"))
}

fn children_of(launch: u32) -> Vec<Child> {
    let all = std::fs::read_to_string(format!("/proc/{launch}/task/{launch}/children")).unwrap_or_default();
    let child = |id: &str| {
        let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let after = |word: &str| words.iter().skip_while(|found| *found != word).nth(1).cloned();
        let name = format!("{} {}", after("role")?, after("--rank")?);
        Some(Child { name, id: Pid::from_raw(id.parse().ok()?)? })
    };
    all.split_whitespace().filter_map(child).collect()
}

/// Waits until `launch` has so many children.
pub(crate) fn until_children(run: &mut Run, number: usize) -> Vec<Child> {
    run.until(&format!("{number} processes run"), |run| {
        run.must_go_on("launch");
        Some(children(run)).filter(|children| children.len() == number)
    })
}

/// Waits until `launch` has this child.
pub(crate) fn child(run: &mut Run, name: &str) -> Child {
    run.until(&format!("{name} runs"), |run| {
        run.must_go_on("launch");
        children(run).into_iter().find(|child| child.name == name)
    })
}

/// Waits until `launch` has all five children and the trainer trains. Before that it tries whether it can save its model: killed then, it
/// leaves a hidden folder until the next run.
fn all_children(run: &mut Run) -> Vec<Child> {
    run.until_said("launch", "all members joined");
    let children = until_children(run, 5);
    let trains = |child: &Child| child.name == "trainer 0" && child.has_thread("train");
    run.until("the trainer trains", |_| children.iter().any(trains).then_some(()));
    children
}

/// Fails if a launch did not say these words; with [`over_too_soon`], because its run may have needed the process no more.
fn check_said(log: &str, words: &str) {
    if !log.contains(words) {
        over_too_soon(&format!("it did not say {words:?}: {log}"));
    }
}

fn until_all_have_ended(run: &mut Run, children: &[Child]) {
    run.until("no process is left", |_| children.iter().all(|child| !child.runs()).then_some(()));
}

#[test]
fn a_reader_that_is_killed_is_named_and_started_again_and_the_model_is_the_same() {
    in_time(|_| {
        // Small leases: the reader that is killed leaves rows for its successor.
        let settings =
            job(ROWS, &["placement.readers=1", "placement.ps=1", "placement.lease_rows=1024", "data.epochs=6"]);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "all members joined");
        child(&mut run, "reader 0").kill();
        run.until_said("launch", "reader 0 was killed by signal 9 (SIGKILL): starts it again");
        let log = run.end_well(&["launch"]).remove(0);
        assert!(log.contains("(restart 1 of 10)"), "{log}");
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

/// The default leases. A ps or a trainer takes its parameters with it, and the run begins a new attempt.
#[test]
fn a_ps_or_trainer_that_is_killed_is_started_again_and_the_model_is_the_same() {
    in_time(|_| {
        let settings = job(ROWS, &["placement.readers=2", "placement.ps=2", "data.epochs=20"]);
        for victim in ["ps 0", "ps 1", "trainer 0"] {
            let mut run = start(&settings, &[]);
            let children = all_children(&mut run);
            children.iter().find(|child| child.name == victim).unwrap().kill();
            let log = run.end_well(&["launch"]).remove(0);
            check_said(&log, &format!("{victim} was killed by signal 9 (SIGKILL): starts it again"));
            assert_eq!(run.model().difference(&one_process(&settings).0), None, "{victim}: {log}");
        }
    });
}

/// A stopped process stands for one that hangs: it runs, holds its connections, and does nothing.
#[test]
fn a_process_that_hangs_is_named_killed_and_started_again_and_the_model_is_the_same() {
    in_time(|_| {
        // The run needs every process: it cannot end without the one that hangs.
        let settings = ["placement.readers=1", "placement.ps=2", "data.epochs=40", "placement.lease_seconds=6"];
        let settings = job(ROWS, &settings);
        let expected = &one_process(&settings).0;
        for victim in ["reader 0", "ps 0", "trainer 0"] {
            let mut run = start(&settings, &[]);
            run.until_said("launch", "all members joined");
            let children = until_children(&mut run, 4);
            children.iter().find(|child| child.name == victim).unwrap().signal(Signal::STOP);
            let log = run.end_well(&["launch"]).remove(0);
            check_said(&log, &format!("{victim} hangs: no sign of life for 6s"));
            assert!(log.contains(&format!("{victim} was killed by signal 9 (SIGKILL): starts it again")), "{log}");
            assert_eq!(run.model().difference(expected), None, "{victim}: {log}");
        }
    });
}

/// A bug: `launch` waited forever, because its connection to a process that is stopped ends after ten seconds, and it began to count anew.
#[test]
fn a_coordinator_that_hangs_for_longer_than_its_connections_last_is_killed() {
    in_time(|_| {
        let settings = ["placement.readers=1", "placement.ps=2", "data.epochs=40", "placement.lease_seconds=12"];
        let settings = job(ROWS, &settings);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "all members joined");
        child(&mut run, "ps 0").signal(Signal::STOP);
        let log = run.end_well(&["launch"]).remove(0);
        check_said(&log, "ps 0 hangs: no sign of life for 12s");
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{log}");
    });
}

/// A bug: the coordinator had never heard of the process, and the others waited for it until `placement.timeout_seconds`.
#[test]
fn a_process_that_hangs_before_it_has_joined_is_killed_and_started_again() {
    in_time(|_| {
        let settings = ["placement.readers=1", "placement.ps=2", "placement.lease_seconds=6"];
        let settings = job(ROWS, &settings);
        let mut runs: Vec<(&str, Run)> = Vec::new();
        for victim in ["trainer 0", "ps 1", "ps 0", "reader 0"] {
            let mut run = start(&settings, &[]);
            child(&mut run, victim).signal(Signal::STOP);
            runs.push((victim, run));
        }
        for (victim, mut run) in runs {
            let log = run.end_well(&["launch"]).remove(0);
            check_said(&log, &format!("{victim} hangs: no sign of life for 6s"));
            assert_eq!(run.model().difference(&one_process(&settings).0), None, "{victim}: {log}");
        }
    });
}

/// The run begins a new attempt with the ps. The trainer does not hear it, and does not join.
#[test]
fn a_process_that_hangs_when_the_run_begins_a_new_attempt_is_killed_and_started_again() {
    in_time(|_| {
        let settings = ["placement.readers=1", "placement.ps=2", "data.epochs=40", "placement.lease_seconds=6"];
        let settings = job(ROWS, &settings);
        for dies in ["ps 1", "ps 0"] {
            let mut run = start(&settings, &[]);
            run.until_said("launch", "all members joined");
            let children = until_children(&mut run, 4);
            let child = |name: &str| children.iter().find(|child| child.name == name).unwrap();
            child("trainer 0").signal(Signal::STOP);
            child(dies).kill();
            let log = run.end_well(&["launch"]).remove(0);
            check_said(&log, "trainer 0 hangs: no sign of life for 6s");
            assert_eq!(run.model().difference(&one_process(&settings).0), None, "{dies}: {log}");
        }
    });
}

/// The reader has read all by then. It stays until the model is saved, and reads again.
#[test]
fn a_coordinator_that_is_killed_after_the_last_row_does_not_leave_the_run_without_readers() {
    in_time(|_| {
        // A wide model and many rows: the coordinator dies while they are evaluated.
        let eval = format!("data.eval={}", rows(4 * ROWS).display());
        let settings = job(ROWS, &["placement.readers=1", "placement.ps=1", "model.hidden=[1024, 1024]", &eval]);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "trainer 0  | saved ");
        child(&mut run, "ps 0").kill();
        let log = run.end_well(&["launch"]).remove(0);
        check_said(&log, "ps 0 was killed by signal 9 (SIGKILL): starts it again");
        assert_eq!(log.matches("trainer 0  | saved ").count(), 2, "{log}");
        assert_eq!(log.matches("reader 0   | read 12,000 rows").count(), 1, "{log}");
        assert!(!log.contains("reader 0   | read: finished"), "the report of the first trainer has its meters: {log}");
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

#[test]
fn when_restarts_are_used_up_all_processes_end_and_the_first_cause_is_named() {
    let mut run = start(&job(ROWS, &ENDLESS), &["--restarts", "0"]);
    let children = all_children(&mut run);
    children.iter().find(|child| child.name == "trainer 0").unwrap().kill();
    let Ended { code, log } = run.ended("launch");
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("error: trainer 0 was killed by signal 9 (SIGKILL)"), "{log}");
    until_all_have_ended(&mut run, &children);
    assert_eq!(left(run.folder()), ["launch.log"]);
}

/// A bug: the token was a file, which stayed.
#[test]
fn nothing_is_left_of_a_launch_that_is_killed_neither_a_process_nor_a_file() {
    let mut run = start(&job(ROWS, &ENDLESS), &[]);
    let children = all_children(&mut run);
    assert_eq!(left(run.folder()), ["launch.log"], "TMPDIR is this folder");
    run.kill("launch");
    until_all_have_ended(&mut run, &children);
    assert_eq!(left(run.folder()), ["launch.log"]);
}

#[test]
fn a_second_signal_ends_all_processes_and_leaves_no_file() {
    let mut run = start(&job(ROWS, &ENDLESS), &[]);
    let children = all_children(&mut run);
    // The drain waits for it.
    children.iter().find(|child| child.name == "trainer 0").unwrap().signal(Signal::STOP);
    run.signal("launch", Signal::INT);
    run.until_said("launch", "stopping: trains on what was read");
    let asked = Instant::now();
    run.until("the second signal is no part of the first", |_| (asked.elapsed().as_millis() > 700).then_some(()));
    run.signal("launch", Signal::INT);
    run.end_with("launch", 130, "");
    until_all_have_ended(&mut run, &children);
    assert_eq!(left(run.folder()), ["launch.log"]);
}

/// `forebay launch` of a job that saves its model at `model`. Its temporary files go to `folder`.
fn launch_command(folder: &Path, model: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("launch").env("TMPDIR", folder).env_remove("FOREBAY_LOG").stdin(Stdio::null());
    let model = format!("output.model={}", model.display());
    command.args(job(ROWS, &[more, &[model.as_str()]].concat()).iter().flat_map(|setting| ["--set", setting]));
    command
}

#[test]
fn a_launch_whose_output_is_full_or_closed_saves_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let launch = |model: &Path| launch_command(folder.path(), model, &["placement.readers=1", "placement.ps=1"]);
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let closed = || std::io::pipe().unwrap().1;
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    assert_eq!(launch(&one).stdout(full()).stderr(closed()).status().unwrap().code(), Some(0));
    assert_eq!(launch(&two).stdout(closed()).stderr(full()).status().unwrap().code(), Some(0));
    for model in [one, two] {
        assert_eq!(Manifest::read(model).unwrap().training.unwrap().ended, RunEnd::Complete);
    }
}

#[test]
fn a_launch_whose_output_is_not_read_saves_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let mut command =
        launch_command(folder.path(), &model, &["placement.readers=1", "placement.ps=1", "data.epochs=4"]);
    // Debug logs are megabytes; a pipe holds 64 KiB.
    command.args(["--log", "debug"]);
    let mut launch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !model.exists() {
        assert!(begun.elapsed() < LONG, "no model while the output is not read");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut errors = launch.stderr.take().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()).unwrap());
    std::io::copy(&mut launch.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    assert!(reader.join().unwrap() > 64 << 10, "the logs must not fit into a pipe");
    assert_eq!(launch.wait().unwrap().code(), Some(0));
    Manifest::read(model).unwrap();
}

/// A bug: `launch` could not write that the reader was killed, and so did not start it again.
#[test]
fn a_launch_whose_output_is_full_and_not_read_starts_processes_again() {
    // On a fast machine a run may be over after a second.
    let waits = [1000, 500, 250].into_iter().chain(std::iter::repeat_n(0, 17));
    assert!(waits.map(Duration::from_millis).any(starts_ps_again), "the runs were over too soon");
}

/// Kills the ps of a launch whose output is full, this long after its start. Returns false if the run was over before.
fn starts_ps_again(wait: Duration) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (unread, mut launch, model) = launch_into_full_pipe(folder.path());
    let ps = |launch: u32| children_of(launch).into_iter().find(|child| child.name == "ps 0");
    let begun = Instant::now();
    let mut killed = false;
    while !model.exists() {
        assert!(begun.elapsed() < LONG, "no model while the output is full; killed: {killed}");
        if let Some(ps) = ps(launch.id()).filter(|_| !killed && begun.elapsed() >= wait) {
            killed = kill_process(ps.id, Signal::KILL).is_ok();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = std::io::read_to_string(unread).unwrap();
    assert_eq!(launch.wait().unwrap().code(), Some(0), "{log}");
    killed && log.contains("ps 0 was killed by signal 9 (SIGKILL): starts it again")
}

/// Starts a launch whose output is a full pipe. Returns the other end of the pipe, the process, and the place of the model.
fn launch_into_full_pipe(folder: &Path) -> (std::io::PipeReader, std::process::Child, PathBuf) {
    let model = folder.join("model");
    let (unread, full) = std::io::pipe().unwrap();
    fill(&full);
    let mut command = launch_command(folder, &model, &["placement.readers=1", "placement.ps=1", "data.epochs=20"]);
    let launch = command.stdout(full.try_clone().unwrap()).stderr(full).spawn().unwrap();
    (unread, launch, model)
}

/// A bug: it waited for the reader of its log forever, and only a second signal ended it.
#[test]
fn a_launch_that_has_saved_ends_at_a_signal_if_its_output_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (unread, mut launch, model) = launch_into_full_pipe(folder.path());
    let begun = Instant::now();
    while !model.exists() {
        assert!(begun.elapsed() < LONG, "no model while the output is full");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&launch), Signal::TERM).unwrap();
    let code = launch.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 5)), "{code:?}");
    drop(unread);
}

/// Writes until the pipe takes no more.
fn fill(pipe: &std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(pipe, &[b'\n'; 4096]).is_ok() {}
    fcntl_setfl(pipe, flags).unwrap();
}

/// A bug: a process that had been asked to shut down took the signal that `launch` passes on for a second one, and ended at once.
#[test]
fn a_launch_that_is_asked_to_shut_down_after_one_of_its_processes_saves_what_is_trained() {
    in_time(|_| {
        for victim in ["reader 0", "trainer 0", "ps 0"] {
            let mut run = start(&job(ROWS, &ENDLESS), &[]);
            run.until_said("launch", "rows are trained on");
            child(&mut run, victim).signal(Signal::TERM);
            run.until_said("launch", "stopping: ");
            let told = Instant::now();
            // Signals within half a second are one.
            run.until("a while has passed", |_| (told.elapsed().as_millis() > 700).then_some(()));
            run.signal("launch", Signal::TERM);
            let Ended { code, log } = run.ended("launch");
            assert_eq!(code, Some(5), "{victim}: {log}");
            assert!(run.folder().join("model.partial").exists(), "{victim}: {log}");
        }
    });
}

#[test]
fn a_launch_that_is_asked_to_shut_down_before_its_run_begins_has_the_exit_code_of_a_drain() {
    for wait in [0, 30, 60, 100, 150, 250, 400, 700] {
        let mut run = start(&job(ROWS, &ENDLESS), &[]);
        let begun = Instant::now();
        run.until("its processes run", |run| Some(children(run)).filter(|children| !children.is_empty()));
        run.until("a while has passed", |_| (begun.elapsed().as_millis() >= wait).then_some(()));
        run.signal("launch", Signal::TERM);
        let Ended { code, log } = run.ended("launch");
        assert_eq!(code, Some(5), "after {wait} ms: {log}");
    }
}

#[test]
fn a_place_that_cannot_hold_the_model_ends_the_launch_before_the_training() {
    let mut run = Run::local(&job(ROWS, &["placement.readers=1", "placement.ps=1"]));
    // The harness puts the model into the run's folder: a file there is in its way.
    std::fs::write(run.folder().join("model"), "dear").unwrap();
    start_in(&mut run, &[]);
    let Ended { code, log } = run.ended("launch");
    assert!(code == Some(2) && !log.contains("trained on"), "{code:?} {log}");
    assert!(log.contains("it holds something that is not a model"), "{log}");
}
