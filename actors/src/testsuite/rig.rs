//! The source and the sink around the stage under test. The source may fail or wait; the sink may be slow, fail or
//! block.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::batch::{Batch, Lineage};
use crate::context::StageCx;
use crate::fault::Fault;
use crate::link::Capacity;
use crate::lock::lock;
use crate::run::{Outcome, Running};
use crate::stage::{Sink, Source};

/// A run that takes longer than this hangs.
pub(super) const HANG: Duration = Duration::from_secs(60);

/// The comparable properties of a batch that left the stage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Left {
    pub(super) rows: usize,
    pub(super) lineage: Lineage,
}

/// How the source, the links and the sink behave.
pub(super) struct Rig {
    pub(super) capacity: Capacity,
    /// Batches after which the source fails.
    pub(super) source_fails: Option<usize>,
    /// Batches after which the source waits for a drain.
    pub(super) source_waits: Option<usize>,
    pub(super) sink: Mode,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    Takes,
    Slow,
    Fails,
    Clogs,
}

pub(super) const PLAIN: fn() -> Rig =
    || Rig { capacity: Capacity::items(16), source_fails: None, source_waits: None, sink: Mode::Takes };

/// The outcome, or the report of a run that hangs.
pub(super) fn ended(running: Running) -> Result<Outcome, String> {
    let control = running.control();
    let (done, outcome) = channel();
    std::thread::spawn(move || {
        let _ = done.send(running.wait());
    });
    outcome.recv_timeout(HANG).map_err(|_| {
        control.kill(Fault::internal("it hangs"));
        format!("the run hangs:\n{}", control.snapshot())
    })
}

pub(super) struct Replay<T> {
    pub(super) batches: VecDeque<T>,
    pub(super) sent: usize,
    pub(super) fails: Option<usize>,
    pub(super) waits: Option<usize>,
}

impl<T: Batch> Source for Replay<T> {
    type Out = T;

    fn describe(&self) -> String {
        "replays".to_owned()
    }

    async fn next(&mut self, _cx: &StageCx) -> Result<Option<T>, Fault> {
        if self.fails == Some(self.sent) {
            return Err(Fault::external("testsuite fault"));
        }
        if self.waits == Some(self.sent) {
            std::future::pending::<()>().await;
        }
        self.sent += 1;
        Ok(self.batches.pop_front())
    }
}

pub(super) struct Take<T> {
    pub(super) left: Arc<Mutex<Vec<Left>>>,
    pub(super) mode: Mode,
    pub(super) seen: PhantomData<T>,
}

impl<T: Batch> Sink for Take<T> {
    type In = T;

    fn describe(&self) -> String {
        "takes".to_owned()
    }

    async fn write(&mut self, batch: T, _cx: &StageCx) -> Result<(), Fault> {
        let left = Left { rows: batch.rows(), lineage: batch.lineage().clone() };
        lock(&self.left).push(left);
        match self.mode {
            Mode::Takes => Ok(()),
            Mode::Slow => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(())
            }
            Mode::Fails => Err(Fault::external("testsuite fault")),
            Mode::Clogs => std::future::pending().await,
        }
    }
}
