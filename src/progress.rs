//! The progress of a training: a live line on a terminal, otherwise a log line every ten seconds.

use std::time::{Duration, Instant};

use crate::actors::counted;
use crate::pipelines::{Analysis, RunPosition, RunningTraining, Snapshot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::logs::Logs;
use crate::out;
use crate::rate::Rate;
use crate::time_left::TimeLeft;

/// Time between two log lines.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

/// Columns of the spinner before the line.
const SPINNER: usize = 2;

/// Shows the progress of a run.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    logged: Instant,
    rate: Rate,
    left: TimeLeft,
}

impl Progress {
    pub(crate) fn new(logs: &Logs) -> Self {
        Self { bar: live_line(logs), logged: Instant::now(), rate: Rate::default(), left: TimeLeft::default() }
    }

    /// Shows percent, epoch, time left, rate, logloss, AUC, and what limits the run.
    pub(crate) fn show(&mut self, running: &RunningTraining) {
        let logs = self.bar.is_none() && self.logged.elapsed() >= EVERY;
        if self.bar.is_none() && !logs && !self.rate.is_due() {
            return;
        }
        let (now, position, report) = (running.progress(), running.position(), running.run_report());
        let now = Snapshot { rows: report.all_trainers.rows, ..now };
        self.rate.measure(now.rows);
        self.left.follow(position.share, &report);
        let left = position.share.and_then(|share| self.left.at(share));
        match &self.bar {
            Some(bar) => {
                let (rate, analysis, evaluated) = (self.rate.per_second(), report.analysis, evaluated(running));
                let line = Line { now, position, left, rate, analysis, evaluated };
                bar.set_message(line.fit(line_width()));
                bar.tick();
            }
            None if logs => {
                self.logged = Instant::now();
                let analysis = report.analysis;
                tracing::info!(
                    percent = position.share.map(percent),
                    epoch = position.epoch,
                    of_epochs = position.epochs,
                    seconds_left = left.map(|left| left.as_secs()),
                    rows = now.rows,
                    rows_per_second = self.rate.per_second() as u64,
                    logloss = now.logloss,
                    auc = now.auc,
                    evaluated = evaluated(running),
                    "training; {analysis}"
                );
            }
            None => {}
        }
    }

    pub(crate) fn done(self) {
        if let Some(bar) = self.bar {
            out::over_progress(None);
            bar.finish_and_clear();
        }
    }
}

/// A line that is drawn again and again on the terminal, over which other lines are printed; `None` if standard error is no terminal, or
/// the options want no such line.
pub(crate) fn live_line(logs: &Logs) -> Option<ProgressBar> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if !logs.draws_progress() || bar.is_hidden() {
        return None;
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    out::over_progress(Some(bar.clone()));
    Some(bar)
}

/// The parts of a line of progress.
struct Line {
    now: Snapshot,
    position: RunPosition,
    left: Option<Duration>,
    rate: f64,
    analysis: Analysis,
    /// The newest evaluation while the model trains.
    evaluated: Option<String>,
}

/// The metric of the newest evaluation while the model trains, and its value: `AUC 0.7812`.
fn evaluated(running: &RunningTraining) -> Option<String> {
    let history = running.evaluations()?;
    let value = history.points.last()?.value(history.metric)?;
    Some(format!("{} {value:.4}", history.metric))
}

impl Line {
    /// As many parts as fit, the most important ones first.
    fn fit(&self, columns: usize) -> String {
        let Self { now, position: RunPosition { share, epoch, epochs, .. }, .. } = self;
        let mut parts = Vec::new();
        match share {
            Some(share) => parts.push(format!("{}%", percent(*share))),
            None => parts.push(counted(now.rows, "row")),
        }
        if *epochs > 1 {
            parts.push(format!("epoch {epoch}/{epochs}"));
        }
        if let Some(left) = self.left {
            parts.push(format!("{} left", clock(left)));
        }
        parts.push(format!("{}/s", short(self.rate)));
        parts.push(self.analysis.short());
        let logloss = if now.rows > 0 { format!("{:.4}", now.logloss) } else { "-".to_owned() };
        parts.push(format!("logloss {logloss}"));
        parts.push(format!("AUC {}", now.auc.map_or("-".into(), |auc| format!("{auc:.4}"))));
        parts.extend(self.evaluated.as_ref().map(|evaluated| format!("evaluated: {evaluated}")));
        let stall = self.analysis.stall_share.map(|share| format!("stalls {}%", percent(share)));
        parts.extend(stall);
        if share.is_some() {
            parts.push(counted(now.rows, "row"));
        }
        fit(&parts, columns)
    }
}

/// As many parts as fit, from the first on.
pub(crate) fn fit(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let space = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + space.len() + part.chars().count() > columns {
            break;
        }
        line.push_str(space);
        line.push_str(part);
    }
    line
}

pub(crate) fn percent(share: f64) -> u64 {
    (100.0 * share) as u64
}

/// `1:05` or `2:00:07`.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// A number with three digits: `987`, `1.23k`, `45.6M`.
pub(crate) fn short(n: f64) -> String {
    let (n, unit) = match n {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => return format!("{n:.0}"),
    };
    let decimals = if n < 10.0 { 2 } else { usize::from(n < 100.0) };
    format!("{n:.decimals$}{unit}")
}

/// Columns for the message of a live line.
pub(crate) fn line_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    let columns = size.ok().map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
    columns.unwrap_or(COLUMNS).saturating_sub(SPINNER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            now: Snapshot {
                seconds: 9.0,
                steps: 1,
                steps_of_predecessor: 0,
                rows: 45_840_617,
                rows_before: 0,
                logloss: 0.45678,
                auc: Some(0.79123),
                device_seconds: 0.0,
            },
            position: RunPosition { share: Some(0.426), epoch: 1, epochs: 3 },
            left: Some(Duration::from_secs(754)),
            rate: 1_234_567.0,
            analysis: Analysis { starting: true, stall_share: Some(0.62), ..Analysis::default() },
            evaluated: None,
        }
    }

    #[test]
    fn a_line_has_what_fits_and_40_columns_are_enough_for_percent_epoch_and_time_left() {
        assert_eq!(line().fit(38), "42%  epoch 1/3  12:34 left  1.23M/s");
        let wide =
            "42%  epoch 1/3  12:34 left  1.23M/s  starting  logloss 0.4568  AUC 0.7912  stalls 62%  45,840,617 rows";
        assert_eq!(line().fit(200), wide);
        let evaluated = Line { evaluated: Some("AUC 0.7812".into()), ..line() };
        assert!(
            evaluated.fit(200).contains("  AUC 0.7912  evaluated: AUC 0.7812  stalls 62%"),
            "{}",
            evaluated.fit(200)
        );
        for columns in 0..120 {
            assert!(line().fit(columns).chars().count() <= columns);
        }
        let unknown = Line { position: RunPosition { share: None, epoch: 1, epochs: 1 }, left: None, ..line() };
        assert_eq!(unknown.fit(38), "45,840,617 rows  1.23M/s  starting");
    }

    #[test]
    fn numbers_and_times_are_short() {
        assert_eq!(
            [0.0, 987.4, 1_234.0, 45_600.0, 1.5e8, 2e9].map(short),
            ["0", "987", "1.23k", "45.6k", "150M", "2.00G"]
        );
        assert_eq!([5, 65, 7_207].map(|s| clock(Duration::from_secs(s))), ["0:05", "1:05", "2:00:07"]);
    }
}
