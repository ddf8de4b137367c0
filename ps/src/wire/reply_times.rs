//! How long a ps process takes to answer the pulls of this process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The replies of one process so far.
#[derive(Debug, Default)]
pub(crate) struct ReplyTimes {
    count: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds of the shortest round trip of a small request; 0 if none was measured.
    round_trip: AtomicU64,
}

/// How a ps process has answered the pulls of a client so far.
#[derive(Clone, Debug, PartialEq)]
pub struct PsReplies {
    /// The process, for instance `ps 1`.
    pub ps: String,
    /// How many pulls it has answered.
    pub count: u64,
    /// The total time from a pull to its answer. Several pulls may be under way at once: then each counts.
    pub total: Duration,
    /// The round trip of a small request; zero if it was not measured.
    pub round_trip: Duration,
}

impl ReplyTimes {
    pub(crate) fn add(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn measured(&self, round_trip: Duration) {
        self.round_trip.store(u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn of(&self, rank: usize) -> PsReplies {
        let time = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        let (total, round_trip) = (time(&self.nanos), time(&self.round_trip));
        PsReplies { ps: format!("ps {rank}"), count: self.count.load(Relaxed), total, round_trip }
    }
}
