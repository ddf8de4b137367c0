//! The progress of an evaluation or a prediction: a live line on a terminal, otherwise a log line every ten seconds, as in a training.

use std::time::{Duration, Instant};

use crate::actors::counted;
use crate::pipelines::ScoredRows;
use indicatif::ProgressBar;

use crate::logs::Logs;
use crate::out;
use crate::progress::{EVERY, clock, fit, line_width, live_line, percent, short};
use crate::rate::Rate;
use crate::time_left::TimeLeft;

/// Shows on a terminal what a command does, such as `loading the model`, until it is dropped.
pub(crate) struct Doing(Option<ProgressBar>);

impl Doing {
    pub(crate) fn show(what: &str, logs: &Logs) -> Self {
        let bar = live_line(logs);
        if let Some(bar) = &bar {
            bar.set_message(fit(&[what.to_owned()], line_width()));
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        clear(self.0.as_ref());
    }
}

/// How often the line of [`Doing`] moves.
const TICK: Duration = Duration::from_millis(250);

fn clear(bar: Option<&ProgressBar>) {
    if let Some(bar) = bar {
        out::over_progress(None);
        bar.finish_and_clear();
    }
}

/// Shows the progress of rows that are scored. Dropping it clears the live line.
pub(crate) struct ScoringProgress {
    /// What the run does, such as `evaluating`.
    doing: &'static str,
    bar: Option<ProgressBar>,
    logged: Instant,
    rate: Rate,
    left: TimeLeft,
}

impl ScoringProgress {
    pub(crate) fn new(doing: &'static str, logs: &Logs) -> Self {
        let (bar, logged) = (live_line(logs), Instant::now());
        Self { doing, bar, logged, rate: Rate::default(), left: TimeLeft::default() }
    }

    /// Shows rows, rate, and if it is known how many rows there are, percent and time left. Cheap if it is called often: it asks for
    /// `scored` twice a second.
    pub(crate) fn show(&mut self, scored: impl FnOnce() -> ScoredRows) {
        if !self.rate.is_due() {
            return;
        }
        let ScoredRows { rows, share } = scored();
        self.rate.measure(rows);
        if let Some(share) = share.filter(|share| *share > 0.0) {
            self.left.begins_at(share);
        }
        let left = share.and_then(|share| self.left.at(share));
        match &self.bar {
            Some(bar) => {
                bar.set_message(fit(&parts(rows, share, left, self.rate.per_second()), line_width()));
                bar.tick();
            }
            None if self.logged.elapsed() >= EVERY => {
                self.logged = Instant::now();
                tracing::info!(
                    percent = share.map(percent),
                    seconds_left = left.map(|left| left.as_secs()),
                    rows,
                    rows_per_second = self.rate.per_second() as u64,
                    "{}",
                    self.doing
                );
            }
            None => {}
        }
    }
}

impl Drop for ScoringProgress {
    fn drop(&mut self) {
        clear(self.bar.as_ref());
    }
}

/// The parts of a line, the most important ones first.
fn parts(rows: u64, share: Option<f64>, left: Option<Duration>, rate: f64) -> Vec<String> {
    let share = share.map(|share| format!("{}%", percent(share)));
    let left = left.map(|left| format!("{} left", clock(left)));
    let parts = share.into_iter().chain(left);
    parts.chain([format!("{}/s", short(rate)), counted(rows, "row")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_share_and_the_time_that_is_left_if_the_rows_are_known() {
        let line = |share, left| parts(45_840, share, left, 1234.0).join("  ");
        assert_eq!(line(Some(0.426), Some(Duration::from_secs(754))), "42%  12:34 left  1.23k/s  45,840 rows");
        assert_eq!(line(None, None), "1.23k/s  45,840 rows");
    }
}
