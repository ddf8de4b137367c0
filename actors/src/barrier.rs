//! Barriers: marks that the source puts between two batches. A stage handles a barrier after all batches before it and
//! before all batches after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::batch::Epoch;
use crate::fault::{Fault, FaultKind};

/// A request on its way to the source.
pub(crate) struct BarrierRequest {
    epoch: Epoch,
    done: oneshot::Sender<Epoch>,
}

/// All barriers of a run.
pub(crate) struct Barriers {
    next: AtomicU64,
    requests: mpsc::UnboundedSender<BarrierRequest>,
    under_way: Mutex<HashMap<Epoch, oneshot::Sender<Epoch>>>,
}

impl Barriers {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<BarrierRequest>) {
        let (requests, source) = mpsc::unbounded_channel();
        (Arc::new(Self { next: AtomicU64::new(1), requests, under_way: Mutex::default() }), source)
    }

    /// Asks for a barrier. The future resolves when the sink has handled it, or with a fault if the run ends first.
    pub(crate) fn request(&self) -> impl Future<Output = Result<Epoch, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        // Sent here, not at the first poll: the barrier stands where it was asked for. A source that has ended drops
        // the request, and the future returns a fault.
        let _ = self.requests.send(BarrierRequest { epoch: Epoch(self.next.fetch_add(1, Relaxed)), done });
        passes(passed)
    }

    /// Begins a barrier at a stage behind the source. `put` hands its number to the stage. The future is that of
    /// [`request`](Self::request).
    pub(crate) fn begin_at(
        &self,
        put: &dyn Fn(Epoch) -> bool,
    ) -> impl Future<Output = Result<Epoch, Fault>> + Send + use<> {
        let (done, passed) = oneshot::channel();
        let epoch = self.leaves(BarrierRequest { epoch: Epoch(self.next.fetch_add(1, Relaxed)), done });
        if !put(epoch) {
            self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&epoch);
        }
        passes(passed)
    }

    /// The source calls this when it sends the barrier; the returned number goes down the link.
    pub(crate) fn leaves(&self, request: BarrierRequest) -> Epoch {
        let BarrierRequest { epoch, done } = request;
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(epoch, done);
        epoch
    }

    /// The sink calls this when it has handled the barrier.
    pub(crate) fn arrives(&self, epoch: Epoch) {
        let passed = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&epoch);
        if let Some(done) = passed {
            // The caller may have dropped its future.
            let _ = done.send(epoch);
        }
    }

    /// Called at the end of the run: every caller that still waits gets a fault.
    pub(crate) fn end(&self) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn passes(passed: oneshot::Receiver<Epoch>) -> Result<Epoch, Fault> {
    let ending =
        || Fault::user("no barrier can pass any more: the run has ended or is ending").kind(FaultKind::Stopped);
    passed.await.map_err(|_| ending())
}
