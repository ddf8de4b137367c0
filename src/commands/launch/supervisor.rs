//! Supervises the processes of a run. It restarts processes that may go on, also while the run drains, and kills processes that hang. It
//! drains all processes at a signal, and ends all when the run cannot go on, with the first cause as the reason.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::Fault;
use rustix::process::Signal;

use super::child::{Child, fault_of_end, how, may_start_again};
use super::out_of_memory::OutOfMemoryKills;
use super::output::{Output, pause};
use super::restarts::Restarts;
use super::watch::{Seen, Watch};
use crate::exit::{self, Ended};
use crate::stop::Stop;

/// The argument of `forebay role` that says that the run drains.
const DRAINS: &str = "--drains";

/// The argument of `forebay role` that says that the run has made checkpoints.
const HAS_CHECKPOINTS: &str = "--has-checkpoints";

/// When a run is over or cannot go on, its processes learn that from the coordinator and end by themselves. Processes that have not
/// ended after this time get SIGTERM.
const BY_THEMSELVES: Duration = Duration::from_secs(4);

/// Processes that have not ended this long after SIGTERM get SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// As [`GRACE`], but for processes of a run that had not begun: they have nothing to save.
const UNUSED: Duration = Duration::from_secs(2);

/// The processes of a run.
pub(super) struct Supervisor<'a> {
    children: Vec<Child>,
    output: &'a Output,
    watch: Watch,
    /// A process that is silent for longer hangs.
    most_silence: Duration,
    phase: Phase,
    restarts: Restarts,
    out_of_memory_kills: OutOfMemoryKills,
    /// Whether the user asked for a drain while the run went on.
    drained: bool,
    /// Whether the run has made checkpoints.
    has_checkpoints: bool,
    /// Why the run cannot go on.
    cause: Option<Cause>,
}

/// The end of a process, or a start that failed, without which the run cannot go on.
struct Cause {
    process: String,
    /// Names the process, and says how it ended.
    ended: String,
    /// `None`: it could not be started.
    status: Option<ExitStatus>,
}

