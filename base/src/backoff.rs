//! Waits between retries: exponential back-off with jitter, so that many clients do not come back at once.

use std::time::Duration;

use crate::random::{random_seed, unit_f64};

/// Waits whose bound doubles each time, up to a limit.
///
/// The two kinds of jitter are by M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
#[derive(Clone, Debug)]
pub struct Backoff {
    bound: Duration,
    limit: Duration,
    /// The part of the bound that is always waited.
    fixed: f64,
}

impl Backoff {
    /// Each wait is uniform between 0 and the bound. The first bound is `first`, the largest `limit`.
    pub fn full_jitter(first: Duration, limit: Duration) -> Self {
        Self { bound: first.min(limit), limit, fixed: 0.0 }
    }

    /// Each wait is uniform between half the bound and the bound.
    pub fn equal_jitter(first: Duration, limit: Duration) -> Self {
        Self { fixed: 0.5, ..Self::full_jitter(first, limit) }
    }

    /// How long to wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(self.limit);
        bound.mul_f64(self.fixed + (1.0 - self.fixed) * unit_f64(random_seed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 5] = [100, 200, 350, 350, 350];

    fn waits(make: fn(Duration, Duration) -> Backoff) -> [Duration; 5] {
        let mut backoff = make(Duration::from_millis(100), Duration::from_millis(350));
        [(); 5].map(|()| backoff.next_wait())
    }

    #[test]
    fn the_bound_doubles_up_to_the_limit() {
        for (wait, bound) in waits(Backoff::full_jitter).into_iter().zip(BOUNDS.map(Duration::from_millis)) {
            assert!(wait <= bound, "{wait:?} of {bound:?}");
        }
    }

    #[test]
    fn equal_jitter_waits_at_least_half_the_bound() {
        for (wait, bound) in waits(Backoff::equal_jitter).into_iter().zip(BOUNDS.map(Duration::from_millis)) {
            assert!(bound / 2 <= wait && wait <= bound, "{wait:?} of {bound:?}");
        }
    }

    #[test]
    fn waits_differ() {
        assert_ne!(waits(Backoff::full_jitter), waits(Backoff::full_jitter));
    }

    #[test]
    fn a_first_bound_above_the_limit_is_the_limit() {
        let second = Duration::from_secs(1);
        assert!(Backoff::equal_jitter(second * 9, second).next_wait() <= second);
    }
}
