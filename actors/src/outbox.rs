//! Where a stage puts its output: an argument, not a field, so that a test passes one that collects.
//!
//! Comes in: batches. Goes out: the same batches on the link below, or in a [`Collected`]. [`Outbox::send`] waits
//! while the link is full (and, in an ordered replica, until it is this replica's turn); that is the only thing in
//! a stage that counts as blocked.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use crate::batch::{Batch, Epoch};
use crate::fault::{Fault, FaultKind};
use crate::link::{Closed, Link};
use crate::meter::{Activity, StageMeter};
use crate::turn::Turn;

/// What travels on the link between two stages.
pub(crate) enum Item<T> {
    Batch(T),
    Barrier(Epoch),
    Eof,
}

/// Takes a stage's output.
pub struct Outbox<T: Batch> {
    to: To<T>,
}

enum To<T: Batch> {
    Link(Down<T>),
    Collected(Arc<Mutex<Vec<T>>>),
}

struct Down<T: Batch> {
    link: Link<Item<T>>,
    meter: Arc<StageMeter>,
    turn: Option<Turn>,
}

/// What was sent to a collecting outbox.
pub struct Collected<T> {
    batches: Arc<Mutex<Vec<T>>>,
}

impl<T> Collected<T> {
    /// All batches sent since the last call, in order.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.batches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Batch> Outbox<T> {
    /// An outbox that keeps what is sent, for tests of a stage without a pipeline.
    pub fn collecting() -> (Self, Collected<T>) {
        let batches = Arc::new(Mutex::new(Vec::new()));
        (Self { to: To::Collected(Arc::clone(&batches)) }, Collected { batches })
    }

    pub(crate) fn new(link: Link<Item<T>>, meter: Arc<StageMeter>, turn: Option<Turn>) -> Self {
        Self { to: To::Link(Down { link, meter, turn }) }
    }

    /// Sends one batch on; waits while there is no room below.
    ///
    /// Cancel safe in that a cancelled wait takes up no room; the batch itself is dropped with the future.
    ///
    /// # Errors
    /// The run was stopped: return the fault as it is, its root cause is known already.
    pub async fn send(&mut self, batch: T) -> Result<(), Fault> {
        match &mut self.to {
            To::Collected(batches) => {
                batches.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
                Ok(())
            }
            To::Link(down) => down.send(batch).await,
        }
    }

    /// The runtime's own marks travel in order with the batches.
    pub(crate) async fn mark(&mut self, mark: Item<T>) -> Result<(), Fault> {
        match &mut self.to {
            To::Collected(_) => Ok(()),
            To::Link(down) => down.put(mark, 0).await.map_err(closed),
        }
    }
}

fn closed(_: Closed) -> Fault {
    Fault::internal("the link below is closed").kind(FaultKind::Stopped)
}

impl<T: Batch> Down<T> {
    async fn send(&mut self, batch: T) -> Result<(), Fault> {
        let (rows, bytes) = (batch.rows(), batch.bytes());
        if let Some(turn) = &self.turn
            && !turn.is_now()
        {
            let _blocked = Blocked::since_now(&self.meter);
            turn.comes().await;
        }
        self.put(Item::Batch(batch), bytes).await.map_err(closed)?;
        self.meter.sent(rows, bytes);
        let link = &self.link.room.meter;
        link.items.fetch_add(1, Relaxed);
        link.rows.fetch_add(rows as u64, Relaxed);
        link.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }

    async fn put(&self, item: Item<T>, bytes: usize) -> Result<(), Closed> {
        let permit = match self.link.room.try_reserve(bytes) {
            Some(permit) => permit,
            None => {
                let _blocked = Blocked::since_now(&self.meter);
                self.link.room.reserve(bytes).await?
            }
        };
        self.link.send(permit, item)
    }
}

/// Time on the dial `blocked`, until dropped: also when the wait is cancelled.
struct Blocked<'a>(&'a StageMeter);

impl<'a> Blocked<'a> {
    fn since_now(meter: &'a StageMeter) -> Self {
        meter.enter(Activity::Blocked);
        Self(meter)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.enter(Activity::Busy);
    }
}
