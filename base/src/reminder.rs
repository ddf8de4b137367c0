//! When something that lasts is reported again: soon at first, then less and less often.

use std::time::Duration;

/// The longest time between two reports.
const LONGEST_PAUSE: Duration = Duration::from_secs(1800);

/// How long something has lasted at its next report: `first`, then each time twice as long, but at most half an hour after the report
/// before. `last`: how long it had lasted at that report, if there was one.
pub fn next_reminder(first: Duration, last: Option<Duration>) -> Duration {
    last.map_or(first, |last| last + last.min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_double_up_to_half_an_hour() {
        let all = std::iter::successors(Some(next_reminder(Duration::from_secs(60), None)), |&last| {
            Some(next_reminder(Duration::from_secs(60), Some(last)))
        });
        let seconds: Vec<_> = all.map(|at| at.as_secs()).take(8).collect();
        assert_eq!(seconds, [60, 120, 240, 480, 960, 1920, 3720, 5520]);
    }
}
