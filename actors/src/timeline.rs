//! The timelines of the replicas and services: the work of each replica on each batch with its waits, and the calls that each service
//! answered.
//!
//! A replica keeps its first slices and its newest ones, so the memory is bounded however long the run takes. An [`Observer`] gets all
//! of them while the pipeline runs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::batch::{Batch, BatchName, Lineage};
use crate::lock::lock;

/// Slices that a replica keeps of its beginning, and of its end.
const FIRST: usize = 1024;
const NEWEST: usize = 3072;

/// Shorter waits are not kept.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// A part of a replica's time.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackSlice {
    /// When it began, since 1970.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// What the replica did.
    pub what: Doing,
}

/// The content of a slice.
#[derive(Clone, Debug, PartialEq)]
pub enum Doing {
    /// A source waited for its next batch, or a stage worked on one, until the resulting batches were sent.
    Batch {
        /// Where the batch came from.
        lineage: Lineage,
        /// Rows of the batch.
        rows: usize,
        /// Its name in its run, if it is a part of a window.
        name: Option<BatchName>,
    },
    /// A wait for this within the work on a batch.
    Wait(String),
    /// A service answered a call.
    Call {
        /// The name of the call.
        name: String,
        /// The number of items, for instance keys.
        items: u64,
    },
}

/// The slices of one replica, or of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The stage, or the service.
    pub stage: String,
    /// The number of the replica, from 0.
    pub replica: usize,
    /// In the order in which they ended.
    pub slices: Vec<TrackSlice>,
    /// Slices between the first and the newest ones that were not kept.
    pub left_out: u64,
}

/// The work of a replica on one batch, as an [`Observer`] gets it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The stage.
    pub stage: Arc<str>,
    /// The number of the replica, from 0.
    pub replica: usize,
    /// Whether the stage is the source.
    pub is_source: bool,
    /// The name of the batch.
    pub name: BatchName,
    /// The work on the batch.
    pub work: TrackSlice,
    /// The waits within the work. A source also waits before it has the batch.
    pub waits: Vec<TrackSlice>,
    /// The batches that the stage made of rows of a window within the work, each with the time at which it was sent, since 1970.
    pub made: Vec<(BatchName, Duration)>,
}

/// Receives the slices of the replicas of a pipeline while it runs.
pub trait Observer: Send + Sync {
    /// A replica has worked on a batch that has a name. Called on the thread of the stage: it must not wait.
    fn worked(&self, work: Observed);
}

/// How often the clocks are read, to find two readings close together.
const READINGS: usize = 3;

/// Who observes a replica.
pub(crate) struct Watched {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) stage: Arc<str>,
    pub(crate) replica: usize,
}

/// Records the slices of one replica.
pub(crate) struct Recorder {
    /// One moment on both clocks: the monotonic one, and the wall clock that all machines share.
    anchor: (Instant, Duration),
    kept: Mutex<Kept>,
    watched: Option<(Watched, Mutex<CurrentBatch>)>,
}

/// Most waits within the work on one batch that an observer gets.
const MOST_WAITS: usize = 64;

/// The data for an observer at the end of the work on the batch.
#[derive(Default)]
struct CurrentBatch {
    /// The name of the batch. `None` in a source, which does not have it yet.
    name: Option<BatchName>,
    waits: Vec<TrackSlice>,
    made: Vec<(BatchName, Duration)>,
}

#[derive(Debug, Default)]
struct Kept {
    first: Vec<TrackSlice>,
    newest: VecDeque<TrackSlice>,
    left_out: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { anchor: both_clocks(), kept: Mutex::default(), watched: None }
    }
}

