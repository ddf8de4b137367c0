//! What each replica of a stage did when: its work on each batch, and what it waited for meanwhile.
//!
//! A replica keeps its first slices and its newest ones, so the memory is bounded however long the run takes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::batch::Lineage;

/// Slices that a replica keeps of its beginning, and of its end.
const FIRST: usize = 1024;
const NEWEST: usize = 3072;

/// Shorter waits are not kept.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Something that a replica did.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackSlice {
    /// When it began, since 1970.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// What it was.
    pub what: Doing,
}

/// What a slice shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    /// A source waited for its next batch, or a stage worked on one, until the batch and what it became were sent.
    Batch {
        /// Where the batch came from.
        lineage: Lineage,
        /// Its rows.
        rows: usize,
    },
    /// It waited for this within its work on a batch.
    Wait(String),
}

/// The slices of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The stage.
    pub stage: String,
    /// The number of the replica, from 0.
    pub replica: usize,
    /// In the order in which they ended.
    pub slices: Vec<TrackSlice>,
    /// Slices between the first and the newest ones that were not kept.
    pub left_out: u64,
}

/// Records the slices of one replica.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// A moment of both clocks: the one goes on evenly, the other is that of all machines.
    anchor: (Instant, Duration),
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    first: Vec<TrackSlice>,
    newest: VecDeque<TrackSlice>,
    left_out: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor: (Instant::now(), unix), kept: Mutex::default() }
    }
}

impl Recorder {
    /// Records the work on a batch that began at `began` and ends now.
    pub(crate) fn worked(&self, began: Instant, lineage: Lineage, rows: usize) {
        self.add(began, began.elapsed(), Doing::Batch { lineage, rows });
    }

    /// Records a wait that began at `began` and ends now.
    pub(crate) fn waited(&self, began: Instant, what: &str) {
        let took = began.elapsed();
        if took >= SHORTEST_WAIT {
            self.add(began, took, Doing::Wait(what.to_owned()));
        }
    }

    fn add(&self, began: Instant, took: Duration, what: Doing) {
        let (instant, unix) = self.anchor;
        let began = unix + began.saturating_duration_since(instant);
        self.kept().add(TrackSlice { began, took, what });
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was kept.
    pub(crate) fn track(&self, stage: &str, replica: usize) -> Track {
        let kept = self.kept();
        let slices = kept.first.iter().chain(&kept.newest).cloned().collect();
        Track { stage: stage.to_owned(), replica, slices, left_out: kept.left_out }
    }
}

impl Kept {
    fn add(&mut self, slice: TrackSlice) {
        if self.first.len() < FIRST {
            return self.first.push(slice);
        }
        if self.newest.len() == NEWEST {
            self.newest.pop_front();
            self.left_out += 1;
        }
        self.newest.push_back(slice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_newest_slices_are_kept() {
        let recorder = Recorder::default();
        let began = Instant::now();
        for seq in 0..10_000 {
            recorder.worked(began, Lineage { seq, ..Lineage::default() }, 5);
        }
        let track = recorder.track("parse", 2);
        let seqs: Vec<u64> = track
            .slices
            .iter()
            .map(|slice| match &slice.what {
                Doing::Batch { lineage, rows: 5 } => lineage.seq,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seqs, (0..1024).chain(10_000 - 3072..10_000).collect::<Vec<_>>());
        assert_eq!((track.stage.as_str(), track.replica, track.left_out), ("parse", 2, 10_000 - 4096));
    }

    #[test]
    fn a_wait_that_is_over_at_once_is_none() {
        let recorder = Recorder::default();
        recorder.waited(Instant::now(), "store");
        assert!(recorder.track("read", 0).slices.is_empty());
        recorder.waited(Instant::now() - Duration::from_secs(1), "store");
        let slices = recorder.track("read", 0).slices;
        assert!(slices.len() == 1 && slices[0].took >= Duration::from_secs(1), "{slices:?}");
        assert_eq!(slices[0].what, Doing::Wait("store".into()));
    }
}
