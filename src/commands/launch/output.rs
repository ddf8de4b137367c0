//! One log of what all processes of a run print, each line with the name of its process.
//!
//! A thread per pipe reads lines into one queue, and one thread writes them. If standard output is not read, the queue fills and further
//! lines are dropped and counted: neither the processes nor `launch`, whose own log goes into the same queue, wait for the reader. At the
//! end the queued lines are written if they are read.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::out::LogElsewhere;
use crate::stop::Stop;
use crate::{Fault, out};

/// Most lines that wait to be written.
const MOST_LINES: usize = 16_384;

/// The pipes of processes that have ended are read for at most this long: another process may hold an end of them.
const LAST_LINES: Duration = Duration::from_secs(2);

/// At the end [`Output::finish`] waits for the reader of the output. It drops the queued lines if the reader takes none for this long;
/// after a signal, for [`LAST_LINES`].
const UNREAD: Duration = Duration::from_secs(60);

/// Where a line goes.
#[derive(Clone, Copy)]
pub(super) enum Stream {
    Out,
    Err,
}

type Line = (Stream, String);

/// The last error that each process has printed, by its name.
type Errors = Arc<Mutex<HashMap<String, String>>>;

/// The merged output.
pub(super) struct Output {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    readers: Mutex<Vec<JoinHandle<()>>>,
    writer: JoinHandle<()>,
    errors: Errors,
    json: bool,
    own_log: Option<LogElsewhere>,
}

impl Output {
    /// If `json`, the lines are JSON objects, in and out.
    pub(super) fn start(json: bool) -> Result<Self, Fault> {
        let (lines, queue) = sync_channel(MOST_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let written = Arc::new(AtomicU64::new(0));
        let (counted, taken) = (Arc::clone(&dropped), Arc::clone(&written));
        let print_and_count = move |(stream, line): Line| {
            print(stream, &line);
            taken.fetch_add(1, Ordering::Relaxed);
        };
        let writer = start("write", move || write(&queue, &counted, json, print_and_count))?;
        let (readers, errors) = Default::default();
        Ok(Self { lines, dropped, written, readers, writer, errors, json, own_log: None })
    }

    /// Merges the log of this process, too.
    #[must_use]
    pub(super) fn with_own_log(mut self) -> Self {
        let (lines, dropped) = (self.lines.clone(), Arc::clone(&self.dropped));
        self.own_log = Some(LogElsewhere::send(move |line| {
            // If the queue has ended, no thread writes the line.
            let _ = queue((Stream::Err, line.to_owned()), &lines, &dropped);
        }));
        self
    }

    /// Merges the lines that a process called `name` writes into a pipe.
    pub(super) fn merge(&self, name: &str, stream: Stream, from: impl Read + Send + 'static) -> Result<(), Fault> {
        let (name, json, lines, dropped) = (name.to_owned(), self.json, self.lines.clone(), Arc::clone(&self.dropped));
        let errors = Arc::clone(&self.errors);
        let reader = start(&format!("read {name}"), move || {
            read(&name, json, stream, from, &lines, &dropped, |error| {
                errors.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), error);
            });
        })?;
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        Ok(())
    }

    /// The last error that the process called `name` has printed. Call it when all processes have ended.
    pub(super) fn last_error(&self, name: &str) -> Option<String> {
        wait_until_read(&self.readers.lock().unwrap_or_else(PoisonError::into_inner));
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// Writes the lines that are left. Gives up if standard output is not read.
    pub(super) fn finish(self, stop: &Stop) {
        let readers = self.readers.into_inner().unwrap_or_else(PoisonError::into_inner);
        wait_until_read(&readers);
        drop((self.lines, self.own_log));
        // A reader thread that still runs keeps the queue open.
        let open = readers.iter().any(|reader| !reader.is_finished());
        let (mut taken, mut since) = (0, Instant::now());
        while !open && !self.writer.is_finished() && !stop.at_once() {
            let written = self.written.load(Ordering::Relaxed);
            if written != taken {
                (taken, since) = (written, Instant::now());
            }
            let patience = if stop.asked() { LAST_LINES } else { UNREAD };
            if since.elapsed() > patience {
                out::give_up();
                return;
            }
            pause();
        }
    }
}