impl Cause {
    /// `said`: the last error that the process has printed.
    fn fault(&self, said: Option<&str>) -> Fault {
        match self.status {
            Some(status) => fault_of_end(status, &self.ended, said),
            None => Fault::external(self.ended.clone()),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    /// All processes got SIGTERM.
    Draining,
    /// The run is over or cannot go on: the times of SIGTERM, unless they got it before, and of SIGKILL.
    Ending(Option<Instant>, Instant),
}

impl<'a> Supervisor<'a> {
    /// `watch` says which processes are silent for `most_silence`.
    pub(super) fn new(
        children: Vec<Child>,
        most_restarts: u32,
        output: &'a Output,
        watch: Watch,
        most_silence: Duration,
    ) -> Self {
        Self {
            children,
            output,
            watch,
            most_silence,
            phase: Phase::Running,
            restarts: Restarts::new(most_restarts),
            out_of_memory_kills: OutOfMemoryKills::so_far(),
            drained: false,
            has_checkpoints: false,
            cause: None,
        }
    }

    /// Runs all processes until they have ended.
    pub(super) fn run(mut self, stop: &Stop) -> Result<Ended, Fault> {
        while !self.children.iter().all(Child::is_over) {
            if stop.at_once() {
                if let Some(cause) = &self.cause {
                    tracing::error!("the run could not go on: {}", cause.fault(None));
                }
                // Dropping the processes kills them and waits for them.
                return Ok(Ended::Interrupted);
            }
            let now = Instant::now();
            for at in 0..self.children.len() {
                match self.children[at].start_if_due(now, self.output) {
                    Ok(()) => {}
                    // The run has not begun, so no process has anything to save.
                    Err(fault) if !self.children[at].was_started_again() => return Err(fault),
                    Err(fault) => self.start_again(at, &fault.to_string(), None, now),
                }
                if let Some(status) = self.children[at].has_ended()? {
                    self.on_end(at, status, now);
                }
            }
            if self.phase == Phase::Running && stop.asked() {
                self.drain();
            }
            self.tell_who_has_ended();
            let Seen { silent, progress, has_checkpoints } = self.watch.seen();
            self.restarts.sees(progress, now);
            if has_checkpoints && !std::mem::replace(&mut self.has_checkpoints, true) {
                self.children.iter_mut().for_each(|child| child.when_started_again(HAS_CHECKPOINTS));
            }
            self.kill_silent_ones(&silent, now);
            self.end_late_ones(now);
            pause();
        }
        // The first trainer ends without a fault only when the model is saved, even if readers were lost; the coordinator only when the run
        // is over. Between these two moments the run does not need a lost trainer.
        let is_over = self.cause.is_none() && self.children.first().and_then(Child::status).is_some_and(ended_well);
        let trainer = self.children.iter().find(|child| child.name == "trainer 0");
        let was_told = trainer.is_some_and(|child| child.was_started_again() && child.was_asked_to_shut_down());
        match trainer.and_then(Child::status) {
            Some(status) if status.success() => Ok(Ended::Done),
            // The trainer was started again, waited for a coordinator that had ended, and got SIGTERM.
            Some(status) if is_drained(status) && is_over && was_told && !self.drained => Ok(Ended::Done),
            // `launch` ends processes by SIGTERM, too, and then the trainer drains: the cause counts, even if a checkpoint has the rows.
            Some(status) if is_drained(status) && (self.drained || self.cause.is_none()) => Ok(Ended::Drained),
            Some(status) if is_only_saved(status) => Ok(Ended::OnlySaved),
            _ if self.drained && self.cause.is_none() => Ok(Ended::Drained),
            _ if is_over => Ok(Ended::Done),
            _ => Err(match &self.cause {
                Some(cause) => cause.fault(self.output.last_error(&cause.process).as_deref()),
                None => Fault::internal(
                    "the run ended, but no model was saved and no process reported why: see the logs of the processes",
                ),
            }),
        }
    }

    /// Tells the coordinator which processes have ended for good: the end of the run does not wait for such processes. While the run goes
    /// on, a reader may be started again.
    fn tell_who_has_ended(&mut self) {
        let goes_on = self.phase == Phase::Running;
        let ended = self.children.iter().filter(|child| child.is_over() && !(goes_on && child.is_reader));
        self.watch.processes_ended(ended.map(|child| child.place).collect());
    }

    fn on_end(&mut self, at: usize, status: ExitStatus, now: Instant) {
        let child = &self.children[at];
        let (name, is_reader) = (child.name.clone(), child.is_reader);
        if ended_well(status) {
            // The first process is the coordinator.
            if name == "trainer 0" || at == 0 {
                self.end_all(now);
            } else if is_reader && self.phase == Phase::Running {
                self.keep_a_reader(at, now);
            }
            return;
        }
        let mut ended = format!("{name} {}", how(status));
        if status.signal() == Some(libc::SIGKILL) && self.out_of_memory_kills.are_more() {
            ended += "; the kernel has killed a process because memory ran out";
        }
        // SIGTERM came before the process could listen to it.
        let is_unheard = status.signal() == Some(libc::SIGTERM) && !self.children[at].was_started_again();
        match self.phase {
            Phase::Draining if is_unheard && self.may_have_begun_without(at) => {
                tracing::info!("{name} was stopped before it joined: the run drains without it");
            }
            Phase::Draining if is_unheard => {
                tracing::warn!("stopped before the run began: it has trained on no rows");
                self.end_all(now);
                self.phase = Phase::Ending(None, now + UNUSED);
            }
            Phase::Running | Phase::Draining if may_start_again(status) => {
                self.start_again(at, &ended, Some(status), now);
            }
            Phase::Running | Phase::Draining => {
                self.end_run(Cause { process: name, ended, status: Some(status) }, now);
            }
            // The process lost the others, or was asked to end.
            Phase::Ending(..) => tracing::debug!("{ended}"),
        }
    }

    /// Whether the run may have begun before this process joined: it needs all ps and trainers, and one reader.
    fn may_have_begun_without(&self, at: usize) -> bool {
        let joins = |child: &Child| !child.is_over() || child.status().is_some_and(|status| status.success());
        let mut others = self.children.iter().enumerate().filter(|(other, child)| *other != at && child.is_reader);
        self.children[at].is_reader && others.any(|(_, child)| joins(child))
    }

    /// Kills processes that hang, so that they are started again.
    fn kill_silent_ones(&mut self, silent: &[String], now: Instant) {
        if matches!(self.phase, Phase::Ending(..)) {
            return;
        }
        for child in &mut self.children {
            child.kill_if_silent(silent, self.most_silence, now);
        }
    }

    /// Schedules a restart of a process, or ends the run if it has had too many. `ended` names the process and says how it ended, or why
    /// it could not be started; then there is no `status`.
    fn start_again(&mut self, at: usize, ended: &str, status: Option<ExitStatus>, now: Instant) {
        match self.restarts.count(&self.children[at].name, ended, now) {
            Ok(restart) => {
                let wait = self.children[at].start_again(now).as_secs_f64();
                tracing::warn!("{ended}: starts it again in {wait} s ({restart})");
            }
            // While the run drains, the coordinator gives up the rows of a reader that is lost.
            Err(why) if self.phase == Phase::Draining && self.children[at].is_reader => {
                tracing::warn!("{why}");
                self.children[at].give_up();
            }
            Err(why) => {
                let process = self.children[at].name.clone();
                self.end_run(Cause { process, ended: why, status }, now);
            }
        }
    }

    /// Handles a reader that ended without a fault. Either the run is over, and the others end in a moment; or the reader was asked to shut
    /// down, perhaps before the run began; or the coordinator died afterwards and began a new attempt. Starts the reader again if no other
    /// reader is left.
    fn keep_a_reader(&mut self, at: usize, now: Instant) {
        if self.children.iter().all(|child| !child.is_reader || child.is_over()) {
            self.children[at].start_late(now + BY_THEMSELVES);
        }
    }

    /// Asks all processes to drain. A process that waits for its restart is still started, because the others wait for it. It learns of the
    /// drain from the coordinator, and a coordinator learns of it from its arguments.
    fn drain(&mut self) {
        (self.phase, self.drained) = (Phase::Draining, true);
        for child in &mut self.children {
            child.tell_to_end();
            child.when_started_again(DRAINS);
        }
    }

    /// Ends all processes, because the run cannot go on.
    fn end_run(&mut self, cause: Cause, now: Instant) {
        tracing::debug!(cause = cause.ended, "the run cannot go on");
        self.cause.get_or_insert(cause);
        self.end_all(now);
    }

    /// Starts no more processes, and schedules the signals for processes that do not end by themselves.
    fn end_all(&mut self, now: Instant) {
        if let Phase::Ending(..) = self.phase {
            return;
        }
        let terminate = (self.phase == Phase::Running).then(|| now + BY_THEMSELVES);
        self.phase = Phase::Ending(terminate, terminate.unwrap_or(now + BY_THEMSELVES) + GRACE);
        self.children.iter_mut().for_each(Child::give_up);
    }

    fn end_late_ones(&mut self, now: Instant) {
        let Phase::Ending(terminate, kill) = self.phase else { return };
        if terminate.is_some_and(|time| now >= time) {
            self.children.iter_mut().for_each(Child::tell_to_end);
            self.phase = Phase::Ending(None, kill);
        }
        if now >= kill {
            self.children.iter().for_each(|child| child.signal(Signal::KILL));
        }
    }
}

fn ended_well(status: ExitStatus) -> bool {
    status.success() || is_drained(status) || is_only_saved(status)
}

fn is_only_saved(status: ExitStatus) -> bool {
    status.code() == Some(i32::from(exit::ONLY_SAVED))
}

fn is_drained(status: ExitStatus) -> bool {
    status.code() == Some(i32::from(exit::DRAINED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::SecurityFiles;
    use crate::pipelines::cluster::{Role, SupervisorClient};
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::thread::JoinHandle;

    /// Runs these shell scripts as the processes of a run.
    fn supervised(scripts: &[(&str, &str)]) -> Result<Ended, Fault> {
        supervised_until(&Stop::default(), scripts)
    }

    /// The same. The user may stop it.
    fn supervised_until(stop: &Stop, scripts: &[(&str, &str)]) -> Result<Ended, Fault> {
        supervise(stop, scripts.iter().map(|(role, script)| child(role, "sh".as_ref(), script)).collect(), 10)
    }

    /// A process that a shell at this path runs.
    fn child(role: &str, shell: &Path, script: &str) -> Child {
        let mut command = Command::new(shell);
        command.args(["-c", script]);
        let role = [Role::Ps, Role::Trainer, Role::Reader].into_iter().find(|found| found.to_string() == role);
        Child::new(role.expect("a role"), 0, command)
    }

    fn supervise(stop: &Stop, children: Vec<Child>, most_restarts: u32) -> Result<Ended, Fault> {
        let long = Duration::from_secs(60);
        let nothing = SupervisorClient::new("launch", "127.0.0.1:1", &SecurityFiles::default()).unwrap();
        let watch = Watch::start(nothing, "ps 0".into(), long).unwrap();
        let output = Output::start(false).unwrap();
        Supervisor::new(children, most_restarts, &output, watch, long).run(stop)
    }

    /// A thread that asks for a drain once all processes have made their files.
    fn user_stops_once_there_are(stop: &Stop, marks: Vec<PathBuf>) -> JoinHandle<()> {
        let asks = stop.clone();
        std::thread::spawn(move || {
            let begun = Instant::now();
            while !marks.iter().all(|mark| mark.exists()) && begun.elapsed() < Duration::from_secs(60) {
                pause();
            }
            asks.flag().store(true, std::sync::atomic::Ordering::SeqCst);
        })
    }

    /// A bug: the last line said that the last lines of another process, far above it, say why.
    #[test]
    fn the_last_line_has_the_error_of_the_process_that_ended() {
        let said = "echo 'error: the disk is full: free some space' >&2; exit 7";
        let failed = supervised(&[("ps", "exec sleep 60"), ("trainer", said)]).unwrap_err();
        assert_eq!(failed.to_string(), "trainer 0 ended with exit code 7: the disk is full: free some space");
        assert_eq!(failed.domain, crate::actors::Domain::External);
    }

    /// A bug: the exit code was 5, and no line named the cause.
    #[test]
    fn a_drain_that_the_end_of_the_run_causes_does_not_hide_its_cause() {
        let drains = "trap 'exit 5' TERM; for i in $(seq 600); do sleep .1; done";
        let failed = supervised(&[("ps", "exec sleep 60"), ("trainer", drains), ("reader", "exit 4")]).unwrap_err();
        assert!(failed.to_string().starts_with("reader 0 ended with exit code 4"), "{failed}");
        assert_eq!(failed.domain, crate::actors::Domain::Internal);
    }

    #[test]
    fn a_drain_that_the_user_asked_for_stays_one_if_a_reader_ends_with_a_fault_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        // They listen to SIGTERM once their file is there. The trainer drains, and the ps ends, after the fault of the reader.
        let failed = format!("until [ -e {} ]; do sleep .1; done; sleep .5", file("failed").display());
        let runs = |mark: &str| format!("touch {}; for i in $(seq 600); do sleep .1; done", file(mark).display());
        let ps = format!("trap '' TERM; touch {}; {failed}", file("ps").display());
        let trainer = format!("trap '{failed}; exit 5' TERM; {}", runs("trainer"));
        let reader = format!("trap 'touch {}; exit 4' TERM; {}", file("failed").display(), runs("reader"));
        let stop = Stop::default();
        let user = user_stops_once_there_are(&stop, ["ps", "trainer", "reader"].map(file).to_vec());
        let ended = supervised_until(&stop, &[("ps", &ps), ("trainer", &trainer), ("reader", &reader)]);
        user.join().unwrap();
        assert_eq!(ended.unwrap(), Ended::Drained);
    }

    /// A bug: the processes of a run that had begun were killed two seconds after Ctrl-C, while they saved, if one reader had not started
    /// yet.
    #[test]
    fn a_reader_that_cannot_listen_yet_does_not_end_a_run_that_drains() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let saved = file("saved");
        let runs = |mark: &str| format!("touch {}; for i in $(seq 600); do sleep .1; done", file(mark).display());
        let until_saved = format!("for i in $(seq 600); do [ -e {} ] && break; sleep .1; done", saved.display());
        let ps = format!("trap '' TERM; touch {}; {until_saved}", file("ps").display());
        let trainer = format!("trap 'sleep 4; touch {}; exit 5' TERM; {}", saved.display(), runs("trainer"));
        let reader = format!("trap 'exit 0' TERM; {}", runs("reader"));
        let late = format!("touch {}; exec sleep 60", file("late").display());
        let stop = Stop::default();
        let user = user_stops_once_there_are(&stop, ["ps", "trainer", "reader", "late"].map(file).to_vec());
        let ended =
            supervised_until(&stop, &[("ps", &ps), ("trainer", &trainer), ("reader", &reader), ("reader", &late)]);
        user.join().unwrap();
        assert_eq!(ended.unwrap(), Ended::Drained);
        assert!(saved.exists(), "the trainer was killed before it had saved");
    }

    /// A bug: the trainer was started again, and waited ten minutes for a coordinator that had ended.
    #[test]
    fn a_trainer_that_is_lost_when_the_run_is_over_is_not_needed() {
        let begun = Instant::now();
        let ended = supervised(&[("ps", "sleep .2"), ("trainer", "kill -9 $$")]);
        assert_eq!(ended.unwrap(), Ended::Done);
        // What waits for a coordinator ends with 5 when it is asked to shut down.
        for waits in ["exec sleep 600", "trap 'exit 5' TERM; for i in $(seq 6000); do sleep .1; done"] {
            let dir = tempfile::tempdir().unwrap();
            let mark = dir.path().join("mark").display().to_string();
            let again = format!("if [ -e {mark} ]; then touch {mark}.again; {waits}; fi; touch {mark}; kill -9 $$");
            let until_again = format!("for i in $(seq 600); do [ -e {mark}.again ] && break; sleep .1; done");
            assert_eq!(supervised(&[("ps", &until_again), ("trainer", &again)]).unwrap(), Ended::Done, "{waits}");
        }
        assert!(begun.elapsed() < Duration::from_secs(300));
        let failed = supervised(&[("ps", "exit 2"), ("trainer", "kill -9 $$")]).unwrap_err();
        assert!(failed.to_string().contains("ps 0 ended with exit code 2"), "{failed}");
    }

    /// A bug: with the end of the ps the exit code was 0, as if all rows had been trained on, and no process was asked to shut down.
    #[test]
    fn a_run_whose_trainer_was_asked_to_shut_down_is_drained_whichever_process_ends_later() {
        let dir = tempfile::tempdir().unwrap();
        let [runs, told] = ["runs", "told"].map(|name| dir.path().join(name));
        let waits = "for i in $(seq 600); do sleep .1; done";
        let reader = format!("trap 'touch {}; exit 0' TERM; touch {}; {waits}", told.display(), runs.display());
        // They end one after the other, while the reader runs.
        let trainer = format!("until [ -e {} ]; do sleep .1; done; exit 5", runs.display());
        let ended = supervised(&[("ps", "sleep 2; exit 5"), ("trainer", &trainer), ("reader", &reader)]);
        assert_eq!(ended.unwrap(), Ended::Drained);
        assert!(told.exists(), "the reader was not asked to shut down");
    }

    /// A bug: a run whose model could not be saved started again from row 0, and trained for hours to fail again.
    #[test]
    fn a_run_whose_model_cannot_be_saved_is_not_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!("echo x >>{}; exit 7", mark.display());
        // If the ps ended before the trainer was started, no trainer would be.
        let later = format!("until [ -s {} ]; do sleep .1; done; exit 7", mark.display());
        let failed = supervised(&[("ps", &later), ("trainer", &script)]).unwrap_err();
        assert!(failed.to_string().contains("its model is not saved"), "{failed}");
        assert_eq!(failed.domain, crate::actors::Domain::External);
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "x\n");
    }

