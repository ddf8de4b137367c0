//! The speed of a run in rows per second.

use std::time::{Duration, Instant};

/// Time between two measurements.
const MEASURED_EVERY: Duration = Duration::from_millis(500);

/// Rows per second, as a moving average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    /// The time and the rows of the last measurement: a resumed run does not begin at 0.
    last: Option<(Instant, u64)>,
    per_second: f64,
}

impl Rate {
    /// Whether the rate is half a second old, or was never measured.
    pub(crate) fn is_due(&self) -> bool {
        self.last.is_none_or(|(since, _)| since.elapsed() >= MEASURED_EVERY)
    }

    /// Updates the rate if it is due.
    pub(crate) fn measure(&mut self, rows: u64) {
        if !self.is_due() {
            return;
        }
        if let Some((since, before)) = self.last {
            let rate = rows.saturating_sub(before) as f64 / since.elapsed().as_secs_f64();
            self.per_second = if self.per_second == 0.0 { rate } else { 0.7 * self.per_second + 0.3 * rate };
        }
        self.last = Some((Instant::now(), rows));
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: the rows of the checkpoint were taken for rows of the first half second.
    #[test]
    fn the_rate_of_a_resumed_run_begins_with_its_own_rows() {
        let mut rate = Rate::default();
        rate.measure(45_000_000);
        assert_eq!(rate.per_second(), 0.0);
        rate.last = rate.last.map(|(since, rows)| (since.checked_sub(Duration::from_secs(1)).unwrap(), rows));
        rate.measure(45_000_100);
        assert!((1.0..=100.0).contains(&rate.per_second()), "{}", rate.per_second());
    }
}
