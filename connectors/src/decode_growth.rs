//! When a source starts more decode threads: while it waits for decoded rows most of the time, and splits wait for a thread.
//!
//! Then the later stages take decoded rows at once, so their cores are partly idle, and more threads can use them. A thread too many costs
//! nothing: it waits for splits.

use std::time::Duration;

/// The time between two decisions.
pub(crate) const EVERY: Duration = Duration::from_millis(250);

/// From this share of its time on, a source waits mostly for decoding.
const MOSTLY: f64 = 0.5;

/// Decides how many threads decode. It has no clock.
#[derive(Clone, Debug)]
pub(crate) struct DecodeGrowth {
    threads: usize,
    most: usize,
    /// Since the last decision: the time in all, and the part of it in which the source waited for decoded rows.
    time: Duration,
    waited: Duration,
}

impl DecodeGrowth {
    pub(crate) fn new(threads: usize, most: usize) -> Self {
        Self { threads, most: most.max(threads), time: Duration::ZERO, waited: Duration::ZERO }
    }

    /// Whether there may be more threads.
    pub(crate) fn may_grow(&self) -> bool {
        self.threads < self.most
    }

    /// Adds an interval of length `time`. The source waited for decoded rows for `waited` of it, and `queued` splits wait for a thread.
    /// Returns the number of threads to start.
    ///
    /// If the source waits for the share `w` of the time, the later stages could take 1 / (1 - `w`) times as many rows.
    pub(crate) fn observe(&mut self, time: Duration, waited: Duration, queued: usize) -> usize {
        self.time += time;
        self.waited += waited;
        if self.time < EVERY {
            return 0;
        }
        let share = self.waited.as_secs_f64() / self.time.as_secs_f64();
        (self.time, self.waited) = (Duration::ZERO, Duration::ZERO);
        if share < MOSTLY {
            return 0;
        }
        let wanted = (self.threads as f64 / (1.0 - share).max(1e-3)).ceil() as usize;
        // At most twice as many at once: the share says little about a rate that is far away.
        let more = wanted.min(2 * self.threads).min(self.most).saturating_sub(self.threads).min(queued);
        self.threads += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn threads_double_while_the_source_waits_for_decoding_and_splits_wait_for_a_thread() {
        let mut growth = DecodeGrowth::new(1, 6);
        assert_eq!(growth.observe(ms(100), ms(100), 9), 0, "too early to say");
        let started: Vec<usize> = (0..5).map(|_| growth.observe(ms(250), ms(249), 9)).collect();
        assert_eq!(started, [1, 2, 2, 0, 0]);
        assert!(!growth.may_grow());
        // No more than there are splits, and no more than what comes after them can take.
        assert_eq!(DecodeGrowth::new(4, 16).observe(ms(500), ms(499), 2), 2);
        assert_eq!(DecodeGrowth::new(8, 64).observe(ms(500), ms(250), 99), 8);
        assert_eq!(DecodeGrowth::new(4, 16).observe(ms(500), ms(499), 0), 0);
    }

    #[test]
    fn threads_stay_where_rows_are_decoded_in_time_or_their_number_is_pinned() {
        assert_eq!(DecodeGrowth::new(1, 16).observe(ms(500), ms(240), 9), 0);
        let mut pinned = DecodeGrowth::new(3, 1);
        assert_eq!((pinned.may_grow(), pinned.observe(ms(500), ms(500), 9)), (false, 0));
    }
}
