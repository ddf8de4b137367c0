//! How far a source has read: its epoch, and whether it reached the end of its rows. The source that records it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use forebay_actors::{Fault, Source, StageCx};
use forebay_connectors::Rows;

use super::own_rows::OwnRows;

/// How far a source has read. Clones share it.
///
/// If a drain comes after the last rows were read and before the source was asked for more, the end counts as not reached.
#[derive(Clone, Default)]
pub(crate) struct SourceProgress(Arc<Inner>);

#[derive(Default)]
struct Inner {
    epoch: AtomicU32,
    reached_end: AtomicBool,
    /// Rows of all epochs, known or estimated; 0 if neither.
    total_rows: AtomicU64,
}

impl SourceProgress {
    /// The epoch of the last rows that were read, from 0.
    pub(crate) fn epoch(&self) -> u32 {
        self.0.epoch.load(Ordering::SeqCst)
    }

    /// Rows of all epochs, if the source knows or has an estimate.
    pub(crate) fn total_rows(&self) -> Option<u64> {
        Some(self.0.total_rows.load(Ordering::SeqCst)).filter(|&rows| rows > 0)
    }

    /// Whether the source said that there are no more rows.
    pub(crate) fn reached_end(&self) -> bool {
        self.0.reached_end.load(Ordering::SeqCst)
    }
}

/// A source that records how far it has read.
pub(crate) struct Watched<S> {
    pub(crate) source: S,
    pub(crate) progress: SourceProgress,
    /// `None`: a source of Forebay.
    pub(crate) own: Option<OwnRows>,
}

impl<S: Source<Out = Rows>> Watched<S> {
    fn note_total(&self) {
        self.progress.0.total_rows.store(self.source.total_rows().unwrap_or(0), Ordering::SeqCst);
    }
}

impl<S: Source<Out = Rows>> Source for Watched<S> {
    type Out = Rows;

    fn describe(&self) -> String {
        let described = self.source.describe();
        match &self.own {
            Some(own) => own.describe(described),
            None => described,
        }
    }

    fn total_rows(&self) -> Option<u64> {
        self.source.total_rows()
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.source.open(cx).await?;
        self.note_total();
        Ok(())
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        let rows = match &self.own {
            Some(own) => {
                let called = own.name_or(|| self.source.describe());
                own.checked(&called, self.source.next(cx)).await?
            }
            None => self.source.next(cx).await?,
        };
        self.note_total();
        match &rows {
            Some(rows) => self.progress.0.epoch.store(rows.lineage.epoch, Ordering::SeqCst),
            None => self.progress.0.reached_end.store(true, Ordering::SeqCst),
        }
        Ok(rows)
    }
}
