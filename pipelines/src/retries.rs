//! Repeats for a while an action that failed because of a disk or a store: the fault may pass.

use std::time::{Duration, Instant};

use forebay_actors::Fault;
use forebay_base::Backoff;

/// The time between the first two tries, and the longest time between later ones.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How often a wait asks whether it must end.
const TICK: Duration = Duration::from_millis(100);

/// The waits between tries to write or read something large, such as a model.
pub(crate) fn waits() -> Backoff {
    Backoff::equal_jitter(WAITS.0, WAITS.1)
}

/// How something is tried again after a fault that may pass.
pub struct Retries<'a> {
    /// The text of the warning before each further try: "the model is not saved yet".
    pub not_yet: &'a str,
    /// After this time no further try begins. Zero: one try.
    pub timeout: Duration,
    /// Whether a fault may pass.
    pub passes: &'a dyn Fn(&Fault) -> bool,
    /// Whether to stop trying. Called several times a second.
    pub gives_up: &'a dyn Fn() -> bool,
}

impl Retries<'_> {
    /// Calls `attempt`, and again after each fault that may pass, with longer and longer waits. Warns before each wait, but not again about
    /// the same fault. Blocks.
    ///
    /// # Errors
    /// The first fault that does not pass; the last fault, if the time is over or `gives_up` returns true.
    pub fn run<T>(&self, mut attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        let (begun, mut waits, mut before) = (Instant::now(), waits(), String::new());
        loop {
            let fault = match attempt() {
                Err(fault) if (self.passes)(&fault) => fault,
                ended => return ended,
            };
            let left = self.timeout.saturating_sub(begun.elapsed());
            if left.is_zero() || (self.gives_up)() {
                return Err(fault);
            }
            let text = fault.to_string();
            let why = if text == before { "the same fault" } else { text.as_str() };
            tracing::warn!("{}, trying again for {} s: {why}", self.not_yet, left.as_secs().max(1));
            before = text;
            let until = Instant::now() + waits.next_wait().min(left);
            while Instant::now() < until {
                if (self.gives_up)() {
                    return Err(fault);
                }
                pause(TICK);
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the caller's own thread may sleep: no stage runs on it")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use forebay_actors::Domain;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Tries something that fails `fails` times. Returns the number of tries, and how they ended.
    fn tried(timeout: Duration, fails: u32, fault: &Fault, gives_up: impl Fn(u32) -> bool) -> (u32, Result<(), Fault>) {
        let tries = Cell::new(0);
        let (passes, gives_up) = (|fault: &Fault| fault.domain == Domain::External, || gives_up(tries.get()));
        let retries = Retries { not_yet: "it is not done yet", timeout, passes: &passes, gives_up: &gives_up };
        let ended = retries.run(|| {
            tries.set(tries.get() + 1);
            if tries.get() > fails { Ok(()) } else { Err(fault.clone()) }
        });
        (tries.get(), ended)
    }

    #[test]
    fn a_fault_that_passes_costs_tries_and_no_other_is_tried_again() {
        let (away, wrong) = (Fault::external("the store cannot be reached"), Fault::user("no such folder"));
        let (tries, ended) = tried(HOUR, 1, &away, |_| false);
        assert!(tries == 2 && ended.is_ok(), "{ended:?}");
        let (tries, ended) = tried(HOUR, 9, &wrong, |_| false);
        assert_eq!((tries, ended.unwrap_err().to_string()), (1, "no such folder".to_owned()));
    }

    #[test]
    fn without_time_or_after_it_is_to_end_there_is_no_further_try() {
        let away = Fault::external("the store cannot be reached");
        let (tries, ended) = tried(Duration::ZERO, 9, &away, |_| false);
        assert_eq!((tries, ended.unwrap_err().to_string()), (1, "the store cannot be reached".to_owned()));
        let (tries, ended) = tried(HOUR, 9, &away, |tries| tries == 2);
        assert!(tries == 2 && ended.is_err(), "{ended:?}");
    }
}