/// Waits until the pipes of processes that have ended are read, for at most [`LAST_LINES`].
fn wait_until_read(readers: &[JoinHandle<()>]) {
    let deadline = Instant::now() + LAST_LINES;
    while !readers.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
        pause();
    }
}

/// The program's main thread may sleep: no arbiter runs on it.
#[allow(clippy::disallowed_methods)]
pub(super) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Fault> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| Fault::no_thread("a thread for the log", e))
}

fn print(stream: Stream, line: &str) {
    match stream {
        Stream::Out => out::print_or_wait(line),
        Stream::Err => out::eprint_or_wait(line),
    }
}

/// Reads lines until the pipe ends, and hands out the errors among them. A byte that is no UTF-8 is replaced.
fn read(
    name: &str,
    json: bool,
    stream: Stream,
    from: impl Read,
    lines: &SyncSender<Line>,
    dropped: &AtomicU64,
    on_error: impl Fn(String),
) {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
        if let Some(error) = error_of(json, &text) {
            on_error(error);
        }
        if queue((stream, named(name, json, &text)), lines, dropped).is_none() {
            return;
        }
        line.clear();
    }
}

/// Queues a line, or drops and counts it. `None`: the queue has ended.
fn queue(line: Line, lines: &SyncSender<Line>, dropped: &AtomicU64) -> Option<()> {
    match lines.try_send(line) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => drop(dropped.fetch_add(1, Ordering::Relaxed)),
        Err(TrySendError::Disconnected(_)) => return None,
    }
    Some(())
}

/// A line with the name of its process: `reader 0 | text`, or in JSON a first field `process`. A line that is no object, such as a line of
/// a panic, becomes the field `text`.
fn named(name: &str, json: bool, text: &str) -> String {
    let Some(fields) = text.strip_prefix('{').filter(|_| json) else {
        return if json {
            json!({ "process": name, "text": text }).to_string()
        } else {
            format!("{name:<10} | {text}")
        };
    };
    let comma = if fields.trim_start().starts_with('}') { "" } else { "," };
    format!("{{\"process\":{}{comma}{fields}", json!(name))
}

/// The error that a line reports, as [`exit::report`](crate::exit::report) prints it.
fn error_of(json: bool, text: &str) -> Option<String> {
    if !json {
        return text.strip_prefix("error: ").map(str::to_owned);
    }
    let line: serde_json::Value = serde_json::from_str(text).ok().filter(|_| text.contains("\"ERROR\""))?;
    let is_error = line["level"] == "ERROR" && line.get("domain").is_some();
    line["message"].as_str().filter(|_| is_error).map(str::to_owned)
}

/// Writes lines until the queue ends, and says how many were dropped.
fn write(queue: &Receiver<Line>, dropped: &AtomicU64, json: bool, mut print: impl FnMut(Line)) {
    while let Ok(line) = queue.recv() {
        print(line);
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            print((Stream::Err, named("launch", json, &out::dropped_lines(dropped, "log"))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted() {
        let (lines, queue) = sync_channel(2);
        let dropped = AtomicU64::new(0);
        read("ps 0", false, Stream::Out, &b"a\nb\nc\xff\nd"[..], &lines, &dropped, |_| {});
        drop(lines);
        let mut written = Vec::new();
        write(&queue, &dropped, false, |(_, line)| written.push(line));
        let expected = ["ps 0       | a", "launch     | 2 lines were dropped: the log was not read", "ps 0       | b"];
        assert_eq!(written, expected);
    }

    #[test]
    fn lines_of_json_say_their_process_and_stay_json() {
        for (text, expected) in [
            ("{\"a\":1}", json!({ "process": "ps 0", "a": 1 })),
            ("{}", json!({ "process": "ps 0" })),
            ("thread panicked: \"x\"", json!({ "process": "ps 0", "text": "thread panicked: \"x\"" })),
        ] {
            let line: serde_json::Value = serde_json::from_str(&named("ps 0", true, text)).unwrap();
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_end_a_log() {
        let (lines, queue) = sync_channel(9);
        read("reader 1", false, Stream::Err, &b"\xff\nlast"[..], &lines, &AtomicU64::new(0), |_| {});
        drop(lines);
        let written: Vec<String> = queue.iter().map(|(_, line)| line).collect();
        assert_eq!(written, ["reader 1   | \u{fffd}", "reader 1   | last"]);
    }
}
