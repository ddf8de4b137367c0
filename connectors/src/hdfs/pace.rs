//! How fast reads are on average, and which read is therefore too slow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Averages over the reads of a cluster. The average time per byte counts one MiB more for each read, because of the latency.
#[derive(Debug, Default)]
pub(super) struct Pace {
    silence: Average,
    per_byte: Average,
}

/// An average in which old values fade; 0 before the first.
#[derive(Debug, Default)]
struct Average(AtomicU64);

impl Average {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, value: f64) {
        let before = self.get();
        // If two threads add at once, one of the two values may be lost.
        let after = if before == 0.0 { value } else { before + (value - before) / 16.0 };
        self.0.store(after.to_bits(), Ordering::Relaxed);
    }
}

impl Pace {
    const LATENCY: f64 = 1048576.0;

    /// A read of `bytes` bytes took `took`; its longest time without a byte was `silence`.
    pub(super) fn record(&self, bytes: u64, took: Duration, silence: Duration) {
        self.silence.add(silence.as_secs_f64());
        self.per_byte.add(took.as_secs_f64() / (bytes as f64 + Self::LATENCY));
    }

    /// Silence for this long means that a DataNode has stalled: eight times the average, within 0.1 and 5 s; 1 s at first.
    pub(super) fn silence(&self) -> Duration {
        match self.silence.get() {
            0.0 => Duration::from_secs(1),
            average => Duration::from_secs_f64((8.0 * average).clamp(0.1, 5.0)),
        }
    }

    /// A read of `bytes` bytes that takes this long is too slow though bytes come: eight times the average, at least 3 s.
    pub(super) fn slow(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64((8.0 * self.per_byte.get() * (bytes as f64 + Self::LATENCY)).clamp(3.0, 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_follows_the_pace_within_bounds() {
        let pace = Pace::default();
        assert_eq!(pace.silence(), Duration::from_secs(1));
        for _ in 0..200 {
            pace.record(1 << 20, Duration::from_millis(200), Duration::from_millis(20));
        }
        assert_eq!(pace.silence().as_millis(), 160);
        assert_eq!(pace.slow(1 << 20).as_millis(), 3000);
        assert_eq!(pace.slow(7 << 20).as_millis(), 6400);
        for _ in 0..200 {
            pace.record(1 << 20, Duration::from_micros(200), Duration::from_micros(20));
        }
        assert_eq!((pace.silence(), pace.slow(1)), (Duration::from_millis(100), Duration::from_secs(3)));
    }
}