    #[test]
    fn the_last_reader_is_started_again_while_the_run_goes_on() {
        check_that_the_last_reader_is_started_again("");
    }

    /// A bug: without the reader, the run waited ten minutes to begin, and ended with a fault.
    #[test]
    fn a_reader_that_was_asked_to_shut_down_before_the_run_began_is_started_again() {
        check_that_the_last_reader_is_started_again("; exit 5");
    }

    /// `ends`: how the reader ends.
    fn check_that_the_last_reader_is_started_again(ends: &str) {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        std::fs::write(&mark, "").unwrap();
        let reader = format!("echo x >>{}{ends}", mark.display());
        // The run goes on until the reader has been started twice, but not forever.
        let starts = format!("$(wc -l <{})", mark.display());
        let twice = format!("for i in $(seq 600); do [ {starts} -ge 2 ] && break; sleep .1; done");
        let ended = supervised(&[("ps", &format!("{twice}; sleep .5")), ("trainer", &twice), ("reader", &reader)]);
        assert_eq!(ended.unwrap(), Ended::Done);
        assert!(std::fs::read_to_string(&mark).unwrap().starts_with("x\nx\n"));
    }

    /// A bug: all processes were killed at once, perhaps while they saved.
    #[test]
    fn a_start_that_fails_counts_as_a_restart_and_the_others_end_in_their_own_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let (shell, ready, saved) = (file("shell"), file("ready"), file("saved"));
        symlink("/bin/sh", &shell).unwrap();
        let waits = "for i in $(seq 600); do sleep .1; done";
        let ps = format!("trap 'sleep .5; touch {}; exit 0' TERM; touch {}; {waits}", saved.display(), ready.display());
        let until_ready = format!("for i in $(seq 600); do [ -e {} ] && break; sleep .1; done", ready.display());
        // A program that is gone stands for a machine that has no room for a process.
        let reader = format!("{until_ready}; rm {}; exit 3", shell.display());
        let children = vec![
            child("ps", "sh".as_ref(), &ps),
            child("trainer", "sh".as_ref(), waits),
            child("reader", &shell, &reader),
        ];
        let failed = supervise(&Stop::default(), children, 2).unwrap_err();
        let said = failed.to_string();
        assert!(said.starts_with("cannot start reader 0: No such file or directory"), "{said}");
        assert!(said.contains("the run has had 2 restarts"), "{said}");
        assert!(said.ends_with("the first restart was because reader 0 ended with exit code 3"), "{said}");
        assert_eq!(failed.domain, crate::actors::Domain::External);
        assert!(saved.exists(), "the ps was killed before it had saved");
    }

    #[test]
    fn a_process_that_could_not_be_started_for_a_while_is_started_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let (shell, gone, again) = (file("shell"), file("gone"), file("again"));
        symlink("/bin/sh", &shell).unwrap();
        let until = |mark: &Path| format!("for i in $(seq 600); do [ -e {} ] && break; sleep .1; done", mark.display());
        // Comes back after the first try.
        let ps = format!("{}; sleep 1; ln -s /bin/sh {}; {}", until(&gone), shell.display(), until(&again));
        let second = format!("if [ -e {} ]; then touch {}; exec sleep 60; fi", gone.display(), again.display());
        let reader = format!("{second}; rm {}; touch {}; exit 3", shell.display(), gone.display());
        let children = vec![
            child("ps", "sh".as_ref(), &ps),
            child("trainer", "sh".as_ref(), &until(&again)),
            child("reader", &shell, &reader),
        ];
        assert_eq!(supervise(&Stop::default(), children, 10).unwrap(), Ended::Done);
        assert!(again.exists(), "the reader was not started again");
    }
}
