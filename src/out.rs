//! Standard output and standard error. Everything that the program prints passes here.
//!
//! A run drops its messages if it cannot write them: a closed terminal, a full disk behind `>` or a `| head -1` never changes the
//! trained model. Only a command whose result is its output fails if it cannot write the output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError, RwLock};

use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Fault;

/// Prints a line of a command's result. A closed standard output (`| head -1`) is not an error: the reader has what it wanted.
pub(crate) fn print(line: impl Display) -> Result<(), Fault> {
    taken(writeln!(io::stdout().lock(), "{line}")).map(drop)
}

/// Writes a part of a command's result. Returns false if standard output is closed: the rest is not wanted.
pub(crate) fn write(part: &[u8]) -> Result<bool, Fault> {
    let mut out = io::stdout().lock();
    taken(out.write_all(part).and_then(|()| out.flush()))
}

/// Whether standard output can still be read: false if it is a pipe or socket and its reader has closed it.
pub(crate) fn is_read() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec::default())).is_err() || !polled[0].revents().intersects(gone)
}

/// Whether the output took what was written; false if it is closed.
fn taken(written: io::Result<()>) -> Result<bool, Fault> {
    match written {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Fault::external("cannot write to standard output").because(e)),
    }
}

/// Prints a line about a run to standard output. The line is dropped if it cannot be written.
pub(crate) fn print_or_drop(line: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Prints a line for people to standard error. The line is dropped if it cannot be written.
pub(crate) fn eprint_or_drop(line: impl Display) {
    over_bar(|| drop(writeln!(io::stderr().lock(), "{line}")));
}

/// The line of progress that is on the terminal.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// From here on, lines on standard error are written over this line of progress, which is drawn again below them.
pub(crate) fn over_progress(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

fn over_bar(write: impl FnOnce()) {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Takes a line of the log, without its end.
type LogLine = Box<dyn Fn(&str) + Send + Sync>;

/// Takes the log in place of standard error.
static LOG: RwLock<Option<LogLine>> = RwLock::new(None);

/// The log goes elsewhere until this is dropped.
pub(crate) struct LogElsewhere;

impl LogElsewhere {
    /// `to` must not wait: a log that is not read must not block the code that writes it.
    pub(crate) fn send(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        *LOG.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(to));
        Self
    }
}

impl Drop for LogElsewhere {
    fn drop(&mut self) {
        *LOG.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The writer of the logs, a whole line with each call: standard error, or nowhere if it cannot be written.
pub(crate) struct Logs;

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &*LOG.read().unwrap_or_else(PoisonError::into_inner) {
            Some(take) => take(String::from_utf8_lossy(bytes).trim_end_matches('\n')),
            None => over_bar(|| drop(io::stderr().lock().write_all(bytes))),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
