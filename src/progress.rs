//! The progress of a training: a live line on a terminal, otherwise a log line every ten seconds.

use std::time::{Duration, Instant};

use crate::actors::{Report, commas};
use crate::pipelines::Snapshot;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::logs::Logs;

/// Time between two log lines.
const EVERY: Duration = Duration::from_secs(10);

/// Shows the progress of a run.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    logged: Instant,
    last: (Instant, u64),
    rate: f64,
}

impl Progress {
    pub(crate) fn new(logs: &Logs) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let live = logs.draws_progress() && !bar.is_hidden();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}") {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self { bar: live.then_some(bar), logged: now, last: (now, 0), rate: 0.0 }
    }

    /// Shows rows, rate, logloss, AUC, and the busiest stage.
    pub(crate) fn show(&mut self, now: &Snapshot, report: &Report) {
        let (since, rows) = self.last;
        let seconds = since.elapsed().as_secs_f64();
        if seconds >= 0.5 {
            let rate = (now.rows - rows) as f64 / seconds;
            self.rate = if self.rate == 0.0 { rate } else { 0.7 * self.rate + 0.3 * rate };
            self.last = (Instant::now(), now.rows);
        }
        let bottleneck = report
            .bottleneck()
            .map_or(String::new(), |stage| format!("{} busy {:.0}%", stage.name, 100.0 * stage.busy_share()));
        match &self.bar {
            Some(bar) => {
                let auc = now.auc.map_or("-".into(), |auc| format!("{auc:.4}"));
                bar.set_message(format!(
                    "{} rows  {}/s  logloss {:.4}  AUC {auc}  {bottleneck}",
                    commas(now.rows),
                    commas(self.rate as u64),
                    now.logloss
                ));
                bar.tick();
            }
            None if self.logged.elapsed() >= EVERY => {
                self.logged = Instant::now();
                tracing::info!(
                    rows = now.rows,
                    rows_per_second = self.rate as u64,
                    logloss = now.logloss,
                    auc = now.auc,
                    bottleneck,
                    "training"
                );
            }
            None => {}
        }
    }

    pub(crate) fn done(self) {
        if let Some(bar) = self.bar {
            bar.finish();
        }
    }
}
