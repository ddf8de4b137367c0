//! The readers of a prediction, as child processes of the process that scores.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Fault;
use crate::actors::Domain;
use crate::logs::Logs;
use crate::stop::Stop;

use super::child::{Child, fault_of_end, how, may_start_again};
use super::output::{Output, pause};
use super::port::free_address;
use super::program::RunningProgram;
use super::token::Token;

/// The most restarts of readers that were killed, ended with exit code 3 or were told to end.
const MOST_RESTARTS: u32 = 10;

/// If the readers have ended because the run has failed, the process that scores hears why within this time.
const HEARD: Duration = Duration::from_secs(3);

/// How long readers may take to end by themselves.
const BY_THEMSELVES: Duration = Duration::from_secs(2);

/// The readers of a prediction on this machine. Dropping it kills them.
pub(crate) struct Readers {
    children: Vec<Child>,
    /// Restarts so far, of all readers.
    restarts: u32,
    /// A reader that is silent for longer hangs.
    most_silence: Duration,
    /// Also readers that are started again run it.
    program: RunningProgram,
    output: Output,
    token: Token,
    address: String,
    /// The fault of the first reader that ended and is not started again, or else of the first one that another try does not help.
    ended: Option<Fault>,
    /// Since when all of them have ended.
    all_ended: Option<Instant>,
}

impl Readers {
    /// None yet. Chooses the address at which the process that scores listens, and a token. A reader that is silent for longer than
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
        // These processes talk to each other on this machine only, and the token is enough.
        for certificate in ["FOREBAY_TLS_CERT", "FOREBAY_TLS_KEY", "FOREBAY_TLS_CA"] {
            command.env_remove(certificate);
        }
        self.children.push(Child::new("reader", rank, command));
    }

    /// Starts readers, also again, and kills `silent` ones that hang. Called several times a second, by the program's main thread, while
    /// rows are left.
    ///
    /// # Errors
    /// All readers have ended, and no more are started.
    pub(crate) fn look(&mut self, silent: &[String]) -> Result<(), Fault> {
        let now = Instant::now();
        for child in &mut self.children {
            child.start_if_due(now, &self.output)?;
            child.kill_if_silent(silent, self.most_silence, now);
            let Some(status) = child.has_ended()? else { continue };
            let ended = format!("{} {}", child.name, how(status));
            // A reader that was told to end leaves without a fault. Rows are left, and no process but this one starts readers.
            if (status.success() || may_start_again(status)) && self.restarts < MOST_RESTARTS {
                self.restarts += 1;
                let wait = child.start_again(now).as_secs_f64();
                tracing::warn!("{ended}: starts it again in {wait} s (restart {} of {MOST_RESTARTS})", self.restarts);
            } else {
                tracing::warn!("{ended}: does not start it again");
                let fault = fault_of_end(status, &ended);
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

    /// Waits a little until the readers have ended, kills those that have not, and prints the rest of their logs.
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
