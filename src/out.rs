//! Standard output and standard error. Everything that the program prints passes here.
//!
//! A run drops a line if it cannot write it, or if the reader of a pipe does not take it within a second. So a closed terminal, a full disk
//! behind `>`, a `| head -1` and a pipe that is open but not read change no trained model and stop no server. A warning says once that a
//! line could not be written. Only a command whose result is its output fails if it cannot write the output, or waits until it is read.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};

use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use serde_json::json;

use crate::Fault;
use crate::actors::counted;

/// Prints a line of a command's result. A closed standard output (`| head -1`) is no error: the reader wants no more.
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

/// Prints a line about a run, or about what was written, to standard output. The line is dropped if it cannot be written, or is not read.
pub(crate) fn print_or_drop(line: impl Display) {
    if lines_are_written() {
        let written = OUT.write(&mut io::stdout().lock(), format!("{line}\n").as_bytes());
        warn_of_loss(written);
    }
}

/// Prints a line for people to standard error. The line is dropped if it cannot be written, or is not read.
pub(crate) fn eprint_or_drop(line: impl Display) {
    if lines_are_written() {
        over_bar(|| drop(ERR.write(&mut io::stderr().lock(), format!("{line}\n").as_bytes())));
    }
}

/// Whether the log says that standard output could not be written.
static LOSS_IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Logs, once, that standard output did not take a line; not if it is closed. The caller must not hold the lock of standard output.
fn warn_of_loss(written: io::Result<()>) {
    if let Err(e) = taken(written)
        && !LOSS_IS_KNOWN.swap(true, Relaxed)
    {
        tracing::warn!("the report is lost, or a part of it: {e}");
    }
}

/// Whether all lines are dropped.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// After this call [`print_or_drop`], [`eprint_or_drop`] and the log drop all lines. A thread that waits in [`print_or_wait`] or
/// [`eprint_or_wait`] for the reader of a pipe holds the lock of the output, and other threads would wait for this lock.
pub(crate) fn give_up() {
    GIVEN_UP.store(true, Relaxed);
}

fn lines_are_written() -> bool {
    !GIVEN_UP.load(Relaxed)
}

/// As [`print_or_drop`], but waits for the reader of a pipe.
pub(crate) fn print_or_wait(line: impl Display) {
    let written = writeln!(io::stdout().lock(), "{line}");
    warn_of_loss(written);
}

/// As [`eprint_or_drop`], but waits for the reader of a pipe.
pub(crate) fn eprint_or_wait(line: impl Display) {
    over_bar(|| drop(writeln!(io::stderr().lock(), "{line}")));
}

/// Whether lines about dropped lines are JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// Makes the module's own lines JSON.
pub(crate) fn as_json(yes: bool) {
    JSON.store(yes, Relaxed);
}

/// The text about dropped lines; `what`: the output or the log.
pub(crate) fn dropped_lines(dropped: u64, what: &str) -> String {
    let were = if dropped == 1 { "was" } else { "were" };
    format!("{} {were} dropped: the {what} was not read", counted(dropped, "line"))
}

static OUT: Reader = Reader::new();
static ERR: Reader = Reader::new();

/// The reader of an output that may be a pipe or a socket, whose other end may be open and not read.
struct Reader {
    /// The reader did not take a line in time: the next line does not wait.
    is_late: AtomicBool,
    dropped: AtomicU64,
}

impl Reader {
    /// How long a line waits if the reader has taken the one before it.
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    /// A pipe that takes any bytes takes this many at once (PIPE_BUF).
    const AT_ONCE: usize = 4096;

    const fn new() -> Self {
        Self { is_late: AtomicBool::new(false), dropped: AtomicU64::new(0) }
    }

    /// Writes a line, or drops and counts it if it is not read.
    fn write(&self, out: &mut (impl Write + AsFd), line: &[u8]) -> io::Result<()> {
        if !self.takes(out) {
            self.dropped.fetch_add(1, Relaxed);
            return Ok(());
        }
        let dropped = self.dropped.swap(0, Relaxed);
        if dropped > 0 {
            let text = dropped_lines(dropped, "output");
            let _ = match JSON.load(Relaxed) {
                true => writeln!(out, "{}", json!({ "level": "WARN", "message": text })),
                false => writeln!(out, "{text}"),
            };
        }
        for piece in line.chunks(Self::AT_ONCE) {
            if !self.takes(out) {
                break;
            }
            out.write_all(piece)?;
            out.flush()?;
        }
        Ok(())
    }

    /// Whether the reader takes the next bytes at once, or their loss is known at once. Waits for a terminal that a person has stopped.
    fn takes(&self, out: &impl AsFd) -> bool {
        let kind = fstat(out).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if !matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
            return true;
        }
        let patience = if self.is_late.load(Relaxed) { Timespec::default() } else { Self::PATIENCE };
        let mut polled = [PollFd::new(out, PollFlags::OUT)];
        // A signal ends the wait early, and then the line is dropped.
        let late = !poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0);
        self.is_late.store(late, Relaxed);
        !late
    }
}

/// The line of progress that is on the terminal.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// After this call lines on standard error are written over this line of progress, which is drawn again below them.
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

/// The writer of the logs, a whole line with each call: standard error, or nowhere if it cannot be written or is not read.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &*LOG.read().unwrap_or_else(PoisonError::into_inner) {
            Some(take) => take(String::from_utf8_lossy(bytes).trim_end_matches('\n')),
            None if lines_are_written() => over_bar(|| drop(ERR.write(&mut io::stderr().lock(), bytes))),
            None => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted_and_long_lines_are_whole() {
        let (mut read, write) = io::pipe().unwrap();
        let (mut file, reader) = (File::from(OwnedFd::from(write)), Reader::new());
        let mut taken = 0;
        while reader.dropped.load(Relaxed) < 3 {
            reader.write(&mut file, &[b'x'; 1024]).unwrap();
            taken += 1024;
        }
        taken -= 3 * 1024;
        let mut before = vec![0; taken];
        read.read_exact(&mut before).unwrap();
        let long = [&[b'y'; 10_000][..], b"\n"].concat();
        reader.write(&mut file, &long).unwrap();
        drop(file);
        let mut rest = String::new();
        read.read_to_string(&mut rest).unwrap();
        let (note, line) = rest.split_once('\n').unwrap();
        assert_eq!(note, "3 lines were dropped: the output was not read");
        assert_eq!(line.as_bytes(), long);
    }
}