/// One moment on both clocks. On a busy machine a thread may lose its core between the two readings, which would shift the times of its
/// replica by milliseconds. So it reads several times and takes the closest pair.
fn both_clocks() -> (Instant, Duration) {
    let read = || {
        let before = Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (before.elapsed(), before, unix)
    };
    let (_, instant, unix) = (0..READINGS).map(|_| read()).min().expect("there is one");
    (instant, unix)
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("kept", &self.kept).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that also tells an observer.
    pub(crate) fn watched(watched: Option<Watched>) -> Self {
        Self { watched: watched.map(|watched| (watched, Mutex::default())), ..Self::default() }
    }

    /// The replica takes a batch.
    pub(crate) fn takes(&self, batch: &impl Batch) {
        if let Some((_, current)) = &self.watched {
            *lock(current) = CurrentBatch { name: batch.name(), ..CurrentBatch::default() };
        }
    }

    /// The name of a batch that the replica sends, if it has made it of rows of a window.
    pub(crate) fn makes(&self, batch: &impl Batch) -> Option<BatchName> {
        let (_, current) = self.watched.as_ref()?;
        let is_cut = lock(current).name.is_some_and(|name| name.index.is_none());
        batch.name().filter(|name| is_cut && name.index.is_some())
    }

    /// A batch that [`makes`](Self::makes) named was sent.
    pub(crate) fn made(&self, name: BatchName) {
        if let Some((_, current)) = &self.watched {
            let (instant, unix) = self.anchor;
            lock(current).made.push((name, unix + instant.elapsed()));
        }
    }

    /// Records the work on a batch that began at `began` and ends with this call. `name`: the name of the batch.
    pub(crate) fn worked(&self, began: Instant, lineage: Lineage, rows: usize, name: Option<BatchName>) {
        let work = self.slice(began, began.elapsed(), Doing::Batch { lineage, rows, name });
        if let Some((Watched { observer, stage, replica }, current)) = &self.watched {
            let CurrentBatch { name: taken, waits, made } = std::mem::take(&mut *lock(current));
            if let Some(name) = taken.or(name) {
                let (stage, replica, is_source) = (Arc::clone(stage), *replica, taken.is_none());
                observer.worked(Observed { stage, replica, is_source, name, work: work.clone(), waits, made });
            }
        }
        lock(&self.kept).add(work);
    }

    /// Records a wait that began at `began` and ends with this call.
    pub(crate) fn waited(&self, began: Instant, what: &str) {
        let took = began.elapsed();
        if took >= SHORTEST_WAIT {
            let wait = self.slice(began, took, Doing::Wait(what.to_owned()));
            if let Some((_, current)) = &self.watched {
                let mut current = lock(current);
                if current.waits.len() < MOST_WAITS {
                    current.waits.push(wait.clone());
                }
            }
            lock(&self.kept).add(wait);
        }
    }

    /// Records a call that a service began at `began` and has answered.
    pub(crate) fn called(&self, began: Instant, name: &str, items: usize) {
        let what = Doing::Call { name: name.to_owned(), items: items as u64 };
        lock(&self.kept).add(self.slice(began, began.elapsed(), what));
    }

    fn slice(&self, began: Instant, took: Duration, what: Doing) -> TrackSlice {
        let (instant, unix) = self.anchor;
        TrackSlice { began: unix + began.saturating_duration_since(instant), took, what }
    }

    /// The kept slices.
    pub(crate) fn track(&self, stage: &str, replica: usize) -> Track {
        let kept = lock(&self.kept);
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
            recorder.worked(began, Lineage { seq, ..Lineage::default() }, 5, None);
        }
        let track = recorder.track("parse", 2);
        let seqs: Vec<u64> = track
            .slices
            .iter()
            .map(|slice| match &slice.what {
                Doing::Batch { lineage, rows: 5, .. } => lineage.seq,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seqs, (0..1024).chain(10_000 - 3072..10_000).collect::<Vec<_>>());
        assert_eq!((track.stage.as_str(), track.replica, track.left_out), ("parse", 2, 10_000 - 4096));
    }

    #[test]
    fn a_wait_without_duration_makes_no_slice() {
        let recorder = Recorder::default();
        // No time has passed since then, however late this thread goes on.
        recorder.waited(Instant::now() + Duration::from_secs(3600), "store");
        assert!(recorder.track("read", 0).slices.is_empty());
        recorder.waited(Instant::now() - Duration::from_secs(1), "store");
        let slices = recorder.track("read", 0).slices;
        assert!(slices.len() == 1 && slices[0].took >= Duration::from_secs(1), "{slices:?}");
        assert_eq!(slices[0].what, Doing::Wait("store".into()));
    }
}
