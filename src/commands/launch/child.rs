//! One process of a run: starts and restarts it with the same command, and says how it ended.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::Fault;
use rustix::process::{Pid, Signal, kill_process};

use super::nodes::Node;
use super::output::{Output, Stream};
use super::restarts::RECOVERED;
use crate::exit;
use crate::pipelines::cluster::Role;

/// The exit code of a Rust program that panicked outside of [`cli::main`](crate::cli::main).
const PANICKED: i32 = 101;

/// The wait before the first restart of a process. It doubles with each restart, up to [`LONGEST_WAIT`], and is this long again when the
/// process has run for [`RECOVERED`].
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// One process of the run. A drop kills the process.
pub(super) struct Child {
    /// Its role and rank.
    pub(super) place: (Role, u32),
    pub(super) name: String,
    pub(super) is_reader: bool,
    command: Command,
    /// Where it runs; `None`: on all cores.
    node: Option<Node>,
    /// Arguments that are added when it is started again.
    added: Vec<&'static str>,
    state: State,
    /// When it was started last.
    started: Instant,
    /// How often it was started again without running for [`RECOVERED`].
    restarts: u32,
    was_started_again: bool,
    was_asked_to_shut_down: bool,
}

enum State {
    /// To be started at this time.
    Waits(Instant),
    Runs(std::process::Child),
    Ended(ExitStatus),
    /// It will not be started.
    GivenUp,
}

impl Child {
    pub(super) fn new(role: Role, rank: usize, mut command: Command) -> Self {
        // In a process group of its own: Ctrl-C reaches only `launch`, which passes it on once.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{role} {rank}");
        let state = State::Waits(Instant::now());
        Self {
            place: (role, rank as u32),
            name,
            is_reader: role == Role::Reader,
            command,
            node: None,
            added: Vec::new(),
            state,
            started: Instant::now(),
            restarts: 0,
            was_started_again: false,
            was_asked_to_shut_down: false,
        }
    }

    /// Binds the process to the cores of a NUMA node.
    pub(super) fn bind_to(&mut self, node: &Node) {
        self.node = Some(node.clone());
    }

    /// Adds an argument for restarts.
    pub(super) fn when_started_again(&mut self, argument: &'static str) {
        self.added.push(argument);
    }

    /// Starts the process if it is time. It ends with the thread that calls this: the program's main thread.
    ///
    /// # Errors
    /// The process could not be started and does not run. Schedule another start, or give it up.
    pub(super) fn start_if_due(&mut self, now: Instant, output: &Output) -> Result<(), Fault> {
        let State::Waits(due) = self.state else { return Ok(()) };
        if now < due {
            return Ok(());
        }
        // The time of a start that fails, too: the waits grow.
        self.started = now;
        let name = &self.name;
        if self.was_started_again {
            self.command.args(self.added.drain(..));
        }
        let command = &mut self.command;
        let child = match &self.node {
            Some(node) => node.bound(|| command.spawn()).flatten(),
            None => command.spawn(),
        };
        let mut child = child.map_err(|e| Fault::external(format!("cannot start {name}")).because(e))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let out = out.map_or(Ok(()), |out| output.merge(name, Stream::Out, out));
        let merged = out.and_then(|()| err.map_or(Ok(()), |err| output.merge(name, Stream::Err, err)));
        if let Err(fault) = merged {
            // The log of the process would be lost.
            let _ = child.kill();
            let _ = child.wait();
            return Err(fault.context(format!("cannot start {name}")));
        }
        self.state = State::Runs(child);
        Ok(())
    }

    /// How the process ended, once after each end.
    pub(super) fn has_ended(&mut self) -> Result<Option<ExitStatus>, Fault> {
        let State::Runs(child) = &mut self.state else { return Ok(None) };
        let status = child.try_wait();
        let status = status.map_err(|e| Fault::external(format!("cannot wait for {}", self.name)).because(e))?;
        if let Some(status) = status {
            self.state = State::Ended(status);
        }
        Ok(status)
    }

