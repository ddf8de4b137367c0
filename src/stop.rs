//! Ctrl-C, SIGTERM and SIGHUP: the first signal asks for a drain, the second ends the program at once. Before the run begins, the first
//! signal ends the program, because there is nothing to drain.
//!
//! `timeout` and some schedulers send a signal to a process and to its process group, so it comes twice: signals that come
//! within [`ONE_SIGNAL`] of the first are the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::actors::FaultKind;

use crate::logs::Format;
use crate::{exit, out};

/// Signals that come within this time after the first are no second signal.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// How long a line for people may take.
const SAYING: Duration = Duration::from_millis(200);

/// The handler ends a program that does not end by itself this long after the second signal: it may wait for an output that is not read.
const BY_ITSELF: Duration = Duration::from_secs(3);

/// The handler ends a program that has neither begun nor ended this long after the first signal: it may wait for a pipe, or read a large
/// model.
const TO_BEGIN: Duration = Duration::from_secs(1);

/// The line of a command that writes a folder, at the first signal.
pub(crate) const NOTHING_IS_WRITTEN: &str = "nothing is written, unless it is complete by now";

const TRAINING_STOPS: &str = "trains on what was read, then saves the model";

/// The line of a run with checkpoints.
const CHECKPOINT_STOPS: &str = "the run ends with a checkpoint of what it has trained on, for --resume";

/// The line of a run that saves its model, or retries to save it.
const SAVING_STOPS: &str = "the training has ended, and the model is saved, elsewhere if need be";

/// The line of a trainer that its run can do without.
const LEAVES: &str =
    "this trainer trains on what it has taken and leaves; the run goes on, unless it is asked to shut down, too";

/// Whether the user asked to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Signals>);

#[derive(Clone, Copy, Default)]
enum SaveState {
    #[default]
    NotBegun,
    Begun,
    Done,
}

#[derive(Default)]
struct Signals {
    first: Mutex<Option<Instant>>,
    drain: Arc<AtomicBool>,
    /// Whether there is something to drain. Before that the first signal ends the program.
    begun: AtomicBool,
    /// The run has checkpoints, and ends with one.
    ends_with_checkpoint: AtomicBool,
    /// The run goes on without this process.
    leaves: AtomicBool,
    /// No signal after the first one counts.
    only_drains: AtomicBool,
    at_once: AtomicBool,
    /// Locked by the handler while it ends the program: no save begins after it has said that nothing is saved.
    saving: Mutex<SaveState>,
}

/// The request of a signal.
#[derive(Debug, PartialEq)]
enum Asks {
    ToDrain,
    Nothing,
    ToStop,
}

impl Stop {
    /// Installs a signal handler that ends the program at the second signal.
    pub(crate) fn listen(format: Format) -> Result<Self, Fault> {
        Self::listen_with(format, (TRAINING_STOPS, exit::DRAINED), move |signals| {
            let saving = lock(&signals.saving);
            let model = match *saving {
                SaveState::NotBegun => "nothing saved",
                SaveState::Begun => "while the model was saved: it is there whole, or not at all",
                SaveState::Done => "the model is saved",
            };
            say(format, &format!("stopped at once, {model}"));
            std::process::exit(i32::from(exit::INTERRUPTED));
        })
    }

    /// Installs a signal handler for a program that looks at [`at_once`](Self::at_once) and then ends by itself, or is ended if it
    /// does not.
    pub(crate) fn listen_and_tell(format: Format) -> Result<Self, Fault> {
        #[allow(clippy::disallowed_methods, reason = "the thread of the signal handler may sleep")]
        Self::listen_with(format, (TRAINING_STOPS, exit::DRAINED), |_| {
            std::thread::sleep(BY_ITSELF);
            std::process::exit(i32::from(exit::INTERRUPTED));
        })
    }

    /// Installs a signal handler for a program that saves no model. It says `first` at the first signal, and ends the program at the
    /// second. `unbegun`: the exit code if the first signal comes before the program has begun.
    pub(crate) fn listen_and_say(format: Format, first: &'static str, unbegun: u8) -> Result<Self, Fault> {
        Self::listen_with(format, (first, unbegun), move |_| {
            say(format, "stopped at once");
            std::process::exit(i32::from(exit::INTERRUPTED));
        })
    }

