//! The time that is left of a run, at its mean speed. The rows that a resumed run had trained on before do not count, nor does the time in
//! which it reads them again.

use std::time::{Duration, Instant};

use crate::pipelines::RunReport;

/// When the progress of a run was first known, and the share that was done then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeLeft {
    first: Option<(Instant, f64)>,
}

impl TimeLeft {
    /// Notes the share that is done, 0 to 1, at the first call at which the run has trained on rows of its own.
    pub(crate) fn follow(&mut self, share: Option<f64>, report: &RunReport) {
        if let Some(share) = share.filter(|_| report.all_trainers.rows > report.trained_before.rows) {
            self.begins_at(share);
        }
    }

    /// Notes the share that is done, at the first call.
    pub(crate) fn begins_at(&mut self, share: f64) {
        self.first.get_or_insert_with(|| (Instant::now(), share));
    }

    /// The time that is left when this share is done, at the mean speed since the first one.
    pub(crate) fn at(&self, share: f64) -> Option<Duration> {
        let (since, first) = self.first?;
        let done = share - first;
        let seconds = since.elapsed().as_secs_f64() * (1.0 - share) / done;
        (done > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_before_the_run_began_does_not_count() {
        let mut left = TimeLeft::default();
        assert_eq!(left.at(0.5), None);
        left.begins_at(0.9);
        left.begins_at(0.0);
        assert_eq!(left.at(0.9), None, "nothing is done yet");
        left.first = left.first.map(|(since, share)| (since.checked_sub(Duration::from_secs(10)).unwrap(), share));
        // A tenth of a tenth took 10 s.
        let seconds = left.at(0.91).unwrap().as_secs_f64();
        assert!((89.9..100.0).contains(&seconds), "{seconds}");
    }
}