    /// Schedules a restart of the process after a wait that grows each time. Returns the wait.
    pub(super) fn start_again(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.started) >= RECOVERED {
            self.restarts = 0;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.restarts.min(8)).min(LONGEST_WAIT);
        self.restarts += 1;
        self.was_started_again = true;
        self.state = State::Waits(now + wait);
        wait
    }

    /// Schedules a restart at this time, although the process ended as it should.
    pub(super) fn start_late(&mut self, at: Instant) {
        self.was_started_again = true;
        self.state = State::Waits(at);
    }

    /// Gives the process up: it is not started again.
    pub(super) fn give_up(&mut self) {
        if let State::Waits(_) = self.state {
            self.state = State::GivenUp;
        }
    }

    pub(super) fn was_started_again(&self) -> bool {
        self.was_started_again
    }

    /// Whether it has ended and will not be started.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Ended(_) | State::GivenUp)
    }

    pub(super) fn status(&self) -> Option<ExitStatus> {
        if let State::Ended(status) = self.state { Some(status) } else { None }
    }

    /// Kills the process. Until its restart, `now` counts as the time of its start.
    pub(super) fn kill(&mut self, now: Instant) {
        self.signal(Signal::KILL);
        self.started = now;
    }

    /// Kills the process, for a restart, if it is one of the `silent` ones and has run for `most_silence`: then it hangs.
    pub(super) fn kill_if_silent(&mut self, silent: &[String], most_silence: Duration, now: Instant) {
        // A process that has just started has not joined yet: the silence belongs to its predecessor.
        let has_run = matches!(self.state, State::Runs(_)) && now.duration_since(self.started) >= most_silence;
        if has_run && silent.contains(&self.name) {
            tracing::warn!(
                "{} hangs: no sign of life for {most_silence:?} (placement.lease_seconds), so it is killed",
                self.name
            );
            self.kill(now);
        }
    }

    /// Whether it got SIGTERM from [`tell_to_end`](Self::tell_to_end).
    pub(super) fn was_asked_to_shut_down(&self) -> bool {
        self.was_asked_to_shut_down
    }

    /// Sends SIGTERM to the process if it runs.
    pub(super) fn tell_to_end(&mut self) {
        self.was_asked_to_shut_down |= matches!(self.state, State::Runs(_));
        self.signal(Signal::TERM);
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let State::Runs(child) = &self.state {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let State::Runs(child) = &mut self.state {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a restart of the process may help: it was killed, it panicked, or it ended with an external fault.
pub(super) fn may_start_again(status: ExitStatus) -> bool {
    status.signal().is_some() || [Some(PANICKED), Some(i32::from(exit::EXTERNAL))].contains(&status.code())
}

/// How a process ended, in words that follow its name.
pub(super) fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}{}", name_of(signal)),
        (None, Some(PANICKED)) => "panicked".into(),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => format!("ended with {status}"),
    }
}

/// The fault of a process that ended this way and is not started again. `ended` names the process and says how it ended, and `said` is the
/// last error that it has printed.
pub(super) fn fault_of_end(status: ExitStatus, ended: &str, said: Option<&str>) -> Fault {
    let code = status.code().map(|code| code as u8);
    let unknown = match code {
        Some(exit::UNSAVED) => {
            "the training has ended, but its model is not saved, or it was drained and has no checkpoint, or its checkpoints cannot be reached: its \
             last lines say which and why"
        }
        _ => "its last lines say why",
    };
    let what = format!("{ended}: {}", said.unwrap_or(unknown));
    match code {
        Some(exit::USER) => Fault::user(what),
        // A process that was asked to shut down has no fault. The fault is that the run lacks the process.
        Some(exit::DONE | exit::DRAINED | exit::EXTERNAL | exit::UNSAVED | exit::INTERRUPTED) | None => {
            Fault::external(what)
        }
        Some(_) => Fault::internal(what),
    }
}

/// The name of a signal, in parentheses.
fn name_of(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => " (SIGHUP)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGQUIT => " (SIGQUIT)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGTRAP => " (SIGTRAP)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGALRM => " (SIGALRM)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGXCPU => " (SIGXCPU)",
        libc::SIGXFSZ => " (SIGXFSZ)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::Domain;

    /// A wait status: a signal, or a code in the second byte.
    fn killed(signal: i32) -> ExitStatus {
        ExitStatus::from_raw(signal)
    }

    fn code(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn an_end_is_named_with_its_signal_or_code() {
        assert_eq!(how(killed(9)), "was killed by signal 9 (SIGKILL)");
        assert_eq!(how(killed(50)), "was killed by signal 50");
        assert_eq!(how(code(101)), "panicked");
        assert_eq!(how(code(3)), "ended with exit code 3");
    }

    #[test]
    fn the_fault_of_a_process_that_is_given_up_has_the_domain_of_its_exit_code() {
        let domain = |status| fault_of_end(status, "reader 0 ended", None).domain;
        assert_eq!(domain(code(2)), Domain::User);
        assert_eq!([code(4), code(101), code(1)].map(domain), [Domain::Internal; 3]);
        assert_eq!([code(0), code(3), code(5), code(7), killed(9)].map(domain), [Domain::External; 5]);
    }

    #[test]
    fn killed_panicked_and_external_may_start_again() {
        for status in [killed(9), killed(11), code(101), code(3)] {
            assert!(may_start_again(status), "{status}");
        }
        for status in [code(0), code(2), code(4), code(5), code(7), code(130), code(1)] {
            assert!(!may_start_again(status), "{status}");
        }
    }

    #[test]
    fn each_wait_is_twice_as_long_up_to_ten_seconds() {
        let (mut child, now) = (Child::new(Role::Reader, 0, Command::new("true")), Instant::now());
        let waits: Vec<f64> = (0..7).map(|_| child.start_again(now).as_secs_f64()).collect();
        assert_eq!(waits, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
        assert_eq!(child.start_again(now + RECOVERED).as_secs_f64(), 0.5, "it has run for long");
    }

    #[test]
    fn the_waits_of_a_process_that_has_run_for_long_and_cannot_be_started_grow() {
        let mut child = Child::new(Role::Reader, 0, Command::new("/no/such/program"));
        let (output, mut now) = (Output::start(false).unwrap(), Instant::now() + RECOVERED);
        for wait in [0.5, 1.0, 2.0] {
            let fault = child.start_if_due(now, &output).unwrap_err();
            assert_eq!(fault.to_string(), "cannot start reader 0: No such file or directory (os error 2)");
            assert!(!child.is_over());
            assert_eq!(child.start_again(now).as_secs_f64(), wait);
            assert!(child.start_if_due(now, &output).is_ok(), "it is not time");
            now += Duration::from_secs_f64(wait);
        }
    }
}
