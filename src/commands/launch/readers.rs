//! The readers of a prediction, as child processes of the process that scores.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Fault;
use crate::actors::Domain;
use crate::logs::Logs;
use crate::pipelines::cluster::Role;
use crate::stop::Stop;

use super::child::{Child, fault_of_end, how, may_start_again};
use super::output::{Output, pause};
use super::port::free_address;
use super::program::RunningProgram;
use super::token::Token;

/// The most restarts of readers that were killed, ended with exit code 3 or were asked to shut down. One that fails counts, too.
const MOST_RESTARTS: u32 = 10;

/// If the readers have ended because the run has failed, the process that scores hears why within this time.
const HEARD: Duration = Duration::from_secs(3);

/// How long readers may take to end by themselves.
const BY_THEMSELVES: Duration = Duration::from_secs(2);

/// The readers of a prediction on this machine. A drop kills the readers.
pub(crate) struct Readers {
    children: Vec<Child>,
    /// Restarts so far, of all readers.
    restarts: u32,
    /// A reader that is silent for longer hangs.
    most_silence: Duration,
    /// Restarted readers run the same program.
    program: RunningProgram,
    output: Output,
    token: Token,
    address: String,
    /// The fault of the first reader that ended and is not started again; a fault that another try does not help replaces one that may
    /// pass.
    ended: Option<Fault>,
    /// When the last reader ended, if all have ended.
    all_ended: Option<Instant>,
}

impl Readers {
    /// No readers yet. Chooses the address at which the process that scores listens, and a token. A reader that is silent for longer than
    /// `most_silence` hangs.
    pub(crate) fn new(most_silence: Duration, logs: &Logs) -> Result<Self, Fault> {
        Ok(Self {
            children: Vec::new(),
            restarts: 0,
            most_silence,
            program: RunningProgram::find()?,
            output: Output::start(logs.is_json())?,
            token: Token::new()?,
            address: free_address()?,
            ended: None,
            all_ended: None,
        })
    }

    /// The file of the token, for this process and the readers.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.token.file()
    }

    /// The address that the readers join.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Adds a reader with the arguments `arguments` of this program; [`look`](Self::look) starts it.
    pub(crate) fn add(&mut self, rank: usize, arguments: &[String]) {
        let mut command = self.program.command();
        command.args(arguments);
        self.children.push(Child::new(Role::Reader, rank, command));
    }

    /// Starts readers, also again, and kills `silent` ones that hang. Called several times a second, by the program's main thread, while
    /// rows are left.
    ///
    /// # Errors
    /// A reader could not be started for the first time; or all readers have ended, and no more are started.
    pub(crate) fn look(&mut self, silent: &[String]) -> Result<(), Fault> {
        let now = Instant::now();
        for child in &mut self.children {
            let failed = child.start_if_due(now, &self.output).err();
            child.kill_if_silent(silent, self.most_silence, now);
            let (ended, again, fault) = match failed {
                Some(fault) if !child.was_started_again() => return Err(fault),
                Some(fault) => (fault.to_string(), true, fault),
                None => {
                    let Some(status) = child.has_ended()? else { continue };
                    let ended = format!("{} {}", child.name, how(status));
                    // A reader that was asked to shut down leaves without a fault. Rows are left, so this process starts the reader again.
                    let again = status.success() || may_start_again(status);
                    let fault = fault_of_end(status, &ended, None);
                    (ended, again, fault)
                }
            };
            if again && self.restarts < MOST_RESTARTS {
                self.restarts += 1;
                let wait = child.start_again(now).as_secs_f64();
                tracing::warn!("{ended}: starts it again in {wait} s (restart {} of {MOST_RESTARTS})", self.restarts);
            } else {
                tracing::warn!("{ended}: does not start it again");
                child.give_up();
                if self.ended.as_ref().is_none_or(|first| may_pass(first) && !may_pass(&fault)) {
                    self.ended = Some(fault);
                }
            }
        }
        if !self.children.iter().all(Child::is_over) {
            return Ok(());
        }
        if now.duration_since(*self.all_ended.get_or_insert(now)) < HEARD {
            return Ok(());
        }
        let first = self.ended.clone().unwrap_or_else(|| Fault::external("none was started"));
        Err(first.context("all readers have ended before the last row"))
    }

    /// The ranks of the readers that do not run. None is started again.
    pub(crate) fn ended(&mut self) -> Result<impl Iterator<Item = u32>, Fault> {
        for child in &mut self.children {
            child.give_up();
            child.has_ended()?;
        }
        let over = |(rank, child): (u32, &Child)| child.is_over().then_some(rank);
        Ok((0..).zip(&self.children).filter_map(over))
    }

    /// Waits a little until the readers have ended, kills the others, and prints the rest of their logs.
    pub(crate) fn end(mut self, stop: &Stop) -> Result<(), Fault> {
        let until = Instant::now() + BY_THEMSELVES;
        loop {
            let ended = self.ended()?.count();
            if ended == self.children.len() || Instant::now() >= until || stop.at_once() {
                break;
            }
            pause();
        }
        drop(std::mem::take(&mut self.children));
        self.output.finish(stop);
        Ok(())
    }
}

