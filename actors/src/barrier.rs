//! Barriers: a mark that the source puts between two batches and every stage passes on in order, so that at one
//! moment per stage everything before it was handled and nothing after it was.
//!
//! Comes in: requests for a barrier. Goes out: a [`Barrier`] for each, once the sink has handled it. Only the caller
//! that asked for it waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::batch::Epoch;
use crate::fault::{Fault, FaultKind};

/// A barrier that has passed through the whole pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Barrier {
    /// Its number.
    pub epoch: Epoch,
    /// Where the source stood when it let the barrier go: its `Position`, as serde writes it. Enough to go on after
    /// everything the sink had handled when the barrier passed.
    pub position: serde_json::Value,
}

/// A request on its way to the source.
pub(crate) struct BarrierRequest {
    epoch: Epoch,
    done: oneshot::Sender<Barrier>,
}

/// All barriers of a run.
pub(crate) struct Barriers {
    next: AtomicU64,
    requests: mpsc::UnboundedSender<BarrierRequest>,
    under_way: Mutex<HashMap<Epoch, (serde_json::Value, oneshot::Sender<Barrier>)>>,
}

impl Barriers {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<BarrierRequest>) {
        let (requests, source) = mpsc::unbounded_channel();
        (Arc::new(Self { next: AtomicU64::new(1), requests, under_way: Mutex::default() }), source)
    }

    /// Resolves when the sink has handled the barrier, or with a fault when it never will.
    pub(crate) fn request(&self) -> impl Future<Output = Result<Barrier, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        // Sent at once, not at the first poll: the barrier stands where it was asked for. A source that has ended
        // drops the request, and the future below says so.
        let _ = self.requests.send(BarrierRequest { epoch: Epoch(self.next.fetch_add(1, Relaxed)), done });
        async move {
            passed.await.map_err(|_| {
                Fault::user("no barrier can pass any more: the run has ended or is ending").kind(FaultKind::Stopped)
            })
        }
    }

    /// The source lets it go; what is returned must be sent down.
    pub(crate) fn leaves(&self, request: BarrierRequest, position: serde_json::Value) -> Epoch {
        let BarrierRequest { epoch, done } = request;
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(epoch, (position, done));
        epoch
    }

    /// The sink has handled it.
    pub(crate) fn arrives(&self, epoch: Epoch) {
        let passed = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&epoch);
        if let Some((position, done)) = passed {
            // The caller may have dropped its future.
            let _ = done.send(Barrier { epoch, position });
        }
    }

    /// The run has ended: every caller that still waits gets a fault.
    pub(crate) fn end(&self) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
