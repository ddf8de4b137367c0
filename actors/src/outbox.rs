//! Where a stage sends its output. It is an argument, not a field, so that a test can pass one that collects.
//!
//! [`Outbox::send`] waits while the link below is full and, in an ordered replica, until it is the replica's turn. The
//! wait counts as blocked.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::batch::{BarrierNumber, Batch};
use crate::clock::{Activity, now};
use crate::fault::{Fault, FaultKind};
use crate::link::{Closed, Link};
use crate::lock::lock;
use crate::meter::StageMeter;
use crate::turn::Turn;

/// What travels on the link between two stages.
pub(crate) enum Item<T> {
    Batch(T),
    Barrier(BarrierNumber),
    Eof,
}

/// Takes a stage's output.
pub struct Outbox<T: Batch> {
    to: Target<T>,
}

enum Target<T: Batch> {
    Link(Downstream<T>),
    Collected(Arc<Mutex<Vec<T>>>),
}

struct Downstream<T: Batch> {
    link: Link<Item<T>>,
    meter: Arc<StageMeter>,
    turn: Option<Turn>,
}

/// The batches that a collecting outbox received.
pub struct Collected<T> {
    batches: Arc<Mutex<Vec<T>>>,
}

impl<T> Collected<T> {
    /// All batches sent since the last call, in order.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.batches))
    }
}

impl<T: Batch> Outbox<T> {
    /// An outbox that keeps what is sent, for tests of a stage without a pipeline.
    pub fn collecting() -> (Self, Collected<T>) {
        let batches = Arc::new(Mutex::new(Vec::new()));
        (Self { to: Target::Collected(Arc::clone(&batches)) }, Collected { batches })
    }

    pub(crate) fn new(link: Link<Item<T>>, meter: Arc<StageMeter>, turn: Option<Turn>) -> Self {
        Self { to: Target::Link(Downstream { link, meter, turn }) }
    }

    /// Sends one batch; waits while there is no room below.
    ///
    /// If the future is dropped, it gives its room back, but the batch is lost.
    ///
    /// # Errors
    /// The run was stopped. Return this fault unchanged: the run has its root cause already.
    pub async fn send(&mut self, batch: T) -> Result<(), Fault> {
        match &mut self.to {
            Target::Collected(batches) => {
                lock(batches).push(batch);
                Ok(())
            }
            Target::Link(down) => down.send(batch).await,
        }
    }

    /// Sends a barrier or the end of the stream, in order with the batches.
    pub(crate) async fn mark(&mut self, mark: Item<T>) -> Result<(), Fault> {
        match &mut self.to {
            Target::Collected(_) => Ok(()),
            Target::Link(down) => down.put(mark, 0).await.map_err(closed),
        }
    }
}

fn closed(_: Closed) -> Fault {
    Fault::internal("the link below is closed").kind(FaultKind::Stopped)
}

impl<T: Batch> Downstream<T> {
    async fn send(&mut self, batch: T) -> Result<(), Fault> {
        let (rows, bytes) = (batch.rows(), batch.bytes());
        let made = self.meter.recorder().makes(&batch);
        if let Some(turn) = &self.turn
            && !turn.is_now()
        {
            let _blocked = Blocked::since_now(&self.meter);
            turn.comes().await;
        }
        self.put(Item::Batch(batch), bytes).await.map_err(closed)?;
        self.meter.sent(rows, bytes);
        if let Some(name) = made {
            self.meter.recorder().made(name);
        }
        self.link.room.meter.sent(rows, bytes);
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

/// Counts time as blocked until it is dropped, also if the wait is cancelled.
struct Blocked<'a>(&'a StageMeter, Instant);

impl<'a> Blocked<'a> {
    /// `None` if meters do not count.
    fn since_now(meter: &'a StageMeter) -> Option<Self> {
        let since = now()?;
        meter.enter(Activity::Blocked);
        Some(Self(meter, since))
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.enter(Activity::Busy);
        self.0.recorder().waited(self.1, "room below");
    }
}