/// Whether another try may help.
fn may_pass(fault: &Fault) -> bool {
    fault.domain == Domain::External
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// A reader whose program is gone after its first start: it stands for a machine that has no room for a process. `restarts` were there
    /// before. Returns the place of the program, and the place of a file that the second start makes.
    fn reader_without_program(dir: &std::path::Path, restarts: u32) -> (Readers, PathBuf, PathBuf) {
        let (shell, gone, again) = (dir.join("shell"), dir.join("gone"), dir.join("again"));
        symlink("/bin/sh", &shell).unwrap();
        let second = format!("if [ -e {} ]; then touch {}; exec sleep 60; fi", gone.display(), again.display());
        let mut command = Command::new(&shell);
        command.args(["-c", &format!("{second}; rm {}; touch {}; exit 3", shell.display(), gone.display())]);
        let readers = Readers {
            children: vec![Child::new(Role::Reader, 0, command)],
            restarts,
            most_silence: Duration::from_secs(60),
            program: RunningProgram::find().unwrap(),
            output: Output::start(false).unwrap(),
            token: Token::new().unwrap(),
            address: String::new(),
            ended: None,
            all_ended: None,
        };
        (readers, shell, again)
    }

    /// A bug: the prediction ended with the fault of the restart.
    #[test]
    fn a_restart_that_fails_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut readers, shell, again) = reader_without_program(dir.path(), 0);
        let begun = Instant::now();
        while !again.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the reader is not started again");
            readers.look(&[]).unwrap();
            // The end of the reader, and a start that failed.
            if readers.restarts == 2 && !shell.exists() {
                symlink("/bin/sh", &shell).unwrap();
            }
            pause();
        }
        assert!(readers.restarts >= 2, "{}", readers.restarts);
    }

    #[test]
    fn a_reader_that_cannot_be_started_is_given_up_after_the_last_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (mut readers, ..) = reader_without_program(dir.path(), MOST_RESTARTS - 2);
        let begun = Instant::now();
        let fault = loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "the reader is not given up");
            match readers.look(&[]) {
                Ok(()) => pause(),
                Err(fault) => break fault,
            }
        };
        let said = "all readers have ended before the last row: cannot start reader 0: No such file or directory";
        assert!(fault.to_string().starts_with(said), "{fault}");
        assert_eq!((fault.domain, readers.restarts), (Domain::External, MOST_RESTARTS));
    }

    #[test]
    fn a_reader_that_cannot_be_started_at_all_ends_the_prediction_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut readers, shell, _) = reader_without_program(dir.path(), 0);
        std::fs::remove_file(shell).unwrap();
        assert!(readers.look(&[]).unwrap_err().to_string().starts_with("cannot start reader 0: "));
    }
}