    fn listen_with(
        format: Format,
        (first, unbegun): (&'static str, u8),
        second: impl Fn(&Signals) + Send + 'static,
    ) -> Result<Self, Fault> {
        let stop = Self::default();
        let signals = Arc::clone(&stop.0);
        let ignores_hangup = ignores_hangup();
        ctrlc::set_handler(move || match signals.ask(Instant::now()) {
            Asks::ToDrain if signals.begun.load(Ordering::SeqCst) => {
                let second = match signals.only_drains.load(Ordering::SeqCst) {
                    true => "",
                    false => " (a second Ctrl-C or signal stops at once)",
                };
                let first = match signals.ends_with_checkpoint.load(Ordering::SeqCst) {
                    _ if matches!(*lock(&signals.saving), SaveState::Begun) => SAVING_STOPS,
                    _ if signals.leaves.load(Ordering::SeqCst) => LEAVES,
                    true => CHECKPOINT_STOPS,
                    false => first,
                };
                say(format, &format!("stopping: {first}{second}"));
            }
            Asks::ToDrain => {
                say(format, "stopping: nothing has begun yet");
                if !signals.begins_within(TO_BEGIN) {
                    std::process::exit(i32::from(unbegun));
                }
            }
            Asks::Nothing => {}
            Asks::ToStop => second(&signals),
        })
        .map_err(|e| match e {
            ctrlc::Error::System(e) => Fault::no_thread("the thread that listens to signals", e),
            e => Fault::external("cannot listen to signals").because(e),
        })?;
        if ignores_hangup {
            // SAFETY: no handler runs, since the signal is ignored from here on; `nohup` had set the same before `exec`.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        }
        Ok(stop)
    }

    /// From here on there is something to drain: the first signal does not end the program by itself.
    pub(crate) fn has_begun(&self) {
        self.0.begun.store(true, Ordering::SeqCst);
    }

    /// Sets whether the run of a job ends with a checkpoint, as the line at the first signal says.
    pub(crate) fn ends_with_checkpoint(&self, yes: bool) {
        self.0.ends_with_checkpoint.store(yes, Ordering::SeqCst);
    }

    /// The run goes on without this process, as the line at the first signal says.
    pub(crate) fn leaves(&self) {
        self.0.leaves.store(true, Ordering::SeqCst);
    }

    /// After this call a second signal does not stop the program at once. `launch` needs this for its children: to drain, it signals every
    /// child, perhaps a second time, and to stop children at once it sends SIGKILL.
    pub(crate) fn only_drains(&self) {
        self.0.only_drains.store(true, Ordering::SeqCst);
    }

    /// As [`has_begun`](Self::has_begun), unless a signal has come before.
    ///
    /// # Errors
    /// A fault of the kind [`FaultKind::Drained`]: the program is to end.
    pub(crate) fn begin(&self) -> Result<(), Fault> {
        if self.asked() {
            return Err(Fault::external("stopped before the command had begun").kind(FaultKind::Drained));
        }
        self.has_begun();
        Ok(())
    }

    /// Set when the first signal has come.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.drain)
    }

    /// Whether the first signal has come.
    pub(crate) fn asked(&self) -> bool {
        self.0.drain.load(Ordering::SeqCst)
    }

    /// Whether the second signal has come.
    pub(crate) fn at_once(&self) -> bool {
        self.0.at_once.load(Ordering::SeqCst)
    }

    /// Runs `save`. If a second signal comes during or after it, the handler says whether the model is saved.
    pub(crate) fn while_saving<T>(&self, save: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        *lock(&self.0.saving) = SaveState::Begun;
        let saved = save()?;
        *lock(&self.0.saving) = SaveState::Done;
        Ok(saved)
    }
}

impl Signals {
    #[allow(clippy::disallowed_methods, reason = "the thread of the signal handler may sleep")]
    fn begins_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.begun.load(Ordering::SeqCst) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.begun.load(Ordering::SeqCst)
    }

    fn ask(&self, now: Instant) -> Asks {
        match *lock(&self.first).get_or_insert(now) {
            first if first == now && !self.drain.swap(true, Ordering::SeqCst) => Asks::ToDrain,
            first if now.duration_since(first) < ONE_SIGNAL || self.only_drains.load(Ordering::SeqCst) => Asks::Nothing,
            _ => {
                self.at_once.store(true, Ordering::SeqCst);
                Asks::ToStop
            }
        }
    }
}

/// Prints a line for people. Does not wait if standard error is not read, because the handler must be ready for the next signal.
fn say(format: Format, line: &str) {
    let (line, (said, until_said)) = (line.to_owned(), channel());
    let print = move || {
        match format {
            // A terminal shows ^C at the beginning of the line.
            Format::Text => out::eprint_or_drop(format_args!("\n{line}")),
            Format::Json => tracing::warn!("{line}"),
        }
        let _ = said.send(());
    };
    if std::thread::Builder::new().name("say".into()).spawn(print).is_ok() {
        let _ = until_said.recv_timeout(SAYING);
    }
}

/// Whether the program was started with SIGHUP ignored, as `nohup` does: then the end of the terminal does not end it.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_signals(&status).is_some_and(|ignored| ignored & 1 << (libc::SIGHUP - 1) != 0)
}

/// The signals that a process ignores, from its /proc/PID/status: bit `n - 1` for signal `n`.
fn ignored_signals(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_a_moment_of_the_first_are_one() {
        let (signals, start) = (Signals::default(), Instant::now());
        let ask = |millis| signals.ask(start + Duration::from_millis(millis));
        assert_eq!([ask(0), ask(0), ask(499)], [Asks::ToDrain, Asks::Nothing, Asks::Nothing]);
        assert!(!signals.at_once.load(Ordering::SeqCst));
        assert_eq!(ask(500), Asks::ToStop);
        assert!(signals.at_once.load(Ordering::SeqCst));
    }

    #[test]
    fn a_child_of_launch_is_asked_to_drain_once_and_never_to_stop() {
        let (signals, start) = (Signals::default(), Instant::now());
        signals.only_drains.store(true, Ordering::SeqCst);
        let ask = |seconds| signals.ask(start + Duration::from_secs(seconds));
        assert_eq!([ask(0), ask(5), ask(50)], [Asks::ToDrain, Asks::Nothing, Asks::Nothing]);
        assert!(!signals.at_once.load(Ordering::SeqCst));
    }

    #[test]
    fn ignored_signals_are_read_from_proc() {
        assert_eq!(ignored_signals("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"), Some(0x1001));
        assert_eq!(ignored_signals("Name:\tx\n"), None);
    }
}
