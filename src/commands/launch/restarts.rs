//! Limits the restarts of processes. A run that trains between its faults never reaches the limit; a run that cannot go on reaches the
//! limit soon.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::actors::counted;

/// A run that trains for this long after a restart has recovered: restarts are counted anew.
pub(super) const RECOVERED: Duration = Duration::from_secs(600);

/// Processes that end within this time of the first have one cause, which counts once.
const ONE_CAUSE: Duration = Duration::from_secs(5);

/// The restarts since the run last recovered.
pub(super) struct Restarts {
    most: u32,
    used: u32,
    /// When the last cause was counted, and the processes that it ended.
    cause: Option<(Instant, BTreeSet<String>)>,
    /// When a process was last started again.
    last: Option<Instant>,
    /// The first process that was started again, and why.
    first: Option<String>,
    /// The newest known progress of the run: its attempt, and the number of windows that are done.
    progress: Option<(u64, u64)>,
}

impl Restarts {
    pub(super) fn new(most: u32) -> Self {
        Self { most, used: 0, cause: None, last: None, first: None, progress: None }
    }

    /// Counts a restart of the process `name`, which ended as `ended` says. Returns the text for the log.
    ///
    /// # Errors
    /// Why the process is not started again.
    pub(super) fn count(&mut self, name: &str, ended: &str, now: Instant) -> Result<String, String> {
        let most = self.most;
        let cause = self.cause.as_mut().filter(|(since, _)| now.duration_since(*since) <= ONE_CAUSE);
        let is_new = cause.is_none_or(|(_, names)| !names.insert(name.to_owned()));
        if is_new && self.used == most {
            return Err(match &self.first {
                Some(first) => format!(
                    "{ended}; it is not started again, because the run has had {} (--restarts) and has not trained for \
                     {RECOVERED:?} after any of them; the first restart was because {first}",
                    counted(most, "restart")
                ),
                None => ended.to_owned(),
            });
        }
        if is_new {
            self.used += 1;
            self.cause = Some((now, BTreeSet::from([name.to_owned()])));
        }
        self.last = Some(now);
        self.first.get_or_insert_with(|| ended.to_owned());
        Ok(format!("restart {} of {most}", self.used))
    }

    /// Takes the progress of the run: (attempt, windows that are done).
    pub(super) fn sees(&mut self, progress: Option<(u64, u64)>, now: Instant) {
        let Some((attempt, done)) = progress else { return };
        let trains = self.progress.is_some_and(|(of, before)| of == attempt && done > before);
        self.progress = progress;
        if trains && self.last.is_some_and(|last| now.duration_since(last) >= RECOVERED) {
            *self = Self { progress, ..Self::new(self.most) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn a_run_that_cannot_go_on_uses_its_restarts_up_and_the_first_cause_is_named() {
        let (mut restarts, begun) = (Restarts::new(2), Instant::now());
        assert_eq!(restarts.count("ps 1", "ps 1 panicked", begun).unwrap(), "restart 1 of 2");
        assert_eq!(restarts.count("ps 1", "ps 1 panicked", later(begun, 1)).unwrap(), "restart 2 of 2");
        // The run is up for a long time, but makes no progress.
        (0..9).for_each(|at| restarts.sees(Some((7, 3)), later(begun, 300 * at)));
        let said = restarts.count("trainer 0", "trainer 0 was killed", later(begun, 4000)).unwrap_err();
        assert!(
            said.starts_with("trainer 0 was killed; it is not started again, because the run has had 2 restarts"),
            "{said}"
        );
        assert!(said.ends_with("for 600s after any of them; the first restart was because ps 1 panicked"), "{said}");
        let said = Restarts::new(0).count("ps 1", "ps 1 panicked", begun).unwrap_err();
        assert_eq!(said, "ps 1 panicked");
    }

    /// A bug: restarts were never counted anew, so a run of a week could have only ten.
    #[test]
    fn a_run_that_trains_for_ten_minutes_between_its_restarts_goes_on_for_ever() {
        let (mut restarts, begun) = (Restarts::new(2), Instant::now());
        for day in 0..30 {
            let at = later(begun, day * 86_400);
            restarts.count("reader 0", "reader 0 was killed", at).unwrap();
            assert_eq!(restarts.count("reader 0", "reader 0 was killed", later(at, 60)).unwrap(), "restart 2 of 2");
            // Each attempt begins with no window done.
            restarts.sees(Some((day, 0)), later(at, 61));
            restarts.sees(Some((day, 1)), later(at, 659));
            if day == 17 {
                assert!(restarts.count("reader 0", "reader 0 was killed", later(at, 659)).is_err(), "not yet");
            }
            restarts.sees(None, later(at, 661));
            restarts.sees(Some((day, 2)), later(at, 662));
        }
    }

    /// When a ps is lost, the others end with exit code 3.
    #[test]
    fn processes_that_end_for_one_cause_count_once() {
        let (mut restarts, begun) = (Restarts::new(2), Instant::now());
        for name in ["ps 1", "trainer 0", "reader 0"] {
            assert_eq!(restarts.count(name, "ended", later(begun, 4)).unwrap(), "restart 1 of 2", "{name}");
        }
        assert_eq!(restarts.count("ps 1", "ended", later(begun, 5)).unwrap(), "restart 2 of 2", "the same again");
        assert!(restarts.count("reader 0", "ended", later(begun, 11)).is_err(), "too late for that cause");
    }
}
