//! Ends a run that waits for rows and has no reader: a state machine without a clock and without IO.

use std::time::{Duration, Instant};

/// Warn about missing readers after this long, and again each time that this long has passed.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Counts the time in which windows are left and no reader is present.
#[derive(Debug, Default)]
pub(super) struct AbsentReaders {
    since: Option<Instant>,
    warned: Option<Instant>,
}

impl AbsentReaders {
    /// Call it a few times a second. `waits`: windows are left, and no reader is present. `left` describes these windows.
    /// Returns why the run fails, once no reader has been present for `timeout`.
    pub(super) fn check(&mut self, waits: bool, left: &str, timeout: Duration, now: Instant) -> Option<String> {
        if !waits {
            *self = Self::default();
            return None;
        }
        let absent = now.duration_since(*self.since.get_or_insert(now));
        if absent > timeout {
            return Some(format!(
                "there has been no reader for {:.0} s (placement.timeout_seconds), and {left}: see the logs of the readers",
                absent.as_secs_f64()
            ));
        }
        if absent > WARN_AFTER && self.warned.is_none_or(|warned| now.duration_since(warned) > WARN_AFTER) {
            self.warned = Some(now);
            tracing::warn!("the run waits: there has been no reader for {:.0} s, and {left}", absent.as_secs_f64());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_readers_fails_after_the_timeout_unless_one_comes() {
        let (mut absent, start, timeout) = (AbsentReaders::default(), Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(absent.check(true, "3 windows are left", timeout, at(0)), None);
        assert_eq!(absent.check(true, "3 windows are left", timeout, at(60)), None);
        assert_eq!(absent.check(false, "", timeout, at(61)), None, "a reader came");
        assert_eq!(absent.check(true, "2 windows are left", timeout, at(62)), None);
        assert_eq!(absent.check(true, "2 windows are left", timeout, at(122)), None);
        let why = absent.check(true, "2 windows are left", timeout, at(123)).unwrap();
        assert!(why.contains("no reader for 61 s (placement.timeout_seconds), and 2 windows are left"), "{why}");
    }

    #[test]
    fn it_warns_after_ten_seconds() {
        let (mut absent, start) = (AbsentReaders::default(), Instant::now());
        for (seconds, warned) in [(0, false), (10, false), (11, true)] {
            absent.check(true, "all", Duration::from_secs(60), start + Duration::from_secs(seconds));
            assert_eq!(absent.warned.is_some(), warned, "after {seconds} s");
        }
    }
}
